//! MurmurHash3, 32 bits: the hash of `HashingVectorizer`.

/// The hash of `bytes` with the seed 0, as `murmurhash3_bytes_s32` of scikit-learn has it.
///
/// Source: Austin Appleby, `MurmurHash3_x86_32`, in the public domain.
pub(super) fn hash(bytes: &[u8]) -> i32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let mix = |block: u32| block.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);
    let mut hash = 0u32;
    let (blocks, rest) = bytes.as_chunks::<4>();
    for block in blocks {
        hash ^= mix(u32::from_le_bytes(*block));
        hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    if !rest.is_empty() {
        let mut last = [0; 4];
        last.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
        hash ^= mix(u32::from_le_bytes(last));
    }
    hash ^= bytes.len() as u32;
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    (hash ^ hash >> 16).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::hash;

    /// The expected values are those of `sklearn.utils.murmurhash3_32` of scikit-learn 1.9.1.
    #[test]
    fn hashes_are_those_of_scikit_learn() {
        assert_eq!(hash("".as_bytes()), 0);
        assert_eq!(hash("a".as_bytes()), 1_009_084_850);
        assert_eq!(hash("ab".as_bytes()), -1_681_926_305);
        assert_eq!(hash("abc".as_bytes()), -1_277_324_294);
        assert_eq!(hash("word".as_bytes()), -968_174_432);
        assert_eq!(hash("words".as_bytes()), -1_964_897_834);
        assert_eq!(hash("murmurhash".as_bytes()), -1_559_211_162);
        assert_eq!(hash("é".as_bytes()), 269_551_495);
    }
}
