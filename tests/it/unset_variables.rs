//! SavedModels with variables that have no value: a version whose default signature could never answer does not
//! serve, and one with a signature that sets them does.

use std::path::Path;

use serde_json::json;

use crate::support::client::{get, post};
use crate::support::process::Process;
use crate::support::saved_model::{
    FLOAT, SavedModel, a_shape, a_type, node, placeholder, signature, tensor,
};
use crate::support::wait_until;

/// Adds a variable of this kind to `x`; with `is_set`, another signature sets the variable. No file has its value.
fn write(folder: &Path, kind: &str, is_set: bool) {
    let (x, y) = (|| tensor("x:0", FLOAT, &[-1]), || tensor("y:0", FLOAT, &[-1]));
    let of_float = [("dtype", a_type(FLOAT))];
    let variable = [of_float[0].clone(), ("shape", a_shape(&[]))];
    let read = match kind {
        "VarHandleOp" => node("read", "ReadVariableOp", &["v"], &of_float),
        _ => node("read", "Identity", &["v"], &[("T", a_type(FLOAT))]),
    };
    let mut model = SavedModel {
        nodes: vec![
            node("v", kind, &[], &variable),
            read,
            placeholder("x", FLOAT, &[-1]),
            node("y", "AddV2", &["x", "read"], &[("T", a_type(FLOAT))]),
        ],
        signatures: vec![("serving_default", signature(&[("x", x())], &[("y", y())]))],
        ..SavedModel::default()
    };
    if is_set {
        let (value, done) = (tensor("value:0", FLOAT, &[]), tensor("done:0", FLOAT, &[]));
        model.nodes.extend([
            placeholder("value", FLOAT, &[]),
            node("set", "AssignVariableOp", &["v", "value"], &of_float),
            node("done", "Identity", &["value", "^set"], &[("T", a_type(FLOAT))]),
        ]);
        model.signatures.push(("set", signature(&[("value", value)], &[("done", done)])));
    }
    model.write(folder);
}

#[test]
fn a_version_whose_variables_have_no_value_and_get_none_fails() {
    // Whoever runs it first: the load probe, the warm-up, or the process of an isolated model.
    for options in [
        &["--warm-up", "false"][..],
        &["--load-probe", "false"],
        &["--isolation", "process", "--warm-up", "false"],
    ] {
        for kind in ["VarHandleOp", "VariableV2"] {
            let root = tempfile::tempdir().expect("temporary directory");
            write(&root.path().join("m/1"), kind, false);
            let server = Process::serve(root.path(), options);
            let status = || get(server.address, "/v1/models/m").text();
            wait_until("it has failed", || status().contains("\"END\""));
            let status = status();
            for text in ["serving_default", "has no value", "no signature sets it"] {
                assert!(status.contains(text), "{options:?} {kind}: {status}");
            }
            assert_eq!(get(server.address, "/readyz").status, 503, "{options:?}");
        }
    }
}

#[test]
fn a_version_with_a_signature_that_sets_its_variable_serves() {
    for options in [&[][..], &["--isolation", "process"]] {
        let root = tempfile::tempdir().expect("temporary directory");
        write(&root.path().join("m/1"), "VarHandleOp", true);
        let server = Process::serve(root.path(), options);
        let predict = |body: &str| post(server.address, "/v1/models/m:predict", body);
        let before = predict(r#"{"inputs": [1]}"#);
        before.assert_refused("no value yet", 400, "Could not find variable");
        let set = predict(r#"{"signature_name": "set", "inputs": 2}"#);
        assert_eq!(set.status, 200, "{}", set.text());
        assert_eq!(predict(r#"{"inputs": [1]}"#).json(), json!({"outputs": [3.0]}));
    }
}
