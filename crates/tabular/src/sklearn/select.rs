//! Transformers that keep some of the columns.

use super::estimator::Estimator;
use super::model::{Rows, Takes, Transform};
use tensorserve_tensor::error::Result;

/// Some of the columns.
pub(super) struct Columns {
    from: usize,
    kept: Vec<usize>,
}

impl Transform for Columns {
    fn input(&self) -> usize {
        self.from
    }

    fn output(&self) -> usize {
        self.kept.len()
    }

    fn takes(&self) -> Takes {
        Takes::Missing
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.kept.len().max(1))) {
            for (to, column) in to.iter_mut().zip(&self.kept) {
                *to = row.get(*column).copied().unwrap_or(f64::NAN);
            }
        }
        Ok(())
    }
}

fn selected(of: &Estimator, mask: &[bool]) -> Result<Columns> {
    let kept: Vec<usize> =
        mask.iter().enumerate().filter(|(_, kept)| **kept).map(|(column, _)| column).collect();
    if kept.is_empty() {
        return Err(of.unsupported("a selection of no column"));
    }
    Ok(Columns { from: mask.len(), kept })
}

/// Scores, with the lowest number in place of NaN.
fn scores(of: &Estimator) -> Result<Vec<f64>> {
    let scores = of.vector(&["scores_"])?;
    Ok(scores.into_iter().map(|score| if score.is_nan() { f64::MIN } else { score }).collect())
}

/// The `k` best; of equals, those further right.
fn select_k_best(of: &Estimator) -> Result<Columns> {
    let scores = scores(of)?;
    if of.attribute(&["k"])?.text() == Some("all") {
        return selected(of, &vec![true; scores.len()]);
    }
    let k = of.count(&["k"])?;
    let mut order: Vec<(f64, usize)> = scores.iter().copied().zip(0..).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut mask = vec![false; scores.len()];
    for (_, column) in order.into_iter().rev().take(k) {
        if let Some(kept) = mask.get_mut(column) {
            *kept = true;
        }
    }
    selected(of, &mask)
}

/// Those above a percentile, and as many as there is room for of those that equal it.
fn select_percentile(of: &Estimator) -> Result<Columns> {
    let scores = scores(of)?;
    let percentile = of.number(&["percentile"])?;
    if !(0.0..=100.0).contains(&percentile) || scores.is_empty() {
        return Err(of.fault("its percentile is none"));
    }
    if percentile == 100.0 {
        return selected(of, &vec![true; scores.len()]);
    }
    let mut sorted = scores.clone();
    sorted.sort_by(f64::total_cmp);
    let place = (100.0 - percentile) / 100.0 * (sorted.len() - 1) as f64;
    let below = place.floor();
    let at = |place: f64| sorted.get(place as usize).or(sorted.last()).copied().unwrap_or(0.0);
    let (low, high, part) = (at(below), at(below + 1.0), place - below);
    // As NumPy does it, so that equal scores give themselves.
    let threshold = match part < 0.5 {
        true => low + (high - low) * part,
        false => high - (high - low) * (1.0 - part),
    };
    let mut mask: Vec<bool> = scores.iter().map(|score| *score > threshold).collect();
    let room = (scores.len() as f64 * percentile / 100.0) as usize;
    let mut left = room.saturating_sub(mask.iter().filter(|kept| **kept).count());
    for (kept, score) in mask.iter_mut().zip(&scores) {
        if *score == threshold && left > 0 {
            *kept = true;
            left -= 1;
        }
    }
    selected(of, &mask)
}

/// By the probability that a column says nothing.
fn select_by_p(of: &Estimator) -> Result<Columns> {
    let values = of.vector(&["pvalues_"])?;
    let alpha = of.number(&["alpha"])?;
    let count = values.len() as f64;
    let mask: Vec<bool> = match of.class() {
        "SelectFpr" => values.iter().map(|p| *p < alpha).collect(),
        "SelectFwe" => values.iter().map(|p| *p < alpha / count).collect(),
        _ => {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let ranks = (1..).map(|rank: u32| alpha / count * f64::from(rank));
            let below = sorted.iter().zip(ranks).filter(|(p, most)| **p <= *most);
            let most = below.map(|(p, _)| *p).reduce(f64::max);
            values.iter().map(|p| most.is_some_and(|most| *p <= most)).collect()
        }
    };
    selected(of, &mask)
}

fn variance_threshold(of: &Estimator) -> Result<Columns> {
    let variances = of.vector(&["variances_"])?;
    let threshold = of.number(&["threshold"])?;
    let mask: Vec<bool> = variances.iter().map(|variance| *variance > threshold).collect();
    selected(of, &mask)
}

fn supported(of: &Estimator) -> Result<Columns> {
    let mask: Vec<bool> = of.vector(&["support_"])?.into_iter().map(|kept| kept != 0.0).collect();
    selected(of, &mask)
}

/// Those that a model finds important, by its coefficients.
fn from_model(of: &Estimator) -> Result<Columns> {
    let model = of.child(of.attribute(&["estimator_", "estimator"])?)?;
    let is_plain = matches!(of.text("importance_getter")?, "" | "auto" | "coef_");
    let order = of.find(&["norm_order"]).and_then(|order| order.int()).unwrap_or(1);
    if model.find(&["coef_"]).is_none() || !is_plain || order != 1 {
        return Err(of.unsupported("a selection by anything but the coefficients of a model"));
    }
    let coefficients = model.matrix(&["coef_"])?;
    let mut importances = vec![0.0; coefficients.columns];
    for row in coefficients.iter() {
        importances.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.abs());
    }
    let threshold = threshold(of, &model, &importances)?;
    let mut mask: Vec<bool> = importances.iter().map(|value| *value >= threshold).collect();
    if of.find(&["max_features"]).is_some() {
        let most = of.count(&["max_features_", "max_features"])?;
        let mut order: Vec<(f64, usize)> = importances.iter().copied().zip(0..).collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, column) in order.into_iter().skip(most) {
            if let Some(kept) = mask.get_mut(column) {
                *kept = false;
            }
        }
    }
    selected(of, &mask)
}

/// How important a column must be: a number, or a part of the mean or the median.
fn threshold(of: &Estimator, model: &Estimator, importances: &[f64]) -> Result<f64> {
    let Some(set) = of.find(&["threshold"]) else {
        let has_ratio = |ratio: &str| {
            model.find(&[ratio]).and_then(|ratio| ratio.float()).is_some_and(|r| r == 1.0)
        };
        let is_sparse = model.text("penalty")? == "l1"
            || model.class().contains("Lasso")
            || (model.class() == "ElasticNet" && has_ratio("l1_ratio"))
            || (model.class() == "ElasticNetCV" && has_ratio("l1_ratio_"))
            || (model.class() == "LogisticRegression"
                && has_ratio("l1_ratio")
                && !model.is_older_than(1, 8));
        return Ok(if is_sparse { 1e-5 } else { mean(importances) });
    };
    if let Some(number) = set.float() {
        return Ok(number);
    }
    let wrong = || of.fault("its threshold is neither a number nor of the mean or median");
    let text = set.text().ok_or_else(wrong)?;
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

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => at(middle),
        _ => f64::midpoint(at(middle.saturating_sub(1)), at(middle)),
    }
}

/// The selection `of`, if it is one.
pub(super) fn read(of: &Estimator) -> Result<Option<Columns>> {
    Ok(Some(match of.class() {
        "SelectKBest" => select_k_best(of)?,
        "SelectPercentile" => select_percentile(of)?,
        "SelectFpr" | "SelectFdr" | "SelectFwe" => select_by_p(of)?,
        "VarianceThreshold" => variance_threshold(of)?,
        "RFE" | "RFECV" | "SequentialFeatureSelector" => supported(of)?,
        "SelectFromModel" => from_model(of)?,
        _ => return Ok(None),
    }))
}
