//! Layers of networks: products, normalizations and recurrent layers.

use tensorserve_rows::plain::{axis_of, deterministic, elementwise, with_rows};
use tensorserve_rows::{Flow, Outcome, Size, Stop, Value, compute, mixed, shapes, unknown};

use super::call::{OnnxCall, one};
use super::shapes::from_axis;

const NORMALIZES: &str = "normalizes over the rows of the batch";

/// A product of matrices, or with a vector.
fn product(call: &OnnxCall, a: &Value, b: &Value) -> Outcome {
    match (a.rank(), b.rank()) {
        (Some(2..), Some(1)) => {
            let matrix = shapes::expand_dims(b, 1)?;
            let product = compute::matmul(a, &matrix, (false, false), call.symbols)?;
            shapes::squeeze(&product, &[-1])
        }
        (Some(1), Some(2..)) => {
            let matrix = shapes::expand_dims(a, 0)?;
            let product = compute::matmul(&matrix, b, (false, false), call.symbols)?;
            shapes::squeeze(&product, &[-2])
        }
        _ => compute::matmul(a, b, (false, false), call.symbols),
    }
}

pub(super) fn matmul(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(product(call, call.input(0)?, call.input(1)?))
}

/// `MatMulInteger`: the zero points are constant, that of the first input one number.
pub(super) fn matmul_integer(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    parameters(call, &[2, 3], Some(2))?;
    matmul(call)
}

/// `QLinearMatMul`: inputs 0 and 3, with scales and zero points.
pub(super) fn matmul_scaled(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    parameters(call, &[1, 2, 4, 5, 6, 7], None)?;
    for index in [1, 2, 6, 7] {
        one_number(call, index)?;
    }
    one(product(call, call.input(0)?, call.input(3)?))
}

/// Checks that some inputs are the same for every batch, and that `single` is one number.
fn parameters(call: &OnnxCall, indices: &[usize], single: Option<usize>) -> Result<(), Stop> {
    for index in indices {
        if call.optional(*index).is_some_and(|value| !value.is_constant()) {
            return mixed("takes parameters that depend on the batch");
        }
    }
    single.map_or(Ok(()), |index| one_number(call, index))
}

/// Checks that an input has one element: several are those of the rows of a matrix.
fn one_number(call: &OnnxCall, index: usize) -> Result<(), Stop> {
    match call.optional(index) {
        Some(value) if !value.known_dims()?.iter().all(|size| size.is(1)) => {
            unknown("has a scale or zero point for each row of a matrix")
        }
        _ => Ok(()),
    }
}

/// `Gemm`: a product of two matrices, and a third one that is added.
pub(super) fn gemm(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let transposed = (call.flag("transA"), call.flag("transB"));
    let product = compute::matmul(call.input(0)?, call.input(1)?, transposed, call.symbols)?;
    one(match call.optional(2) {
        Some(bias) => elementwise(&[&product, bias], call.symbols),
        None => Ok(product),
    })
}

/// `FusedMatMul` of ONNX Runtime.
pub(super) fn matmul_fused(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    if call.flag("transBatchA") || call.flag("transBatchB") {
        return unknown("transposes the dimensions before those of a matrix");
    }
    let transposed = (call.flag("transA"), call.flag("transB"));
    one(compute::matmul(call.input(0)?, call.input(1)?, transposed, call.symbols))
}

/// `MatMulNBits` of ONNX Runtime: a product with a packed constant of `N` columns.
pub(super) fn matmul_packed(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    call.constants_from(1)?;
    let columns = Size::number(call.int("N", 0));
    one(compute::inner(call.input(0)?, 1, vec![columns], "adds up products of different rows"))
}

pub(super) fn einsum(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let equation = call.text("equation").unwrap_or_default();
    let terms = equation.split(',').flat_map(|term| term.split("->"));
    for term in terms {
        let mut letters: Vec<char> = term.chars().filter(|c| c.is_alphabetic()).collect();
        let count = letters.len();
        letters.sort_unstable();
        letters.dedup();
        if letters.len() != count {
            return unknown("takes the diagonal of a tensor");
        }
    }
    one(compute::einsum(&call.from(0), equation, call.symbols))
}

/// `BatchNormalization`: by constants, if the model is not being trained.
pub(super) fn batch_normalization(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let is_training = match call.version {
        14.. => call.flag("training_mode"),
        7..14 => call.outputs > 1,
        _ => !call.flag("is_test"),
    };
    if is_training {
        return mixed("normalizes by the mean and variance of the batch");
    }
    per_example(call)
}

/// Each example along dimension 0 by itself, with constants, in the same shape.
pub(super) fn per_example(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let inner = value.dims.as_ref().map(|dims| dims.iter().skip(1).cloned().collect());
    one(compute::examples(value, &call.from(1), inner))
}

/// `LayerNormalization`: over the dimensions from an axis on, and the mean and deviation of each.
pub(super) fn layer_normalization(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    call.constants_from(1)?;
    normalized(call, call.input(0)?, 1, call.int("axis", -1))
}

/// A normalization of `value` from `axis` on, with the constants from input `others` on; its other outputs have
/// a size of 1 there.
fn normalized(
    call: &OnnxCall,
    value: &Value,
    others: usize,
    axis: i64,
) -> Result<Vec<Value>, Stop> {
    let result = from_axis(value, axis, NORMALIZES)?;
    let mut combined = vec![&result];
    combined.extend(call.from(others));
    let result = elementwise(&combined, call.symbols)?;
    let mut moments = result.clone();
    let places = moments.dims.as_mut().filter(|_| axis == -1).and_then(|dims| dims.last_mut());
    match places {
        Some(last) => *last = Size::number(1),
        None => moments.dims = None,
    }
    Ok(vec![result, moments.clone(), moments])
}

/// `SkipLayerNormalization` of ONNX Runtime: of a sum of two tensors, which is the fourth output.
pub(super) fn skip_normalization(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    call.constants_from(2)?;
    let sum = elementwise(&[call.input(0)?, call.input(1)?], call.symbols)?;
    let mut results = normalized(call, &sum, 2, -1)?;
    results.push(sum);
    Ok(results)
}

/// `MeanVarianceNormalization`.
pub(super) fn normalize_axes(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let axes = call.ints("axes").unwrap_or(&[0, 2, 3]);
    shapes::reduce(value, Some(axes), true, NORMALIZES)?;
    one(elementwise(&[value], call.symbols))
}

/// `RNN`, `GRU` and `LSTM`: along the time; rows are the sequences of a batch.
pub(super) fn recurrent(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let rows_first = call.flag("layout");
    let axis = usize::from(!rows_first);
    if axis_of(value).is_none() {
        let flow = tensorserve_rows::plain::plain_flow(&call.from(0))?;
        return match flow {
            Some(flow) => Ok(vec![Value::new(flow, None); call.outputs]),
            None => mixed("combines rows with a constant by their number in the batch"),
        };
    }
    if axis_of(value) != Some(axis) {
        return mixed("passes the rows on from one step to the next");
    }
    let (steps, rows) = match value.known_dims()? {
        [rows, steps, _] if rows_first => (steps.clone(), rows.clone()),
        [steps, rows, _] => (steps.clone(), rows.clone()),
        _ => return unknown("takes a tensor that is not of sequences"),
    };
    // W, R, B; and of an LSTM the peepholes.
    parameters(call, &[1, 2, 3, 7], None)?;
    for (index, its_axis) in [(4, 0), (5, axis), (6, axis)] {
        let Some(input) = call.optional(index) else { continue };
        let size = axis_of(input).and_then(|at| input.dims.as_ref()?.get(at));
        if axis_of(input) != Some(its_axis) || size != Some(&rows) {
            return mixed("combines rows with a state by their number in the batch");
        }
    }
    let directions = match call.text("direction") {
        Some("bidirectional") => Size::number(2),
        _ => Size::number(1),
    };
    let hidden = match call.int("hidden_size", 0) {
        size @ 1.. => Size::number(size),
        _ => call.symbols.fresh(),
    };
    let (all, last) = match rows_first {
        true => (
            Value::rows(0, vec![rows.clone(), steps, directions.clone(), hidden.clone()]),
            Value::rows(0, vec![rows, directions, hidden]),
        ),
        false => (
            Value::rows(2, vec![steps, directions.clone(), rows.clone(), hidden.clone()]),
            Value::rows(1, vec![directions, rows, hidden]),
        ),
    };
    Ok(vec![all, last.clone(), last])
}

/// `Attention` and the like of ONNX Runtime: the inputs `of_rows` have one row for each row, all others are constant.
fn attention(call: &OnnxCall, of_rows: &[usize], constants: &[usize]) -> Result<Vec<Value>, Stop> {
    for index in 0..call.inputs.len() {
        let Some(value) = call.optional(index) else { continue };
        let has_rows = value.flow == (Flow::Rows { axis: 0 })
            && value.dims.as_ref().and_then(|dims| dims.first()) == Some(&Size::rows());
        let fits = (constants.contains(&index) && value.is_constant())
            || (of_rows.contains(&index) && has_rows);
        if !fits {
            return unknown("takes an input that does not have a row for each row of the batch");
        }
    }
    if call.outputs > 1 {
        return unknown("returns a state");
    }
    let inner = call.input(0)?.known_dims()?.get(1..).unwrap_or_default();
    let [steps, _] = inner else {
        return unknown("takes a tensor that is not of sequences");
    };
    one(Ok(with_rows(Some(0), vec![Size::rows(), steps.clone(), call.symbols.fresh()])))
}

/// Sequences with weights and a bias, and a mask.
pub(super) fn self_attention(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    attention(call, &[0, 3], &[1, 2])
}

/// Queries, keys and values with a bias, and a mask.
pub(super) fn multi_head_attention(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    attention(call, &[0, 1, 2, 4], &[3])
}

/// `Det` and `Inverse`: of each matrix in the last two dimensions.
pub(super) fn determinant(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(compute::inner(call.input(0)?, 2, Vec::new(), "takes rows as a dimension of a matrix"))
}

/// A result of the shape of the input, computed from each matrix in its last two dimensions.
pub(super) fn matrices(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    call.constants_from(1)?;
    one(deterministic(&[value], || {
        let dims = value.known_dims()?;
        let last = dims.get(dims.len().saturating_sub(2)..).unwrap_or_default().to_vec();
        compute::inner(value, 2, last, "takes rows as a dimension of a matrix")
    }))
}
