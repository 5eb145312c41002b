//! The parameters of a request, which a signature may declare.

use tensorserve_mlflow::Flavor;
use tensorserve_mlflow::schema::{ColumnType, Param};

use super::node::Node;
use tensorserve_tensor::error::{Code, Error, Result};

/// Checks the parameters of a request. Those that are not declared are ignored, as in MLflow, and so
/// are all for flavors whose models take none.
///
/// # Errors
/// A parameter of the wrong type; [`Code::Unimplemented`] for one that would change the predictions.
pub(super) fn check(
    given: Option<&Node<'_>>,
    declared: Option<&[Param]>,
    flavor: Flavor,
) -> Result<()> {
    let (Some(declared), Some(given)) = (declared, given) else {
        return Ok(());
    };
    if *given == Node::Null {
        return Ok(());
    }
    let Node::Object(members) = given else {
        let kind = given.type_name();
        let message = format!("Parameters must be a dictionary. Got type '{kind}'.");
        return Err(super::fault::parameter(message));
    };
    for (name, value) in members {
        let Some(param) = declared.iter().find(|param| param.name == *name) else {
            continue;
        };
        if !is_of_type(value, &param.dtype) {
            let kind = value.type_name();
            return Err(super::fault::parameter(format!(
                "Invalid parameters found: {{('{name}', \"a value of type {kind} is not a {:?}\")}}",
                param.dtype
            )));
        }
        if flavor == Flavor::Xgboost && !is_default(value, &param.default) {
            let message = format!(
                "the parameter {name:?} of XGBoost's predict is not available; leave it out for the \
                 value {}",
                param.default
            );
            return Err(Error::new(Code::Unimplemented, message));
        }
    }
    Ok(())
}

fn is_of_type(value: &Node<'_>, dtype: &ColumnType) -> bool {
    match (dtype, value) {
        (_, Node::Null) | (ColumnType::Other(_), _) => true,
        (ColumnType::Array(inner), Node::List(list)) => list.iter().all(|v| is_of_type(v, inner)),
        (ColumnType::Boolean, Node::Bool(_)) => true,
        (ColumnType::Integer | ColumnType::Long, Node::Int(_)) => true,
        (ColumnType::Float | ColumnType::Double, Node::Int(_) | Node::Float(_)) => true,
        (ColumnType::String | ColumnType::Binary | ColumnType::Datetime, Node::Text(_)) => true,
        _ => false,
    }
}

fn is_default(value: &Node<'_>, default: &serde_json::Value) -> bool {
    match value {
        Node::Null => default.is_null(),
        Node::Bool(bool) => default.as_bool() == Some(*bool),
        Node::Int(number) => default.as_i64() == Some(*number),
        Node::Float(number) => default.as_f64() == Some(*number),
        Node::Text(text) => default.as_str().map(str::as_bytes) == Some(text),
        Node::List(_) | Node::Object(_) => false,
    }
}
