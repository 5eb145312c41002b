//! MLflow's model folders: the flavors, the scoring server's routes, and folders that cannot be served.
//! `tests/clients/mlflow_models` compares the answers with those of MLflow itself.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::client::{Answer, request};
use crate::support::process::{ended, tensorserve};
use crate::support::server::{TestServer, settings};
use crate::support::{alike, copy, data, project};

const COLUMNS: &str = r#"[{"type": "double", "name": "sepal length"}, {"type": "double", "name": "sepal width"}, {"type": "double", "name": "petal length"}, {"type": "double", "name": "petal width"}]"#;
const MATRIX: &str =
    r#"[{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 4]}}]"#;
const VECTOR: &str = r#"[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1]}}]"#;
const FEATURES: &str = r#"[{"type": "sparkml_vector", "name": "features"}]"#;

/// Writes a model folder with one flavor. `model` is copied to the path `to` in it.
fn write(folder: &Path, flavor: &str, inputs: &str, model: &Path, to: &str) {
    let target = folder.join(to);
    fs::create_dir_all(target.parent().expect("a directory")).expect("directories");
    match model.is_dir() {
        true => copy(model, &target),
        false => drop(fs::copy(model, &target).expect("copied")),
    }
    let file = format!(
        "flavors:\n  python_function:\n    loader_module: mlflow.any\n    predict_fn: predict\n  {flavor}\n\
         mlflow_version: 3.17.2\nsignature:\n  inputs: '{inputs}'\n"
    );
    fs::write(folder.join("MLmodel"), file).expect("written");
    fs::write(folder.join("conda.yaml"), "name: mlflow-env\n").expect("written");
    // What people and MLflow put beside a model must not be taken for models or versions.
    fs::create_dir_all(folder.join("code/1")).expect("directories");
    fs::write(folder.join("code/1/model.pkl"), "not one").expect("written");
}

fn sklearn(folder: &Path) {
    let flavor = "sklearn: {pickled_model: model.pkl, serialization_format: pickle}";
    let model = data("platforms/sklearn/iris_logreg_pipeline.pkl");
    write(folder, flavor, COLUMNS, &model, "model.pkl");
}

fn score(server: &TestServer, kind: &str, body: &str) -> Answer {
    request(server.address, "POST", "/invocations", &[("Content-Type", kind)], body)
}

fn predictions(server: &TestServer, body: &Value) -> Value {
    let answer = score(server, "application/json", &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["predictions"].clone()
}

#[test]
fn a_folder_is_a_model_with_the_routes_of_the_scoring_server() {
    let root = tempfile::tempdir().expect("temporary directory");
    let folder = root.path().join("iris");
    sklearn(&folder);
    let server = TestServer::of(&folder);
    let rows = json!([[1.4, 5.1, 0.2, 3.5], [6.0, 6.3, 2.5, 3.3]]);
    let names = json!(["petal length", "sepal length", "petal width", "sepal width"]);
    let split = json!({"dataframe_split": {"columns": names, "data": rows}});
    assert_eq!(predictions(&server, &split), json!([0, 2]));
    let csv = "sepal length,sepal width,petal length,petal width\n6.3,3.3,6.0,2.5\n";
    let answer = score(&server, "text/csv", csv);
    assert_eq!((answer.status, answer.text().as_str()), (200, "{\"predictions\": [2]}"));

    let answer =
        score(&server, "application/json", r#"{"dataframe_records": [{"petal width": 1}]}"#);
    assert_eq!(
        (answer.status, &answer.json()["error_code"]),
        (400, &json!("INVALID_PARAMETER_VALUE"))
    );
    let message = answer.json()["message"].to_string();
    assert!(
        message.contains("missing inputs ['sepal length', 'sepal width', 'petal length']"),
        "{message}"
    );
    let answer = score(&server, "text/plain", "1");
    assert_eq!(answer.status, 415);
    let answer = server.get("/invocations");
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (405, r#"{"detail":"Method Not Allowed"}"#)
    );
    for (path, text) in [("/ping", "\n"), ("/health", "\n"), ("/version", "3.17.2")] {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.text().as_str()), (200, text), "{path}");
    }
    // The other protocols serve the model as one of its platform.
    let answer = server.post("/v1/models/iris:predict", r#"{"instances": [[6.3, 3.3, 6.0, 2.5]]}"#);
    assert!(answer.text().contains("predict_proba"), "{}", answer.text());
    let metrics = server.get("/metrics").text();
    let scored = metrics.lines().find(|line| {
        line.starts_with("tensorserve_requests_total") && line.contains("protocol=\"mlflow\"")
    });
    assert!(scored.is_some(), "{metrics}");
}

#[test]
fn models_of_other_formats_keep_sagemakers_answers() {
    let server = TestServer::of(&project("models/half_plus_two"));
    let answer = score(&server, "application/json", r#"{"dataframe_split": {"data": [[1]]}}"#);
    assert!(answer.status == 400 && answer.text().contains("\"error\""), "{}", answer.text());
    assert_eq!(score(&server, "text/csv", "1\n2\n").json()["predictions"], json!([2.5, 3.0]));
    assert_eq!(
        (server.get("/version").status, server.get("/health").text().as_str()),
        (404, "healthy")
    );
    server.assert_pings();
}

#[test]
fn versions_of_a_model_change_while_it_is_served() {
    let root = tempfile::tempdir().expect("temporary directory");
    let folder = root.path().join("iris");
    sklearn(&folder.join("1"));
    let server = TestServer::of(&folder);
    let body = json!({"inputs": [{"sepal length": 6.3, "sepal width": 3.3, "petal length": 6, "petal width": 2.5}]});
    assert_eq!(predictions(&server, &body), json!([2]));
    let next = root.path().join("next");
    sklearn(&next);
    let file = fs::read_to_string(next.join("MLmodel")).expect("a file");
    let file = file
        .replace("predict_fn: predict", "predict_fn: predict_proba")
        .replace("3.17.2", "3.18.0");
    fs::write(next.join("MLmodel"), file).expect("written");
    fs::rename(&next, folder.join("2")).expect("renamed");
    server.wait_until("version 2", |server| server.get("/version").text() == "3.18.0");
    let probabilities = predictions(&server, &body);
    assert_eq!(probabilities[0].as_array().map(Vec::len), Some(3), "{probabilities}");
}

#[test]
fn every_flavor_predicts_as_in_mlflow() {
    let root = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| root.path().join(name);
    let booster = data("platforms/xgboost/iris_softprob.ubj");
    let class = |name: &str| format!("xgboost: {{data: model.ubj, model_class: xgboost.{name}}}");
    write(&at("booster"), &class("core.Booster"), MATRIX, &booster, "model.ubj");
    write(&at("classifier"), &class("sklearn.XGBClassifier"), MATRIX, &booster, "model.ubj");
    let graph = data("platforms/onnx/half_plus_two.onnx");
    write(&at("graph"), "onnx: {data: model.onnx}", VECTOR, &graph, "model.onnx");
    let module = "tensorflow: {saved_model_dir: tf2model, model_type: tf2-module}";
    write(&at("module"), module, VECTOR, &project("models/half_plus_two/1"), "tf2model");
    let keras = "keras: {data: data, save_exported_model: true}";
    write(&at("keras"), keras, VECTOR, &project("models/half_plus_two/1"), "data/model");
    let pipeline = "spark: {model_data: sparkml, model_class: org.apache.spark.ml.PipelineModel}";
    let stage = "sparkml/stages/0_LinearRegression_4c";
    write(&at("spark"), pipeline, FEATURES, &data("platforms/spark/ml_linear"), stage);
    fs::create_dir_all(at("spark/sparkml/metadata")).expect("directories");
    let class = r#"{"class": "org.apache.spark.ml.PipelineModel", "paramMap": {}}"#;
    fs::write(at("spark/sparkml/metadata/part-00000"), class).expect("written");
    let server = TestServer::of(root.path());

    let score = |model: &str, body: Value| {
        let attributes = format!("tfs-model-name={model}");
        let headers = [
            ("Content-Type", "application/json"),
            ("X-Amzn-SageMaker-Custom-Attributes", attributes.as_str()),
        ];
        let answer = request(server.address, "POST", "/invocations", &headers, body.to_string());
        assert_eq!(answer.status, 200, "{model}: {}", answer.text());
        answer.json()["predictions"].clone()
    };
    let flowers = || json!({"instances": [[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]]});
    let probabilities = score("booster", flowers());
    assert_eq!(probabilities[1].as_array().map(Vec::len), Some(3), "{probabilities}");
    assert_eq!(score("classifier", flowers()), json!([0, 2]));
    for model in ["module", "keras"] {
        assert_eq!(score(model, json!({"inputs": [1, 2]})), json!([2.5, 3.0]), "{model}");
    }
    let graph = score("graph", json!({"inputs": [1, 2]}));
    assert_eq!(graph.as_object().and_then(|named| named.values().next()), Some(&json!([2.5, 3.0])));
    let expected = fs::read_to_string(data("platforms/spark/expected.json")).expect("a file");
    let expected: Value = serde_json::from_str(&expected).expect("JSON");
    let rows = expected["ml_linear"].as_array().expect("rows");
    let features: Vec<Value> = rows.iter().map(|row| json!([row["features"]])).collect();
    let body = json!({"dataframe_split": {"columns": ["features"], "data": features}});
    let wanted: Vec<&Value> = rows.iter().map(|row| &row["prediction"]).collect();
    assert!(alike(&score("spark", body), &json!(wanted), Some(1e-9)));
}

/// The reason that `/readyz` and `inspect` give for the folder that `prepare` changes.
fn reason(prepare: impl FnOnce(&Path)) -> String {
    let root = tempfile::tempdir().expect("temporary directory");
    let folder = root.path().join("iris");
    sklearn(&folder);
    prepare(&folder);
    let mut settings = settings();
    settings.paths.push(folder.clone());
    let server = TestServer::start(settings);
    server
        .wait_until("a reason", |server| !server.get("/readyz").text().contains("still changing"));
    let answer = server.get("/readyz");
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!((server.get("/health").status, server.get("/ping").status), (503, 502));
    let inspected = ended(&mut tensorserve(&["inspect", &folder.display().to_string()]));
    assert!(!inspected.status.success(), "{}", inspected.stdout);
    format!("{}\n{}", answer.error(), inspected.stderr)
}

#[test]
fn folders_that_cannot_be_served_are_refused_with_the_reason() {
    let with = |text: &'static str| {
        move |folder: &Path| fs::write(folder.join("MLmodel"), text).expect("written")
    };
    let lightgbm = with("flavors: {lightgbm: {data: model.lgb}, python_function: {}}");
    assert!(reason(lightgbm).contains("its flavors are lightgbm, python_function, and the flavors that can be served are tensorflow, keras, onnx, sklearn, xgboost, spark"));
    let code = with("flavors: {python_function: {loader_module: mlflow.pyfunc.model}}");
    assert!(reason(code).contains("it is Python code"));
    assert!(reason(with("flavors: [")).contains("it is not YAML"));
    assert!(reason(with("mlflow_version: 3.0")).contains("it has no flavors"));
    let outside = with("flavors: {sklearn: {pickled_model: ../../etc/passwd}}");
    assert!(reason(outside).contains("leaves the model's folder"));
    let huge = |folder: &Path| {
        let file = fs::File::create(folder.join("MLmodel")).expect("created");
        file.set_len(100 << 20).expect("long");
    };
    assert!(reason(huge).contains("has more than 4194304 bytes"));
    let missing = |folder: &Path| fs::remove_file(folder.join("model.pkl")).expect("removed");
    assert!(reason(missing).contains("model.pkl"));
    let keras = |folder: &Path| {
        fs::create_dir_all(folder.join("data")).expect("directories");
        fs::write(folder.join("data/model.keras"), "PK").expect("written");
        fs::write(folder.join("MLmodel"), "flavors: {keras: {data: data}}").expect("written");
    };
    assert!(reason(keras).contains("only Python can load a file of Keras; export"));
}

/// Without a signature MLflow passes the table on to the model, and scikit-learn refuses columns that are not
/// those of the training.
#[test]
fn columns_of_a_table_without_a_signature_are_those_of_the_training() {
    let root = tempfile::tempdir().expect("temporary directory");
    let folder = root.path().join("iris");
    sklearn(&folder);
    let frame = data("platforms/sklearn/iris_frame.pkl");
    fs::copy(frame, folder.join("model.pkl")).expect("copied");
    let text = fs::read_to_string(folder.join("MLmodel")).expect("readable");
    let (without, _) = text.split_once("signature:").expect("a signature");
    fs::write(folder.join("MLmodel"), without).expect("written");
    let server = TestServer::of(&folder);
    let split = |columns: [&str; 4], row: [f64; 4]| json!({"dataframe_split": {"columns": columns, "data": [row]}});
    let [sl, sw, pl, pw] =
        ["sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)"];
    let right = predictions(&server, &split([sl, sw, pl, pw], [5.1, 3.5, 1.4, 0.2]));
    assert_eq!(predictions(&server, &split([pw, pl, sw, sl], [0.2, 1.4, 3.5, 5.1])), right);
    let other = predictions(&server, &split([sl, sw, pl, pw], [0.2, 1.4, 3.5, 5.1]));
    assert_ne!(other, right);
    let wrong = [
        split([sl, sw, pl, "Petal width (cm)"], [5.1, 3.5, 1.4, 0.2]),
        split(["Petal width (cm)", sl, sw, pl], [5.1, 3.5, 1.4, 0.2]),
        json!({"dataframe_records": [{sl: 5.1, sw: 3.5, pl: 1.4, "Petal width (cm)": 0.2}]}),
        json!({"dataframe_records": [{sl: 5.1, sw: 3.5, pl: 1.4, pw: 0.2, "Petal width (cm)": 0.2}]}),
    ];
    for body in wrong {
        let answer = score(&server, "application/json", &body.to_string());
        let text = answer.text();
        assert_eq!(answer.status, 400, "{body}: {text}");
        for part in ["'Petal width (cm)'", "its inputs are", "did you mean"] {
            assert!(text.contains(part), "{body}: {text}");
        }
    }
    let csv = format!("{sl},{sw},{pl},petal width\n5.1,3.5,1.4,0.2\n");
    assert_eq!(score(&server, "text/csv", &csv).status, 400);
}
