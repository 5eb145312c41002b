//! Memory that tensors share.

use std::ops::Range;
use std::sync::Arc;

use aligned_vec::{AVec, ConstAlign};

/// Alignment of numeric tensor data in bytes (Eigen's largest, so the runtime never copies).
pub const ALIGNMENT: usize = 64;

/// A growable vector whose data is aligned to [`ALIGNMENT`].
pub type AlignedVec<T> = AVec<T, ConstAlign<ALIGNMENT>>;

/// An empty [`AlignedVec`] with room for `capacity` elements.
#[must_use]
pub fn aligned_vec<T>(capacity: usize) -> AlignedVec<T> {
    AVec::with_capacity(0, capacity)
}

/// Memory that tensors share: an aligned vector of ours, or a tensor the runtime owns.
pub trait Memory: Send + Sync {
    /// All of it.
    fn bytes(&self) -> &[u8];
}

impl<T: bytemuck::Pod + Send + Sync> Memory for AlignedVec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

impl Memory for bytes::Bytes {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A view of a part of some shared [`Memory`].
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<dyn Memory>,
    range: Range<usize>,
}

impl Buffer {
    /// A view of all of `memory`.
    #[must_use]
    pub fn new(memory: Arc<dyn Memory>) -> Self {
        let range = 0..memory.bytes().len();
        Buffer { memory, range }
    }

    /// The bytes in view.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.memory.bytes().get(self.range.clone()).unwrap_or_default()
    }

    /// Bytes of all of the memory, which this view keeps.
    #[must_use]
    pub fn kept_len(&self) -> usize {
        self.memory.bytes().len()
    }

    /// A narrower view; `range` counts from the start of this one and is cut at its end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = self.range.start.saturating_add(range.end).min(self.range.end);
        let start = self.range.start.saturating_add(range.start).min(end);
        Buffer { memory: Arc::clone(&self.memory), range: start..end }
    }
}

/// Byte strings, end to end.
#[derive(Clone, Debug, Default)]
pub struct StringsBuilder {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl StringsBuilder {
    /// Room for `count` strings of `bytes` bytes in all.
    #[must_use]
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        StringsBuilder { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(count) }
    }

    /// Appends one string.
    pub fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
    }

    /// Appends one string that `write` adds to the end of the buffer.
    ///
    /// # Errors
    /// What `write` returns; the string is then not counted.
    pub fn push_with<E>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        write(&mut self.bytes)?;
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// How many strings there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Drops all but the first `len` strings.
    pub fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// A view of a run of strings of a shared [`StringsBuilder`].
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

    /// A narrower view; `range` counts from the start of this one and is cut at its end.
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

    fn at(&self, index: usize) -> &[u8] {
        let ends = &self.store.ends;
        let start = match index.checked_sub(1) {
            Some(previous) => ends.get(previous).copied().unwrap_or(0),
            None => 0,
        };
        let end = ends.get(index).copied().unwrap_or(start);
        self.store.bytes.get(start..end).unwrap_or_default()
    }

    /// Bytes of all strings of the store, which this view keeps.
    #[must_use]
    pub fn kept_len(&self) -> usize {
        self.store.bytes.len()
    }

    /// How many strings are in view.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether none is in view.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes of all strings in view together.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.iter().map(<[u8]>::len).sum()
    }
}
