//! The built-in functions of the standard.

use std::ops::{Add, Div, Mul, Sub};

use super::comparison::Comparison;
use super::field::{MISSING, PmmlType, ValueKind, indicator};
use super::numeric::{erf, inverse_normal_cdf, median, normal_cdf, normal_pdf};
use super::row::PmmlRow;
use super::temporal::SECONDS_PER_DAY;
use super::text_function::TextFunction;
use super::value;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::{Error, Result};

/// A built-in function. Booleans are 0 and 1; where `expected` is false, the result is negated.
#[derive(Debug)]
pub(super) enum ApplyFunction {
    Unary(fn(f64) -> f64),
    Binary(fn(f64, f64) -> f64),
    Ternary(fn(f64, f64, f64) -> f64),
    Aggregate(AggregateFunction),
    /// Of dates.
    Since(SinceFunction),
    Text(TextFunction),
    Compare(Comparison),
    CompareText(Comparison),
    IsIn {
        is_text: bool,
        expected: bool,
    },
    IsMissing {
        expected: bool,
    },
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
    Median,
    Product,
}

/// A function of a date or a time, and of a year if it has one.
#[derive(Clone, Copy, Debug)]
pub(super) enum SinceFunction {
    DaysSinceYear,
    SecondsSinceYear,
    SecondsSinceMidnight,
}

impl SinceFunction {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "dateDaysSinceYear" => SinceFunction::DaysSinceYear,
            "dateSecondsSinceYear" => SinceFunction::SecondsSinceYear,
            "dateSecondsSinceMidnight" => SinceFunction::SecondsSinceMidnight,
            _ => return None,
        })
    }

    #[allow(clippy::cast_possible_truncation)] // Checked.
    fn evaluate(self, date: f64, year: f64) -> f64 {
        if date.is_nan() {
            return MISSING;
        }
        let year = if (0.0..=9999.0).contains(&year) { Some(year as i32) } else { None };
        match (self, year) {
            (SinceFunction::DaysSinceYear, Some(year)) => value::days_since(date, year),
            (SinceFunction::SecondsSinceYear, Some(year)) => value::seconds_since(date, year),
            (SinceFunction::SecondsSinceMidnight, _) => date.rem_euclid(SECONDS_PER_DAY).floor(),
            (_, None) => MISSING,
        }
    }
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
        "erf" => erf,
        "stdNormalCDF" => normal_cdf,
        "stdNormalPDF" => normal_pdf,
        "stdNormalIDF" => inverse_normal_cdf,
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

fn ternary(name: &str) -> Option<fn(f64, f64, f64) -> f64> {
    Some(match name {
        "normalCDF" => |x, mean, deviation| normal_cdf((x - mean) / deviation),
        "normalPDF" => |x, mean, deviation| normal_pdf((x - mean) / deviation) / deviation,
        "normalIDF" => |p, mean, deviation| inverse_normal_cdf(p) * deviation + mean,
        _ => return None,
    })
}

/// The quotient of two integers: an integer, cut towards 0. That by 0 is missing.
fn integer_quotient(a: f64, b: f64) -> f64 {
    if b == 0.0 { MISSING } else { (a / b).trunc() }
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
            "median" => AggregateFunction::Median,
            "product" => AggregateFunction::Product,
            _ => return None,
        })
    }

    #[allow(clippy::cast_precision_loss)]
    fn evaluate(self, values: &[f64]) -> f64 {
        if let AggregateFunction::Median = self {
            let mut present = values.to_vec();
            present.retain(|value| !value.is_nan());
            return median(&mut present);
        }
        let (mut count, mut result) = (0usize, MISSING);
        for value in values.iter().copied().filter(|value| !value.is_nan()) {
            count += 1;
            result = match self {
                _ if count == 1 => value,
                AggregateFunction::Min => result.min(value),
                AggregateFunction::Max => result.max(value),
                AggregateFunction::Sum | AggregateFunction::Mean | AggregateFunction::Median => {
                    result + value
                }
                AggregateFunction::Product => result * value,
            };
        }
        match self {
            AggregateFunction::Mean => result / count as f64,
            AggregateFunction::Min
            | AggregateFunction::Max
            | AggregateFunction::Sum
            | AggregateFunction::Median
            | AggregateFunction::Product => result,
        }
    }
}

impl ApplyFunction {
    /// The function `name` of arguments of these types, and the type of its result. `TextFunction`s
    /// with a pattern are not among them.
    pub(super) fn resolve(
        element: XmlElement,
        name: &str,
        types: &[PmmlType],
    ) -> Result<(ApplyFunction, PmmlType)> {
        let call = FunctionCall { element, name, types };
        if let Some(comparison) = Comparison::named(name) {
            return Ok((call.comparison(comparison)?, PmmlType::BOOLEAN));
        }
        if let Some(function) = unary(name) {
            return call.unary(function);
        }
        if let Some(function) = binary(name) {
            return call.binary(function);
        }
        if let Some(function) = ternary(name) {
            return match types.len() == 3 && call.has_no_text() {
                true => Ok((ApplyFunction::Ternary(function), PmmlType::NUMBER)),
                false => Err(call.needs("3 numbers")),
            };
        }
        if let Some(function) = AggregateFunction::named(name) {
            let result = match function {
                AggregateFunction::Mean | AggregateFunction::Median => PmmlType::NUMBER,
                AggregateFunction::Min
                | AggregateFunction::Max
                | AggregateFunction::Sum
                | AggregateFunction::Product => call.common_number(),
            };
            return match !types.is_empty() && call.has_no_text() {
                true => Ok((ApplyFunction::Aggregate(function), result)),
                false => Err(call.needs("one or more numbers")),
            };
        }
        if let Some(function) = SinceFunction::named(name) {
            return call.since(function);
        }
        if let Some((function, result)) = TextFunction::named(name, types) {
            return Ok((ApplyFunction::Text(function), result));
        }
        match name {
            "if" => Ok((ApplyFunction::If, call.if_result()?)),
            _ => Ok((call.test()?, PmmlType::BOOLEAN)),
        }
    }

    pub(super) fn evaluate(&self, values: &[f64], row: &PmmlRow) -> f64 {
        match self {
            ApplyFunction::Unary(function) => function(argument(values, 0)),
            ApplyFunction::Binary(function) => function(argument(values, 0), argument(values, 1)),
            ApplyFunction::Ternary(function) => {
                function(argument(values, 0), argument(values, 1), argument(values, 2))
            }
            ApplyFunction::Aggregate(function) => function.evaluate(values),
            ApplyFunction::Since(function) => {
                function.evaluate(argument(values, 0), argument(values, 1))
            }
            ApplyFunction::Text(function) => function.evaluate(values, row.strings),
            ApplyFunction::Compare(comparison) => if_present(values, |a, b| comparison.holds(a, b)),
            ApplyFunction::CompareText(comparison) => if_present(values, |a, b| match comparison {
                Comparison::Equal => row.same_text(a, b),
                Comparison::NotEqual => !row.same_text(a, b),
                Comparison::Less
                | Comparison::LessOrEqual
                | Comparison::Greater
                | Comparison::GreaterOrEqual => comparison.holds_for(row.strings.compare(a, b)),
            }),
            ApplyFunction::IsIn { is_text: true, expected } => {
                is_in(values, *expected, |a, b| row.same_text(a, b))
            }
            #[allow(clippy::float_cmp)]
            ApplyFunction::IsIn { is_text: false, expected } => {
                is_in(values, *expected, |a, b| a == b)
            }
            ApplyFunction::IsMissing { expected } => {
                indicator(argument(values, 0).is_nan() == *expected)
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
    /// The types of the arguments.
    types: &'a [PmmlType],
}

impl FunctionCall<'_, '_> {
    /// Whether all arguments are booleans.
    fn has_only_booleans(&self) -> bool {
        self.types.iter().all(|one| one.kind == ValueKind::Boolean)
    }

    /// Whether all arguments are numbers or booleans, which count as numbers.
    fn has_no_text(&self) -> bool {
        let mut kinds = self.types.iter().map(|one| one.kind);
        kinds.all(|kind| matches!(kind, ValueKind::Number | ValueKind::Boolean))
    }

    /// Whether all arguments are strings.
    fn has_only_text(&self) -> bool {
        self.types.iter().all(|one| one.kind == ValueKind::Text)
    }

    /// Whether all arguments are of the same kind.
    fn has_one_kind(&self) -> bool {
        self.types.windows(2).all(|pair| matches!(pair, [a, b] if a.kind == b.kind))
    }

    /// The type of the result of arithmetic: an integer if all arguments are.
    fn common_number(&self) -> PmmlType {
        let are_integers = self.types.iter().all(|one| one.is_integer());
        if are_integers { PmmlType::INTEGER } else { PmmlType::NUMBER }
    }

    fn needs(&self, what: &str) -> Error {
        self.element.damaged(format!("function={:?} needs {what}", self.name))
    }

    fn mixed_comparison(&self) -> Error {
        self.element.unsupported("the comparison of values of different types")
    }

    fn comparison(&self, comparison: Comparison) -> Result<ApplyFunction> {
        match self.types.len() {
            2 if self.has_only_text() => Ok(ApplyFunction::CompareText(comparison)),
            2 if self.has_no_text() || self.has_one_kind() => {
                Ok(ApplyFunction::Compare(comparison))
            }
            2 => Err(self.mixed_comparison()),
            _ => Err(self.needs("2 arguments")),
        }
    }

    fn unary(&self, function: fn(f64) -> f64) -> Result<(ApplyFunction, PmmlType)> {
        let is_not = self.name == "not";
        let is_valid = match is_not {
            true => self.has_only_booleans(),
            false => self.has_no_text(),
        };
        if self.types.len() != 1 || !is_valid {
            return Err(self.needs(if is_not { "1 boolean" } else { "1 number" }));
        }
        let result = match self.name {
            "not" => PmmlType::BOOLEAN,
            "abs" => self.common_number(),
            "floor" | "ceil" | "round" => PmmlType::INTEGER,
            _ => PmmlType::NUMBER,
        };
        Ok((ApplyFunction::Unary(function), result))
    }

    fn binary(&self, function: fn(f64, f64) -> f64) -> Result<(ApplyFunction, PmmlType)> {
        if self.types.len() != 2 || !self.has_no_text() {
            return Err(self.needs("2 numbers"));
        }
        let common = self.common_number();
        let function = match self.name {
            "/" if common == PmmlType::INTEGER => integer_quotient,
            _ => function,
        };
        let result = match self.name {
            "+" | "-" | "*" | "/" | "modulo" => common,
            "threshold" => PmmlType::INTEGER,
            _ => PmmlType::NUMBER,
        };
        Ok((ApplyFunction::Binary(function), result))
    }

    fn since(&self, function: SinceFunction) -> Result<(ApplyFunction, PmmlType)> {
        let kinds: Vec<ValueKind> = self.types.iter().map(|one| one.kind).collect();
        let is_valid = match (function, &*kinds) {
            (SinceFunction::SecondsSinceMidnight, [ValueKind::Time | ValueKind::DateTime]) => true,
            (
                SinceFunction::DaysSinceYear | SinceFunction::SecondsSinceYear,
                [ValueKind::Date | ValueKind::DateTime, second],
            ) => *second == ValueKind::Number,
            _ => false,
        };
        match is_valid {
            true => Ok((ApplyFunction::Since(function), PmmlType::INTEGER)),
            false => Err(self.needs("a field with a date (or a time), and a year")),
        }
    }

    /// A function whose result is a boolean.
    fn test(&self) -> Result<ApplyFunction> {
        let count = self.types.len();
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
                ApplyFunction::IsIn { is_text: self.has_only_text(), expected: self.name == "isIn" }
            }
            "isMissing" | "isNotValid" | "isNotMissing" | "isValid" => {
                return Err(self.needs("1 argument"));
            }
            "and" | "or" => return Err(self.needs("one or more booleans")),
            "isIn" | "isNotIn" => return Err(self.needs("2 or more arguments")),
            _ if TextFunction::is_known(self.name) => {
                return Err(self.needs(TextFunction::arguments_of(self.name)));
            }
            _ => return Err(self.element.unsupported(format!("function={:?}", self.name))),
        })
    }

    /// The type of the result of `if`.
    fn if_result(&self) -> Result<PmmlType> {
        match self.types {
            [PmmlType::BOOLEAN, then] => Ok(*then),
            [PmmlType::BOOLEAN, then, other] if then == other => Ok(*then),
            [PmmlType::BOOLEAN, then, other] if then.is_number() && other.is_number() => {
                Ok(PmmlType::NUMBER)
            }
            [PmmlType::BOOLEAN, _, _] if self.has_no_text() => Ok(PmmlType::NUMBER),
            [PmmlType::BOOLEAN, _, _] => {
                Err(self.element.unsupported("an if of values of different types"))
            }
            _ => Err(self.needs("a boolean, and one or two values of one kind")),
        }
    }
}
