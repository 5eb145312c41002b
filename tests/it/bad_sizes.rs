//! Values of extreme depth, length and number: each gets a response in time, with little memory and
//! a short error, and the server keeps serving.

use std::time::{Duration, Instant};

use crate::support::client::Answer;
use crate::support::project;
use crate::support::server::{TestServer, settings};

const TFS: &str = "/v1/models/half_plus_two:predict";

/// Much longer than a request takes on a busy machine in a build without optimization, much shorter than a
/// quadratic algorithm.
const SOON: Duration = Duration::from_secs(120);

fn serve() -> TestServer {
    let mut settings = settings();
    settings.paths.push(project("models/half_plus_two"));
    settings.paths.push(project("models/text_normalizer"));
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

fn simple(model: &str, data: &str) -> String {
    format!(r#"{{"model_name": "{model}", "data": {data}}}"#)
}

fn timely(server: &TestServer, what: &str, path: &str, body: &str) -> Answer {
    let start = Instant::now();
    let answer = server.post(path, body);
    assert!(start.elapsed() < SOON, "{what} to {path}: {:?}", start.elapsed());
    server.assert_serves(what);
    answer
}

#[test]
fn depth() {
    let server = serve();
    let open = "[".repeat(1_000_000);
    let closed = format!("{open}{}", "]".repeat(1_000_000));
    let around_one = format!("{open}1{}", "]".repeat(1_000_000));
    let objects = r#"{"a":"#.repeat(1_000_000);
    let closed_objects = format!("{objects}1{}", "}".repeat(1_000_000));
    // The name, the value, and parts of the errors of both APIs.
    let cases = [
        ("brackets", &open, "Invalid value", "Invalid value"),
        ("closed brackets", &closed, "more than 254 levels", "more than 254 dimensions"),
        ("a deep value", &around_one, "more than 254 levels", "more than 254 dimensions"),
        ("objects", &objects, "Invalid value", "Invalid value"),
        ("closed objects", &closed_objects, "", "is not a value of type float"),
    ];
    for (what, value, tfs, simple_error) in cases {
        for key in ["inputs", "instances"] {
            let body = format!(r#"{{"{key}": {value}}}"#);
            timely(&server, what, TFS, &body).assert_refused(what, 400, tfs);
        }
        let body = simple("half_plus_two", &format!(r#"{{"x": {value}}}"#));
        timely(&server, what, "/", &body).assert_refused(what, 400, simple_error);
        // The value of an unknown member.
        let body = format!(r#"{{"other": {value}, "inputs": [1]}}"#);
        let answer = timely(&server, what, TFS, &body);
        assert!(matches!(answer.status, 200 | 400), "{what}: {}", answer.status);
    }
}

#[test]
fn numbers_of_a_million_digits() {
    let server = serve();
    let ones = "1".repeat(1_000_000);
    let too_big = "Number too big to be stored in double";
    for number in [ones.clone(), format!("1{}", "0".repeat(1_000_000)), format!("1e{ones}")] {
        let body = format!(r#"{{"inputs": [{number}]}}"#);
        timely(&server, "digits", TFS, &body).assert_refused("digits", 400, too_big);
        let body = simple("half_plus_two", &format!(r#"{{"x": [{number}]}}"#));
        timely(&server, "digits", "/", &body).assert_refused("digits", 400, too_big);
    }
    // Many digits after the decimal point are valid, and so is a very small exponent.
    for number in
        [format!("0.{ones}"), format!("0.{ones}e0"), format!("0.11{}", "0".repeat(1_000_000))]
    {
        let body = simple("half_plus_two", &format!(r#"{{"x": [{number}]}}"#));
        let answer = timely(&server, "digits", "/", &body);
        let y = answer.json()["y"][0].as_f64().expect("a number");
        assert!((y - 2.0555).abs() < 0.001, "{y}");
    }
    let body = format!(r#"{{"inputs": [1e-{ones}]}}"#);
    let answer = timely(&server, "digits", TFS, &body);
    assert_eq!(answer.json()["outputs"][0], 2.0, "{}", answer.text());
}

#[test]
fn a_string_of_50_mb() {
    let server = serve();
    let long = "a".repeat(50_000_000);
    let in_model = |members: &str| format!(r#"{{"model_name": "half_plus_two", {members}}}"#);
    let body = simple("text_normalizer", &format!(r#"{{"text": ["{long}"]}}"#));
    let answer = timely(&server, "a text", "/", &body);
    assert_eq!(answer.status, 200);
    assert!(answer.body.len() > long.len());
    // Every place for a value or a name, and a part of the expected error.
    let cases = [
        ("a value", TFS, format!(r#"{{"inputs": ["{long}"]}}"#), "not of expected type: float"),
        ("a value", "/", in_model(&format!(r#""data": {{"x": ["{long}"]}}"#)), "string to float"),
        ("a model", "/", simple(&long, "{}"), "available models: [\"half_plus_two\""),
        ("a version", "/", in_model(&format!(r#""model_version": "{long}""#)), "a whole number"),
        ("a signature", "/", in_model(&format!(r#""signature_name": "{long}""#)), "signature name"),
        ("a signature", TFS, format!(r#"{{"signature_name": "{long}"}}"#), "in signature def"),
        ("a key", TFS, format!(r#"{{"instances": [{{"{long}": 1}}]}}"#), "element: 0 key: aaaa"),
        ("a key", "/", in_model(&format!(r#""data": {{"{long}": 1}}"#)), "does not exist in input"),
        ("a body", TFS, long.clone(), "Invalid value. at offset: 0"),
        ("a body", "/", long.clone(), "Invalid value. at offset 0"),
    ];
    for (what, path, body, text) in cases {
        timely(&server, what, path, &body).assert_refused(what, 400, text);
    }
}

#[test]
fn shapes_that_do_not_fit_in_memory() {
    // A tensor may take eight times the maximum body size.
    let mut settings = settings();
    settings.paths.push(project("models/half_plus_two"));
    settings.paths.push(project("models/text_normalizer"));
    settings.server.max_body_bytes = Some("1MiB".parse().expect("a size"));
    let server = TestServer::start(settings);
    server.wait_until_started();
    // Each empty string takes at least 32 bytes.
    let strings = format!("[{}\"\"]", "\"\",".repeat(300_000));
    let path = "/v1/models/text_normalizer:predict";
    let body = format!(r#"{{"inputs": {strings}}}"#);
    timely(&server, "strings", path, &body).assert_refused("strings", 400, "too much memory");
    let body = simple("text_normalizer", &format!(r#"{{"text": {strings}}}"#));
    let text = "input \"text\" takes too much memory";
    timely(&server, "strings", "/", &body).assert_refused("strings", 400, text);
    // A short body cannot declare a large shape: each list must be as long as the first.
    let wide = format!("[[{}1],[1]]", "1,".repeat(300_000));
    let body = format!(r#"{{"inputs": {wide}}}"#);
    let text = "unexpected size: 1 at level: 1 expected size: 300001";
    timely(&server, "lists", TFS, &body).assert_refused("lists", 400, text);
    // Empty lists have a shape, but no values.
    let empty = format!("[{}[]]", "[],".repeat(300_000));
    let body = format!(r#"{{"inputs": {empty}}}"#);
    let answer = timely(&server, "empty lists", TFS, &body);
    assert!(matches!(answer.status, 200 | 400), "{}", answer.status);
}
