//! The first pass over a body: checks that it is a JSON object and finds its members. The messages are
//! those of the reference, which makes these checks before it resolves the model.

use std::borrow::Cow;

use super::fault;
use tensorserve_codec::json::dump::dump;
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_tensor::error::{Error, Result};

/// A body that is a JSON object, with the offsets of the values of `N` members.
pub(super) struct Outline<'b, const N: usize> {
    body: &'b [u8],
    root: usize,
    /// The offset of the first value of each requested name.
    pub(super) members: [Option<usize>; N],
}

impl<'b, const N: usize> Outline<'b, N> {
    /// Checks the syntax of all of `body` and notes the first member of each of `names`.
    pub(super) fn of(body: &'b [u8], names: [&str; N]) -> Result<Self> {
        if body.is_empty() {
            return Err(Error::invalid("JSON Parse error: The document is empty"));
        }
        let (root, members) = scan(body, names).map_err(fault::syntax)?;
        let outline = Outline { body, root, members };
        if body.get(root) != Some(&b'{') {
            return Err(outline.error("Is not object"));
        }
        Ok(outline)
    }

    /// A cursor at the value at `offset`.
    pub(super) fn at(&self, offset: usize) -> Cursor<'b> {
        let mut cursor = Cursor::new(self.body);
        cursor.seek(offset);
        cursor
    }

    /// The string at `offset`, the value of `signature_name`; empty if that is missing.
    pub(super) fn signature_name(&self, offset: Option<usize>) -> Result<Cow<'b, [u8]>> {
        let Some(offset) = offset else {
            return Ok(Cow::Borrowed(b""));
        };
        self.at(offset).string().map_err(|_| {
            self.error("not formatted correctly. 'signature_name' key must be a string value.")
        })
    }

    /// An error that quotes the whole body.
    pub(super) fn error(&self, what: &str) -> Error {
        Error::invalid(format!("JSON Value: {} {what}", self.document()))
    }

    /// The body as errors quote it.
    pub(super) fn document(&self) -> String {
        dump(self.body, self.root)
    }
}

/// The offset of the one value of `body`, and of its members `names` if it is an object.
fn scan<const N: usize>(
    body: &[u8],
    names: [&str; N],
) -> Result<(usize, [Option<usize>; N]), SyntaxError> {
    let mut cursor = Cursor::new(body);
    cursor.open_document()?;
    let root = cursor.offset();
    let mut members = [None; N];
    if cursor.peek() != b'{' {
        cursor.skip_value()?;
        return Ok((root, members));
    }
    let mut more = cursor.open_object()?;
    while more {
        let name = cursor.name()?;
        let wanted = names.iter().position(|wanted| wanted.as_bytes() == &*name);
        if let Some(slot @ None) = wanted.and_then(|index| members.get_mut(index)) {
            *slot = Some(cursor.offset());
        }
        cursor.skip_value()?;
        more = cursor.next_member()?;
    }
    Ok((root, members))
}
