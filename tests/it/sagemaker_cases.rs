//! The cases of SageMaker's container (`tests/cases/sagemaker-container.json`): the test that runs
//! each case, and the cases of a single model without a handler.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde::Deserialize;
use serde_json::Value;

use crate::support::client::{Answer, request};
use crate::support::server::TestServer;
use crate::support::{alike, data, project};

#[derive(Clone, Deserialize)]
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
    #[serde(default)]
    pub expect_not_contains: Vec<String>,
    pub generations: Vec<String>,
    /// Requests that are sent first.
    #[serde(default)]
    pub steps_before: Vec<Step>,
}

#[derive(Clone, Deserialize)]
pub struct Step {
    pub method: String,
    pub path: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub body: String,
}

#[derive(Clone, Deserialize)]
pub struct Setup {
    pub model_dir: String,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub mode: String,
    pub handler: Option<String>,
}

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

/// Cases with deliberately different responses. `docs/sagemaker.md` gives the reasons.
const OTHERWISE: [&str; 2] = [
    // The 2.20 image labels every such response application/json; the older images do not.
    "sc-accept-jsonlines-g3",
    // Parameters of a content type are accepted, as by the 2.20 image.
    "ct-application-json-charset-utf-8",
];

fn cases() -> Vec<Case> {
    let path = "tests/cases/sagemaker-container.json";
    let text = fs::read_to_string(project(path)).expect(path);
    serde_json::from_str::<Cases>(&text).expect(path).cases
}

/// The test that runs a case. Exactly one test runs each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// [`every_case_of_a_single_model_passes`].
    Single,
    /// [`the_default_handler_is_the_model_itself`].
    DefaultHandler,
    /// `sagemaker_handlers`: one model with `inference.py`.
    Handlers,
    /// `sagemaker_handlers`: models loaded on request that share one `inference.py`.
    UniversalHandlers,
    /// `sagemaker_models`.
    MultiModel,
    /// `sagemaker_front`: what the program prints, and failed starts.
    Start,
    /// The unit tests of `sagemaker::convert` in the crate `protocols`: conversion of bodies.
    Conversion,
}

impl Case {
    pub fn part(&self) -> Part {
        match self.setup.mode.as_str() {
            "single-njs" if !self.path.starts_with('/') => Part::Start,
            "single-njs" if self.expect_status.is_none() => Part::Conversion,
            "single-njs" => Part::Single,
            "single-python" => Part::Handlers,
            "python-default-handler" => Part::DefaultHandler,
            "mme" => Part::MultiModel,
            "mme-python" => Part::UniversalHandlers,
            other => panic!("{}: no test runs the mode {other}", self.id),
        }
    }
}

/// The cases that the test of `part` runs.
pub fn cases_of(part: Part) -> impl Iterator<Item = Case> {
    cases().into_iter().filter(move |case| case.part() == part)
}

/// The results of the cases of one part.
#[derive(Default)]
pub struct Tally {
    failures: Vec<String>,
    passed: usize,
    otherwise: usize,
}

impl Tally {
    /// Records a result. A case in `otherwise` must fail: if it passes, it is not different.
    pub fn note(&mut self, case: &Case, outcome: Result<(), String>, otherwise: &[&str]) {
        match (outcome, otherwise.contains(&case.id.as_str())) {
            (Ok(()), false) => self.passed += 1,
            (Err(_), true) => self.otherwise += 1,
            (Ok(()), true) => self.failures.push(format!("{}: passes unexpectedly", case.id)),
            (Err(why), false) => {
                self.failures.push(format!("{} ({}): {why}", case.id, case.generations.join(" ")));
            }
        }
    }

    /// Asserts that `passed` cases passed and that every case in `otherwise` was different.
    pub fn assert(&self, passed: usize, otherwise: &[&str]) {
        assert!(self.failures.is_empty(), "{}", self.failures.join("\n\n"));
        println!("{} passed, {} different", self.passed, self.otherwise);
        assert_eq!((self.passed, self.otherwise), (passed, otherwise.len()), "cases are missing");
    }
}

#[test]
fn every_case_is_run() {
    let mut counts = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for case in cases() {
        *counts.entry(case.part()).or_insert(0) += 1;
        assert!(ids.insert(case.id.clone()), "{} occurs twice", case.id);
        // A case of the oldest images only is not a reference.
        assert!(case.generations.iter().any(|name| name != "G1"), "{}", case.id);
    }
    let want = [
        (Part::Single, 61),
        (Part::DefaultHandler, 2),
        (Part::Handlers, 29),
        (Part::UniversalHandlers, 3),
        (Part::MultiModel, 19),
        (Part::Start, 7),
        (Part::Conversion, 22),
    ];
    assert_eq!(counts, BTreeMap::from(want), "number of cases by test");
}

pub fn body(case: &Case) -> Vec<u8> {
    let body = case.request_body.clone().unwrap_or_default();
    if body == "<bytes ff fe>" {
        return vec![0xff, 0xfe];
    }
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
    let mut tally = Tally::default();
    for case in cases_of(Part::Single) {
        let is_multiply = case.setup.model_dir.starts_with("synth/multiply_2");
        let server = if is_multiply { &multiply } else { &half_plus_three };
        tally.note(&case, check(&case, &ask(server, &case)), &OTHERWISE);
    }
    tally.assert(59, &OTHERWISE);
}

/// If there is code but no `inference.py`, the container passes requests to a default Python
/// handler. It converts nothing, and the older images answer failed requests with 200.
#[test]
fn the_default_handler_is_the_model_itself() {
    const OTHERWISE: [&str; 2] = ["pp-default-handler-2", "pp-non-utf8"];
    let server =
        TestServer::container(&[("half_plus_three", "sagemaker/models/half_plus_three")], |_| {});
    let mut tally = Tally::default();
    for case in cases_of(Part::DefaultHandler) {
        let answer = ask(&server, &case);
        match case.id.as_str() {
            "pp-default-handler-2" => {
                answer.assert_refused(&case.id, 415, "Unsupported Media Type: application/x-foo");
            }
            other => answer.assert_refused(other, 400, "JSON Parse error"),
        }
        tally.note(&case, check(&case, &answer), &OTHERWISE);
    }
    tally.assert(0, &OTHERWISE);
}

/// Sends the request of a case.
pub fn ask(server: &TestServer, case: &Case) -> Answer {
    let headers: Vec<(&str, &str)> =
        case.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    request(server.address, &case.method, &case.path, &headers, body(case))
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
        // Quotes are escaped in JSON text.
        let escaped = part.replace('"', "\\\"");
        if !got.contains(&escaped) {
            return Err(format!("{part:?} is not in {got}"));
        }
    }
    if let Some(part) = case.expect_not_contains.iter().find(|part| got.contains(*part)) {
        return Err(format!("{part:?} is in {got}"));
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
