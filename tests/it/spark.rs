//! Spark models, served.

use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use tensorserve::config::ModelSettings;
use tensorserve_spark::SPARK;

use crate::support::client::{post, request};
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
    let server = TestServer::start_with(&config(settings), vec![SPARK.platform()]);
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

/// The JSON in a compressed file of `platforms/spark`.
fn read(name: &str) -> Value {
    let file = fs::File::open(data("platforms/spark").join(name)).expect("a file");
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).expect("text");
    serde_json::from_str(&text).expect("JSON")
}

/// Writes the pipeline `name` of the test data.
fn write_pipeline(name: &str, folder: &Path) {
    let models = read("pipelines.json.gz");
    for (path, content) in models[name].as_object().expect("files") {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        let bytes = content.as_str().expect("a text").chars();
        let bytes: Vec<u8> = bytes.map(|c| u8::try_from(u32::from(c)).expect("a byte")).collect();
        fs::write(path, bytes).expect("written");
    }
}

/// The first rows of the test data, in these columns.
fn rows(columns: &[&str]) -> Vec<Value> {
    let all = read("rows.json.gz");
    let value = |column: &str, row: usize| {
        let value = &all["dirty"][column][row];
        if value == "nan" { Value::Null } else { value.clone() }
    };
    let row = |row| columns.iter().map(|name| ((*name).to_owned(), value(name, row))).collect();
    (0..50).map(row).map(Value::Object).collect()
}

const COLUMNS: [&str; 6] = ["a", "b", "city", "color", "n", "z"];

#[test]
fn a_pipeline_takes_a_value_for_each_column() {
    let root = tempfile::tempdir().expect("temporary directory");
    let folder = root.path().join("answers");
    write_pipeline("forest_classifier", &folder);
    let mlflow = root.path().join("flow");
    write_pipeline("forest_classifier", &mlflow.join("sparkml"));
    let flavor = "flavors:\n  spark: {model_data: sparkml, model_class: org.apache.spark.ml.PipelineModel}\n";
    fs::write(mlflow.join("MLmodel"), format!("{flavor}mlflow_version: 3.17.2\n"))
        .expect("written");
    let server = TestServer::of(root.path());
    let expected = read("expected_pipelines.json.gz")["forest_classifier"]["outputs"].clone();

    let body = json!({ "instances": rows(&COLUMNS) }).to_string();
    let answer = post(server.address, "/v1/models/answers:predict", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    for (row, prediction) in answer["predictions"].as_array().expect("rows").iter().enumerate() {
        assert_eq!(prediction["answered"], expected["answered"][row], "row {row}");
        let probability = prediction["probability"][1].as_f64().expect("a number");
        let wanted = expected["probability"][row][1].as_f64().expect("a number");
        assert!((probability - wanted).abs() < 1e-12, "row {row}: {probability}, not {wanted}");
    }

    let values: Vec<Vec<Value>> = rows(&COLUMNS)
        .iter()
        .map(|row| COLUMNS.iter().map(|name| row[*name].clone()).collect())
        .collect();
    let body = json!({ "dataframe_split": { "columns": COLUMNS, "data": values } }).to_string();
    let headers = [
        ("Content-Type", "application/json"),
        ("X-Amzn-SageMaker-Custom-Attributes", "tfs-model-name=flow"),
    ];
    let answer = request(server.address, "POST", "/invocations", &headers, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let wanted: Vec<Value> =
        expected["prediction"].as_array().expect("rows").iter().take(50).cloned().collect();
    assert_eq!(answer.json()["predictions"], json!(wanted));
}

/// Spark casts numbers to texts for a `StringIndexer`: the labels of a column of doubles are `2.0`, not `2`.
#[test]
fn numbers_are_indexed_as_spark_casts_them() {
    let server = TestServer::of(&data("platforms/spark/number_labels"));
    let path = "/v1/models/number_labels:predict";
    let indices = |zip: Value, size: Value, grade: Value| {
        let rows = json!({"instances": [{"zip": zip, "size": size, "grade": grade}]}).to_string();
        let answer = server.post(path, rows);
        match answer.status {
            200 => {
                let row = &answer.json()["predictions"][0];
                Ok([&row["zip_i"], &row["size_i"], &row["grade_i"]].map(Value::as_f64))
            }
            _ => Err(answer.text()),
        }
    };
    let right = Ok([Some(1.0), Some(0.0), Some(2.0)]);
    assert_eq!(indices(json!(80331), json!(2), json!("low")), right);
    assert_eq!(indices(json!(80331.0), json!(2.0), json!("low")), right);
    assert_eq!(indices(json!("80331"), json!("2.0"), json!("low")), right);
    let right = Ok([Some(2.0), Some(2.0), Some(0.0)]);
    assert_eq!(indices(json!(-1), json!(1e7), json!("1")), right);
    // A text is no number, a fraction no integer, and a column with a label that is a text has no numbers.
    for (zip, size, grade, reason) in [
        (json!("80331"), json!("2"), json!("low"), "unseen label"),
        (json!(80331.5), json!(2), json!("low"), "is not of expected type: string"),
        (json!(80332), json!(2), json!("low"), "unseen label"),
        (json!(80331), json!(2), json!(1), "is not of expected type: string"),
    ] {
        let error = indices(zip.clone(), size.clone(), grade).expect_err("refused");
        assert!(error.contains(reason), "{zip} {size}: {error}");
    }
    let simple = json!({"data": {"zip": [80331], "size": [2], "grade": ["low"]}}).to_string();
    let answer = server.post("/", simple);
    assert_eq!(answer.json()["zip_i"], json!([1.0]), "{}", answer.text());
    let input = |name: &str, datatype: &str, data: Value| json!({"name": name, "shape": [1], "datatype": datatype, "data": [data]});
    let inputs = json!({"inputs": [
        input("zip", "INT64", json!(80331)),
        input("size", "FP64", json!(2)),
        input("grade", "BYTES", json!("low")),
    ]});
    let answer = server.post("/v2/models/number_labels/infer", inputs.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let outputs = answer.json()["outputs"].as_array().cloned().unwrap_or_default();
    let zip = outputs.iter().find(|output| output["name"] == "zip_i").expect("an output");
    assert_eq!(zip["data"], json!([1.0]));
}
