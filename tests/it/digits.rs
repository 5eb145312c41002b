//! The example model `digits`: each sample image gives its digit, through every API and encoding.

use std::collections::BTreeMap;
use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::client::{Field, post_form};
use crate::support::server::{TestServer, settings};
use crate::support::{alike, project};

#[derive(Deserialize)]
struct Expected {
    label: usize,
    v1_probability: f64,
    v2_probability: f64,
}

struct Sample {
    name: String,
    bytes: Vec<u8>,
    expected: Expected,
}

fn samples() -> Vec<Sample> {
    let folder = project("examples/images/digits");
    let text = fs::read_to_string(folder.join("expected.json")).expect("expected.json");
    let all: BTreeMap<String, Expected> = serde_json::from_str(&text).expect("expected.json");
    let sample = |(name, expected): (String, Expected)| {
        let bytes = fs::read(folder.join(&name)).expect("image");
        Sample { name, bytes, expected }
    };
    all.into_iter().map(sample).collect()
}

/// Serves both versions of `digits`.
fn serve() -> TestServer {
    let mut settings = settings();
    settings.paths.push(project("models/digits"));
    settings.each.version_policy = Some("all".to_owned());
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

/// Asserts the expected class and probability of `sample`.
fn check(sample: &Sample, version: i64, class: &Value, probabilities: &Value) {
    let Expected { label, v1_probability, v2_probability } = sample.expected;
    let what = format!("{} by version {version}", sample.name);
    assert_eq!(class.as_u64(), Some(label as u64), "{what}");
    let expected = if version == 1 { v1_probability } else { v2_probability };
    let got = probabilities[label].as_f64().expect("a number");
    assert!((got - expected).abs() < 1e-5, "{what}: {got}, not {expected}");
}

fn upload(server: &TestServer, version: Option<i64>, fields: &[Field]) -> Value {
    let version = version.map(|version| version.to_string());
    let mut fields = fields.to_vec();
    if let Some(version) = &version {
        fields.push(("model_version", None, version.as_bytes()));
    }
    let answer = post_form(server.address, "/", &fields);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn post(server: &TestServer, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body.to_string());
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

#[test]
fn every_image_is_recognised_whichever_way_it_comes() {
    let server = serve();
    let samples = samples();
    assert_eq!(samples.len(), 14);
    for sample in &samples {
        let standard = STANDARD.encode(&sample.bytes);
        // Only forms carry raw bytes; JSON needs `b64` objects.
        let data = json!({"image_bytes": [{"b64": standard}]});
        for version in [1, 2] {
            let uploaded =
                upload(&server, Some(version), &[("image", Some(&sample.name), &sample.bytes)]);
            check(sample, version, &uploaded["classes"][0], &uploaded["probabilities"][0]);

            let simple = post(&server, "/", &json!({"model_version": version, "data": data}));
            assert_eq!(simple, uploaded, "{}", sample.name);
            let url_safe = json!({"image_bytes": [{"b64": URL_SAFE.encode(&sample.bytes)}]});
            let simple = post(&server, "/", &json!({"model_version": version, "data": url_safe}));
            assert_eq!(simple, uploaded, "{}", sample.name);

            let path = format!("/v1/models/digits/versions/{version}:predict");
            let rows = post(&server, &path, &json!({"instances": [{"b64": standard}]}));
            let row = &rows["predictions"][0];
            check(sample, version, &row["classes"], &row["probabilities"]);
            // The two APIs print floats with different precision.
            assert!(
                alike(&row["probabilities"], &uploaded["probabilities"][0], Some(1e-6)),
                "{row}"
            );
            let columns = post(&server, &path, &json!({"inputs": data}));
            let outputs = &columns["outputs"];
            assert_eq!(outputs["classes"], uploaded["classes"]);
            assert!(alike(&outputs["probabilities"], &uploaded["probabilities"], Some(1e-6)));
        }
    }
}

#[test]
fn many_images_at_once_keep_their_order() {
    let server = serve();
    let samples = samples();
    let all: Vec<Field> = samples
        .iter()
        .map(|sample| ("images", Some(sample.name.as_str()), sample.bytes.as_slice()))
        .collect();
    // Without a version, the highest one is used.
    for version in [None, Some(1), Some(2)] {
        let answer = upload(&server, version, &all);
        for (index, sample) in samples.iter().enumerate() {
            let (class, odds) = (&answer["classes"][index], &answer["probabilities"][index]);
            check(sample, version.unwrap_or(2), class, odds);
        }
    }
    // The field `image` comes first, independent of its position in the form.
    let (first, last) = (&samples[0], &samples[13]);
    let fields: [Field; 2] =
        [("images", Some("a"), &last.bytes), ("image", Some("b"), &first.bytes)];
    let answer = upload(&server, None, &fields);
    check(first, 2, &answer["classes"][0], &answer["probabilities"][0]);
    check(last, 2, &answer["classes"][1], &answer["probabilities"][1]);

    let instances: Vec<Value> =
        samples.iter().map(|s| json!({"b64": STANDARD.encode(&s.bytes)})).collect();
    let answer = post(&server, "/v1/models/digits:predict", &json!({"instances": instances}));
    for (index, sample) in samples.iter().enumerate() {
        let row = &answer["predictions"][index];
        check(sample, 2, &row["classes"], &row["probabilities"]);
    }
}
