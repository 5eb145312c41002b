//! Payloads against signatures, without a server.

use std::collections::BTreeSet;

use serde_json::json;

use super::enforce::{ModelData, NodeArray, enforce};
use super::*;
use tensorserve_mlflow::schema::ModelSignature;
use tensorserve_tensor::budget::MemoryBudget;
use tensorserve_tensor::{DType, Signature, TensorSpec};

/// The model file of a scikit-learn model with these inputs and parameters.
fn model(inputs: &str, params: &str) -> MlflowModel {
    let file = format!(
        "flavors: {{sklearn: {{pickled_model: m.pkl}}}}\nsignature:\n  inputs: '{inputs}'\n  \
         params: '{params}'\n"
    );
    MlflowModel::parse(file.as_bytes()).expect("a model file")
}

/// What the data of a request is for the model, or the error as the response has it.
fn outcome(inputs: &str, format: BodyType, body: &str) -> String {
    let mut model = model(if inputs.is_empty() { ONE } else { inputs }, "[]");
    if inputs.is_empty() {
        model.signature = ModelSignature::default();
    }
    let data = read(format, body.as_bytes(), &model)
        .and_then(|(payload, kind, _)| enforce(payload, model.signature.inputs.as_ref(), kind));
    match data {
        Ok(ModelData::Table(table)) => {
            let columns = table.columns.iter();
            let columns = columns.map(|it| format!("{}={}", it.name.shown(), shown(&it.values)));
            format!("table {}", columns.collect::<Vec<_>>().join(" "))
        }
        Ok(ModelData::Array(array)) => format!("array {}", of_array(&array)),
        Ok(ModelData::Named(all)) => {
            let all = all.iter().map(|(name, array)| format!("{name}={}", of_array(array)));
            format!("named {}", all.collect::<Vec<_>>().join(" "))
        }
        Err(error) => {
            let reply = fault::reply(error);
            format!("{} {}", reply.status, String::from_utf8_lossy(&reply.body))
        }
    }
}

fn of_array(array: &NodeArray<'_>) -> String {
    format!("{:?}{}", array.dims, shown(&array.values))
}

fn shown(values: &[Node<'_>]) -> String {
    let one = |value: &Node<'_>| match value {
        Node::Null => "null".to_owned(),
        Node::Bool(bool) => bool.to_string(),
        Node::Int(number) => number.to_string(),
        Node::Float(number) => format!("{number:?}"),
        Node::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
        Node::List(list) => shown(list),
        Node::Object(_) => "{}".to_owned(),
    };
    format!("[{}]", values.iter().map(one).collect::<Vec<_>>().join(","))
}

fn json(inputs: &str, body: &str) -> String {
    outcome(inputs, BodyType::Json, body)
}

const TWO: &str =
    r#"[{"type": "double", "name": "a"}, {"type": "long", "name": "b", "required": false}]"#;
const ONE: &str = r#"[{"type": "double", "name": "a"}]"#;
const UNNAMED: &str = r#"[{"type": "double"}, {"type": "double"}]"#;
const MATRIX: &str =
    r#"[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}]"#;
const TENSORS: &str = r#"[{"type": "tensor", "name": "x", "tensor-spec": {"dtype": "float64", "shape": [-1, 2]}},
    {"type": "tensor", "name": "y", "tensor-spec": {"dtype": "int64", "shape": [-1]}}]"#;

#[test]
fn columns_come_in_the_order_and_the_types_of_the_signature() {
    let want = "table 'a'=[1.0,NaN] 'b'=[2,3]";
    let bodies = [
        r#"{"dataframe_split": {"columns": ["b", "x", "a"], "data": [[2, 0, 1], [3.7, 0, null]]}}"#,
        r#"{"dataframe_records": [{"b": 2, "a": 1}, {"b": 3}]}"#,
        r#"{"inputs": {"b": [2, 3], "a": [1, NaN], "c": [1, 2]}}"#,
        r#"{"inputs": [{"b": 2, "a": "1"}, {"b": "3", "a": null}]}"#,
        r#"{"instances": [{"a": 1, "b": 2}, {"a": null, "b": 3}], "signature_name": "ignored"}"#,
    ];
    for body in bodies {
        assert_eq!(json(TWO, body), want, "{body}");
    }
    assert_eq!(outcome(TWO, BodyType::Csv, "b,a\n2,1\n3,\n"), want);
    assert_eq!(json(TWO, r#"{"dataframe_records": [{"a": 1}]}"#), "table 'a'=[1.0]");
    assert_eq!(json(TWO, r#"{"inputs": {"a": 1, "b": 2}}"#), "table 'a'=[1.0] 'b'=[2]");
    assert_eq!(json(ONE, r#"{"instances": [1, 2]}"#), "table 'a'=[1.0,2.0]");
    assert_eq!(
        json(UNNAMED, r#"{"instances": [[1, 2], [3, 4]]}"#),
        "table 0=[1.0,3.0] 1=[2.0,4.0]"
    );
}

#[test]
fn inputs_that_do_not_match_the_signature_are_refused() {
    let missing = json(TWO, r#"{"dataframe_split": {"columns": ["x"], "data": [[1]]}}"#);
    let want = json!({
        "error_code": "INVALID_PARAMETER_VALUE",
        "message": "Failed to enforce schema. Error: Model is missing inputs ['a']. Note that there \
                    were extra inputs: ['x'].",
        "sqlstate": "KAM01",
        "error_class": "SCHEMA_ENFORCEMENT_FAILED",
    });
    let body = missing.strip_prefix("400 ").expect("status 400");
    assert_eq!(serde_json::from_str::<serde_json::Value>(body).expect("JSON"), want);
    let bad = [
        (r#"{"dataframe_records": [{"a": "x"}]}"#, "Failed to convert column a to type 'float64'"),
        (
            r#"{"dataframe_records": [{"a": 1, "b": null}]}"#,
            "Failed to convert column b to type 'int64'",
        ),
        (
            r#"{"instances": [[1, 2]]}"#,
            "missing inputs ['a']. Note that there were extra inputs: [0, 1].",
        ),
        (r#"{"instances": [{"a": 1, "b": 2}, {"a": 1}]}"#, "The length of values for each input"),
        (r#"{"inputs": {"a": [1, 2], "b": [1]}}"#, "All arrays must be of the same length"),
        (r#"{"inputs": [[1, 2], [3]]}"#, "inhomogeneous shape"),
        (r#"{"inputs": [["x", 1]]}"#, "could not convert string to float: 'x'"),
        (r#"{"inputs": [1], "instances": [1]}"#, "exactly one of the input fields"),
        (r#"{"data": [1]}"#, "Received dictionary with input fields: ['data']"),
        (r#"[1]"#, "Received a list."),
        (r#"{"#, "valid JSON formatted string"),
    ];
    for (body, want) in bad {
        let answer = json(TWO, body);
        assert!(answer.starts_with("400 ") && answer.contains(want), "{body}: {answer}");
    }
    let answer = outcome(TWO, BodyType::Csv, "a,b\n1,\n");
    assert!(answer.contains("Failed to parse input as a Pandas DataFrame"), "{answer}");
    let answer = json(UNNAMED, r#"{"dataframe_split": {"data": [[1]]}}"#);
    assert!(answer.contains("declares 2 inputs  but"), "{answer}");
    assert!(json(UNNAMED, r#"{"inputs": {"a": [1]}}"#).contains("un-named"));
}

#[test]
fn tensors_have_the_declared_shape() {
    assert_eq!(json(MATRIX, r#"{"inputs": [[1, 2], [3, 4]]}"#), "array [2, 2][1.0,2.0,3.0,4.0]");
    let split = r#"{"dataframe_split": {"columns": ["p", "q"], "data": [[1, 2]]}}"#;
    assert_eq!(json(MATRIX, split), "array [1, 2][1.0,2.0]");
    let lists = r#"{"dataframe_records": [{"p": [1, 2]}, {"p": [3, 4]}]}"#;
    assert_eq!(json(MATRIX, lists), "array [2, 2][1.0,2.0,3.0,4.0]");
    let named = r#"{"inputs": {"y": [5], "x": [[1, 2]]}}"#;
    assert_eq!(json(TENSORS, named), "named x=[1, 2][1.0,2.0] y=[1][5]");
    let rows = r#"{"instances": [{"x": [1, 2], "y": 5}]}"#;
    assert_eq!(json(TENSORS, rows), "named x=[1, 2][1.0,2.0] y=[1][5]");
    let bad = [
        (
            MATRIX,
            r#"{"inputs": [[1, 2, 3]]}"#,
            "Shape of input (1, 3) does not match expected shape (-1, 2).",
        ),
        (MATRIX, r#"{"inputs": [1]}"#, "Shape of input (1,) does not match"),
        (MATRIX, r#"{"inputs": [[1, 2], [3]]}"#, "inhomogeneous shape after 1 dimensions"),
        (MATRIX, r#"{"dataframe_split": {"data": [[1, 2, 3]]}}"#, "had 3 columns"),
        (MATRIX, r#"{"dataframe_split": {"data": []}}"#, "Input DataFrame is empty."),
        (MATRIX, r#"{"dataframe_split": {"columns": ["p", "q"], "data": []}}"#, "no rows"),
        (
            MATRIX,
            r#"{"instances": [{"p": 1, "q": 2}]}"#,
            "an input of type <class 'dict'> was found",
        ),
        (MATRIX, r#"{"inputs": [{"p": 1, "q": 2}]}"#, "an input of type <class 'list'> was found"),
        (MATRIX, r#"{"dataframe_records": [{"p": 1, "q": "x"}]}"#, "Failed to convert column q"),
        (MATRIX, r#"{"dataframe_records": [{"p": 1, "q": [2]}]}"#, "dtype of input object"),
        (MATRIX, r#"{"dataframe_records": [{"p": 1}]}"#, "contains scalar values"),
        (
            MATRIX,
            r#"{"dataframe_records": [{"p": [1]}]}"#,
            "could not be converted to the expected shape",
        ),
        (TENSORS, r#"{"inputs": {"x": [[1, 2]]}}"#, "Model is missing inputs ['y']."),
        (TENSORS, r#"{"inputs": [[1, 2]]}"#, "Model is missing inputs ['x', 'y']."),
    ];
    for (inputs, body, want) in bad {
        let answer = json(inputs, body);
        assert!(answer.starts_with("400 ") && answer.contains(want), "{body}: {answer}");
    }
}

#[test]
fn without_a_signature_data_passes_as_it_is() {
    let split = r#"{"dataframe_split": {"columns": ["b", "a"], "data": [[1, 2.5]]}}"#;
    assert_eq!(json("", split), "table 'b'=[1] 'a'=[2.5]");
    assert_eq!(json("", r#"{"instances": [[1, 2]]}"#), "array [1, 2][1,2]");
    assert_eq!(json("", r#"{"inputs": {"a": [1]}}"#), "named a=[1][1]");
}

#[test]
fn numbers_are_converted_within_the_range_of_their_type() {
    let of = |kind: &str, value: &str| {
        let inputs = format!(r#"[{{"type": "{kind}", "name": "a"}}]"#);
        json(&inputs, &format!(r#"{{"dataframe_records": [{{"a": {value}}}]}}"#))
    };
    assert_eq!(of("integer", "-2147483648"), "table 'a'=[-2147483648]");
    assert!(of("integer", "2147483648").contains("out of bounds for int32"));
    assert_eq!(of("float", "0.1"), "table 'a'=[0.10000000149011612]");
    assert_eq!(of("boolean", "1"), "table 'a'=[true]");
    assert_eq!(of("binary", "\"aGk=\""), "table 'a'=[\"hi\"]");
    assert_eq!(of("string", "1"), "table 'a'=[1]");
    assert!(of("long", "1e300").contains("Cannot convert non-finite values"));
    assert!(of("double", "[1]").contains("setting an array element with a sequence"));
}

#[test]
fn parameters_have_the_declared_types() {
    let declared = model("[]", r#"[{"name": "k", "type": "long", "default": 3}]"#);
    let check = |params: &str, flavor| {
        let given = Node::read(params.as_bytes()).expect("JSON");
        let checked = params::check(Some(&given), declared.signature.params.as_deref(), flavor);
        checked.map_err(|error| fault::reply(error).status)
    };
    use tensorserve_mlflow::Flavor::{Sklearn, Xgboost};
    assert_eq!(check(r#"{"k": 4, "other": []}"#, Sklearn), Ok(()));
    assert_eq!(check("null", Sklearn), Ok(()));
    assert_eq!(check(r#"{"k": "x"}"#, Sklearn), Err(400));
    assert_eq!(check("[]", Sklearn), Err(400));
    assert_eq!(check(r#"{"k": 3}"#, Xgboost), Ok(()));
    assert_eq!(check(r#"{"k": 4}"#, Xgboost), Err(501));
}

#[test]
fn content_types_are_checked() {
    assert_eq!(body_type("application/json"), Ok(BodyType::Json));
    assert_eq!(body_type("text/csv; charset=UTF-8"), Ok(BodyType::Csv));
    assert!(body_type("text/csv; charset=latin-1").is_err());
    assert!(
        body_type("application/json; format=pandas-split").is_err_and(|e| e.contains("format"))
    );
    assert!(body_type("").is_err_and(|error| error.contains("Got ''")));
}

/// The statuses of a request with every size of the memory for requests, from too little for it to enough.
fn statuses(format: BodyType, body: &str) -> BTreeSet<u16> {
    let inputs = r#"[{"type": "double", "name": "a"}, {"type": "string", "name": "b"}]"#;
    let model = model(inputs, "[]");
    let column = |name, dtype| TensorSpec::new(name, dtype, &[-1]);
    let columns = vec![column("a", DType::Double), column("b", DType::String)];
    let declared = Signature::only(columns, Vec::new());
    let answer = || {
        let (payload, kind, _) = read(format, body.as_bytes(), &model)?;
        let data = enforce(payload, model.signature.inputs.as_ref(), kind)?;
        inputs::tensors(data, &declared, 1 << 20)
    };
    let sizes = (1..400).map(|step| step * (4 << 10));
    let budgets = sizes.filter_map(|size| MemoryBudget::new(size).request().ok());
    let answers = budgets.map(|budget| budget.enter(answer));
    answers.map(|answer| answer.map_or_else(|error| fault::reply(error).status, |_| 200)).collect()
}

#[test]
fn what_takes_too_much_memory_has_the_status_that_it_has_elsewhere() {
    let many = |part: &str| vec![part; 2000].join(", ");
    let records = many(r#"{"a": 1, "b": "\n"}"#);
    let rows = many(r#"[1, "\n"]"#);
    let (numbers, texts) = (many("1"), many(r#""x""#));
    let split = format!(r#"{{"columns": ["a", "b"], "data": [{rows}]}}"#);
    for (format, body) in [
        (BodyType::Json, format!(r#"{{"dataframe_records": [{records}]}}"#)),
        (BodyType::Json, format!(r#"{{"dataframe_split": {split}}}"#)),
        (BodyType::Json, format!(r#"{{"instances": [{records}]}}"#)),
        (BodyType::Json, format!(r#"{{"inputs": [{records}]}}"#)),
        (BodyType::Json, format!(r#"{{"inputs": {{"a": [{numbers}], "b": [{texts}]}}}}"#)),
        (BodyType::Json, format!(r#"{{"inputs": {{"a": [{numbers}], "b": "\n"}}}}"#)),
        (BodyType::Csv, format!("a,b\n{}", "1,x\n".repeat(2000))),
    ] {
        let found = statuses(format, &body);
        assert_eq!(found, BTreeSet::from([200, 413]), "{}", &body[..60]);
    }
}
