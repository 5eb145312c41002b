//! Operators on each element, and on small integers.

use tensorserve_rows::integers::{self, Integers};
use tensorserve_rows::plain::{elementwise, plain_flow};
use tensorserve_rows::{Flow, Size, Stop, Value, mixed, unknown};

use super::call::{OnnxCall, one};
use super::shapes;

/// `TensorProto.DataType`: int32, int64, uint32, uint64; and bool.
const INTEGERS: [i64; 4] = [6, 7, 12, 13];
const BOOL: i64 = 9;

/// Each element from those at the same place of all inputs, which are broadcast.
pub(super) fn each(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    // Before version 7, an attribute said where a smaller input lies in the larger one.
    if call.version < 7 && call.attribute("axis").is_some() && call.inputs.len() > 1 {
        return unknown("broadcasts as an old version does");
    }
    one(elementwise(&call.from(0), call.symbols))
}

/// Each element from the one at the same place of the first input, whatever the version: operators
/// of other domains have versions of their own.
pub(super) fn each_of_first(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(elementwise(&[call.input(0)?], call.symbols))
}

/// The first input, unchanged.
pub(super) fn keep(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(call.input(0).cloned())
}

/// An operation on two tensors, which may be small integers.
fn arithmetic(call: &OnnxCall, op: Integers) -> Result<Vec<Value>, Stop> {
    let all = call.from(0);
    let is_counter = |value: &&Value| matches!(value.flow, Flow::Counter { .. } | Flow::BelowRows);
    match all.as_slice() {
        [a, b] if call.version >= 7 && !all.iter().any(is_counter) => {
            one(integers::arithmetic(op, a, b, call.symbols))
        }
        _ => each(call),
    }
}

pub(super) fn add(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::Add)
}

pub(super) fn subtract(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::Subtract)
}

pub(super) fn multiply(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::Multiply)
}

/// Of negative numbers, nothing is said: ONNX does not round them down.
pub(super) fn divide(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::FloorDivide)
}

pub(super) fn maximum(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::Maximum)
}

pub(super) fn minimum(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::Minimum)
}

pub(super) fn less(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::Less)
}

pub(super) fn less_or_equal(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::LessEqual)
}

pub(super) fn greater(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::Greater)
}

pub(super) fn greater_or_equal(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::GreaterEqual)
}

/// Whether numbers are equal. A number of rows is never negative.
pub(super) fn equal(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    if let [a, b] = call.from(0).as_slice()
        && let (Some(x), Some(y)) = (&a.elements, &b.elements)
        && let (Some(1), Some(dims)) = (a.rank().max(b.rank()), longer(a, b))
        && (x.len() == y.len() || x.len() == 1 || y.len() == 1)
    {
        let count = x.len().max(y.len());
        let at = |its: &[Size], index: usize| its.get(index).or_else(|| its.first()).cloned();
        let pairs = (0..count).filter_map(|index| Some((at(x, index)?, at(y, index)?)));
        let elements = pairs.map(|(a, b)| match (&a, &b) {
            (rows, other) | (other, rows)
                if *rows == Size::rows() && other.as_number().is_some_and(|its| its < 0) =>
            {
                Size::number(0)
            }
            _ => integers::of_sizes(Integers::Equal, &a, &b, call.symbols),
        });
        return one(Ok(Value::of_elements(elements.collect(), dims)));
    }
    arithmetic(call, Integers::Equal)
}

/// The shape of the longer one of two vectors or scalars.
fn longer(a: &Value, b: &Value) -> Option<Vec<Size>> {
    let length = |value: &Value| value.elements.as_ref().map_or(0, Vec::len);
    let is_first = (a.rank(), length(a)) >= (b.rank(), length(b));
    if is_first { a.dims.clone() } else { b.dims.clone() }
}

pub(super) fn and(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::And)
}

pub(super) fn or(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    arithmetic(call, Integers::Or)
}

/// `Not`, also of a condition that is known.
pub(super) fn not(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    match value.numbers("conditions") {
        Ok(numbers) if value.is_constant() => {
            let elements = numbers.iter().map(|number| Size::number(i64::from(*number == 0)));
            one(Ok(Value { elements: Some(elements.collect()), origin: None, ..value.clone() }))
        }
        _ => each_of_first(call),
    }
}

/// `Cast`: integers remain small integers.
pub(super) fn cast(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (value, to) = (call.input(0)?, call.int("to", 0));
    if to == BOOL
        && value.is_constant()
        && let Ok(numbers) = value.numbers("conditions")
    {
        let elements = numbers.iter().map(|number| Size::number(i64::from(*number != 0)));
        return one(Ok(Value {
            elements: Some(elements.collect()),
            origin: None,
            ..value.clone()
        }));
    }
    one(integers::cast(value, INTEGERS.contains(&to), call.symbols))
}

/// `Where`: a choice for each element, also of sizes.
pub(super) fn choose(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let (condition, a, b) = (call.input(0)?, call.input(1)?, call.input(2)?);
    if let Some(value) = choose_sizes(call, condition, a, b) {
        return one(Ok(value));
    }
    one(elementwise(&[condition, a, b], call.symbols))
}

/// Of vectors of equal length.
fn choose_sizes(call: &OnnxCall, condition: &Value, a: &Value, b: &Value) -> Option<Value> {
    let (chosen, x, y) = (condition.elements.as_ref()?, a.elements.as_ref()?, b.elements.as_ref()?);
    let is_vector = |value: &Value| value.rank() == Some(1);
    if ![condition, a, b].into_iter().all(is_vector)
        || chosen.len() != x.len()
        || x.len() != y.len()
    {
        return None;
    }
    let size = |((chosen, a), b): ((&Size, &Size), &Size)| match chosen.as_number() {
        Some(0) => b.clone(),
        Some(_) => a.clone(),
        None if a == b => a.clone(),
        None if a.is_fixed() && b.is_fixed() && chosen.is_fixed() => call.symbols.fresh(),
        None => Size::Other,
    };
    Some(Value::vector(chosen.iter().zip(x).zip(y).map(size).collect()))
}

/// `Dropout`: in training it draws random numbers.
pub(super) fn dropout(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    let is_training = match call.optional(2) {
        Some(training) => !training.number("a training mode").is_ok_and(|mode| mode == 0),
        // Before version 7, training is the default.
        None => call.version < 7 && !call.flag("is_test"),
    };
    if is_training {
        return mixed("drops out elements at random");
    }
    let mask = elementwise(&[value], call.symbols)?;
    Ok(vec![value.clone(), mask])
}

/// A constant in an attribute.
pub(super) fn constant(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let Some(attribute) = call.attributes.first() else {
        return unknown("has no value");
    };
    let length = attribute.ints.len().max(attribute.floats.len()).max(attribute.strings.len());
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    one(Ok(match (attribute.name.as_str(), &attribute.t) {
        ("value", Some(tensor)) => super::call::constant(tensor, call.symbols),
        ("value_int", _) => Value::scalar(Size::number(attribute.i.unwrap_or(0))),
        ("value_ints", _) if attribute.ints.len() <= tensorserve_rows::MAX_ELEMENTS => {
            Value::vector(attribute.ints.iter().map(|its| Size::number(*its)).collect())
        }
        ("value_float" | "value_string", _) => Value::constant_of(&[], call.symbols),
        ("value_floats" | "value_ints" | "value_strings", _) => {
            Value::constant_of(&[length], call.symbols)
        }
        _ => Value::constant(),
    }))
}

/// `QuantizeLinear` and `DequantizeLinear`: with one scale, or one for each part along a dimension.
pub(super) fn quantize(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let value = call.input(0)?;
    call.constants_from(1)?;
    let scale = call.input(1)?.known_dims()?;
    let is_one = scale.iter().all(|size| size.is(1));
    one(match scale.len() {
        0 | 1 if is_one => elementwise(&[value], call.symbols),
        1 => shapes::kept_along(value, call.int("axis", 1), "scales rows by their number"),
        _ => unknown("has scales for blocks of elements"),
    })
}

/// An operator with scales of its inputs, which are constant: the inputs at `values` are combined.
fn scaled<'c>(call: &'c OnnxCall, values: &[usize]) -> Result<Vec<&'c Value>, Stop> {
    let mut taken = Vec::new();
    for index in 0..call.inputs.len() {
        match call.optional(index) {
            Some(value) if values.contains(&index) => taken.push(value),
            Some(value) if !value.is_constant() => {
                return mixed("takes scales that depend on the batch");
            }
            _ => {}
        }
    }
    Ok(taken)
}

/// `QLinearAdd` and others of two tensors.
pub(super) fn each_of_two_scaled(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(elementwise(&scaled(call, &[0, 3])?, call.symbols))
}

/// `QLinearSigmoid` and others of one tensor.
pub(super) fn each_of_one_scaled(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    one(elementwise(&scaled(call, &[0])?, call.symbols))
}

/// The result is of all elements together, unless none comes from a row.
pub(super) fn whole(call: &OnnxCall, does: &str) -> Result<Vec<Value>, Stop> {
    let flow: Option<Flow> = plain_flow(&call.from(0))?;
    match flow {
        Some(flow) => Ok(vec![Value::new(flow, None); call.outputs]),
        None => mixed(does),
    }
}

/// An elementwise operation that may do something else with one of its attributes.
pub(super) fn normalize_text(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let words = call.attribute("stopwords").is_some_and(|words| !words.strings.is_empty());
    match words {
        true => whole(call, "leaves out rows that are stop words"),
        false => each_of_first(call),
    }
}
