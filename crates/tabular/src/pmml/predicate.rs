//! Predicates: conditions of a row's fields that are true, false, or unknown because a value is
//! missing.

use super::field::{Kind, Row, Scope, Symbols};
use super::xml::{Element, MAX_DEPTH};
use tensorserve_tensor::error::Result;

/// What a predicate says of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Truth {
    True,
    False,
    Unknown,
}

impl From<bool> for Truth {
    fn from(value: bool) -> Self {
        if value { Truth::True } else { Truth::False }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "equal" => Comparison::Equal,
            "notEqual" => Comparison::NotEqual,
            "lessThan" => Comparison::Less,
            "lessOrEqual" => Comparison::LessOrEqual,
            "greaterThan" => Comparison::Greater,
            "greaterOrEqual" => Comparison::GreaterOrEqual,
            _ => return None,
        })
    }

    /// Whether it asks for an order, which strings have none of here.
    pub(super) fn is_of_order(self) -> bool {
        !matches!(self, Comparison::Equal | Comparison::NotEqual)
    }

    /// Of two values that are there.
    #[inline]
    #[allow(clippy::float_cmp)] // The standard compares numbers as they are.
    pub(super) fn holds(self, a: f64, b: f64) -> bool {
        match self {
            Comparison::Equal => a == b,
            Comparison::NotEqual => a != b,
            Comparison::Less => a < b,
            Comparison::LessOrEqual => a <= b,
            Comparison::Greater => a > b,
            Comparison::GreaterOrEqual => a >= b,
        }
    }
}

#[derive(Debug)]
pub(super) enum Predicate {
    Always(bool),
    Compare {
        slot: u32,
        by: Comparison,
        with: f64,
    },
    IsMissing {
        slot: u32,
        wanted: bool,
    },
    /// Whether a value is one of those, which are sorted.
    IsIn {
        slot: u32,
        wanted: bool,
        set: Box<[f64]>,
    },
    And(Box<[Predicate]>),
    Or(Box<[Predicate]>),
    Xor(Box<[Predicate]>),
    /// The first that is known.
    Surrogate(Box<[Predicate]>),
}

impl Predicate {
    #[inline]
    pub(super) fn test(&self, row: &Row) -> Truth {
        match self {
            Predicate::Compare { slot, by, with } => {
                let value = row.get(*slot);
                if value.is_nan() { Truth::Unknown } else { by.holds(value, *with).into() }
            }
            Predicate::Always(truth) => (*truth).into(),
            Predicate::IsMissing { slot, wanted } => (row.get(*slot).is_nan() == *wanted).into(),
            Predicate::IsIn { slot, wanted, set } => {
                let value = row.get(*slot);
                if value.is_nan() {
                    return Truth::Unknown;
                }
                (contains(set, value) == *wanted).into()
            }
            Predicate::And(parts) => until(parts, row, Truth::False),
            Predicate::Or(parts) => until(parts, row, Truth::True),
            Predicate::Xor(parts) => odd(parts, row),
            Predicate::Surrogate(parts) => {
                let mut known = parts.iter().map(|part| part.test(row));
                known.find(|truth| *truth != Truth::Unknown).unwrap_or(Truth::Unknown)
            }
        }
    }
}

/// Whether a value is in a sorted set.
#[allow(clippy::float_cmp)]
pub(super) fn contains(set: &[f64], value: f64) -> bool {
    let at = set.partition_point(|member| *member < value);
    set.get(at).is_some_and(|member| *member == value)
}

/// `decisive` if any part is that, else unknown if any is unknown, else the opposite.
fn until(parts: &[Predicate], row: &Row, decisive: Truth) -> Truth {
    let mut unknown = false;
    for part in parts {
        match part.test(row) {
            truth if truth == decisive => return decisive,
            Truth::Unknown => unknown = true,
            Truth::True | Truth::False => {}
        }
    }
    match unknown {
        true => Truth::Unknown,
        false => (decisive == Truth::False).into(),
    }
}

fn odd(parts: &[Predicate], row: &Row) -> Truth {
    let mut odd = false;
    for part in parts {
        match part.test(row) {
            Truth::Unknown => return Truth::Unknown,
            Truth::True => odd = !odd,
            Truth::False => {}
        }
    }
    odd.into()
}

const NAMES: [&str; 5] =
    ["True", "False", "SimplePredicate", "SimpleSetPredicate", "CompoundPredicate"];

/// The predicate among the children of `element`.
pub(super) fn of(element: Element, scope: &Scope, symbols: &mut Symbols) -> Result<Predicate> {
    let found = element.children().find(|child| NAMES.contains(&child.name()));
    let predicate = found.ok_or_else(|| element.damaged("has no predicate"))?;
    read(predicate, scope, symbols, 0)
}

fn read(element: Element, scope: &Scope, symbols: &mut Symbols, depth: usize) -> Result<Predicate> {
    match element.name() {
        "True" => Ok(Predicate::Always(true)),
        "False" => Ok(Predicate::Always(false)),
        "SimplePredicate" => simple(element, scope, symbols),
        "SimpleSetPredicate" => set(element, scope, symbols),
        "CompoundPredicate" => compound(element, scope, symbols, depth),
        _ => Err(element.damaged("is not a predicate")),
    }
}

fn simple(element: Element, scope: &Scope, symbols: &mut Symbols) -> Result<Predicate> {
    let field = scope.field(element, "field")?;
    let slot = field.slot;
    let operator = element.need("operator")?;
    match operator {
        "isMissing" => return Ok(Predicate::IsMissing { slot, wanted: true }),
        "isNotMissing" => return Ok(Predicate::IsMissing { slot, wanted: false }),
        _ => {}
    }
    let by = Comparison::named(operator)
        .ok_or_else(|| element.damaged(format!("operator={operator:?} is not known")))?;
    if field.kind == Kind::Text && by.is_of_order() {
        return Err(element.unsupported("the order of strings"));
    }
    let with = symbols.constant(element, field.kind, field.single, element.need("value")?)?;
    Ok(Predicate::Compare { slot, by, with })
}

fn set(element: Element, scope: &Scope, symbols: &mut Symbols) -> Result<Predicate> {
    let field = scope.field(element, "field")?;
    let wanted = match element.need("booleanOperator")? {
        "isIn" => true,
        "isNotIn" => false,
        other => return Err(element.damaged(format!("booleanOperator={other:?} is not known"))),
    };
    let mut set = Vec::new();
    for text in element.array()? {
        set.push(symbols.constant(element, field.kind, field.single, &text)?);
    }
    set.sort_by(f64::total_cmp);
    Ok(Predicate::IsIn { slot: field.slot, wanted, set: set.into() })
}

fn compound(
    element: Element,
    scope: &Scope,
    symbols: &mut Symbols,
    depth: usize,
) -> Result<Predicate> {
    if depth >= MAX_DEPTH {
        return Err(element.damaged("is nested too deeply"));
    }
    let mut parts = Vec::new();
    for child in element.children() {
        parts.push(read(child, scope, symbols, depth + 1)?);
    }
    if parts.is_empty() {
        return Err(element.damaged("has no predicate"));
    }
    let parts = parts.into();
    match element.need("booleanOperator")? {
        "and" => Ok(Predicate::And(parts)),
        "or" => Ok(Predicate::Or(parts)),
        "xor" => Ok(Predicate::Xor(parts)),
        "surrogate" => Ok(Predicate::Surrogate(parts)),
        other => Err(element.damaged(format!("booleanOperator={other:?} is not known"))),
    }
}
