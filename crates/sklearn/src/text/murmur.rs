//! The hash of `HashingVectorizer`.

use tensorserve_tabular::murmur::Murmur3;

/// The hash of `bytes` with the seed 0, as `murmurhash3_bytes_s32` of scikit-learn has it.
pub(super) fn hash(bytes: &[u8]) -> i32 {
    let (hash, rest) = Murmur3::seeded(0).blocks(bytes);
    hash.rest(rest).finish(bytes.len())
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
