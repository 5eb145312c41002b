//! Fields, and their values while a row is scored.
//!
//! Every value is an `f64`: a number, the code of a string, or 0 or 1 for a boolean; NaN is a missing
//! value. The type of a field is resolved when the model is read, so that evaluation does not check
//! it, and a comparison is one of two numbers.

use std::collections::HashMap;

use super::xml::{self, XmlElement};
use tensorserve_tensor::error::Result;

/// A missing value.
pub(super) const MISSING: f64 = f64::NAN;

/// What the values of a field are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Number,
    /// Codes of strings.
    Text,
    /// 0 or 1.
    Boolean,
}

impl ValueKind {
    /// Its name in error messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            ValueKind::Number => "number",
            ValueKind::Text => "string",
            ValueKind::Boolean => "boolean",
        }
    }
}

/// The type of a field: a `dataType` of the standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PmmlType {
    pub(super) kind: ValueKind,
    /// Whether it is a number of single precision: `float`.
    pub(super) is_single: bool,
}

impl PmmlType {
    pub(super) const NUMBER: PmmlType = PmmlType::of_kind(ValueKind::Number);
    pub(super) const TEXT: PmmlType = PmmlType::of_kind(ValueKind::Text);

    /// The type of this kind; of numbers, that of double precision.
    pub(super) const fn of_kind(kind: ValueKind) -> Self {
        PmmlType { kind, is_single: false }
    }

    /// The type `name` in an attribute of `element`.
    pub(super) fn named(element: XmlElement, name: &str) -> Result<Self> {
        match name {
            "string" => Ok(PmmlType::TEXT),
            "boolean" => Ok(PmmlType::of_kind(ValueKind::Boolean)),
            "integer" | "double" => Ok(PmmlType::NUMBER),
            "float" => Ok(PmmlType { kind: ValueKind::Number, is_single: true }),
            other => Err(element.unsupported(format!("a field with dataType={other:?}"))),
        }
    }
}

/// The location of a field's value while a row is scored, and its type.
#[derive(Clone, Copy, Debug)]
pub(super) struct PmmlField {
    /// The index in [`PmmlRow::values`].
    pub(super) slot: u32,
    pub(super) data_type: PmmlType,
}

/// The strings of a model. Their codes are consecutive from 0.
#[derive(Default)]
pub(super) struct StringTable {
    codes: HashMap<Box<[u8]>, u32>,
    texts: Vec<Box<str>>,
}

impl StringTable {
    /// The code of `text`, which is added if it is new.
    pub(super) fn intern(&mut self, text: &str) -> f64 {
        if let Some(code) = self.codes.get(text.as_bytes()) {
            return f64::from(*code);
        }
        // A file has fewer bytes than u32::MAX, and so fewer strings.
        let code = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.codes.insert(text.as_bytes().into(), code);
        self.texts.push(text.into());
        f64::from(code)
    }

    /// The code of a string of a request, if it occurs in the model.
    pub(super) fn code(&self, text: &[u8]) -> Option<f64> {
        self.codes.get(text).map(|code| f64::from(*code))
    }

    /// The string with this code.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Codes are integers.
    pub(super) fn text(&self, code: f64) -> Option<&str> {
        self.texts.get(code as usize).map(AsRef::as_ref)
    }

    /// The number of strings: the first code that is not in use.
    #[allow(clippy::cast_precision_loss)] // There are fewer than 2^32.
    pub(super) fn end(&self) -> f64 {
        self.texts.len() as f64
    }

    /// The value of `text`, in an attribute of `element`, for a field of this type.
    pub(super) fn constant(
        &mut self,
        element: XmlElement,
        data_type: PmmlType,
        text: &str,
    ) -> Result<f64> {
        let value = match data_type.kind {
            ValueKind::Text => Some(self.intern(text)),
            ValueKind::Number => {
                xml::parse_number(text).map(|number| rounded(number, data_type.is_single))
            }
            ValueKind::Boolean => xml::parse_boolean(text).map(indicator),
        };
        value.ok_or_else(|| element.damaged(format!("{text:?} is not a value of the field's type")))
    }

    /// The value of the attribute `name` of `element`; missing if there is no such attribute.
    pub(super) fn optional_constant(
        &mut self,
        element: XmlElement,
        data_type: PmmlType,
        name: &str,
    ) -> Result<f64> {
        match element.attribute(name) {
            Some(text) => self.constant(element, data_type, text),
            None => Ok(MISSING),
        }
    }
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

/// The values of one row.
pub(super) struct PmmlRow<'r> {
    pub(super) values: &'r mut [f64],
    /// The strings of the request that do not occur in the model.
    pub(super) unknown: &'r dyn UnknownStrings,
}

/// The text of strings that do not occur in the model. Within a row, each has a code of its own,
/// from [`StringTable::end`] on.
pub(super) trait UnknownStrings {
    /// The string with this code; `None` if it occurs in the model.
    fn text(&self, code: f64) -> Option<&[u8]>;
}

impl PmmlRow<'_> {
    #[inline]
    pub(super) fn get(&self, slot: u32) -> f64 {
        self.values.get(slot as usize).copied().unwrap_or(MISSING)
    }

    #[inline]
    pub(super) fn set(&mut self, slot: u32, value: f64) {
        if let Some(place) = self.values.get_mut(slot as usize) {
            *place = value;
        }
    }

    /// The `count` values from `slot` on.
    pub(super) fn range(&mut self, slot: u32, count: usize) -> &mut [f64] {
        let start = slot as usize;
        self.values.get_mut(start..start.saturating_add(count)).unwrap_or_default()
    }

    /// Whether two strings, neither of them missing, are equal.
    pub(super) fn same_text(&self, a: f64, b: f64) -> bool {
        if a.to_bits() == b.to_bits() {
            return true;
        }
        let texts = (self.unknown.text(a), self.unknown.text(b));
        matches!(texts, (Some(a), Some(b)) if a == b)
    }
}
