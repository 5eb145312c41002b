//! A model file as a tree of values, in either notation: JSON or UBJSON.
//!
//! Arrays of numbers, which make up nearly all of a model, are kept as bare numbers.

use std::str::FromStr;

use tensorserve_tensor::error::{Error, Result};

/// How deep arrays and objects may be nested; a model needs 8.
const MAX_DEPTH: usize = 32;

/// The most values of a document (an array of numbers counts as one), so that a small hostile file
/// does not allocate much memory. A model has about 20 for each tree.
const MAX_VALUES: usize = 1 << 24;

/// Members that predictions do not need. They are skipped.
const UNUSED_MEMBERS: [&str; 5] = ["Config", "cats", "loss_changes", "parents", "sum_hessian"];

/// A value of a document.
#[derive(Debug, PartialEq)]
pub(super) enum DocumentValue {
    Null,
    Number(f64),
    Text(String),
    /// An array of numbers; `false` and `true` are 0 and 1.
    Numbers(Vec<f64>),
    /// An array of other values.
    List(Vec<DocumentValue>),
    /// Members in the order of the file.
    Object(Vec<(String, DocumentValue)>),
}

/// Counts the values of a document while it is read, and enforces [`MAX_VALUES`] and [`MAX_DEPTH`].
#[derive(Default)]
pub(super) struct DocumentLimits {
    values: usize,
}

impl DocumentLimits {
    /// Counts one more value, at nesting depth `depth`.
    pub(super) fn count_value(&mut self, depth: usize) -> Result<()> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(Error::damaged(format!("the document has more than {MAX_VALUES} values")));
        }
        if depth > MAX_DEPTH {
            return Err(Error::damaged(format!(
                "values are nested more than {MAX_DEPTH} levels deep"
            )));
        }
        Ok(())
    }
}

impl DocumentValue {
    /// Whether predictions need members of this name.
    pub(super) fn is_used(name: &str) -> bool {
        !UNUSED_MEMBERS.contains(&name)
    }

    /// The member `name`, if this is an object that has it.
    pub(super) fn find(&self, name: &str) -> Option<&DocumentValue> {
        let DocumentValue::Object(members) = self else { return None };
        members.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    /// The member `name`, which must be present.
    pub(super) fn member(&self, name: &str) -> Result<&DocumentValue> {
        self.find(name).ok_or_else(|| Error::damaged(format!("{name:?} is missing")))
    }

    /// The string member `name`.
    pub(super) fn text(&self, name: &str) -> Result<&str> {
        let DocumentValue::Text(text) = self.member(name)? else {
            return Err(Error::damaged(format!("{name:?} is not a string")));
        };
        Ok(text)
    }

    /// The strings of the array `name`; empty if there is no such member.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>> {
        if self.find(name).is_none() {
            return Ok(Vec::new());
        }
        let mut texts = Vec::new();
        for value in self.list(name)? {
            let DocumentValue::Text(text) = value else {
                return Err(Error::damaged(format!(
                    "{name:?} has an element that is not a string"
                )));
            };
            texts.push(text.clone());
        }
        Ok(texts)
    }

    /// The elements of the array `name`, which are not numbers.
    pub(super) fn list(&self, name: &str) -> Result<&[DocumentValue]> {
        let member = self.member(name)?;
        if matches!(member, DocumentValue::Numbers(numbers) if numbers.is_empty()) {
            return Ok(&[]);
        }
        let DocumentValue::List(list) = member else {
            return Err(Error::damaged(format!("{name:?} is not an array of objects or strings")));
        };
        Ok(list)
    }

    /// The elements of the array `name`, which are numbers.
    pub(super) fn numbers(&self, name: &str) -> Result<&[f64]> {
        let member = self.member(name)?;
        if matches!(member, DocumentValue::List(list) if list.is_empty()) {
            return Ok(&[]);
        }
        let DocumentValue::Numbers(numbers) = member else {
            return Err(Error::damaged(format!("{name:?} is not an array of numbers")));
        };
        Ok(numbers)
    }

    /// The elements of the array `name` in single precision, as the library keeps them.
    pub(super) fn floats(&self, name: &str) -> Result<Vec<f32>> {
        Ok(self.numbers(name)?.iter().map(|&x| narrow(x)).collect())
    }

    /// The parameter `name`. The library writes parameters as strings, also where they are numbers.
    pub(super) fn parameter<T: FromStr>(&self, name: &str) -> Result<T> {
        let shown = match self.member(name)? {
            DocumentValue::Text(text) => text.trim().to_owned(),
            DocumentValue::Number(number) => number.to_string(),
            DocumentValue::Null
            | DocumentValue::Numbers(_)
            | DocumentValue::List(_)
            | DocumentValue::Object(_) => {
                return Err(Error::damaged(format!("{name:?} is not a number")));
            }
        };
        shown.parse().map_err(|_| {
            Error::damaged(format!("{name:?} is {shown:?}, which is not a valid number"))
        })
    }
}

/// `x` in single precision, the type of the library's arrays.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn narrow(x: f64) -> f32 {
    x as f32
}

/// `x` as an index; `None` unless it is an integer from 0 to 2^32 - 1.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn index(x: f64) -> Option<usize> {
    let fits = x >= 0.0 && x <= f64::from(u32::MAX) && x.fract() == 0.0;
    fits.then_some(x as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(result: Result<()>) -> String {
        result.expect_err("wrong").message().to_owned()
    }

    #[test]
    fn members_are_found_or_named() {
        let text = br#"{"a":{"b":"7","c":[1,2.5],"d":["x"],"e":[]},"parents":[1]}"#;
        let document = super::super::json::read(text).expect("JSON");
        assert_eq!(document.find("parents"), None, "the member must be skipped");
        let a = document.member("a").expect("a member");
        assert_eq!(a.parameter::<u32>("b").expect("a number"), 7);
        assert_eq!(a.floats("c").expect("numbers"), [1.0, 2.5]);
        assert_eq!(a.texts("d").expect("texts"), ["x"]);
        assert!(a.texts("e").expect("none").is_empty() && a.texts("f").expect("none").is_empty());
        assert!(a.list("e").expect("empty").is_empty() && a.numbers("e").expect("none").is_empty());
        assert_eq!(message(a.member("f").map(drop)), "\"f\" is missing");
        assert_eq!(message(a.numbers("d").map(drop)), "\"d\" is not an array of numbers");
        assert_eq!(message(a.text("c").map(drop)), "\"c\" is not a string");
        assert_eq!(message(a.list("c").map(drop)), "\"c\" is not an array of objects or strings");
        let number = a.parameter::<u32>("d").map(drop);
        assert_eq!(message(number), "\"d\" is not a number");
    }

    #[test]
    fn indices_are_whole_and_not_negative() {
        assert_eq!(index(3.0), Some(3));
        for wrong in [-1.0, 0.5, 1e10, f64::NAN, f64::INFINITY] {
            assert_eq!(index(wrong), None, "{wrong}");
        }
    }
}
