//! Bodies that are not JSON or do not fit the model's inputs, over both APIs: each gets an error
//! with the reason, and the server keeps serving.

use std::time::Instant;

use tensorserve_core::engine::{
    EntryPoint, InferRequest, Method, ModelSpec, SignatureRun, VersionSelector,
};
use tensorserve_tensor::error::Code;
use tensorserve_tensor::{Shape, StringsBuilder, Tensor, aligned_vec};

use crate::support::client::request;
use crate::support::server::{TestServer, settings};
use crate::support::{data, link, project, wait};

const TFS: &str = "/v1/models/half_plus_two:predict";
const TFS_INT: &str = "/v1/models/echo_int32:predict";
const TFS_TEXT: &str = "/v1/models/text_normalizer:predict";
const TFS_THREE: &str = "/v1/models/recommender:predict";
const TFS_IMAGE: &str = "/v1/models/digits:predict";

/// `half_plus_two` (float `x`), `echo_int32` (int32 `x`), `text_normalizer` (string `text`),
/// `recommender` (three inputs) and `digits` (images).
fn serve() -> (TestServer, tempfile::TempDir) {
    let root = tempfile::tempdir().expect("temporary directory");
    for model in ["half_plus_two", "text_normalizer", "recommender", "digits"] {
        link(&project("models").join(model), &root.path().join(model));
    }
    let echo = data("tensorflow-serving/generated/echo_int32");
    link(&echo, &root.path().join("echo_int32"));
    let mut settings = settings();
    settings.paths.push(root.path().to_owned());
    let server = TestServer::start(settings);
    server.wait_until_started();
    (server, root)
}

/// The fault, the path, the body, the status, and a part of the expected error.
type Bad<'a> = (&'a str, &'a str, &'a str, u16, &'a str);

fn check(bad: &[Bad]) {
    let (server, _root) = serve();
    for (what, path, body, status, text) in bad {
        let what = format!("{what} to {path}");
        server.post(path, body).assert_refused(&what, *status, text);
        server.assert_serves(&what);
    }
}

/// A body for `POST /`.
fn simple(model: &str, data: &str) -> String {
    format!(r#"{{"model_name": "{model}", "data": {data}}}"#)
}

#[test]
fn what_is_no_json() {
    let cut = &simple("half_plus_two", r#"{"x": [1, "#);
    check(&[
        ("an empty body", TFS, "", 400, "The document is empty"),
        ("an empty body", "/", "", 400, "Invalid json data: : The document is empty"),
        ("white space", TFS, " \n ", 400, "The document is empty"),
        ("white space", "/", " \n ", 400, "The document is empty"),
        ("half a body", TFS, r#"{"instances": [1, "#, 400, "Invalid value. at offset: 18"),
        ("half a body", "/", cut, 400, "Invalid value. at offset"),
        ("text", TFS, "instances=[1]", 400, "JSON Parse error: Invalid value. at offset: 0"),
        ("text", "/", "data=[1]", 400, "Invalid json data: data=[1]: Invalid value. at offset 0"),
        ("a NUL", TFS, "\0", 400, "The document is empty"),
        ("a NUL", "/", "\0", 400, "The document is empty"),
        ("an array", TFS, "[1]", 400, "JSON Value: [1] Is not object"),
        ("an array", "/", "[1]", 400, "Invalid json data: [1]: it must be an object"),
        ("null", TFS, "null", 400, "JSON Value: null Is not object"),
        // The body is checked before the existence of the model.
        ("null", "/v1/models/nope:predict", "null", 400, "JSON Value: null Is not object"),
        ("null", "/", "null", 400, "it must be an object"),
        ("a comma too many", TFS, r#"{"inputs": [1,]}"#, 400, "Invalid value. at offset: 14"),
        ("single quotes", TFS, "{'inputs': [1]}", 400, "Missing a name for object member"),
        ("a comment", TFS, r#"{"inputs": /* one */ [1]}"#, 400, "Invalid value"),
        ("hexadecimal", TFS, r#"{"inputs": [0x10]}"#, 400, "Missing a comma or ]"),
        ("a leading zero", TFS, r#"{"inputs": [01]}"#, 400, "Missing a comma or ]"),
    ]);
}

#[test]
fn wrong_inputs() {
    let zeros = "[0,0,0,0,0,0,0,0,0,0,0,0,0]";
    let missing = r#"{"user_id": [1], "item_id": [2]}"#;
    let (missing, tfs_missing) =
        (&simple("recommender", missing), &format!(r#"{{"inputs": {missing}}}"#));
    let misnamed = format!(r#"{{"user_id": [1], "item_id": [2], "feature": [{zeros}]}}"#);
    let (misnamed, tfs_misnamed) =
        (&simple("recommender", &misnamed), &format!(r#"{{"inputs": {misnamed}}}"#));
    let row = |row: &str| format!(r#"{{"instances": [{{{row}}}]}}"#);
    let row_missing = &row(r#""user_id": 1, "item_id": 2"#);
    let row_extra = &row(&format!(r#""user_id": 1, "item_id": 2, "features": {zeros}, "zzz": 1"#));
    let short = r#"{"user_id": [1], "item_id": [2], "features": [[1, 2]]}"#;
    let (short, tfs_short) = (&simple("recommender", short), &format!(r#"{{"inputs": {short}}}"#));
    check(&[
        ("an input missing", TFS_THREE, tfs_missing, 400, "Missing named input: features"),
        ("an input missing", "/", missing, 400, "Input op name 'features' does not exist"),
        ("an input misnamed", TFS_THREE, tfs_misnamed, 400, "Missing named input: features"),
        ("an input misnamed", "/", misnamed, 400, "Input op name 'features' does not exist"),
        (
            "a row without an input",
            TFS_THREE,
            row_missing,
            400,
            "keys must be equal to: features,item_id,user_id",
        ),
        ("a row with one input more", TFS_THREE, row_extra, 400, "does not have named input: zzz"),
        ("rows that are no objects", TFS_THREE, r#"{"instances": [1]}"#, 400, "list of objects"),
        ("columns that are no object", TFS_THREE, r#"{"inputs": [1]}"#, 400, "an object"),
        ("too few features", TFS_THREE, tfs_short, 400, "size-incompatible"),
        ("too few features", "/", short, 400, "shape (1, 2) for Tensor serving_default_features"),
        ("neither key", TFS, r#"{"rows": [1]}"#, 400, "Missing 'inputs' or 'instances' key"),
        ("both keys", TFS, r#"{"inputs": [1], "instances": [1]}"#, 400, "expecting only one of"),
        ("no rows", TFS, r#"{"instances": []}"#, 400, "No values in 'instances' array"),
        ("rows in no list", TFS, r#"{"instances": 1}"#, 400, "to be an list/array"),
        ("no data", "/", r#"{"model_name": "digits"}"#, 400, "Inference with empty data"),
        ("null", "/", &simple("half_plus_two", "null"), 400, r#"a value for each of ["x"]"#),
        ("a list", "/", &simple("half_plus_two", "[1]"), 400, r#"a value for each of ["x"]"#),
        ("nothing", "/", &simple("half_plus_two", "{}"), 400, "Input op name 'x' does not exist"),
    ]);
}

#[test]
fn wrong_values() {
    let x = |value: &str| simple("half_plus_two", &format!(r#"{{"x": {value}}}"#));
    let int = |value: &str| simple("echo_int32", &format!(r#"{{"x": {value}}}"#));
    let text = |value: &str| simple("text_normalizer", &format!(r#"{{"text": {value}}}"#));
    let not_int = "is not of expected type: int32";
    check(&[
        (
            "a string",
            TFS,
            r#"{"inputs": ["a"]}"#,
            400,
            "\"a\" Type: String is not of expected type",
        ),
        (
            "a string",
            "/",
            &x(r#"["a"]"#),
            400,
            "could not convert string to float: 'a' (input \"x\")",
        ),
        ("a numeric string", TFS, r#"{"inputs": ["1.5"]}"#, 400, "Type: String"),
        (
            "null",
            TFS,
            r#"{"inputs": [null]}"#,
            400,
            "null Type: Null is not of expected type: float",
        ),
        ("null", "/", &x("[null]"), 400, "None in input \"x\" is not a value of type float"),
        ("an object", TFS, r#"{"inputs": [{"y": 1}]}"#, 400, "Type: Object"),
        ("an object", "/", &x(r#"[{"y": 1}]"#), 400, "in input \"x\" is not a value of type float"),
        ("a boolean", TFS, r#"{"inputs": [true]}"#, 400, "true Type: True"),
        ("base64", TFS, r#"{"inputs": [{"b64": "AAAA"}]}"#, 400, "Type: Object"),
        (
            "base64",
            "/",
            &x(r#"[{"b64": "AAAA"}]"#),
            400,
            "in input \"x\" is not a value of type float",
        ),
        ("a fraction", TFS_INT, r#"{"inputs": [1.5]}"#, 400, not_int),
        ("a large integer", TFS_INT, r#"{"inputs": [2147483648]}"#, 400, not_int),
        (
            "a large integer",
            "/",
            &int("[2147483648]"),
            400,
            "2147483648 in input \"x\" is not a value of type int32",
        ),
        ("1e300", "/", &int("[1e300]"), 400, "1e300 in input \"x\" is not a value of type int32"),
        ("NaN", TFS_INT, r#"{"inputs": [NaN]}"#, 400, not_int),
        ("NaN", TFS_INT, r#"{"instances": [1, NaN]}"#, 400, "element: 1 of 'instances' list"),
        ("NaN", "/", &int("[NaN]"), 400, "NaN in input \"x\" is not a value of type int32"),
        ("infinity", TFS_INT, r#"{"inputs": [-Infinity]}"#, 400, not_int),
        (
            "infinity",
            "/",
            &int("[-Infinity]"),
            400,
            "-Infinity in input \"x\" is not a value of type int32",
        ),
        ("1e400", TFS, r#"{"inputs": [1e400]}"#, 400, "Number too big to be stored in double"),
        ("1e400", "/", &x("[1e400]"), 400, "Number too big to be stored in double"),
        ("ragged lists", TFS, r#"{"inputs": [[1, 2], [3]]}"#, 400, "list at unexpected size: 1"),
        ("ragged rows", TFS, r#"{"instances": [[1, 2], [3]]}"#, 400, "Expecting tensor size: 2"),
        ("ragged lists", "/", &x("[[1, 2], [3]]"), 400, "the lists of input \"x\" are ragged"),
        ("ragged depth", TFS, r#"{"inputs": [[1], 2]}"#, 400, "2 found at incorrect level"),
        ("ragged depth", "/", &x("[1, [2]]"), 400, "the lists of input \"x\" are ragged"),
        ("a number", TFS_TEXT, r#"{"inputs": [1]}"#, 400, "1 Type: Number is not of expected type"),
        ("a number", "/", &text("[1]"), 400, "1 in input \"text\" is not a value of type string"),
        ("no base64", TFS_TEXT, r#"{"inputs": [{"b64": "@"}]}"#, 400, "Unable to base64 decode"),
        ("no base64", "/", &text(r#"[{"b64": "@"}]"#), 400, "a b64 value in input \"text\""),
        ("a number as b64", TFS_TEXT, r#"{"inputs": [{"b64": 1}]}"#, 400, "base64 data"),
        ("a number as b64", "/", &text(r#"[{"b64": 1}]"#), 400, "neither a string nor {\"b64\""),
        ("half a surrogate pair", TFS_TEXT, r#"{"inputs": ["\ud800"]}"#, 400, "surrogate pair"),
        ("half a surrogate pair", "/", &text(r#"["\ud83dx"]"#), 400, "surrogate pair"),
        ("the second half", TFS_TEXT, r#"{"inputs": ["\udc00"]}"#, 400, "surrogate pair"),
        ("a control character", TFS_TEXT, "{\"inputs\": [\"a\nb\"]}", 400, "Invalid encoding"),
        ("an unknown escape", TFS_TEXT, r#"{"inputs": ["\x41"]}"#, 400, "Invalid escape"),
        ("no end of a string", "/", &text(r#"["abc]"#), 400, "Missing a closing quotation mark"),
        (
            "no image",
            TFS_IMAGE,
            r#"{"inputs": [{"b64": "AAAA"}]}"#,
            400,
            "Unknown image file format",
        ),
        ("no image", "/", &simple("digits", r#"{"image_bytes": [{"b64": "AAAA"}]}"#), 400, "image"),
        ("an empty image", TFS_IMAGE, r#"{"inputs": [{"b64": ""}]}"#, 400, "Input is empty"),
    ]);
}

#[test]
fn wrong_models_and_signatures() {
    let good = r#"{"inputs": [1]}"#;
    let x = r#""data": {"x": [1]}"#;
    let with = |members: &str| format!("{{{members}, {x}}}");
    let half = |members: &str| with(&format!(r#""model_name": "half_plus_two", {members}"#));
    check(&[
        (
            "a model",
            "/v1/models/nope:predict",
            good,
            404,
            "Servable not found for request: Latest(nope)",
        ),
        (
            "a model",
            "/",
            &with(r#""model_name": "nope""#),
            400,
            "Invalid model name: nope, available models: [\"digits\",",
        ),
        (
            "no model of many",
            "/",
            &format!("{{{x}}}"),
            400,
            "Invalid model name: default, available models: [\"digits\",",
        ),
        (
            "a model's name",
            "/",
            &with(r#""model_name": 5"#),
            400,
            "model_name must be a string, not 5",
        ),
        ("a path", "/v1/models/..%2f..%2fetc%2fpasswd:predict", good, 404, "Servable not found"),
        ("a path", "/v1/models/../../etc/passwd:predict", good, 400, "Malformed request"),
        ("a path", "/v1/models/%2e%2e/half_plus_two:predict", good, 400, "Malformed request"),
        ("a NUL", "/v1/models/%00:predict", good, 404, "Servable not found"),
        (
            "a path",
            "/",
            &with(r#""model_name": "../half_plus_two""#),
            400,
            "Invalid model name: ../half",
        ),
        (
            "a version",
            "/v1/models/half_plus_two/versions/7:predict",
            good,
            404,
            "Specific(half_plus_two, 7)",
        ),
        (
            "a version",
            "/",
            &half(r#""model_version": 7"#),
            400,
            "Invalid model version: 7, available versions of half_plus_two: [1]",
        ),
        (
            "a version",
            "/v1/models/half_plus_two/versions/x:predict",
            good,
            400,
            "Malformed request",
        ),
        (
            "a version",
            "/",
            &half(r#""model_version": "x""#),
            400,
            "model_version must be a whole number, not \"x\"",
        ),
        (
            "a version",
            "/",
            &half(r#""model_version": 1.5"#),
            400,
            "model_version must be a whole number, not 1.5",
        ),
        ("a version", "/", &half(r#""model_version": -1"#), 400, "Invalid model version: -1"),
        (
            "a version",
            "/",
            &half(r#""model_version": 99999999999999999999"#),
            400,
            "must be a whole number",
        ),
        (
            "a label",
            "/v1/models/half_plus_two/labels/x:predict",
            good,
            400,
            "Unrecognized servable version label: x",
        ),
        (
            "a signature",
            TFS,
            r#"{"signature_name": "nope", "inputs": [1]}"#,
            400,
            "\"nope\" not found in signature def",
        ),
        (
            "a signature",
            "/",
            &half(r#""signature_name": "nope""#),
            400,
            "Fail to request the signature name: nope",
        ),
        (
            "a signature",
            TFS,
            r#"{"signature_name": 5, "inputs": [1]}"#,
            400,
            "'signature_name' key must be a string",
        ),
        (
            "a signature",
            "/",
            &half(r#""signature_name": [1]"#),
            400,
            "signature_name must be a string, not [1]",
        ),
        ("a verb", "/v1/models/half_plus_two:destroy", good, 400, "Malformed request"),
        ("a path below /v1", "/v1/nothing", good, 400, "Malformed request: POST /v1/nothing"),
        ("a path", "/nothing", good, 404, "there is nothing at /nothing; models are at"),
    ]);
}

#[test]
fn inputs_of_another_type_than_the_graphs() {
    // In binary protocols the client declares the type, and only the runtime checks it.
    let (server, _root) = serve();
    let mut strings = StringsBuilder::default();
    strings.push(b"text");
    let text = Tensor::from_strings(Shape::vector(1), strings).expect("a tensor");
    let mut floats = aligned_vec(1);
    floats.push(1.5f32);
    let floats = Tensor::from_vec(Shape::vector(1), floats).expect("a tensor");
    let engine = &server.engine;
    let cases = [
        ("text_normalizer", floats.clone(), "to be string but float is provided"),
        ("half_plus_two", text, "to be float but string is provided"),
        ("echo_int32", floats, "to be int32 but float is provided"),
    ];
    for (model, input, part) in cases {
        let spec = ModelSpec { name: model, choice: VersionSelector::Latest };
        let handle = engine.repository().resolve(&spec).unwrap_or_else(|_| panic!("no {model}"));
        let (signature, _) = handle.signature("serving_default").expect("a signature");
        let request = InferRequest::new(handle, SignatureRun::predict(signature, vec![input]));
        let entry = EntryPoint { protocol: "test", method: Method::Predict };
        let call = engine.call(entry, Instant::now());
        let inferring = engine.infer(call, |_| Ok((request, ())), |(), _| Ok(()));
        let error = wait(inferring).answer.expect_err(model);
        assert_eq!(error.code(), Code::InvalidArgument, "{model}: {error}");
        assert!(error.message().contains(part), "{model}: {error}");
        server.assert_serves(model);
    }
}

#[test]
fn wrong_methods_and_content_types() {
    let (server, _root) = serve();
    let json = "application/json";
    let cases = [
        ("PUT", "/", json, 405, "PUT is not allowed for /"),
        ("DELETE", "/", json, 405, "DELETE is not allowed"),
        ("BREW", "/", json, 405, "BREW is not allowed"),
        ("POST", "/healthz", json, 405, "POST is not allowed for /healthz"),
        ("PATCH", "/readyz", json, 405, "PATCH is not allowed for /readyz"),
        ("GET", TFS, json, 405, "GET is not allowed for /v1/models/"),
        ("PUT", TFS, json, 405, "PUT is not allowed"),
        ("DELETE", "/v1/models/half_plus_two", json, 405, "DELETE is not allowed"),
        ("POST", "/", "text/plain", 400, "unsupported content type"),
        ("POST", "/", "application/x-www-form-urlencoded", 400, "unsupported content type"),
        ("POST", "/", "\u{e9}", 400, "Invalid json data"),
    ];
    for (method, path, kind, status, text) in cases {
        let what = format!("{method} {path} {kind}");
        let answer = request(server.address, method, path, &[("Content-Type", kind)], "x");
        answer.assert_refused(&what, status, text);
        server.assert_serves(&what);
    }
}

/// Unusual bodies that other servers may refuse or read differently, and their meaning here.
#[test]
fn odd_bodies_that_are_answered() {
    let (server, _root) = serve();
    let named = |members: &str| format!(r#"{{"model_name": "half_plus_two", {members}}}"#);
    let y = |values: &str| format!("{{\"y\":{values}}}\n");
    let cases = [
        // TensorFlow Serving and Python both read and write NaN and infinities, which JSON lacks.
        (
            "NaN",
            TFS,
            r#"{"instances": [NaN]}"#.into(),
            "{\n    \"predictions\": [NaN\n    ]\n}".into(),
        ),
        (
            "NaN",
            "/",
            named(r#""data": {"x": [NaN, Infinity, -Infinity]}"#),
            y("[NaN,Infinity,-Infinity]"),
        ),
        // NumPy converts strings and booleans to numbers.
        ("coercion", "/", named(r#""data": {"x": ["1.5", true]}"#), y("[2.75,2.5]")),
        // Of two members with one name the first counts, also in Simple TensorFlow Serving's data.
        (
            "a repeated member",
            TFS,
            r#"{"instances": [1], "instances": [2]}"#.into(),
            "{\n    \"predictions\": [2.5\n    ]\n}".into(),
        ),
        ("a repeated member", "/", named(r#""data": {"x": [1]}, "data": {"x": [2]}"#), y("[2.5]")),
        ("a repeated member", "/", named(r#""data": {"x": [1], "x": [2]}"#), y("[2.5]")),
        // Of two model names the last counts, as in Python.
        (
            "two model names",
            "/",
            r#"{"model_name": "nope", "model_name": "half_plus_two", "data": {"x": [1]}}"#.into(),
            y("[2.5]"),
        ),
        // Text after the document is ignored, as in TensorFlow Serving.
        ("trailing text", "/", named(r#""data": {"x": [1]}"#) + "} rest", y("[2.5]")),
        (
            "a byte order mark",
            "/",
            format!("\u{feff}{}", named(r#""data": {"x": [1]}"#)),
            y("[2.5]"),
        ),
    ];
    for (what, path, body, want) in cases {
        let answer = server.post(path, &body);
        assert_eq!((answer.status, answer.text()), (200, want), "{what}: {body}");
    }
    // Bytes that are not UTF-8 reach the model unchanged.
    let body = b"{\"inputs\": [\"\xff\xfe\"]}";
    let answer = server.post(TFS_TEXT, body);
    assert_eq!(answer.json()["outputs"]["normalized"][0], "\u{fffd}\u{fffd}");
    server.assert_serves("odd bodies");
}

#[test]
fn a_bad_request_does_not_harm_those_it_is_joined_with() {
    let mut settings = settings();
    settings.paths.push(project("models/digits"));
    settings.paths.push(project("models/half_plus_two"));
    settings.batching.batching = Some("on".to_owned());
    settings.server.inline_budget_micros = Some(0);
    settings.server.num_batch_threads = Some(1);
    let server = TestServer::start(settings);
    server.wait_until_started();
    let image = std::fs::read(project("examples/images/digits/3_45.png")).expect("image");
    let good = {
        use base64::Engine as _;
        let image = base64::engine::general_purpose::STANDARD.encode(image);
        format!(r#"{{"instances": [{{"b64": "{image}"}}]}}"#)
    };
    let bad = r#"{"instances": [{"b64": "AAAA"}]}"#;
    std::thread::scope(|scope| {
        for client in 0..16 {
            let (server, good) = (&server, &good);
            scope.spawn(move || {
                for _ in 0..8 {
                    if client % 4 == 0 {
                        let answer = server.post(TFS_IMAGE, bad);
                        answer.assert_refused("no image", 400, "Unknown image file format");
                        continue;
                    }
                    let answer = server.post(TFS_IMAGE, good);
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    assert_eq!(answer.json()["predictions"][0]["classes"], 3);
                }
            });
        }
    });
    server.assert_serves("bad images");
}
