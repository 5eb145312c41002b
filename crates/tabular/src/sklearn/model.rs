//! A compiled model: steps that make a matrix of another, and what predicts at the end.

use super::estimator::Labels;
use tensorserve_tensor::error::{Error, Result};

/// Rows of numbers.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) values: &'a [f64],
    /// At least 1.
    pub(super) columns: usize,
    /// Which row of a request the first is.
    pub(super) first: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn len(self) -> usize {
        self.values.len().checked_div(self.columns).unwrap_or(0)
    }

    pub(super) fn iter(self) -> std::slice::ChunksExact<'a, f64> {
        self.values.chunks_exact(self.columns.max(1))
    }
}

/// Which numbers that are none an estimator takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Takes {
    /// No NaN and no infinity.
    Finite,
    /// As [`Takes::Finite`], and no number that 32 bits can not hold.
    Finite32,
    /// NaN, which says that a value is missing; no infinity.
    Missing,
    /// As [`Takes::Missing`], and no number that 32 bits can not hold.
    Missing32,
    Anything,
}

/// Makes other columns of columns.
pub(super) trait Transform: Send + Sync {
    /// Columns it takes.
    fn input(&self) -> usize;
    /// Columns it makes.
    fn output(&self) -> usize;
    fn takes(&self) -> Takes {
        Takes::Finite
    }
    /// Whether it refuses some numbers beyond what [`Transform::takes`] says.
    fn refuses(&self) -> bool {
        false
    }
    /// Writes the new columns of each row.
    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()>;
}

/// Predicts numbers.
pub(super) trait Regress: Send + Sync {
    fn features(&self) -> usize;
    /// The numbers for each row; `None` for a single one that is no column.
    fn outputs(&self) -> Option<usize> {
        None
    }
    fn takes(&self) -> Takes {
        Takes::Finite
    }
    fn predict(&self, rows: Rows, out: &mut [f64]);
}

/// Predicts classes.
pub(super) trait Classify: Send + Sync {
    fn features(&self) -> usize;
    fn takes(&self) -> Takes {
        Takes::Finite
    }
    /// Writes the number of each row's class, and what it gives for each class of each row.
    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]);
}

/// What a classifier gives for each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gives {
    /// Nothing that scikit-learn shows.
    Classes,
    Probabilities,
    /// Probabilities, of which scikit-learn shows the logarithms, too; those of 0 as -infinity.
    ProbabilitiesAndLogs,
    /// As before, but the logarithm of 0 as that of the smallest normal number.
    ProbabilitiesAndFlooredLogs,
    /// Logarithms of probabilities.
    Logs,
}

impl Gives {
    /// Whether scikit-learn shows logarithms.
    pub(super) fn logs(self) -> bool {
        !matches!(self, Gives::Classes | Gives::Probabilities)
    }
}

/// What predicts at the end of a model.
pub(super) enum Predictor {
    Regressor(Box<dyn Regress>),
    Classifier(Classifier),
}

pub(super) struct Classifier {
    pub(super) model: Box<dyn Classify>,
    pub(super) labels: Labels,
    pub(super) gives: Gives,
}

impl Predictor {
    pub(super) fn regressor(model: impl Regress + 'static) -> Self {
        Predictor::Regressor(Box::new(model))
    }

    pub(super) fn classifier(model: impl Classify + 'static, labels: Labels, gives: Gives) -> Self {
        Predictor::Classifier(Classifier { model: Box::new(model), labels, gives })
    }

    pub(super) fn features(&self) -> usize {
        match self {
            Predictor::Regressor(model) => model.features(),
            Predictor::Classifier(classifier) => classifier.model.features(),
        }
    }

    pub(super) fn takes(&self) -> Takes {
        match self {
            Predictor::Regressor(model) => model.takes(),
            Predictor::Classifier(classifier) => classifier.model.takes(),
        }
    }
}

/// A whole model.
pub(super) struct Model {
    pub(super) steps: Vec<Box<dyn Transform>>,
    pub(super) predictor: Predictor,
}

/// What a model made of some rows.
pub(super) enum Outcome {
    Numbers(Vec<f64>),
    Classes {
        /// The number of each row's class.
        classes: Vec<usize>,
        /// For each class of each row.
        scores: Vec<f64>,
    },
}

impl Model {
    /// Columns of its input.
    pub(super) fn features(&self) -> usize {
        self.steps.first().map_or_else(|| self.predictor.features(), |step| step.input())
    }

    /// What its first step takes.
    pub(super) fn takes(&self) -> Takes {
        self.steps.first().map_or_else(|| self.predictor.takes(), |step| step.takes())
    }

    /// Runs every step on all rows at once; on many rows, on some at once, so that what steps make
    /// of them stays small.
    pub(super) fn run(&self, rows: Rows) -> Result<Outcome> {
        let size = self.rows_at_once();
        let mut parts = rows.values.chunks(size * rows.columns).enumerate();
        let run = |(number, values): (usize, _)| {
            self.go(Rows { values, first: number * size, ..rows }, check)
        };
        let mut all = match parts.next() {
            Some(first) => run(first)?,
            None => self.go(rows, check)?,
        };
        for part in parts {
            match (&mut all, run(part)?) {
                (Outcome::Numbers(all), Outcome::Numbers(more)) => all.extend(more),
                (
                    Outcome::Classes { classes, scores },
                    Outcome::Classes { classes: c, scores: s },
                ) => {
                    classes.extend(c);
                    scores.extend(s);
                }
                _ => return Err(Error::internal("a model has made two kinds of outputs")),
            }
        }
        Ok(all)
    }

    fn rows_at_once(&self) -> usize {
        const NUMBERS: usize = 1 << 17;
        let widest = self.steps.iter().map(|step| step.output()).max().unwrap_or(0);
        (NUMBERS / widest.max(self.features()).max(1)).max(1)
    }

    /// As [`Model::run`], without looking for numbers that are none.
    pub(super) fn evaluate(&self, rows: Rows) -> Outcome {
        let outcome = self.go(rows, |_, _| Ok(()));
        outcome.unwrap_or_else(|_| Outcome::Numbers(Vec::new()))
    }

    fn go(&self, rows: Rows, check: fn(Rows, Takes) -> Result<()>) -> Result<Outcome> {
        let made = through(&self.steps, rows, check)?;
        let rows = match (&made, self.steps.last()) {
            (Some(made), Some(last)) => Rows { values: made, columns: last.output(), ..rows },
            _ => rows,
        };
        check(rows, self.predictor.takes())?;
        Ok(self.predictor.run(rows))
    }
}

/// What `steps` make of `rows`; `None` without a step.
pub(super) fn through(
    steps: &[Box<dyn Transform>],
    rows: Rows,
    check: fn(Rows, Takes) -> Result<()>,
) -> Result<Option<Vec<f64>>> {
    let count = rows.len();
    let (mut this, mut next) = (Vec::new(), Vec::new());
    let mut columns = rows.columns;
    for (number, step) in steps.iter().enumerate() {
        let from = if number == 0 { rows.values } else { &this };
        let rows = Rows { values: from, columns, ..rows };
        check(rows, step.takes())?;
        columns = step.output();
        next.clear();
        next.resize(count * columns, 0.0);
        step.apply(rows, &mut next)?;
        std::mem::swap(&mut this, &mut next);
    }
    Ok((!steps.is_empty()).then_some(this))
}

impl Predictor {
    fn run(&self, rows: Rows) -> Outcome {
        let count = rows.len();
        match self {
            Predictor::Regressor(model) => {
                let mut out = vec![0.0; count * model.outputs().unwrap_or(1)];
                model.predict(rows, &mut out);
                Outcome::Numbers(out)
            }
            Predictor::Classifier(Classifier { model, labels, .. }) => {
                let mut classes = vec![0; count];
                let mut scores = vec![0.0; count * labels.len()];
                model.classify(rows, &mut classes, &mut scores);
                Outcome::Classes { classes, scores }
            }
        }
    }
}

/// Refuses what scikit-learn refuses.
pub(super) fn check(rows: Rows, takes: Takes) -> Result<()> {
    // What is finite in all is finite in each.
    let narrow = matches!(takes, Takes::Finite32 | Takes::Missing32);
    let sum: f64 = rows.values.iter().map(|value| value.abs()).sum();
    if takes == Takes::Anything || sum <= f64::from(f32::MAX) || (sum.is_finite() && !narrow) {
        return Ok(());
    }
    let missing = matches!(takes, Takes::Missing | Takes::Missing32);
    let bad = |value: f64| match value {
        value if value.is_nan() => !missing,
        value if narrow => (value as f32).is_infinite(),
        value => value.is_infinite(),
    };
    let Some(index) = rows.values.iter().position(|value| bad(*value)) else {
        return Ok(());
    };
    let value = rows.values.get(index).copied().unwrap_or(f64::NAN);
    let (row, column) = (rows.first + index / rows.columns, index % rows.columns);
    let what = match value {
        value if value.is_nan() => "no number (NaN)",
        value if value.is_infinite() => "infinite",
        _ => "too large for 32 bits",
    };
    let takes = if missing { "finite numbers and NaN" } else { "finite numbers" };
    Err(Error::invalid(format!(
        "input data: the value in column {column} of row {row} is {what}, or becomes so on the \
         way; this model takes {takes}"
    )))
}

/// The place of the largest of `scores`; of the first, if several are. NaN counts as the largest,
/// as NumPy has it.
pub(super) fn largest(scores: &[f64]) -> usize {
    let mut best = 0;
    let mut most = f64::NEG_INFINITY;
    for (place, score) in scores.iter().enumerate() {
        if score.is_nan() {
            return place;
        }
        if *score > most {
            (best, most) = (place, *score);
        }
    }
    best
}

/// Turns logarithms of shares into shares that sum up to 1.
pub(super) fn softmax(scores: &mut [f64]) {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for score in &mut *scores {
        *score = (*score - most).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// Turns logarithms of shares into logarithms of shares that sum up to 1.
pub(super) fn log_softmax(scores: &mut [f64]) {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let offset = if most.is_finite() { most } else { 0.0 };
    let sum: f64 = scores.iter().map(|score| (*score - offset).exp()).sum();
    let log = offset + sum.ln();
    scores.iter_mut().for_each(|score| *score -= log);
}

/// The logistic function.
pub(super) fn logistic(x: f64) -> f64 {
    match x >= 0.0 {
        true => 1.0 / (1.0 + (-x).exp()),
        false => {
            let e = x.exp();
            e / (1.0 + e)
        }
    }
}

/// The sum of the products, in four sums that a machine adds up side by side.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (left, left_rest) = a.as_chunks::<4>();
    let (right, right_rest) = b.as_chunks::<4>();
    let mut sums = [0.0; 4];
    for (a, b) in left.iter().zip(right) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    let rest: f64 = left_rest.iter().zip(right_rest).map(|(a, b)| a * b).sum();
    let [s0, s1, s2, s3] = sums;
    (s0 + s1) + (s2 + s3) + rest
}
