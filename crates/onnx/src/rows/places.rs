//! Operators that take elements from places, and put them there.

use tensorserve_rows::plain::{axis_of, deterministic, dimension, with_rows};
use tensorserve_rows::{Flow, Outcome, Size, Stop, Value, compute, mixed, unknown};

use super::call::{OnnxCall, one};

const BY_INDEX: &str = "takes rows of the batch by an index";
const INTO: &str = "puts elements into rows of the batch by an index";

/// `Gather`; indices may count from the end.
pub(super) fn gather(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (params, indices) = (call.input(0)?, call.input(1)?);
    let axis = call.int("axis", 0);
    let indices = match (&params.elements, indices.numbers("indices")) {
        (Some(elements), Ok(numbers)) if numbers.iter().any(|number| *number < 0) => {
            let length = i64::try_from(elements.len()).unwrap_or(i64::MAX);
            let from_start = |number: &i64| Size::number(number.rem_euclid(length.max(1)));
            let elements = numbers.iter().map(from_start).collect();
            Value { elements: Some(elements), ..indices.clone() }
        }
        _ => indices.clone(),
    };
    one(compute::gather(params, &indices, axis, 0))
}

pub(super) fn gather_nd(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let Ok(batch) = usize::try_from(call.int("batch_dims", 0)) else {
        return unknown("has a negative number of dimensions");
    };
    one(compute::gather_nd(call.input(0)?, call.input(1)?, batch))
}

/// `GatherElements`: each element of the result comes from the same place but along an axis.
pub(super) fn gather_elements(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (data, indices) = (call.input(0)?, call.input(1)?);
    one(same_places(&[data, indices], call.int("axis", 0), BY_INDEX, indices))
}

/// `ScatterElements`: the same in the other direction.
pub(super) fn scatter_elements(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (data, indices, updates) = (call.input(0)?, call.input(1)?, call.input(2)?);
    one(same_places(&[data, indices, updates], call.int("axis", 0), INTO, data))
}

/// Values with the same rows along the same dimension, which is not `axis`; the result has the shape of `like`.
fn same_places(values: &[&Value], axis: i64, does: &str, like: &Value) -> Outcome {
    deterministic(values, || {
        let dims = like.known_dims()?;
        let axis = dimension(axis, dims.len())?;
        let rows = axis_of(like).filter(|rows| *rows != axis);
        let size = rows.and_then(|rows| dims.get(rows));
        for value in values {
            let its = axis_of(value).and_then(|rows| value.dims.as_ref()?.get(rows));
            if axis_of(value) != rows || rows.is_none() || its != size {
                return mixed(does);
            }
        }
        Ok(with_rows(rows, dims.to_vec()))
    })
}

/// `ScatterND`: whole slices are put where constant indices say, which do not name a row.
pub(super) fn scatter_nd(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (data, indices, updates) = (call.input(0)?, call.input(1)?, call.input(2)?);
    one(deterministic(&[data, indices, updates], || {
        let (dims, at) = (data.known_dims()?, indices.known_dims()?);
        let Some((depth, outer)) = at.split_last() else {
            return unknown("has a scalar as index");
        };
        let depth = depth.as_number().and_then(|depth| usize::try_from(depth).ok());
        let Some(depth) = depth else {
            return unknown("has an index of unknown length");
        };
        let Some(rows) = axis_of(data).filter(|rows| indices.is_constant() && *rows >= depth)
        else {
            return mixed(INTO);
        };
        let its = axis_of(updates).filter(|its| *its == rows - depth + outer.len());
        let size = its.and_then(|its| updates.dims.as_ref()?.get(its));
        if size.is_none() || size != dims.get(rows) {
            return mixed(INTO);
        }
        Ok(with_rows(Some(rows), dims.to_vec()))
    }))
}

pub(super) fn one_hot(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let values = call.input(2)?;
    let axis = call.int("axis", -1);
    one(compute::one_hot(call.input(0)?, call.input(1)?, &[values], axis, call.symbols))
}

/// `TopK`: the greatest elements along a dimension, and where they were along it.
pub(super) fn top_k(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    call.constants_from(1)?;
    let count = match call.optional(1) {
        Some(count) => count.number("a number of elements").ok(),
        None => Some(call.int("k", 0)),
    };
    let result = deterministic(&[value], || {
        let dims = value.known_dims()?;
        let axis = dimension(call.int("axis", -1), dims.len())?;
        if axis_of(value) == Some(axis) {
            return mixed("compares the rows of the batch");
        }
        let mut dims = dims.to_vec();
        if let Some(size) = dims.get_mut(axis) {
            *size = count.map_or_else(|| call.symbols.fresh(), Size::number);
        }
        Ok(with_rows(axis_of(value), dims))
    })?;
    Ok(vec![result.clone(), result])
}

/// `Compress`: the elements along a dimension at which a constant says so.
pub(super) fn compress(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (value, condition) = (call.input(0)?, call.input(1)?);
    one(deterministic(&[value, condition], || {
        let mut dims = value.known_dims()?.to_vec();
        let Some(axis) = call.attribute("axis") else {
            return mixed("leaves out elements of all rows");
        };
        let axis = dimension(axis.i.unwrap_or(0), dims.len())?;
        if axis_of(value) == Some(axis) || !condition.is_constant() {
            return mixed("leaves out rows by a condition on the batch");
        }
        if let Some(size) = dims.get_mut(axis) {
            *size = call.symbols.fresh();
        }
        Ok(with_rows(axis_of(value), dims))
    }))
}

/// `ReverseSequence`: the first elements along one dimension, as many as another input says for each row.
pub(super) fn reverse_sequence(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (value, lengths) = (call.input(0)?, call.input(1)?);
    one(deterministic(&[value, lengths], || {
        let dims = value.known_dims()?;
        let rank = dims.len();
        let (batch, time) = (
            dimension(call.int("batch_axis", 1), rank)?,
            dimension(call.int("time_axis", 0), rank)?,
        );
        let rows = axis_of(value);
        if rows == Some(time) {
            return mixed("reverses the rows of the batch");
        }
        let fits = match (rows == Some(batch), &lengths.flow) {
            (true, Flow::Rows { axis: 0 }) => {
                lengths.dims.as_ref().and_then(|its| its.first()) == dims.get(batch)
            }
            (false, Flow::Constant) => rows.is_some(),
            _ => false,
        };
        match fits {
            true => Ok(with_rows(rows, dims.to_vec())),
            false => mixed("combines rows with lengths of other rows"),
        }
    }))
}
