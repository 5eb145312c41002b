//! Reads bytes one after the other, and never past their end.

use tensorserve_tensor::error::{Error, Result};

/// A position in a byte slice.
pub(super) struct ByteReader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> ByteReader<'a> {
    /// A reader at the start of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        ByteReader { bytes, position: 0 }
    }

    /// Reads `count` bytes.
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        let taken = rest.get(..count).ok_or_else(|| self.too_short())?;
        self.position += count;
        Ok(taken)
    }

    /// Reads `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.bytes(N)?.first_chunk();
        taken.copied().ok_or_else(|| self.too_short())
    }

    /// Reads one byte.
    pub(super) fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    /// The next byte, which is not consumed.
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.position).copied()
    }

    /// Consumes the next byte if it is `byte`; returns whether it was.
    pub(super) fn skip_if(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.position += usize::from(is_next);
        is_next
    }

    /// Whether all bytes are read.
    pub(super) fn is_at_end(&self) -> bool {
        self.position >= self.bytes.len()
    }

    /// The current position, for error messages.
    pub(super) fn position(&self) -> String {
        format!("at byte {}", self.position)
    }

    /// The error for a value that continues past the end.
    pub(super) fn too_short(&self) -> Error {
        Error::damaged(format!("unexpected end of data in the value at byte {}", self.position))
    }
}
