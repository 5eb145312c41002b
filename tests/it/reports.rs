//! Models that were once served with wrong values, or refused though they are documented, and models of the
//! same kinds by other versions (`make_versions.py`). Each folder of `tests/data/reports` has models, a request for all of them (`request.json`), and for each model the
//! values of the library that wrote it (`right.json` for `model`, `NAME.right.json` for `NAME`), or words of
//! the error that must refuse it (`NAME.refused.txt`). The folders `matrix-*` have models of
//! `tests/data/platforms/matrix.py` that differed from scikit-learn, some with a request that it refuses
//! (`refused-row.json`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tensorserve::config::ModelSettings;
use tensorserve_boosters::lightgbm::LIGHTGBM;
use tensorserve_platform::{LoadOptions, ModelLoader};
use tensorserve_sklearn::SCIKIT_LEARN;

use crate::support::server::{TestServer, settings};
use crate::support::{alike, data};

/// Logarithms and exponentials differ in the last digits.
const TOLERANCE: Option<f64> = Some(1e-9);

/// How many models are served, and how many are refused.
const LEAST_SERVED: usize = 102;
const LEAST_REFUSED: usize = 4;
/// How many models have a row that must be refused.
const LEAST_REFUSING: usize = 12;

/// A model of a report, with the name under which it is served.
struct Report {
    name: String,
    model: PathBuf,
    request: String,
}

/// The reports whose models have an expectation in a file of this ending, with its content.
fn reports(ending: &str) -> Vec<(Report, String)> {
    let mut found = BTreeMap::new();
    let folders = ["reports", "reports/versions"].map(|path| fs::read_dir(data(path)));
    for folder in folders.into_iter().flat_map(|folder| folder.expect("reports")) {
        let folder = folder.expect("a folder").path();
        if !folder.is_dir() {
            continue;
        }
        for file in fs::read_dir(&folder).expect("files") {
            let model = file.expect("a file").path();
            if model.extension().is_some_and(|kind| kind == "pkl")
                && let Ok(expected) = fs::read_to_string(expectation(&model, ending))
            {
                let named =
                    |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
                let name = format!("{}-{}", named(&folder), named(&model)).replace('.', "_");
                let request = fs::read_to_string(folder.join("request.json")).unwrap_or_default();
                found.insert(name.clone(), (Report { name, model, request }, expected));
            }
        }
    }
    found.into_values().collect()
}

/// The file that says what is expected of a model.
fn expectation(model: &Path, ending: &str) -> PathBuf {
    let name = model.file_stem().expect("a name").to_string_lossy();
    model.with_file_name(match (&*name, ending) {
        ("model", "right.json") => ending.to_owned(),
        _ => format!("{name}.{ending}"),
    })
}

/// Serves all models of `reports`.
fn serve(reports: &[(Report, String)]) -> TestServer {
    let mut settings = settings();
    for (report, _) in reports {
        settings.models.push(ModelSettings {
            path: Some(report.model.clone()),
            name: Some(report.name.clone()),
            ..ModelSettings::default()
        });
    }
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

#[test]
fn rows_that_the_library_refuses_are_refused() {
    let mut reports = reports("right.json");
    reports.retain(|(report, _)| report.model.with_file_name("refused-row.json").exists());
    assert!(reports.len() >= LEAST_REFUSING, "reports are missing: {}", reports.len());
    let server = serve(&reports);
    for (Report { name, model, .. }, _) in reports {
        let request = fs::read_to_string(model.with_file_name("refused-row.json")).expect("a row");
        let answer = server.post(&format!("/v1/models/{name}:predict"), request);
        assert_eq!(answer.status, 400, "{name}: {}", answer.text());
    }
}

#[test]
fn models_of_reports_predict_what_their_libraries_do() {
    let reports = reports("right.json");
    assert!(reports.len() >= LEAST_SERVED, "reports are missing: {}", reports.len());
    let server = serve(&reports);
    let mut wrong = Vec::new();
    for (Report { name, request, .. }, right) in reports {
        // What is no finite number is null in both.
        let words = ["\"-inf\"", "\"inf\"", "\"nan\""];
        let right = words.iter().fold(right, |text, word| text.replace(word, "null"));
        let right: Map<String, Value> = serde_json::from_str(&right).expect("outputs");
        let answer = server.post(&format!("/v1/models/{name}:predict"), request);
        if answer.status != 200 {
            wrong.push(format!("{name}: {}", answer.text()));
            continue;
        }
        // TensorFlow Serving writes these, which are not valid JSON.
        let words = ["-Infinity", "Infinity", "NaN"];
        let text = words.iter().fold(answer.text(), |text, word| text.replace(word, "null"));
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        for (output, right) in right {
            // The only output has no name.
            let found = answer["outputs"].get(&output).unwrap_or(&answer["outputs"]);
            if !alike(found, &right, TOLERANCE) {
                wrong.push(format!("{name}: {output} is {found}, not {right}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn models_of_reports_that_are_refused_are_named() {
    let reports = reports("refused.txt");
    assert!(reports.len() >= LEAST_REFUSED, "reports are missing: {}", reports.len());
    for (Report { name, model, .. }, words) in reports {
        let platform = match name.contains("lightgbm") {
            true => &LIGHTGBM,
            false => &SCIKIT_LEARN,
        };
        let error = match platform.inspect(&model, &LoadOptions::default()) {
            Ok(_) => panic!("{name} is served"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(words.trim()), "{name}: {error}");
    }
}
