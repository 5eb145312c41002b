//! The dashboard's page: which requests get it, and the headers of its files. Its behaviour is
//! tested in a browser, in `tests/clients/browser`.

use crate::support::client::{Answer, request};
use crate::support::fake::Model;
use crate::support::place::Place;
use crate::support::server::TestServer;

/// The header that Chromium and Firefox send when a user enters an address.
const BROWSER: (&str, &str) =
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8");

fn get(server: &TestServer, path: &str, headers: &[(&str, &str)]) -> Answer {
    request(server.address, "GET", path, headers, "")
}

#[test]
fn a_browser_gets_the_page_and_a_program_a_sign_of_life() {
    let place = Place::of(&Model::default(), |_| ());
    let page = get(&place.server, "/", &[BROWSER]);
    assert_eq!((page.status, &*page.headers["content-type"]), (200, "text/html; charset=utf-8"));
    assert!(page.text().contains("<title>tensorserve</title>"), "{}", page.text());
    assert!(page.headers["content-security-policy"].contains("script-src 'self'"));
    for headers in [&[][..], &[("Accept", "*/*")], &[("Accept", "application/json")]] {
        let alive = get(&place.server, "/", headers);
        assert_eq!((alive.status, alive.text().as_str()), (200, "{\"status\":\"alive\"}"));
        assert_eq!(alive.headers["vary"], "Accept", "a cache must keep the two apart");
    }
    let reference = get(&place.server, "/reference", &[]);
    assert!(reference.text().contains("console/reference.js"), "{}", reference.text());
    assert_eq!(reference.headers["content-type"], "text/html; charset=utf-8");
    let head = request(place.server.address, "HEAD", "/", &[BROWSER], "");
    assert_eq!(head.headers["content-type"], "text/html; charset=utf-8");
}

#[test]
fn files_of_the_page_are_read_only_and_kept_by_their_tag() {
    let place = Place::of(&Model::default(), |_| ());
    let script = get(&place.server, "/console/app.js", &[]);
    assert_eq!(script.headers["content-type"], "text/javascript; charset=utf-8");
    let tag = script.headers["etag"].as_str();
    let again = get(&place.server, "/console/app.js", &[("If-None-Match", tag)]);
    assert_eq!((again.status, again.body.len()), (304, 0));
    let wrong = request(place.server.address, "POST", "/console/app.js", &[], "x");
    wrong.assert_refused("a POST", 405, "POST is not allowed for /console/app.js");
    assert_eq!(wrong.headers["allow"], "GET, HEAD");
    let nothing = get(&place.server, "/console/nothing.js", &[BROWSER]);
    nothing.assert_refused("no file", 404, "there is no file /console/nothing.js");
    for path in ["/console/", "/console/%2e%2e/mod.rs"] {
        get(&place.server, path, &[BROWSER]).assert_refused(path, 404, "there is nothing at");
    }
}

#[test]
fn there_is_no_page_without_the_console() {
    let place = Place::of(&Model::default(), |settings| settings.server.console = Some(false));
    let alive = get(&place.server, "/", &[BROWSER]);
    assert_eq!((alive.status, alive.text().as_str()), (200, "{\"status\":\"alive\"}"));
    assert_eq!(get(&place.server, "/console/app.js", &[]).status, 404);
    assert_eq!(get(&place.server, "/reference", &[]).status, 404);
}
