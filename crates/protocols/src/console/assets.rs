//! The files of the dashboard and of the API reference, which are part of the binary, and their
//! headers. They contain no data: they call the console's API, which authorizes each request.
//!
//! The content security policy allows the page to load its own files and to call its own server. It
//! forbids inline scripts and styles, and text is never parsed as HTML (`trusted-types 'none'`).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::json;

use super::ConsoleState;
use tensorserve_auth::Permission;
use tensorserve_protocol::{JSON, Methods, Reply, RequestHead, RouteGroup};
use tensorserve_tensor::error::Error;

/// The content security policy.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' blob: data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; \
    base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

struct Asset {
    name: &'static str,
    content_type: &'static str,
    content: &'static str,
}

macro_rules! assets {
    ($($name:literal: $content_type:expr,)*) => {
        &[$(Asset {
            name: $name,
            content_type: $content_type,
            content: include_str!(concat!("page/", $name)),
        },)*]
    };
}

/// All files, the page first.
static ASSETS: &[Asset] = assets! {
    "index.html": HTML,
    "app.css": STYLE,
    "favicon.svg": IMAGE,
    "theme.js": SCRIPT,
    "app.js": SCRIPT,
    "address.js": SCRIPT,
    "admin.js": SCRIPT,
    "answer.js": SCRIPT,
    "api.js": SCRIPT,
    "charts.js": SCRIPT,
    "clients.js": SCRIPT,
    "csv.js": SCRIPT,
    "dialogs.js": SCRIPT,
    "dom.js": SCRIPT,
    "feed.js": SCRIPT,
    "files.js": SCRIPT,
    "finder.js": SCRIPT,
    "format.js": SCRIPT,
    "inputs.js": SCRIPT,
    "models.js": SCRIPT,
    "order.js": SCRIPT,
    "overview.js": SCRIPT,
    "reference.html": HTML,
    "reference.css": STYLE,
    "reference.js": SCRIPT,
    "states.js": SCRIPT,
    "traffic.js": SCRIPT,
    "trial.js": SCRIPT,
    "tryit.js": SCRIPT,
    "wires.js": SCRIPT,
};

/// One entity tag for all files, which change only with the binary.
static TAG: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    for asset in ASSETS {
        asset.content.hash(&mut hasher);
    }
    format!("\"{:016x}\"", hasher.finish())
});

/// Adds the routes.
pub(super) fn add_routes(group: &mut RouteGroup<'_, ConsoleState>) {
    group
        .immediate(Methods::Get, "/", Permission::Public, |state, request| {
            root(&request.head, state.config.is_root)
        })
        .simple_cors()
        .summary("Return the dashboard to browsers, and the liveness of the server to programs")
        .response(HTML, json!({ "type": "string" }))
        .members(json!({ "responses": { "200": {
            "description": "The dashboard, or that the server is alive",
            "content": {
                HTML: { "schema": { "type": "string" } },
                JSON: { "schema": {
                    "type": "object",
                    "properties": { "status": { "const": "alive" } },
                    "required": ["status"],
                } },
            },
        } } }));
    group
        .immediate(Methods::Get, "/console/{file}", Permission::Public, |_, request| {
            asset(&request.head, request.params.raw("file"))
        })
        .summary("Return a file of the dashboard")
        .response("*/*", json!({ "type": "string" }));
    group
        .immediate(Methods::Get, "/reference", Permission::Public, |_, request| {
            reference(&request.head)
        })
        .summary("Return a page that shows this API description")
        .response(HTML, json!({ "type": "string" }));
}

/// The dashboard for a browser; a liveness response for every other client.
fn root(head: &RequestHead<'_>, is_root: bool) -> Reply {
    if is_root || wants_page(head) {
        return page(head);
    }
    Reply::ok(JSON, &b"{\"status\":\"alive\"}"[..]).with_header("vary", "Accept")
}

/// Whether a client accepts HTML: programs accept JSON or anything.
fn wants_page(head: &RequestHead<'_>) -> bool {
    let kinds = head.header("accept").unwrap_or_default();
    kinds.split(',').any(|kind| {
        let kind = kind.split(';').next().unwrap_or_default();
        kind.trim().eq_ignore_ascii_case("text/html")
    })
}

/// The dashboard.
fn page(head: &RequestHead<'_>) -> Reply {
    // The response to `/` depends on the client.
    send(ASSETS.first(), head).with_header("vary", "Accept")
}

/// The API reference: the payloads and responses of every route.
fn reference(head: &RequestHead<'_>) -> Reply {
    send(ASSETS.iter().find(|asset| asset.name == "reference.html"), head)
}

/// A file of the dashboard or of the API reference.
fn asset(head: &RequestHead<'_>, name: &str) -> Reply {
    let mut files = ASSETS.iter().filter(|asset| asset.content_type != HTML);
    send(files.find(|asset| asset.name == name), head)
}

fn send(asset: Option<&Asset>, head: &RequestHead<'_>) -> Reply {
    let Some(asset) = asset else {
        let message = format!("there is no file {}", head.path());
        return Reply::error(Error::not_found(message), 404);
    };
    let known = head.header("if-none-match").is_some_and(|tags| tags.contains(TAG.as_str()));
    let content = if known { Bytes::new() } else { Bytes::from_static(asset.content.as_bytes()) };
    Reply::ok(asset.content_type, content)
        .with_status(if known { 304 } else { 200 })
        .with_header("etag", TAG.as_str())
        // Revalidated each time, usually with the response 304.
        .with_header("cache-control", "no-cache")
        .with_header("content-security-policy", POLICY)
        .with_header("x-content-type-options", "nosniff")
        .with_header("referrer-policy", "no-referrer")
        .with_header("cross-origin-opener-policy", "same-origin")
        .with_header("cross-origin-resource-policy", "same-origin")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::fs;
    use std::path::Path;

    use super::*;

    fn ask(target: &str, headers: &[(&'static str, &str)]) -> Reply {
        let headers: HashMap<_, _> = headers.iter().map(|(n, v)| (*n, (*v).to_owned())).collect();
        let head = RequestHead { method: "GET", target, headers: &headers };
        match head.path().strip_prefix("/console/") {
            Some(name) => asset(&head, name),
            None => root(&head, false),
        }
    }

    fn header<'a>(reply: &'a Reply, name: &str) -> &'a str {
        let found = reply.headers.iter().find(|(n, _)| *n == name);
        found.map_or("", |(_, value)| value)
    }

    #[test]
    fn every_file_is_served_and_all_are_small() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/console/page");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("entry").file_name().into_string().expect("a name")
        };
        let there: BTreeSet<String> =
            fs::read_dir(folder).expect("the page's directory").map(name).collect();
        let served: BTreeSet<String> = ASSETS.iter().map(|a| a.name.to_owned()).collect();
        assert_eq!(there, served);
        let dashboard = ASSETS.iter().filter(|asset| !asset.name.starts_with("reference."));
        let size: usize = dashboard.map(|asset| asset.content.len()).sum();
        assert!(size < 195_000, "the page has {size} bytes");
    }

    #[test]
    fn every_loaded_file_exists() {
        for asset in ASSETS {
            let quoted = asset.content.split('"').skip(1).step_by(2);
            let names = quoted.filter_map(|text| {
                text.strip_prefix("./").or_else(|| text.strip_prefix("console/"))
            });
            // "./" is the dashboard itself.
            for name in names.filter(|name| !name.is_empty()) {
                assert!(ASSETS.iter().any(|a| a.name == name), "{} loads {name}", asset.name);
            }
        }
    }

    #[test]
    fn text_never_becomes_markup_and_nothing_is_inline() {
        for asset in ASSETS.iter().filter(|asset| asset.content_type == SCRIPT) {
            for bad in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!asset.content.contains(bad), "{} has {bad}", asset.name);
            }
        }
        let page = ASSETS.first().expect("the page").content;
        for bad in [" style=", " onclick=", " onload=", "<style", "http:", "https:", "//cdn"] {
            assert!(!page.contains(bad), "the page contains {bad}");
        }
    }

    #[test]
    fn only_browsers_get_the_page() {
        let accept = |value| ask("/", &[("accept", value)]);
        assert_eq!(accept("text/html,application/xhtml+xml,*/*;q=0.8").content_type, HTML);
        assert_eq!(accept("application/json, Text/HTML;q=0.5").content_type, HTML);
        for program in ["*/*", "application/json", ""] {
            assert_eq!(accept(program).content_type, JSON, "{program}");
        }
    }

    #[test]
    fn files_have_their_type_and_the_policy() {
        let reply = ask("/console/app.js?x=1", &[]);
        assert_eq!((reply.status, &*reply.content_type), (200, SCRIPT));
        assert!(header(&reply, "content-security-policy").starts_with("default-src 'none'"));
        assert_eq!(header(&reply, "x-content-type-options"), "nosniff");
        let html = "/console/reference.html";
        for missing in
            ["/console/", "/console/index.html", html, "/console/../app.js", "/console/x"]
        {
            assert_eq!(ask(missing, &[]).status, 404, "{missing}");
        }
    }

    #[test]
    fn cached_files_are_not_sent_again() {
        let first = ask("/console/app.css", &[]);
        let tag = header(&first, "etag").to_owned();
        let again = ask("/console/app.css", &[("if-none-match", &format!("W/{tag}, \"x\""))]);
        assert_eq!((again.status, again.body.len()), (304, 0));
        let other = ask("/console/app.css", &[("if-none-match", "\"0\"")]);
        assert_eq!((other.status, other.body), (200, first.body));
    }
}
