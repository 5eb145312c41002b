//! Invalid and very large bodies for `:classify` and `:regress`: each invalid one gets an error
//! with the reason, and the server keeps serving.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::server::{TestServer, settings};
use crate::support::{data, link, project};

/// Sums the floats `ratings` and the int64 `age`; its signature `names` returns the string `name`.
const SUM: &str = "/v1/models/regress_features:regress";
const NAMES: &str = "/v1/models/regress_features:classify";
/// Scores three floats `x`.
const THREE: &str = "/v1/models/classify_three:classify";
/// Signatures for predict, regress and classify, some of which do not take examples.
const HALF_REGRESS: &str = "/v1/models/classic:regress";
const HALF_CLASSIFY: &str = "/v1/models/classic:classify";

/// Much longer than a request takes on a busy machine, much shorter than a quadratic algorithm.
const SOON: Duration = Duration::from_secs(20);

fn serve(max_body_bytes: &str) -> (TestServer, tempfile::TempDir) {
    let root = tempfile::tempdir().expect("temporary directory");
    let generated = data("tensorflow-serving/generated");
    for model in ["classify_three", "regress_features"] {
        link(&generated.join(model), &root.path().join(model));
    }
    let upstream = data("tensorflow-serving/upstream/testdata/saved_model_half_plus_two_cpu");
    link(&upstream, &root.path().join("classic"));
    link(&project("models/half_plus_two"), &root.path().join("half_plus_two"));
    // Outputs under names that require another type or shape.
    let features = generated.join("regress_features/1");
    rename_output(&features, &root.path().join("number_as_classes/1"), b"outputs", b"classes");
    rename_output(&features, &root.path().join("text_as_number/1"), b"classes", b"outputs");
    let three = generated.join("classify_three/1");
    rename_output(&three, &root.path().join("three_as_number/1"), b"classes", b"outputs");
    let mut settings = settings();
    settings.paths.push(root.path().to_owned());
    settings.server.max_body_bytes = Some(max_body_bytes.parse().expect("a size"));
    let server = TestServer::start(settings);
    server.wait_until_started();
    (server, root)
}

/// Copies a SavedModel without variables and renames the output `from` of its signatures to `to`.
fn rename_output(model: &Path, copy: &Path, from: &[u8; 7], to: &[u8; 7]) {
    let mut bytes = fs::read(model.join("saved_model.pb")).expect("a model");
    // A map key and the start of its value, which begins with a string. (A node of that name is
    // followed by the name of its operation instead.)
    let is_key = |&at: &usize| match &bytes[at..] {
        [b'\n', 7, name @ ..] => name.starts_with(from) && name[7] == 0x12 && name[9] == b'\n',
        _ => false,
    };
    let places: Vec<usize> = (0..bytes.len() - 16).filter(is_key).map(|at| at + 2).collect();
    assert!(!places.is_empty(), "{}", model.display());
    for at in places {
        bytes[at..at + 7].copy_from_slice(to);
    }
    fs::create_dir_all(copy).expect("a directory");
    fs::write(copy.join("saved_model.pb"), bytes).expect("a file");
}

/// The fault, the path, the body, and a part of the expected error.
type Bad<'a> = (&'a str, &'a str, &'a str, &'a str);

fn check(bad: &[Bad]) {
    let (server, _root) = serve("4MiB");
    for (what, path, body, text) in bad {
        let what = format!("{what} to {path}");
        server.post(path, body).assert_refused(&what, 400, text);
        server.assert_serves(&what);
    }
}

fn example(example: &str) -> String {
    format!(r#"{{"examples": [{example}]}}"#)
}

#[test]
fn wrong_forms() {
    check(&[
        ("an empty body", SUM, "", "The document is empty"),
        ("half a body", SUM, r#"{"examples": [{"#, "Missing a name for object member"),
        ("a list", THREE, "[]", "JSON Value: [] Is not object"),
        ("nothing", THREE, "{}", "key 'examples' is expected and was not found"),
        ("null", SUM, r#"{"examples": null}"#, "Expecting 'examples' value to be an list/array"),
        ("no list", SUM, r#"{"examples": {"age": 1}}"#, "to be an list/array"),
        ("none", SUM, r#"{"examples": []}"#, "'examples' value is an empty array"),
        ("a number", SUM, &example("1"), "Example must be JSON object but got JSON Number"),
        ("a text", SUM, &example(r#""a""#), "but got JSON String"),
        ("null", SUM, &example("{}, null"), "but got JSON Null"),
        ("true", SUM, &example("true"), "but got JSON True"),
        ("a context", SUM, r#"{"context": 5, "examples": [{}]}"#, "but got JSON Number"),
        ("a context", SUM, r#"{"context": null, "examples": [{}]}"#, "but got JSON Null"),
        ("a context", SUM, r#"{"context": {"x": [null]}, "examples": [{}]}"#, "type: Null"),
        ("a signature", SUM, r#"{"signature_name": 5, "examples": [{}]}"#, "must be a string"),
        // The body is checked before the existence of the model.
        ("a list", "/v1/models/nope:regress", "[]", "Is not object"),
        ("a value", "/v1/models/nope:classify", &example(r#"{"x": null}"#), "type: Null"),
    ]);
}

#[test]
fn wrong_values() {
    let long = format!(r#"{{"{}": null}}"#, "a".repeat(1_000_000));
    let deep = format!(r#"{{"x": {}1{}}}"#, "[".repeat(1_000_000), "]".repeat(1_000_000));
    let mixed = "Unexpected element type in feature: x expecting type: ";
    let unexpected = "Feature: x has element with unexpected JSON type: ";
    let bad = [
        (r#"{"x": null}"#, format!("{unexpected}Null")),
        (r#"{"x": [1, null]}"#, format!("{unexpected}Null")),
        (r#"{"x": [[1]]}"#, format!("{unexpected}Array")),
        (r#"{"x": [1, []]}"#, format!("{unexpected}Array")),
        (&deep, format!("{unexpected}Array")),
        (r#"{"x": {"y": 1}}"#, format!("{unexpected}Object")),
        (r#"{"x": {}}"#, format!("{unexpected}Object")),
        (r#"{"x": {"b64": "AA==", "y": 1}}"#, format!("{unexpected}Object")),
        (r#"{"x": {"b64": 5}}"#, format!("{unexpected}Object")),
        (r#"{"x": {"b64": "@"}}"#, "Unable to base64 decode".to_owned()),
        (r#"{"x": [1, 1.5]}"#, format!("{mixed}int64")),
        (r#"{"x": [true, "a"]}"#, format!("{mixed}int64")),
        (r#"{"x": [1.5, 1]}"#, format!("{mixed}float")),
        (r#"{"x": [NaN, {"b64": ""}]}"#, format!("{mixed}float")),
        (r#"{"x": ["a", false]}"#, format!("{mixed}bytes")),
        (r#"{"x": 9223372036854775808}"#, "has uint64_t element".to_owned()),
        (r#"{"x": [1, 18446744073709551615]}"#, "Only int64_t is supported.".to_owned()),
        (r#"{"x": 1e400}"#, "Number too big to be stored in double".to_owned()),
        (r#"{"x": "\ud800"}"#, "surrogate pair".to_owned()),
        (&long, "type: Null".to_owned()),
        // The example parser in the model's graph reports these.
        (r#"{"ratings": 8}"#, "Data types don't match".to_owned()),
        (r#"{"age": 20.5}"#, "Data types don't match".to_owned()),
    ];
    let (server, _root) = serve("4MiB");
    for (value, text) in &bad {
        let what = value.get(..30).unwrap_or(value);
        server.post(SUM, example(value)).assert_refused(what, 400, text);
        server.assert_serves(what);
    }
}

#[test]
fn wrong_signatures() {
    let named = |name: &str| format!(r#"{{"signature_name": "{name}", "examples": [{{}}]}}"#);
    check(&[
        ("an unknown signature", SUM, &named("nope"), "No signature was found with the name: nope"),
        (
            "an unknown signature",
            THREE,
            &named("a\\u0000b"),
            "No signature was found with the name",
        ),
        (
            "a signature for predict",
            HALF_CLASSIFY,
            &example("{}"),
            "No classification inputs found",
        ),
        ("a signature for predict", HALF_REGRESS, &example("{}"), "No regression inputs found"),
        ("a signature for predict", THREE, &named("predict"), "No classification inputs found"),
        (
            "a signature for regress",
            NAMES,
            &example("{}"),
            "at least one of \"classes\" or \"scores\"",
        ),
        ("a signature for classify", SUM, &named("names"), "No regression outputs found"),
        (
            "a signature for classify",
            "/v1/models/classify_three:regress",
            &example("{}"),
            "one output",
        ),
        (
            "a signature with a numeric input",
            HALF_REGRESS,
            &named("regress_x2_to_y3"),
            "Expects arg[0] to be float but string is provided",
        ),
    ]);
    let (server, _root) = serve("4MiB");
    let answer = server.post("/v1/models/nope:classify", example("{}"));
    answer.assert_refused("an unknown model", 404, "Servable not found for request: Latest(nope)");
    let answer = server.post("/v1/models/classify_three/versions/7:classify", example("{}"));
    answer.assert_refused("an unknown version", 404, "Specific(classify_three, 7)");
    let answer = server.post("/v1/models/classify_three/labels/x:classify", example("{}"));
    answer.assert_refused("an unknown label", 400, "Unrecognized servable version label: x");
}

#[test]
fn outputs_that_are_not_what_their_names_promise() {
    let classes_only =
        r#"{"signature_name": "classes_only", "examples": [{"x": [1.0, 2.0, 3.0]}]}"#;
    let names = r#"{"signature_name": "names", "examples": [{"name": "a"}]}"#;
    let sum = example(r#"{"ratings": 1.5}, {"ratings": 2.5}"#);
    check(&[
        (
            "a vector as classes",
            "/v1/models/number_as_classes:classify",
            &sum,
            "Expected Tensor shape: [batch_size num_classes] but got [2]",
        ),
        (
            "text as a number",
            "/v1/models/text_as_number:regress",
            names,
            "Expected output Tensor of DT_FLOAT.  Got: DT_STRING",
        ),
        (
            "three numbers for one",
            "/v1/models/three_as_number:regress",
            classes_only,
            "to be either [batch_size] or [batch_size, 1] but got [1,3]",
        ),
    ]);
}

#[test]
fn many_examples() {
    let (server, _root) = serve("16MiB");
    let many: Vec<String> = (0..100_000).map(|n| format!(r#"{{"age": {n}}}"#)).collect();
    let start = Instant::now();
    let answer = server.post(SUM, example(&many.join(",")));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    let results = json["results"].as_array().expect("a list");
    assert_eq!(results.len(), 100_000);
    let numbers = results.iter().map(|value| value.as_f64().expect("a number"));
    assert!(numbers.eq((0..100_000).map(f64::from)));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    server.assert_serves("many examples");
}

#[test]
fn examples_that_do_not_fit_in_memory() {
    // Decoded examples may take eight times the maximum body size.
    let (server, _root) = serve("1MiB");
    let too_large = "The examples, each with its context, take too much memory";
    let context = "a".repeat(500_000);
    let examples = vec!["{}"; 100_000].join(",");
    let multiplied = format!(r#"{{"context": {{"x": "{context}"}}, "examples": [{examples}]}}"#);
    let strings = example(&format!(r#"{{"x": [{}""]}}"#, r#""","#.repeat(300_000)));
    let names: Vec<String> = (0..100_000).map(|n| format!(r#""{n:x}":[]"#)).collect();
    let names = example(&format!("{{{}}}", names.join(",")));
    for (what, body) in
        [("a context that multiplies", multiplied), ("strings", strings), ("names", names)]
    {
        let start = Instant::now();
        server.post(SUM, body).assert_refused(what, 400, too_large);
        assert!(start.elapsed() < SOON, "{what}: {:?}", start.elapsed());
        server.assert_serves(what);
    }
    let large = example(&format!(r#"{{"x": "{}"}}"#, "a".repeat(2 << 20)));
    assert_eq!(server.post(SUM, large).status, 413);
    server.assert_serves("a large body");
}

#[test]
fn what_is_odd_but_right() {
    let (server, _root) = serve("4MiB");
    let results = |path: &str, body: &str| -> Value {
        let answer = server.post(path, body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        answer.json()["results"].clone()
    };
    // Empty lists, empty names, and names that are not a feature of the model.
    let body = example(r#"{"ratings": [], "": 1, "é\u0000\n": "x", "age": 3}, {}"#);
    assert_eq!(results(SUM, &body), json!([3.0, -1.0]));
    // Of two equal features the last counts, of two equal members the first.
    let body = r#"{"examples": [{"age": 3, "age": 4}], "examples": 5}"#;
    assert_eq!(results(SUM, body), json!([4.0]));
    // Features of an example take precedence over those of the context.
    let body = r#"{"context": {"age": 7, "ratings": [0.5]}, "examples": [{"age": 3}, {}]}"#;
    assert_eq!(results(SUM, body), json!([3.5, 7.5]));
    // A boolean is an integer, and a list of one element is a value.
    assert_eq!(results(SUM, &example(r#"{"age": [true]}"#)), json!([1.0]));
    // Class labels may be arbitrary bytes.
    let answer = server
        .post(NAMES, r#"{"signature_name": "names", "examples": [{"name": {"b64": "/yIK"}}]}"#);
    assert_eq!(answer.body, b"{\n    \"results\": [[[\"\xff\\\"\\n\", 0.0]]\n    ]\n}");
    let metrics = server.get("/metrics").text();
    let signature = r#"model="regress_features",version="1",signature="serving_default""#;
    let line = format!(
        r#"tensorserve_requests_total{{{signature},protocol="tfs_rest",method="regress",code="OK"}} 4"#
    );
    assert!(metrics.contains(&line), "{metrics}");
    assert!(metrics.contains(r#"protocol="tfs_rest",method="classify",code="OK"} 1"#), "{metrics}");
}
