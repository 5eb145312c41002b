//! scikit-learn models, served over HTTP from their pickles.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tensorserve_sklearn::SCIKIT_LEARN;

use crate::support::server::{TestServer, config, settings};
use crate::support::{alike, data};

const OLD: &str = "simple-tensorflow-serving/models/scikitlearn_iris/model.pkl";
const NEW: &str = "platforms/sklearn/iris_logreg_pipeline.joblib";

/// A server of the model `iris` in `folder`, with `file` as version 3.
fn serve(folder: &Path, file: &str) -> TestServer {
    let version = folder.join("iris/3");
    fs::create_dir_all(&version).expect("directories");
    let name = Path::new(file).file_name().expect("a name");
    fs::copy(data(file), version.join(name)).expect("copied");
    let mut settings = settings();
    settings.paths.push(folder.to_owned());
    let server = TestServer::start_with(&config(settings), vec![SCIKIT_LEARN.platform()]);
    server.wait_until_started();
    server
}

fn predict(server: &TestServer, rows: &Value) -> String {
    let body = json!({ "instances": rows }).to_string();
    let answer = server.post("/v1/models/iris:predict", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text()
}

/// Expected values: scikit-learn 1.9.1, for rows of 64-bit numbers.
#[test]
fn a_pipeline_of_joblibs_answers_over_rest() {
    let folder = tempfile::tempdir().expect("a directory");
    let server = serve(folder.path(), NEW);
    let text = predict(&server, &json!([[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]]));
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    let rows = answer["predictions"].as_array().expect("rows");
    let classes: Vec<&Value> = rows.iter().map(|row| &row["predict"]).collect();
    assert_eq!(classes, [&json!(0), &json!(2)]);
    let wanted =
        json!([0.984_703_142_006_590_1, 0.015_296_795_595_688_08, 6.203_772_181_098_33e-8]);
    assert!(alike(&rows[0]["predict_proba"], &wanted, Some(1e-9)), "{text}");

    let answer = server.get("/v1/models/iris/metadata");
    assert!(answer.text().contains("predict_log_proba"), "{}", answer.text());
    let wide = json!({ "instances": [[1.0, 2.0]] }).to_string();
    let answer = server.post("/v1/models/iris:predict", wide);
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("rows of 4 numbers"), "{}", answer.text());
}

/// The model was saved by scikit-learn 0.19.1 and Python 2.
#[test]
fn a_forest_that_no_python_loads_any_more_answers() {
    let folder = tempfile::tempdir().expect("a directory");
    let server = serve(folder.path(), OLD);
    let text = predict(&server, &json!([[1, 2, 3, 4]]));
    assert!(text.contains("-Infinity"), "{text}");
    // TensorFlow Serving writes -Infinity, which is not valid JSON.
    let answer: Value = serde_json::from_str(&text.replace("-Infinity", "null")).expect("JSON");
    let row = &answer["predictions"][0];
    assert_eq!(row["predict"], json!(2));
    let wanted = json!([0.0, 0.342_857_142_857_142_86, 0.657_142_857_142_857_1]);
    assert!(alike(&row["predict_proba"], &wanted, Some(1e-12)), "{text}");
}
