//! `IterativeImputer`: predicts missing values from the other columns, again and again.

use super::compile;
use super::estimator::Estimator;
use super::imputer::{self, accepted_with_missing, is_missing, read_indicated, read_missing};
use super::model::{FeatureRows, Predictor, SklearnModel, StepFacts, Transformer};
use super::numeric::indicator;
use super::response::ResponseMethod;
use tensorserve_tensor::error::Result;

/// One prediction of a column.
struct ImputationStep {
    column: usize,
    /// The columns that it is predicted from.
    from: Vec<usize>,
    model: SklearnModel,
}

struct IterativeImputer {
    features: usize,
    /// Fills missing values for the first step.
    initial: Box<dyn Transformer>,
    /// The columns that are kept.
    kept: Vec<usize>,
    /// For each of them, the lowest and the highest prediction; `None` if it is never predicted.
    bounds: Vec<Option<(f64, f64)>>,
    steps: Vec<ImputationStep>,
    missing: f64,
    indicated: Vec<usize>,
}

impl IterativeImputer {
    /// Predicts the column of `step` for the rows in which it is missing. `filled` has the kept columns
    /// of all rows.
    fn predict(&self, step: &ImputationStep, filled: &mut [f64], missing: &[bool]) -> Result<()> {
        let width = self.kept.len().max(1);
        let is_missing = |row: &usize| missing.get(row * width + step.column) == Some(&true);
        let rows: Vec<usize> = (0..filled.len() / width).filter(is_missing).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let mut values = Vec::with_capacity(rows.len() * step.from.len());
        for row in &rows {
            let known = filled.get(row * width..).unwrap_or_default();
            let of_column = |column: &usize| known.get(*column).copied().unwrap_or(f64::NAN);
            values.extend(step.from.iter().map(of_column));
        }
        let response = step
            .model
            .respond(FeatureRows::dense(&values, step.from.len()), ResponseMethod::Predict)?;
        let (low, high) =
            self.bounds.get(step.column).copied().flatten().unwrap_or((f64::MIN, f64::MAX));
        for (row, value) in rows.iter().zip(response.column(0)) {
            if let Some(to) = filled.get_mut(row * width + step.column) {
                *to = value.max(low).min(high);
            }
        }
        Ok(())
    }
}

impl Transformer for IterativeImputer {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).accepting(accepted_with_missing(self.missing))
    }

    fn output(&self) -> usize {
        self.kept.len() + self.indicated.len()
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let width = self.kept.len().max(1);
        let mut filled = vec![0.0; rows.len() * width];
        self.initial.apply(rows, &mut filled)?;
        let mut missing = vec![false; filled.len()];
        for (row, missing) in rows.iter().zip(missing.chunks_exact_mut(width)) {
            let columns = self.kept.iter().zip(&self.bounds);
            for (missing, (column, bounds)) in missing.iter_mut().zip(columns) {
                let value = row.get(*column).copied().unwrap_or(f64::NAN);
                *missing = bounds.is_some() && is_missing(value, self.missing);
            }
            // scikit-learn leaves a table as it is filled first, if all of it is missing.
            if missing.iter().all(|missing| *missing) {
                missing.fill(false);
            }
        }
        for step in &self.steps {
            self.predict(step, &mut filled, &missing)?;
        }
        let filled = filled.chunks_exact(width);
        for ((row, filled), to) in
            rows.iter().zip(filled).zip(to.chunks_exact_mut(self.output().max(1)))
        {
            let (kept, indicators) = to.split_at_mut(self.kept.len());
            kept.copy_from_slice(filled);
            for (to, column) in indicators.iter_mut().zip(&self.indicated) {
                let value = row.get(*column).copied().unwrap_or(f64::NAN);
                *to = indicator(is_missing(value, self.missing));
            }
        }
        Ok(())
    }
}

/// The bounds of all columns. Before 0.23 there is one for all.
fn read_bounds(estimator: &Estimator, name: &str, width: usize) -> Result<Vec<f64>> {
    match estimator.is_older_than(0, 23) {
        true => Ok(vec![estimator.number(&[name])?; width]),
        false => estimator.vector_of_len(&[name], width),
    }
}

/// Reads an `IterativeImputer`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    if estimator.flag("sample_posterior", false)? {
        return Err(estimator.unsupported("values drawn at random (sample_posterior)"));
    }
    let first = estimator.child(estimator.attribute(&["initial_imputer_"])?)?;
    let initial = imputer::read(&first)?;
    let (missing, _) = read_missing(estimator)?;
    let features = initial.facts().features;
    let statistics = first.vector_of_len(&["statistics_"], features)?;
    let empty = match estimator.find(&["_is_empty_feature"]) {
        Some(_) => estimator.vector_of_len(&["_is_empty_feature"], features)?,
        None => statistics.iter().map(|x| indicator(x.is_nan())).collect(),
    };
    let keeps_empty = estimator.flag("keep_empty_features", false)?;
    let is_empty = |column: &usize| empty.get(*column) == Some(&1.0);
    let kept: Vec<usize> =
        (0..features).filter(|column| keeps_empty || !is_empty(column)).collect();
    let width = kept.len();
    if width == 0 || initial.output() != width {
        return Err(estimator.unsupported("columns without a value that the first imputer keeps"));
    }
    let lowest = read_bounds(estimator, "_min_value", width)?;
    let highest = read_bounds(estimator, "_max_value", width)?;
    let bounds = lowest.into_iter().zip(highest);
    let bounds =
        kept.iter().zip(bounds).map(|(column, bounds)| (!is_empty(column)).then_some(bounds));
    let indicated = match estimator.flag("add_indicator", false)? {
        true => {
            let indicator = estimator.child(estimator.attribute(&["indicator_"])?)?;
            read_indicated(&indicator, features)?
        }
        false => Vec::new(),
    };
    let mut steps = Vec::new();
    if estimator.count(&["n_iter_"])? > 0 {
        for step in estimator.children(&["imputation_sequence_"])? {
            steps.push(read_step(estimator, &step, width)?);
        }
    }
    let bounds = bounds.collect();
    Ok(Box::new(IterativeImputer { features, initial, kept, bounds, steps, missing, indicated }))
}

/// Reads a named tuple of a column, the columns that it is predicted from, and the estimator.
fn read_step(imputer: &Estimator, step: &Estimator, width: usize) -> Result<ImputationStep> {
    let wrong = || imputer.damaged("a step of imputation_sequence_ is not valid");
    let parts = step.value.items().filter(|items| !items.is_empty());
    let parts = parts.unwrap_or_else(|| step.value.arguments());
    let [column, from, model] = *parts else { return Err(wrong()) };
    let column = column.int().and_then(|column| usize::try_from(column).ok());
    let column = column.filter(|column| *column < width).ok_or_else(wrong)?;
    let from = from.array().and_then(|from| from.i64s()).ok_or_else(wrong)?;
    imputer.charge(from.len())?;
    let from: Vec<usize> =
        from.into_iter().map(usize::try_from).collect::<Result<_, _>>().map_err(|_| wrong())?;
    let model = compile::compile_part(&imputer.child(model)?)?;
    let predicts_number = match &model.predictor {
        Predictor::Regressor(model) => model.outputs().is_none(),
        Predictor::Classifier(_) | Predictor::MultiClassifier(_) | Predictor::Features(_) => false,
    };
    match predicts_number && model.features() == from.len() && from.iter().all(|x| *x < width) {
        true => Ok(ImputationStep { column, from, model }),
        false => Err(wrong()),
    }
}
