//! Predicates: conditions on a row that are true, false, or unknown because a value is missing.

use super::field::{FieldScope, PmmlRow, StringTable, ValueKind};
use super::xml::{MAX_DEPTH, XmlElement};
use tensorserve_tensor::error::Result;

/// The result of a predicate, in three-valued logic.
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
    /// The comparison with this name in the standard.
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

    /// Whether it depends on an order. Strings, as codes, do not have one.
    pub(super) fn needs_order(self) -> bool {
        !matches!(self, Comparison::Equal | Comparison::NotEqual)
    }

    /// Whether it holds for two values, neither of them missing.
    #[inline]
    #[allow(clippy::float_cmp)] // The standard compares numbers exactly.
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
        comparison: Comparison,
        value: f64,
    },
    /// True if whether the value is missing equals `expected`.
    IsMissing {
        slot: u32,
        expected: bool,
    },
    /// True if whether the value is in the set, which is sorted, equals `expected`.
    IsIn {
        slot: u32,
        expected: bool,
        set: Box<[f64]>,
    },
    And(Box<[Predicate]>),
    Or(Box<[Predicate]>),
    Xor(Box<[Predicate]>),
    /// The first predicate that is not unknown.
    Surrogate(Box<[Predicate]>),
}

impl Predicate {
    #[inline]
    pub(super) fn test(&self, row: &PmmlRow) -> Truth {
        match self {
            Predicate::Compare { slot, comparison, value } => {
                let field = row.get(*slot);
                if field.is_nan() { Truth::Unknown } else { comparison.holds(field, *value).into() }
            }
            Predicate::Always(truth) => (*truth).into(),
            Predicate::IsMissing { slot, expected } => {
                (row.get(*slot).is_nan() == *expected).into()
            }
            Predicate::IsIn { slot, expected, set } => {
                let field = row.get(*slot);
                if field.is_nan() {
                    return Truth::Unknown;
                }
                (contains(set, field) == *expected).into()
            }
            Predicate::And(parts) => any_or_opposite(parts, row, Truth::False),
            Predicate::Or(parts) => any_or_opposite(parts, row, Truth::True),
            Predicate::Xor(parts) => exclusive_or(parts, row),
            Predicate::Surrogate(parts) => {
                let mut results = parts.iter().map(|part| part.test(row));
                results.find(|truth| *truth != Truth::Unknown).unwrap_or(Truth::Unknown)
            }
        }
    }
}

/// Whether a value is in a sorted set.
#[allow(clippy::float_cmp)]
pub(super) fn contains(set: &[f64], value: f64) -> bool {
    let index = set.partition_point(|member| *member < value);
    set.get(index).is_some_and(|member| *member == value)
}

/// `decisive` if any part has that result; else unknown if any is unknown; else the opposite.
fn any_or_opposite(parts: &[Predicate], row: &PmmlRow, decisive: Truth) -> Truth {
    let mut is_unknown = false;
    for part in parts {
        match part.test(row) {
            truth if truth == decisive => return decisive,
            Truth::Unknown => is_unknown = true,
            Truth::True | Truth::False => {}
        }
    }
    match is_unknown {
        true => Truth::Unknown,
        false => (decisive == Truth::False).into(),
    }
}

fn exclusive_or(parts: &[Predicate], row: &PmmlRow) -> Truth {
    let mut is_odd = false;
    for part in parts {
        match part.test(row) {
            Truth::Unknown => return Truth::Unknown,
            Truth::True => is_odd = !is_odd,
            Truth::False => {}
        }
    }
    is_odd.into()
}

/// The elements that are predicates.
const ELEMENTS: [&str; 5] =
    ["True", "False", "SimplePredicate", "SimpleSetPredicate", "CompoundPredicate"];

/// Reads the predicate among the children of `element`.
pub(super) fn read_child(
    element: XmlElement,
    scope: &FieldScope,
    strings: &mut StringTable,
) -> Result<Predicate> {
    let found = element.children().find(|child| ELEMENTS.contains(&child.name()));
    let predicate = found.ok_or_else(|| element.damaged("has no predicate"))?;
    read(predicate, scope, strings, 0)
}

fn read(
    element: XmlElement,
    scope: &FieldScope,
    strings: &mut StringTable,
    depth: usize,
) -> Result<Predicate> {
    match element.name() {
        "True" => Ok(Predicate::Always(true)),
        "False" => Ok(Predicate::Always(false)),
        "SimplePredicate" => read_simple(element, scope, strings),
        "SimpleSetPredicate" => read_set(element, scope, strings),
        "CompoundPredicate" => read_compound(element, scope, strings, depth),
        _ => Err(element.damaged("is not a predicate")),
    }
}

fn read_simple(
    element: XmlElement,
    scope: &FieldScope,
    strings: &mut StringTable,
) -> Result<Predicate> {
    let field = scope.field(element, "field")?;
    let slot = field.slot;
    let operator = element.required("operator")?;
    match operator {
        "isMissing" => return Ok(Predicate::IsMissing { slot, expected: true }),
        "isNotMissing" => return Ok(Predicate::IsMissing { slot, expected: false }),
        _ => {}
    }
    let comparison = Comparison::named(operator)
        .ok_or_else(|| element.damaged(format!("operator={operator:?} is not valid")))?;
    if field.data_type.kind == ValueKind::Text && comparison.needs_order() {
        return Err(element.unsupported("the order of strings"));
    }
    let value = strings.constant(element, field.data_type, element.required("value")?)?;
    Ok(Predicate::Compare { slot, comparison, value })
}

fn read_set(
    element: XmlElement,
    scope: &FieldScope,
    strings: &mut StringTable,
) -> Result<Predicate> {
    let field = scope.field(element, "field")?;
    let expected = match element.required("booleanOperator")? {
        "isIn" => true,
        "isNotIn" => false,
        other => return Err(element.damaged(format!("booleanOperator={other:?} is not valid"))),
    };
    let mut set = Vec::new();
    for text in element.array()? {
        set.push(strings.constant(element, field.data_type, &text)?);
    }
    set.sort_by(f64::total_cmp);
    Ok(Predicate::IsIn { slot: field.slot, expected, set: set.into() })
}

fn read_compound(
    element: XmlElement,
    scope: &FieldScope,
    strings: &mut StringTable,
    depth: usize,
) -> Result<Predicate> {
    if depth >= MAX_DEPTH {
        return Err(element.damaged("is nested too deeply"));
    }
    let mut parts = Vec::new();
    for child in element.children() {
        parts.push(read(child, scope, strings, depth + 1)?);
    }
    if parts.is_empty() {
        return Err(element.damaged("has no predicate"));
    }
    let parts = parts.into();
    match element.required("booleanOperator")? {
        "and" => Ok(Predicate::And(parts)),
        "or" => Ok(Predicate::Or(parts)),
        "xor" => Ok(Predicate::Xor(parts)),
        "surrogate" => Ok(Predicate::Surrogate(parts)),
        other => Err(element.damaged(format!("booleanOperator={other:?} is not valid"))),
    }
}
