//! Spark models, served.

use std::sync::Arc;

use serde_json::json;
use tensorserve::config::ModelSettings;
use tensorserve_tabular::spark::Spark;

use crate::support::client::post;
use crate::support::data;
use crate::support::server::{TestServer, config, settings};

#[test]
fn a_folder_is_served() {
    let mut settings = settings();
    settings.models.push(ModelSettings {
        path: Some(data("simple-tensorflow-serving/models/mllib_lr_model")),
        name: Some("spark".to_owned()),
        ..ModelSettings::default()
    });
    let server = TestServer::start_with(&config(settings), vec![Arc::new(Spark)]);
    server.wait_until_started();

    let mut row = vec![0.0; 692];
    for (at, value) in [(128, 51.0), (129, 159.0), (130, 20.0)] {
        row[at] = value;
    }
    let body = json!({ "instances": [row] }).to_string();
    let answer = post(server.address, "/v1/models/spark:predict", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let prediction = &answer["predictions"][0];
    // None of the three features has a coefficient: this is the intercept, 0.22456315961250325.
    assert_eq!(prediction["prediction"], 1.0);
    let expected = 0.555_906_048_421_807_8;
    let got = prediction["probability_of_1"].as_f64().expect("a number");
    assert!((got - expected).abs() < 1e-9, "{got}");
}
