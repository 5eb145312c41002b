//! Fields, and their values while a row is scored.
//!
//! Every value is an `f64`: a number, the code of a string, 0 or 1 for a boolean, or seconds for a date
//! or a time; NaN is a missing value. The type of a field is resolved when the model is read, so that evaluation does not check
//! it, and a comparison is one of two numbers.

use std::collections::HashMap;

use tensorserve_codec::xml::{XmlElement, parse_number};
use tensorserve_tensor::error::Result;

/// A missing value.
pub(super) const MISSING: f64 = f64::NAN;

/// What the values of a field are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ValueKind {
    Number,
    /// Codes of strings.
    Text,
    /// 0 or 1.
    Boolean,
    /// Seconds from the start of 1970 to the start of the day.
    Date,
    /// Seconds since midnight.
    Time,
    /// Seconds since the start of 1970.
    DateTime,
}

impl ValueKind {
    /// Its name in error messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            ValueKind::Number => "number",
            ValueKind::Text => "string",
            ValueKind::Boolean => "boolean",
            ValueKind::Date => "date",
            ValueKind::Time => "time",
            ValueKind::DateTime => "dateTime",
        }
    }

    /// Whether it is a date, a time, or both.
    pub(super) fn is_temporal(self) -> bool {
        matches!(self, ValueKind::Date | ValueKind::Time | ValueKind::DateTime)
    }
}

/// The values of numbers: what a conversion to the type does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NumberType {
    Double,
    /// Single precision.
    Float,
    Integer,
    /// `dateDaysSince[1970]`: a date as the number of days since the start of the year.
    DaysSince(i32),
    /// `dateTimeSecondsSince[1970]`: seconds since the start of the year.
    SecondsSince(i32),
    /// `timeSeconds`: seconds since midnight.
    Seconds,
}

/// The type of a field: a `dataType` of the standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PmmlType {
    pub(super) kind: ValueKind,
    /// Of values that are not numbers: [`NumberType::Double`].
    pub(super) number: NumberType,
}

impl PmmlType {
    pub(super) const NUMBER: PmmlType = PmmlType::of_kind(ValueKind::Number);
    pub(super) const INTEGER: PmmlType = PmmlType::of_number(NumberType::Integer);
    pub(super) const TEXT: PmmlType = PmmlType::of_kind(ValueKind::Text);
    pub(super) const BOOLEAN: PmmlType = PmmlType::of_kind(ValueKind::Boolean);

    /// The type of this kind; of numbers, that of double precision.
    pub(super) const fn of_kind(kind: ValueKind) -> Self {
        PmmlType { kind, number: NumberType::Double }
    }

    const fn of_number(number: NumberType) -> Self {
        PmmlType { kind: ValueKind::Number, number }
    }

    /// The type of a constant without a declared one.
    pub(super) fn of_constant(text: &str) -> Self {
        match parse_number(text) {
            Some(_) if text.trim().parse::<i64>().is_ok() => PmmlType::INTEGER,
            Some(_) => PmmlType::NUMBER,
            None => PmmlType::TEXT,
        }
    }

    pub(super) fn is_number(self) -> bool {
        self.kind == ValueKind::Number
    }

    pub(super) fn is_single(self) -> bool {
        self.number == NumberType::Float
    }

    /// Whether its values are whole numbers.
    pub(super) fn is_integer(self) -> bool {
        matches!(
            self.number,
            NumberType::Integer | NumberType::DaysSince(_) | NumberType::SecondsSince(_)
        )
    }

    /// The type `name` in an attribute of `element`.
    pub(super) fn named(element: XmlElement, name: &str) -> Result<Self> {
        Ok(match name {
            "string" => PmmlType::TEXT,
            "boolean" => PmmlType::BOOLEAN,
            "double" => PmmlType::NUMBER,
            "integer" => PmmlType::INTEGER,
            "float" => PmmlType::of_number(NumberType::Float),
            "date" => PmmlType::of_kind(ValueKind::Date),
            "time" => PmmlType::of_kind(ValueKind::Time),
            "dateTime" => PmmlType::of_kind(ValueKind::DateTime),
            "timeSeconds" => PmmlType::of_number(NumberType::Seconds),
            other => {
                let number = since_year(other, "dateDaysSince").map(NumberType::DaysSince);
                let seconds = || since_year(other, "dateTimeSecondsSince");
                let number = number.or_else(|| seconds().map(NumberType::SecondsSince));
                let number = number.ok_or_else(|| {
                    element.unsupported(format!("a field with dataType={other:?}"))
                })?;
                PmmlType::of_number(number)
            }
        })
    }
}

/// The year of a type such as `dateDaysSince[1970]`.
fn since_year(name: &str, prefix: &str) -> Option<i32> {
    let year = name.strip_prefix(prefix)?.strip_prefix('[')?.strip_suffix(']')?;
    year.parse().ok().filter(|year| (0..=9999).contains(year))
}

/// The location of a field's value while a row is scored, and its type.
#[derive(Clone, Copy, Debug)]
pub(super) struct PmmlField {
    /// The index in [`PmmlRow::values`](super::row::PmmlRow::values).
    pub(super) slot: u32,
    pub(super) data_type: PmmlType,
}

/// `number` in single precision if `is_single`.
#[allow(clippy::cast_possible_truncation)] // The purpose.
pub(super) fn rounded(number: f64, is_single: bool) -> f64 {
    if is_single { f64::from(number as f32) } else { number }
}

/// 1 for true, 0 for false.
pub(super) fn indicator(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}

/// The fields that a part of a model can refer to: its own, and those of the scopes around it.
pub(super) struct FieldScope<'s> {
    fields: HashMap<String, PmmlField>,
    parent: Option<&'s FieldScope<'s>>,
}

impl<'s> FieldScope<'s> {
    pub(super) fn root() -> Self {
        FieldScope { fields: HashMap::new(), parent: None }
    }

    pub(super) fn within(parent: &'s FieldScope<'s>) -> Self {
        FieldScope { fields: HashMap::new(), parent: Some(parent) }
    }

    pub(super) fn set(&mut self, name: &str, field: PmmlField) {
        self.fields.insert(name.to_owned(), field);
    }

    pub(super) fn get(&self, name: &str) -> Option<PmmlField> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            if let Some(field) = current.fields.get(name) {
                return Some(*field);
            }
            scope = current.parent;
        }
        None
    }

    /// The field that the attribute `attribute` of `element` names.
    pub(super) fn field(&self, element: XmlElement, attribute: &str) -> Result<PmmlField> {
        let name = element.required(attribute)?;
        self.get(name)
            .ok_or_else(|| element.damaged(format!("the field {name:?} is not defined here")))
    }
}
