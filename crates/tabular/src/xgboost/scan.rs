//! Walks bytes, and never past their end.

use super::broken;
use tensorserve_tensor::error::{Error, Result};

/// A place in some bytes.
pub(super) struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    /// The start of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Scan { bytes, at: 0 }
    }

    /// The next `count` bytes.
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..count).ok_or_else(|| self.too_short())?;
        self.at += count;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.bytes(N)?.first_chunk();
        taken.copied().ok_or_else(|| self.too_short())
    }

    /// The next byte.
    pub(super) fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    /// The next byte, which stays the next.
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Steps over `byte` if it is next; whether it was.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Whether nothing is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Where this is, for messages.
    pub(super) fn place(&self) -> String {
        format!("at byte {}", self.at)
    }

    /// That something goes on behind the end.
    pub(super) fn too_short(&self) -> Error {
        broken(format!("it ends too early: what starts at byte {} goes on", self.at))
    }
}
