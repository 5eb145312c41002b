//! New versions of a classifier, each changed in one way, in a server with gated releases: every bad one is held,
//! every harmless one takes traffic.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::classifier::{
    Classifier, WEIGHTS, check_numerics, constant, of_float, record_requests, reduction, weights,
    with, with_logarithm,
};
use crate::support::process::Process;
use crate::support::saved_model::{
    FLOAT, INT32, a_float_tensor, a_list_of_type, a_type, an_int_tensor, node,
};
use crate::support::{client, wait_until};

/// Recorded requests: enough to see that memory is left behind.
const REQUESTS: u8 = 130;

/// A new version, and what is to be said against it; nothing if it may take traffic.
struct Mutant {
    name: &'static str,
    version: Classifier,
    against: Option<&'static str>,
}

fn harmless(name: &'static str, version: Classifier) -> Mutant {
    Mutant { name, version, against: None }
}

fn bad(name: &'static str, version: Classifier, against: &'static str) -> Mutant {
    Mutant { name, version, against: Some(against) }
}

/// The nearest number with so many bits of fraction.
fn rounded(weight: f32, bits: i32) -> f32 {
    let unit = 2f32.powi(weight.abs().log2().floor() as i32 - bits);
    (weight / unit).round() * unit
}

/// The logits after one operation with a constant.
fn logits(op: &str, values: &[f32]) -> Classifier {
    let constant = constant("operand", FLOAT, a_float_tensor(&[values.len() as i64], values));
    with(vec![constant, node("added", op, &["logits", "operand"], &of_float())])
}

/// Logits from which the mean of all rows is taken away.
fn centred() -> Classifier {
    with(vec![
        constant("rows", INT32, an_int_tensor(&[0])),
        reduction("mean", "Mean", &["logits", "rows"]),
        node("added", "Sub", &["logits", "mean"], &of_float()),
    ])
}

/// Each run puts a megabyte into a container that nobody empties.
fn leaking() -> Classifier {
    let int = ("Tidx", a_type(INT32));
    with(vec![
        constant("both", INT32, an_int_tensor(&[0, 1])),
        // 127 * 127 * 16 floats.
        constant("size", INT32, an_int_tensor(&[127, 127, 16])),
        node("sum", "Sum", &["x", "both"], &[("T", a_type(FLOAT)), int]),
        node(
            "block",
            "Fill",
            &["size", "sum"],
            &[("T", a_type(FLOAT)), ("index_type", a_type(INT32))],
        ),
        node("kept", "Stage", &["block"], &[("dtypes", a_list_of_type(FLOAT))]),
        node("added", "Identity", &["logits", "^kept"], &of_float()),
    ])
}

fn mutants() -> Vec<Mutant> {
    let differ = "values differ by more than allowed";
    let with_signatures = |signatures| Classifier { signatures, ..Classifier::default() };
    let renamed = Classifier { output: "probabilities", ..Classifier::default() };
    let wider = Classifier { features: 3, ..Classifier::default() };
    let swapped = weights(|at, _| WEIGHTS[[1, 0, 2, 4, 3, 5][at]]);
    let nan = with_logarithm(node("checked", "Identity", &["log"], &of_float()));
    vec![
        harmless("the same", Classifier::default()),
        harmless("another rounding", weights(|_, weight| weight * (1.0 + 1e-6))),
        harmless("float16 weights", weights(|_, weight| rounded(weight, 10))),
        harmless("one more signature", with_signatures(vec!["serving_default", "more"])),
        harmless("one more operation", logits("AddV2", &[0.0; 3])),
        bad("weights of four bits", weights(|_, weight| rounded(weight, 3)), differ),
        bad("scaled weights", weights(|_, weight| weight * 1.5), differ),
        bad(
            "one weight",
            weights(|at, weight| if at == 4 { weight * 1.05 } else { weight }),
            differ,
        ),
        bad("swapped classes", swapped, differ),
        bad("swapped features", weights(|at, _| WEIGHTS[(at + 3) % 6]), differ),
        bad("another bias", logits("AddV2", &[0.1, 0.0, 0.0]), differ),
        bad("another temperature", logits("Mul", &[1.2, 1.2, 1.2]), differ),
        bad("always the same", logits("Mul", &[0.0; 3]), differ),
        bad("rows that influence each other", centred(), differ),
        bad("NaN for one request", nan, "values differ in 1 of 130 requests"),
        bad(
            "failing on one request",
            with_logarithm(check_numerics()),
            "1 requests fail that the old version",
        ),
        bad("another output", renamed, "output \"scores\" is missing"),
        bad("another shape", wider, "has the shape [?, 3] instead of [?, 2]"),
        bad(
            "another signature",
            with_signatures(vec!["other"]),
            "signature \"serving_default\" is missing",
        ),
        bad("leaking", leaking(), "its runs leave memory behind"),
    ]
}

/// Writes a version under another name, and publishes it.
fn publish(version: &Classifier, root: &Path, folder: &Path) {
    let staged = root.join("staged");
    version.write(&staged);
    fs::rename(staged, folder).expect("renamed");
}

#[test]
fn bad_versions_are_held_and_harmless_ones_are_released() {
    let root = tempfile::tempdir().expect("a directory");
    let models = root.path().join("models");
    let mutants = mutants();
    let first = models.join("m0/1");
    Classifier::default().write(&first);
    record_requests(&first, REQUESTS, root.path(), None);
    let requests = "assets.extra/tf_serving_warmup_requests";
    for number in 1..mutants.len() {
        let folder = models.join(format!("m{number}/1"));
        Classifier::default().write(&folder);
        fs::create_dir_all(folder.join("assets.extra")).expect("a directory");
        fs::copy(first.join(requests), folder.join(requests)).expect("copied");
    }
    let state = root.path().join("held").display().to_string();
    let words = [
        ["--release", "gated"],
        // The times of graphs as small as these differ by chance; slow versions are those of releases.rs.
        ["--release-max-slowdown", "1000"],
        ["--release-watch", "0s"],
        ["--release-state", &state],
        ["--poll-interval", "50ms"],
    ];
    let server = Process::serve(&models, words.as_flattened());
    let mut wrong = Vec::new();
    for (number, mutant) in mutants.iter().enumerate() {
        let model = format!("m{number}");
        publish(&mutant.version, root.path(), &models.join(format!("{model}/2")));
        let mut new = Value::Null;
        wait_until(&format!("{} is decided", mutant.name), || {
            new = client::version(server.address, &model, 2);
            new["state"] == "HELD" || new["state"] == "AVAILABLE"
        });
        let error = new["error"].as_str().unwrap_or_default();
        let is_right = match mutant.against {
            Some(why) => new["state"] == "HELD" && error.contains(why),
            None => new["state"] == "AVAILABLE",
        };
        if !is_right {
            wrong.push(format!("{}: {} {error}", mutant.name, new["state"]));
        }
        // Whatever was decided, requests are answered.
        let body = br#"{"instances": [[0.5, 0.25]]}"#;
        let answer = client::post(server.address, &format!("/v1/models/{model}:predict"), body);
        assert_eq!(answer.status, 200, "{}: {}", mutant.name, answer.text());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
