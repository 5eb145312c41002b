//! PMML models, served.

use std::path::Path;

use serde_json::json;
use tensorserve::config::ModelSettings;
use tensorserve_pmml::PMML;

use crate::support::client::{get, post};
use crate::support::data;
use crate::support::server::{TestServer, config, settings};

fn serve(path: &Path) -> TestServer {
    let mut settings = settings();
    settings.models.push(ModelSettings {
        path: Some(path.to_owned()),
        name: Some("iris".to_owned()),
        ..ModelSettings::default()
    });
    let server = TestServer::start_with(&config(settings), vec![PMML.platform()]);
    server.wait_until_started();
    server
}

#[test]
fn a_file_is_served() {
    let model = "simple-tensorflow-serving/models/pmml_iris/DecisionTreeIris.pmml";
    let server = serve(&data(model));
    let row = |length: f64, petal: [f64; 2]| {
        json!({
            "Sepal_Length": length, "Sepal_Width": 3.5, "Petal_Length": petal[0],
            "Petal_Width": petal[1]
        })
    };
    // The last row is outside the ranges that the file allows, and has no result.
    let rows = [row(5.1, [1.4, 0.2]), row(6.0, [4.5, 1.5]), row(50.0, [1.4, 0.2])];
    let body = json!({ "instances": rows }).to_string();
    let answer = post(server.address, "/v1/models/iris:predict", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text().replace("NaN", "null");
    let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let predictions = &answer["predictions"];
    let first = json!({
        "Species": "setosa", "Probability_setosa": 1.0, "Probability_versicolor": 0.0,
        "Probability_virginica": 0.0, "Node_Id": "2"
    });
    assert_eq!(predictions[0], first);
    assert_eq!(predictions[1]["Species"], "versicolor");
    let probability = predictions[1]["Probability_versicolor"].as_f64().expect("a number");
    assert!((probability - 49.0 / 54.0).abs() < 1e-12, "{probability}");
    assert_eq!(predictions[2]["Species"], "");
    assert!(predictions[2]["Probability_setosa"].is_null());

    let metadata = get(server.address, "/v1/models/iris/metadata");
    assert_eq!(metadata.status, 200, "{}", metadata.text());
    assert!(metadata.text().contains("Petal_Width"), "{}", metadata.text());
}

#[test]
fn a_version_folder_with_a_file_is_served() {
    let folder = tempfile::tempdir().expect("a directory");
    let version = folder.path().join("3");
    std::fs::create_dir(&version).expect("a directory");
    let file = data("platforms/pmml/iris_tree.pmml");
    std::fs::copy(file, version.join("iris_tree.pmml")).expect("a file");
    let server = serve(folder.path());
    let body = json!({ "inputs": {
        "sepal_length": [6.3], "sepal_width": [3.3], "petal_length": [6.0], "petal_width": [2.5]
    } });
    let path = "/v1/models/iris/versions/3:predict";
    let answer = post(server.address, path, body.to_string());
    assert_eq!(answer.json()["outputs"]["predicted_species"], json!(["virginica"]));
}
