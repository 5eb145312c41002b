//! The XML of a model (PMML, OpenVINO): parsed within limits, with errors that name the line.
//!
//! `roxmltree` parses it: no dependencies, no unsafe code, no recursion. Document type declarations
//! are refused, and with them all entities that a file could define.

use std::borrow::Cow;

use memchr::{memchr_iter, memmem};
use roxmltree::{Node, NodeType, ParsingOptions};

use tensorserve_tensor::error::{Error, Result};

/// The most nodes (elements, and texts between them) of a file. A forest of a thousand trees with a
/// thousand leaves each and three classes has about 20 million.
const MAX_NODES: u32 = 64_000_000;

/// How deep elements may be nested that are read recursively: expressions, predicates, and models
/// within models. The nodes of trees are not read recursively.
pub const MAX_DEPTH: usize = 48;

/// The most attributes of an element, and the most namespace declarations of a file. Parsing time
/// grows with the square of each.
const MAX_ATTRIBUTES: usize = 4096;

/// Parses `text`.
///
/// # Errors
/// [`Code::DataLoss`](tensorserve_tensor::error::Code::DataLoss) if it is not valid XML; [`Code::Unimplemented`](tensorserve_tensor::error::Code::Unimplemented) if it has a document type
/// declaration, or exceeds a limit.
pub fn parse(text: &str) -> Result<XmlDocument<'_>> {
    let bytes = text.as_bytes();
    let mut tags = bytes.split(|byte| *byte == b'<');
    if tags.any(|tag| memchr_iter(b'=', tag).count() > MAX_ATTRIBUTES)
        || memmem::find_iter(bytes, b"xmlns").count() > MAX_ATTRIBUTES
    {
        let message =
            format!("more than {MAX_ATTRIBUTES} attributes or namespaces are not supported");
        return Err(Error::unsupported(message));
    }
    let options = ParsingOptions { nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    let parsed = roxmltree::Document::parse_with_options(text, options);
    parsed.map(XmlDocument).map_err(|error| {
        if matches!(error, roxmltree::Error::DtdDetected) {
            let message = "a document type declaration (<!DOCTYPE>) is not supported: remove it";
            return Error::unsupported(message);
        }
        Error::damaged(format!("the file is not valid XML: {error}"))
    })
}

/// A parsed document.
#[derive(Debug)]
pub struct XmlDocument<'t>(roxmltree::Document<'t>);

impl XmlDocument<'_> {
    /// The root element.
    #[must_use]
    pub fn root(&self) -> XmlElement<'_> {
        XmlElement(self.0.root_element())
    }
}

/// An element of a document.
#[derive(Clone, Copy)]
pub struct XmlElement<'d>(Node<'d, 'd>);

impl<'d> XmlElement<'d> {
    /// Its name, without a prefix.
    #[must_use]
    pub fn name(self) -> &'d str {
        self.0.tag_name().name()
    }

    /// Its child elements, without `Extension`s, to which PMML gives no meaning; OpenVINO has none of that name.
    pub fn children(self) -> impl Iterator<Item = XmlElement<'d>> {
        let elements = self.0.children().filter(|node| node.node_type() == NodeType::Element);
        elements.map(XmlElement).filter(|element| element.name() != "Extension")
    }

    /// Its child elements called `name`.
    pub fn children_named(self, name: &'static str) -> impl Iterator<Item = XmlElement<'d>> {
        self.children().filter(move |element| element.name() == name)
    }

    /// Its first child element called `name`.
    pub fn child(self, name: &'static str) -> Option<XmlElement<'d>> {
        self.children_named(name).next()
    }

    /// Its first child element called `name`, which is required.
    pub fn required_child(self, name: &'static str) -> Result<XmlElement<'d>> {
        self.child(name).ok_or_else(|| self.damaged(format!("has no <{name}>")))
    }

    /// This element and all within it, in document order.
    pub fn descendants(self) -> impl Iterator<Item = XmlElement<'d>> {
        let elements = self.0.descendants().filter(|node| node.node_type() == NodeType::Element);
        elements.map(XmlElement)
    }

    /// The names and values of all its attributes.
    pub fn attributes(self) -> impl Iterator<Item = (&'d str, &'d str)> {
        self.0.attributes().map(|attribute| (attribute.name(), attribute.value()))
    }

    /// The value of the attribute `name`.
    #[must_use]
    pub fn attribute(self, name: &str) -> Option<&'d str> {
        self.0.attribute(name)
    }

    /// The attribute `name`, which is required.
    pub fn required(self, name: &str) -> Result<&'d str> {
        self.attribute(name).ok_or_else(|| self.damaged(format!("has no attribute {name}")))
    }

    /// The attribute `name` as a number, if it is present.
    pub fn number(self, name: &str) -> Result<Option<f64>> {
        let Some(text) = self.attribute(name) else {
            return Ok(None);
        };
        match parse_number(text) {
            Some(number) => Ok(Some(number)),
            None => Err(self.damaged(format!("{name}={text:?} is not a number"))),
        }
    }

    /// The attribute `name` as a number, or `default`.
    pub fn number_or(self, name: &str, default: f64) -> Result<f64> {
        Ok(self.number(name)?.unwrap_or(default))
    }

    /// The attribute `name` as a number, which is required.
    pub fn required_number(self, name: &str) -> Result<f64> {
        self.number(name)?.ok_or_else(|| self.damaged(format!("has no attribute {name}")))
    }

    /// The attribute `name` as a boolean, or `default`.
    pub fn boolean_or(self, name: &str, default: bool) -> Result<bool> {
        match self.attribute(name) {
            None => Ok(default),
            Some(text) => parse_boolean(text)
                .ok_or_else(|| self.damaged(format!("{name}={text:?} is neither true nor false"))),
        }
    }

    /// Its text.
    pub fn text(self) -> &'d str {
        self.0.text().unwrap_or_default()
    }

    /// The elements of the `Array` that it is or contains.
    pub fn array(self) -> Result<Vec<Cow<'d, str>>> {
        let array = match self.name() {
            "Array" => self,
            _ => self.required_child("Array")?,
        };
        split_array(array.text()).ok_or_else(|| array.damaged("has an unclosed quote"))
    }

    /// As [`XmlElement::array`], of numbers.
    pub fn numbers(self) -> Result<Vec<f64>> {
        let mut numbers = Vec::new();
        for text in self.array()? {
            let number = parse_number(&text);
            numbers.push(number.ok_or_else(|| self.damaged(format!("{text:?} is not a number")))?);
        }
        Ok(numbers)
    }

    /// The error for an element that violates the standard.
    pub fn damaged(self, what: impl std::fmt::Display) -> Error {
        Error::damaged(format!("{}: {what}", self.position()))
    }

    /// The error for a valid element, `what` of which cannot be evaluated.
    pub fn unsupported(self, what: impl std::fmt::Display) -> Error {
        Error::unsupported(format!(
            "{}: {what} is not supported; export the model without it, or to ONNX",
            self.position()
        ))
    }

    /// Where it is in the text, in bytes.
    #[must_use]
    pub fn range(self) -> std::ops::Range<usize> {
        self.0.range()
    }

    fn position(self) -> String {
        let line = self.0.document().text_pos_at(self.0.range().start).row;
        format!("line {line}, <{}>", self.name())
    }
}

/// A name without its namespace prefix.
pub fn local_name(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

/// A number of XML Schema; `None` for NaN.
pub fn parse_number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| !number.is_nan())
}

/// `true`, `false`, `1` or `0`.
#[must_use]
pub fn parse_boolean(text: &str) -> Option<bool> {
    match text.trim() {
        "true" | "1" | "TRUE" | "True" => Some(true),
        "false" | "0" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The elements of an array: separated by whitespace, or in double quotes, where `\"` is a quote.
/// `None` if a quote is not closed.
fn split_array(text: &str) -> Option<Vec<Cow<'_, str>>> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (part, behind) = match rest.strip_prefix('"') {
            Some(quoted) => split_quoted(quoted)?,
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

/// The text before the closing quote, with its escaped quotes replaced; and the text behind it.
fn split_quoted(quoted: &str) -> Option<(Cow<'_, str>, &str)> {
    const ESCAPED_QUOTE: &str = "\\\"";
    let mut quotes = quoted.match_indices('"').map(|(index, _)| index);
    let end = quotes.find(|index| !quoted.get(..*index).unwrap_or_default().ends_with('\\'))?;
    let text = quoted.get(..end)?;
    let text = match text.contains(ESCAPED_QUOTE) {
        true => Cow::Owned(text.replace(ESCAPED_QUOTE, "\"")),
        false => Cow::Borrowed(text),
    };
    Some((text, quoted.get(end + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::error::Code;

    #[test]
    fn arrays_are_split_at_blanks_but_in_quotes() {
        let parts = split_array(" 1 2.5\n\"a b\" \"\" c ").expect("an array");
        assert_eq!(parts, ["1", "2.5", "a b", "", "c"]);
        assert_eq!(split_array(r#""a\"b" c"#).expect("an array"), ["a\"b", "c"]);
        assert!(split_array("\"open").is_none());
    }

    #[test]
    fn entities_and_invalid_xml_are_refused() {
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
