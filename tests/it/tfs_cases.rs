//! TensorFlow Serving's REST cases (`tests/cases/tensorflow-serving.json`): predict, classify,
//! regress, status, metadata and malformed paths.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;
use tensorserve::config::ModelSettings;

use crate::support::client::{Answer, request};
use crate::support::server::{TestServer, config, settings};
use crate::support::{alike, data, link, project};

#[derive(Deserialize)]
struct Case {
    id: String,
    method: String,
    path: String,
    request_body: String,
    expect_status: u16,
    compare: String,
    expect_body: Option<String>,
    expect_error_contains: Option<String>,
}

#[derive(Deserialize)]
struct Models {
    models: BTreeMap<String, BTreeMap<String, String>>,
    labels: BTreeMap<String, BTreeMap<String, i64>>,
}

fn read<T: for<'de> Deserialize<'de>>(path: &str) -> T {
    let text = fs::read_to_string(project(path)).expect(path);
    serde_json::from_str(&text).expect(path)
}

/// Cases with a better response, of this status, unless the server replaces TensorFlow Serving.
const BETTER: [(&str, u16); 7] = [
    ("d_half", 200),
    ("d_half_columnar", 200),
    ("d_query_string_predict", 200),
    // The response names the allowed method.
    ("unsupported_05", 405),
    ("unsupported_09", 405),
    ("d_put", 405),
    // The response has a body.
    ("unsupported_version_overflow", 400),
];

/// A server of the models of the cases, under their names and versions.
fn serve(root: &tempfile::TempDir, exact: bool) -> TestServer {
    let models: Models = read("tests/cases/tensorflow-serving-models.json");
    let mut settings = settings();
    for (name, versions) in models.models {
        let folder = root.path().join(&name);
        for (version, path) in versions {
            let target = data(path.trim_start_matches("${DATA}/"));
            link(&target, &folder.join(version));
        }
        let mut model = ModelSettings {
            labels: models.labels.get(&name).cloned().unwrap_or_default(),
            path: Some(PathBuf::from(&folder)),
            name: Some(name),
            ..ModelSettings::default()
        };
        model.each.version_policy = Some("all".to_owned());
        settings.models.push(model);
    }
    let mut config = config(settings);
    if exact {
        config.answer_as_tfs();
    }
    let server = TestServer::start_configured(&config);
    server.wait_until_started();
    assert_eq!(server.get("/readyz").text(), "ok\n");
    server
}

#[test]
fn every_case_passes_as_tensorflow_model_server() {
    assert_eq!(run(true, &[]), 130, "cases are missing");
}

#[test]
fn every_case_but_the_better_ones_passes_under_our_own_name() {
    assert_eq!(run(false, &BETTER), 130 - BETTER.len());
}

/// Runs the cases and returns how many passed. Those of `better` must have the status given there.
fn run(exact: bool, better: &[(&str, u16)]) -> usize {
    let root = tempfile::tempdir().expect("temporary directory");
    let server = serve(&root, exact);
    let cases: Vec<Case> = read("tests/cases/tensorflow-serving.json");
    let mut failures = Vec::new();
    let (mut passed, mut to_the_byte) = (0, 0);
    for case in &cases {
        let body = &case.request_body;
        let answer = request(server.address, &case.method, &case.path, &[], body);
        if let Some((_, status)) = better.iter().find(|(id, _)| *id == case.id) {
            assert_eq!(answer.status, *status, "{}: {}", case.id, answer.text());
            assert!(!answer.text().is_empty(), "{}", case.id);
            continue;
        }
        match check(case, &answer) {
            Ok(same) => {
                passed += 1;
                to_the_byte += u32::from(same);
            }
            Err(why) => failures.push(format!("{}: {why}", case.id)),
        }
    }
    println!("{passed} passed, {to_the_byte} of them to the byte");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    passed
}

/// An error if the response is wrong; otherwise, whether it is identical to the byte.
fn check(case: &Case, answer: &Answer) -> Result<bool, String> {
    let got = answer.text();
    if answer.status != case.expect_status {
        return Err(format!("status {}, not {}: {got}", answer.status, case.expect_status));
    }
    if let Some(part) = &case.expect_error_contains
        && !answer.error().contains(part.as_str())
    {
        return Err(format!("{part:?} is not in {got}"));
    }
    let Some(want) = &case.expect_body else {
        return Ok(false);
    };
    if got == *want {
        return Ok(true);
    }
    let differs = || format!("got\n{got}\nnot\n{want}");
    match case.compare.as_str() {
        "json" | "json_approx" => {
            let parse = |text: &str| serde_json::from_str::<Value>(text).map_err(|_| differs());
            let tolerance = (case.compare == "json_approx").then_some(1e-6);
            let same = alike(&parse(&got)?, &parse(want)?, tolerance);
            same.then_some(false).ok_or_else(differs)
        }
        // NaN is not JSON, so only the bytes can be compared.
        _ => Err(differs()),
    }
}
