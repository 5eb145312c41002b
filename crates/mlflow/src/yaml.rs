//! Reads a YAML document as a JSON value, within limits of depth and size.

use serde_json::{Map, Number, Value};
use yaml_rust2::parser::{Event, Parser};
use yaml_rust2::scanner::TScalarStyle;

/// The deepest nesting of lists and mappings.
const DEEPEST: usize = 64;

/// The most values of a document, with those that an alias repeats.
const MOST_VALUES: usize = 1 << 20;

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
    /// Values with an anchor, each with the anchor's number and the count of values in it.
    anchors: Vec<(usize, Value, usize)>,
    count: usize,
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
                self.insert(value, anchor, 1)
            }
            Event::SequenceStart(anchor, _) => self.begin(Value::Array(Vec::new()), anchor),
            Event::MappingStart(anchor, _) => self.begin(Value::Object(Map::new()), anchor),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open { value, anchor, .. }) => self.insert(value, anchor, 1),
                None => Err("a list or a mapping ends that has not begun".to_owned()),
            },
            Event::Alias(number) => {
                let found = self.anchors.iter().find(|(anchor, ..)| *anchor == number);
                let Some((_, value, count)) = found else {
                    return Err("an alias refers to a value that contains it".to_owned());
                };
                let count = *count;
                self.check_count(count)?;
                let value = value.clone();
                self.insert(value, 0, count)
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

    fn check_count(&self, more: usize) -> Result<(), String> {
        match self.count.saturating_add(more) > MOST_VALUES {
            true => Err(format!("it has more than {MOST_VALUES} values")),
            false => Ok(()),
        }
    }

    /// Adds a complete value to the innermost open one; it is the document if there is none.
    fn insert(&mut self, value: Value, anchor: usize, count: usize) -> Result<(), String> {
        self.check_count(count)?;
        self.count += count;
        if anchor != 0 {
            let size = count_of(&value);
            self.check_count(size)?;
            self.count += size;
            self.anchors.push((anchor, value.clone(), size));
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

/// The number of values in `value`, which is at most [`DEEPEST`] levels deep.
fn count_of(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(count_of).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(count_of).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
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
        assert!(read(&bomb).unwrap_err().contains("more than 1048576 values"));
        for bad in ["a: &a [*a]", "? [1]\n: 2", "a: [1", "a: 'b"] {
            assert!(read(bad).is_err(), "{bad:?}: {:?}", read(bad));
        }
    }
}
