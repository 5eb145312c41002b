//! How the trees of H2O split.

use super::numeric;
use tensorserve_tabular::trees::{self, BitSets, SplitAt, Splits};

/// The trees of a model.
pub(super) type MojoForest = trees::Forest<MojoSplits>;

/// Splits at thresholds, from which on values go to the right, and by levels.
#[derive(Default)]
pub(super) struct MojoSplits {
    levels: BitSets,
    special: Vec<LevelSet>,
}

/// Which levels go right, and which are known to the split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelSet {
    /// Levels below or not below these go where missing values go.
    pub(super) known: (i64, i64),
    /// The level of the first bit.
    pub(super) offset: i64,
    /// The number of the set of the levels that go right, without the offset; `None` if it is empty.
    pub(super) set: Option<usize>,
}

impl LevelSet {
    /// A set without levels, to which all values are known that are not missing.
    pub(super) const NONE: LevelSet =
        LevelSet { known: (i64::MIN, i64::MAX), offset: 0, set: None };
}

impl Splits for MojoSplits {
    type Value = f64;
    type Threshold = f32;
    type Leaf = f32;

    #[inline]
    fn is_right(value: f64, threshold: f32) -> bool {
        value >= f64::from(threshold)
    }

    fn is_right_special(&self, index: usize, value: f64, missing_right: bool) -> bool {
        let Some(levels) = self.special.get(index) else { return missing_right };
        let level = i64::from(numeric::java_int(value));
        if value.is_nan() || level < levels.known.0 || level >= levels.known.1 {
            return missing_right;
        }
        let Some((set, bit)) = levels.set.zip(u32::try_from(level - levels.offset).ok()) else {
            return false;
        };
        self.levels.contains(set, bit)
    }
}

impl MojoSplits {
    /// Adds the bits of a set, as bytes; returns its number.
    pub(super) fn add_bits(&mut self, bytes: &[u8]) -> usize {
        let range = self.levels.extend(bytes.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            u32::from_le_bytes(word)
        }));
        self.levels.add(range)
    }

    /// Adds a split by levels.
    pub(super) fn add(&mut self, levels: LevelSet) -> SplitAt<f32> {
        self.special.push(levels);
        SplitAt::Special(self.special.len() - 1)
    }
}
