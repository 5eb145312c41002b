//! Feature selection: transformers that keep some of the columns.

use super::accepted::AcceptedValues;
use super::estimator::Estimator;
use super::model::{FeatureRows, StepFacts, Transformer};
use super::sparse::SparseMatrix;
use tensorserve_tensor::error::Result;

/// The default threshold of `SelectFromModel` for models that are sparse.
const SPARSE_THRESHOLD: f64 = 1e-5;

/// Keeps some of the columns.
struct ColumnSelection {
    features: usize,
    kept: Vec<usize>,
    accepts: AcceptedValues,
}

impl ColumnSelection {
    /// Keeps the columns whose element in `mask` is true.
    fn boxed(
        estimator: &Estimator,
        mask: &[bool],
        accepts: AcceptedValues,
    ) -> Result<Box<dyn Transformer>> {
        let kept: Vec<usize> =
            mask.iter().enumerate().filter(|(_, kept)| **kept).map(|(column, _)| column).collect();
        if kept.is_empty() {
            return Err(estimator.unsupported("a selection of no columns"));
        }
        Ok(Box::new(ColumnSelection { features: mask.len(), kept, accepts }))
    }
}

impl Transformer for ColumnSelection {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).accepting(self.accepts).sparse()
    }

    fn output(&self) -> usize {
        self.kept.len()
    }

    fn makes_sparse(&self, from_sparse: bool) -> bool {
        from_sparse
    }

    fn apply_sparse(&self, rows: FeatureRows) -> Result<SparseMatrix> {
        let mut to = SparseMatrix::new(self.kept.len());
        let Some(matrix) = rows.sparse else { return Ok(to) };
        for row in matrix.iter() {
            for (column, value) in row {
                // The columns that are kept are in order.
                if let Ok(place) = self.kept.binary_search(&(*column as usize)) {
                    to.push(u32::try_from(place).unwrap_or(u32::MAX), *value);
                }
            }
            to.end_row();
        }
        Ok(to)
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.kept.len().max(1))) {
            for (to, column) in to.iter_mut().zip(&self.kept) {
                *to = row.get(*column).copied().unwrap_or(f64::NAN);
            }
        }
        Ok(())
    }
}

/// The scores of the columns, NaN replaced by the lowest number.
fn read_scores(estimator: &Estimator) -> Result<Vec<f64>> {
    let scores = estimator.vector(&["scores_"])?;
    Ok(scores.into_iter().map(|score| if score.is_nan() { f64::MIN } else { score }).collect())
}

/// `SelectKBest`: the columns with the `k` best scores; of equal ones, the later columns.
pub(super) fn k_best(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let scores = read_scores(estimator)?;
    if estimator.attribute(&["k"])?.text() == Some("all") {
        return ColumnSelection::boxed(
            estimator,
            &vec![true; scores.len()],
            AcceptedValues::Finite,
        );
    }
    let k = estimator.count(&["k"])?;
    let mut order: Vec<(f64, usize)> = scores.iter().copied().zip(0..).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut mask = vec![false; scores.len()];
    for (_, column) in order.into_iter().rev().take(k) {
        if let Some(kept) = mask.get_mut(column) {
            *kept = true;
        }
    }
    ColumnSelection::boxed(estimator, &mask, AcceptedValues::Finite)
}

/// `SelectPercentile`: the columns with scores above a percentile, and the first of those that equal
/// it, up to their share of all columns.
pub(super) fn percentile(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let scores = read_scores(estimator)?;
    let percentile = estimator.number(&["percentile"])?;
    if !(0.0..=100.0).contains(&percentile) || scores.is_empty() {
        return Err(estimator.damaged(format_args!("percentile={percentile} is not valid")));
    }
    if percentile == 100.0 {
        return ColumnSelection::boxed(
            estimator,
            &vec![true; scores.len()],
            AcceptedValues::Finite,
        );
    }
    let threshold = interpolated_percentile(&scores, 100.0 - percentile);
    let mut mask: Vec<bool> = scores.iter().map(|score| *score > threshold).collect();
    let room = (scores.len() as f64 * percentile / 100.0) as usize;
    let mut left = room.saturating_sub(mask.iter().filter(|kept| **kept).count());
    for (kept, score) in mask.iter_mut().zip(&scores) {
        if *score == threshold && left > 0 {
            *kept = true;
            left -= 1;
        }
    }
    ColumnSelection::boxed(estimator, &mask, AcceptedValues::Finite)
}

/// The percentile of `scores`, interpolated linearly as by `numpy.percentile`, which returns the
/// score itself between equal ones.
fn interpolated_percentile(scores: &[f64], percentile: f64) -> f64 {
    let mut sorted = scores.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = percentile / 100.0 * sorted.len().saturating_sub(1) as f64;
    let below = position.floor() as usize;
    let last = sorted.last().copied().unwrap_or(0.0);
    let low = sorted.get(below).copied().unwrap_or(last);
    let high = sorted.get(below + 1).copied().unwrap_or(last);
    let fraction = position - position.floor();
    match fraction < 0.5 {
        true => low + (high - low) * fraction,
        false => high - (high - low) * (1.0 - fraction),
    }
}

/// `SelectFpr`, `SelectFdr` and `SelectFwe`: the columns with small p-values.
pub(super) fn by_p_value(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let values = estimator.vector(&["pvalues_"])?;
    let alpha = estimator.number(&["alpha"])?;
    let count = values.len() as f64;
    let mask: Vec<bool> = match estimator.class() {
        "SelectFpr" => values.iter().map(|p| *p < alpha).collect(),
        "SelectFwe" => values.iter().map(|p| *p < alpha / count).collect(),
        _ => {
            // The procedure of Benjamini and Hochberg.
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let bounds = (1..).map(|rank: u32| alpha / count * f64::from(rank));
            let accepted = sorted.iter().zip(bounds).filter(|(p, bound)| **p <= *bound);
            let largest = accepted.map(|(p, _)| *p).reduce(f64::max);
            values.iter().map(|p| largest.is_some_and(|largest| *p <= largest)).collect()
        }
    };
    ColumnSelection::boxed(estimator, &mask, AcceptedValues::Finite)
}

/// `VarianceThreshold`: the columns with a larger variance.
pub(super) fn variance_threshold(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let variances = estimator.vector(&["variances_"])?;
    let threshold = estimator.number(&["threshold"])?;
    let mask: Vec<bool> = variances.iter().map(|variance| *variance > threshold).collect();
    ColumnSelection::boxed(estimator, &mask, accepted_if(estimator, true))
}

/// What a selection accepts, for models that allow NaN or not. Since 0.22 it checks no value if they do.
fn accepted_if(estimator: &Estimator, allows_nan: bool) -> AcceptedValues {
    match allows_nan && !estimator.is_older_than(0, 22) {
        true => AcceptedValues::Any,
        false => AcceptedValues::Finite,
    }
}

/// The first version of which an estimator allows NaN; other classes of scikit-learn that predict by
/// themselves never do.
const ALLOW_NAN: [(&str, (u32, u32)); 5] = [
    ("HistGradientBoosting", (0, 22)),
    ("DecisionTree", (1, 3)),
    ("RandomForest", (1, 4)),
    ("ExtraTree", (1, 6)),
    ("IsolationForest", (1, 6)),
];

/// Estimators that allow NaN if their parts do, which the steps that follow check.
const COMPOSED: [&str; 6] = ["Pipeline", "SearchCV", "Bagging", "Voting", "Stacking", "OneVs"];

/// Whether the model of a selection allows NaN.
fn allows_nan(model: &Estimator) -> bool {
    let class = model.class();
    // The estimators of boosting libraries do, whose class has a module.
    if class.contains('.') || COMPOSED.iter().any(|name| class.contains(name)) {
        return true;
    }
    let found = ALLOW_NAN.iter().find(|(name, _)| class.starts_with(name));
    found.is_some_and(|(_, (major, minor))| !model.is_older_than(*major, *minor))
}

/// `RFE`, `RFECV` and `SequentialFeatureSelector`: the columns that fitting has selected. They accept
/// what their estimator accepts.
pub(super) fn by_support(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let support = estimator.vector(&["support_"])?;
    let mask: Vec<bool> = support.into_iter().map(|kept| kept != 0.0).collect();
    let model = estimator.child(estimator.attribute(&["estimator_", "estimator"])?)?;
    ColumnSelection::boxed(estimator, &mask, accepted_if(estimator, allows_nan(&model)))
}

/// `SelectFromModel`: the columns with large coefficients in a model.
pub(super) fn from_model(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let model = estimator.child(estimator.attribute(&["estimator_", "estimator"])?)?;
    let is_plain = matches!(estimator.text("importance_getter")?, "" | "auto" | "coef_");
    let norm = estimator.find(&["norm_order"]).and_then(|order| order.int()).unwrap_or(1);
    if model.find(&["coef_"]).is_none() || !is_plain || norm != 1 {
        return Err(estimator.unsupported("a selection that does not use coefficients"));
    }
    let coefficients = model.matrix(&["coef_"])?;
    let mut importances = vec![0.0; coefficients.columns];
    for row in coefficients.iter() {
        importances.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.abs());
    }
    let threshold = importance_threshold(estimator, &model, &importances)?;
    let mut mask: Vec<bool> = importances.iter().map(|value| *value >= threshold).collect();
    if estimator.find(&["max_features"]).is_some() {
        let limit = estimator.count(&["max_features_", "max_features"])?;
        let mut order: Vec<(f64, usize)> = importances.iter().copied().zip(0..).collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, column) in order.into_iter().skip(limit) {
            if let Some(kept) = mask.get_mut(column) {
                *kept = false;
            }
        }
    }
    ColumnSelection::boxed(estimator, &mask, AcceptedValues::Finite)
}

/// The threshold for importances: a number, or a multiple of their mean or median.
fn importance_threshold(
    estimator: &Estimator,
    model: &Estimator,
    importances: &[f64],
) -> Result<f64> {
    let Some(threshold) = estimator.find(&["threshold"]) else {
        return Ok(if is_sparse(model)? { SPARSE_THRESHOLD } else { mean(importances) });
    };
    if let Some(number) = threshold.float() {
        return Ok(number);
    }
    let wrong =
        || estimator.damaged("threshold is neither a number nor a multiple of mean or median");
    let text = threshold.text().ok_or_else(wrong)?;
    let (scale, reference) = match text.split_once('*') {
        None => (1.0, text),
        Some((scale, reference)) => (scale.trim().parse().map_err(|_| wrong())?, reference),
    };
    match reference.trim() {
        "mean" => Ok(scale * mean(importances)),
        "median" => Ok(scale * median(importances)),
        _ => Err(wrong()),
    }
}

/// Whether scikit-learn takes the model for one with an L1 penalty.
fn is_sparse(model: &Estimator) -> Result<bool> {
    if model.text("penalty")? == "l1" || model.class().contains("Lasso") {
        return Ok(true);
    }
    Ok(match model.class() {
        "ElasticNet" => is_one(model, "l1_ratio"),
        "ElasticNetCV" => is_one(model, "l1_ratio_"),
        "LogisticRegression" => is_one(model, "l1_ratio") && !model.is_older_than(1, 8),
        _ => false,
    })
}

fn is_one(model: &Estimator, name: &str) -> bool {
    model.find(&[name]).and_then(|value| value.float()) == Some(1.0)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let high = sorted.get(middle).copied().unwrap_or(f64::NAN);
    if sorted.len() % 2 == 1 {
        return high;
    }
    let low = sorted.get(middle.saturating_sub(1)).copied().unwrap_or(f64::NAN);
    f64::midpoint(low, high)
}
