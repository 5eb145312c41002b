//! Memory that tensors share.

use std::ops::Range;
use std::sync::Arc;

use aligned_vec::{AVec, ConstAlign};

/// Alignment of numeric tensor data in bytes: Eigen's largest, so that libtensorflow never copies.
pub const ALIGNMENT: usize = 64;

/// A growable vector whose data is aligned to [`ALIGNMENT`].
pub type AlignedVec<T> = AVec<T, ConstAlign<ALIGNMENT>>;

/// An empty [`AlignedVec`] with room for `capacity` elements.
#[must_use]
pub fn aligned_vec<T>(capacity: usize) -> AlignedVec<T> {
    AVec::with_capacity(0, capacity)
}

/// Memory that tensors share: an [`AlignedVec`], or a buffer that a runtime owns.
pub trait Memory: Send + Sync {
    /// The whole memory.
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

    /// The size of the whole memory, which this view keeps alive, in bytes.
    #[must_use]
    pub fn kept_len(&self) -> usize {
        self.memory.bytes().len()
    }

    /// A narrower view; `range` is relative to this view and is truncated at its end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = self.range.start.saturating_add(range.end).min(self.range.end);
        let start = self.range.start.saturating_add(range.start).min(end);
        Buffer { memory: Arc::clone(&self.memory), range: start..end }
    }
}
