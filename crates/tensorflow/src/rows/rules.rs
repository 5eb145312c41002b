//! What operations do to rows, where that takes more than a line: shapes, slices, gathers, images.

use tensorserve_rows::compute::{self};
use tensorserve_rows::integers::{Integers, arithmetic, cast as cast_integers, of_sizes};
use tensorserve_rows::plain::{axis_of, deterministic, elementwise};
use tensorserve_rows::shapes;
use tensorserve_rows::{OperationResults, Outcome, Size, Stop, Value, mixed, ragged, unknown};

use super::call::{TensorFlowCall, constant};

pub(super) fn integers(call: &TensorFlowCall, op: Integers) -> Outcome {
    arithmetic(op, call.input(0)?, call.input(1)?, call.symbols())
}

pub(super) fn cast(call: &TensorFlowCall) -> Outcome {
    cast_integers(call.input(0)?, call.is_integer("DstT"), call.symbols())
}

pub(super) fn const_value(call: &TensorFlowCall) -> Outcome {
    match call.attribute("value") {
        Some(tensorserve_proto::tensorflow::attr_value::Value::Tensor(tensor)) => {
            Ok(constant(tensor, call.symbols()))
        }
        _ => Ok(Value::constant()),
    }
}

/// A variable, or its handle: what it contains is the same for every batch.
pub(super) fn variable(call: &TensorFlowCall) -> Outcome {
    Ok(call.constant_of("shape"))
}

pub(super) fn shape(call: &TensorFlowCall) -> Outcome {
    shapes::shape_of(call.input(0)?)
}

pub(super) fn shapes_of(call: &TensorFlowCall) -> OperationResults {
    call.inputs.iter().map(shapes::shape_of).collect()
}

pub(super) fn reshape(call: &TensorFlowCall) -> Outcome {
    shapes::reshape(call.input(0)?, call.input(1)?, call.symbols())
}

pub(super) fn transpose(call: &TensorFlowCall) -> Outcome {
    shapes::transpose(call.input(0)?, call.input(1)?)
}

pub(super) fn expand_dims(call: &TensorFlowCall) -> Outcome {
    shapes::expand_dims(call.input(0)?, call.input(1)?.number("a dimension")?)
}

pub(super) fn squeeze(call: &TensorFlowCall) -> Outcome {
    shapes::squeeze(call.input(0)?, call.ints("squeeze_dims"))
}

pub(super) fn fill(call: &TensorFlowCall) -> Outcome {
    let (shape, value) = (call.input(0)?, call.input(1)?);
    let length = shape.numbers("sizes of a shape").unwrap_or_default();
    if let ([length @ 0..=64], Some([element])) = (length.as_slice(), value.elements.as_deref()) {
        let count = usize::try_from(*length).unwrap_or(0);
        return Ok(Value::vector(vec![element.clone(); count]));
    }
    elementwise(&[&shapes::fill(shape)?, value], call.symbols())
}

pub(super) fn range(call: &TensorFlowCall) -> Outcome {
    shapes::range(call.input(0)?, call.input(1)?, call.input(2)?, call.symbols())
}

pub(super) fn tile(call: &TensorFlowCall) -> Outcome {
    shapes::tile(call.input(0)?, call.input(1)?)
}

pub(super) fn broadcast_to(call: &TensorFlowCall) -> Outcome {
    shapes::broadcast_to(call.input(0)?, call.input(1)?, call.symbols())
}

/// The shape of a broadcast, from two shapes.
pub(super) fn broadcast_args(call: &TensorFlowCall) -> Outcome {
    let (a, b) = (call.input(0)?, call.input(1)?);
    deterministic(&[a, b], || {
        let (a, b) = (a.known_elements("sizes of a shape")?, b.known_elements("sizes of a shape")?);
        Ok(Value::vector(tensorserve_rows::plain::broadcast_dims(a, b, call.symbols())))
    })
}

pub(super) fn concat(call: &TensorFlowCall) -> Outcome {
    let Some((axis, values)) = call.inputs.split_last() else {
        return unknown("has no inputs");
    };
    let values: Vec<&Value> = values.iter().collect();
    shapes::concat(&values, axis.number("a dimension")?, call.symbols())
}

pub(super) fn concat_from_first(call: &TensorFlowCall) -> Outcome {
    let Some((axis, values)) = call.inputs.split_first() else {
        return unknown("has no inputs");
    };
    let values: Vec<&Value> = values.iter().collect();
    shapes::concat(&values, axis.number("a dimension")?, call.symbols())
}

pub(super) fn pack(call: &TensorFlowCall) -> Outcome {
    shapes::pack(&call.all(), call.int("axis").unwrap_or(0))
}

fn reduced_axes(call: &TensorFlowCall) -> Result<Vec<i64>, Stop> {
    call.input(1)?.numbers("dimensions")
}

pub(super) fn reduce(call: &TensorFlowCall) -> Outcome {
    let does = "combines all rows of the batch";
    let axes = match reduced_axes(call) {
        Ok(axes) => axes,
        Err(stop) => return deterministic(&call.all(), || Err(stop)),
    };
    let keep = call.flag("keep_dims");
    let value = call.input(0)?;
    let symbols = call.symbols();
    match call.node.op.as_str() {
        "Prod" => shapes::reduce_sizes(value, Some(&axes), keep, does, Size::times),
        "Max" => shapes::reduce_sizes(value, Some(&axes), keep, does, |a, b| {
            of_sizes(Integers::Maximum, a, b, symbols)
        }),
        "Min" => shapes::reduce_sizes(value, Some(&axes), keep, does, |a, b| {
            of_sizes(Integers::Minimum, a, b, symbols)
        }),
        "Sum" => shapes::reduce_sizes(value, Some(&axes), keep, does, |a, b| a.plus(b, symbols)),
        _ => shapes::reduce(value, Some(&axes), keep, does),
    }
}

/// `ArgMax` and the like: over one dimension, without it.
pub(super) fn arg_reduce(call: &TensorFlowCall) -> Outcome {
    let axis = match call.inputs.get(1) {
        Some(axis) => axis.number("a dimension")?,
        None => 0,
    };
    shapes::reduce(call.input(0)?, Some(&[axis]), false, "compares all rows of the batch")
}

pub(super) fn along_second_input(call: &TensorFlowCall) -> Outcome {
    let axis = call.input(1)?.number("a dimension")?;
    let is_plain = !call.flag("exclusive") && !call.flag("reverse");
    ragged::running(call.input(0)?, axis, is_plain && call.node.op == "Cumsum")
}

pub(super) fn reverse(call: &TensorFlowCall) -> Outcome {
    let mut value = call.input(0)?.clone();
    for axis in call.input(1)?.numbers("dimensions")? {
        value = compute::along(&value, axis, "reverses the order of the rows")?;
    }
    Ok(value)
}

pub(super) fn roll(call: &TensorFlowCall) -> Outcome {
    let mut value = call.input(0)?.clone();
    if !call.input(1)?.is_constant() {
        return mixed("moves by a number that depends on the batch");
    }
    for axis in call.input(2)?.numbers("dimensions")? {
        value = compute::along(&value, axis, "moves the rows of the batch")?;
    }
    Ok(value)
}

/// `ReverseSequence`: each row reversed up to a length of its own.
pub(super) fn reverse_sequence(call: &TensorFlowCall) -> Outcome {
    let (value, lengths) = (call.input(0)?, call.input(1)?);
    let batch = call.int("batch_dim").unwrap_or(0);
    let along =
        compute::along(value, call.int("seq_dim").unwrap_or(0), "reverses the order of the rows")?;
    deterministic(&[value, lengths], || {
        let fits =
            |value: &Value| axis_of(value).is_none_or(|axis| i64::try_from(axis) == Ok(batch));
        let is_vector = axis_of(lengths).is_none_or(|axis| axis == 0 && axis_of(value).is_some());
        match fits(value) && is_vector {
            true if axis_of(lengths).is_none() && axis_of(value).is_some() => {
                mixed("combines rows with a constant by their number in the batch")
            }
            true => Ok(along.clone()),
            false => mixed("combines rows with other rows of the batch"),
        }
    })
}

pub(super) fn top_k(call: &TensorFlowCall) -> OperationResults {
    let value = call.input(0)?;
    let k = match (call.inputs.get(1), call.int("k")) {
        (Some(k), _) if k.is_constant() => {
            k.number("a count").map_or_else(|_| call.symbols().fresh(), Size::number)
        }
        (Some(_), _) => return mixed("takes a number of elements that depends on the batch"),
        (None, Some(k)) => Size::number(k),
        (None, None) => call.symbols().fresh(),
    };
    let result = compute::inner(value, 1, vec![k], "compares all rows of the batch")?;
    Ok(vec![result.clone(), result])
}

pub(super) fn matmul(call: &TensorFlowCall) -> Outcome {
    let flag = |names: [&str; 2]| names.iter().any(|name| call.flag(name));
    let transposed = (flag(["transpose_a", "adj_x"]), flag(["transpose_b", "adj_y"]));
    compute::matmul(call.input(0)?, call.input(1)?, transposed, call.symbols())
}

pub(super) fn einsum(call: &TensorFlowCall) -> Outcome {
    let Some(equation) = call.text("equation") else {
        return unknown("has no equation");
    };
    compute::einsum(&call.all(), equation, call.symbols())
}

/// A bias for each channel.
pub(super) fn bias_add(call: &TensorFlowCall) -> Outcome {
    let (value, bias) = (call.input(0)?, call.input(1)?);
    if !call.channels_first() {
        return elementwise(&[value, bias], call.symbols());
    }
    deterministic(&[value, bias], || match (axis_of(value), axis_of(bias)) {
        (Some(1), _) | (_, Some(_)) => mixed("adds a bias along the rows"),
        (axis, None) => Ok(tensorserve_rows::plain::with_rows(axis, value.known_dims()?.to_vec())),
    })
}

pub(super) fn gather(call: &TensorFlowCall) -> Outcome {
    let batch = call.int("batch_dims").unwrap_or(0);
    let axis = match call.inputs.get(2) {
        Some(axis) => axis.number("a dimension")?,
        // `ResourceGather` gathers behind the batch dimensions.
        None => batch,
    };
    if (0..batch).contains(&axis) {
        return unknown("has batch dimensions behind its dimension");
    }
    compute::gather(call.input(0)?, call.input(1)?, axis, batch)
}

pub(super) fn gather_nd(call: &TensorFlowCall) -> Outcome {
    compute::gather_nd(call.input(0)?, call.input(1)?, 0)
}

pub(super) fn one_hot(call: &TensorFlowCall) -> Outcome {
    let (indices, depth) = (call.input(0)?, call.input(1)?);
    let others: Vec<&Value> = call.inputs.iter().skip(2).collect();
    compute::one_hot(indices, depth, &others, call.int("axis").unwrap_or(-1), call.symbols())
}

/// A choice for each element; in the first version also by a vector with one element for each row.
pub(super) fn select(call: &TensorFlowCall) -> Outcome {
    let [condition, a, b] = call.inputs.as_slice() else {
        return unknown("has another number of inputs than expected");
    };
    let rank = a.rank().or(b.rank());
    match (condition.rank(), rank) {
        (Some(1), Some(rank)) if rank > 1 => {
            let mut condition = condition.clone();
            if let Some(dims) = &mut condition.dims {
                dims.extend((1..rank).map(|_| Size::number(1)));
            }
            condition.elements = None;
            elementwise(&[&condition, a, b], call.symbols())
        }
        _ => elementwise(&[condition, a, b], call.symbols()),
    }
}
