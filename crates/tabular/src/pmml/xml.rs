//! The XML of a model: read with bounds, and walked with errors that name the line.
//!
//! `roxmltree` reads it: no dependencies, no unsafe code, no recursion. Document type declarations
//! are refused, and with them every entity that a file could define.

use std::borrow::Cow;

use memchr::{memchr_iter, memmem};
use roxmltree::{Document, Node, NodeType, ParsingOptions};

use tensorserve_tensor::error::{Code, Error, Result};

/// The most nodes (elements and texts between them) of a file. A forest of a thousand trees of a
/// thousand leaves, with three classes, has about 20 million.
const MAX_NODES: u32 = 64_000_000;

/// How deep elements may be nested in what is read by recursion: expressions, predicates, models
/// within models. The nodes of trees are not.
pub(super) const MAX_DEPTH: usize = 48;

/// The most attributes of an element, and declarations of namespaces of a file: the reader's time
/// grows with the square of each.
const MAX_ATTRIBUTES: usize = 4096;

/// The document in `text`.
///
/// # Errors
/// [`Code::DataLoss`] if it is not XML; [`Code::Unimplemented`] if it declares entities, or has
/// more of something than we take.
pub(super) fn parse(text: &str) -> Result<Document<'_>> {
    let bytes = text.as_bytes();
    let attributes = |tag: &[u8]| memchr_iter(b'=', tag).count();
    if bytes.split(|byte| *byte == b'<').any(|tag| attributes(tag) > MAX_ATTRIBUTES)
        || memmem::find_iter(bytes, b"xmlns").count() > MAX_ATTRIBUTES
    {
        let message = format!("more than {MAX_ATTRIBUTES} attributes or namespaces are not taken");
        return Err(Error::new(Code::Unimplemented, message));
    }
    let options = ParsingOptions { nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| {
        if matches!(error, roxmltree::Error::DtdDetected) {
            let message = "a document type declaration (<!DOCTYPE>) is not taken: remove it";
            return Error::new(Code::Unimplemented, message);
        }
        Error::new(Code::DataLoss, format!("the file is not XML: {error}"))
    })
}

/// An element.
#[derive(Clone, Copy)]
pub(super) struct Element<'d>(Node<'d, 'd>);

impl<'d> Element<'d> {
    /// The outermost one of `document`.
    pub(super) fn root(document: &'d Document<'d>) -> Self {
        Element(document.root_element())
    }

    pub(super) fn name(self) -> &'d str {
        self.0.tag_name().name()
    }

    /// The elements directly in it, without `Extension`s, which mean nothing to the standard.
    pub(super) fn children(self) -> impl Iterator<Item = Element<'d>> {
        let elements = self.0.children().filter(|node| node.node_type() == NodeType::Element);
        elements.map(Element).filter(|element| element.name() != "Extension")
    }

    /// Those called `name`.
    pub(super) fn all(self, name: &'static str) -> impl Iterator<Item = Element<'d>> {
        self.children().filter(move |element| element.name() == name)
    }

    /// The first one called `name`.
    pub(super) fn child(self, name: &'static str) -> Option<Element<'d>> {
        self.all(name).next()
    }

    /// The first one called `name`, which must be there.
    pub(super) fn need_child(self, name: &'static str) -> Result<Element<'d>> {
        self.child(name).ok_or_else(|| self.damaged(format!("has no <{name}>")))
    }

    /// It and all elements in it, in the order of the file.
    pub(super) fn descendants(self) -> impl Iterator<Item = Element<'d>> {
        let elements = self.0.descendants().filter(|node| node.node_type() == NodeType::Element);
        elements.map(Element)
    }

    /// The values of all its attributes.
    pub(super) fn attributes(self) -> impl Iterator<Item = (&'d str, &'d str)> {
        self.0.attributes().map(|attribute| (attribute.name(), attribute.value()))
    }

    pub(super) fn attribute(self, name: &str) -> Option<&'d str> {
        self.0.attribute(name)
    }

    /// The attribute `name`, which must be there.
    pub(super) fn need(self, name: &str) -> Result<&'d str> {
        self.attribute(name).ok_or_else(|| self.damaged(format!("has no attribute {name}")))
    }

    /// The attribute `name` as a number, if it is there.
    pub(super) fn number(self, name: &str) -> Result<Option<f64>> {
        let Some(text) = self.attribute(name) else {
            return Ok(None);
        };
        match parse_number(text) {
            Some(number) => Ok(Some(number)),
            None => Err(self.damaged(format!("{name}={text:?} is not a number"))),
        }
    }

    pub(super) fn number_or(self, name: &str, default: f64) -> Result<f64> {
        Ok(self.number(name)?.unwrap_or(default))
    }

    pub(super) fn need_number(self, name: &str) -> Result<f64> {
        self.number(name)?.ok_or_else(|| self.damaged(format!("has no attribute {name}")))
    }

    /// The attribute `name` as yes or no.
    pub(super) fn is(self, name: &str, default: bool) -> Result<bool> {
        match self.attribute(name) {
            None => Ok(default),
            Some(text) => parse_flag(text)
                .ok_or_else(|| self.damaged(format!("{name}={text:?} is neither true nor false"))),
        }
    }

    /// The text in it.
    pub(super) fn text(self) -> &'d str {
        self.0.text().unwrap_or_default()
    }

    /// The parts of the `Array` that it is or holds.
    pub(super) fn array(self) -> Result<Vec<Cow<'d, str>>> {
        let array = match self.name() {
            "Array" => self,
            _ => self.need_child("Array")?,
        };
        split_array(array.text()).ok_or_else(|| array.damaged("has an open quote"))
    }

    /// The same, as numbers.
    pub(super) fn numbers(self) -> Result<Vec<f64>> {
        let number = |text: &Cow<str>| {
            parse_number(text).ok_or_else(|| self.damaged(format!("{text:?} is not a number")))
        };
        self.array()?.iter().map(number).collect()
    }

    /// That the file breaks the standard here.
    pub(super) fn damaged(self, what: impl std::fmt::Display) -> Error {
        Error::new(Code::DataLoss, format!("{}: {what}", self.place()))
    }

    /// That we can not do what the file asks here.
    pub(super) fn unsupported(self, what: impl std::fmt::Display) -> Error {
        let message = format!(
            "{}: {what} is not supported; export the model to ONNX, or without it",
            self.place()
        );
        Error::new(Code::Unimplemented, message)
    }

    fn place(self) -> String {
        let line = self.0.document().text_pos_at(self.0.range().start).row;
        format!("line {line}, <{}>", self.name())
    }
}

/// A number as XML Schema writes it; not one that is none.
pub(super) fn parse_number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| !number.is_nan())
}

pub(super) fn parse_flag(text: &str) -> Option<bool> {
    match text.trim() {
        "true" | "1" | "TRUE" | "True" => Some(true),
        "false" | "0" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The parts of an array: between blanks, or in double quotes, where `\"` is a quote. `None` for a
/// quote that stays open.
fn split_array(text: &str) -> Option<Vec<Cow<'_, str>>> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (part, behind) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let is_end = |(at, _): &(usize, &str)| {
                    !quoted.get(..*at).is_some_and(|before| before.ends_with('\\'))
                };
                let (end, _) = quoted.match_indices('"').find(is_end)?;
                let text = quoted.get(..end)?;
                let part = match text.contains("\\\"") {
                    true => Cow::Owned(text.replace("\\\"", "\"")),
                    false => Cow::Borrowed(text),
                };
                (part, quoted.get(end + 1..)?)
            }
            None => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                let (part, behind) = rest.split_at(end);
                (Cow::Borrowed(part), behind)
            }
        };
        parts.push(part);
        rest = behind.trim_start();
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_split_at_blanks_but_in_quotes() {
        let parts = split_array(" 1 2.5\n\"a b\" \"\" c ").expect("an array");
        assert_eq!(parts, ["1", "2.5", "a b", "", "c"]);
        assert_eq!(split_array(r#""a\"b" c"#).expect("an array"), ["a\"b", "c"]);
        assert!(split_array("\"open").is_none());
    }

    #[test]
    fn entities_and_what_is_no_xml_are_refused() {
        let bomb = "<!DOCTYPE a [<!ENTITY b \"cc\">]><a>&b;</a>";
        assert_eq!(parse(bomb).expect_err("refused").code(), Code::Unimplemented);
        assert_eq!(parse("<a><b></a>").expect_err("refused").code(), Code::DataLoss);
    }

    #[test]
    fn what_would_take_too_long_to_read_is_refused() {
        let attributes: String = (0..200_000).map(|n| format!(" a{n}=\"\"")).collect();
        let wide = format!("<a{attributes}/>");
        let names = (0..60_000).map(|n| format!("<a xmlns:n{n}=\"n{n}\">")).collect::<String>();
        let deep = format!("{names}{}", "</a>".repeat(60_000));
        for text in [wide, deep] {
            assert_eq!(parse(&text).expect_err("refused").code(), Code::Unimplemented);
        }
    }

    #[test]
    fn depth_does_not_exhaust_the_stack() {
        let deep = format!("{}{}", "<a>".repeat(300_000), "</a>".repeat(300_000));
        assert!(parse(&deep).is_ok());
    }
}
