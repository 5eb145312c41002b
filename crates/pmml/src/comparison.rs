//! Comparisons of two values.

use std::cmp::Ordering;

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

    /// Whether it holds for two values in this order.
    pub(super) fn holds_for(self, order: Ordering) -> bool {
        match self {
            Comparison::Equal => order.is_eq(),
            Comparison::NotEqual => order.is_ne(),
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Greater => order.is_gt(),
            Comparison::GreaterOrEqual => order.is_ge(),
        }
    }
}
