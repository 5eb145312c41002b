//! Missing values for models of tables: `null` in JSON, an empty field in CSV, an absent key. Each protocol
//! must predict what it predicts for NaN.

use serde_json::{Value, json};
use tensorserve::config::ModelSettings;

use crate::support::client::{Answer, post, request};
use crate::support::server::{TestServer, settings};
use crate::support::{data, project};

fn serve() -> TestServer {
    let mut settings = settings();
    let pmml = data("simple-tensorflow-serving/models/pmml_iris/DecisionTreeIris.pmml");
    let xgboost = data("platforms/xgboost/iris_softprob.json");
    let models = [("tree", pmml), ("boosted", xgboost), ("graph", project("models/half_plus_two"))];
    for (name, path) in models {
        settings.models.push(ModelSettings {
            path: Some(path),
            name: Some(name.to_owned()),
            ..ModelSettings::default()
        });
    }
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

/// The species and its probability that a response of any protocol has.
fn prediction(server: &TestServer, path: &str, kind: &str, body: &str) -> Value {
    let headers = [("Content-Type", kind)];
    let answer = request(server.address, "POST", path, &headers, body);
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
    prediction_in(&answer.json())
}

/// The response to a table in CSV.
fn invoke(server: &TestServer, model: &str, csv: &str) -> Answer {
    let attributes = format!("tfs-model-name={model}");
    let headers =
        [("Content-Type", "text/csv"), ("X-Amzn-SageMaker-Custom-Attributes", attributes.as_str())];
    request(server.address, "POST", "/invocations", &headers, csv)
}

fn prediction_in(answer: &Value) -> Value {
    if let Some(row) = answer.get("predictions").and_then(|rows| rows.get(0)) {
        return row.clone();
    }
    let outputs = answer["outputs"].as_array().cloned().unwrap_or_default();
    if outputs.is_empty() {
        let result = answer.get("result").unwrap_or(answer);
        return result.clone();
    }
    let named = outputs.iter().map(|output| {
        let value = if output["data"].as_array().map_or(0, Vec::len) == 1 {
            output["data"][0].clone()
        } else {
            output["data"].clone()
        };
        (output["name"].as_str().expect("a name").to_owned(), value)
    });
    Value::Object(named.collect())
}

const JSON: &str = "application/json";

#[test]
fn a_missing_column_is_the_same_in_every_protocol() {
    let server = serve();
    let path = "/v1/models/tree:predict";
    let row = |petal: &str| {
        format!(r#""Sepal_Length": 6.0, "Sepal_Width": 3.5, "Petal_Length": {petal}"#)
    };
    let nan = format!(r#"{{"instances": [{{{}, "Petal_Width": NaN}}]}}"#, row("4.5"));
    let expected = prediction(&server, path, JSON, &nan);
    let known = format!(r#"{{"instances": [{{{}, "Petal_Width": 0.1}}]}}"#, row("4.5"));
    assert_ne!(expected["Species"], prediction(&server, path, JSON, &known)["Species"]);
    let with_null = format!(r#"{{"instances": [{{{}, "Petal_Width": null}}]}}"#, row("4.5"));
    let absent = format!(r#"{{"instances": [{{{}}}]}}"#, row("4.5"));
    let columns =
        r#"{"inputs": {"Sepal_Length": [6.0], "Sepal_Width": [3.5], "Petal_Length": [4.5]}}"#;
    assert_eq!(prediction(&server, path, JSON, &with_null), expected);
    assert_eq!(prediction(&server, path, JSON, &absent), expected);
    let by_columns = post(server.address, path, columns).json();
    assert_eq!(by_columns["outputs"]["Species"][0], expected["Species"]);

    let input = |name: &str, value: Value| json!({ "name": name, "shape": [1], "datatype": "FP64", "data": [value] });
    for width in [Some(input("Petal_Width", Value::Null)), None] {
        let mut inputs = vec![
            input("Sepal_Length", json!(6.0)),
            input("Sepal_Width", json!(3.5)),
            input("Petal_Length", json!(4.5)),
        ];
        inputs.extend(width);
        let body = json!({ "inputs": inputs }).to_string();
        assert_eq!(prediction(&server, "/v2/models/tree/infer", JSON, &body), expected);
    }

    let simple =
        format!(r#"{{"model_name": "tree", "data": {{{}, "Petal_Width": null}}}}"#, row("4.5"));
    assert_eq!(prediction(&server, "/", JSON, &simple)["Species"], expected["Species"]);

    for csv in [
        "Petal_Width,Sepal_Length,Sepal_Width,Petal_Length\n,6.0,3.5,4.5\n",
        "Sepal_Length,Sepal_Width,Petal_Length\r\n6.0,3.5,4.5\r\n",
    ] {
        let answer = invoke(&server, "tree", csv);
        assert_eq!(answer.status, 200, "{csv}: {}", answer.text());
        assert_eq!(prediction_in(&answer.json()), expected, "{csv}");
    }
    let answer = invoke(&server, "tree", "6.0,3.5,4.5,1.0\n");
    answer.assert_refused("no header", 400, "the first line must have the names of the columns");
}

#[test]
fn a_missing_number_is_the_same_in_every_protocol() {
    let server = serve();
    let path = "/v1/models/boosted:predict";
    let expected = prediction(&server, path, JSON, r#"{"instances": [[5.1, NaN, 1.4, 0.2]]}"#);
    let other = prediction(&server, path, JSON, r#"{"instances": [[5.1, 3.5, 5.4, 0.2]]}"#);
    assert_ne!(expected, other);
    let rows = r#"{"instances": [[5.1, null, 1.4, 0.2]]}"#;
    assert_eq!(prediction(&server, path, JSON, rows), expected);
    let v2 = r#"{"inputs": [{"name": "data", "shape": [1, 4], "datatype": "FP32",
                "data": [5.1, null, 1.4, 0.2]}]}"#;
    let v2 = prediction(&server, "/v2/models/boosted/infer", JSON, v2);
    assert_eq!(v2["result"], expected);
    let simple = r#"{"model_name": "boosted", "data": {"data": [[5.1, null, 1.4, 0.2]]}}"#;
    // This protocol writes floats as doubles.
    let floats = |row: &Value| -> Vec<f32> {
        let numbers = row.as_array().into_iter().flatten();
        numbers.map(|number| number.as_f64().expect("a number") as f32).collect()
    };
    assert_eq!(floats(&prediction(&server, "/", JSON, simple)[0]), floats(&expected));
    for csv in ["5.1,,1.4,0.2\n", "a,b,c,d\n5.1,,1.4,0.2\n", "5.1,nan,1.4,0.2"] {
        let answer = invoke(&server, "boosted", csv);
        assert_eq!(answer.status, 200, "{csv}: {}", answer.text());
        assert_eq!(prediction_in(&answer.json()), expected, "{csv}");
    }
}

/// Graphs have no missing values: what a reference server refuses stays refused.
#[test]
fn null_is_refused_for_graphs() {
    let server = serve();
    let answer = post(server.address, "/v1/models/graph:predict", r#"{"instances": [null]}"#);
    assert_eq!(answer.status, 400, "{}", answer.text());
    let v2 = r#"{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [null]}]}"#;
    let answer = post(server.address, "/v2/models/graph/infer", v2);
    assert_eq!(answer.status, 400, "{}", answer.text());
}
