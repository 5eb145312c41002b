//! The JSON of a request as a tree: its form decides what it means, so it is read before the model is
//! consulted.

use std::borrow::Cow;

use super::fault;
use tensorserve_codec::json::number::Number;
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_tensor::budget::{ALLOCATION, Meter};
use tensorserve_tensor::error::Result;

/// The deepest nesting of lists and objects.
const DEEPEST: usize = 32;

/// A JSON value, or a field of CSV.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, [u8]>),
    List(Vec<Node<'a>>),
    Object(Vec<(String, Node<'a>)>),
}

impl<'a> Node<'a> {
    /// The document `text`.
    pub(super) fn read(text: &'a [u8]) -> Result<Self> {
        let mut reader = NodeReader { cursor: Cursor::new(text), meter: Meter::default() };
        let root = reader.cursor.open_document().map_err(malformed).and_then(|()| reader.value(0));
        let root = root?;
        reader.cursor.skip_space();
        match reader.cursor.remaining() {
            0 => Ok(root),
            _ => Err(fault::invalid_input(format_args!(
                "Ensure that input is a valid JSON formatted string. Error: 'Extra data (byte {})'",
                reader.cursor.offset()
            ))),
        }
    }

    /// Python's name of its type, for errors.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Node::Null => "NoneType",
            Node::Bool(_) => "bool",
            Node::Int(_) => "int",
            Node::Float(_) => "float",
            Node::Text(_) => "str",
            Node::List(_) => "list",
            Node::Object(_) => "dict",
        }
    }

    /// The values of a list; `None` for any other value.
    pub(super) fn list(&self) -> Option<&[Self]> {
        match self {
            Node::List(list) => Some(list),
            Node::Null
            | Node::Bool(_)
            | Node::Int(_)
            | Node::Float(_)
            | Node::Text(_)
            | Node::Object(_) => None,
        }
    }

    /// The text; `None` for any other value.
    pub(super) fn text(&self) -> Option<&[u8]> {
        match self {
            Node::Text(text) => Some(text),
            Node::Null
            | Node::Bool(_)
            | Node::Int(_)
            | Node::Float(_)
            | Node::List(_)
            | Node::Object(_) => None,
        }
    }

    /// The memory that a copy takes besides the node itself.
    pub(super) fn bytes_of_copy(&self) -> usize {
        match self {
            Node::Text(Cow::Owned(text)) => text.len().saturating_add(ALLOCATION),
            Node::List(list) => list.iter().fold(ALLOCATION, |bytes, node| {
                bytes.saturating_add(size_of::<Node>()).saturating_add(node.bytes_of_copy())
            }),
            Node::Object(members) => members.iter().fold(ALLOCATION, |bytes, (name, node)| {
                let own = size_of::<(String, Node)>() + ALLOCATION + name.len();
                bytes.saturating_add(own).saturating_add(node.bytes_of_copy())
            }),
            Node::Null
            | Node::Bool(_)
            | Node::Int(_)
            | Node::Float(_)
            | Node::Text(Cow::Borrowed(_)) => 0,
        }
    }

    /// Whether it is neither a list nor an object.
    pub(super) fn is_scalar(&self) -> bool {
        !matches!(self, Node::List(_) | Node::Object(_))
    }

    /// Removes the member `name` of an object; the last one, if it has several.
    pub(super) fn take(&mut self, name: &str) -> Option<Self> {
        let Node::Object(members) = self else {
            return None;
        };
        let at = members.iter().rposition(|(key, _)| key == name)?;
        Some(members.swap_remove(at).1)
    }

    /// A name as text; numbers are names in tables without names.
    pub(super) fn name(&self) -> Option<String> {
        match self {
            Node::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
            Node::Int(number) => Some(number.to_string()),
            Node::Null | Node::Bool(_) | Node::Float(_) | Node::List(_) | Node::Object(_) => None,
        }
    }
}

fn malformed(error: SyntaxError) -> tensorserve_tensor::error::Error {
    let (text, offset) = (error.kind.text(), error.offset);
    fault::invalid_input(format_args!(
        "Ensure that input is a valid JSON formatted string. Error: '{text} (byte {offset})'"
    ))
}

struct NodeReader<'a> {
    cursor: Cursor<'a>,
    /// The memory of the values read so far.
    meter: Meter,
}

impl<'a> NodeReader<'a> {
    /// Reads the value at the cursor, with `depth` lists and objects around it.
    fn value(&mut self, depth: usize) -> Result<Node<'a>> {
        if depth > DEEPEST {
            let message = format_args!("The input is nested more than {DEEPEST} levels deep");
            return Err(fault::invalid_input(message));
        }
        match self.cursor.peek() {
            b'{' => self.object(depth),
            b'[' => self.list(depth),
            b'"' => {
                let text = self.cursor.string().map_err(malformed)?;
                if let Cow::Owned(text) = &text {
                    self.meter.add(text.capacity().saturating_add(ALLOCATION))?;
                }
                Ok(Node::Text(text))
            }
            b't' => self.literal(b"true", Node::Bool(true)),
            b'f' => self.literal(b"false", Node::Bool(false)),
            b'n' => self.literal(b"null", Node::Null),
            _ => Ok(match self.cursor.number().map_err(malformed)? {
                Number::Unsigned(number) => {
                    #[allow(clippy::cast_precision_loss)] // As Python's conversion.
                    i64::try_from(number).map_or(Node::Float(number as f64), Node::Int)
                }
                Number::Negative(number) => Node::Int(number),
                Number::Float(number) => Node::Float(number),
            }),
        }
    }

    fn literal(&mut self, word: &[u8], value: Node<'a>) -> Result<Node<'a>> {
        self.cursor.literal(word).map_err(malformed)?;
        Ok(value)
    }

    fn list(&mut self, depth: usize) -> Result<Node<'a>> {
        let mut list = Vec::new();
        let mut is_open = self.cursor.open_array();
        while is_open {
            let value = self.value(depth + 1)?;
            self.meter.push(&mut list, value)?;
            is_open = self.cursor.next_element().map_err(malformed)?;
        }
        Ok(Node::List(list))
    }

    fn object(&mut self, depth: usize) -> Result<Node<'a>> {
        let mut members = Vec::new();
        let mut is_open = self.cursor.open_object().map_err(malformed)?;
        while is_open {
            let name = self.cursor.name().map_err(malformed)?;
            self.meter.add(name.len().saturating_add(ALLOCATION))?;
            let name = String::from_utf8_lossy(&name).into_owned();
            let value = self.value(depth + 1)?;
            self.meter.push(&mut members, (name, value))?;
            is_open = self.cursor.next_member().map_err(malformed)?;
        }
        Ok(Node::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read() {
        let text = b" {\"a\": [1, -2.5, NaN, null, true], \"b\": \"x\\n\", \"c\": {}} ";
        let mut node = Node::read(text).expect("valid");
        assert_eq!(node.take("b"), Some(Node::Text(Cow::Borrowed(&b"x\n"[..]))));
        let Some(Node::List(list)) = node.take("a") else { panic!("a list") };
        assert_eq!(list[..2], [Node::Int(1), Node::Float(-2.5)]);
        assert!(matches!(list[2], Node::Float(number) if number.is_nan()));
        assert_eq!(list[3..], [Node::Null, Node::Bool(true)]);
        assert_eq!(node.take("c"), Some(Node::Object(Vec::new())));
        assert_eq!(node.take("d"), None);
        assert_eq!(
            Node::read(b"18446744073709551615").expect("valid"),
            Node::Float(18446744073709551615.0)
        );
    }

    #[test]
    fn malformed_documents_are_refused() {
        let deep = "[".repeat(100_000);
        for bad in ["", "{", "{\"a\" 1}", "[1,]", "[1] 2", "nul", deep.as_str()] {
            let error = Node::read(bad.as_bytes()).expect_err("malformed");
            assert!(error.message().starts_with("Invalid input. "), "{error}");
        }
    }
}
