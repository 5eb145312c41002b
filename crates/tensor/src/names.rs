//! The names of inputs in requests: what they stand for, and what is said of those that a model does not have.

use std::fmt::{self, Display, Write as _};

use super::Signature;

/// The longest name that is compared with others, and the most of a name that is shown, in bytes.
const LONGEST_NAME: usize = 80;

/// The most of a client's text that an error quotes, in bytes: responses leave out the middle of a message that is
/// half as long.
const LONGEST_QUOTE: usize = 8 << 10;

/// The most names that are compared, so that an error costs little.
const MOST_COMPARED: usize = 4096;

/// The most names that are listed.
const MOST_LISTED: usize = 50;

/// What the name of an input in a request stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputName {
    /// The input with this index.
    Declared(usize),
    /// A column of the training data that the model does not use: its value is not read.
    Unused,
    /// Nothing. Requests for the model may have such inputs where the reference server ignores them.
    Ignored,
    /// Nothing: the request is refused.
    Unknown,
}

impl Signature {
    /// What `name` stands for in a request.
    #[must_use]
    pub fn named(&self, name: &[u8]) -> InputName {
        match self.inputs.iter().position(|spec| spec.alias.as_bytes() == name) {
            Some(index) => InputName::Declared(index),
            None if self.is_unused(name) => InputName::Unused,
            None if self.ignores_unknown => InputName::Ignored,
            None => InputName::Unknown,
        }
    }

    /// What to say of an input `name` that the model does not have: the inputs that it has, and the nearest
    /// of them.
    #[must_use]
    pub fn instead_of(&self, name: &[u8]) -> String {
        let inputs = self.inputs.iter().map(|spec| spec.alias.as_str());
        list("inputs", inputs, self.nearest(name))
    }

    /// The input or the unused column that is nearest to `name`, if one is near, and its distance.
    #[must_use]
    pub fn nearest(&self, name: &[u8]) -> Option<(&str, usize)> {
        let inputs = self.inputs.iter().map(|spec| spec.alias.as_str());
        let unused = self.unused_columns.iter().map(String::as_str);
        nearest(std::str::from_utf8(name).ok()?, inputs.chain(unused))
    }
}

/// What to say of a column `name` of a matrix whose columns have the names `columns`: these, and the nearest of
/// them.
#[must_use]
pub fn instead_of_column(name: &[u8], columns: &[String]) -> String {
    let names = || columns.iter().map(String::as_str);
    let near = std::str::from_utf8(name).ok().and_then(|name| nearest(name, names()));
    list("columns", names(), near)
}

/// The names that a model has, and the nearest of them.
fn list<'k>(
    kind: &str,
    names: impl ExactSizeIterator<Item = &'k str>,
    near: Option<(&str, usize)>,
) -> String {
    let mut text = format!("its {kind} are ");
    let more = names.len().saturating_sub(MOST_LISTED);
    for (at, name) in names.take(MOST_LISTED).enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        let _ = write!(text, "{separator}{}", shown(name.as_bytes()));
    }
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    if let Some((near, _)) = near {
        let _ = write!(text, "; did you mean {}?", shown(near.as_bytes()));
    }
    text
}

/// The name of `known` that is nearest to `name`, of equally near ones the first, and their distance: 0 for
/// those that differ only in case and in the space around them. `None` if none is near.
#[must_use]
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<(&'k str, usize)> {
    if name.len() > LONGEST_NAME {
        return None;
    }
    let folded = |name: &str| name.trim().to_lowercase();
    let name = folded(name);
    let farthest = 1 + name.len() / 3;
    let comparable =
        known.take(MOST_COMPARED).filter(|other| other.len().abs_diff(name.len()) <= LONGEST_NAME);
    let distances =
        comparable.map(|other| (other, strsim::damerau_levenshtein(&name, &folded(other))));
    distances.min_by_key(|(_, distance)| *distance).filter(|(_, distance)| *distance <= farthest)
}

/// A name as errors show it: its start, with quotes and escapes.
#[must_use]
pub fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name.get(..LONGEST_NAME).unwrap_or(name));
    format!("{text:?}")
}

/// A client's text as errors quote it. One of megabytes would be copied into each message that contains it.
#[must_use]
pub fn quoted(text: &[u8]) -> String {
    match text.get(..LONGEST_QUOTE) {
        Some(start) => format!("{}…", String::from_utf8_lossy(start)),
        None => String::from_utf8_lossy(text).into_owned(),
    }
}

/// A message that quotes a client's texts: its start, if they make it longer than responses are.
#[must_use]
pub fn limited(message: impl Display) -> String {
    let mut text = LimitedText(String::new());
    // Ends early once the text is full.
    let _ = write!(text, "{message}");
    text.0
}

/// The beginning of a text, of at most this many bytes.
#[must_use]
pub fn beginning(text: &str, most: usize) -> &str {
    let mut ends = (0..=text.len().min(most)).rev();
    ends.find_map(|end| text.get(..end)).unwrap_or_default()
}

struct LimitedText(String);

impl fmt::Write for LimitedText {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = LONGEST_QUOTE.saturating_sub(self.0.len());
        if more.len() <= room {
            self.0.push_str(more);
            return Ok(());
        }
        self.0.push_str(beginning(more, room));
        self.0.push('…');
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, TensorSpec};

    fn passengers() -> Signature {
        let column = |alias: &str| TensorSpec::new(alias, DType::Double, &[-1]);
        let mut signature = Signature::only(["age", "sex"].map(column).to_vec(), Vec::new());
        signature.unused_columns.push("ticket".to_owned());
        signature
    }

    #[test]
    fn names_are_those_of_inputs_to_the_letter() {
        let mut signature = passengers();
        assert_eq!(signature.named(b"sex"), InputName::Declared(1));
        assert_eq!(signature.named(b"ticket"), InputName::Unused);
        for wrong in [&b"Sex"[..], b"sex ", b"se", b"", b"sex\xff"] {
            assert_eq!(signature.named(wrong), InputName::Unknown);
        }
        signature.ignores_unknown = true;
        assert_eq!(signature.named(b"Sex"), InputName::Ignored);
    }

    #[test]
    fn the_nearest_name_is_proposed() {
        let signature = passengers();
        let proposed = |name: &str| signature.nearest(name.as_bytes()).map(|(near, _)| near);
        for (wrong, near) in [
            ("Sex", "sex"),
            ("SEX", "sex"),
            (" sex ", "sex"),
            ("aeg", "age"),
            ("tickets", "ticket"),
        ] {
            assert_eq!(proposed(wrong), Some(near), "{wrong}");
        }
        assert_eq!(proposed("embarked"), None);
        assert_eq!(proposed(&"x".repeat(1 << 20)), None);
        let hint = signature.instead_of(b"AGE");
        assert_eq!(hint, r#"its inputs are "age", "sex"; did you mean "age"?"#);
    }

    #[test]
    fn lists_are_short() {
        let column = |at: usize| TensorSpec::new("x".repeat(at), DType::Double, &[-1]);
        let signature = Signature::only((0..1000).map(column).collect(), Vec::new());
        let hint = signature.instead_of("é".repeat(1 << 20).as_bytes());
        assert!(hint.len() < 5000 && hint.ends_with(" and 950 more"), "{hint}");
    }

    #[test]
    fn long_texts_are_quoted_in_part() {
        assert_eq!((quoted(b"a\xff"), limited("a")), ("a\u{fffd}".to_owned(), "a".to_owned()));
        let long = "ä".repeat(100_000);
        for quote in [quoted(long.as_bytes()), limited(format_args!("x{long}{long}"))] {
            assert!(quote.len() <= LONGEST_QUOTE + 3 && quote.ends_with("ä…"), "{}", quote.len());
        }
    }
}
