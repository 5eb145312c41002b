//! Additions to TensorFlow Serving's HTTP API: a list of models, ignored query strings, 405 with
//! the allowed methods, request IDs and timings. A server that replaces TensorFlow Serving has none
//! of them.

use serde_json::json;

use crate::support::client::{Answer, request};
use crate::support::fake::{Loading, Model};
use crate::support::place::Place;

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.get(name).map(String::as_str)
}

/// A server that replaces TensorFlow Serving.
fn exact(model: &Model) -> Place {
    Place::configured(&[("models/m/1", model.clone())], |_, _| (), |config| config.answer_as_tfs())
}

const BODY: &str = "{\"instances\": [[1]]}";

#[test]
fn models_are_listed_with_their_versions() {
    let broken = Model { loading: Loading::Fails, ..Model::default() };
    let models = [("models/a/1", Model::default()), ("models/b/7", broken)];
    let place = Place::with(&models, |_, _| ());
    place.server.wait_until_started();
    for path in ["/v1/models", "/V1/Models", "/v1/models?format=x"] {
        let answer = place.server.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let json = answer.json();
        assert_eq!(json["models"], json!(["a", "b"]), "{path}");
        // Each status is that of the model's own route.
        assert_eq!(json["status"]["a"], place.server.get("/v1/models/a").json());
        assert_eq!(json["status"]["b"], place.server.get("/v1/models/b").json());
        let failed = &json["status"]["b"]["model_version_status"][0];
        assert_eq!((&failed["version"], &failed["state"]), (&json!("7"), &json!("END")));
    }
    let there = exact(&Model::default()).server.get("/v1/models");
    there.assert_refused("exact", 400, "Missing model name in request.");
}

#[test]
fn queries_do_not_matter() {
    let place = Place::of(&Model::default(), |_| ());
    let path = "/v1/models/m:predict?timeout=5&x=/v1/models/n:regress";
    let answer = place.server.post(path, BODY);
    assert_eq!((answer.status, &answer.json()["predictions"]), (200, &json!([[1.0]])));
    for path in ["/v1/models/m?x=1", "/v1/models/m/metadata?", "/readyz?x", "/metrics?x=1"] {
        assert_eq!(place.server.get(path).status, 200, "{path}");
    }
    let there = exact(&Model::default());
    let answer = there.server.post("/v1/models/m:predict?x=1", BODY);
    let malformed = "Malformed request: POST /v1/models/m:predict?x=1";
    answer.assert_refused("exact", 400, malformed);
    let answer = there.server.get("/v1/models/m?x=1");
    answer.assert_refused("exact", 404, "Could not find any versions of model m?x=1");
}

#[test]
fn a_method_that_a_path_does_not_take_is_told_those_that_it_takes() {
    let place = Place::of(&Model::default(), |_| ());
    for (method, path, allowed) in [
        ("GET", "/v1/models/m:predict", "POST"),
        ("DELETE", "/v1/models/m/labels/l:regress", "POST"),
        ("POST", "/v1/models/m", "GET, HEAD"),
        ("PUT", "/v1/models/m/metadata?x=1", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PUT", "/", "GET, HEAD, POST"),
        ("POST", "/readyz", "GET, HEAD"),
    ] {
        let answer = request(place.server.address, method, path, &[], "");
        answer.assert_refused(path, 405, &format!("{method} is not allowed for /"));
        assert_eq!(header(&answer, "allow"), Some(allowed), "{method} {path}");
    }
    let large = "/v1/models/m/versions/18446744073709551616";
    place.server.get(large).assert_refused(
        "large",
        400,
        "versions/18446744073709551616 does not fit 64 bits",
    );
    let nowhere = request(place.server.address, "PUT", "/v1/nothing", &[], "");
    nowhere.assert_refused("no path", 400, "Malformed request: PUT /v1/nothing");
    let head = request(place.server.address, "HEAD", "/v1/models/m", &[], "");
    assert_eq!((head.status, head.body.len()), (200, place.server.get("/v1/models/m").body.len()));
    let there = exact(&Model::default());
    for method in ["PUT", "HEAD"] {
        let answer = request(there.server.address, method, "/v1/models/m", &[], "");
        assert_eq!((answer.status, header(&answer, "allow")), (400, None), "{method}");
    }
}

#[test]
fn requests_have_ids() {
    let place = Place::of(&Model::default(), |_| ());
    let id = |headers: &[(&str, &str)], path: &str| {
        let answer = request(place.server.address, "GET", path, headers, "");
        header(&answer, "x-request-id").expect("a request ID").to_owned()
    };
    // Failed requests have IDs, too.
    let made = [id(&[], "/v1/models/m"), id(&[], "/v1/models/x"), id(&[], "/x"), id(&[], "/x")];
    for (index, one) in made.iter().enumerate() {
        assert!(one.len() == 16 && one.bytes().all(|b| b.is_ascii_hexdigit()), "{one}");
        assert!(!made[..index].contains(one), "{made:?}");
    }
    let longest = "x".repeat(128);
    for brought in ["6f1c-8d/2:3", &longest] {
        assert_eq!(id(&[("X-Request-ID", brought)], "/v1/models/m"), brought);
    }
    for wrong in ["a b", "", "\u{e9}", &"x".repeat(129)] {
        let id = id(&[("X-Request-ID", wrong)], "/v1/models/m");
        assert!(id.len() == 16 && id != *wrong, "{wrong:?}: {id}");
    }
    let there = exact(&Model::default());
    assert_eq!(header(&there.server.get("/v1/models/m"), "x-request-id"), None);
    let brought = request(there.server.address, "GET", "/x", &[("X-Request-Id", "7")], "");
    assert_eq!(header(&brought, "x-request-id"), Some("7"));
}

/// The milliseconds of an answer's `Server-Timing`, by name.
fn timing(answer: &Answer) -> Vec<(String, f64)> {
    let text = header(answer, "server-timing").expect("timings");
    let part = |part: &str| {
        let (name, millis) = part.split_once(";dur=").expect(part);
        (name.to_owned(), millis.parse().expect(part))
    };
    text.split(", ").map(part).collect()
}

#[test]
fn times_are_told_to_whoever_asks() {
    let slow = Model { run_millis: 20, ..Model::default() };
    let place = Place::of(&slow, |_| ());
    let asks = [("X-Server-Timing", "1")];
    let path = "/v1/models/m:predict";
    let answer = request(place.server.address, "POST", path, &asks, BODY);
    assert_eq!(answer.status, 200);
    let times = timing(&answer);
    let names: Vec<&str> = times.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["queue", "run", "total"]);
    let [queue, run, total] = [times[0].1, times[1].1, times[2].1];
    assert!((20.0..10_000.0).contains(&run), "{times:?}");
    assert!(queue >= 0.0 && total >= queue + run, "{times:?}");
    let status = request(place.server.address, "GET", "/v1/models/m", &asks, "");
    assert_eq!(timing(&status)[0].0, "total");
    for headers in [&[][..], &[("X-Server-Timing", "0")]] {
        let answer = request(place.server.address, "POST", path, headers, BODY);
        assert_eq!(header(&answer, "server-timing"), None);
    }
    let always = Place::of(&slow, |settings| settings.server.server_timing = Some(true));
    assert_eq!(timing(&always.server.post(path, BODY)).len(), 3);
}
