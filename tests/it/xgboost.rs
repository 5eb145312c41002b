//! XGBoost models over REST.

use std::fs;
use std::path::Path;

use serde_json::json;
use tensorserve::config::ModelSettings;
use tensorserve_boosters::xgboost::XGBOOST;

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
    let server = TestServer::start_with(&config(settings), vec![XGBOOST.platform()]);
    server.wait_until_started();
    server
}

/// Copies `file` of the test data into a version directory as `name`.
fn put(file: &str, version: &Path, name: &str) {
    fs::create_dir_all(version).expect("directories");
    fs::copy(data(file), version.join(name)).expect("copied");
}

/// Expected values: xgboost 1.7.6 and 3.2.0, with the same files.
#[test]
fn models_are_served_from_the_folders_of_their_versions() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let (sample, classes) = (folder.path().join("sample"), folder.path().join("classes"));
    put("simple-tensorflow-serving/models/xgboost_iris/model.bst", &sample.join("1"), "model.bst");
    put("platforms/xgboost/iris_softprob.json", &classes.join("1"), "model.json");
    put("platforms/xgboost/iris_softprob.ubj", &classes.join("2"), "any.ubj");
    let server = serve(&[("sample", &sample), ("classes", &classes)]);

    let answer = server.post("/v1/models/sample:predict", r#"{"instances": [[1,2,3,4]]}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let expected = json!({"predictions": [1.877_554_893_493_652_3]});
    assert!(alike(&answer.json(), &expected, Some(1e-6)), "{}", answer.text());

    let body = r#"{"inputs": {"data": [[5.1,3.5,1.4,0.2],[6.0,2.2,4.0,1.0],[6.3,3.3,6.0,2.5]]}}"#;
    let answer = server.post("/v1/models/sample:predict", body);
    let expected = json!({"outputs": [0.000_471_803_36, 0.999_494_85, 1.998_915_43]});
    assert!(alike(&answer.json(), &expected, Some(1e-6)), "{}", answer.text());

    let answer = server
        .post("/v1/models/classes/versions/2:predict", r#"{"instances": [[5.1,3.5,NaN,0.2]]}"#);
    let expected = json!({"predictions": [[0.074_869_864, 0.211_203_37, 0.713_926_75]]});
    assert!(alike(&answer.json(), &expected, Some(1e-6)), "{}", answer.text());

    let answer = server.post("/v1/models/sample:predict", r#"{"instances": [[1,2,3]]}"#);
    assert_eq!(answer.status, 400);
    let says = "input \\\"data\\\" has 3 values in a row, and the model takes 4";
    assert!(answer.text().contains(says), "{}", answer.text());
}
