//! Parts of tensors, and values around them.

use crate::plain::{axis_of, deterministic, dimension, with_rows};
use crate::shapes::{set, without};
use crate::size::{Size, Symbols};
use crate::value::{Flow, Outcome, Stop, Value, mixed, unknown};

/// Each of the parts of `value` along `axis`.
///
/// # Errors
/// If that is the dimension of its rows.
pub fn unpack(value: &Value, axis: i64, count: usize) -> Result<Vec<Value>, Stop> {
    if let (Some(elements), Some(1)) = (&value.elements, value.rank()) {
        return Ok(elements.iter().map(|element| Value::scalar(element.clone())).collect());
    }
    let part = deterministic(&[value], || {
        let dims = value.known_dims()?;
        let at = dimension(axis, dims.len())?;
        without(dims, axis_of(value), &[at], "takes rows by their number in the batch")
    })?;
    Ok(vec![part; count])
}

/// [`split`] into parts of the sizes that `sizes` has, along the dimension that `axis` names.
///
/// # Errors
/// As [`split`]; for sizes or a dimension that depend on the request.
pub fn split_sizes(
    value: &Value,
    sizes: &Value,
    axis: &Value,
    symbols: &Symbols,
) -> Result<Vec<Value>, Stop> {
    let (sizes, axis) = (sizes.numbers("sizes of parts")?, axis.number("a dimension")?);
    split(value, axis, sizes.len(), Some(&sizes), symbols)
}

/// Parts of `value` along `axis`, of these sizes; `None` for equal parts.
///
/// # Errors
/// If that is the dimension of its rows.
pub fn split(
    value: &Value,
    axis: i64,
    count: usize,
    sizes: Option<&[i64]>,
    symbols: &Symbols,
) -> Result<Vec<Value>, Stop> {
    if let Some(parts) = split_elements(value, count, sizes) {
        return Ok(parts);
    }
    let part = |index: usize| {
        deterministic(&[value], || {
            let mut dims = value.known_dims()?.to_vec();
            let at = dimension(axis, dims.len())?;
            if axis_of(value) == Some(at) {
                return mixed("splits the rows by their number in the batch");
            }
            let whole = dims.get(at).cloned().unwrap_or(Size::Other);
            let given = sizes.and_then(|sizes| sizes.get(index)).filter(|size| **size >= 0);
            let count = Size::number(i64::try_from(count).unwrap_or(i64::MAX));
            let size = match (sizes, given) {
                (_, Some(size)) => Size::number(*size),
                (None, None) => whole.divided_by(&count).unwrap_or_else(|| symbols.fresh()),
                (Some(_), None) => symbols.fresh(),
            };
            set(&mut dims, at, size);
            Ok(with_rows(axis_of(value), dims))
        })
    };
    (0..count).map(part).collect()
}

/// Parts of a small vector.
fn split_elements(value: &Value, count: usize, sizes: Option<&[i64]>) -> Option<Vec<Value>> {
    let elements = value.elements.as_ref().filter(|_| value.rank() == Some(1))?;
    let equal = elements.len().checked_div(count)?;
    let mut rest = elements.as_slice();
    let mut parts = Vec::new();
    for index in 0..count {
        let size = match sizes {
            Some(sizes) => usize::try_from(*sizes.get(index)?).ok()?,
            None => equal,
        };
        let (part, behind) = rest.split_at_checked(size)?;
        parts.push(Value::vector(part.to_vec()));
        rest = behind;
    }
    Some(parts)
}

/// Which part of a dimension a slice takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceOf {
    /// All of it.
    All,
    /// A part of this size; `None` if it is not known.
    Part(Option<i64>),
    /// One element, without the dimension.
    Element,
    /// A new dimension of size 1.
    New,
}

/// A part of `value`: one of `parts` for each dimension, and for each new one.
///
/// # Errors
/// If it takes some of the rows.
pub fn slice(value: &Value, parts: &[SliceOf], symbols: &Symbols) -> Outcome {
    let ragged = matches!(value.flow, Flow::Ragged { .. } | Flow::RowNumbers { .. });
    let compute = || {
        let dims = value.known_dims()?;
        let axis = if ragged { Some(0) } else { axis_of(value) };
        let mut sizes = Vec::with_capacity(dims.len());
        let mut rows = None;
        let mut from = dims.iter().enumerate();
        for part in parts {
            if *part == SliceOf::New {
                sizes.push(Size::number(1));
                continue;
            }
            let Some((index, size)) = from.next() else {
                return unknown("takes more dimensions than its input declares");
            };
            if axis == Some(index) {
                if *part != SliceOf::All {
                    return mixed("takes rows by their number in the batch");
                }
                rows = Some(sizes.len());
            }
            match part {
                SliceOf::All => sizes.push(size.clone()),
                SliceOf::Part(known) => {
                    sizes.push(known.map_or_else(|| symbols.fresh(), Size::number));
                }
                SliceOf::Element | SliceOf::New => {}
            }
        }
        for (index, size) in from {
            if axis == Some(index) {
                rows = Some(sizes.len());
            }
            sizes.push(size.clone());
        }
        match ragged {
            true if rows == Some(0) => Ok(Value::new(value.flow.clone(), Some(sizes))),
            true => mixed("works across the elements of rows of various lengths"),
            false => Ok(with_rows(rows, sizes)),
        }
    };
    if ragged { compute() } else { deterministic(&[value], compute) }
}

/// Elements `begin..end` of a small vector in steps of `step`, or the one at `begin`.
#[must_use]
pub fn slice_elements(
    elements: &[Size],
    begin: Option<i64>,
    end: Option<i64>,
    step: i64,
    is_element: bool,
) -> Option<Value> {
    let length = i64::try_from(elements.len()).ok()?;
    let absolute = |index: i64| if index < 0 { index.saturating_add(length) } else { index };
    let get = |index: i64| elements.get(usize::try_from(index).ok()?).cloned();
    if is_element {
        return get(absolute(begin?)).map(Value::scalar);
    }
    let forward = step > 0;
    let first = begin.map_or(if forward { 0 } else { length - 1 }, absolute);
    let limit = end.map_or(if forward { length } else { -1 }, absolute);
    let (first, limit) = match forward {
        true => (first.clamp(0, length), limit.clamp(0, length)),
        false => (first.clamp(-1, length - 1), limit.clamp(-1, length - 1)),
    };
    let mut taken = Vec::new();
    let mut index = first;
    while (forward && index < limit) || (!forward && step != 0 && index > limit) {
        taken.push(get(index)?);
        index = index.checked_add(step)?;
    }
    Some(Value::vector(taken))
}

/// Values around `value`: `paddings` before and behind each dimension.
///
/// # Errors
/// If there are some around the rows.
pub fn pad(value: &Value, paddings: &Value, symbols: &Symbols) -> Outcome {
    deterministic(&[value, paddings], || {
        let dims = value.known_dims()?;
        let paddings = paddings.numbers("sizes of a padding")?;
        let mut sizes = Vec::with_capacity(dims.len());
        for (index, size) in dims.iter().enumerate() {
            let pair = paddings.get(2 * index..2 * index + 2);
            let Some([before, behind]) = pair else {
                return unknown("has a padding of another rank");
            };
            if axis_of(value) == Some(index) && (*before != 0 || *behind != 0) {
                return mixed("adds rows to the batch");
            }
            let more = Size::number(before.saturating_add(*behind));
            sizes.push(size.plus(&more, symbols));
        }
        Ok(with_rows(axis_of(value), sizes))
    })
}
