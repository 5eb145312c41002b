//! MurmurHash3 of 32 bits, which hashes the words of scikit-learn's and Spark's text models.
//!
//! Source: Austin Appleby, `MurmurHash3_x86_32`, in the public domain.

/// The hash of a text that is given in pieces.
#[derive(Clone, Copy)]
pub struct Murmur3(u32);

impl Murmur3 {
    /// The hash of nothing, with a seed.
    pub fn seeded(seed: u32) -> Self {
        Murmur3(seed)
    }

    /// Adds a block.
    pub fn block(self, block: u32) -> Self {
        let hash = self.0 ^ scrambled(block);
        Murmur3(hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64))
    }

    /// Adds bytes, four a block; returns those that are left.
    pub fn blocks(self, bytes: &[u8]) -> (Self, &[u8]) {
        let (blocks, rest) = bytes.as_chunks::<4>();
        let hash = blocks.iter().fold(self, |hash, block| hash.block(u32::from_le_bytes(*block)));
        (hash, rest)
    }

    /// Adds the last bytes, three at most.
    pub fn rest(self, rest: &[u8]) -> Self {
        let mut last = [0; 4];
        last.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
        // A block of zeros changes nothing.
        Murmur3(self.0 ^ scrambled(u32::from_le_bytes(last)))
    }

    /// The hash of what was added, which has `length` bytes.
    #[allow(clippy::cast_possible_truncation)] // A length has 32 bits here.
    pub fn finish(self, length: usize) -> i32 {
        let mut hash = self.0 ^ length as u32;
        hash ^= hash >> 16;
        hash = hash.wrapping_mul(0x85eb_ca6b);
        hash ^= hash >> 13;
        hash = hash.wrapping_mul(0xc2b2_ae35);
        (hash ^ hash >> 16).cast_signed()
    }
}

fn scrambled(block: u32) -> u32 {
    block.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593)
}
