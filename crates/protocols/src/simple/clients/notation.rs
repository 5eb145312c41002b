//! JSON values as literals in source code.
//!
//! Names come from models and are not trusted. Every character of a string except a few harmless ones
//! is written as an escape such as `\u0027`, which JSON, JavaScript and Python all read. So the text of a
//! value is printable ASCII with quotes only around strings and backslashes only before a `u`: it cannot
//! end a string, be interpolated, start a comment or contain HTML.

use serde_json::Value;

/// The maximum width of lines.
const WIDTH: usize = 96;

/// The language of constants and strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notation {
    Json,
    /// A JavaScript literal, in which `__proto__` needs brackets.
    JavaScript,
    /// A Python literal.
    Python,
}

impl Notation {
    /// An object with these members, each on its own line.
    pub(super) fn body(self, members: &[(&str, Value)]) -> String {
        let mut out = String::new();
        self.object(members.iter().map(|(name, value)| (*name, value)), 0, &mut out);
        out
    }

    /// `value` on one line.
    pub(super) fn line(self, value: &Value) -> String {
        let mut out = String::new();
        self.fits(value, usize::MAX, &mut out);
        out
    }

    /// `text` as a quoted string.
    pub(super) fn string(self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 2);
        out.push('"');
        for character in text.chars() {
            if is_harmless(character) {
                out.push(character);
                continue;
            }
            let number = u32::from(character);
            if self == Notation::Python && number > 0xffff {
                out.push_str(&format!("\\U{number:08x}"));
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
        out.push('"');
        out
    }

    /// Writes `value` on this line if it fits, else on several lines.
    fn write(self, value: &Value, indent: usize, out: &mut String) {
        let line_start = out.rfind('\n').map_or(0, |at| at + 1);
        let start = out.len();
        if self.fits(value, line_start + WIDTH - 1, out) {
            return;
        }
        out.truncate(start);
        match value {
            Value::Object(members) if !members.is_empty() => {
                let members = members.iter().map(|(name, value)| (name.as_str(), value));
                self.object(members, indent, out);
            }
            Value::Array(items) if !items.is_empty() => self.array(items, indent, out),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => out.push_str(&self.line(value)),
        }
    }

    fn object<'v>(
        self,
        members: impl Iterator<Item = (&'v str, &'v Value)>,
        indent: usize,
        out: &mut String,
    ) {
        out.push('{');
        for (index, (name, value)) in members.enumerate() {
            out.push_str(if index == 0 { "\n" } else { ",\n" });
            blanks(indent + 2, out);
            out.push_str(&self.name(name));
            out.push_str(": ");
            self.write(value, indent + 2, out);
        }
        out.push('\n');
        blanks(indent, out);
        out.push('}');
    }

    /// Writes as many items per line as fit; an item that does not fit begins its own line.
    fn array(self, items: &[Value], indent: usize, out: &mut String) {
        out.push('[');
        let mut line_start = None;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            let start = out.len();
            if let Some(line_start) = line_start {
                out.push(' ');
                if self.fits(item, line_start + WIDTH - 1, out) {
                    continue;
                }
                out.truncate(start);
            }
            out.push('\n');
            line_start = Some(out.len());
            blanks(indent + 2, out);
            self.write(item, indent + 2, out);
            if out.get(start + 1..).is_some_and(|written| written.contains('\n')) {
                line_start = None;
            }
        }
        out.push('\n');
        blanks(indent, out);
        out.push(']');
    }

    /// Appends `value` on one line; stops with `false` once `out` is longer than `limit`.
    fn fits(self, value: &Value, limit: usize, out: &mut String) -> bool {
        match value {
            Value::Null if self == Notation::Python => out.push_str("None"),
            Value::Bool(true) if self == Notation::Python => out.push_str("True"),
            Value::Bool(false) if self == Notation::Python => out.push_str("False"),
            Value::Null | Value::Bool(_) | Value::Number(_) => out.push_str(&value.to_string()),
            Value::String(text) => out.push_str(&self.string(text)),
            Value::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    if !self.fits(item, limit, out) {
                        return false;
                    }
                }
                out.push(']');
            }
            Value::Object(members) => {
                out.push('{');
                for (index, (name, item)) in members.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    out.push_str(&self.name(name));
                    out.push_str(": ");
                    if !self.fits(item, limit, out) {
                        return false;
                    }
                }
                out.push('}');
            }
        }
        out.len() <= limit
    }

    fn name(self, name: &str) -> String {
        let text = self.string(name);
        match self {
            Notation::JavaScript if name == "__proto__" => format!("[{text}]"),
            Notation::Json | Notation::JavaScript | Notation::Python => text,
        }
    }
}

/// Whether a character is not special within strings and comments of any language.
fn is_harmless(character: char) -> bool {
    character.is_ascii_alphanumeric() || " _-.,:;/+=".contains(character)
}

fn blanks(count: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', count));
}

/// `text` for a comment or a heading: truncated, with all special characters replaced.
pub(super) fn label(text: &str) -> String {
    let mut label: String = text.chars().take(64).map(plain).collect();
    if text.chars().nth(64).is_some() {
        label.push_str("...");
    }
    label
}

fn plain(character: char) -> char {
    let is_plain = character.is_ascii_alphanumeric() || "_-.".contains(character);
    if is_plain { character } else { '?' }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A Python or JavaScript literal as JSON.
    fn as_json(text: &str) -> String {
        // Only the parts outside strings have constants to replace.
        let mut out = String::new();
        for (index, part) in text.split('"').enumerate() {
            if index > 0 {
                out.push('"');
            }
            if index % 2 == 1 {
                out.push_str(&without_long_escapes(part));
                continue;
            }
            let part = part.replace("True", "true").replace("False", "false");
            out.push_str(&part.replace("None", "null"));
        }
        out.replace("[\"__proto__\"]:", "\"__proto__\":")
    }

    fn without_long_escapes(text: &str) -> String {
        let mut parts = text.split("\\U");
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (number, rest) = part.split_at(8);
            let number = u32::from_str_radix(number, 16).expect("a number");
            out.push(char::from_u32(number).expect("a character"));
            out.push_str(rest);
        }
        out
    }

    fn value() -> impl Strategy<Value = Value> {
        let text = prop_oneof!["\\PC{0,12}", any::<String>(), Just("__proto__".to_owned())];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            text.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::btree_map(text.clone(), inner, 0..8)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_is_read_back(value in value()) {
            for notation in [Notation::Json, Notation::JavaScript, Notation::Python] {
                let read: Value = serde_json::from_str(&as_json(&notation.line(&value)))?;
                prop_assert_eq!(&read, &value);
                let text = notation.body(&[("a", value.clone()), ("__proto__", value.clone())]);
                let read: Value = serde_json::from_str(&as_json(&text))?;
                prop_assert_eq!(&read, &json!({"a": value, "__proto__": value}));
            }
        }

        #[test]
        fn strings_have_no_special_characters(text in any::<String>()) {
            for notation in [Notation::Json, Notation::JavaScript, Notation::Python] {
                let string = notation.string(&text);
                let inner = string.trim_matches('"');
                let plain = inner.replace("\\u", "").replace("\\U", "");
                prop_assert!(plain.chars().all(is_harmless), "{}", string);
                prop_assert_eq!(string.len(), inner.len() + 2);
            }
            prop_assert!(label(&text).chars().all(|c| is_harmless(c) || c == '?'));
        }
    }

    #[test]
    fn characters_beyond_ascii_are_those_of_the_language() {
        let text = "é\u{1f600}\n'";
        assert_eq!(Notation::Json.string(text), "\"\\u00e9\\ud83d\\ude00\\u000a\\u0027\"");
        assert_eq!(Notation::Python.string(text), "\"\\u00e9\\U0001f600\\u000a\\u0027\"");
    }

    #[test]
    fn long_values_are_wrapped_and_short_ones_are_not() {
        let short = [("model_name", json!("m")), ("data", json!({"x": [1, true]}))];
        let want = "{\n  \"model_name\": \"m\",\n  \"data\": {\"x\": [1, true]}\n}";
        assert_eq!(Notation::Json.body(&short), want);
        let rows = vec![vec![1; 5]; 9];
        let text =
            Notation::Json.body(&[("data", json!({"x": [vec![1; 60], vec![2; 3]], "y": rows}))]);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        let want =
            "\n      [2, 2, 2]\n    ],\n    \"y\": [\n      [1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [";
        assert!(text.contains(want), "{text}");
        assert_eq!(text.lines().count(), 16, "{text}");
    }

    #[test]
    fn a_member_of_that_name_stays_one() {
        let value = json!({"__proto__": 1});
        assert_eq!(Notation::JavaScript.line(&value), "{[\"__proto__\"]: 1}");
        assert_eq!(Notation::Json.line(&value), "{\"__proto__\": 1}");
    }
}
