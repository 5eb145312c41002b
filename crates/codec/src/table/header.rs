//! The first record of a table, which may have the names of its columns.

use std::collections::HashSet;

use super::values::is_text;
use crate::csv::{CsvReader, Dialect};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::names::{InputName, instead_of_column, shown};
use tensorserve_tensor::{Signature, TensorSpec};

/// Whether the first record of a text has the names of the columns: RFC 4180's parameter `header`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Header {
    /// As it looks: if every field is text, or all names of the model are there.
    #[default]
    Auto,
    /// The first record has names.
    Present,
    /// The first record has values.
    Absent,
}

impl Header {
    /// The header that `present` or `absent` tells.
    ///
    /// # Errors
    /// For another word.
    pub fn parse(word: &str) -> Result<Self> {
        match word.to_ascii_lowercase().as_str() {
            "present" => Ok(Header::Present),
            "absent" => Ok(Header::Absent),
            _ => Err(Error::invalid(format!("header={word}: use present or absent"))),
        }
    }
}

/// Whether the first record of `text` has names, for a signature that takes tables.
///
/// # Errors
/// If the record has an open quote.
pub fn has_header(text: &[u8], signature: &Signature, header: Header) -> Result<bool> {
    match header {
        Header::Auto => {}
        Header::Present => return Ok(true),
        Header::Absent => return Ok(false),
    }
    match signature.inputs.as_slice() {
        [one] if one.is_column() => {
            let may_be_any = one.dtype() != Some(tensorserve_tensor::DType::String);
            is_header(text, |name| name == one.alias.as_bytes(), 1, may_be_any)
        }
        [matrix] => {
            let names = &matrix.column_names;
            is_header(text, |name| place_in(names, name).is_some(), names.len(), true)
        }
        columns => {
            let names = || columns.iter().map(|spec| &spec.alias).chain(&signature.unused_columns);
            is_header(text, |name| names().any(|it| it.as_bytes() == name), names().count(), true)
        }
    }
}

/// Whether the first record has names: with `any_text`, if every field is text; or if the model knows all of
/// them, and they are no numbers or all that it has, `count`.
fn is_header(
    text: &[u8],
    is_known: impl Fn(&[u8]) -> bool,
    count: usize,
    any_text: bool,
) -> Result<bool> {
    let mut reader = CsvReader::new(text, Dialect::Rfc4180);
    let (mut fields, mut texts, mut known) = (0, 0, 0);
    reader.next_record()?;
    while let Some(field) = reader.next_field()? {
        let (is_text, is_known) = (is_text(field), is_known(field.trim_ascii()));
        if !is_text && !is_known {
            return Ok(false);
        }
        fields += 1;
        texts += usize::from(is_text);
        known += usize::from(is_known);
    }
    let is_named = known == fields && (texts > 0 || known == count);
    Ok(fields > 0 && ((any_text && texts == fields) || is_named))
}

/// The place of the column `name`.
fn place_in(names: &[String], name: &[u8]) -> Option<usize> {
    names.iter().position(|known| known.as_bytes() == name && !known.is_empty())
}

/// The columns of a matrix that the fields of a record name: for each field, its place. `None` if they are in
/// the order of the model, or the model knows no names.
///
/// # Errors
/// For a name that the model does not have, one that is there twice, and one that is not there.
pub(super) fn order(reader: &mut CsvReader<'_>, matrix: &TensorSpec) -> Result<Option<Vec<usize>>> {
    let names = &matrix.column_names;
    if names.is_empty() {
        return Ok(None);
    }
    let mut places = Vec::new();
    let mut seen = HashSet::new();
    while let Some(field) = reader.next_field()? {
        let name = field.trim_ascii();
        let Some(place) = place_in(names, name) else {
            return Err(unknown(name, &instead_of_column(name, names)));
        };
        if !seen.insert(place) {
            return Err(twice(name));
        }
        places.push(place);
    }
    if let Some((_, name)) = names.iter().enumerate().find(|(place, _)| !seen.contains(place)) {
        return Err(Error::invalid(format!("the table lacks the column {name:?}")));
    }
    let is_same = places.iter().enumerate().all(|(at, place)| at == *place);
    Ok((!is_same).then_some(places))
}

/// The inputs that the fields of a record name, `None` for a column that the model does not use.
///
/// # Errors
/// For a name that the model does not have, and one that is there twice.
pub(super) fn places(
    reader: &mut CsvReader<'_>,
    signature: &Signature,
) -> Result<Vec<Option<usize>>> {
    let mut places: Vec<Option<usize>> = Vec::new();
    while let Some(field) = reader.next_field()? {
        let name = field.trim_ascii();
        match signature.named(name) {
            InputName::Declared(place) if places.contains(&Some(place)) => return Err(twice(name)),
            InputName::Declared(place) => places.push(Some(place)),
            InputName::Unused => places.push(None),
            InputName::Ignored | InputName::Unknown => {
                return Err(unknown(name, &signature.instead_of(name)));
            }
        }
    }
    Ok(places)
}

fn twice(name: &[u8]) -> Error {
    let name = super::shortened(name);
    Error::invalid(format!("the first line has the column {name:?} twice"))
}

fn unknown(name: &[u8], instead: &str) -> Error {
    Error::invalid(format!(
        "the first line must have the names of the columns: the model has no input {}; {instead}",
        shown(name)
    ))
}
