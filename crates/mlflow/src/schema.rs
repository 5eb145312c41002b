//! The signature of a model: the columns or tensors that it takes, and its parameters.
//!
//! Source: `mlflow/types/schema.py` and `mlflow/models/signature.py`.

use serde_json::Value;

/// The inputs that a signature declares.
#[derive(Clone, Debug, PartialEq)]
pub enum InputSchema {
    /// Columns of a table; at least one. Either all have names, or none.
    Columns(Vec<ColumnSpec>),
    /// Tensors; at least one. If there are several, all have names.
    Tensors(Vec<TensorInput>),
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSpec {
    /// Its name; `None` in a schema without names.
    pub name: Option<String>,
    /// The type of its values.
    pub dtype: ColumnType,
    /// Whether a request may leave it out.
    pub is_optional: bool,
}

/// The type of a column's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// True or false.
    Boolean,
    /// 32-bit integers.
    Integer,
    /// 64-bit integers.
    Long,
    /// 32-bit floats.
    Float,
    /// 64-bit floats.
    Double,
    /// Text.
    String,
    /// Bytes; base64 in JSON.
    Binary,
    /// Date and time.
    Datetime,
    /// A list of values of this type.
    Array(Box<ColumnType>),
    /// Spark's vectors of numbers.
    SparkVector,
    /// Another type, by its name: `object`, `map`, `any`.
    Other(String),
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInput {
    /// Its name; `None` for an only tensor without one.
    pub name: Option<String>,
    /// NumPy's name of its type: `float32`, …
    pub dtype: String,
    /// The size of each dimension; -1 if it is open.
    pub shape: Vec<i64>,
}

/// A parameter of predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// The type of its values.
    pub dtype: ColumnType,
    /// Its value unless a request has another one.
    pub default: Value,
}

/// The declarations of a model's `signature`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSignature {
    /// The inputs; `None` if they are not declared.
    pub inputs: Option<InputSchema>,
    /// The parameters; `None` if they are not declared.
    pub params: Option<Vec<Param>>,
}

impl InputSchema {
    /// The columns, if it has columns.
    #[must_use]
    pub fn columns(&self) -> Option<&[ColumnSpec]> {
        match self {
            InputSchema::Columns(columns) => Some(columns),
            InputSchema::Tensors(_) => None,
        }
    }
}

impl ColumnType {
    fn of(text: &str) -> Self {
        match text {
            "boolean" => ColumnType::Boolean,
            "integer" => ColumnType::Integer,
            "long" => ColumnType::Long,
            "float" => ColumnType::Float,
            "double" => ColumnType::Double,
            "string" => ColumnType::String,
            "binary" => ColumnType::Binary,
            "datetime" => ColumnType::Datetime,
            "sparkml_vector" => ColumnType::SparkVector,
            other => ColumnType::Other(other.to_owned()),
        }
    }

    fn read(spec: &Value) -> Result<Self, String> {
        let text = member(spec, "type")?;
        if text != "array" {
            return Ok(ColumnType::of(text));
        }
        let items = spec.get("items").ok_or("a column of type array has no items")?;
        Ok(ColumnType::Array(Box::new(ColumnType::read(items)?)))
    }
}

impl ModelSignature {
    /// Reads the member `signature` of a model file: an object whose members are JSON texts.
    ///
    /// # Errors
    /// The member that is not valid, and why.
    pub(crate) fn read(signature: &Value) -> Result<Self, String> {
        if signature.is_null() {
            return Ok(ModelSignature::default());
        }
        let inputs = read_member(signature, "inputs", read_inputs)?.flatten();
        let params = read_member(signature, "params", read_params)?;
        Ok(ModelSignature { inputs, params })
    }
}

/// Reads the JSON text of a member; `None` if the signature does not have it.
fn read_member<T>(
    signature: &Value,
    name: &str,
    read: fn(&[Value]) -> Result<T, String>,
) -> Result<Option<T>, String> {
    let text = match signature.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text,
        Some(_) => return Err(format!("signature.{name} is not a text")),
    };
    let list: Vec<Value> = serde_json::from_str(text)
        .map_err(|error| format!("signature.{name} is not a JSON list: {error}"))?;
    read(&list).map(Some).map_err(|reason| format!("signature.{name}: {reason}"))
}

fn read_inputs(list: &[Value]) -> Result<Option<InputSchema>, String> {
    let Some(first) = list.first() else {
        return Ok(None);
    };
    let all_named = list.iter().all(|spec| name_of(spec).is_some());
    if !all_named && list.iter().any(|spec| name_of(spec).is_some()) {
        return Err("some inputs have names and others do not".to_owned());
    }
    if first.get("type").is_some_and(|kind| kind == "tensor") {
        if !all_named && list.len() > 1 {
            return Err("several tensors must have names".to_owned());
        }
        let tensors: Result<_, String> = list.iter().map(read_tensor).collect();
        return Ok(Some(InputSchema::Tensors(tensors?)));
    }
    let columns: Result<_, String> = list.iter().map(read_column).collect();
    Ok(Some(InputSchema::Columns(columns?)))
}

fn read_column(spec: &Value) -> Result<ColumnSpec, String> {
    // Before MLflow 2.10 optional columns had another member.
    let is_required = spec.get("required").and_then(Value::as_bool).unwrap_or(true);
    let is_optional = spec.get("optional").and_then(Value::as_bool).unwrap_or(false);
    let (name, dtype) = (name_of(spec).map(str::to_owned), ColumnType::read(spec)?);
    Ok(ColumnSpec { name, dtype, is_optional: is_optional || !is_required })
}

fn read_tensor(spec: &Value) -> Result<TensorInput, String> {
    let inner = spec.get("tensor-spec").ok_or("an input is not a tensor, unlike the first one")?;
    let shape = inner.get("shape").and_then(Value::as_array).ok_or("a tensor has no shape")?;
    let shape: Option<Vec<i64>> = shape.iter().map(Value::as_i64).collect();
    let shape = shape.ok_or("a tensor's shape has a size that is not an integer")?;
    let dtype = member(inner, "dtype")?.to_owned();
    Ok(TensorInput { name: name_of(spec).map(str::to_owned), dtype, shape })
}

fn read_params(list: &[Value]) -> Result<Vec<Param>, String> {
    list.iter().map(read_param).collect()
}

fn read_param(spec: &Value) -> Result<Param, String> {
    let name = member(spec, "name")?.to_owned();
    let dtype = ColumnType::read(spec)?;
    Ok(Param { name, dtype, default: spec.get("default").cloned().unwrap_or_default() })
}

fn name_of(spec: &Value) -> Option<&str> {
    spec.get("name").and_then(Value::as_str)
}

fn member<'v>(spec: &'v Value, name: &str) -> Result<&'v str, String> {
    let text = spec.get(name).and_then(Value::as_str);
    text.ok_or_else(|| format!("an entry has no text {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(inputs: &str) -> Result<Option<InputSchema>, String> {
        ModelSignature::read(&json!({ "inputs": inputs })).map(|signature| signature.inputs)
    }

    #[test]
    fn columns_and_tensors_are_read() {
        let text = r#"[{"type": "double", "name": "x", "required": true},
                       {"type": "array", "items": {"type": "long"}, "name": "y", "required": false}]"#;
        let column = |name: &str, dtype, is_optional| ColumnSpec {
            name: Some(name.to_owned()),
            dtype,
            is_optional,
        };
        let array = ColumnType::Array(Box::new(ColumnType::Long));
        let want = vec![column("x", ColumnType::Double, false), column("y", array, true)];
        assert_eq!(read(text), Ok(Some(InputSchema::Columns(want))));

        let text = r#"[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}]"#;
        let want = TensorInput { name: None, dtype: "float32".to_owned(), shape: vec![-1, 4] };
        assert_eq!(read(text), Ok(Some(InputSchema::Tensors(vec![want]))));
        assert_eq!(read("[]"), Ok(None));
        assert_eq!(ModelSignature::read(&Value::Null), Ok(ModelSignature::default()));
    }

    #[test]
    fn parameters_have_defaults() {
        let params = r#"[{"name": "k", "default": 3, "shape": null, "type": "long"}]"#;
        let signature = ModelSignature::read(&json!({ "params": params })).expect("valid");
        let want = Param { name: "k".to_owned(), dtype: ColumnType::Long, default: json!(3) };
        assert_eq!(signature.params, Some(vec![want]));
    }

    #[test]
    fn damaged_signatures_are_named() {
        let bad = [
            ("{}", "signature.inputs is not a JSON list"),
            ("[{\"name\": \"x\"}]", "signature.inputs: an entry has no text \"type\""),
            (
                "[{\"type\": \"long\", \"name\": \"x\"}, {\"type\": \"long\"}]",
                "some inputs have names",
            ),
            ("[{\"type\": \"tensor\"}]", "not a tensor"),
            ("[{\"type\": \"array\", \"name\": \"x\"}]", "has no items"),
        ];
        for (text, want) in bad {
            let error = read(text).expect_err(text);
            assert!(error.contains(want), "{text}: {error}");
        }
        assert!(ModelSignature::read(&json!({ "inputs": [] })).is_err());
    }
}
