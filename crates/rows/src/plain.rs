//! What operations have in common: values without rows, and the dimension of the rows.

use crate::size::{Size, Symbols};
use crate::value::{Flow, Outcome, Stop, Value, mixed, unknown};

/// The dimension of the rows of `value`, if it has some.
#[must_use]
pub fn axis_of(value: &Value) -> Option<usize> {
    match value.flow {
        Flow::Rows { axis } => Some(axis),
        Flow::RowLengths { .. } => Some(0),
        _ => None,
    }
}

/// The flow of a result of `inputs` if none of them has rows; `None` if one has.
///
/// # Errors
/// If one cannot be taken by an ordinary operation, or not together with the others.
pub fn plain_flow(inputs: &[&Value]) -> Result<Option<Flow>, Stop> {
    let mut has_rows = false;
    let mut has_items = false;
    let mut has_counts = false;
    for input in inputs {
        match &input.flow {
            Flow::Constant => {}
            Flow::Rows { .. } | Flow::RowLengths { .. } => has_rows = true,
            Flow::Item => has_items = true,
            Flow::RowCount | Flow::BelowRows => has_counts = true,
            Flow::AtLeast(_) => return mixed("computes with a number of all rows of the batch"),
            Flow::Batches(_) => return mixed("works across parts of different rows"),
            Flow::Counter { .. } => return mixed("computes with the number of the row"),
            Flow::RowNumbers { .. } | Flow::RowPlaces { .. } => {
                return mixed("computes with the numbers of rows");
            }
            Flow::RowSplits { .. } | Flow::RowEnds { .. } => {
                return mixed("computes with the ends of rows of various lengths");
            }
            Flow::Ragged { .. } => {
                return mixed("works across the elements of rows of various lengths");
            }
            Flow::List(_) => return unknown("takes a list of tensors"),
            Flow::Dead | Flow::Mixed(_) | Flow::Unknown(_) => {
                return unknown("takes a tensor of which nothing is known");
            }
        }
    }
    match (has_rows, has_items, has_counts) {
        (true, true, _) => mixed("combines one row with all rows of the batch"),
        (_, true, true) | (true, _, true) => mixed("computes with the number of rows"),
        (true, false, false) => Ok(None),
        (false, true, false) => Ok(Some(Flow::Item)),
        (false, false, true) => Ok(Some(Flow::RowCount)),
        (false, false, false) => Ok(Some(Flow::Constant)),
    }
}

/// The result of a deterministic operation on `inputs`, which `compute` finds. Where no input has rows, its
/// result has none, and what `compute` cannot find of the shape remains unknown.
///
/// # Errors
/// Those of `compute`, and those for inputs that no ordinary operation takes.
pub fn deterministic(inputs: &[&Value], compute: impl FnOnce() -> Outcome) -> Outcome {
    let Some(flow) = plain_flow(inputs)? else {
        return compute();
    };
    match compute() {
        Ok(value) if value.elements.is_some() && flow != Flow::Item => Ok(value),
        // Of a constant, as many copies as there are rows.
        Ok(value) if matches!(value.flow, Flow::Rows { .. }) => Ok(value),
        Ok(value) => Ok(Value::new(flow, value.dims.filter(|dims| are_known(dims)))),
        Err(_) => Ok(Value::new(flow, None)),
    }
}

fn are_known(dims: &[Size]) -> bool {
    dims.iter().all(|size| *size != Size::Other)
}

/// A result with the shape `dims`, whose rows are along `axis`.
#[must_use]
pub fn with_rows(axis: Option<usize>, dims: Vec<Size>) -> Value {
    match axis {
        Some(axis) => Value::rows(axis, dims),
        None => Value::new(Flow::Constant, Some(dims)),
    }
}

/// The dimension `axis`, which counts from the end if it is negative, of `rank` dimensions.
///
/// # Errors
/// If there is no such dimension.
pub fn dimension(axis: i64, rank: usize) -> Result<usize, Stop> {
    let rank = i64::try_from(rank).unwrap_or(i64::MAX);
    let axis = if axis < 0 { axis.saturating_add(rank) } else { axis };
    match usize::try_from(axis) {
        Ok(found) if axis < rank => Ok(found),
        _ => unknown("names a dimension that its input does not declare"),
    }
}

/// A computation on each element, and on each of several tensors at the same place: shapes are broadcast
/// as in NumPy.
///
/// # Errors
/// If rows meet other rows, or something that is not the same for all rows.
pub fn elementwise(inputs: &[&Value], symbols: &Symbols) -> Outcome {
    if let Some(value) = of_ragged(inputs)? {
        return Ok(value);
    }
    deterministic(inputs, || broadcast(inputs, symbols))
}

/// An elementwise computation on the elements of rows of various lengths, or on several batches behind each
/// other, and on constants that do not have their first dimension.
fn of_ragged(inputs: &[&Value]) -> Result<Option<Value>, Stop> {
    let is_ragged = |value: &&&Value| matches!(value.flow, Flow::Ragged { .. } | Flow::Batches(_));
    let Some(first) = inputs.iter().find(is_ragged) else {
        return Ok(None);
    };
    let rank = first.known_dims()?.len();
    for input in inputs {
        let dims = input.known_dims()?;
        let fits = match input.flow {
            Flow::Constant => dims.len() < rank || dims.first().is_some_and(|size| size.is(1)),
            _ => input.flow == first.flow && dims.len() == rank,
        };
        if !fits {
            return mixed("combines parts of rows with others");
        }
    }
    Ok(Some(Value::new(first.flow.clone(), first.dims.clone())))
}

fn broadcast(inputs: &[&Value], symbols: &Symbols) -> Outcome {
    if let [only] = inputs {
        let flow = axis_of(only).map_or(only.flow.clone(), |axis| Flow::Rows { axis });
        return Ok(Value::new(flow, only.dims.clone()));
    }
    // Scalars fit anything.
    let mut shaped = inputs.iter().filter(|input| input.rank() != Some(0));
    if let (Some(one), None) = (shaped.next(), shaped.next()) {
        return broadcast(&[one], symbols);
    }
    let mut dims: Vec<Size> = Vec::new();
    let mut from_end = None;
    for input in inputs {
        let its = input.known_dims()?;
        dims = broadcast_dims(&dims, its, symbols);
        let Some(axis) = axis_of(input) else { continue };
        let distance = its.len().saturating_sub(axis);
        if from_end.is_some_and(|known| known != distance) {
            return mixed("combines rows with other rows of the batch");
        }
        from_end = Some(distance);
    }
    let Some(distance) = from_end else {
        return Ok(Value::new(Flow::Constant, Some(dims)));
    };
    for input in inputs.iter().filter(|input| axis_of(input).is_none()) {
        let its = input.known_dims()?;
        let at_rows = its.len().checked_sub(distance).and_then(|index| its.get(index));
        match at_rows {
            None => {}
            Some(size) if size.is(1) => {}
            Some(size) if size.as_number().is_some() => {
                return mixed("combines rows with a constant by their number in the batch");
            }
            Some(_) => return unknown("combines rows with a constant of unknown size"),
        }
    }
    Ok(Value::rows(dims.len().saturating_sub(distance), dims))
}

/// The shape of a broadcast; the size of the rows is that of the first input that has rows.
#[must_use]
pub fn broadcast_dims(a: &[Size], b: &[Size], symbols: &Symbols) -> Vec<Size> {
    let rank = a.len().max(b.len());
    let at = |dims: &[Size], index: usize| -> Size {
        let missing = rank.saturating_sub(dims.len());
        let size = index.checked_sub(missing).and_then(|index| dims.get(index));
        size.cloned().unwrap_or_else(|| Size::number(1))
    };
    let size = |index| {
        let (a, b) = (at(a, index), at(b, index));
        match (&a, &b) {
            _ if a == b || b.is(1) => a,
            _ if a.is(1) => b,
            // Sizes that a run compares: where both are known they are equal, or it fails.
            (Size::Rows(_), _) => a,
            (_, Size::Rows(_)) => b,
            _ if a.as_number().is_some() => a,
            _ if b.as_number().is_some() => b,
            _ => symbols.fresh(),
        }
    };
    (0..rank).map(size).collect()
}
