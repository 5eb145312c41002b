//! H2O's MOJOs, served.

use std::fs;
use std::path::Path;

use serde_json::json;
use tensorserve::config::ModelSettings;
use tensorserve_h2o::H2O;

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
    TestServer::start_with(&config(settings), vec![H2O.platform()])
}

/// Expected values: h2o-genmodel 3.46.0.6, as in `gbm_calibrated_PlattScaling.csv.gz`.
#[test]
fn mojos_are_served_from_files_and_version_folders() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let version = folder.path().join("2");
    fs::create_dir_all(&version).expect("directories");
    fs::copy(data("platforms/h2o/gbm_calibrated_PlattScaling.zip"), version.join("model.zip"))
        .expect("copied");
    fs::write(version.join("notes.zip"), "PK no mojo").expect("written");
    let iris = data("platforms/h2o/iris_gbm.zip");
    let server = serve(&[("buyers", folder.path()), ("iris", &iris)]);
    server.wait_until_started();

    let all = json!({
        "a": 0.3, "b": 1.5, "count": 3.0, "rare": 0.0, "color": "red", "city": "Zürich", "code": "7"
    });
    let mut unknown = all.clone();
    unknown["color"] = json!("purple");
    let mut missing = all.clone();
    missing["color"] = json!("");
    let body = json!({ "instances": [all, unknown, missing] }).to_string();
    let answer = server.post("/v1/models/buyers/versions/2:predict", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let predictions = answer["predictions"].as_array().expect("rows");
    let mut names: Vec<&String> = predictions[0].as_object().expect("outputs").keys().collect();
    names.sort();
    assert_eq!(names, ["cal_no", "cal_yes", "no", "predict", "yes"]);
    assert_eq!(predictions[1], predictions[2], "an unknown level is a missing one");
    for row in predictions {
        let number = |name: &str| row[name].as_f64().expect("a number");
        assert!((number("no") + number("yes") - 1.0).abs() < 1e-12);
        assert!((number("cal_no") + number("cal_yes") - 1.0).abs() < 1e-12);
    }

    // The first of the rows that were scored: all values are missing.
    let body = r#"{"instances": [{"a": NaN, "b": NaN, "count": NaN, "rare": NaN,
                                  "color": "", "city": "", "code": ""}]}"#;
    let answer = server.post("/v1/models/buyers:predict", body);
    let expected = json!({"predictions": [{
        "predict": "yes", "no": 0.480_454_540_066_457_4, "yes": 0.519_545_459_933_542_6,
        "cal_no": 0.258_769_615_226_539_3, "cal_yes": 0.741_230_384_773_460_7
    }]});
    assert!(alike(&answer.json(), &expected, Some(1e-12)), "{}", answer.text());

    let body = r#"{"inputs": {"sepal_length": [5.1], "sepal_width": [3.5],
                              "petal_length": [1.4], "petal_width": [0.2, 0.3]}}"#;
    let answer = server.post("/v1/models/iris:predict", body);
    assert_eq!(answer.status, 400, "{}", answer.text());
}

#[test]
fn what_is_no_mojo_is_refused_with_the_way_on() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let binary = folder.path().join("GBM_model_python_1_1.mojo");
    fs::write(&binary, b"\x1c\xab\x00binary").expect("written");
    let other = data("platforms/h2o/refused_pca.zip");
    let iris = data("platforms/h2o/iris_glm.zip");
    let server = serve(&[("binary", &binary), ("pca", &other), ("iris", &iris)]);
    for (name, says) in [("binary", "model.download_mojo"), ("pca", "the algorithm")] {
        server.wait_until(says, |server| {
            server.get(&format!("/v1/models/{name}")).text().contains(says)
        });
    }
    server.wait_until("the other model", |server| server.get("/v1/models/iris").status == 200);
}
