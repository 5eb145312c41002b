//! The hashes of Spark's `HashingTF`: MurmurHash3 of 32 bits, and the variant of Spark 2.
//!
//! Source: `org.apache.spark.unsafe.hash.Murmur3_x86_32`, `hashUnsafeBytes2` and `hashUnsafeBytes`.

const SEED: u32 = 42;
const C1: u32 = 0xcc9e_2d51;
const C2: u32 = 0x1b87_3593;

fn mix_block(block: u32) -> u32 {
    block.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2)
}

fn mix(hash: u32, block: u32) -> u32 {
    (hash ^ mix_block(block)).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
}

/// The hash of a text.
#[allow(clippy::cast_possible_truncation)] // As in Spark, where a length has 32 bits.
pub(super) fn hash(bytes: &[u8], is_spark_2: bool) -> i32 {
    let (blocks, rest) = bytes.as_chunks::<4>();
    let mut hash = blocks.iter().fold(SEED, |hash, block| mix(hash, u32::from_le_bytes(*block)));
    if is_spark_2 {
        // Each of the last bytes is a block of its own, with its sign.
        for byte in rest {
            hash = mix(hash, i32::from(byte.cast_signed()).cast_unsigned());
        }
    } else if !rest.is_empty() {
        let mut last = [0; 4];
        last.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
        hash ^= mix_block(u32::from_le_bytes(last));
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
