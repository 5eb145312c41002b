//! Chance for tests, the same in every run.

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct Chance(pub(super) u64);

impl Chance {
    /// Evenly distributed in (0, 1].
    pub(super) fn even(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// With the standard normal distribution (Box and Muller 1958).
    pub(super) fn normal(&mut self) -> f64 {
        (-2.0 * self.even().ln()).sqrt() * (std::f64::consts::TAU * self.even()).cos()
    }
}
