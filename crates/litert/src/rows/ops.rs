//! What operators do to rows, where that takes more than a line.

use tensorserve_rows::compute::{self, Window};
use tensorserve_rows::plain::{deterministic, elementwise};
use tensorserve_rows::shapes;
use tensorserve_rows::slices;
use tensorserve_rows::strided::{self, Masks};
use tensorserve_rows::{
    Flow, OperationResults, Outcome, Size, Stop, Value, integers, loops, mixed, ragged, unknown,
};
use tensorserve_tensor::DType;

use super::call::LiteRtCall;

/// The most parts of a tensor.
const MAX_PARTS: usize = 1 << 12;

pub(super) fn reshape(call: &LiteRtCall) -> Outcome {
    let value = call.input(0)?;
    match call.inputs.get(1) {
        Some(Some(shape)) => shapes::reshape(value, shape, call.symbols()),
        _ => {
            let sizes = call.ints(0)?.into_iter().map(Size::number).collect();
            shapes::reshape(value, &Value::vector(sizes), call.symbols())
        }
    }
}

/// A product with weights `[outputs, inputs]`; the input is flattened to rows as long as those of the weights.
pub(super) fn fully_connected(call: &LiteRtCall) -> Outcome {
    const KEEP_DIMENSIONS: usize = 2;
    let (value, weights) = (call.input(0)?, call.input(1)?);
    constants(&call.from(1))?;
    if call.byte(KEEP_DIMENSIONS)? != 0 {
        return compute::matmul(value, weights, (false, true), call.symbols());
    }
    let Some([_, width]) = weights.dims.as_deref() else {
        return unknown("has weights of another rank than 2");
    };
    let shape = Value::vector(vec![Size::number(-1), width.clone()]);
    let rows = shapes::reshape(value, &shape, call.symbols())?;
    compute::matmul(&rows, weights, (false, true), call.symbols())
}

/// Checks that parameters do not depend on the batch.
fn constants(values: &[&Value]) -> Result<(), Stop> {
    match values.iter().all(|value| value.is_constant()) {
        true => Ok(()),
        false => mixed("takes parameters that depend on the batch"),
    }
}

pub(super) fn batch_matmul(call: &LiteRtCall) -> Outcome {
    let transposed = (call.byte(0)? != 0, call.byte(1)? != 0);
    compute::matmul(call.input(0)?, call.input(1)?, transposed, call.symbols())
}

/// The padding of a window: `SAME`, or none.
fn padding(call: &LiteRtCall) -> Result<Option<i64>, Stop> {
    Ok(if call.byte(0)? == 0 { None } else { Some(0) })
}

/// The shape of images behind the rows, `[height, width, channels]`, after a window moved over them.
fn places(
    value: &Value,
    windows: [Window; 2],
    channels: Option<Size>,
    call: &LiteRtCall,
) -> Option<Vec<Size>> {
    let [_, height, width, own] = value.dims.as_deref()? else { return None };
    let [down, across] = windows;
    let places = [down.places(height, call.symbols()), across.places(width, call.symbols())];
    Some([&places[..], &[channels.unwrap_or_else(|| own.clone())]].concat())
}

/// A convolution. Where the dilation is in the options depends on the operator.
fn convolution_with(call: &LiteRtCall, dilation: [usize; 2], channel: usize) -> Outcome {
    let (value, filter) = (call.input(0)?, call.input(1)?);
    let (across, down) = (call.int(1, 0)?, call.int(2, 0)?);
    let [dilation_across, dilation_down] = dilation;
    let holes = [call.int(dilation_down, 1)?, call.int(dilation_across, 1)?];
    let padding = padding(call)?;
    let inner = filter.dims.as_deref().and_then(|dims| {
        let [_, height, width, _] = dims else { return None };
        let window = |size: &Size, stride: i64, holes: i64| {
            let size = size.as_number()?.saturating_sub(1).saturating_mul(holes) + 1;
            Some(Window { size, stride, padding })
        };
        let [down_holes, across_holes] = holes;
        let windows = [window(height, down, down_holes)?, window(width, across, across_holes)?];
        places(value, windows, dims.get(channel).cloned(), call)
    });
    compute::examples(value, &call.from(1), inner)
}

pub(super) fn convolution(call: &LiteRtCall) -> Outcome {
    convolution_with(call, [4, 5], 0)
}

pub(super) fn depthwise_convolution(call: &LiteRtCall) -> Outcome {
    convolution_with(call, [5, 6], 3)
}

pub(super) fn pool(call: &LiteRtCall) -> Outcome {
    let value = call.input(0)?;
    let padding = padding(call)?;
    let across = Window { size: call.int(3, 0)?, stride: call.int(1, 0)?, padding };
    let down = Window { size: call.int(4, 0)?, stride: call.int(2, 0)?, padding };
    compute::examples(value, &[], places(value, [down, across], None, call))
}

/// A transposed convolution: the shape of the result, weights, the value.
pub(super) fn transposed_convolution(call: &LiteRtCall) -> Outcome {
    let (shape, value) = (call.input(0)?, call.input(2)?);
    let mut others = vec![call.input(1)?];
    others.extend(call.from(3));
    let Some(sizes) = &shape.elements else {
        others.push(shape);
        return compute::examples(value, &others, None);
    };
    let result = compute::examples(value, &others, sizes.get(1..).map(<[Size]>::to_vec))?;
    let own = result.dims.as_ref().and_then(|dims| dims.first());
    match result.flow {
        Flow::Rows { .. } if own != sizes.first() => {
            mixed("has a fixed size in the place of the rows")
        }
        _ if sizes.iter().skip(1).any(|size| !size.is_fixed()) => {
            mixed("has a size that depends on the number of rows")
        }
        _ => Ok(result),
    }
}

/// Images in another size.
pub(super) fn resize(call: &LiteRtCall) -> Outcome {
    let (value, size) = (call.input(0)?, call.input(1)?);
    let inner = match (value.dims.as_deref(), &size.elements) {
        (Some([_, _, _, channels]), Some(sizes)) => {
            Some([sizes.as_slice(), std::slice::from_ref(channels)].concat())
        }
        _ => None,
    };
    compute::examples(value, &[size], inner)
}

/// An operation on images that keeps their shape.
pub(super) fn images(call: &LiteRtCall) -> Outcome {
    let value = call.input(0)?;
    let inner = value.dims.as_ref().and_then(|dims| dims.get(1..)).map(<[Size]>::to_vec);
    compute::examples(value, &call.from(1), inner)
}

/// An operation on images whose result has another, fixed shape.
pub(super) fn images_of_other_shape(call: &LiteRtCall) -> Outcome {
    let value = call.input(0)?;
    let inner = value.dims.as_ref().and_then(|dims| dims.get(1..));
    let inner = inner.map(|dims| dims.iter().map(|_| call.symbols().fresh()).collect());
    compute::examples(value, &call.from(1), inner)
}

pub(super) fn to_batches(call: &LiteRtCall) -> Outcome {
    compute::to_batches(call.input(0)?, call.input(1)?, &call.from(2), call.symbols())
}

pub(super) fn from_batches(call: &LiteRtCall) -> Outcome {
    compute::from_batches(call.input(0)?, call.input(1)?, &call.from(2), call.symbols())
}

pub(super) fn concat(call: &LiteRtCall) -> Outcome {
    shapes::concat(&call.from(0), call.int(0, 0)?, call.symbols())
}

pub(super) fn pack(call: &LiteRtCall) -> Outcome {
    shapes::pack(&call.from(0), call.int(1, 0)?)
}

pub(super) fn unpack(call: &LiteRtCall) -> OperationResults {
    slices::unpack(call.input(0)?, call.int(1, 0)?, call.outputs.min(MAX_PARTS))
}

pub(super) fn split(call: &LiteRtCall) -> OperationResults {
    let axis = call.input(0)?.number("a dimension")?;
    let count = call.outputs.min(MAX_PARTS);
    slices::split(call.input(1)?, axis, count, None, call.symbols())
}

pub(super) fn split_sizes(call: &LiteRtCall) -> OperationResults {
    slices::split_sizes(call.input(0)?, call.input(1)?, call.input(2)?, call.symbols())
}

pub(super) fn slice(call: &LiteRtCall) -> Outcome {
    strided::slice(call.input(0)?, call.input(1)?, call.input(2)?, call.symbols())
}

pub(super) fn strided_slice(call: &LiteRtCall) -> Outcome {
    /// Whether ends are counted from begins.
    const OFFSET: usize = 5;
    if call.byte(OFFSET)? != 0 {
        return unknown("counts ends from begins");
    }
    let masks = Masks {
        begin: call.int(0, 0)?,
        end: call.int(1, 0)?,
        ellipsis: call.int(2, 0)?,
        new_axis: call.int(3, 0)?,
        shrink_axis: call.int(4, 0)?,
    };
    let inputs: Vec<Value> = call.from(0).into_iter().cloned().collect();
    strided::strided_slice(&inputs, masks, call.symbols())
}

/// `DYNAMIC_UPDATE_SLICE`: a part of a tensor is replaced, not one of the rows.
pub(super) fn update_slice(call: &LiteRtCall) -> Outcome {
    let (value, part, start) = (call.input(0)?, call.input(1)?, call.input(2)?);
    deterministic(&[value, part, start], || {
        let fits = start.is_constant() && value.flow == part.flow;
        let axis = tensorserve_rows::plain::axis_of(value);
        let size = |value: &Value| value.dims.as_ref()?.get(axis?).cloned();
        match fits && size(value).is_some() && size(value) == size(part) {
            true => Ok(value.clone()),
            false => mixed("replaces rows by their number in the batch"),
        }
    })
}

pub(super) fn pad(call: &LiteRtCall) -> Outcome {
    let value = slices::pad(call.input(0)?, call.input(1)?, call.symbols())?;
    match call.inputs.get(2) {
        Some(Some(filler)) => elementwise(&[&value, filler], call.symbols()),
        _ => Ok(value),
    }
}

pub(super) fn reduce(call: &LiteRtCall) -> Outcome {
    let axes = call.input(1)?.numbers("dimensions")?;
    let keeps = call.byte(0)? != 0;
    shapes::reduce(call.input(0)?, Some(&axes), keeps, "combines all rows of the batch")
}

/// A product of sizes, or of anything else.
pub(super) fn reduce_product(call: &LiteRtCall) -> Outcome {
    let axes = call.input(1)?.numbers("dimensions")?;
    let keeps = call.byte(0)? != 0;
    let does = "combines all rows of the batch";
    shapes::reduce_sizes(call.input(0)?, Some(&axes), keeps, does, Size::times)
}

pub(super) fn arg_reduce(call: &LiteRtCall) -> Outcome {
    let axis = call.input(1)?.number("a dimension")?;
    shapes::reduce(call.input(0)?, Some(&[axis]), false, "compares all rows of the batch")
}

pub(super) fn cumulate(call: &LiteRtCall) -> Outcome {
    ragged::running(call.input(0)?, call.input(1)?.number("a dimension")?, false)
}

pub(super) fn reverse(call: &LiteRtCall) -> Outcome {
    let mut value = call.input(0)?.clone();
    for axis in call.input(1)?.numbers("dimensions")? {
        value = compute::along(&value, axis, "reverses the order of the rows")?;
    }
    Ok(value)
}

pub(super) fn top_k(call: &LiteRtCall) -> OperationResults {
    let k = call.input(1)?;
    constants(&[k])?;
    let k = k.number("a count").map_or_else(|_| call.symbols().fresh(), Size::number);
    let result = compute::inner(call.input(0)?, 1, vec![k], "compares all rows of the batch")?;
    Ok(vec![result.clone(), result])
}

pub(super) fn gather(call: &LiteRtCall) -> Outcome {
    let batch = call.int(1, 0)?;
    let axis = call.int(0, 0)?;
    if (0..batch).contains(&axis) {
        return unknown("has batch dimensions behind its dimension");
    }
    compute::gather(call.input(0)?, call.input(1)?, axis, batch)
}

/// Rows of a table by their numbers.
pub(super) fn embedding(call: &LiteRtCall) -> Outcome {
    compute::gather(call.input(1)?, call.input(0)?, 0, 0)
}

pub(super) fn one_hot(call: &LiteRtCall) -> Outcome {
    let others = call.from(2);
    let axis = call.int(0, 0)?;
    compute::one_hot(call.input(0)?, call.input(1)?, &others, axis, call.symbols())
}

pub(super) fn cast(call: &LiteRtCall) -> Outcome {
    /// `out_data_type`, as a type of tensors.
    const TO: usize = 1;
    let to = call.byte(TO)?;
    let is_integer = crate::schema::dtype(to).is_some_and(keeps_sizes);
    integers::cast(call.input(0)?, is_integer, call.symbols())
}

/// Whether integers that are sizes keep their values in a type.
fn keeps_sizes(dtype: DType) -> bool {
    match dtype {
        DType::Int32 | DType::Int64 | DType::Bool | DType::UInt32 | DType::UInt64 => true,
        DType::Float
        | DType::Double
        | DType::Half
        | DType::BFloat16
        | DType::Int8
        | DType::Int16
        | DType::UInt8
        | DType::UInt16
        | DType::Complex64
        | DType::Complex128
        | DType::String => false,
    }
}

pub(super) fn fill(call: &LiteRtCall) -> Outcome {
    let shape = shapes::fill(call.input(0)?)?;
    elementwise(&[&shape, call.input(1)?], call.symbols())
}

/// A choice for each element; by a vector also for each row.
pub(super) fn select(call: &LiteRtCall) -> Outcome {
    let (condition, a, b) = (call.input(0)?, call.input(1)?, call.input(2)?);
    match (condition.rank(), a.rank()) {
        (Some(1), Some(rank)) if rank > 1 => {
            let ones = (1..rank).map(|_| Size::number(1));
            let dims = condition.known_dims()?.iter().cloned().chain(ones).collect();
            let condition = Value::new(condition.flow.clone(), Some(dims));
            elementwise(&[&condition, a, b], call.symbols())
        }
        _ => elementwise(&[condition, a, b], call.symbols()),
    }
}

/// `IF`: one of two subgraphs, by a condition that is the same for every batch.
pub(super) fn choose(call: &LiteRtCall) -> OperationResults {
    let condition = call.input(0)?;
    let arguments: Vec<Value> = call.from(1).into_iter().cloned().collect();
    let branch = |field| -> Result<usize, Stop> {
        usize::try_from(call.int(field, 0)?).or_else(|_| unknown("names no subgraph"))
    };
    match (&condition.flow, condition.number("a condition")) {
        (Flow::Constant, Ok(0)) => call.interpreter.call(branch(1)?, &arguments),
        (Flow::Constant, Ok(_)) => call.interpreter.call(branch(0)?, &arguments),
        (Flow::Constant, Err(_)) => {
            let one = call.interpreter.call(branch(0)?, &arguments)?;
            let other = call.interpreter.call(branch(1)?, &arguments)?;
            let both = one.iter().zip(&other);
            let joined = both.map(|(one, other)| {
                let joined = one.joined(other, call.symbols());
                joined.map_or_else(|| mixed("has branches that come from different rows"), Ok)
            });
            joined.collect()
        }
        (Flow::Mixed(_) | Flow::Unknown(_), _) => Ok(vec![condition.clone()]),
        _ => mixed("takes one of two branches by a condition that depends on the batch"),
    }
}

/// `WHILE`: a subgraph as long as another one says so, equally often for every batch.
pub(super) fn repeat(call: &LiteRtCall) -> OperationResults {
    let subgraph = |field| -> Result<usize, Stop> {
        usize::try_from(call.int(field, 0)?).or_else(|_| unknown("names no subgraph"))
    };
    let (condition, body) = (subgraph(0)?, subgraph(1)?);
    let initial: Vec<Value> = call.from(0).into_iter().cloned().collect();
    let run = |state: &[Value]| call.interpreter.call(body, state);
    let state = loops::repeated(&initial, call.symbols(), run)?;
    match call.interpreter.call(condition, &state)?.first() {
        Some(end) if end.is_constant() => Ok(state),
        Some(end) if end.is_lost() => Ok(vec![end.clone()]),
        _ => mixed("runs a loop whose end depends on the batch"),
    }
}
