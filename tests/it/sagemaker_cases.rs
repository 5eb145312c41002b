//! The cases of SageMaker's container (`tests/cases/sagemaker-container.json`) that a single
//! model without a handler answers, and its custom attributes and `Accept` rules.

use std::collections::BTreeMap;
use std::fs;

use serde::Deserialize;
use serde_json::Value;

use crate::support::client::{Answer, request};
use crate::support::server::TestServer;
use crate::support::{alike, data, project};

#[derive(Deserialize)]
pub struct Case {
    pub id: String,
    pub setup: Setup,
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub request_body: Option<String>,
    pub expect_status: Option<u16>,
    pub expect_body: Option<String>,
    pub expect_body_json: Option<Value>,
    #[serde(default)]
    pub expect_contains: Vec<String>,
    #[serde(default)]
    pub expect_headers: BTreeMap<String, String>,
    pub generations: Vec<String>,
    /// What is asked for before.
    #[serde(default)]
    pub steps_before: Vec<Step>,
}

#[derive(Deserialize)]
pub struct Step {
    pub method: String,
    pub path: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub body: String,
}

#[derive(Deserialize)]
pub struct Setup {
    pub model_dir: String,
    pub mode: String,
    pub handler: Option<String>,
}

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

/// Cases that are decided otherwise. `docs/sagemaker.md` says why.
const OTHERWISE: [&str; 2] = [
    // The 2.20 image calls every such answer application/json; the older ones do not.
    "sc-accept-jsonlines-g3",
    // Parameters of a content type are no reason to refuse it (as 2.20).
    "ct-application-json-charset-utf-8",
];

pub fn cases() -> Vec<Case> {
    let path = "tests/cases/sagemaker-container.json";
    let text = fs::read_to_string(project(path)).expect(path);
    serde_json::from_str::<Cases>(&text).expect(path).cases
}

pub fn body(case: &Case) -> Vec<u8> {
    let body = case.request_body.clone().unwrap_or_default();
    match body.strip_prefix("@inputs/") {
        Some(file) => fs::read(data("sagemaker/inputs").join(file)).expect(file),
        None => body.into_bytes(),
    }
}

#[test]
fn every_case_of_a_single_model_passes() {
    let half_plus_three =
        TestServer::container(&[("half_plus_three", "sagemaker/models/half_plus_three")], |_| {});
    let multiply = TestServer::container(&[("model", "sagemaker/synth/multiply_2")], |_| {});
    let mut failures = Vec::new();
    let (mut passed, mut otherwise) = (0, 0);
    for case in cases() {
        if case.setup.mode != "single-njs" || !case.path.starts_with('/') {
            continue;
        }
        // What body is made of another is tested beside the code that does it.
        if case.expect_status.is_none() {
            continue;
        }
        let is_multiply = case.setup.model_dir.starts_with("synth/multiply_2");
        let server = if is_multiply { &multiply } else { &half_plus_three };
        let headers: Vec<(&str, &str)> =
            case.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let answer = request(server.address, &case.method, &case.path, &headers, body(&case));
        let is_otherwise = OTHERWISE.contains(&case.id.as_str());
        match (check(&case, &answer), is_otherwise) {
            (Ok(()), false) => passed += 1,
            (Err(_), true) => otherwise += 1,
            (Ok(()), true) => failures.push(format!("{}: passes, and should not", case.id)),
            (Err(why), false) => {
                failures.push(format!("{} ({}): {why}", case.id, case.generations.join(" ")));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    println!("{passed} passed, {otherwise} otherwise");
    assert_eq!((passed, otherwise), (59, OTHERWISE.len()), "cases went missing");
}

pub fn check(case: &Case, answer: &Answer) -> Result<(), String> {
    let got = answer.text();
    if Some(answer.status) != case.expect_status {
        return Err(format!("status {}, not {:?}: {got}", answer.status, case.expect_status));
    }
    for (name, want) in &case.expect_headers {
        let value = answer.headers.get(&name.to_ascii_lowercase());
        if value != Some(want) {
            return Err(format!("{name} is {value:?}, not {want}"));
        }
    }
    if let Some(part) = case.expect_contains.iter().find(|part| !got.contains(*part)) {
        // Quotes within JSON text.
        let escaped = part.replace('"', "\\\"");
        if !got.contains(&escaped) {
            return Err(format!("{part:?} is not in {got}"));
        }
    }
    if let Some(want) = &case.expect_body
        && got != *want
    {
        return Err(format!("got\n{got}\nnot\n{want}"));
    }
    if let Some(want) = &case.expect_body_json {
        let same = serde_json::from_str(&got).is_ok_and(|got| alike(&got, want, None));
        if !same {
            return Err(format!("got\n{got}\nnot\n{want}"));
        }
    }
    Ok(())
}
