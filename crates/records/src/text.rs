//! Parts of a JSON text. They are copied byte for byte, so that numbers and the order of members
//! stay as they were.

use std::borrow::Cow;

use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_tensor::error::{Error, Result};

/// The error of a text that is not JSON.
pub(crate) fn syntax(error: SyntaxError) -> Error {
    Error::invalid(format!("is not JSON: {} (at byte {})", error.kind.text(), error.offset))
}

/// The one value of the text `json`, without the white space around it. Parts of a value that this
/// returned are well-formed.
///
/// # Errors
/// If the text is malformed, or anything follows the value.
pub(crate) fn document(json: &[u8]) -> Result<&[u8]> {
    let mut cursor = Cursor::new(json);
    cursor.open_document().map_err(syntax)?;
    let value = value(&mut cursor, json)?;
    cursor.skip_space();
    if cursor.remaining() > 0 {
        let offset = cursor.offset();
        return Err(Error::invalid(format!(
            "is not JSON: more text follows its value (at byte {offset})"
        )));
    }
    Ok(value)
}

/// The text of the value at `cursor`, which moves behind it. `text` is what the cursor reads.
pub(crate) fn value<'a>(cursor: &mut Cursor<'a>, text: &'a [u8]) -> Result<&'a [u8]> {
    cursor.skip_space();
    let start = cursor.offset();
    cursor.skip_value().map_err(syntax)?;
    Ok(text.get(start..cursor.offset()).unwrap_or_default())
}

/// A member of an object.
pub(crate) struct Member<'a> {
    /// Its name with quotes and escapes.
    pub(crate) raw_name: &'a [u8],
    /// Its name.
    pub(crate) name: Cow<'a, [u8]>,
    /// The text of its value.
    pub(crate) value: &'a [u8],
}

/// Calls `visit` with every member of the object whose text is `object`.
pub(crate) fn members<'a>(
    object: &'a [u8],
    mut visit: impl FnMut(Member<'a>) -> Result<()>,
) -> Result<()> {
    let mut cursor = Cursor::new(object);
    let mut more = cursor.open_object().map_err(syntax)?;
    while more {
        let start = cursor.offset();
        let mut after = cursor.clone();
        after.string().map_err(syntax)?;
        let raw_name = object.get(start..after.offset()).unwrap_or_default();
        let name = cursor.name().map_err(syntax)?;
        visit(Member { raw_name, name, value: value(&mut cursor, object)? })?;
        more = cursor.next_member().map_err(syntax)?;
    }
    Ok(())
}

/// Calls `visit` with every element of the array whose text is `array`.
pub(crate) fn elements<'a>(array: &'a [u8], mut visit: impl FnMut(&'a [u8])) -> Result<()> {
    try_elements(array, |element| {
        visit(element);
        Ok(())
    })
}

/// Calls `visit` with every element of the array whose text is `array`, until it fails.
pub(crate) fn try_elements<'a>(
    array: &'a [u8],
    mut visit: impl FnMut(&'a [u8]) -> Result<()>,
) -> Result<()> {
    let mut cursor = Cursor::new(array);
    let mut more = cursor.open_array();
    while more {
        visit(value(&mut cursor, array)?)?;
        more = cursor.next_element().map_err(syntax)?;
    }
    Ok(())
}

/// What kind of value starts with the first byte of `value`, for error messages.
pub(crate) fn kind(value: &[u8]) -> &'static str {
    match value.first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// Appends `value` without its line breaks and the indentation after them. Strings of JSON cannot
/// hold line breaks, so none of these is significant.
pub(crate) fn append_on_one_line(value: &[u8], out: &mut Vec<u8>) {
    let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let mut lines = value.split(is_break);
    out.extend_from_slice(lines.next().unwrap_or_default());
    for line in lines {
        out.extend_from_slice(line.trim_ascii_start());
    }
}

/// `text` as it can be quoted in an error message: shortened to a few words.
pub(crate) fn excerpt(text: &[u8]) -> String {
    const LONGEST: usize = 60;
    let shown = text.get(..LONGEST).unwrap_or(text);
    let dots = if shown.len() < text.len() { "…" } else { "" };
    format!("{}{dots}", String::from_utf8_lossy(shown))
}
