//! Models of tables and of texts, as people fit them: pickled pipelines with imputers, encoders and
//! vectorizers. Each protocol must predict what scikit-learn does; `make_sklearn.py` wrote the models, the
//! rows and the predictions.

use std::fs;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tensorserve::config::ModelSettings;
use tensorserve_core::engine::{EntryPoint, Method};
use tensorserve_proto::serving::{ModelSpec, PredictRequest};
use tensorserve_proto::{Form, tensor_from_proto, tensor_to_proto};
use tensorserve_protocols::tfs;
use tensorserve_tensor::{Shape, StringsBuilder, Tensor, aligned_vec};

use crate::support::client::{Answer, request};
use crate::support::server::{TestServer, settings};
use crate::support::{alike, data};

/// Logarithms and exponentials differ in the last digits.
const TOLERANCE: Option<f64> = Some(1e-12);

/// A model, rows for it, and what scikit-learn predicts for them.
struct Golden {
    name: &'static str,
    rows: Vec<Value>,
    outputs: Map<String, Value>,
}

impl Golden {
    fn read(name: &'static str) -> Self {
        let path = data(&format!("platforms/sklearn/{name}.json"));
        let text = fs::read(path).expect("readable");
        let golden: Value = serde_json::from_slice(&text).expect("JSON");
        let rows = golden["rows"].as_array().expect("rows").clone();
        let outputs = golden["outputs"].as_object().expect("outputs").clone();
        Golden { name, rows, outputs }
    }

    /// The columns of the rows that `wanted` has, in order.
    fn columns(&self, wanted: &[&str]) -> Map<String, Value> {
        let column = |name: &&str| {
            let values = self.rows.iter().map(|row| row[*name].clone()).collect();
            ((*name).to_owned(), Value::Array(values))
        };
        wanted.iter().map(column).collect()
    }

    /// Checks the rows of a response.
    fn check_rows(&self, what: &str, rows: &Value) {
        let rows = rows.as_array().unwrap_or_else(|| panic!("{} {what}: {rows}", self.name));
        assert_eq!(rows.len(), self.rows.len(), "{} {what}", self.name);
        for (at, row) in rows.iter().enumerate() {
            for (output, expected) in &self.outputs {
                let (found, expected) = (&row[output], &expected[at]);
                let place = format!("{} {what}, row {at}, {output}", self.name);
                assert!(alike(found, expected, TOLERANCE), "{place}: {found}, not {expected}");
            }
        }
    }

    /// Checks the columns of a response.
    fn check_columns(&self, what: &str, columns: &Value) {
        for (output, expected) in &self.outputs {
            let found = &columns[output];
            let place = format!("{} {what}, {output}", self.name);
            assert!(alike(found, expected, TOLERANCE), "{place}: {found}, not {expected}");
        }
    }
}

const NAMES: [&str; 4] = ["passengers_logistic", "passengers_boosted", "news", "iris_frame"];

/// The columns that the models of passengers use.
const PASSENGER: [&str; 7] = ["Age", "Embarked", "Fare", "Parch", "Pclass", "Sex", "SibSp"];

fn serve() -> TestServer {
    let mut settings = settings();
    for name in NAMES {
        settings.models.push(ModelSettings {
            path: Some(data(&format!("platforms/sklearn/{name}.pkl"))),
            name: Some(name.to_owned()),
            ..ModelSettings::default()
        });
    }
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

fn answer(server: &TestServer, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body.to_string());
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    parsed(&answer)
}

/// The body. Logarithms of 0 are written as -Infinity, as TensorFlow Serving does, which JSON does not have.
fn parsed(answer: &Answer) -> Value {
    serde_json::from_str(&answer.text().replace("-Infinity", "null")).expect("JSON")
}

/// Rows as they come out of a data frame, with columns that the model does not use.
#[test]
fn rows_are_objects() {
    let server = serve();
    for name in NAMES {
        let golden = Golden::read(name);
        let path = format!("/v1/models/{name}:predict");
        let found = answer(&server, &path, &json!({ "instances": golden.rows }));
        let rows = match name {
            // The only output has no name in TensorFlow Serving's rows.
            "news" => {
                let rows = found["predictions"].as_array().expect("rows").iter();
                rows.map(|row| json!({ "predict": row })).collect()
            }
            _ => found["predictions"].clone(),
        };
        golden.check_rows("rows", &rows);
    }
    let golden = Golden::read("passengers_boosted");
    let path = "/v1/models/passengers_boosted:predict";
    let found = answer(&server, path, &json!({ "inputs": golden.columns(&PASSENGER) }));
    golden.check_columns("columns", &found["outputs"]);

    let mistake = json!({"instances": [{"age": 3.0, "Sex": "male"}]}).to_string();
    let refused = server.post(path, mistake);
    refused.assert_refused("a mistake in a name", 400, "does not have named input: age");
}

#[test]
fn the_protocol_of_simple_tensorflow_serving_takes_columns_and_one_row() {
    let server = serve();
    for name in ["passengers_logistic", "passengers_boosted"] {
        let golden = Golden::read(name);
        let body = json!({ "model_name": name, "data": golden.columns(&PASSENGER) });
        golden.check_columns("POST /", &answer(&server, "/", &body));
        let body = json!({ "model_name": name, "data": golden.rows[0] });
        let found = answer(&server, "/", &body);
        assert!(alike(&found["predict"], &golden.outputs["predict"][0], None), "{found}");
    }
    let golden = Golden::read("news");
    let body = json!({ "model_name": "news", "data": { "data": golden.rows } });
    golden.check_columns("POST /", &answer(&server, "/", &body));
}

/// What the page of Simple TensorFlow Serving sends when its form is submitted.
#[test]
fn the_form_of_the_page_takes_a_row() {
    let server = serve();
    let golden = Golden::read("passengers_logistic");
    let encoded: String = serde_json::to_vec(&golden.rows[1])
        .expect("JSON")
        .iter()
        .map(|byte| format!("%{byte:02X}"))
        .collect();
    let form = format!("model_name=passengers_logistic&json_data={encoded}");
    let kind = [("Content-Type", "application/x-www-form-urlencoded")];
    let page = request(server.address, "POST", "/run_json_inference", &kind, &form);
    assert_eq!(page.status, 200, "{}", page.text());
    let text = page.text().replace("&quot;", "\"").replace("&#34;", "\"");
    let (_, found) = text.split_once("\"predict_proba\":").expect("an output in the page");
    let mut numbers = found.split(['[', ']', ',']).filter_map(|part| part.trim().parse().ok());
    let expected = golden.outputs["predict_proba"][1][0].as_f64().expect("a number");
    let probability: f64 = numbers.next().expect("a probability");
    assert!((probability - expected).abs() < 1e-12, "{probability}, not {expected}");
}

/// A field of a line of CSV.
fn field(value: &Value) -> String {
    if value.is_null() { String::new() } else { value.to_string() }
}

#[test]
fn csv_has_a_header() {
    let server = serve();
    let mut tables: Vec<(&str, Vec<String>)> = Vec::new();
    for name in ["passengers_logistic", "passengers_boosted", "iris_frame"] {
        let row = Golden::read(name).rows[0].clone();
        let mut columns: Vec<String> = row.as_object().expect("a row").keys().cloned().collect();
        tables.push((name, columns.clone()));
        columns.reverse();
        tables.push((name, columns));
    }
    for (name, columns) in tables {
        let golden = Golden::read(name);
        let line = |row: &Value| -> String {
            let fields: Vec<String> = columns.iter().map(|column| field(&row[column])).collect();
            fields.join(",")
        };
        let lines: Vec<String> = golden.rows.iter().map(line).collect();
        let csv = format!("{}\n{}\n", columns.join(","), lines.join("\n"));
        golden.check_rows("CSV", &invoke(&server, name, &csv)["predictions"]);
    }
    let golden = Golden::read("news");
    let lines: Vec<String> = golden.rows.iter().map(field).collect();
    let csv = format!("data\n{}\n", lines.join("\n"));
    let found = invoke(&server, "news", &csv);
    let rows = found["predictions"].as_array().expect("rows").iter();
    golden.check_rows("CSV", &rows.map(|row| json!({ "predict": row })).collect());
}

fn invoke(server: &TestServer, model: &str, csv: &str) -> Value {
    let attributes = format!("tfs-model-name={model}");
    let headers =
        [("Content-Type", "text/csv"), ("X-Amzn-SageMaker-Custom-Attributes", &*attributes)];
    let answer = request(server.address, "POST", "/invocations", &headers, csv);
    assert_eq!(answer.status, 200, "{model}: {}", answer.text());
    parsed(&answer)
}

/// A column of a table; NaN and the empty string for what is missing.
fn tensor(values: &Value) -> Tensor {
    let values = values.as_array().expect("a column");
    let shape = Shape::vector(values.len());
    if values.iter().any(Value::is_string) {
        let mut texts = StringsBuilder::default();
        values.iter().for_each(|value| texts.push(value.as_str().unwrap_or_default().as_bytes()));
        return Tensor::from_strings(shape, texts).expect("a tensor");
    }
    let mut numbers = aligned_vec(values.len());
    values.iter().for_each(|value| numbers.push(value.as_f64().unwrap_or(f64::NAN)));
    Tensor::from_vec(shape, numbers).expect("a tensor")
}

#[tokio::test]
async fn grpc_has_a_tensor_for_each_column() {
    let server = serve();
    for name in NAMES {
        let golden = Golden::read(name);
        let columns = match name {
            "news" => {
                [("data".to_owned(), Value::Array(golden.rows.clone()))].into_iter().collect()
            }
            "iris_frame" => {
                let names = golden.rows[0].as_object().expect("a row").keys();
                golden.columns(&names.map(String::as_str).collect::<Vec<_>>())
            }
            _ => golden.columns(&PASSENGER),
        };
        let inputs = columns.iter().map(|(name, values)| {
            let tensor = tensor_to_proto(&tensor(values), Form::Content);
            (name.clone(), tensor)
        });
        let request = PredictRequest {
            model_spec: Some(ModelSpec { name: name.to_owned(), ..ModelSpec::default() }),
            inputs: inputs.collect(),
            output_filter: Vec::new(),
        };
        let entry = EntryPoint { protocol: tfs::GRPC, method: Method::Predict };
        let call = server.engine.call(entry, Instant::now());
        let answer = tfs::grpc::predict(&server.engine, request, Form::Values, call).await;
        let answer = answer.expect("an answer");
        for (output, expected) in &golden.outputs {
            let tensor = tensor_from_proto(&answer.outputs[output]).expect("a tensor");
            let found = flat(&tensor);
            let mut wanted = Vec::new();
            flatten(expected, &mut wanted);
            let same = alike(&Value::Array(found), &Value::Array(wanted), TOLERANCE);
            assert!(same, "{name} {output}");
        }
    }
}

fn flat(tensor: &Tensor) -> Vec<Value> {
    if let Some(numbers) = tensor.values::<f64>() {
        return numbers.iter().map(|number| json!(number)).collect();
    }
    if let Some(numbers) = tensor.values::<i64>() {
        return numbers.iter().map(|number| json!(number)).collect();
    }
    let texts = tensor.strings().expect("texts");
    texts.iter().map(|text| json!(String::from_utf8_lossy(text))).collect()
}

fn flatten(value: &Value, to: &mut Vec<Value>) {
    match value.as_array() {
        Some(values) => values.iter().for_each(|value| flatten(value, to)),
        None => to.push(value.clone()),
    }
}

#[test]
fn v2_has_an_input_for_each_column() {
    let server = serve();
    for name in ["passengers_logistic", "passengers_boosted"] {
        let golden = Golden::read(name);
        let count = golden.rows.len();
        let input = |(name, values): (&String, &Value)| {
            let is_text = values.as_array().into_iter().flatten().any(Value::is_string);
            let datatype = if is_text { "BYTES" } else { "FP64" };
            json!({"name": name, "shape": [count], "datatype": datatype, "data": values})
        };
        let inputs: Vec<Value> = golden.columns(&PASSENGER).iter().map(input).collect();
        let path = format!("/v2/models/{name}/infer");
        let found = answer(&server, &path, &json!({ "inputs": inputs }));
        let outputs = found["outputs"].as_array().expect("outputs");
        let predict = outputs.iter().find(|output| output["name"] == "predict").expect("predict");
        assert_eq!(predict["data"], golden.outputs["predict"], "{name}");
    }
}

/// A model of numbers takes a matrix, and the columns of its data frame by their names, in any order.
#[test]
fn a_model_of_numbers_takes_a_matrix_or_columns() {
    let server = serve();
    let golden = Golden::read("iris_frame");
    let names = ["sepal length (cm)", "sepal width (cm)", "petal length (cm)", "petal width (cm)"];
    let matrix: Vec<Value> = golden
        .rows
        .iter()
        .map(|row| names.iter().map(|name| row[*name].clone()).collect())
        .collect();
    let path = "/v1/models/iris_frame:predict";
    let found = answer(&server, path, &json!({ "instances": matrix }));
    golden.check_rows("a matrix", &found["predictions"]);
    let reversed: Vec<&str> = names.iter().rev().copied().collect();
    let found = answer(&server, path, &json!({ "inputs": golden.columns(&reversed) }));
    golden.check_columns("columns", &found["outputs"]);
    let body = json!({ "model_name": "iris_frame", "data": golden.columns(&names) });
    golden.check_columns("POST /", &answer(&server, "/", &body));
    let missing = server.post(path, r#"{"instances": [{"petal width (cm)": 1.0}]}"#);
    assert_eq!(missing.status, 400, "{}", missing.text());
    assert!(missing.text().contains("NaN"), "{}", missing.text());
}

/// What `DataFrame.to_json` writes for a column of booleans.
#[test]
fn booleans_are_numbers_in_every_protocol() {
    let folder = data("reports/tabular-21-json-booleans");
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(folder.join(name)).expect("readable")).expect("JSON")
    };
    let (request, right) = (read("request.json"), read("right.json"));
    let server = TestServer::of(&folder.join("model.pkl"));
    let columns = request["inputs"].as_object().expect("columns");
    let row = |at: usize| -> Map<String, Value> {
        columns.iter().map(|(name, values)| (name.clone(), values[at].clone())).collect()
    };
    let check = |what: &str, found: &Value| {
        for output in ["predict", "predict_proba"] {
            assert!(alike(&found[output], &right[output], TOLERANCE), "{what} {output}: {found}");
        }
    };
    let path = "/v1/models/model:predict";
    check("inputs", &answer(&server, path, &request)["outputs"]);
    check("POST /", &answer(&server, "/", &json!({ "data": columns })));
    let rows = answer(&server, path, &json!({ "instances": [row(0), row(1)] }));
    for at in 0..2 {
        let (found, right) = (&rows["predictions"][at]["predict"], &right["predict"][at]);
        assert_eq!(found, right, "row {at}");
    }
    for datatype in ["FP64", "BOOL"] {
        let input = |(name, values): (&String, &Value)| {
            let kind = match (&values[0], name.as_str()) {
                (_, "flag") => datatype,
                (Value::String(_), _) => "BYTES",
                _ => "FP64",
            };
            json!({"name": name, "shape": [2], "datatype": kind, "data": values})
        };
        let inputs: Vec<Value> = columns.iter().map(input).collect();
        let found = answer(&server, "/v2/models/model/infer", &json!({ "inputs": inputs }));
        let outputs = found["outputs"].as_array().expect("outputs").iter();
        let predict = outputs.clone().find(|output| output["name"] == "predict");
        assert_eq!(predict.expect("predict")["data"], right["predict"], "{datatype}");
    }
}
