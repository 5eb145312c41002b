//! Rows of various lengths: texts that are split into words, and what is computed of the words.

use crate::plain::{axis_of, deterministic};
use crate::size::{Size, Symbols};
use crate::value::{Flow, Outcome, Stop, Value, mixed, unknown};

/// For each row its elements: the place of each (its row, and its number in the row), the elements, and the
/// number of rows and of the most elements of one.
#[derive(Clone, Debug)]
pub struct SparseRows {
    /// Places.
    pub indices: Value,
    /// Elements.
    pub values: Value,
    /// The shape of a matrix that would hold them.
    pub shape: Value,
}

/// A new partition.
#[must_use]
pub fn fresh_partition(symbols: &Symbols) -> u32 {
    symbols.fresh_number()
}

/// A vector of rows that is split into elements.
///
/// # Errors
/// If it is no vector with one element for each row.
pub fn split_rows(value: &Value, symbols: &Symbols) -> Result<SparseRows, Stop> {
    match (&value.flow, value.dims.as_deref()) {
        (Flow::Rows { axis: 0 }, Some([size])) if *size == Size::rows() => {}
        (Flow::Constant | Flow::Item, _) => {
            let part = |rank| {
                let dims = (0..rank).map(|_| symbols.fresh()).collect();
                Value::new(value.flow.clone(), Some(dims))
            };
            let shape = Value::new(value.flow.clone(), Some(vec![Size::number(2)]));
            return Ok(SparseRows { indices: part(2), values: part(1), shape });
        }
        _ => return unknown("splits an input that is not one text for each row"),
    }
    let partition = fresh_partition(symbols);
    Ok(SparseRows {
        indices: Value::new(
            Flow::RowPlaces { partition },
            Some(vec![Size::Other, Size::number(2)]),
        ),
        values: Value::new(Flow::Ragged { partition }, Some(vec![Size::Other])),
        shape: Value::vector(vec![Size::rows(), Size::Other]),
    })
}

/// A column of the places of elements: the numbers of their rows, or their numbers in a row.
#[must_use]
pub fn column_of_places(partition: u32, column: i64) -> Value {
    let flow = match column {
        0 | -2 => Flow::RowNumbers { partition },
        _ => Flow::Ragged { partition },
    };
    Value::new(flow, Some(vec![Size::Other]))
}

/// How often each number below `size` is among `numbers`: of numbers of rows, the lengths of the rows.
///
/// # Errors
/// If they are other numbers of the batch.
pub fn count(numbers: &Value, size: &Value, weights: &Value) -> Outcome {
    let unweighted = weights.is_constant();
    if let Flow::RowNumbers { partition } = numbers.flow {
        let is_rows = size.elements.as_deref() == Some(&[Size::rows()]);
        return match is_rows && unweighted {
            true => Ok(Value::new(Flow::RowLengths { partition }, Some(vec![Size::rows()]))),
            false => mixed("counts across the rows of the batch"),
        };
    }
    deterministic(&[numbers, size, weights], || {
        if !size.is_constant() || !unweighted {
            return mixed("takes parameters that depend on the batch");
        }
        // A vector is counted as a whole, a matrix by its rows.
        let size = size.known_elements("a size")?.first().cloned().unwrap_or(Size::Other);
        match (axis_of(numbers), numbers.known_dims()?) {
            (Some(0), [rows, _]) => Ok(Value::rows(0, vec![rows.clone(), size])),
            _ => mixed("counts across the rows of the batch"),
        }
    })
}

/// The rows as a matrix of the shape `shape`, in which `default` fills up the shorter ones.
///
/// # Errors
/// If its width depends on the longest row of the batch.
pub fn to_tensor(shape: &Value, values: &Value, default: &Value, partitions: &[&Value]) -> Outcome {
    let Flow::Ragged { partition } = values.flow else {
        let mut all = vec![shape, values, default];
        all.extend(partitions);
        return deterministic(&all, || unknown("makes a matrix of rows that are not known"));
    };
    let fits = |value: &&Value| match value.flow {
        Flow::RowSplits { partition: its }
        | Flow::RowNumbers { partition: its }
        | Flow::RowLengths { partition: its } => its == partition,
        _ => value.elements.as_deref() == Some(&[Size::rows()]),
    };
    if partitions.is_empty() || !partitions.iter().all(fits) {
        return unknown("makes a matrix of rows whose lengths are not known");
    }
    if !default.is_constant() {
        return mixed("fills up rows with values that depend on the batch");
    }
    let inner = values.known_dims()?.get(1..).unwrap_or_default().to_vec();
    let (first, width) = match shape.known_elements("sizes of a shape")? {
        [first, width, ..] => (first, width),
        _ => return mixed("fills up rows to the length of the longest one of the batch"),
    };
    if !(first.is(-1) || *first == Size::rows()) {
        return mixed("has a fixed size in the place of the rows");
    }
    if width.is(-1) || !width.is_fixed() {
        return mixed("fills up rows to the length of the longest one of the batch");
    }
    let mut dims = vec![Size::rows(), width.clone()];
    dims.extend(inner);
    Ok(Value::rows(0, dims))
}

/// A sum, mean or the like of the elements of each row.
///
/// # Errors
/// If `numbers` are not the numbers of the rows of `values`, or there are not as many results as rows.
pub fn segments(values: &Value, numbers: &Value, count: Option<&Value>) -> Outcome {
    if let (Flow::Ragged { partition }, Flow::RowNumbers { partition: its }) =
        (&values.flow, &numbers.flow)
    {
        let is_rows = |count: &Value| count.elements.as_deref() == Some(&[Size::rows()]);
        if partition != its || !count.is_some_and(is_rows) {
            return mixed("combines elements of various rows");
        }
        let mut dims = vec![Size::rows()];
        dims.extend(values.known_dims()?.get(1..).unwrap_or_default().iter().cloned());
        return Ok(Value::rows(0, dims));
    }
    let mut all = vec![values, numbers];
    all.extend(count);
    deterministic(&all, || mixed("combines rows of the batch by their number"))
}

/// Running sums along `axis`: of the lengths of rows, their ends.
///
/// # Errors
/// If they run over the rows.
pub fn running(value: &Value, axis: i64, is_plain: bool) -> Outcome {
    match value.flow {
        Flow::RowLengths { partition } if axis == 0 && is_plain => {
            Ok(Value::new(Flow::RowEnds { partition }, value.dims.clone()))
        }
        _ => crate::compute::along(value, axis, "sums up along the rows of the batch"),
    }
}
