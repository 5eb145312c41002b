//! Texts, examples, tables, and rows of various lengths; lists of loops.

use tensorserve_rows::compute::{self};
use tensorserve_rows::plain::{axis_of, deterministic, elementwise};
use tensorserve_rows::{
    Flow, OperationResults, Outcome, Size, Value, lists, mixed, ragged, unknown,
};

use super::call::{TensorFlowCall, sizes};

/// A table maps each key by itself; table and default are the same for every batch.
pub(super) fn table_find(call: &TensorFlowCall) -> Outcome {
    let [table, keys, default] = call.inputs.as_slice() else {
        return unknown("has another number of inputs than expected");
    };
    if !table.is_constant() || !default.is_constant() {
        return mixed("takes a table that depends on the batch");
    }
    elementwise(&[keys], call.symbols())
}

/// A scalar that is the same for every batch.
pub(super) fn constant_scalar(call: &TensorFlowCall) -> Outcome {
    Ok(Value::constant_of(&[], call.symbols()))
}

/// Where values belong among sorted numbers, which are the same for every batch.
pub(super) fn search(call: &TensorFlowCall) -> Outcome {
    let (sorted, values) = (call.input(0)?, call.input(1)?);
    deterministic(&[sorted, values], || {
        let is_one =
            sorted.dims.as_deref().and_then(<[Size]>::first).is_some_and(|size| size.is(1));
        match sorted.is_constant() && (is_one || axis_of(values).is_none()) {
            true => elementwise(&[values], call.symbols()),
            false => unknown("searches numbers that depend on the batch"),
        }
    })
}

pub(super) fn split_text(call: &TensorFlowCall) -> OperationResults {
    if call.inputs.iter().skip(1).any(|other| !other.is_constant()) {
        return mixed("takes parameters that depend on the batch");
    }
    let rows = ragged::split_rows(call.input(0)?, call.symbols())?;
    Ok(vec![rows.indices, rows.values, rows.shape])
}

pub(super) fn ragged_to_tensor(call: &TensorFlowCall) -> Outcome {
    let [shape, values, default, partitions @ ..] = call.inputs.as_slice() else {
        return unknown("has fewer inputs than expected");
    };
    let kinds = call.texts("row_partition_types");
    let is_flat =
        matches!(kinds.as_slice(), [b"ROW_SPLITS"] | [b"FIRST_DIM_SIZE", b"VALUE_ROWIDS"]);
    let partitions: Vec<&Value> = partitions.iter().collect();
    if !is_flat && matches!(values.flow, Flow::Ragged { .. }) {
        return mixed("fills up rows to the length of the longest one of the batch");
    }
    ragged::to_tensor(shape, values, default, &partitions)
}

/// How often each number is in each row of various length.
pub(super) fn ragged_count(call: &TensorFlowCall) -> Outcome {
    let [splits, values, size, weights] = call.inputs.as_slice() else {
        return unknown("has another number of inputs than expected");
    };
    match (&splits.flow, &values.flow) {
        (Flow::RowSplits { partition }, Flow::Ragged { partition: its })
            if partition == its && size.is_constant() && weights.is_constant() =>
        {
            let size = size.number("a size").map_or_else(|_| call.symbols().fresh(), Size::number);
            Ok(Value::rows(0, vec![Size::rows(), size]))
        }
        _ => compute::whole(&call.all(), "counts across the rows of the batch"),
    }
}

pub(super) fn count(call: &TensorFlowCall) -> Outcome {
    ragged::count(call.input(0)?, call.input(1)?, call.input(2)?)
}

pub(super) fn segments(call: &TensorFlowCall) -> Outcome {
    ragged::segments(call.input(0)?, call.input(1)?, call.inputs.get(2))
}

/// `ParseExampleV2`: features of a fixed length have one row for each example; others have rows of various
/// lengths.
pub(super) fn parse_examples(call: &TensorFlowCall) -> OperationResults {
    let (examples, names) = (call.input(0)?, call.input(1)?);
    let sparse_count = usize::try_from(call.int("num_sparse").unwrap_or(0)).unwrap_or(0);
    let is_empty = |value: &Value| {
        value.dims.as_deref().is_some_and(|dims| matches!(dims, [size] if size.is(0)))
    };
    if call
        .inputs
        .iter()
        .skip(if is_empty(names) { 2 } else { 1 })
        .any(|other| !other.is_constant())
    {
        return mixed("takes parameters that depend on the batch");
    }
    let mut parts = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..sparse_count.min(1 << 12) {
        let rows = ragged::split_rows(examples, call.symbols())?;
        let [indices, values, shapes] = &mut parts;
        indices.push(rows.indices);
        values.push(rows.values);
        shapes.push(rows.shape);
    }
    let mut outputs = parts.concat();
    for shape in call.shapes("dense_shapes") {
        outputs.push(dense_feature(examples, &sizes(shape), shape.unknown_rank)?);
    }
    for kind in 0..call.count("ragged_value_types") + call.count("ragged_split_types") {
        let does = format!("gives rows of various lengths (output {kind})");
        outputs.push(compute::whole(&[examples], &does)?);
    }
    Ok(outputs)
}

fn dense_feature(examples: &Value, sizes: &[i64], unknown_rank: bool) -> Outcome {
    deterministic(&[examples], || {
        let is_vector = matches!(examples.dims.as_deref(), Some([size]) if *size == Size::rows());
        if unknown_rank || sizes.iter().any(|size| *size < 0) {
            return mixed("fills up rows to the length of the longest one of the batch");
        }
        if axis_of(examples).is_some() && !is_vector {
            return unknown("parses an input that is not one example for each row");
        }
        let mut dims = vec![Size::rows()];
        dims.extend(sizes.iter().copied().map(Size::number));
        Ok(match axis_of(examples) {
            Some(_) => Value::rows(0, dims),
            None => Value::constant(),
        })
    })
}

/// Several results for each element.
pub(super) fn each_of(call: &TensorFlowCall, count: usize) -> OperationResults {
    let first = elementwise(&[call.input(0)?], call.symbols())?;
    Ok(vec![first; count.min(1 << 12)])
}

pub(super) fn decode_csv(call: &TensorFlowCall) -> OperationResults {
    if call.inputs.iter().skip(1).any(|other| !other.is_constant()) {
        return mixed("takes parameters that depend on the batch");
    }
    each_of(call, call.count("OUT_TYPE"))
}

/// Bytes as numbers: a new last dimension, of the same size for all.
pub(super) fn decode_raw(call: &TensorFlowCall) -> Outcome {
    let value = elementwise(&[call.input(0)?], call.symbols())?;
    let symbol = call.symbols().fresh();
    Ok(Value {
        dims: value.dims.map(|mut dims| {
            dims.push(symbol);
            dims
        }),
        elements: None,
        ..value
    })
}

pub(super) fn list_reserve(call: &TensorFlowCall) -> Outcome {
    lists::reserve(call.input(1)?)
}

pub(super) fn list_from(call: &TensorFlowCall) -> Outcome {
    lists::from_tensor(call.input(0)?)
}

pub(super) fn list_get(call: &TensorFlowCall) -> Outcome {
    lists::get(call.input(0)?, call.input(1)?)
}

pub(super) fn list_set(call: &TensorFlowCall) -> Outcome {
    lists::set(call.input(0)?, call.input(1)?, call.input(2)?, call.symbols())
}

pub(super) fn list_stack(call: &TensorFlowCall) -> Outcome {
    lists::stack(call.input(0)?, call.input(1)?, call.symbols())
}

pub(super) fn list_length(call: &TensorFlowCall) -> Outcome {
    lists::length(call.input(0)?)
}
