//! The byte strings of a tensor.

use std::ops::Range;
use std::sync::Arc;

use crate::budget;
use crate::error::Result;

/// The memory of a string besides its bytes, here (its end) and in the runtime that makes a string of
/// it (24 bytes, `TF_TString`).
pub const STRING_OVERHEAD: usize = 32;

/// The fewest strings for which room is made at once.
const FIRST_STRINGS: usize = 4;

/// Collects the byte strings of a tensor in one buffer.
#[derive(Clone, Debug, Default)]
pub struct StringsBuilder {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// The indices of missing values, in order. Each of them is also an empty string.
    missing: Vec<usize>,
}

impl StringsBuilder {
    /// A builder with capacity for `count` strings of `bytes` bytes in total.
    #[must_use]
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        StringsBuilder {
            bytes: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(count),
            missing: Vec::new(),
        }
    }

    /// Makes room for `count` more strings of `bytes` bytes in total, after reserving their memory, here and
    /// in the runtime ([`STRING_OVERHEAD`]).
    ///
    /// # Errors
    /// Those of [`budget::reserve`].
    #[inline]
    pub fn reserve(&mut self, count: usize, bytes: usize) -> Result<()> {
        if self.ends.capacity() - self.ends.len() < count {
            self.grow_ends(count)?;
        }
        budget::grow(&mut self.bytes, bytes)
    }

    #[cold]
    fn grow_ends(&mut self, count: usize) -> Result<()> {
        let more = count.max(self.ends.capacity()).max(FIRST_STRINGS);
        budget::check()?;
        budget::reserve(more.saturating_mul(STRING_OVERHEAD))?;
        self.ends.reserve_exact(more);
        Ok(())
    }

    /// Makes room for `count` more missing values, besides that for strings.
    ///
    /// # Errors
    /// Those of [`budget::reserve`].
    pub fn reserve_missing(&mut self, count: usize) -> Result<()> {
        budget::grow(&mut self.missing, count)
    }

    /// Appends one string.
    pub fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
    }

    /// Appends a missing value: an empty string to all who do not ask for the difference
    /// ([`Strings::optional`]).
    pub fn push_missing(&mut self) {
        self.missing.push(self.ends.len());
        self.ends.push(self.bytes.len());
    }

    /// Appends one string, or a missing value.
    pub fn push_optional(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.push(value),
            None => self.push_missing(),
        }
    }

    /// Appends one string, which `write` appends to the buffer.
    ///
    /// # Errors
    /// Those of `write`; the string is not counted then.
    pub fn push_with<E>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        write(&mut self.bytes)?;
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// The number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Removes all but the first `len` strings.
    pub fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
        self.missing.truncate(self.missing.partition_point(|index| *index < len));
    }

    /// Whether there are no strings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// A view of consecutive strings in shared memory.
#[derive(Clone)]
pub struct Strings {
    store: Arc<StringsBuilder>,
    range: Range<usize>,
}

impl Strings {
    /// A view of all of `values`.
    #[must_use]
    pub fn new(values: StringsBuilder) -> Self {
        let range = 0..values.len();
        Strings { store: Arc::new(values), range }
    }

    /// A narrower view; `range` is relative to this view and is truncated at its end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = self.range.start.saturating_add(range.end).min(self.range.end);
        let start = self.range.start.saturating_add(range.start).min(end);
        Strings { store: Arc::clone(&self.store), range: start..end }
    }

    /// The strings in view, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.range.clone().map(|i| self.at(i))
    }

    /// As [`Strings::iter`]; `None` for a missing value.
    pub fn optional(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let missing = &self.store.missing;
        self.range.clone().map(|index| match missing.binary_search(&index) {
            Ok(_) => None,
            Err(_) => Some(self.at(index)),
        })
    }

    fn at(&self, index: usize) -> &[u8] {
        let start = self.start_of(index);
        let end = self.store.ends.get(index).copied().unwrap_or(start);
        self.store.bytes.get(start..end).unwrap_or_default()
    }

    /// Where the string at `index` begins in the store; where the last one ends if it is the next index.
    fn start_of(&self, index: usize) -> usize {
        let before = index.checked_sub(1).and_then(|before| self.store.ends.get(before));
        before.copied().unwrap_or(0)
    }

    /// The size of all strings in the shared memory, which this view keeps alive, in bytes.
    #[must_use]
    pub fn kept_len(&self) -> usize {
        self.store.bytes.len()
    }

    /// The number of strings in view.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether no string is in view.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The total size of the strings in view, in bytes.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.start_of(self.range.end).saturating_sub(self.start_of(self.range.start))
    }
}
