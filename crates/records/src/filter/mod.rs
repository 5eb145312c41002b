//! The JSONPath expressions of SageMaker's `DataProcessing`: `InputFilter` and `OutputFilter`.
//!
//! `$`, `.name`, `.*`, `[*]`, `['a','b']`, `[1]`, `[-1]`, `[1,3,5]`, `[a:b]`, `[:b]`, `[a:]`, and a
//! dot before a bracket. The end of a slice is exclusive, as in Jayway's `JsonPath`, RFC 9535 and
//! Python. SageMaker's guide contradicts itself here. Source: "Associate Prediction Results with
//! Input Records" of the `SageMaker` developer guide.
//!
//! One name or index selects a value. Several names select an object with these members; several
//! indices, slices and `*` select an array. What follows a selection of several values applies to
//! each of them, and the result is one array.

use tensorserve_codec::csv::CsvReader;
use tensorserve_tensor::error::{Error, Result};

use self::parse::{Range, Step};
use crate::text;

mod parse;
#[cfg(test)]
mod tests;

/// The longest expression, in characters: the limit of SageMaker's API.
pub const MAX_PATH: usize = 63;

/// How often its own size a value may grow by a path that selects parts of it repeatedly.
const MAX_GROWTH: usize = 8;

/// The most names in an error message.
const MAX_NAMES_SHOWN: usize = 10;

/// A path to parts of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath {
    expression: String,
    steps: Vec<Step>,
}

impl Default for JsonPath {
    fn default() -> Self {
        JsonPath { expression: "$".to_owned(), steps: Vec::new() }
    }
}

impl JsonPath {
    /// Parses `expression`.
    ///
    /// # Errors
    /// [`Error::invalid`] with the character, counted from 1, at which the expression is malformed
    /// or uses more than SageMaker's subset, or if it is longer than [`MAX_PATH`].
    pub fn parse(expression: &str) -> Result<JsonPath> {
        let length = expression.chars().count();
        if length > MAX_PATH {
            return Err(Error::invalid(format!(
                "the JSONPath has {length} characters, and {MAX_PATH} are allowed"
            )));
        }
        let steps = parse::path(expression)?;
        Ok(JsonPath { expression: expression.to_owned(), steps })
    }

    /// Whether the path is `$`, which selects all.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.steps.is_empty()
    }

    /// Checks that the path can apply to CSV rows: one step at most, of indices, slices or `*`.
    ///
    /// # Errors
    /// [`Error::invalid`] if it cannot.
    pub fn check_csv(&self) -> Result<()> {
        let reason = match &self.steps[..] {
            [] | [Step::All | Step::Index(_) | Step::Ranges(_)] => return Ok(()),
            [Step::Name(_) | Step::Names(_), ..] => "columns have no names",
            [_, _, ..] => "fields have no parts",
        };
        Err(Error::invalid(format!(
            "the JSONPath {:?} cannot select columns of CSV, because {reason}: write indices and \
             slices, as in $[0] or $[1:]",
            self.expression
        )))
    }

    /// Appends to `out` what the path selects in the text `json`. Parts are copied byte for byte,
    /// without line breaks.
    ///
    /// # Errors
    /// [`Error::invalid`] if the text is malformed, an index is out of range, or a member is missing.
    pub fn apply_json(&self, json: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let root = text::document(json).map_err(|error| error.context("the record"))?;
        let limit = json.len().saturating_mul(MAX_GROWTH).saturating_add(1024);
        let (mut values, mut is_one) = (vec![root], true);
        let (last_names, steps) = match self.steps.split_last() {
            Some((Step::Names(names), before)) => (Some(names), before),
            _ => (None, &self.steps[..]),
        };
        for step in steps {
            values = self.next_values(step, &values, limit)?;
            is_one &= matches!(step, Step::Name(_) | Step::Index(_));
        }
        let start = out.len();
        if !is_one {
            out.push(b'[');
        }
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            match last_names {
                Some(names) => self.append_object(names, value, out)?,
                None => text::append_on_one_line(value, out),
            }
            if out.len() - start > limit {
                return Err(self.grows(limit));
            }
        }
        if !is_one {
            out.push(b']');
        }
        Ok(())
    }

    /// What `step` selects in each of `values`.
    fn next_values<'a>(
        &self,
        step: &Step,
        values: &[&'a [u8]],
        limit: usize,
    ) -> Result<Vec<&'a [u8]>> {
        let (mut selected, mut bytes, mut before) = (Vec::new(), 0_usize, 0);
        for value in values {
            self.select(step, value, &mut selected)?;
            let added = selected.get(before..).unwrap_or_default();
            bytes = added.iter().fold(bytes, |sum, part| sum.saturating_add(part.len()));
            before = selected.len();
            if bytes > limit {
                return Err(self.grows(limit));
            }
        }
        Ok(selected)
    }

    fn grows(&self, limit: usize) -> Error {
        Error::invalid(format!(
            "the JSONPath {:?} repeats parts of the record until they have more than {limit} bytes",
            self.expression
        ))
    }

    fn select<'a>(&self, step: &Step, value: &'a [u8], selected: &mut Vec<&'a [u8]>) -> Result<()> {
        match step {
            Step::Name(name) => selected.push(self.member(name, value)?),
            Step::Names(names) => {
                for name in names {
                    selected.push(self.member(name, value)?);
                }
            }
            Step::All if value.first() == Some(&b'{') => text::members(value, |member| {
                selected.push(member.value);
                Ok(())
            })?,
            Step::All => selected.extend(self.elements(value)?),
            Step::Index(index) => {
                let elements = self.elements(value)?;
                selected.push(self.element(&elements, *index, "elements")?);
            }
            Step::Ranges(ranges) => {
                let elements = self.elements(value)?;
                self.select_ranges(ranges, &elements, "elements", selected)?;
            }
        }
        Ok(())
    }

    /// The value of the member `name`; of the last one if there are several, as most readers do.
    fn member<'a>(&self, name: &str, value: &'a [u8]) -> Result<&'a [u8]> {
        if value.first() != Some(&b'{') {
            return Err(self.no_object(value));
        }
        let mut found = None;
        text::members(value, |member| {
            if *member.name == *name.as_bytes() {
                found = Some(member.value);
            }
            Ok(())
        })?;
        match found {
            Some(found) => Ok(found),
            None => Err(self.missing(name, value)?),
        }
    }

    fn no_object(&self, value: &[u8]) -> Error {
        Error::invalid(format!(
            "the JSONPath {:?} selects a member by its name, but finds {} instead of an object",
            self.expression,
            text::kind(value)
        ))
    }

    fn missing(&self, name: &str, object: &[u8]) -> Result<Error> {
        let (mut names, mut count) = (Vec::new(), 0);
        text::members(object, |member| {
            count += 1;
            if names.len() < MAX_NAMES_SHOWN {
                names.push(format!("{:?}", text::excerpt(&member.name)));
            }
            Ok(())
        })?;
        let more = if count > names.len() { ", …" } else { "" };
        let names = match count {
            0 => "no members".to_owned(),
            _ => format!("the members {}{more}", names.join(", ")),
        };
        Ok(Error::invalid(format!(
            "the JSONPath {:?} selects the member {name:?}, but the object has {names}",
            self.expression
        )))
    }

    fn elements<'a>(&self, value: &'a [u8]) -> Result<Vec<&'a [u8]>> {
        if value.first() != Some(&b'[') {
            return Err(Error::invalid(format!(
                "the JSONPath {:?} selects elements of an array, but finds {}",
                self.expression,
                text::kind(value)
            )));
        }
        let mut elements = Vec::new();
        text::elements(value, |element| elements.push(element))?;
        Ok(elements)
    }

    fn element<'a>(&self, elements: &[&'a [u8]], index: i64, noun: &str) -> Result<&'a [u8]> {
        let position = if index < 0 { position(index, elements.len()) } else { Some(index) };
        let position = position.and_then(|position| usize::try_from(position).ok());
        position.and_then(|position| elements.get(position)).copied().ok_or_else(|| {
            Error::invalid(format!(
                "the JSONPath {:?} selects index {index}, but there are {} {noun} (the first has \
                 index 0)",
                self.expression,
                elements.len()
            ))
        })
    }

    fn select_ranges<'a>(
        &self,
        ranges: &[Range],
        elements: &[&'a [u8]],
        noun: &str,
        selected: &mut Vec<&'a [u8]>,
    ) -> Result<()> {
        for range in ranges {
            match *range {
                Range::Index(index) => selected.push(self.element(elements, index, noun)?),
                Range::Slice { start, end } => {
                    let start = start.map_or(0, |start| clamp(start, elements.len()));
                    let end = end.map_or(elements.len(), |end| clamp(end, elements.len()));
                    selected.extend_from_slice(elements.get(start..end).unwrap_or_default());
                }
            }
        }
        Ok(())
    }

    fn append_object(&self, names: &[String], value: &[u8], out: &mut Vec<u8>) -> Result<()> {
        if value.first() != Some(&b'{') {
            return Err(self.no_object(value));
        }
        let mut found = vec![None; names.len()];
        text::members(value, |member| {
            for (name, found) in names.iter().zip(&mut found) {
                if *member.name == *name.as_bytes() {
                    *found = Some((member.raw_name, member.value));
                }
            }
            Ok(())
        })?;
        out.push(b'{');
        for (index, (name, found)) in names.iter().zip(found).enumerate() {
            let Some((raw_name, part)) = found else {
                return Err(self.missing(name, value)?);
            };
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(raw_name);
            out.push(b':');
            text::append_on_one_line(part, out);
        }
        out.push(b'}');
        Ok(())
    }

    /// Appends to `out` the fields that the path selects in the CSV row `line`, with their quotes.
    ///
    /// # Errors
    /// [`Error::invalid`] for a path that [`JsonPath::check_csv`] refuses, or an index that is out of
    /// range.
    pub fn apply_csv(&self, line: &[u8], out: &mut Vec<u8>) -> Result<()> {
        self.check_csv()?;
        let fields = fields(without_line_end(line));
        let mut selected = Vec::new();
        match self.steps.first() {
            Some(Step::Index(index)) => selected.push(self.element(&fields, *index, "columns")?),
            Some(Step::Ranges(ranges)) => {
                self.select_ranges(ranges, &fields, "columns", &mut selected)?;
            }
            // `check_csv` has refused names.
            None | Some(Step::All | Step::Name(_) | Step::Names(_)) => selected = fields,
        }
        for (index, field) in selected.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(field);
        }
        Ok(())
    }
}

/// `line` without the line break at its end.
pub(crate) fn without_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The fields of a CSV row, as they are written.
pub(crate) fn fields(line: &[u8]) -> Vec<&[u8]> {
    let (mut reader, mut fields) = (CsvReader::of_record(line), Vec::new());
    while let Ok(Some(field)) = reader.next_raw_field() {
        fields.push(field);
    }
    fields
}

/// The distance from the first element of `index`, which counts from the end if it is negative.
fn position(index: i64, count: usize) -> Option<i64> {
    let count = i64::try_from(count).ok()?;
    let position = if index < 0 { index.checked_add(count)? } else { index };
    (position >= 0).then_some(position)
}

/// A bound of a slice, moved into the array as Python does.
fn clamp(bound: i64, count: usize) -> usize {
    let position = position(bound, count).unwrap_or(0);
    usize::try_from(position).unwrap_or(usize::MAX).min(count)
}
