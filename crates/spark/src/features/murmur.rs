//! The hashes of Spark's `HashingTF`: MurmurHash3 of 32 bits, and the variant of Spark 2.
//!
//! Source: `org.apache.spark.unsafe.hash.Murmur3_x86_32`, `hashUnsafeBytes2` and `hashUnsafeBytes`.

use tensorserve_tabular::murmur::Murmur3;

const SEED: u32 = 42;

/// The hash of a text.
pub(super) fn hash(bytes: &[u8], is_spark_2: bool) -> i32 {
    let (hash, rest) = Murmur3::seeded(SEED).blocks(bytes);
    let hash = match is_spark_2 {
        // Each of the last bytes is a block of its own, with its sign.
        true => rest
            .iter()
            .fold(hash, |hash, byte| hash.block(i32::from(byte.cast_signed()).cast_unsigned())),
        false => hash.rest(rest),
    };
    hash.finish(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::hash;

    /// The expected indices are those of `HashingTF.indexOf` with 2^20 features of MLlib, which still has
    /// the hash of Spark 2, and of Spark ML in Spark 4.1.4.
    #[test]
    fn hashes_are_those_of_both_versions_of_spark() {
        for (word, old, new) in [
            ("", 1_035_612, 1_035_612),
            ("a", 489_554, 369_251),
            ("ab", 464_251, 855_623),
            ("abc", 183_220, 990_824),
            ("abcd", 58_828, 58_828),
            ("abcde", 942_952, 666_608),
            ("word", 810_463, 810_463),
            ("é", 983_286, 557_727),
            ("straße", 107_797, 43_272),
            ("東京", 943_042, 987_071),
        ] {
            let index = |is_spark_2| hash(word.as_bytes(), is_spark_2).rem_euclid(1 << 20);
            assert_eq!((index(true), index(false)), (old, new), "{word}");
        }
    }
}
