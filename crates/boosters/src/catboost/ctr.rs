//! Statistics of categories (CTRs): the values of a table for the hash of some features, as numbers.
//!
//! The arithmetic is CatBoost's, in single precision (`TStaticCtrProvider::CalcCtrs`).

use super::document::{
    CtrBase, CtrFeature, CtrKind, CtrTable, CtrValues, FeatureCombination, MissingNumber,
};
use super::hash;
use super::rows::RowBlock;
use tensorserve_tensor::error::{Error, Result};

/// The hash that no combination has.
const EMPTY_SLOT: u64 = u64::MAX;

/// A combination of features, by the numbers of their columns.
pub(super) struct CompiledCombination {
    categories: Vec<usize>,
    floats: Vec<(usize, MissingNumber, f32)>,
    one_hots: Vec<(usize, u32)>,
}

/// A statistic that is a feature of numbers.
pub(super) struct CompiledCtr {
    /// The number of its table.
    pub(super) table: usize,
    kind: CtrKind,
    target_border: usize,
    prior_numerator: f32,
    prior_denominator: f32,
    shift: f32,
    scale: f32,
}

/// The values of a table, by hash.
pub(super) struct CompiledTable {
    pub(super) base: CtrBase,
    /// Open addressing: a hash is searched from the slot of its low bits on. A power of two.
    slots: Vec<(u64, u32)>,
    denominator: i32,
    width: usize,
    values: CtrValues,
}

impl CompiledCombination {
    /// Finds the features of `combination` with functions that give the numbers of their columns.
    pub(super) fn new(
        combination: &FeatureCombination,
        category: impl Fn(i32) -> Option<usize>,
        float: impl Fn(i32) -> Option<(usize, MissingNumber)>,
    ) -> Result<Self> {
        let missing =
            |index| Error::damaged(format!("a statistic has feature {index}, which is missing"));
        let mut compiled = CompiledCombination {
            categories: Vec::new(),
            floats: Vec::new(),
            one_hots: Vec::new(),
        };
        for &index in &combination.categories {
            compiled.categories.push(category(index).ok_or_else(|| missing(index))?);
        }
        for &(index, border) in &combination.floats {
            let (column, treatment) = float(index).ok_or_else(|| missing(index))?;
            compiled.floats.push((column, treatment, border));
        }
        for &(index, value) in &combination.one_hots {
            let column = category(index).ok_or_else(|| missing(index))?;
            compiled.one_hots.push((column, value.cast_unsigned()));
        }
        Ok(compiled)
    }

    /// The hash of row `row`.
    pub(super) fn hash(&self, block: &RowBlock, row: usize) -> u64 {
        let mut sum = 0;
        for &column in &self.categories {
            sum = hash::combine(sum, hash::widened(block.category(column, row)));
        }
        for &(column, missing, border) in &self.floats {
            let is_above = missing.replaced(block.float(column, row)) > border;
            sum = hash::combine(sum, u64::from(is_above));
        }
        for &(column, value) in &self.one_hots {
            sum = hash::combine(sum, u64::from(block.category(column, row) == value));
        }
        sum
    }
}

impl CompiledTable {
    pub(super) fn new(table: CtrTable) -> Result<Self> {
        let count = match &table.values {
            CtrValues::Counts(counts) => counts.len() / table.width.max(1),
            CtrValues::Means(means) => means.len(),
        };
        let size = (table.hashes.len() * 2).max(1).next_power_of_two();
        let mut slots = vec![(EMPTY_SLOT, 0); size];
        for &(hash, index) in &table.hashes {
            if index as usize >= count {
                return Err(Error::damaged(format!(
                    "a table of statistics has {count} values, and its hash table refers to \
                     value {index}"
                )));
            }
            let at = find(&slots, hash);
            if let Some(slot) = slots.get_mut(at) {
                *slot = (hash, index);
            }
        }
        let CtrTable { base, denominator, width, values, .. } = table;
        Ok(CompiledTable { base, slots, denominator, width, values })
    }

    /// The index of the values of `hash`.
    pub(super) fn index(&self, hash: u64) -> Option<u32> {
        let slot = self.slots.get(find(&self.slots, hash))?;
        (slot.0 == hash && hash != EMPTY_SLOT).then_some(slot.1)
    }
}

/// The slot of `hash`, or the empty one where it would be. There is one, as half of them are empty.
#[allow(clippy::cast_possible_truncation)] // The low bits.
fn find(slots: &[(u64, u32)], hash: u64) -> usize {
    let mask = slots.len() - 1;
    let mut at = hash as usize & mask;
    loop {
        match slots.get(at) {
            Some(slot) if slot.0 != hash && slot.0 != EMPTY_SLOT => at = (at + 1) & mask,
            _ => return at,
        }
    }
}

impl CompiledCtr {
    pub(super) fn new(feature: &CtrFeature, tables: &[CompiledTable]) -> Result<Self> {
        let table = tables.iter().position(|table| table.base == feature.base);
        let table = table.ok_or_else(|| Error::damaged("the table of a statistic is missing"))?;
        let target_border = usize::try_from(feature.target_border).unwrap_or(usize::MAX);
        let width = tables.get(table).map_or(0, |table| table.width);
        if target_border >= width {
            return Err(Error::damaged(format!(
                "a statistic has the target border {target_border}"
            )));
        }
        Ok(CompiledCtr {
            table,
            kind: feature.base.kind,
            target_border,
            prior_numerator: feature.prior_numerator,
            prior_denominator: feature.prior_denominator,
            shift: feature.shift,
            scale: feature.scale,
        })
    }

    /// The statistic for the values with this index; without one, for a combination that did not
    /// occur in the training.
    #[allow(clippy::cast_precision_loss)] // As CatBoost does.
    pub(super) fn value(&self, table: &CompiledTable, index: Option<u32>) -> f32 {
        let (good, total) = match (&table.values, index) {
            (CtrValues::Means(means), Some(index)) => {
                let (sum, count) = means.get(index as usize).copied().unwrap_or_default();
                (sum, count as f32)
            }
            (CtrValues::Means(_), None) => (0.0, 0.0),
            (CtrValues::Counts(counts), index) => {
                let width = table.width;
                let counts = index.and_then(|index| {
                    let start = index as usize * width;
                    counts.get(start..start + width)
                });
                let (good, total) = self.counts(counts.unwrap_or_default(), table.denominator);
                (good as f32, total as f32)
            }
        };
        let ratio = (good + self.prior_numerator) / (total + self.prior_denominator);
        (ratio + self.shift) * self.scale
    }

    /// How many of the targets are those of this statistic, and of how many.
    fn counts(&self, counts: &[i32], denominator: i32) -> (i32, i32) {
        let sum = |counts: &[i32]| counts.iter().fold(0_i32, |sum, count| sum.wrapping_add(*count));
        match self.kind {
            CtrKind::Counter => (counts.first().copied().unwrap_or(0), denominator),
            CtrKind::Buckets => (counts.get(self.target_border).copied().unwrap_or(0), sum(counts)),
            CtrKind::Borders | CtrKind::MeanValue => {
                // With two classes, the border is between them.
                let first = if counts.len() == 2 { 1 } else { self.target_border + 1 };
                (sum(counts.get(first..).unwrap_or_default()), sum(counts))
            }
        }
    }
}
