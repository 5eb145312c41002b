//! The functions of `Apply`.

use smallvec::SmallVec;

use super::expression::{Expression, Reader, Typed};
use super::field::{Kind, MISSING, Row};
use super::predicate::Comparison;
use super::xml::Element;
use tensorserve_tensor::error::Result;

/// A function of values.
#[derive(Debug)]
pub(super) struct Apply {
    function: Function,
    arguments: Box<[Expression]>,
    /// The result if an argument is missing; missing: whatever the function then makes of it.
    missing: f64,
    /// The result instead of a missing one.
    default: f64,
}

#[derive(Clone, Copy, Debug)]
enum Function {
    One(fn(f64) -> f64),
    Two(fn(f64, f64) -> f64),
    Fold(Fold),
    Compare(Comparison),
    SameText { wanted: bool },
    IsIn { text: bool, wanted: bool },
    IsMissing { wanted: bool },
    And,
    Or,
    If,
}

/// Functions of any number of values, of which missing ones do not count.
#[derive(Clone, Copy, Debug)]
enum Fold {
    Min,
    Max,
    Sum,
    Mean,
    Product,
}

fn one(name: &str) -> Option<fn(f64) -> f64> {
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
        // Halves go up, as the standard says; `f64::round` sends them away from 0.
        "round" => |x| (x + 0.5).floor(),
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
        "not" => |x| 1.0 - x,
        _ => return None,
    })
}

fn two(name: &str) -> Option<fn(f64, f64) -> f64> {
    Some(match name {
        "+" => |a, b| a + b,
        "-" => |a, b| a - b,
        "*" => |a, b| a * b,
        "/" => |a, b| a / b,
        // A missing value to the power of 0 is missing, not 1.
        "pow" => |a, b| if a.is_nan() || b.is_nan() { MISSING } else { a.powf(b) },
        "threshold" => {
            |a, b| if a.is_nan() || b.is_nan() { MISSING } else { f64::from(u8::from(a > b)) }
        }
        // The sign is that of the divisor.
        "modulo" => |a, b| a - b * (a / b).floor(),
        "hypot" => |a, b| if a.is_nan() || b.is_nan() { MISSING } else { a.hypot(b) },
        "atan2" => f64::atan2,
        _ => return None,
    })
}

fn fold(name: &str) -> Option<Fold> {
    Some(match name {
        "min" => Fold::Min,
        "max" => Fold::Max,
        "sum" => Fold::Sum,
        "avg" => Fold::Mean,
        "product" => Fold::Product,
        _ => return None,
    })
}

impl Fold {
    #[allow(clippy::cast_precision_loss)]
    fn of(self, values: &[f64]) -> f64 {
        let (mut count, mut result) = (0usize, MISSING);
        for value in values.iter().copied().filter(|value| !value.is_nan()) {
            count += 1;
            result = match self {
                _ if count == 1 => value,
                Fold::Min => result.min(value),
                Fold::Max => result.max(value),
                Fold::Sum | Fold::Mean => result + value,
                Fold::Product => result * value,
            };
        }
        match self {
            Fold::Mean => result / count as f64,
            Fold::Min | Fold::Max | Fold::Sum | Fold::Product => result,
        }
    }
}

impl Apply {
    pub(super) fn read(reader: &mut Reader, element: Element, depth: usize) -> Result<Typed> {
        let name = element.need("function")?;
        if let Some(other) = element.attribute("invalidValueTreatment")
            && !matches!(other, "returnInvalid" | "asMissing")
        {
            return Err(element.unsupported(format!("invalidValueTreatment={other:?}")));
        }
        let mut typed = Vec::new();
        for child in element.children() {
            typed.push(reader.read(child, depth + 1)?);
        }
        let kinds: Vec<Kind> = typed.iter().map(|argument| argument.kind).collect();
        let (function, kind) = choose(element, name, &kinds)?;
        let mut replacement = |attribute| match element.attribute(attribute) {
            Some(text) => reader.symbols.constant(element, kind, false, text),
            None => Ok(MISSING),
        };
        let missing = replacement("mapMissingTo")?;
        let default = replacement("defaultValue")?;
        let arguments = typed.into_iter().map(|argument| argument.expression).collect();
        let apply = Apply { function, arguments, missing, default };
        Ok(Typed { expression: Expression::Apply(Box::new(apply)), kind })
    }

    pub(super) fn value(&self, row: &Row) -> f64 {
        // Each argument once: functions within functions must not multiply the work.
        let values: SmallVec<[f64; 8]> = self.arguments.iter().map(|e| e.value(row)).collect();
        if !self.missing.is_nan() && values.iter().any(|value| value.is_nan()) {
            return self.missing;
        }
        let value = self.function.of(&values, row);
        if value.is_nan() { self.default } else { value }
    }
}

impl Function {
    fn of(self, values: &[f64], row: &Row) -> f64 {
        let at = |index: usize| values.get(index).copied().unwrap_or(MISSING);
        match self {
            Function::One(function) => function(at(0)),
            Function::Two(function) => function(at(0), at(1)),
            Function::Fold(fold) => fold.of(values),
            Function::Compare(by) => both(at(0), at(1), |a, b| by.holds(a, b)),
            Function::SameText { wanted } => {
                both(at(0), at(1), |a, b| row.same_text(a, b) == wanted)
            }
            Function::IsIn { text: true, wanted } => {
                is_in(values, wanted, |a, b| row.same_text(a, b))
            }
            #[allow(clippy::float_cmp)]
            Function::IsIn { text: false, wanted } => is_in(values, wanted, |a, b| a == b),
            Function::IsMissing { wanted } => flag(at(0).is_nan() == wanted),
            Function::And => until(values, 0.0),
            Function::Or => until(values, 1.0),
            Function::If => match at(0) {
                condition if condition.is_nan() => MISSING,
                0.0 => at(2),
                _ => at(1),
            },
        }
    }
}

/// Whether the first value is among the others.
fn is_in(values: &[f64], wanted: bool, same: impl Fn(f64, f64) -> bool) -> f64 {
    match values.split_first() {
        Some((value, others)) if !value.is_nan() => {
            let found = others.iter().any(|other| !other.is_nan() && same(*value, *other));
            flag(found == wanted)
        }
        _ => MISSING,
    }
}

/// `decisive` if any value is that, else missing if any is missing, else the opposite.
#[allow(clippy::float_cmp)] // They are 0 or 1.
fn until(values: &[f64], decisive: f64) -> f64 {
    if values.contains(&decisive) {
        return decisive;
    }
    if values.iter().any(|value| value.is_nan()) { MISSING } else { 1.0 - decisive }
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn both(a: f64, b: f64, holds: impl FnOnce(f64, f64) -> bool) -> f64 {
    if a.is_nan() || b.is_nan() { MISSING } else { flag(holds(a, b)) }
}

/// The function `name` of such arguments, and what its results are.
fn choose(element: Element, name: &str, kinds: &[Kind]) -> Result<(Function, Kind)> {
    let all = |kind: Kind| kinds.iter().all(|&k| k == kind);
    let numeric = kinds.iter().all(|&kind| kind != Kind::Text);
    let same = kinds.windows(2).all(|pair| matches!(pair, [a, b] if a == b));
    let count = kinds.len();
    let wrong = |what: &str| Err(element.damaged(format!("function={name:?} needs {what}")));
    if let Some(by) = Comparison::named(name) {
        return match (count, numeric) {
            (2, true) => Ok((Function::Compare(by), Kind::Flag)),
            (2, false) if by.is_of_order() => Err(element.unsupported("the order of strings")),
            (2, false) if same => {
                let wanted = matches!(by, Comparison::Equal);
                Ok((Function::SameText { wanted }, Kind::Flag))
            }
            (2, false) => Err(element.unsupported("comparing a string with a number")),
            _ => wrong("2 arguments"),
        };
    }
    if let Some(function) = one(name) {
        let kind = if name == "not" { Kind::Flag } else { Kind::Number };
        return match count == 1 && numeric && (name != "not" || all(Kind::Flag)) {
            true => Ok((Function::One(function), kind)),
            false => wrong("1 argument that is a number (a truth value for not)"),
        };
    }
    if let Some(function) = two(name) {
        return match count == 2 && numeric {
            true => Ok((Function::Two(function), Kind::Number)),
            false => wrong("2 arguments that are numbers"),
        };
    }
    if let Some(fold) = fold(name) {
        return match count > 0 && numeric {
            true => Ok((Function::Fold(fold), Kind::Number)),
            false => wrong("arguments that are numbers"),
        };
    }
    match name {
        "isMissing" | "isNotValid" if count == 1 => {
            Ok((Function::IsMissing { wanted: true }, Kind::Flag))
        }
        "isNotMissing" | "isValid" if count == 1 => {
            Ok((Function::IsMissing { wanted: false }, Kind::Flag))
        }
        "and" if count > 0 && all(Kind::Flag) => Ok((Function::And, Kind::Flag)),
        "or" if count > 0 && all(Kind::Flag) => Ok((Function::Or, Kind::Flag)),
        "isIn" | "isNotIn" if count > 1 => {
            if !same && !numeric {
                return Err(element.unsupported("comparing a string with a number"));
            }
            Ok((Function::IsIn { text: !numeric, wanted: name == "isIn" }, Kind::Flag))
        }
        "if" => match kinds {
            [Kind::Flag, then] => Ok((Function::If, *then)),
            [Kind::Flag, then, other] if then == other => Ok((Function::If, *then)),
            [Kind::Flag, _, _] if numeric => Ok((Function::If, Kind::Number)),
            [Kind::Flag, _, _] => Err(element.unsupported("an if of a number and a string")),
            _ => wrong("a condition, and one or two values of one kind"),
        },
        "isMissing" | "isNotValid" | "isNotMissing" | "isValid" | "and" | "or" | "isIn"
        | "isNotIn" => wrong("other arguments"),
        _ => Err(element.unsupported(format!("function={name:?}"))),
    }
}
