//! A model's file as a tree of values, whichever notation it is in: JSON or UBJSON.
//!
//! Lists of numbers, which make up nearly all of a model, are kept as bare numbers.

use std::str::FromStr;

use super::{broken, json, ubjson};
use tensorserve_tensor::error::Result;

/// Lists and objects may be nested this deep; a model's own reach 8.
pub(super) const DEEPEST: usize = 32;

/// Values (lists of numbers count as one) that a document may have, so that a small hostile file
/// takes no large memory: a model has some 20 for each tree.
pub(super) const MOST_VALUES: usize = 1 << 24;

/// Members that are of no use for a prediction, and are not kept.
const UNUSED: [&str; 5] = ["Config", "cats", "loss_changes", "parents", "sum_hessian"];

/// A value.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    Nothing,
    Number(f64),
    Text(String),
    /// A list of numbers; truth values are 0 and 1.
    Numbers(Vec<f64>),
    List(Vec<Value>),
    /// Members in the order of the file.
    Object(Vec<(String, Value)>),
}

/// Counts what a document holds while it is read.
#[derive(Default)]
pub(super) struct Count(usize);

impl Count {
    /// Counts one more value, at nesting depth `depth`.
    pub(super) fn one_more(&mut self, depth: usize) -> Result<()> {
        self.0 += 1;
        if self.0 > MOST_VALUES {
            return Err(broken(format!("it has more than {MOST_VALUES} values")));
        }
        if depth > DEEPEST {
            return Err(broken(format!("its values are nested more than {DEEPEST} deep")));
        }
        Ok(())
    }
}

impl Value {
    /// Reads a JSON text.
    pub(super) fn from_json(text: &[u8]) -> Result<Self> {
        json::read(text).map_err(|e| e.context("its JSON is damaged"))
    }

    /// Reads a UBJSON document.
    pub(super) fn from_ubjson(bytes: &[u8]) -> Result<Self> {
        ubjson::read(bytes).map_err(|e| e.context("its UBJSON is damaged"))
    }

    /// Whether a member called `name` is to be kept.
    pub(super) fn keeps(name: &str) -> bool {
        !UNUSED.contains(&name)
    }

    /// The member `name`, if this is an object that has it.
    pub(super) fn find(&self, name: &str) -> Option<&Value> {
        let Value::Object(members) = self else { return None };
        members.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    /// The member `name`.
    pub(super) fn member(&self, name: &str) -> Result<&Value> {
        self.find(name).ok_or_else(|| broken(format!("{name:?} is missing")))
    }

    /// The text `name`.
    pub(super) fn text(&self, name: &str) -> Result<&str> {
        let Value::Text(text) = self.member(name)? else {
            return Err(broken(format!("{name:?} is no text")));
        };
        Ok(text)
    }

    /// The texts of the list `name`; none if there is no such list.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>> {
        if self.find(name).is_none() {
            return Ok(Vec::new());
        }
        let mut texts = Vec::new();
        for value in self.list(name)? {
            let Value::Text(text) = value else {
                return Err(broken(format!("{name:?} is not all texts")));
            };
            texts.push(text.clone());
        }
        Ok(texts)
    }

    /// The elements of the list `name`, which are no numbers.
    pub(super) fn list(&self, name: &str) -> Result<&[Value]> {
        let member = self.member(name)?;
        if matches!(member, Value::Numbers(numbers) if numbers.is_empty()) {
            return Ok(&[]);
        }
        let Value::List(list) = member else {
            return Err(broken(format!("{name:?} is not the list that it should be")));
        };
        Ok(list)
    }

    /// The numbers of the list `name`.
    pub(super) fn numbers(&self, name: &str) -> Result<&[f64]> {
        let member = self.member(name)?;
        if matches!(member, Value::List(list) if list.is_empty()) {
            return Ok(&[]);
        }
        let Value::Numbers(numbers) = member else {
            return Err(broken(format!("{name:?} is no list of numbers")));
        };
        Ok(numbers)
    }

    /// The same as the type that the library keeps them in.
    pub(super) fn floats(&self, name: &str) -> Result<Vec<f32>> {
        Ok(self.numbers(name)?.iter().map(|&x| narrow(x)).collect())
    }

    /// The number in the text `name` (parameters are texts, even if they are numbers), or the
    /// number `name`.
    pub(super) fn parameter<T: FromStr>(&self, name: &str) -> Result<T> {
        let shown = match self.member(name)? {
            Value::Text(text) => text.trim().to_owned(),
            Value::Number(number) => number.to_string(),
            Value::Nothing | Value::Numbers(_) | Value::List(_) | Value::Object(_) => {
                return Err(broken(format!("{name:?} is no number")));
            }
        };
        shown.parse().map_err(|_| broken(format!("{name:?} is {shown:?}, which is no such number")))
    }
}

/// `x` as an element of the library's arrays.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn narrow(x: f64) -> f32 {
    x as f32
}

/// `x` as an index; `None` if it is none.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn index(x: f64) -> Option<usize> {
    let fits = x >= 0.0 && x <= f64::from(u32::MAX) && x.fract() == 0.0;
    fits.then_some(x as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_or_named() {
        let text = br#"{"a":{"b":"7","c":[1,2.5],"d":["x"],"e":[]},"parents":[1]}"#;
        let document = Value::from_json(text).expect("JSON");
        assert_eq!(document.find("parents"), None, "not kept");
        let a = document.member("a").expect("there");
        assert_eq!(a.parameter::<u32>("b").expect("a number"), 7);
        assert_eq!(a.floats("c").expect("numbers"), [1.0, 2.5]);
        assert_eq!(a.texts("d").expect("texts"), ["x"]);
        assert!(a.texts("e").expect("none").is_empty() && a.texts("f").expect("none").is_empty());
        assert!(a.list("e").expect("empty").is_empty() && a.numbers("e").expect("none").is_empty());
        let says = |result: Result<()>| result.expect_err("wrong").message().to_owned();
        assert_eq!(says(a.member("f").map(drop)), "\"f\" is missing");
        assert_eq!(says(a.numbers("d").map(drop)), "\"d\" is no list of numbers");
        assert_eq!(says(a.text("c").map(drop)), "\"c\" is no text");
        assert_eq!(says(a.list("c").map(drop)), "\"c\" is not the list that it should be");
        let number = a.parameter::<u32>("d").map(drop);
        assert_eq!(says(number), "\"d\" is no number");
    }

    #[test]
    fn indices_are_whole_and_not_negative() {
        assert_eq!(index(3.0), Some(3));
        for wrong in [-1.0, 0.5, 1e10, f64::NAN, f64::INFINITY] {
            assert_eq!(index(wrong), None, "{wrong}");
        }
    }
}
