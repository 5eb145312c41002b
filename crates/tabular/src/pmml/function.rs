//! The built-in functions of the standard.

use std::ops::{Add, Div, Mul, Sub};

use super::field::{MISSING, PmmlRow, ValueKind, indicator};
use super::predicate::Comparison;
use super::xml::XmlElement;
use tensorserve_tensor::error::{Error, Result};

/// A built-in function. Booleans are 0 and 1; where `expected` is false, the result is negated.
#[derive(Clone, Copy, Debug)]
pub(super) enum ApplyFunction {
    Unary(fn(f64) -> f64),
    Binary(fn(f64, f64) -> f64),
    Aggregate(AggregateFunction),
    Compare(Comparison),
    SameText { expected: bool },
    IsIn { is_text: bool, expected: bool },
    IsMissing { expected: bool },
    And,
    Or,
    If,
}

/// A function of any number of values, which ignores missing ones.
#[derive(Clone, Copy, Debug)]
pub(super) enum AggregateFunction {
    Min,
    Max,
    Sum,
    Mean,
    Product,
}

fn unary(name: &str) -> Option<fn(f64) -> f64> {
    Some(match name {
        "ln" => f64::ln,
        "log10" => f64::log10,
        "ln1p" => f64::ln_1p,
        "exp" => f64::exp,
        "expm1" => f64::exp_m1,
        "sqrt" => f64::sqrt,
        "abs" => f64::abs,
        "floor" => f64::floor,
        "ceil" => f64::ceil,
        "round" => round_half_up,
        "rint" => f64::round_ties_even,
        "sin" => f64::sin,
        "cos" => f64::cos,
        "tan" => f64::tan,
        "asin" => f64::asin,
        "acos" => f64::acos,
        "atan" => f64::atan,
        "sinh" => f64::sinh,
        "cosh" => f64::cosh,
        "tanh" => f64::tanh,
        "not" => logical_not,
        _ => return None,
    })
}

/// Rounds halves up, as the standard requires. (`f64::round` rounds them away from 0.)
fn round_half_up(x: f64) -> f64 {
    (x + 0.5).floor()
}

fn logical_not(x: f64) -> f64 {
    1.0 - x
}

fn binary(name: &str) -> Option<fn(f64, f64) -> f64> {
    Some(match name {
        "+" => f64::add,
        "-" => f64::sub,
        "*" => f64::mul,
        "/" => f64::div,
        "pow" => power,
        "threshold" => threshold,
        "modulo" => modulo,
        "hypot" => hypotenuse,
        "atan2" => f64::atan2,
        _ => return None,
    })
}

/// Missing if an argument is, also for an exponent of 0.
fn power(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { MISSING } else { a.powf(b) }
}

fn threshold(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { MISSING } else { indicator(a > b) }
}

/// The remainder, with the sign of the divisor.
fn modulo(a: f64, b: f64) -> f64 {
    a - b * (a / b).floor()
}

/// Missing if an argument is, also if the other one is infinite.
fn hypotenuse(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { MISSING } else { a.hypot(b) }
}

impl AggregateFunction {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "min" => AggregateFunction::Min,
            "max" => AggregateFunction::Max,
            "sum" => AggregateFunction::Sum,
            "avg" => AggregateFunction::Mean,
            "product" => AggregateFunction::Product,
            _ => return None,
        })
    }

    #[allow(clippy::cast_precision_loss)]
    fn evaluate(self, values: &[f64]) -> f64 {
        let (mut count, mut result) = (0usize, MISSING);
        for value in values.iter().copied().filter(|value| !value.is_nan()) {
            count += 1;
            result = match self {
                _ if count == 1 => value,
                AggregateFunction::Min => result.min(value),
                AggregateFunction::Max => result.max(value),
                AggregateFunction::Sum | AggregateFunction::Mean => result + value,
                AggregateFunction::Product => result * value,
            };
        }
        match self {
            AggregateFunction::Mean => result / count as f64,
            AggregateFunction::Min
            | AggregateFunction::Max
            | AggregateFunction::Sum
            | AggregateFunction::Product => result,
        }
    }
}

impl ApplyFunction {
    /// The function `name` of arguments of these kinds, and the kind of its result.
    pub(super) fn resolve(
        element: XmlElement,
        name: &str,
        kinds: &[ValueKind],
    ) -> Result<(ApplyFunction, ValueKind)> {
        let call = FunctionCall { element, name, kinds };
        if let Some(comparison) = Comparison::named(name) {
            return Ok((call.comparison(comparison)?, ValueKind::Boolean));
        }
        if let Some(function) = unary(name) {
            return call.unary(function);
        }
        if let Some(function) = binary(name) {
            return match kinds.len() == 2 && call.has_no_text() {
                true => Ok((ApplyFunction::Binary(function), ValueKind::Number)),
                false => Err(call.needs("2 numbers")),
            };
        }
        if let Some(function) = AggregateFunction::named(name) {
            return match !kinds.is_empty() && call.has_no_text() {
                true => Ok((ApplyFunction::Aggregate(function), ValueKind::Number)),
                false => Err(call.needs("one or more numbers")),
            };
        }
        match name {
            "if" => Ok((ApplyFunction::If, call.if_result()?)),
            _ => Ok((call.test()?, ValueKind::Boolean)),
        }
    }

    pub(super) fn evaluate(self, values: &[f64], row: &PmmlRow) -> f64 {
        match self {
            ApplyFunction::Unary(function) => function(argument(values, 0)),
            ApplyFunction::Binary(function) => function(argument(values, 0), argument(values, 1)),
            ApplyFunction::Aggregate(function) => function.evaluate(values),
            ApplyFunction::Compare(comparison) => if_present(values, |a, b| comparison.holds(a, b)),
            ApplyFunction::SameText { expected } => {
                if_present(values, |a, b| row.same_text(a, b) == expected)
            }
            ApplyFunction::IsIn { is_text: true, expected } => {
                is_in(values, expected, |a, b| row.same_text(a, b))
            }
            #[allow(clippy::float_cmp)]
            ApplyFunction::IsIn { is_text: false, expected } => {
                is_in(values, expected, |a, b| a == b)
            }
            ApplyFunction::IsMissing { expected } => {
                indicator(argument(values, 0).is_nan() == expected)
            }
            ApplyFunction::And => any_or_opposite(values, 0.0),
            ApplyFunction::Or => any_or_opposite(values, 1.0),
            ApplyFunction::If => match argument(values, 0) {
                condition if condition.is_nan() => MISSING,
                0.0 => argument(values, 2),
                _ => argument(values, 1),
            },
        }
    }
}

/// Argument number `index`; missing if there is none.
fn argument(values: &[f64], index: usize) -> f64 {
    values.get(index).copied().unwrap_or(MISSING)
}

/// Whether the first value is among the others, compared with `expected`.
fn is_in(values: &[f64], expected: bool, same: impl Fn(f64, f64) -> bool) -> f64 {
    match values.split_first() {
        Some((value, others)) if !value.is_nan() => {
            let found = others.iter().any(|other| !other.is_nan() && same(*value, *other));
            indicator(found == expected)
        }
        _ => MISSING,
    }
}

/// `decisive` if any value equals it; else missing if any is missing; else the opposite.
#[allow(clippy::float_cmp)] // Booleans.
fn any_or_opposite(values: &[f64], decisive: f64) -> f64 {
    if values.contains(&decisive) {
        return decisive;
    }
    if values.iter().any(|value| value.is_nan()) { MISSING } else { 1.0 - decisive }
}

/// Whether `holds` for the first two values; missing if one of them is.
fn if_present(values: &[f64], holds: impl FnOnce(f64, f64) -> bool) -> f64 {
    let (a, b) = (argument(values, 0), argument(values, 1));
    if a.is_nan() || b.is_nan() { MISSING } else { indicator(holds(a, b)) }
}

/// A call that is being resolved.
struct FunctionCall<'a, 'd> {
    element: XmlElement<'d>,
    name: &'a str,
    /// The kinds of the arguments.
    kinds: &'a [ValueKind],
}

impl FunctionCall<'_, '_> {
    /// Whether all arguments are booleans.
    fn has_only_booleans(&self) -> bool {
        self.kinds.iter().all(|&kind| kind == ValueKind::Boolean)
    }

    /// Whether no argument is text. Booleans count as numbers.
    fn has_no_text(&self) -> bool {
        self.kinds.iter().all(|&kind| kind != ValueKind::Text)
    }

    /// Whether all arguments are of the same kind.
    fn has_one_kind(&self) -> bool {
        self.kinds.windows(2).all(|pair| matches!(pair, [a, b] if a == b))
    }

    fn needs(&self, what: &str) -> Error {
        self.element.damaged(format!("function={:?} needs {what}", self.name))
    }

    fn mixed_comparison(&self) -> Error {
        self.element.unsupported("the comparison of a string with a number")
    }

    fn comparison(&self, comparison: Comparison) -> Result<ApplyFunction> {
        if self.kinds.len() != 2 {
            return Err(self.needs("2 arguments"));
        }
        if self.has_no_text() {
            return Ok(ApplyFunction::Compare(comparison));
        }
        if comparison.needs_order() {
            return Err(self.element.unsupported("the order of strings"));
        }
        match self.has_one_kind() {
            true => {
                Ok(ApplyFunction::SameText { expected: matches!(comparison, Comparison::Equal) })
            }
            false => Err(self.mixed_comparison()),
        }
    }

    fn unary(&self, function: fn(f64) -> f64) -> Result<(ApplyFunction, ValueKind)> {
        let is_not = self.name == "not";
        let is_valid = match is_not {
            true => self.has_only_booleans(),
            false => self.has_no_text(),
        };
        if self.kinds.len() != 1 || !is_valid {
            return Err(self.needs(if is_not { "1 boolean" } else { "1 number" }));
        }
        let kind = if is_not { ValueKind::Boolean } else { ValueKind::Number };
        Ok((ApplyFunction::Unary(function), kind))
    }

    /// A function whose result is a boolean.
    fn test(&self) -> Result<ApplyFunction> {
        let count = self.kinds.len();
        Ok(match self.name {
            "isMissing" | "isNotValid" if count == 1 => ApplyFunction::IsMissing { expected: true },
            "isNotMissing" | "isValid" if count == 1 => {
                ApplyFunction::IsMissing { expected: false }
            }
            "and" if count > 0 && self.has_only_booleans() => ApplyFunction::And,
            "or" if count > 0 && self.has_only_booleans() => ApplyFunction::Or,
            "isIn" | "isNotIn" if count > 1 => {
                if !self.has_one_kind() && !self.has_no_text() {
                    return Err(self.mixed_comparison());
                }
                let expected = self.name == "isIn";
                ApplyFunction::IsIn { is_text: !self.has_no_text(), expected }
            }
            "isMissing" | "isNotValid" | "isNotMissing" | "isValid" => {
                return Err(self.needs("1 argument"));
            }
            "and" | "or" => return Err(self.needs("one or more booleans")),
            "isIn" | "isNotIn" => return Err(self.needs("2 or more arguments")),
            _ => return Err(self.element.unsupported(format!("function={:?}", self.name))),
        })
    }

    /// The kind of the result of `if`.
    fn if_result(&self) -> Result<ValueKind> {
        match self.kinds {
            [ValueKind::Boolean, then] => Ok(*then),
            [ValueKind::Boolean, then, other] if then == other => Ok(*then),
            [ValueKind::Boolean, _, _] if self.has_no_text() => Ok(ValueKind::Number),
            [ValueKind::Boolean, _, _] => {
                Err(self.element.unsupported("an if of a number and a string"))
            }
            _ => Err(self.needs("a boolean, and one or two values of one kind")),
        }
    }
}
