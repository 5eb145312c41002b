//! Parts of tensors, as `Slice` and `StridedSlice` take them.

use tensorserve_rows::plain::elementwise;
use tensorserve_rows::slices;
use tensorserve_rows::strided::{self, Masks};
use tensorserve_rows::{OperationResults, Outcome};

use super::call::TensorFlowCall;

/// The most parts of a tensor.
const MAX_PARTS: usize = 1 << 16;

pub(super) fn unpack(call: &TensorFlowCall) -> OperationResults {
    let count = usize::try_from(call.int("num").unwrap_or(0)).unwrap_or(0);
    slices::unpack(call.input(0)?, call.int("axis").unwrap_or(0), count.min(MAX_PARTS))
}

pub(super) fn split(call: &TensorFlowCall) -> OperationResults {
    let count = usize::try_from(call.int("num_split").unwrap_or(0)).unwrap_or(0).min(MAX_PARTS);
    let axis = call.input(0)?.number("a dimension")?;
    slices::split(call.input(1)?, axis, count, None, call.symbols())
}

pub(super) fn split_sizes(call: &TensorFlowCall) -> OperationResults {
    slices::split_sizes(call.input(0)?, call.input(1)?, call.input(2)?, call.symbols())
}

/// `Slice`: from a place, of these sizes, -1 for all that follow.
pub(super) fn slice(call: &TensorFlowCall) -> Outcome {
    strided::slice(call.input(0)?, call.input(1)?, call.input(2)?, call.symbols())
}

/// `StridedSlice`: begin, end and step for each dimension, and bits that change their meaning.
pub(super) fn strided_slice(call: &TensorFlowCall) -> Outcome {
    let mask = |name: &str| call.int(name).unwrap_or(0);
    let masks = Masks {
        begin: mask("begin_mask"),
        end: mask("end_mask"),
        ellipsis: mask("ellipsis_mask"),
        new_axis: mask("new_axis_mask"),
        shrink_axis: mask("shrink_axis_mask"),
    };
    strided::strided_slice(&call.inputs, masks, call.symbols())
}

pub(super) fn pad(call: &TensorFlowCall) -> Outcome {
    let value = slices::pad(call.input(0)?, call.input(1)?, call.symbols())?;
    match call.inputs.get(2) {
        Some(filler) => elementwise(&[&value, filler], call.symbols()),
        None => Ok(value),
    }
}
