//! Predicates: conditions on a row that are true, false, or unknown because a value is missing.

use super::builder::PmmlBuilder;
use super::comparison::Comparison;
use super::field::{FieldScope, ValueKind};
use super::row::PmmlRow;
use tensorserve_codec::xml::{MAX_DEPTH, XmlElement};
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

#[derive(Debug)]
pub(super) enum Predicate {
    Always(bool),
    Compare {
        slot: u32,
        comparison: Comparison,
        value: f64,
    },
    /// The order of strings, none of which the data dictionary lists.
    CompareText {
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
            Predicate::CompareText { slot, comparison, value } => {
                let field = row.get(*slot);
                if field.is_nan() {
                    return Truth::Unknown;
                }
                comparison.holds_for(row.strings.compare(field, *value)).into()
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
    builder: &mut PmmlBuilder,
) -> Result<Predicate> {
    let found = element.children().find(|child| ELEMENTS.contains(&child.name()));
    let predicate = found.ok_or_else(|| element.damaged("has no predicate"))?;
    read(predicate, scope, builder, 0)
}

fn read(
    element: XmlElement,
    scope: &FieldScope,
    builder: &mut PmmlBuilder,
    depth: usize,
) -> Result<Predicate> {
    match element.name() {
        "True" => Ok(Predicate::Always(true)),
        "False" => Ok(Predicate::Always(false)),
        "SimplePredicate" => read_simple(element, scope, builder),
        "SimpleSetPredicate" => read_set(element, scope, builder),
        "CompoundPredicate" => read_compound(element, scope, builder, depth),
        _ => Err(element.damaged("is not a predicate")),
    }
}

fn read_simple(
    element: XmlElement,
    scope: &FieldScope,
    builder: &mut PmmlBuilder,
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
    let value = builder.strings.constant(element, field.data_type, element.required("value")?)?;
    if field.data_type.kind != ValueKind::Text || !comparison.needs_order() {
        return Ok(Predicate::Compare { slot, comparison, value });
    }
    // The data dictionary lists the values of an ordinal field in their order.
    let listed = builder.ordinal_values(element.required("field")?, field.data_type)?;
    let Some(rank) = listed.iter().position(|known| known.to_bits() == value.to_bits()) else {
        return Ok(Predicate::CompareText { slot, comparison, value });
    };
    let ranks = listed.iter().enumerate();
    let holds = ranks.filter(|(other, _)| comparison.holds_for(other.cmp(&rank)));
    let mut set: Vec<f64> = holds.map(|(_, value)| *value).collect();
    set.sort_by(f64::total_cmp);
    Ok(Predicate::IsIn { slot, expected: true, set: set.into() })
}

fn read_set(
    element: XmlElement,
    scope: &FieldScope,
    builder: &mut PmmlBuilder,
) -> Result<Predicate> {
    let field = scope.field(element, "field")?;
    let expected = match element.required("booleanOperator")? {
        "isIn" => true,
        "isNotIn" => false,
        other => return Err(element.damaged(format!("booleanOperator={other:?} is not valid"))),
    };
    let mut set = Vec::new();
    for text in element.array()? {
        set.push(builder.strings.constant(element, field.data_type, &text)?);
    }
    set.sort_by(f64::total_cmp);
    Ok(Predicate::IsIn { slot: field.slot, expected, set: set.into() })
}

fn read_compound(
    element: XmlElement,
    scope: &FieldScope,
    builder: &mut PmmlBuilder,
    depth: usize,
) -> Result<Predicate> {
    if depth >= MAX_DEPTH {
        return Err(element.damaged("is nested too deeply"));
    }
    let mut parts = Vec::new();
    for child in element.children() {
        parts.push(read(child, scope, builder, depth + 1)?);
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
