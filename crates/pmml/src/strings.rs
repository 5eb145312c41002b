//! Strings: those of the model have codes, those of a request and those that functions make have codes
//! while a row is scored.

use std::borrow::Cow;
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::HashMap;

use super::field::{MISSING, PmmlType, ValueKind, indicator, rounded};
use super::temporal;
use tensorserve_codec::xml::{self, XmlElement};
use tensorserve_tensor::error::Result;

/// The most bytes of strings that functions make for one row. A further one is missing.
pub(super) const MAX_MADE_BYTES: usize = 1 << 20;

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
                xml::parse_number(text).map(|number| rounded(number, data_type.is_single()))
            }
            ValueKind::Boolean => xml::parse_boolean(text).map(indicator),
            kind @ (ValueKind::Date | ValueKind::Time | ValueKind::DateTime) => {
                temporal::parse(text, kind)
            }
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

/// The text of strings of a request that do not occur in the model. Within a row, each has a code of
/// its own, from [`StringTable::end`] on.
pub(super) trait UnknownStrings {
    /// The string with this code; `None` if it is not one of the request.
    fn text(&self, code: f64) -> Option<&[u8]>;

    /// The first code that is not one of a string of the request.
    fn end(&self) -> f64;
}

/// All strings while a row is scored.
pub(super) struct RowStrings<'r> {
    table: &'r StringTable,
    unknown: &'r dyn UnknownStrings,
    made: RefCell<MadeStrings>,
}

/// Strings that functions made, with codes from [`UnknownStrings::end`] on.
#[derive(Default)]
struct MadeStrings {
    texts: Vec<Box<str>>,
    bytes: usize,
}

impl<'r> RowStrings<'r> {
    pub(super) fn new(table: &'r StringTable, unknown: &'r dyn UnknownStrings) -> Self {
        RowStrings { table, unknown, made: RefCell::default() }
    }

    /// The code of a string that a function made; missing if there are too many.
    #[allow(clippy::cast_precision_loss)] // Far fewer than 2^53.
    pub(super) fn make(&self, text: &str) -> f64 {
        if let Some(code) = self.table.code(text.as_bytes()) {
            return code;
        }
        let mut made = self.made.borrow_mut();
        let size = text.len().saturating_add(size_of::<Box<str>>());
        if made.bytes.saturating_add(size) > MAX_MADE_BYTES {
            return MISSING;
        }
        made.bytes += size;
        made.texts.push(text.into());
        self.unknown.end() + (made.texts.len() - 1) as f64
    }

    /// The string with this code; empty if there is none.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // An index.
    pub(super) fn text(&self, code: f64) -> Cow<'r, str> {
        if let Some(text) = self.table.text(code) {
            return Cow::Borrowed(text);
        }
        if let Some(text) = self.unknown.text(code) {
            return String::from_utf8_lossy(text);
        }
        let made = self.made.borrow();
        let index = (code - self.unknown.end()) as usize;
        Cow::Owned(made.texts.get(index).map(|text| text.to_string()).unwrap_or_default())
    }

    /// The bytes of the string with this code, as the request has them if it is one of its.
    pub(super) fn bytes(&self, code: f64) -> Cow<'r, [u8]> {
        match self.unknown.text(code) {
            Some(text) => Cow::Borrowed(text),
            None => match self.text(code) {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            },
        }
    }

    /// Whether two strings, neither of them missing, are equal.
    pub(super) fn same(&self, a: f64, b: f64) -> bool {
        if a.to_bits() == b.to_bits() {
            return true;
        }
        let end = self.table.end();
        a >= end && b >= end && self.bytes(a) == self.bytes(b)
    }

    /// The order of two strings, neither of them missing: that of Java, by UTF-16 code units.
    pub(super) fn compare(&self, a: f64, b: f64) -> Ordering {
        self.text(a).encode_utf16().cmp(self.text(b).encode_utf16())
    }
}
