//! Requests over HTTP: payloads, heads and forms, through the routes of a whole server.

use actix_web::dev::Payload;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use bytes::Bytes;
use futures_util::StreamExt;
use tensorserve_protocol::{Body, JSON, Reply, RequestHead};
use tensorserve_server::body::{self, BodyLimits};
use tensorserve_server::form;
use tensorserve_tensor::budget::{self, RequestBudget};

use super::echo::{DTYPES, EXAMPLES, IMAGES, RECORDS, ROWS, SCORED, TWO};
use super::memory::unwatched;
use super::server::{HeaderList, MAX_BODY_BYTES, MODES, received, server, wait};
use super::target::{selected, split};

const LIMITS: BodyLimits<'_> = BodyLimits::new(MAX_BODY_BYTES, std::time::Duration::from_secs(10));

/// The boundary of the forms.
const BOUNDARY: &str = "b";

/// `:predict` with JSON. The first byte selects model and compatibility mode.
pub fn predict(input: &[u8]) {
    let Some((first, body)) = selected(input) else { return };
    let models: Vec<&str> = DTYPES.iter().map(|dtype| dtype.name()).chain([TWO]).collect();
    let model = models[first % models.len()];
    let target = format!("/v1/models/{model}:predict");
    // TensorFlow Serving's routes are the same in the other modes.
    let mode = first / models.len() % 2;
    let reply = server(mode).post(&target, Vec::new(), body);
    check(&reply.expect("a route"));
}

/// `:classify` and `:regress` with JSON. The first byte selects one.
pub fn classify(input: &[u8]) {
    let Some((first, body)) = selected(input) else { return };
    let method = ["classify", "regress"][first % 2];
    let target = format!("/v1/models/{EXAMPLES}:{method}");
    let reply = server(0).post(&target, Vec::new(), body);
    check(&reply.expect("a route"));
}

/// `/invocations`: headers, a blank line, and a payload in any format. The first byte selects the
/// compatibility mode.
pub fn invocations(input: &[u8]) {
    let Some((first, rest)) = selected(input) else { return };
    let (head, body) = split(rest, b"\n\n");
    let headers = headers(head);
    if let Some(reply) = server(first % 3).post("/invocations", headers, body) {
        check(&reply);
    }
}

/// `/invocations` of a model of MLflow: a type of content, a blank line, and a payload. The first byte
/// selects the model.
pub fn scoring(input: &[u8]) {
    let Some((first, rest)) = selected(input) else { return };
    let (kind, body) = split(rest, b"\n\n");
    let Ok(kind) = std::str::from_utf8(kind) else { return };
    let (model, _) = SCORED[first % SCORED.len()];
    let headers = unwatched(|| {
        vec![
            ("content-type".to_owned(), kind.to_owned()),
            ("x-amzn-sagemaker-custom-attributes".to_owned(), format!("tfs-model-name={model}")),
        ]
    });
    let Some(reply) = server(0).post("/invocations", headers, body) else { return };
    check(&reply);
    if reply.content_type == JSON {
        unwatched(|| check_strict_json(&reply.body));
    }
}

fn check_strict_json(body: &[u8]) {
    let text = String::from_utf8_lossy(body).replace("NaN", "null");
    let text = text.replace("-Infinity", "null").replace("Infinity", "null");
    let json: Result<serde_json::Value, _> = serde_json::from_str(&text);
    assert!(json.is_ok(), "{text}");
}

/// The body of Simple TensorFlow Serving's `POST /`. The first byte selects the model.
pub fn simple(input: &[u8]) {
    let Some((first, data)) = selected(input) else { return };
    let others = [TWO, EXAMPLES, IMAGES, ROWS, RECORDS];
    let models: Vec<&str> = DTYPES.iter().map(|dtype| dtype.name()).chain(others).collect();
    let model = models[first % models.len()];
    let body = unwatched(|| [format!("{{\"model_name\": {model:?}, ").as_bytes(), data].concat());
    let json = vec![("content-type".to_owned(), JSON.to_owned())];
    let reply = server(MODES - 1).post("/", json, &body);
    check(&reply.expect("a route"));
}

/// `/v2/models/…/infer`: headers, a blank line, and a payload. The first byte selects the model.
pub fn open_inference(input: &[u8]) {
    let Some((first, rest)) = selected(input) else { return };
    let models: Vec<&str> = DTYPES.iter().map(|dtype| dtype.name()).chain([TWO]).collect();
    let target = format!("/v2/models/{}/infer", models[first % models.len()]);
    let (head, body) = split(rest, b"\n\n");
    if let Some(reply) = server(0).post(&target, headers(head), body) {
        check(&reply);
    }
}

/// Any request that changes nothing: a request line, headers, a blank line, and a payload. The first
/// byte selects the compatibility mode.
pub fn routes(input: &[u8]) {
    let Some((first, rest)) = selected(input) else { return };
    let (head, body) = split(rest, b"\n\n");
    let (line, rest) = split(head, b"\n");
    let (method, target) = split(line, b" ");
    let (Ok(method), Ok(target)) = (std::str::from_utf8(method), std::str::from_utf8(target))
    else {
        return;
    };
    // What the HTTP library lets through.
    let is_target = target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic());
    if !["GET", "HEAD", "POST"].contains(&method) || !is_target || unwatched(|| changes(target)) {
        return;
    }
    let headers = HeaderList(headers(rest));
    let head = RequestHead { method, target, headers: &headers };
    let body = Body::Bytes(received(body));
    if let Some(reply) = server(first).answer(head, line.len() + headers.bytes(), body) {
        check(&reply);
    }
}

/// Whether a request may change what a server does for later requests, or wait.
fn changes(target: &str) -> bool {
    let lower = target.to_ascii_lowercase();
    ["/api/", "/models", "async", "/events", "/stream"].iter().any(|part| lower.contains(part))
        && !lower.contains("/v1/models")
        && !lower.contains("/v2/models")
}

/// A form: its payload, and what Simple TensorFlow Serving makes of it.
pub fn multipart(input: &[u8]) {
    let mut head = HeaderMap::new();
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    head.insert(CONTENT_TYPE, HeaderValue::from_str(&kind).expect("a header"));
    let Ok(form) = wait(form::read(&head, payload(input), LIMITS, &budget())) else { return };
    let sum: usize = form.parts.iter().map(|(name, content)| name.len() + content.len()).sum();
    assert!(sum <= input.len(), "the parts have {sum} bytes");
    let headers = HeaderList(vec![("content-type".to_owned(), kind)]);
    let head = RequestHead { method: "POST", target: "/run_image_inference", headers: &headers };
    if let Some(reply) = server(MODES - 1).answer(head, 0, Body::Form(form)) {
        check(&reply);
    }
}

/// A compressed payload.
pub fn gzip(input: &[u8]) {
    let mut head = HeaderMap::new();
    head.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    if let Ok(inflated) = wait(body::read(&head, &mut payload(input), LIMITS, &budget(), || 0)) {
        assert!(inflated.len() <= MAX_BODY_BYTES, "{}", inflated.len());
    }
}

/// The budget that the target runs in.
fn budget() -> RequestBudget {
    budget::current().expect("a budget")
}

/// A payload that arrives in two pieces.
fn payload(bytes: &[u8]) -> Payload {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    // They are in the memory of the HTTP library.
    let pieces = [first, second];
    let pieces = unwatched(|| pieces.map(|piece| Ok(Bytes::copy_from_slice(piece))));
    Payload::Stream { payload: futures_util::stream::iter(pieces).boxed_local() }
}

/// The headers in lines `name: value`, in the memory of the HTTP library. Lines that HTTP does not allow are left out.
fn headers(text: &[u8]) -> Vec<(String, String)> {
    unwatched(|| read_headers(text))
}

/// The most headers of a request.
const MAX_HEADERS: usize = 96;

fn read_headers(text: &[u8]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for line in text.split(|byte| *byte == b'\n').take(MAX_HEADERS) {
        let (name, value) = split(line, b":");
        let value = HeaderValue::from_bytes(value.trim_ascii());
        let (Ok(name), Ok(value)) = (std::str::from_utf8(name), value) else { continue };
        if let Ok(value) = value.to_str() {
            all.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }
    all
}

/// Checks that a response can be sent, and that JSON is JSON.
fn check(reply: &Reply) {
    unwatched(|| check_reply(reply));
}

fn check_reply(reply: &Reply) {
    assert!((200..600).contains(&reply.status), "status {}", reply.status);
    assert!(reply.status != 500, "{:?}", reply.error);
    let values = reply.headers.iter().map(|(_, value)| value.as_str());
    for value in values.chain([reply.content_type.as_ref()]) {
        assert!(HeaderValue::from_str(value).is_ok(), "{value:?} is not a header's value");
    }
    if reply.content_type == JSON && reply.more.is_none() {
        check_json(&reply.body);
    }
}

/// The largest JSON body that is parsed: a parsed `[]` takes ten times the memory of its text.
const MAX_PARSED_BYTES: usize = 1 << 20;

/// Checks a JSON body. TensorFlow Serving's has words for numbers that are not finite, and strings
/// that are not text.
fn check_json(body: &[u8]) {
    let Ok(text) = std::str::from_utf8(body) else { return };
    if text.is_empty() || text.len() > MAX_PARSED_BYTES {
        return;
    }
    if ["NaN", "Infinity"].iter().any(|word| text.contains(word)) {
        return;
    }
    if let Err(error) = serde_json::from_str::<serde_json::Value>(text) {
        let error = error.to_string();
        assert!(error.contains("recursion limit"), "{error}: {text}");
    }
}
