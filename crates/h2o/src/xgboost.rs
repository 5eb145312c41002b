//! XGBoost models, whose MOJOs hold the booster in the library's binary format.
//!
//! Source: `XGBoostJavaMojoModel` and `OneHotEncoderFactory` of h2o-genmodel 3.46.0.6, and H2O's
//! xgboost-predictor, whose arithmetic this is.

use super::classes::ClassRule;
use super::files::MojoFiles;
use super::head::{MojoHead, MojoScorer};
use super::numeric::java_int;
use tensorserve_boosters::xgboost::embedded::{EmbeddedBooster, EmbeddedTransform};
use tensorserve_tensor::error::{Error, Result};

/// The file with the booster.
const BOOSTER: &str = "boosterBytes";

/// The most values of all rows that are expanded at once.
const MAX_EXPANDED: usize = 1 << 16;

/// A booster, and how rows become its features. The columns of levels come first, then those of numbers.
pub(super) struct BoosterModel {
    booster: EmbeddedBooster,
    transform: EmbeddedTransform,
    columns: usize,
    /// For each column of levels where its features start, and one more: their end.
    starts: Vec<usize>,
    has_first_level: bool,
    /// Whether zeros are missing values.
    is_sparse: bool,
    has_offset: bool,
    rule: Option<ClassRule>,
}

impl BoosterModel {
    /// Reads the model.
    pub(super) fn read(files: &MojoFiles, head: &MojoHead) -> Result<Self> {
        let info = &head.info;
        let booster = EmbeddedBooster::read(&files.read(BOOSTER)?);
        let booster = booster.map_err(|error| error.context(BOOSTER))?;
        let transform = booster.transform().ok_or_else(|| {
            Error::unsupported(
                "the objective of the booster is not one of H2O's: train it with H2O",
            )
        })?;
        let (starts, numbers) = info.level_starts(head.features)?;
        let model = BoosterModel {
            booster,
            transform,
            columns: head.features,
            starts,
            has_first_level: info.flag_or("use_all_factor_levels", false)?,
            is_sparse: info.flag_or("sparse", false)?,
            has_offset: info.flag_or("has_offset", false)?,
            rule: match head.classes {
                1 => None,
                classes => Some(ClassRule::read(info, classes)?),
            },
        };
        model.check(numbers, head.classes)?;
        Ok(model)
    }

    fn check(&self, numbers: usize, classes: usize) -> Result<()> {
        let (has, needs) = (self.booster.features(), self.first_number().checked_add(numbers));
        if needs != Some(has) {
            return Err(Error::damaged(format!(
                "the booster has {has} features, not those of model.ini"
            )));
        }
        let (has, needs) = (self.booster.outputs(), if classes > 2 { classes } else { 1 });
        if has != needs {
            return Err(Error::damaged(format!(
                "the booster has {has} outputs, and needs {needs}"
            )));
        }
        Ok(())
    }

    /// The feature of the first number.
    fn first_number(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Writes the features of a row.
    #[allow(clippy::cast_possible_truncation)] // The booster is one of single precision.
    fn expand(&self, row: &[f64], features: &mut [f32]) {
        let levels = self.starts.len().saturating_sub(1);
        let (levels, numbers) = row.split_at_checked(levels).unwrap_or_default();
        let Some((hot, cold)) = features.split_at_mut_checked(self.first_number()) else { return };
        hot.fill(if self.is_sparse { f32::NAN } else { 0.0 });
        for (x, bounds) in levels.iter().zip(self.starts.windows(2)) {
            let &[start, end] = bounds else { continue };
            if let Some(feature) = self.level_feature(*x, start, end)
                && let Some(feature) = hot.get_mut(feature)
            {
                *feature = 1.0;
            }
        }
        for (feature, x) in cold.iter_mut().zip(numbers) {
            let x = *x as f32;
            *feature = if self.is_sparse && x == 0.0 { f32::NAN } else { x };
        }
    }

    /// The feature of a level among those from `start` to `end`: the last is for missing ones.
    fn level_feature(&self, x: f64, start: usize, end: usize) -> Option<usize> {
        let last = end.checked_sub(1)?;
        if x.is_nan() {
            return Some(last);
        }
        let skipped = i32::from(!self.has_first_level);
        let level = usize::try_from(java_int(x).checked_sub(skipped)?).ok()?;
        Some(start.checked_add(level)?.min(last))
    }

    fn finish(&self, row: &[f64], sums: &mut [f32], prediction: &mut [f64]) {
        transform(self.transform, sums);
        let Some(rule) = &self.rule else {
            let number = sums.first().map_or(f64::NAN, |sum| f64::from(*sum));
            return prediction.fill(number);
        };
        let probabilities = prediction.get_mut(1..).unwrap_or_default();
        match (&mut *probabilities, &*sums) {
            ([first, second], [sum]) => {
                (*first, *second) = (f64::from(1.0 - sum), f64::from(*sum));
            }
            (probabilities, sums) => {
                probabilities.iter_mut().zip(sums).for_each(|(to, from)| *to = f64::from(*from));
            }
        }
        rule.choose(prediction, row);
    }
}

/// Turns the sums of a row into predictions. Exponentials are of double precision, and rounded.
#[allow(clippy::cast_possible_truncation)]
fn transform(transform: EmbeddedTransform, sums: &mut [f32]) {
    let exp = |x: f32| f64::from(x).exp() as f32;
    match transform {
        EmbeddedTransform::None => {}
        EmbeddedTransform::Sigmoid => {
            sums.iter_mut().for_each(|sum| *sum = 1.0 / (1.0 + exp(-*sum)));
        }
        EmbeddedTransform::Exponential => sums.iter_mut().for_each(|sum| *sum = exp(*sum)),
        EmbeddedTransform::Softmax => {
            let largest = sums.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut total = 0.0;
            for sum in sums.iter_mut() {
                *sum = exp(*sum - largest);
                total += f64::from(*sum);
            }
            sums.iter_mut().for_each(|sum| *sum /= total as f32);
        }
    }
}

impl MojoScorer for BoosterModel {
    #[allow(clippy::cast_possible_truncation)]
    fn score(&self, rows: &mut [f64], offsets: &[f64], predictions: &mut [f64]) {
        let count = rows.len() / self.columns.max(1);
        let width = predictions.len() / count.max(1);
        let (features, outputs) = (self.booster.features().max(1), self.booster.outputs().max(1));
        let block = (MAX_EXPANDED / features).clamp(1, count.max(1));
        let mut expanded = vec![0.0; block * features];
        let mut sums = vec![0.0; block * outputs];
        let blocks = rows.chunks(block * self.columns.max(1));
        let offsets = offsets.chunks(block);
        let predictions = predictions.chunks_mut(block * width.max(1));
        for ((rows, offsets), predictions) in blocks.zip(offsets).zip(predictions) {
            let rows = rows.chunks_exact(self.columns.max(1));
            let expanded = expanded.get_mut(..rows.len() * features).unwrap_or_default();
            let sums = sums.get_mut(..rows.len() * outputs).unwrap_or_default();
            for (row, features) in rows.clone().zip(expanded.chunks_exact_mut(features)) {
                self.expand(row, features);
            }
            self.booster.sums(expanded, sums, |row| {
                offsets.get(row).filter(|_| self.has_offset).map(|offset| *offset as f32)
            });
            let sums = sums.chunks_exact_mut(outputs);
            let predictions = predictions.chunks_exact_mut(width.max(1));
            for ((row, sums), prediction) in rows.zip(sums).zip(predictions) {
                self.finish(row, sums, prediction);
            }
        }
    }
}
