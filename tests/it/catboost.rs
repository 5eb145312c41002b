//! CatBoost models over REST.

use std::fs;
use std::path::Path;

use serde_json::json;
use tensorserve::config::ModelSettings;
use tensorserve_boosters::catboost::CATBOOST;

use crate::support::server::{TestServer, config, settings};
use crate::support::{alike, data};

fn serve(models: &[(&str, &Path)]) -> TestServer {
    let mut settings = settings();
    for (name, path) in models {
        settings.models.push(ModelSettings {
            path: Some(path.to_path_buf()),
            name: Some((*name).to_owned()),
            ..ModelSettings::default()
        });
    }
    let platforms = vec![CATBOOST.platform()];
    let server = TestServer::start_with(&config(settings), platforms);
    server.wait_until_started();
    server
}

/// Copies `file` of the test data into a version directory as `name`.
fn put(file: &str, version: &Path, name: &str) {
    fs::create_dir_all(version).expect("directories");
    fs::copy(data(&format!("platforms/catboost/{file}")), version.join(name)).expect("copied");
}

/// Expected values: catboost 1.2.10, with the same file.
#[test]
fn a_row_is_an_object_of_numbers_and_categories() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let model = folder.path().join("ctr");
    put("made/ctr.cbm", &model.join("1"), "model.cbm");
    let server = serve(&[("ctr", &model)]);

    let body = r#"{"instances": [
        {"n0": 0.5, "n1": -1, "n2": NaN, "n3": 2, "c0": "red", "c1": "10", "c2": "yes"},
        {"n0": -2, "n1": 1, "n2": 0, "n3": 0, "c0": "never seen", "c1": "", "c2": "no"}
    ]}"#;
    let answer = server.post("/v1/models/ctr:predict", body);
    let expected = json!({"predictions": [
        {"predict": 1, "predict_proba": [0.097_979_019_009_621_8, 0.902_020_980_990_378_2]},
        {"predict": 0, "predict_proba": [0.873_174_690_696_262_3, 0.126_825_309_303_737_67]},
    ]});
    assert!(alike(&answer.json(), &expected, Some(1e-15)), "{}", answer.text());

    let body = r#"{"n0": 0.5, "n1": -1, "n2": NaN, "n3": 2, "c0": "red", "c1": "10", "c2": "yes"}"#;
    let answer = server.post("/", format!(r#"{{"model_name": "ctr", "data": {body}}}"#));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.text().contains("predict_proba"), "{}", answer.text());
}
