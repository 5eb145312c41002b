//! Numbers that look random: of good distribution, not for secrets.

/// How far a state of [`split_mix`] is from the next one.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number that SplitMix64 (Steele, Lea, Flood 2014) has for a state: a generator whose state is a counter.
#[must_use]
pub fn split_mix(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_published_numbers() {
        // Of the reference implementation (prng.di.unimi.it/splitmix64.c) with the seed 0.
        let first: Vec<u64> = (1..=3u64).map(|at| split_mix(at.wrapping_mul(STEP))).collect();
        assert_eq!(first, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }
}
