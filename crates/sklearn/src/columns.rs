//! The columns of a model: which are numbers, which are texts, and how texts become numbers.
//!
//! Transformers take numbers only. A text that is a category is replaced by its number in the table of
//! all texts that the model knows, so that encoders, imputers and selections of columns need not know
//! of texts. A text that is a document is replaced by its index in the request.

use std::collections::HashMap;

/// How a model uses a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnUse {
    /// Not at all.
    Unused,
    /// As numbers or as categories, whatever others take it for.
    Either,
    /// As numbers.
    Number,
    /// As texts that are categories.
    Category,
    /// As texts that are made of words.
    Document,
    /// In several ways that contradict each other.
    Mixed,
}

impl ColumnUse {
    /// The use of a column that is used in both ways.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (ColumnUse::Unused, other) | (other, ColumnUse::Unused) => other,
            (ColumnUse::Either, other) | (other, ColumnUse::Either) => other,
            (one, other) if one == other => one,
            _ => ColumnUse::Mixed,
        }
    }

    /// Adds a way to use a column.
    pub(super) fn add(&mut self, other: Self) {
        *self = self.and(other);
    }
}

/// The number of a text that the model does not know. No number of a known text is negative.
const UNKNOWN: f64 = -1.0;

/// The texts that a model knows, with a number for each.
#[derive(Debug, Default)]
pub(super) struct TextTable {
    numbers: HashMap<Box<[u8]>, u32>,
}

impl TextTable {
    /// The number of `text`, which is added if it is not known.
    pub(super) fn add(&mut self, text: &str) -> f64 {
        if let Some(number) = self.numbers.get(text.as_bytes()) {
            return f64::from(*number);
        }
        let number = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        self.numbers.insert(text.as_bytes().into(), number);
        f64::from(number)
    }

    /// The number of `text`. The empty text is a missing value, unless the model knows it.
    pub(super) fn number(&self, text: &[u8]) -> f64 {
        match self.numbers.get(text) {
            Some(number) => f64::from(*number),
            None if text.is_empty() => f64::NAN,
            None => UNKNOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_a_column_are_combined() {
        use ColumnUse::{Category, Document, Either, Mixed, Number, Unused};
        for (one, other, both) in [
            (Unused, Number, Number),
            (Either, Category, Category),
            (Unused, Either, Either),
            (Number, Number, Number),
            (Number, Category, Mixed),
            (Mixed, Unused, Mixed),
            (Document, Category, Mixed),
        ] {
            assert_eq!(one.and(other), both);
            assert_eq!(other.and(one), both);
        }
    }

    #[test]
    fn an_empty_text_is_missing_unless_it_is_known() {
        let mut texts = TextTable::default();
        assert_eq!((texts.add("a"), texts.add("b"), texts.add("a")), (0.0, 1.0, 0.0));
        assert_eq!(texts.number(b"b"), 1.0);
        assert_eq!(texts.number(b"c"), UNKNOWN);
        assert!(texts.number(b"").is_nan());
        assert_eq!(texts.add(""), 2.0);
        assert_eq!(texts.number(b""), 2.0);
    }
}
