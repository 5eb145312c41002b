//! Arithmetic on small integers: shapes are computed with it.

use crate::plain::elementwise;
use crate::size::{Size, Symbols};
use crate::value::{Flow, Outcome, Value, mixed};

/// An operation on two integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integers {
    /// `a + b`
    Add,
    /// `a - b`
    Subtract,
    /// `a * b`
    Multiply,
    /// `a / b`, rounded down
    FloorDivide,
    /// The greater one.
    Maximum,
    /// The smaller one.
    Minimum,
    /// `a < b`
    Less,
    /// `a > b`
    Greater,
    /// `a <= b`
    LessEqual,
    /// `a >= b`
    GreaterEqual,
    /// `a == b`
    Equal,
    /// `a != b`
    NotEqual,
    /// Both are true.
    And,
    /// One is true.
    Or,
}

/// An elementwise operation on two tensors, which may be small integers.
///
/// # Errors
/// As [`elementwise`].
pub fn arithmetic(op: Integers, a: &Value, b: &Value, symbols: &Symbols) -> Outcome {
    if let Some(value) = with_counter(op, a, b) {
        return Ok(value);
    }
    if let Some(value) = at_least(op, a, b) {
        return Ok(value);
    }
    if matches!(a.flow, Flow::BelowRows) || matches!(b.flow, Flow::BelowRows) {
        return match (op, &a.flow, &b.flow) {
            (Integers::And, Flow::BelowRows, Flow::BelowRows) => Ok(a.clone()),
            _ => mixed("computes with the number of rows"),
        };
    }
    let value = elementwise(&[a, b], symbols)?;
    if !matches!(value.flow, Flow::Constant | Flow::RowCount) {
        return Ok(value);
    }
    let (Some(x), Some(y), Some(dims)) = (&a.elements, &b.elements, value.dims.clone()) else {
        return Ok(value);
    };
    let count = x.len().max(y.len());
    if dims.len() > 1 || (x.len() != count && x.len() != 1) || (y.len() != count && y.len() != 1) {
        return Ok(value);
    }
    let pairs = (0..count).filter_map(|i| Some((at(x, i)?, at(y, i)?)));
    let elements: Vec<Size> = pairs.map(|(x, y)| of_sizes(op, x, y, symbols)).collect();
    Ok(Value::of_elements(elements, dims))
}

/// Element `index`, or the only one.
fn at(elements: &[Size], index: usize) -> Option<&Size> {
    match elements {
        [only] => Some(only),
        _ => elements.get(index),
    }
}

/// The result for two sizes.
#[must_use]
pub fn of_sizes(op: Integers, a: &Size, b: &Size, symbols: &Symbols) -> Size {
    if let Some(holds) = with_rows(op, a, b) {
        return Size::number(i64::from(holds));
    }
    let compare = |holds: fn(i64, i64) -> bool| {
        a.map_numbers(b, symbols, move |a, b| Some(i64::from(holds(a, b))))
    };
    match op {
        Integers::Add => a.plus(b, symbols),
        Integers::Subtract => a.minus(b, symbols),
        Integers::Multiply => a.times(b),
        Integers::FloorDivide => a.floor_divided_by(b, symbols),
        Integers::Maximum if a == b => a.clone(),
        Integers::Minimum if a == b => a.clone(),
        Integers::Maximum => a.map_numbers(b, symbols, |a, b| Some(a.max(b))),
        Integers::Minimum => a.map_numbers(b, symbols, |a, b| Some(a.min(b))),
        Integers::Less => compare(|a, b| a < b),
        Integers::Greater => compare(|a, b| a > b),
        Integers::LessEqual => compare(|a, b| a <= b),
        Integers::GreaterEqual => compare(|a, b| a >= b),
        Integers::Equal if a == b && *a != Size::Other => Size::number(1),
        Integers::Equal => compare(|a, b| a == b),
        Integers::NotEqual => compare(|a, b| a != b),
        Integers::And => a.map_numbers(b, symbols, |a, b| Some(i64::from(a != 0 && b != 0))),
        Integers::Or => a.map_numbers(b, symbols, |a, b| Some(i64::from(a != 0 || b != 0))),
    }
}

/// The comparison of the number of rows, of which a batch has at least one, with a number that is smaller than
/// any that it can be.
fn with_rows(op: Integers, a: &Size, b: &Size) -> Option<bool> {
    let is_above = |rows: &Size, number: &Size| Some(number.as_number()? < rows.least_rows()?);
    let (is_greater, is_less) = (is_above(a, b) == Some(true), is_above(b, a) == Some(true));
    if !is_greater && !is_less {
        return None;
    }
    match op {
        Integers::Equal => Some(false),
        Integers::NotEqual => Some(true),
        Integers::Greater | Integers::GreaterEqual => Some(is_greater),
        Integers::Less | Integers::LessEqual => Some(is_less),
        _ => None,
    }
}

/// The counter of a loop: one more, or whether it is below a limit.
fn with_counter(op: Integers, a: &Value, b: &Value) -> Option<Value> {
    let (offset, counter, other, is_left) = match (&a.flow, &b.flow) {
        (Flow::Counter { offset }, _) => (*offset, a, b, true),
        (_, Flow::Counter { offset }) => (*offset, b, a, false),
        _ => return None,
    };
    let [size] = other.elements.as_deref()? else { return None };
    if op == Integers::Add {
        let offset = offset.checked_add(size.as_number()?)?;
        return Some(Value::new(Flow::Counter { offset }, counter.dims.clone()));
    }
    let is_below = match op {
        Integers::Less => is_left,
        Integers::Greater => !is_left,
        _ => return None,
    };
    if !is_below || offset != 0 {
        return None;
    }
    // Below another number, a row would be treated by its number in the batch.
    (*size == Size::rows()).then(|| Value::new(Flow::BelowRows, Some(Vec::new())))
}

/// `min(size, max(size, anything))` is the size, and how many numbers TensorFlow's `bincount` counts.
fn at_least(op: Integers, a: &Value, b: &Value) -> Option<Value> {
    let scalar = |value: &Value| match value.elements.as_deref() {
        Some([size]) if *size != Size::Other && value.rank() == Some(0) => Some(size.clone()),
        _ => None,
    };
    let (known, other) = match (scalar(a), scalar(b)) {
        (Some(size), None) => (size, b),
        (None, Some(size)) => (size, a),
        _ => return None,
    };
    match (op, &other.flow) {
        (Integers::Maximum, Flow::Mixed(_) | Flow::Unknown(_)) => {
            Some(Value::new(Flow::AtLeast(known), Some(Vec::new())))
        }
        (Integers::Minimum, Flow::AtLeast(least)) if *least == known => Some(Value::scalar(known)),
        _ => None,
    }
}

/// Another type of the same numbers.
///
/// # Errors
/// As [`elementwise`].
pub fn cast(value: &Value, is_integer: bool, symbols: &Symbols) -> Outcome {
    match value.flow {
        Flow::Constant | Flow::RowCount if is_integer => Ok(value.clone()),
        Flow::Counter { .. }
        | Flow::AtLeast(_)
        | Flow::BelowRows
        | Flow::RowNumbers { .. }
        | Flow::RowLengths { .. }
        | Flow::RowSplits { .. }
        | Flow::RowEnds { .. }
            if is_integer =>
        {
            Ok(value.clone())
        }
        _ => elementwise(&[value], symbols),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_row_is_compared_with_the_number_of_rows_alone() {
        let symbols = Symbols::default();
        let counter = Value::new(Flow::Counter { offset: 0 }, Some(Vec::new()));
        let (rows, three) = (Value::scalar(Size::rows()), Value::scalar(Size::number(3)));
        let below = arithmetic(Integers::Less, &counter, &rows, &symbols).expect("a condition");
        assert_eq!(below.flow, Flow::BelowRows);
        for op in [Integers::Less, Integers::Greater, Integers::Equal, Integers::Multiply] {
            assert!(arithmetic(op, &counter, &three, &symbols).is_err(), "{op:?}");
        }
        assert!(arithmetic(Integers::Greater, &counter, &rows, &symbols).is_err());
    }

    #[test]
    fn a_batch_has_rows() {
        let symbols = Symbols::default();
        let of = |op, a: &Size, b: &Size| of_sizes(op, a, b, &symbols).as_number();
        let (rows, zero, one) = (Size::rows(), Size::number(0), Size::number(1));
        assert_eq!(of(Integers::Equal, &rows, &zero), Some(0));
        assert_eq!(of(Integers::NotEqual, &zero, &rows), Some(1));
        assert_eq!(of(Integers::Greater, &rows, &zero), Some(1));
        assert_eq!(of(Integers::Less, &rows, &zero), Some(0));
        assert_eq!(of(Integers::Less, &zero, &rows), Some(1));
        assert_eq!(of(Integers::Equal, &rows, &one), None);
        assert_eq!(of(Integers::Greater, &rows, &one), None);
        assert_eq!(of(Integers::Equal, &rows.times(&symbols.fresh()), &zero), None);
    }

    #[test]
    fn a_size_is_what_remains_of_a_number_that_is_at_least_it() {
        use tensorserve_tensor::RowFinding;
        let symbols = Symbols::default();
        let (node, op, why) = (String::new(), String::new(), String::new());
        let lost = Value::new(Flow::Mixed(RowFinding { node, op, why }.into()), None);
        let six = Value::scalar(Size::number(6));
        let most = arithmetic(Integers::Maximum, &six, &lost, &symbols).expect("a number");
        let size = arithmetic(Integers::Minimum, &six, &most, &symbols).expect("a number");
        assert_eq!(size, six);
        let seven = Value::scalar(Size::number(7));
        assert!(arithmetic(Integers::Minimum, &seven, &most, &symbols).is_err());
    }
}
