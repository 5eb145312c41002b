//! Reads a YAML document as a JSON value, within limits of depth and size.

use serde_json::{Map, Number, Value};
use yaml_rust2::parser::{Event, Parser};
use yaml_rust2::scanner::TScalarStyle;

/// The deepest nesting of lists and mappings.
const DEEPEST: usize = 64;

/// The most values of a document.
const MOST_VALUES: usize = 1 << 20;

/// The most memory of what anchors and aliases copy: three bytes can stand for a text of any length.
const MOST_COPIED: usize = 4 << 20;

/// What a value takes, and a mapping besides its members, whose first one brings room for eleven.
const VALUE_BYTES: usize = 64;
const MAPPING_BYTES: usize = 640;

/// A list or a mapping that has begun.
struct Open {
    value: Value,
    /// The key of a mapping whose value follows.
    key: Option<String>,
    /// The number of its anchor; 0 if it has none.
    anchor: usize,
}

/// The values read so far.
#[derive(Default)]
struct Document {
    open: Vec<Open>,
    root: Option<Value>,
    /// Values with an anchor, each with the anchor's number and the memory of a copy.
    anchors: Vec<(usize, Value, usize)>,
    count: usize,
    copied: usize,
}

/// The first document of `text`, as JSON.
///
/// # Errors
/// The reason, with its line if it is known.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    let mut parser = Parser::new_from_str(text);
    let mut document = Document::default();
    loop {
        let (event, mark) = parser.next_token().map_err(|error| error.to_string())?;
        if matches!(event, Event::StreamEnd | Event::DocumentEnd) {
            return Ok(document.root.unwrap_or(Value::Null));
        }
        document.add(event).map_err(|reason| format!("{reason} (line {})", mark.line()))?;
    }
}

impl Document {
    fn add(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let value = match style {
                    TScalarStyle::Plain => plain(text),
                    TScalarStyle::SingleQuoted
                    | TScalarStyle::DoubleQuoted
                    | TScalarStyle::Literal
                    | TScalarStyle::Folded => Value::String(text),
                };
                self.insert(value, anchor)
            }
            Event::SequenceStart(anchor, _) => self.begin(Value::Array(Vec::new()), anchor),
            Event::MappingStart(anchor, _) => self.begin(Value::Object(Map::new()), anchor),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open { value, anchor, .. }) => self.insert(value, anchor),
                None => Err("a list or a mapping ends that has not begun".to_owned()),
            },
            Event::Alias(number) => {
                let found = self.anchors.iter().find(|(anchor, ..)| *anchor == number);
                let Some((_, value, bytes)) = found else {
                    return Err("an alias refers to a value that contains it".to_owned());
                };
                self.copied = with_copy(self.copied, *bytes)?;
                let value = value.clone();
                self.insert(value, 0)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn begin(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        if self.open.len() >= DEEPEST {
            return Err(format!("it is nested more than {DEEPEST} levels deep"));
        }
        self.open.push(Open { value, key: None, anchor });
        Ok(())
    }

    /// Adds a complete value to the innermost open one; it is the document if there is none.
    fn insert(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        if self.count >= MOST_VALUES {
            return Err(format!("it has more than {MOST_VALUES} values"));
        }
        self.count += 1;
        if anchor != 0 {
            let bytes = bytes_of(&value);
            self.copied = with_copy(self.copied, bytes)?;
            self.anchors.push((anchor, value.clone(), bytes));
        }
        let Some(around) = self.open.last_mut() else {
            self.root = Some(value);
            return Ok(());
        };
        match &mut around.value {
            Value::Array(list) => list.push(value),
            Value::Object(map) => match around.key.take() {
                Some(key) => drop(map.insert(key, value)),
                None => around.key = Some(key_text(value)?),
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        Ok(())
    }
}

/// What is copied after a further copy of `bytes`.
fn with_copy(copied: usize, bytes: usize) -> Result<usize, String> {
    let copied = copied.saturating_add(bytes);
    let too_much = || format!("its anchors and aliases copy more than {MOST_COPIED} bytes");
    (copied <= MOST_COPIED).then_some(copied).ok_or_else(too_much)
}

/// The memory of a copy of `value`. Aliases in aliases make it deeper than [`DEEPEST`]; what may be copied bounds it.
fn bytes_of(value: &Value) -> usize {
    let inner: usize = match value {
        Value::Array(list) => list.iter().map(bytes_of).sum(),
        Value::Object(map) => {
            let members = map.iter().map(|(key, value)| key.len() + VALUE_BYTES + bytes_of(value));
            MAPPING_BYTES + members.sum::<usize>()
        }
        Value::String(text) => text.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    VALUE_BYTES + inner
}

fn key_text(value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        Value::Array(_) | Value::Object(_) => Err("a key is a list or a mapping".to_owned()),
    }
}

/// The value of text without quotes, by the rules of YAML's core schema that `MLmodel` files need.
fn plain(text: String) -> Value {
    match text.as_str() {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    if let Ok(number) = text.parse::<i64>() {
        return Value::Number(number.into());
    }
    let starts_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.');
    let number = text.parse::<f64>().ok().filter(|_| starts_number).and_then(Number::from_f64);
    number.map_or(Value::String(text), Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_is_read_as_json() {
        let text = "a: 1\nb: [x, 'y', \"1\", 2.5, null, true]\nc:\n  d: >-\n    folded\n    text\n\
                    e: &anchor {k: v}\nf: *anchor\n1.2: 3.4.5\n";
        let want = json!({
            "a": 1, "b": ["x", "y", "1", 2.5, null, true], "c": {"d": "folded text"},
            "e": {"k": "v"}, "f": {"k": "v"}, "1.2": "3.4.5",
        });
        assert_eq!(read(text), Ok(want));
        assert_eq!(read(""), Ok(Value::Null));
    }

    #[test]
    fn hostile_documents_are_refused() {
        let deep = "[".repeat(100);
        assert!(read(&deep).unwrap_err().contains("64 levels"));
        assert!(read(&"[".repeat(100_000)).is_err());
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let one = format!("*a{}, ", level - 1);
            bomb.push_str(&format!(
                "a{level}: &a{level} [{}]\n",
                one.repeat(10).trim_end_matches(", ")
            ));
        }
        assert!(read(&bomb).unwrap_err().contains("copy more than 4194304 bytes"));
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), "*a, ".repeat(1000));
        assert!(read(&text).unwrap_err().contains("copy more than 4194304 bytes"));
        for bad in ["a: &a [*a]", "? [1]\n: 2", "a: [1", "a: 'b"] {
            assert!(read(bad).is_err(), "{bad:?}: {:?}", read(bad));
        }
    }
}
