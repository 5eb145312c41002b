//! Chance for tests, the same in every run.

use tensorserve_tensor::random::{STEP, split_mix};

/// A generator of numbers, whose state is a counter.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    /// Evenly distributed in (0, 1].
    pub(super) fn even(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(STEP);
        ((split_mix(self.0) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// With the standard normal distribution (Box and Muller 1958).
    pub(super) fn normal(&mut self) -> f64 {
        (-2.0 * self.even().ln()).sqrt() * (std::f64::consts::TAU * self.even()).cos()
    }
}
