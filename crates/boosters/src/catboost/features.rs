//! The features of a row as small integers: how many borders a number is above, and whether a category
//! is a value. A split compares one of them with a constant.

use super::ctr::{CompiledCombination, CompiledCtr, CompiledTable};
use super::document::{CatboostDocument, CtrBase, MissingNumber};
use super::rows::RowBlock;
use tensorserve_tensor::error::{Error, Result};

/// Rows that are evaluated together.
pub(super) const BLOCK: usize = 128;

/// The most borders that a column counts.
const MAX_BIN: usize = 254;

/// Up to this number, borders are compared with some rows one after the other, which is vectorized; more
/// are searched for each row.
const MAX_COMPARED_BORDERS: usize = 128;

/// The rows that are compared with a border at a time: their counts fit in registers.
const COMPARED_ROWS: usize = 16;

/// The most columns; a split has 24 bits for its own.
const MAX_COLUMNS: usize = 1 << 20;

/// Makes columns of bins of rows.
pub(super) struct FeatureQuantizer {
    floats: Vec<BinnedFloat>,
    one_hots: Vec<BinnedValue>,
    combinations: Vec<BinnedCombination>,
    tables: Vec<CompiledTable>,
    /// The number of columns.
    columns: usize,
}

struct BinnedFloat {
    column: usize,
    missing: MissingNumber,
    borders: Vec<f32>,
}

struct BinnedValue {
    column: usize,
    value: u32,
}

/// The statistics of one combination.
struct BinnedCombination {
    combination: CompiledCombination,
    ctrs: Vec<BinnedCtr>,
}

struct BinnedCtr {
    ctr: CompiledCtr,
    borders: Vec<f32>,
    /// Its first column of bins.
    first: usize,
}

/// A split: rows whose bin in `column` is at least `bin` go to the right.
#[derive(Clone, Copy)]
pub(super) struct BinSplit {
    pub(super) column: u32,
    pub(super) bin: u8,
}

impl FeatureQuantizer {
    /// The quantizer of a model, and its splits.
    pub(super) fn new(document: &mut CatboostDocument) -> Result<(Self, Vec<BinSplit>)> {
        let mut splits = Vec::new();
        let mut columns = 0;
        let mut floats = Vec::new();
        for (column, feature) in document.floats.iter().enumerate() {
            check_borders(&feature.borders)?;
            add_splits(&mut splits, &mut columns, feature.borders.len())?;
            let (missing, borders) = (feature.missing, feature.borders.clone());
            floats.push(BinnedFloat { column, missing, borders });
        }
        let categories = &document.categories;
        let category = |index| categories.iter().position(|feature| feature.index == index);
        let mut one_hots = Vec::new();
        for feature in &document.one_hots {
            let column = category(feature.category);
            let column =
                column.ok_or_else(|| Error::damaged("a one-hot feature has no category"))?;
            for value in &feature.values {
                add_splits(&mut splits, &mut columns, 1)?;
                one_hots.push(BinnedValue { column, value: value.cast_unsigned() });
            }
        }
        let tables = std::mem::take(&mut document.tables).into_iter().map(CompiledTable::new);
        let tables = tables.collect::<Result<Vec<_>>>()?;
        let float = |index| {
            let column = document.floats.iter().position(|feature| feature.index == index)?;
            document.floats.get(column).map(|feature| (column, feature.missing))
        };
        let mut bases: Vec<&CtrBase> = Vec::new();
        let mut combinations: Vec<BinnedCombination> = Vec::new();
        for feature in &document.ctrs {
            check_borders(&feature.borders)?;
            let first = columns;
            add_splits(&mut splits, &mut columns, feature.borders.len())?;
            let ctr = CompiledCtr::new(feature, &tables)?;
            let binned = BinnedCtr { ctr, borders: feature.borders.clone(), first };
            // Counters of one combination mostly follow each other.
            let known =
                bases.last().is_some_and(|last| last.combination == feature.base.combination);
            match combinations.last_mut().filter(|_| known) {
                Some(last) => last.ctrs.push(binned),
                None => {
                    let combination = &feature.base.combination;
                    let combination = CompiledCombination::new(combination, category, float)?;
                    combinations.push(BinnedCombination { combination, ctrs: vec![binned] });
                    bases.push(&feature.base);
                }
            }
        }
        Ok((FeatureQuantizer { floats, one_hots, combinations, tables, columns }, splits))
    }

    /// Writes the bins of `block` to `bins`: columns of `stride` rows.
    pub(super) fn write(&self, block: &RowBlock, stride: usize, bins: &mut Vec<u8>) {
        bins.clear();
        bins.resize(self.columns * stride, 0);
        let mut columns = bins.chunks_exact_mut(stride);
        for feature in &self.floats {
            let start = feature.column * block.rows;
            let values = block.floats.get(start..start + block.rows).unwrap_or_default();
            for borders in feature.borders.chunks(MAX_BIN) {
                let Some(column) = columns.next() else { return };
                count_borders(values, feature.missing, borders, column);
            }
        }
        for feature in &self.one_hots {
            let Some(column) = columns.next() else { return };
            let start = feature.column * block.rows;
            let hashes = block.categories.get(start..start + block.rows).unwrap_or_default();
            for (bin, hash) in column.iter_mut().zip(hashes) {
                *bin = u8::from(*hash == feature.value);
            }
        }
        for combination in &self.combinations {
            for row in 0..block.rows {
                self.write_ctrs(combination, block, row, stride, bins);
            }
        }
    }

    /// Writes the bins of all statistics of a combination for a row.
    fn write_ctrs(
        &self,
        combination: &BinnedCombination,
        block: &RowBlock,
        row: usize,
        stride: usize,
        bins: &mut [u8],
    ) {
        let hash = combination.combination.hash(block, row);
        let mut found: Option<(usize, Option<u32>)> = None;
        for BinnedCtr { ctr, borders, first } in &combination.ctrs {
            let Some(table) = self.tables.get(ctr.table) else { continue };
            let index = match found {
                Some((known, index)) if known == ctr.table => index,
                _ => table.index(hash),
            };
            found = Some((ctr.table, index));
            let value = ctr.value(table, index);
            for (number, borders) in borders.chunks(MAX_BIN).enumerate() {
                if let Some(bin) = bins.get_mut((first + number) * stride + row) {
                    *bin = count_below(borders, value);
                }
            }
        }
    }
}

/// Adds the splits of a feature with `borders` borders, and counts its columns.
fn add_splits(splits: &mut Vec<BinSplit>, columns: &mut usize, borders: usize) -> Result<()> {
    for border in 0..borders {
        let column = *columns + border / MAX_BIN;
        let bin = u8::try_from(border % MAX_BIN + 1).unwrap_or(u8::MAX);
        let column = u32::try_from(column).unwrap_or(u32::MAX);
        splits.push(BinSplit { column, bin });
    }
    *columns += borders.div_ceil(MAX_BIN);
    if *columns > MAX_COLUMNS {
        return Err(Error::unsupported("the model has too many features"));
    }
    Ok(())
}

fn check_borders(borders: &[f32]) -> Result<()> {
    let is_sorted = borders.windows(2).all(|pair| matches!(pair, [a, b] if a <= b));
    if !is_sorted || borders.iter().any(|border| border.is_nan()) {
        return Err(Error::damaged("the borders of a feature are not in ascending order"));
    }
    Ok(())
}

/// Writes how many of `borders` each value is above.
fn count_borders(values: &[f32], missing: MissingNumber, borders: &[f32], column: &mut [u8]) {
    if values.len() == BLOCK && borders.len() <= MAX_COMPARED_BORDERS {
        let groups = values
            .as_chunks::<COMPARED_ROWS>()
            .0
            .iter()
            .zip(column.as_chunks_mut::<COMPARED_ROWS>().0);
        for (values, bins) in groups {
            let values = values.map(|value| missing.replaced(value));
            let mut counts = [0_u32; COMPARED_ROWS];
            for border in borders {
                for (count, value) in counts.iter_mut().zip(&values) {
                    *count += u32::from(value > border);
                }
            }
            #[allow(clippy::cast_possible_truncation)] // At most MAX_BIN.
            bins.iter_mut().zip(counts).for_each(|(bin, count)| *bin = count as u8);
        }
        return;
    }
    for (bin, value) in column.iter_mut().zip(values) {
        *bin = count_below(borders, missing.replaced(*value));
    }
}

/// How many of `borders`, which are at most [`MAX_BIN`], `value` is above.
fn count_below(borders: &[f32], value: f32) -> u8 {
    let count = borders.partition_point(|border| value > *border);
    u8::try_from(count).unwrap_or(u8::MAX)
}
