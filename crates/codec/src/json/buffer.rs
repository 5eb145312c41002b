//! Buffers of numbers that are read from text, whose memory is reserved before it is allocated.

use tensorserve_tensor::error::Result;
use tensorserve_tensor::{AlignedVec, Element, aligned_vec, budget};

/// Bytes of text that a number with its separator mostly takes at least.
const BYTES_PER_NUMBER: usize = 8;

/// The most bytes that a buffer has room for at first: what follows in the text may be something else.
const FIRST_BYTES: usize = 512;

/// A full buffer grows to at most this many times its size.
const MOST_GROWTH: usize = 32;

/// A buffer of numbers that are read from a text.
pub(crate) struct NumberBuffer<T> {
    values: AlignedVec<T>,
    /// The bytes of the text; 0 if they are unknown.
    text: usize,
}

impl<T: Element> NumberBuffer<T> {
    /// An empty buffer for numbers in at most `text` bytes; 0 if that is unknown.
    pub(crate) fn new(text: usize) -> Self {
        NumberBuffer { values: aligned_vec(0), text }
    }

    /// The numbers.
    #[inline]
    pub(crate) fn values(&mut self) -> &mut AlignedVec<T> {
        &mut self.values
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// How many more numbers it has room for.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.values.capacity() - self.values.len()
    }

    /// Makes room for the number after which `left` bytes of the text are left, and for those in them if they
    /// go on as they began. Returns whether it may: it takes at most `max_bytes`.
    ///
    /// # Errors
    /// Those of [`budget::reserve`] and of [`budget::check`].
    #[inline]
    pub(crate) fn make_room(&mut self, left: usize, max_bytes: usize) -> Result<bool> {
        if self.room() > 0 { Ok(true) } else { self.grow(left, max_bytes) }
    }

    #[cold]
    fn grow(&mut self, left: usize, max_bytes: usize) -> Result<bool> {
        let most = max_bytes / size_of::<T>().max(1);
        if self.len() >= most {
            return Ok(false);
        }
        self.grow_to(self.expected(left).min(most))?;
        Ok(true)
    }

    /// The numbers that there probably are.
    fn expected(&self, left: usize) -> usize {
        let len = self.len();
        if len == 0 {
            return (left / BYTES_PER_NUMBER + 1).min(FIRST_BYTES / size_of::<T>().max(1));
        }
        let more = match self.text.checked_sub(left) {
            // A little more, for it costs less than to grow once again.
            Some(read) if read > 0 => len.saturating_mul(left) / read * 9 / 8,
            _ => len,
        };
        let most = len.saturating_mul(MOST_GROWTH - 1);
        len.saturating_add(more.clamp(len / 2 + 1, most.max(1)))
    }

    /// Makes room for `count` numbers in all.
    ///
    /// # Errors
    /// Those of [`budget::reserve`] and of [`budget::check`].
    pub(crate) fn grow_to(&mut self, count: usize) -> Result<()> {
        let (len, before) = (self.len(), self.values.capacity());
        if count <= before {
            return Ok(());
        }
        // While they are moved, there are two buffers.
        let _moved = match before {
            0 => None,
            _ => {
                budget::check()?;
                Some(budget::scratch(bytes_of::<T>(before))?)
            }
        };
        budget::reserve(bytes_of::<T>(count - before))?;
        self.values.reserve_exact(count - len);
        Ok(())
    }

    /// The numbers, without much room behind them.
    pub(crate) fn finish(mut self) -> AlignedVec<T> {
        let (len, room) = (self.len(), self.room());
        if len > 0 && bytes_of::<T>(room) > bytes_of::<T>(len).max(FIRST_BYTES) {
            self.values.shrink_to_fit();
            budget::release(bytes_of::<T>(room));
        }
        self.values
    }
}

fn bytes_of<T>(count: usize) -> usize {
    count.saturating_mul(size_of::<T>())
}
