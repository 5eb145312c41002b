//! LightGBM models over REST.

use std::fs;
use std::path::Path;

use serde_json::json;
use tensorserve::config::ModelSettings;
use tensorserve_boosters::lightgbm::LIGHTGBM;
use tensorserve_sklearn::SCIKIT_LEARN;

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
    let platforms = vec![LIGHTGBM.platform(), SCIKIT_LEARN.platform()];
    let server = TestServer::start_with(&config(settings), platforms);
    server.wait_until_started();
    server
}

/// Copies `file` of the test data into a version directory as `name`.
fn put(file: &str, version: &Path, name: &str) {
    fs::create_dir_all(version).expect("directories");
    fs::copy(data(&format!("platforms/lightgbm/{file}")), version.join(name)).expect("copied");
}

/// Expected values: lightgbm 4.7.0, with the same files.
#[test]
fn models_are_served_from_the_folders_of_their_versions() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let (iris, words) = (folder.path().join("iris"), folder.path().join("words"));
    put("others/iris_multiclass.txt", &iris.join("1"), "model.txt");
    // The first bytes say that it is not scikit-learn's.
    put("made/4.7_classifier.pkl", &words.join("1"), "model.pkl");
    let server = serve(&[("iris", &iris), ("words", &words)]);

    let answer = server.post("/v1/models/iris:predict", r#"{"instances": [[5.1,3.5,1.4,0.2]]}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let expected = json!({"predictions": [[0.738_054_794_142_200_3, 0.130_839_997_421_207_55, 0.131_105_208_436_592_18]]});
    assert!(alike(&answer.json(), &expected, Some(1e-15)), "{}", answer.text());

    let body =
        r#"{"instances": [[0.5, NaN, 0, 1, -1, 3, 20, 0], [9, -9, 0.1, -5, 2, 13, 99, 1e300]]}"#;
    let answer = server.post("/v1/models/words:predict", body);
    let expected = json!({"predictions": [
        {"predict": "perhaps", "predict_proba": [0.150_603_608_215_835_74, 0.435_188_037_062_809_9, 0.414_208_354_721_354_4]},
        {"predict": "yes", "predict_proba": [0.131_182_957_044_246_18, 0.188_949_307_023_823_37, 0.679_867_735_931_930_4]},
    ]});
    assert!(alike(&answer.json(), &expected, Some(1e-15)), "{}", answer.text());

    let answer = server.post("/v1/models/iris:predict", r#"{"instances": [[1,2,3]]}"#);
    assert_eq!(answer.status, 400);
    let says = "input \\\"data\\\" has 3 values in a row, and the model takes 4: Column_0";
    assert!(answer.text().contains(says), "{}", answer.text());
}
