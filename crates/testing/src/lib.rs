//! What the tests of several crates share. It depends on no other crate, and only tests depend on it: features that
//! tests alone enable would compile half of the workspace a second time for them.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used, clippy::indexing_slicing)]

use std::path::{Path, PathBuf};

/// A path in the project's folder.
pub fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A path in the folder of test data.
pub fn test_data(path: &str) -> PathBuf {
    project("tests/data").join(path)
}

/// A linear congruential generator: the same numbers in each run.
pub struct Random(u64);

impl Random {
    /// A generator whose numbers follow from `seed`.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Random(seed)
    }

    /// A number below `limit`, which is at most 2^31.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }

    /// Replaces one to `most` bytes by any, or by those of `alphabet`.
    pub fn damage(&mut self, bytes: &mut [u8], most: usize, alphabet: Option<&[u8]>) {
        for _ in 0..=self.below(most) {
            let at = self.below(bytes.len());
            bytes[at] = match alphabet {
                Some(alphabet) => alphabet[self.below(alphabet.len())],
                None => u8::try_from(self.below(256)).expect("a byte"),
            };
        }
    }
}
