//! Values as ones of other types, and as text.

use std::borrow::Cow;

use super::field::{MISSING, NumberType, PmmlType, ValueKind, indicator, rounded};
use super::strings::RowStrings;
use super::temporal::{self, SECONDS_PER_DAY};
use tensorserve_codec::json::java::{double_text, single_text};
use tensorserve_codec::xml;

/// Whether values of the type `from` have ones of the type `to`.
pub(super) fn is_convertible(from: PmmlType, to: PmmlType) -> bool {
    match (from.kind, to.kind) {
        (ValueKind::Date | ValueKind::DateTime, ValueKind::Number) => {
            matches!(to.number, NumberType::DaysSince(_) | NumberType::SecondsSince(_))
                || (from.kind == ValueKind::DateTime && to.number == NumberType::Seconds)
        }
        (ValueKind::Time, ValueKind::Number) => to.number == NumberType::Seconds,
        (ValueKind::Time, ValueKind::Date | ValueKind::DateTime)
        | (ValueKind::Date, ValueKind::Time)
        | (ValueKind::Number | ValueKind::Boolean, ValueKind::Date | ValueKind::DateTime)
        | (ValueKind::Number | ValueKind::Boolean, ValueKind::Time) => false,
        (from, ValueKind::Boolean) => !from.is_temporal(),
        _ => true,
    }
}

/// `value` of the type `from` as one of the type `to`; missing if there is none.
pub(super) fn convert(value: f64, from: PmmlType, to: PmmlType, strings: &RowStrings) -> f64 {
    if value.is_nan() {
        return MISSING;
    }
    match (from.kind, to.kind) {
        (ValueKind::Number | ValueKind::Boolean, ValueKind::Number) => number_as(value, to),
        (ValueKind::Text, ValueKind::Number) => {
            xml::parse_number(&strings.text(value)).map_or(MISSING, |number| number_as(number, to))
        }
        (_, ValueKind::Number) => since(value, to.number),
        (ValueKind::Text, ValueKind::Text) => value,
        (_, ValueKind::Text) => strings.make(&text_of(value, from, strings)),
        (ValueKind::Text, ValueKind::Boolean) => {
            xml::parse_boolean(&strings.text(value)).map_or(MISSING, indicator)
        }
        (_, ValueKind::Boolean) => {
            if value == 0.0 || value == 1.0 {
                value
            } else {
                MISSING
            }
        }
        (ValueKind::Text, kind) => temporal::parse(&strings.text(value), kind).unwrap_or(MISSING),
        (_, ValueKind::Date) => (value / SECONDS_PER_DAY).floor() * SECONDS_PER_DAY,
        (_, ValueKind::Time) => value.rem_euclid(SECONDS_PER_DAY),
        (_, ValueKind::DateTime) => value,
    }
}

/// A number as one of another type. One that is not whole is no integer.
fn number_as(value: f64, to: PmmlType) -> f64 {
    match to.is_integer() && value.fract() != 0.0 {
        true => MISSING,
        false => rounded(value, to.is_single()),
    }
}

/// A date, in seconds since the start of 1970, as a number of days or seconds since another year.
fn since(value: f64, number: NumberType) -> f64 {
    match number {
        NumberType::DaysSince(year) => days_since(value, year),
        NumberType::SecondsSince(year) => seconds_since(value, year),
        NumberType::Seconds => value.rem_euclid(SECONDS_PER_DAY),
        NumberType::Double | NumberType::Float | NumberType::Integer => MISSING,
    }
}

/// The days from the start of `year` to a date.
pub(super) fn days_since(value: f64, year: i32) -> f64 {
    (value / SECONDS_PER_DAY).floor() - first_day(year)
}

/// The seconds from the start of `year` to a date.
pub(super) fn seconds_since(value: f64, year: i32) -> f64 {
    value - first_day(year) * SECONDS_PER_DAY
}

#[allow(clippy::cast_precision_loss)] // Years from 0 to 9999.
fn first_day(year: i32) -> f64 {
    temporal::days_since_1970(i64::from(year), 1, 1) as f64
}

/// The text of a value that is not missing.
pub(super) fn text_of<'r>(value: f64, from: PmmlType, strings: &RowStrings<'r>) -> Cow<'r, str> {
    match from.kind {
        ValueKind::Text => strings.text(value),
        ValueKind::Boolean if value == 0.0 => Cow::Borrowed("false"),
        ValueKind::Boolean => Cow::Borrowed("true"),
        ValueKind::Number if from.is_integer() && value.fract() == 0.0 => {
            Cow::Owned(format!("{value:.0}"))
        }
        ValueKind::Number if from.is_single() => Cow::Owned(single_text(value)),
        ValueKind::Number => Cow::Owned(double_text(value)),
        kind @ (ValueKind::Date | ValueKind::Time | ValueKind::DateTime) => {
            Cow::Owned(temporal::format(value, kind))
        }
    }
}
