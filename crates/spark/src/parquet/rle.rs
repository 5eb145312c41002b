//! The hybrid of run-length encoding and bit packing, in which Parquet stores levels and indices.
//!
//! Specification: <https://github.com/apache/parquet-format/blob/master/Encodings.md>, `RLE`.

use super::thrift::read_varint;

/// The number of values in a bit-packed group.
const GROUP: usize = 8;

/// Integers of `width` bits: runs of one value, and bit-packed groups of eight.
pub(super) struct RleDecoder<'b> {
    pub(super) bytes: &'b [u8],
    pub(super) width: u32,
}

impl RleDecoder<'_> {
    /// Calls `take` with each of `count` values, and how often it is repeated. `None` if the bytes are
    /// damaged, or `take` returns it.
    pub(super) fn decode(
        mut self,
        count: usize,
        mut take: impl FnMut(u32, usize) -> Option<()>,
    ) -> Option<()> {
        let mut left = count;
        while left > 0 {
            let header = read_varint(&mut self.bytes)?;
            let length = usize::try_from(header >> 1).ok()?;
            let is_bit_packed = header & 1 == 1;
            let taken = match is_bit_packed {
                false => self.decode_run(length.min(left), &mut take)?,
                true => self.decode_groups(length, left, &mut take)?,
            };
            // An empty run would make no progress.
            if taken == 0 {
                return None;
            }
            left -= taken;
        }
        Some(())
    }

    /// Decodes a run of `length` times one value.
    fn decode_run(
        &mut self,
        length: usize,
        take: &mut impl FnMut(u32, usize) -> Option<()>,
    ) -> Option<usize> {
        let (value, rest) = self.bytes.split_at_checked(self.width.div_ceil(u8::BITS) as usize)?;
        self.bytes = rest;
        if length > 0 {
            let value =
                value.iter().rev().fold(0u32, |sum, byte| sum << u8::BITS | u32::from(*byte));
            take(value, length)?;
        }
        Some(length)
    }

    /// Decodes bit-packed groups, of whose values at most `left` are needed.
    fn decode_groups(
        &mut self,
        groups: usize,
        left: usize,
        take: &mut impl FnMut(u32, usize) -> Option<()>,
    ) -> Option<usize> {
        // A group takes as many bytes as a value has bits.
        let size = groups.checked_mul(self.width as usize)?;
        // The last group may be cut off behind the last value.
        let (packed, rest) = self.bytes.split_at(size.min(self.bytes.len()));
        self.bytes = rest;
        let taken = groups.checked_mul(GROUP)?.min(left);
        for index in 0..taken {
            take(unpack(packed, index, self.width)?, 1)?;
        }
        Some(taken)
    }
}

/// Value number `index` of those of `width` bits in `packed`.
fn unpack(packed: &[u8], index: usize, width: u32) -> Option<u32> {
    let mut number = 0u32;
    for bit in 0..width {
        let position = index.checked_mul(width as usize)?.checked_add(bit as usize)?;
        number |= u32::from(bit_at(packed, position)?) << bit;
    }
    Some(number)
}

/// The bit at `position`, from the lowest bit of the first byte on.
pub(super) fn bit_at(bytes: &[u8], position: usize) -> Option<u8> {
    Some(bytes.get(position / 8)? >> (position % 8) & 1)
}
