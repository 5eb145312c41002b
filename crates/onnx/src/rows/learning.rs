//! Operators of classical models (`ai.onnx.ml`): most take a matrix with a row for each row of the batch.

use tensorserve_rows::plain::{axis_of, deterministic, elementwise};
use tensorserve_rows::{Flow, Size, Stop, Value, mixed, product, unknown};

use super::call::{OnnxCall, one};

/// The rows of a matrix, which are the examples.
fn examples<'c>(call: &'c OnnxCall) -> Result<&'c Value, Stop> {
    let value = call.input(0)?;
    let is_matrix = value.rank() == Some(2) && matches!(value.flow, Flow::Rows { axis: 0 });
    match is_matrix || value.is_constant() {
        true => Ok(value),
        // A vector is one example.
        false => unknown("takes an input that is not a matrix with a row for each example"),
    }
}

/// A result with one row of `dims` for each example.
fn for_each(examples: &Value, dims: &[Size]) -> Value {
    let rows = examples.dims.as_ref().and_then(|its| its.first()).cloned();
    let sizes = rows.map(|rows| [&[rows], dims].concat());
    Value::new(examples.flow.clone(), sizes)
}

/// A result with as many columns as the input.
pub(super) fn columns(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = examples(call)?;
    one(elementwise(&[value], call.symbols))
}

/// The number of classes or targets that an attribute says or lists.
fn count(call: &OnnxCall) -> Size {
    let lists =
        ["classlabels_ints", "classlabels_int64s", "classlabels_strings", "classlabels_int64"];
    let listed = lists.iter().filter_map(|name| call.attribute(name));
    let listed = listed.map(|list| list.ints.len().max(list.strings.len())).max();
    match listed.and_then(|count| i64::try_from(count).ok()) {
        Some(count @ 1..) => Size::number(count),
        _ => call.symbols.fresh(),
    }
}

/// A class for each row, and the scores of all classes.
pub(super) fn classify(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = examples(call)?;
    Ok(vec![for_each(value, &[]), for_each(value, &[count(call)])])
}

/// Numbers for each row.
pub(super) fn regress(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = examples(call)?;
    let targets = match (call.attribute("n_targets"), call.attribute("targets")) {
        (Some(targets), _) => targets.i.map(Size::number),
        (None, Some(targets)) => targets.i.map(Size::number),
        (None, None) => None,
    };
    one(Ok(for_each(value, &[targets.unwrap_or_else(|| call.symbols.fresh())])))
}

/// `SVMRegressor`: one number for each row.
pub(super) fn regress_one(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(Ok(for_each(examples(call)?, &[Size::number(1)])))
}

/// `LinearRegressor`: one number for each target, of which one is the default.
pub(super) fn regress_linear(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(Ok(for_each(examples(call)?, &[Size::number(call.int("targets", 1))])))
}

/// `OneHotEncoder`: a vector for each element.
pub(super) fn encode(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    one(deterministic(&[value], || {
        let mut dims = value.known_dims()?.to_vec();
        let lists = ["cats_int64s", "cats_strings"].iter().filter_map(|name| call.attribute(name));
        let count = lists.map(|list| list.ints.len().max(list.strings.len())).max();
        let count = count.and_then(|count| i64::try_from(count).ok());
        dims.push(count.map_or_else(|| call.symbols.fresh(), Size::number));
        Ok(Value::new(value.flow.clone(), Some(dims)))
    }))
}

/// `FeatureVectorizer`: columns beside each other.
pub(super) fn join(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let all = call.from(0);
    if all.iter().any(|value| value.rank() != Some(2)) {
        return unknown("takes inputs that are not all matrices");
    }
    one(tensorserve_rows::shapes::concat(&all, 1, call.symbols))
}

/// `ArrayFeatureExtractor`: the elements of the last dimension at places, which are a list.
pub(super) fn extract(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (value, places) = (call.input(0)?, call.input(1)?);
    one(deterministic(&[value, places], || {
        let mut dims = value.known_dims()?.to_vec();
        if dims.len() == 1 {
            dims.insert(0, Size::number(1));
        }
        let listed = places.known_dims()?;
        let last = dims.len().saturating_sub(1);
        if let Some(size) = dims.get_mut(last) {
            *size = product(listed);
        }
        match (axis_of(value), axis_of(places)) {
            (None, None) => Ok(Value::new(Flow::Constant, Some(dims))),
            (Some(rows), None) if value.rank() != Some(1) && rows != last => {
                Ok(Value::rows(rows, dims))
            }
            (None, Some(axis)) if listed.iter().take(axis).all(|size| size.is(1)) => {
                Ok(Value::rows(last, dims))
            }
            _ => mixed("takes rows of the batch by an index"),
        }
    }))
}

/// `TfIdfVectorizer`: counts for each row.
pub(super) fn count_words(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(Ok(for_each(examples(call)?, &[call.symbols.fresh()])))
}
