//! Operators that change shapes, and that work along dimensions.

use tensorserve_rows::plain::{axis_of, deterministic, dimension, elementwise, with_rows};
use tensorserve_rows::slices::{self, SliceOf};
use tensorserve_rows::{Outcome, Size, Stop, Value, compute, mixed, product, shapes, unknown};

use super::call::{OnnxCall, one};

const NORMALIZES: &str = "normalizes over the rows of the batch";

/// From this end on, a slice takes all of a dimension.
const TO_THE_END: i64 = i32::MAX as i64;

pub(super) fn shape(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let shape = shapes::shape_of(call.input(0)?)?;
    let (start, end) = (call.int("start", 0), call.attribute("end").and_then(|end| end.i));
    if start == 0 && end.is_none() {
        return one(Ok(shape));
    }
    let elements = shape.known_elements("sizes of a shape")?;
    let part = slices::slice_elements(elements, Some(start), end, 1, false);
    one(part.map_or_else(|| unknown("takes a part of a shape"), Ok))
}

pub(super) fn size(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(shapes::size_of(call.input(0)?))
}

pub(super) fn reshape(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let shape = match call.optional(1) {
        Some(shape) => shape.clone(),
        None => {
            let sizes = call.ints("shape").unwrap_or_default();
            Value::vector(sizes.iter().map(|size| Size::number(*size)).collect())
        }
    };
    let Some(elements) = shape.elements.as_ref().filter(|_| !call.flag("allowzero")) else {
        return one(shapes::reshape(value, &shape, call.symbols));
    };
    // 0 stands for the size of the same dimension.
    let mut sizes = elements.clone();
    for (index, size) in sizes.iter_mut().enumerate().filter(|(_, size)| size.is(0)) {
        match value.dims.as_ref().map(|dims| dims.get(index)) {
            Some(Some(its)) => *size = its.clone(),
            Some(None) => return unknown("keeps a dimension that its input does not declare"),
            None => return one(deterministic(&[value, &shape], rank_unknown)),
        }
    }
    one(shapes::reshape(value, &Value::vector(sizes), call.symbols))
}

fn rank_unknown<T>() -> Result<T, Stop> {
    unknown("takes a tensor whose rank is not known")
}

/// `Flatten`: a matrix, of the dimensions before an axis and of those behind it.
pub(super) fn flatten(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    one(deterministic(&[value], || {
        let dims = value.known_dims()?;
        let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        let axis = match call.int("axis", 1) {
            axis if axis == rank => dims.len(),
            axis => dimension(axis, dims.len())?,
        };
        let (before, behind) = dims.split_at_checked(axis).unwrap_or((dims, &[]));
        let sizes = vec![product(before), product(behind)];
        shapes::reshape(value, &Value::vector(sizes), call.symbols)
    }))
}

pub(super) fn transpose(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let perm = match (call.ints("perm"), value.rank()) {
        (Some(perm), _) => perm.to_vec(),
        (None, Some(rank)) => (0..i64::try_from(rank).unwrap_or(0)).rev().collect(),
        (None, None) => return one(deterministic(&[value], rank_unknown)),
    };
    let perm = Value::vector(perm.into_iter().map(Size::number).collect());
    one(shapes::transpose(value, &perm))
}

pub(super) fn squeeze(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let axes = match call.numbers("axes", 1) {
        Ok(axes) => axes.unwrap_or_default(),
        Err(stop) => return one(deterministic(&call.from(0), || Err(stop))),
    };
    one(shapes::squeeze(call.input(0)?, &axes))
}

pub(super) fn unsqueeze(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let axes = match call.numbers("axes", 1) {
        Ok(Some(axes)) if axes.len() <= 8 => axes,
        Ok(_) => return unknown("has no dimensions, or more than are looked at"),
        Err(stop) => return one(deterministic(&call.from(0), || Err(stop))),
    };
    let Some(rank) = value.rank() else {
        return one(deterministic(&[value], rank_unknown));
    };
    let mut places = Vec::new();
    for axis in &axes {
        places.push(i64::try_from(dimension(*axis, rank + axes.len())?).unwrap_or(i64::MAX));
    }
    places.sort_unstable();
    let mut value = value.clone();
    for place in places {
        value = shapes::expand_dims(&value, place)?;
    }
    one(Ok(value))
}

pub(super) fn concat(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let axis = match call.attribute("axis") {
        Some(axis) => axis.i.unwrap_or(0),
        None => 1,
    };
    one(shapes::concat(&call.from(0), axis, call.symbols))
}

pub(super) fn split(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let sizes = match call.numbers("split", 1) {
        Ok(sizes) => sizes,
        Err(_) => Some(vec![-1; call.outputs]),
    };
    call.constants_from(1)?;
    let (value, axis) = (call.input(0)?, call.int("axis", 0));
    slices::split(value, axis, call.outputs, sizes.as_deref(), call.symbols)
}

/// `Expand`: a size of 1 keeps that of the input.
pub(super) fn expand(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(shapes::broadcast_to(call.input(0)?, call.input(1)?, call.symbols))
}

pub(super) fn tile(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    if call.version < 6 {
        return unknown("repeats a tensor as an old version does");
    }
    one(shapes::tile(call.input(0)?, call.input(1)?))
}

/// `Pad`: first the sizes before each dimension, then those behind each.
pub(super) fn pad(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    if let Some(filler) = call.optional(2).filter(|filler| !filler.is_constant()) {
        return one(deterministic(&[value, filler], || {
            mixed("fills up with values that depend on the batch")
        }));
    }
    one(deterministic(&call.from(0), || {
        let rank = value.known_dims()?.len();
        let name = if call.version < 2 { "paddings" } else { "pads" };
        let pads = call.numbers(name, 1)?.unwrap_or_default();
        let axes = match call.optional(3) {
            Some(axes) => axes.numbers("dimensions")?,
            None => (0..i64::try_from(rank).unwrap_or(0)).collect(),
        };
        if pads.len() != 2 * axes.len() {
            return unknown("has a padding of another rank");
        }
        let mut pairs = vec![Size::number(0); 2 * rank];
        for (index, axis) in axes.iter().enumerate() {
            let at = dimension(*axis, rank)?;
            let pair = [pads.get(index), pads.get(index + axes.len())];
            for (place, size) in pairs.iter_mut().skip(2 * at).zip(pair.into_iter().flatten()) {
                *place = Size::number(*size);
            }
        }
        slices::pad(value, &Value::vector(pairs), call.symbols)
    }))
}

/// `ConstantOfShape`, with its elements if they are few integers.
pub(super) fn constant_of_shape(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let shape = call.input(0)?;
    let value = shapes::fill(shape)?;
    let element = match call.attribute("value").and_then(|value| value.t.as_ref()) {
        Some(tensor) => super::call::constant(tensor, call.symbols).number("a value").ok(),
        None => None,
    };
    let count = shape.numbers("sizes").ok().and_then(|sizes| match sizes.as_slice() {
        [] => Some(1),
        [count] => usize::try_from(*count).ok().filter(|count| *count <= 64),
        _ => None,
    });
    let (Some(element), Some(count)) = (element, count) else {
        return one(Ok(value));
    };
    one(Ok(Value { elements: Some(vec![Size::number(element); count]), ..value }))
}

pub(super) fn range(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(shapes::range(call.input(0)?, call.input(1)?, call.input(2)?, call.symbols))
}

/// `Slice`: a part of some dimensions.
pub(super) fn slice(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let bounds = [("starts", 1), ("ends", 2), ("axes", 3), ("steps", 4)];
    let inputs = call.from(1);
    if inputs.iter().any(|input| !input.is_constant() && input.elements.is_none()) {
        return one(deterministic(&call.from(0), || {
            mixed("takes a part whose size depends on the batch")
        }));
    }
    let elements = |(name, index): (&str, usize)| -> Option<Vec<Size>> {
        match call.optional(index) {
            Some(value) => value.elements.clone(),
            None => call.ints(name).map(|its| its.iter().map(|it| Size::number(*it)).collect()),
        }
    };
    let [starts, ends, axes, steps] = bounds.map(elements);
    if let (Some(known), Some(1)) = (&value.elements, value.rank())
        && let Some(part) = elements_of(known, starts.as_deref(), ends.as_deref(), steps.as_deref())
    {
        return one(Ok(part));
    }
    one(deterministic(&[value], || {
        let dims = value.known_dims()?;
        let count = starts.as_ref().or(ends.as_ref()).map_or(0, Vec::len);
        let has_axes = call.optional(3).is_some() || call.attribute("axes").is_some();
        let axes: Vec<i64> = match (&axes, has_axes) {
            (Some(axes), _) => {
                let known: Option<Vec<i64>> = axes.iter().map(Size::as_number).collect();
                known.unwrap_or_default()
            }
            (None, true) => return unknown("takes a part of dimensions that are not known"),
            (None, false) => (0..i64::try_from(count).unwrap_or(0)).collect(),
        };
        if axes.is_empty() || (count != 0 && axes.len() != count) {
            return unknown("takes a part of dimensions that are not known");
        }
        let mut parts = vec![SliceOf::All; dims.len()];
        for (index, axis) in axes.iter().enumerate() {
            let at = dimension(*axis, dims.len())?;
            let bound = |bounds: &Option<Vec<Size>>| bounds.as_ref()?.get(index).cloned();
            let step = match (&steps, call.optional(4)) {
                (None, None) => Some(Size::number(1)),
                _ => bound(&steps),
            };
            let Some(size) = dims.get(at) else { continue };
            let part = part(size, bound(&starts), bound(&ends), step)?;
            if let Some(place) = parts.get_mut(at) {
                *place = part;
            }
        }
        slices::slice(value, &parts, call.symbols)
    }))
}

/// A part of a small vector.
fn elements_of(
    known: &[Size],
    starts: Option<&[Size]>,
    ends: Option<&[Size]>,
    steps: Option<&[Size]>,
) -> Option<Value> {
    let only = |bounds: Option<&[Size]>| match bounds {
        Some([only]) => only.as_number(),
        _ => None,
    };
    let step = if steps.is_some() { only(steps)? } else { 1 };
    slices::slice_elements(known, Some(only(starts)?), Some(only(ends)?), step, false)
}

/// The part of a dimension between `start` and `end`.
fn part(
    size: &Size,
    start: Option<Size>,
    end: Option<Size>,
    step: Option<Size>,
) -> Result<SliceOf, Stop> {
    let is = |bound: &Option<Size>, number: i64| bound.as_ref().is_some_and(|its| its.is(number));
    let is_to_the_end = end
        .as_ref()
        .is_some_and(|end| end == size || end.as_number().is_some_and(|end| end >= TO_THE_END));
    if is(&start, 0) && is(&step, 1) && is_to_the_end {
        return Ok(SliceOf::All);
    }
    if [&start, &end, &step].into_iter().flatten().any(|bound| !bound.is_fixed()) {
        return mixed("takes a part whose size depends on the number of rows");
    }
    let number = |bound: &Option<Size>| bound.as_ref().and_then(Size::as_number);
    let known = (size.as_number(), number(&start), number(&end), number(&step));
    let (Some(size), Some(start), Some(end), Some(step @ 1..)) = known else {
        return Ok(SliceOf::Part(None));
    };
    let absolute = |bound: i64| {
        let bound = if bound < 0 { bound.saturating_add(size) } else { bound };
        bound.clamp(0, size)
    };
    let length = absolute(end).saturating_sub(absolute(start)).max(0);
    let count = length.saturating_add(step - 1).checked_div(step);
    Ok(SliceOf::Part(count))
}

/// The result of an operator that keeps the shape, and takes something of its own for each place along `axis`.
pub(super) fn kept_along(value: &Value, axis: i64, does: &str) -> Outcome {
    compute::along(value, axis, does)
}

/// `Softmax` and the like: before version 13, over all dimensions from an axis on.
pub(super) fn softmax(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    if call.version >= 13 {
        return one(compute::along(value, call.int("axis", -1), NORMALIZES));
    }
    one(from_axis(value, call.int("axis", 1), NORMALIZES))
}

/// An operator on the dimensions from `axis` on together.
pub(super) fn from_axis(value: &Value, axis: i64, does: &str) -> Outcome {
    deterministic(&[value], || {
        let dims = value.known_dims()?;
        let axis = dimension(axis, dims.len())?;
        match axis_of(value) {
            Some(rows) if rows >= axis => mixed(does),
            rows => Ok(with_rows(rows, dims.to_vec())),
        }
    })
}

/// `LpNormalization`.
pub(super) fn normalize_last(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let axis = call.int("axis", -1);
    one(compute::along(call.input(0)?, axis, NORMALIZES))
}

/// `CumSum`: its second input is the dimension.
pub(super) fn running(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (value, axis) = (call.input(0)?, call.input(1)?);
    one(deterministic(&[value, axis], || {
        let axis = axis.number("a dimension")?;
        compute::along(value, axis, "adds up along the rows of the batch")
    }))
}

const REDUCES: &str = "combines the rows of the batch";

/// `ReduceMean` and the like.
pub(super) fn reduce(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    reduced(call, None)
}

/// `ReduceProd`, also of sizes.
pub(super) fn reduce_product(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    reduced(call, Some(|a: &Size, b: &Size, _: &_| a.times(b)))
}

/// `ReduceSum`, also of sizes.
pub(super) fn reduce_sum(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    reduced(call, Some(Size::plus))
}

type Fold = fn(&Size, &Size, &tensorserve_rows::Symbols) -> Size;

fn reduced(call: &OnnxCall, fold: Option<Fold>) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let keep = call.int("keepdims", 1) != 0;
    let axes = match call.numbers("axes", 1) {
        Ok(axes) => axes.filter(|axes| !axes.is_empty()),
        Err(stop) => return one(deterministic(&call.from(0), || Err(stop))),
    };
    if axes.is_none() && call.flag("noop_with_empty_axes") {
        return one(elementwise(&[value], call.symbols));
    }
    let Some(fold) = fold else {
        return one(over(value, axes.as_deref(), keep));
    };
    if value.elements.is_none() {
        return one(over(value, axes.as_deref(), keep));
    }
    let fold = |a: &Size, b: &Size| fold(a, b, call.symbols);
    one(shapes::reduce_sizes(value, axes.as_deref(), keep, REDUCES, fold))
}

fn over(value: &Value, axes: Option<&[i64]>, keep: bool) -> Outcome {
    match (axes, value.rank()) {
        (None, Some(rank)) if keep => {
            let all: Vec<i64> = (0..i64::try_from(rank).unwrap_or(0)).collect();
            shapes::reduce(value, Some(&all), true, REDUCES)
        }
        // Of an unknown number of dimensions.
        (None, None) => deterministic(&[value], || mixed(REDUCES)),
        _ => shapes::reduce(value, axes, keep, REDUCES),
    }
}

/// `ArgMax` and `ArgMin`.
pub(super) fn place_of_extreme(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (axis, keep) = (call.int("axis", 0), call.int("keepdims", 1) != 0);
    one(shapes::reduce(call.input(0)?, Some(&[axis]), keep, "compares the rows of the batch"))
}
