//! Fields and their values while a row is scored.
//!
//! Every value is an `f64`: a number, the code of a string, or 0 and 1 for a truth value; NaN is
//! a missing one. What a field holds is known when the model is read, so nothing needs to say it
//! at run time, and a comparison is one of two numbers whatever they mean.

use std::collections::HashMap;

use super::xml::{self, Element};
use tensorserve_tensor::error::Result;

/// A missing value.
pub(super) const MISSING: f64 = f64::NAN;

/// What a field's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    /// Codes of strings.
    Text,
    /// 0 or 1.
    Flag,
}

impl Kind {
    /// The kind of a `dataType`, and whether numbers are of single precision.
    pub(super) fn of_type(element: Element, data_type: &str) -> Result<(Kind, bool)> {
        match data_type {
            "string" => Ok((Kind::Text, false)),
            "boolean" => Ok((Kind::Flag, false)),
            "integer" | "double" => Ok((Kind::Number, false)),
            "float" => Ok((Kind::Number, true)),
            other => Err(element.unsupported(format!("a field with dataType={other:?}"))),
        }
    }
}

/// Where a field's value is while a row is scored, and what it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) slot: u32,
    pub(super) kind: Kind,
    /// Whether it is a number of single precision.
    pub(super) single: bool,
}

/// The strings that a model knows. Their codes count from 0.
#[derive(Default)]
pub(super) struct Symbols {
    codes: HashMap<Box<[u8]>, u32>,
    texts: Vec<Box<str>>,
}

impl Symbols {
    /// The code of `text`, a new one if need be.
    pub(super) fn intern(&mut self, text: &str) -> f64 {
        if let Some(code) = self.codes.get(text.as_bytes()) {
            return f64::from(*code);
        }
        // There are no more strings than bytes in the file, which are fewer than u32::MAX.
        let code = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.codes.insert(text.as_bytes().into(), code);
        self.texts.push(text.into());
        f64::from(code)
    }

    /// The code of a string of a request, if the model knows it.
    pub(super) fn code(&self, text: &[u8]) -> Option<f64> {
        self.codes.get(text).map(|code| f64::from(*code))
    }

    /// The string with this code.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Codes were integers.
    pub(super) fn text(&self, code: f64) -> Option<&str> {
        self.texts.get(code as usize).map(AsRef::as_ref)
    }

    /// How many there are: the first code that stands for none of them.
    #[allow(clippy::cast_precision_loss)] // There are fewer than 2^32.
    pub(super) fn end(&self) -> f64 {
        self.texts.len() as f64
    }

    /// What `text` is as a value of such a field.
    pub(super) fn constant(
        &mut self,
        element: Element,
        kind: Kind,
        single: bool,
        text: &str,
    ) -> Result<f64> {
        let value = match kind {
            Kind::Text => Some(self.intern(text)),
            Kind::Number => xml::parse_number(text).map(|number| rounded(number, single)),
            Kind::Flag => xml::parse_flag(text).map(|flag| f64::from(u8::from(flag))),
        };
        value.ok_or_else(|| element.damaged(format!("{text:?} is not a value of its field")))
    }
}

/// `number` as a field of single precision, or of double, holds it.
#[allow(clippy::cast_possible_truncation)] // That is the point.
pub(super) fn rounded(number: f64, single: bool) -> f64 {
    if single { f64::from(number as f32) } else { number }
}

/// The names that a part of a model can refer to: its own, then those around it.
pub(super) struct Scope<'s> {
    names: HashMap<String, Field>,
    around: Option<&'s Scope<'s>>,
}

impl<'s> Scope<'s> {
    pub(super) fn outermost() -> Self {
        Scope { names: HashMap::new(), around: None }
    }

    pub(super) fn within(around: &'s Scope<'s>) -> Self {
        Scope { names: HashMap::new(), around: Some(around) }
    }

    pub(super) fn set(&mut self, name: &str, field: Field) {
        self.names.insert(name.to_owned(), field);
    }

    pub(super) fn get(&self, name: &str) -> Option<Field> {
        let mut scope = Some(self);
        while let Some(here) = scope {
            if let Some(field) = here.names.get(name) {
                return Some(*field);
            }
            scope = here.around;
        }
        None
    }

    /// The field that attribute `attribute` of `element` names.
    pub(super) fn field(&self, element: Element, attribute: &str) -> Result<Field> {
        let name = element.need(attribute)?;
        self.get(name).ok_or_else(|| element.damaged(format!("no field {name:?} is known here")))
    }
}

/// The values of one row.
pub(super) struct Row<'r> {
    pub(super) values: &'r mut [f64],
    /// For strings of the request that the model does not know: their text.
    pub(super) strangers: &'r dyn Strangers,
}

/// Gives the text of strings that the model does not know. Within a row, each has a code of its
/// own from [`Symbols::end`] on.
pub(super) trait Strangers {
    /// The text of the string with this code; `None` for one that the model knows.
    fn text(&self, code: f64) -> Option<&[u8]>;
}

impl Row<'_> {
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

    /// Whether two strings are the same; both are there.
    pub(super) fn same_text(&self, a: f64, b: f64) -> bool {
        if a.to_bits() == b.to_bits() {
            return true;
        }
        let texts = (self.strangers.text(a), self.strangers.text(b));
        matches!(texts, (Some(a), Some(b)) if a == b)
    }
}
