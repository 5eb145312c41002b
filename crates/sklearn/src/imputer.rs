//! `SimpleImputer`, `Imputer` and `MissingIndicator`.

use super::accepted::AcceptedValues;
use super::columns::ColumnUse;
use super::estimator::Estimator;
use super::model::{FeatureRows, StepFacts, Transformer};
use super::numeric::indicator;
use tensorserve_pickle::{PickleValue, dtype_kind};
use tensorserve_tensor::error::{Error, Result};

/// Replaces missing values.
struct Imputer {
    features: usize,
    /// The columns that are kept.
    kept: Vec<usize>,
    /// The replacement of missing values in each of them.
    fill: Vec<f64>,
    /// The value that stands for a missing one.
    missing: f64,
    /// The columns whose replacement, or whose missing value, is a text.
    texts: Vec<usize>,
    /// The columns for which a column is added that is 1 where the value is missing, else 0.
    indicated: Vec<usize>,
    accepts: AcceptedValues,
}

/// Whether `value` is missing, if `missing` stands for a missing one.
pub(super) fn is_missing(value: f64, missing: f64) -> bool {
    value == missing || (value.is_nan() && missing.is_nan())
}

/// What a step accepts in which `missing` stands for a missing value.
pub(super) fn accepted_with_missing(missing: f64) -> AcceptedValues {
    if missing.is_nan() { AcceptedValues::FiniteOrNan } else { AcceptedValues::Finite }
}

impl Transformer for Imputer {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).accepting(self.accepts)
    }

    fn output(&self) -> usize {
        self.kept.len() + self.indicated.len()
    }

    fn uses(&self, outputs: &[ColumnUse]) -> Vec<ColumnUse> {
        let mut uses = vec![ColumnUse::Either; self.features];
        for (column, output) in self.kept.iter().zip(outputs) {
            if let Some(used) = uses.get_mut(*column) {
                used.add(*output);
            }
        }
        for column in &self.texts {
            if let Some(used) = uses.get_mut(*column) {
                used.add(ColumnUse::Category);
            }
        }
        uses
    }

    fn categories(&self, outputs: &[Vec<String>]) -> Vec<Vec<String>> {
        let mut all = vec![Vec::new(); if outputs.is_empty() { 0 } else { self.features }];
        for (column, output) in self.kept.iter().zip(outputs) {
            if let Some(own) = all.get_mut(*column) {
                own.clone_from(output);
            }
        }
        all
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.output().max(1))) {
            let (kept, indicators) = to.split_at_mut(self.kept.len());
            for ((to, column), fill) in kept.iter_mut().zip(&self.kept).zip(&self.fill) {
                let value = column_value(row, *column);
                *to = if is_missing(value, self.missing) { *fill } else { value };
            }
            for (to, column) in indicators.iter_mut().zip(&self.indicated) {
                *to = indicator(is_missing(column_value(row, *column), self.missing));
            }
        }
        Ok(())
    }
}

fn column_value(row: &[f64], column: usize) -> f64 {
    row.get(column).copied().unwrap_or(f64::NAN)
}

/// Reads a `SimpleImputer` or an `Imputer`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let (statistics, mut texts) = read_statistics(estimator)?;
    let (missing, is_text) = read_missing(estimator)?;
    let features = statistics.len();
    if is_text {
        texts = (0..features).collect();
    }
    // A column without any value in training is dropped, unless it must be kept. Before 1.8 a constant
    // keeps all.
    let is_constant = estimator.text("strategy")? == "constant";
    let keeps_empty = estimator.flag("keep_empty_features", false)?
        || (is_constant && estimator.is_older_than(1, 8));
    let columns = statistics.iter().copied().enumerate();
    let (kept, fill) = columns.filter(|(_, fill)| keeps_empty || !fill.is_nan()).unzip();
    if matches!(estimator.find(&["axis"]).and_then(|axis| axis.int()), Some(1)) {
        return Err(estimator.unsupported("imputation along rows (axis=1)"));
    }
    let indicated = match estimator.flag("add_indicator", false)? {
        true => {
            let indicator = estimator.child(estimator.attribute(&["indicator_"])?)?;
            read_indicated(&indicator, features)?
        }
        false => Vec::new(),
    };
    // `Imputer`, of 0.21 and before, checks no value.
    let accepts = match estimator.class() {
        "Imputer" => AcceptedValues::Any,
        _ => accepted_with_missing(missing),
    };
    Ok(Box::new(Imputer { features, kept, fill, missing, texts, indicated, accepts }))
}

/// The replacement of each column, and the columns in which it is a text.
fn read_statistics(estimator: &Estimator) -> Result<(Vec<f64>, Vec<usize>)> {
    let value = estimator.attribute(&["statistics_"])?;
    let array = value.array().filter(|array| {
        matches!(array.kind(), dtype_kind::OBJECT | dtype_kind::TEXT | dtype_kind::BYTES)
    });
    let Some(array) = array else { return Ok((estimator.vector(&["statistics_"])?, Vec::new())) };
    estimator.charge(array.len())?;
    let (mut fill, mut texts) = (Vec::with_capacity(array.len()), Vec::new());
    if let Some(all) = array.strings() {
        for text in &all {
            texts.push(fill.len());
            fill.push(estimator.text_number(text)?);
        }
        return Ok((fill, texts));
    }
    for item in value.items().unwrap_or_default() {
        if let Some(text) = item.text() {
            texts.push(fill.len());
            fill.push(estimator.text_number(text)?);
            continue;
        }
        fill.push(item.float().unwrap_or(f64::NAN));
    }
    Ok((fill, texts))
}

/// The value that stands for a missing one, and whether it is a text.
pub(super) fn read_missing(estimator: &Estimator) -> Result<(f64, bool)> {
    let Some(value) = estimator.find(&["missing_values"]) else {
        return Ok((f64::NAN, false));
    };
    // "NaN" is the missing value of an `Imputer`, before 0.20.
    if value.text() == Some("NaN") && estimator.class() == "Imputer" {
        return Ok((f64::NAN, false));
    }
    if let Some(text) = value.text() {
        return Ok((estimator.text_number(text)?, true));
    }
    match value.float() {
        Some(number) => Ok((number, false)),
        None if is_pandas_missing(value) => Ok((f64::NAN, false)),
        None => Err(estimator.unsupported("missing_values that is neither a number nor a text")),
    }
}

/// Whether it is `pandas.NA`.
fn is_pandas_missing(value: PickleValue) -> bool {
    value.class().is_some_and(|class| class.starts_with("pandas.") && class.contains("NA"))
}

/// The columns of an indicator of missing values.
pub(super) fn read_indicated(indicator: &Estimator, features: usize) -> Result<Vec<usize>> {
    let mut indicated = Vec::new();
    for column in indicator.vector(&["features_"])? {
        let column = column as usize;
        if column >= features {
            return Err(indicator.damaged(format_args!("its indicator has no column {column}")));
        }
        indicated.push(column);
    }
    Ok(indicated)
}

/// 1 where a value is missing, else 0.
struct MissingIndicator {
    features: usize,
    missing: f64,
    is_text: bool,
    indicated: Vec<usize>,
    /// Whether a missing value in any other column is refused.
    refuses_others: bool,
}

impl Transformer for MissingIndicator {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).accepting(accepted_with_missing(self.missing))
    }

    fn output(&self) -> usize {
        self.indicated.len()
    }

    fn uses(&self, _: &[ColumnUse]) -> Vec<ColumnUse> {
        let kind = if self.is_text { ColumnUse::Category } else { ColumnUse::Either };
        vec![kind; self.features]
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (number, (row, to)) in
            rows.iter().zip(to.chunks_exact_mut(self.indicated.len().max(1))).enumerate()
        {
            if self.refuses_others
                && let Some(column) = self.unexpected(row)
            {
                let row = rows.first_row + number;
                return Err(Error::invalid(format!(
                    "the value in column {column} of row {row} is missing, which it never was in the \
                     training of the model's MissingIndicator"
                )));
            }
            for (to, column) in to.iter_mut().zip(&self.indicated) {
                *to = indicator(is_missing(column_value(row, *column), self.missing));
            }
        }
        Ok(())
    }
}

impl MissingIndicator {
    /// A column with a missing value that is not indicated.
    fn unexpected(&self, row: &[f64]) -> Option<usize> {
        let mut columns = row.iter().enumerate();
        let found = columns.find(|(column, value)| {
            is_missing(**value, self.missing) && !self.indicated.contains(column)
        });
        found.map(|(column, _)| column)
    }
}

/// Reads a `MissingIndicator`.
pub(super) fn missing_indicator(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let features = estimator.count(&["n_features_in_", "_n_features"])?;
    let (missing, is_text) = read_missing(estimator)?;
    let indicated = read_indicated(estimator, features)?;
    if indicated.is_empty() {
        return Err(estimator.unsupported("an indicator of no columns"));
    }
    let refuses_others =
        estimator.flag("error_on_new", true)? && estimator.text("features")? == "missing-only";
    Ok(Box::new(MissingIndicator { features, missing, is_text, indicated, refuses_others }))
}
