//! Signatures that cannot be called, or only with inputs of absurd sizes: the errors, `inspect`, and
//! generated requests.

use std::path::Path;

use serde_json::json;

use crate::support::process::run;
use crate::support::saved_model::{
    FLOAT, INT64, SavedModel, a_type, node, placeholder, ragged, signature, sparse, tensor,
};
use crate::support::server::TestServer;

/// A model that returns its input, with signatures that declare sparse and ragged tensors as well.
fn composites(folder: &Path) {
    let (x, y) = (|| tensor("x:0", FLOAT, &[-1]), || tensor("y:0", FLOAT, &[-1]));
    let sparse = || sparse(["x:0", "indices:0", "shape:0"], FLOAT, &[-1, 4]);
    let ragged = || ragged(["y:0", "indices:0"], FLOAT);
    let model = SavedModel {
        nodes: vec![
            placeholder("x", FLOAT, &[-1]),
            placeholder("indices", INT64, &[-1, 2]),
            placeholder("shape", INT64, &[2]),
            node("y", "Identity", &["x"], &[("T", a_type(FLOAT))]),
        ],
        signatures: vec![
            ("dense", signature(&[("x", x())], &[("y", y())])),
            ("ragged_out", signature(&[("x", x())], &[("r", ragged()), ("y", y())])),
            ("ragged_in", signature(&[("r", ragged())], &[("y", y())])),
            ("sparse_in", signature(&[("s", sparse())], &[("y", y())])),
        ],
        ..SavedModel::default()
    };
    model.write(folder);
}

const COMPOSITE: &str = "is a composite tensor, such as a ragged one, which is not supported";
const SPARSE: &str = "is a sparse tensor, which is not supported";

#[test]
fn signatures_with_sparse_and_composite_tensors_are_refused_and_the_others_served() {
    let root = tempfile::tempdir().expect("temporary directory");
    composites(&root.path().join("m/1"));
    let server = TestServer::of(root.path());
    let predict = |signature: &str| {
        let body = json!({"signature_name": signature, "inputs": [1.5]}).to_string();
        server.post("/v1/models/m:predict", body)
    };
    assert_eq!(predict("dense").json(), json!({"outputs": [1.5]}));
    for (signature, why) in [
        ("ragged_out", format!("output \"r\" {COMPOSITE}")),
        ("ragged_in", format!("input \"r\" {COMPOSITE}")),
        ("sparse_in", format!("input \"s\" {SPARSE}")),
    ] {
        let answer = predict(signature);
        assert_eq!(answer.status, 501, "{}", answer.text());
        let start = format!("signature \"{signature}\" cannot be called: its {why}; export");
        assert!(answer.error().starts_with(&start), "{}", answer.text());
    }
    let detail = server.get("/api/v1/models/m").json();
    for signature in detail["versions"][0]["signatures"].as_array().expect("a list") {
        let has_example = !signature["example"].is_null();
        assert_eq!(has_example, signature["name"] == "dense", "{signature}");
    }
}

#[test]
fn inspect_says_which_signatures_cannot_be_called() {
    let root = tempfile::tempdir().expect("temporary directory");
    composites(&root.path().join("m/1"));
    let check = |text: &str| {
        for why in [
            format!("(cannot be called: its output \"r\" {COMPOSITE})"),
            format!("(cannot be called: its input \"r\" {COMPOSITE})"),
            format!("(cannot be called: its input \"s\" {SPARSE})"),
        ] {
            assert!(text.contains(&why), "{why} is not in {text}");
        }
        assert_eq!(text.matches("curl").count(), 1, "{text}");
    };
    check(&run(&["inspect", &root.path().join("m").display().to_string()]).stdout);
    let server = TestServer::of(root.path());
    check(&run(&["inspect", &format!("http://{}/v1/models/m", server.address)]).stdout);
}

#[test]
fn a_shape_of_many_empty_lists_is_not_generated() {
    let root = tempfile::tempdir().expect("temporary directory");
    let model = SavedModel {
        nodes: vec![
            node("x", "Placeholder", &[], &[("dtype", a_type(FLOAT))]),
            node("y", "Identity", &["x"], &[("T", a_type(FLOAT))]),
        ],
        signatures: vec![(
            "serving_default",
            signature(
                &[("x", tensor("x:0", FLOAT, &[1 << 40, 0]))],
                &[("y", tensor("y:0", FLOAT, &[1 << 40, 0]))],
            ),
        )],
        ..SavedModel::default()
    };
    model.write(&root.path().join("m/1"));
    let server = TestServer::of(root.path());
    let answer = server.get("/v1/models/m/gen_json");
    let text = answer.text();
    assert!(text.contains("would have 1099511627776 values"), "{} {text}", answer.status);
    let client = server.get("/v1/models/m/gen_client?language=python");
    assert!(client.text().contains("would have 1099511627776 values"), "{}", client.text());
    let inspected = run(&["inspect", &root.path().display().to_string()]).stdout;
    assert!(inspected.contains("no example: the declared inputs are too large"), "{inspected}");
}
