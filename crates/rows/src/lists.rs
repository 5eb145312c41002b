//! Lists of tensors, which loops read from and write to.

use std::rc::Rc;

use crate::compute::item_of;
use crate::plain::{axis_of, dimension};
use crate::size::{Size, Symbols};
use crate::value::{Flow, Outcome, Stop, TensorList, Value, mixed, unknown};

fn list(length: Size, element: Option<Value>) -> Value {
    Value::new(Flow::List(Rc::new(TensorList { length, element })), None)
}

/// The list of `value`.
///
/// # Errors
/// If it is none.
pub fn as_list(value: &Value) -> Result<&TensorList, Stop> {
    match &value.flow {
        Flow::List(list) => Ok(list),
        _ => unknown("takes a list of tensors that is not known"),
    }
}

/// A list of `length` tensors that are not set yet.
///
/// # Errors
/// If its length is neither fixed nor the number of rows.
pub fn reserve(length: &Value) -> Outcome {
    match length.elements.as_deref() {
        Some([size]) if size.is_fixed() || *size == Size::rows() => Ok(list(size.clone(), None)),
        _ if length.is_constant() => Ok(list(Size::Other, None)),
        _ => unknown("makes a list of unknown length"),
    }
}

/// The parts of `value` along dimension 0.
///
/// # Errors
/// If they are parts of rows.
pub fn from_tensor(value: &Value) -> Outcome {
    let dims = value.known_dims()?;
    let Some((first, rest)) = dims.split_first() else {
        return unknown("makes a list of a scalar");
    };
    let element = match (&value.flow, axis_of(value)) {
        (_, Some(0)) => item_of(value)?,
        (_, Some(axis)) => Value::rows(dimension_before(axis)?, rest.to_vec()),
        (Flow::Constant | Flow::Item | Flow::RowCount, None) => {
            Value::new(value.flow.clone(), Some(rest.to_vec()))
        }
        _ => return mixed("makes a list of tensors that depend on the number of rows"),
    };
    Ok(list(first.clone(), Some(element)))
}

fn dimension_before(axis: usize) -> Result<usize, Stop> {
    dimension(i64::try_from(axis).unwrap_or(i64::MAX).saturating_sub(1), axis)
}

/// Whether a list has one element for each row.
fn is_of_rows(list: &TensorList) -> bool {
    list.length == Size::rows()
}

/// Element `index`.
///
/// # Errors
/// If rows are picked by their number in the batch.
pub fn get(value: &Value, index: &Value) -> Outcome {
    let its = as_list(value)?;
    check_index(its, index)?;
    match &its.element {
        Some(element) => Ok(element.clone()),
        None => Ok(Value::constant()),
    }
}

/// The list with `element` in the place `index`.
///
/// # Errors
/// If rows are set by their number in the batch, or the elements of the list have nothing in common.
pub fn set(value: &Value, index: &Value, element: &Value, symbols: &Symbols) -> Outcome {
    let its = as_list(value)?;
    check_index(its, index)?;
    let allowed = match element.flow {
        Flow::Constant => true,
        Flow::Item => is_of_rows(its) || !matches!(index.flow, Flow::Counter { .. }),
        Flow::Rows { .. } => !is_of_rows(its),
        _ => false,
    };
    if !allowed {
        return mixed("puts values that depend on the batch into a list");
    }
    let element = match (&its.element, is_of_rows(its)) {
        (None, true) => Value::new(Flow::Item, element.dims.clone()),
        (None, false) => element.clone(),
        (Some(known), _) => match known.joined(element, symbols) {
            Some(joined) => joined,
            None => return unknown("puts tensors of different kinds into a list"),
        },
    };
    Ok(list(its.length.clone(), Some(element)))
}

fn check_index(its: &TensorList, index: &Value) -> Result<(), Stop> {
    let is_own = matches!(index.flow, Flow::Counter { offset: 0 });
    match (is_of_rows(its), &index.flow) {
        (true, _) if is_own => Ok(()),
        (true, _) => mixed("takes rows by their number in the batch"),
        (false, Flow::Constant | Flow::Item) => Ok(()),
        // In a loop that runs equally often for every batch.
        (false, Flow::Counter { .. }) => mixed("takes a part of a row by the number of a row"),
        (false, _) => mixed("takes a part of a row by a number that depends on the batch"),
    }
}

/// The elements behind each other, along a new dimension 0. Each has the shape `shape`, as far as that is known.
///
/// # Errors
/// If nothing is known of them.
pub fn stack(value: &Value, shape: &Value, symbols: &Symbols) -> Outcome {
    let its = as_list(value)?;
    let Some(element) = &its.element else {
        return Ok(Value::constant());
    };
    if its.length == Size::Other {
        return unknown("stacks a list of unknown length");
    }
    // A run fails if the elements have different shapes.
    let declared = || -> Option<Vec<Size>> {
        let elements = shape.elements.as_ref().filter(|_| shape.rank() == Some(1))?;
        let size = |size: &Size| if size.is(-1) { symbols.fresh() } else { size.clone() };
        Some(elements.iter().map(size).collect())
    };
    let Some(rest) = element.dims.clone().or_else(declared) else {
        return unknown("stacks tensors whose rank is not known");
    };
    let mut dims = vec![its.length.clone()];
    dims.extend(rest);
    match &element.flow {
        Flow::Item if is_of_rows(its) => Ok(Value::rows(0, dims)),
        Flow::Rows { axis } if !is_of_rows(its) => Ok(Value::rows(axis + 1, dims)),
        Flow::Constant | Flow::Item if !is_of_rows(its) => {
            Ok(Value::new(element.flow.clone(), Some(dims)))
        }
        _ => unknown("stacks tensors of which nothing is known"),
    }
}

/// The number of elements.
///
/// # Errors
/// If it is no list.
pub fn length(value: &Value) -> Outcome {
    Ok(Value::scalar(as_list(value)?.length.clone()))
}
