//! Generalized linear models.
//!
//! Source: `GlmMojoModel`, `GlmMultinomialMojoModel` and `GlmOrdinalMojoModel` of h2o-genmodel 3.46.0.6.

use super::head::{MojoHead, MojoScorer};
use super::info::MojoInfo;
use super::link::linear_mean;
use super::numeric::{float, java_int};
use tensorserve_tabular::numeric::{Link, exponentials, logistic};
use tensorserve_tensor::error::{Error, Result};

/// A generalized linear model. The columns of levels come first, then those of numbers.
pub(super) struct LinearModel {
    columns: usize,
    /// For each column of levels where its coefficients start, and one more: their end.
    starts: Vec<usize>,
    numbers: usize,
    /// Whether the first level of a column has a coefficient.
    has_first_level: bool,
    /// What stands for missing values, if they are replaced: a level or a number for each column.
    replacements: Vec<f64>,
    /// Of one class after the other: those of levels, of numbers, and the intercept.
    coefficients: Vec<f64>,
    response: GlmResponse,
}

enum GlmResponse {
    Number(Link),
    /// The probability of the second of two classes, and from which one it is predicted.
    Pair(Link, f64),
    Classes,
    /// Classes in an order; each but the last has coefficients.
    Ordinal,
}

fn read_link(info: &MojoInfo) -> Result<Link> {
    match info.required("link")? {
        "identity" => Ok(Link::Identity),
        "logit" => Ok(Link::Logit),
        "log" => Ok(Link::Log),
        "inverse" => Ok(Link::Inverse),
        "tweedie" => Ok(Link::Power(info.number_or("tweedie_link_power", 0.0)?)),
        other => Err(Error::unsupported(format!("the link function {other:?} is not supported"))),
    }
}

impl LinearModel {
    /// Reads the model.
    pub(super) fn read(head: &MojoHead) -> Result<Self> {
        let info = &head.info;
        let interactions = ["interactions", "interaction_pairs"];
        if let Some(key) = interactions.into_iter().find(|key| info.text(key).is_some()) {
            return Err(Error::unsupported(format!(
                "a generalized linear model with interactions ({key}) is not supported: add the \
                 products as columns, and train it again"
            )));
        }
        let family = info.required("family")?;
        let response = match (family, head.classes) {
            ("multinomial", classes) if classes > 1 => GlmResponse::Classes,
            ("ordinal", classes) if classes > 1 => GlmResponse::Ordinal,
            ("binomial" | "fractionalbinomial" | "quasibinomial", _) => {
                GlmResponse::Pair(read_link(info)?, info.number_or("default_threshold", 0.5)?)
            }
            (_, 1) => GlmResponse::Number(read_link(info)?),
            (family, classes) => {
                return Err(Error::damaged(format!(
                    "the family {family} does not fit {classes} classes"
                )));
            }
        };
        let (starts, numbers) = info.level_starts(head.features)?;
        let model = LinearModel {
            columns: head.features,
            starts,
            numbers,
            has_first_level: info.flag_or("use_all_factor_levels", false)?,
            replacements: Vec::new(),
            coefficients: info.numbers("beta")?,
            response,
        };
        model.check(head.classes)?;
        if info.flag_or("mean_imputation", false)? {
            model.with_replacements(info)
        } else {
            Ok(model)
        }
    }

    fn check(&self, classes: usize) -> Result<()> {
        let lists = match self.response {
            GlmResponse::Classes | GlmResponse::Ordinal => classes,
            GlmResponse::Number(_) | GlmResponse::Pair(..) => 1,
        };
        let (has, needs) = (self.coefficients.len(), lists.saturating_mul(self.per_class()));
        if has != needs {
            return Err(Error::damaged(format!(
                "model.ini: beta has {has} numbers, and needs {needs}"
            )));
        }
        Ok(())
    }

    fn with_replacements(mut self, info: &MojoInfo) -> Result<Self> {
        let (modes, means) = (info.integers("cat_modes")?, info.numbers("num_means")?);
        let levels = self.levels();
        if modes.len() < levels || means.len() < self.numbers {
            return Err(Error::damaged("model.ini: cat_modes or num_means is too short"));
        }
        let modes = modes.into_iter().take(levels).map(f64::from);
        self.replacements = modes.chain(means.into_iter().take(self.numbers)).collect();
        Ok(self)
    }

    /// The number of columns of levels.
    fn levels(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// The number of coefficients of levels.
    fn level_coefficients(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The number of coefficients of a class.
    fn per_class(&self) -> usize {
        self.level_coefficients().saturating_add(self.numbers).saturating_add(1)
    }

    /// The sum of a row with the coefficients of a class.
    fn sum(&self, coefficients: &[f64], row: &[f64]) -> f64 {
        let (levels, numbers) = row.split_at_checked(self.levels()).unwrap_or_default();
        let mut sum = 0.0;
        for (x, bounds) in levels.iter().zip(self.starts.windows(2)) {
            let &[start, end] = bounds else { continue };
            if x.is_nan() {
                // A level is missing and has no replacement: H2O does not predict either.
                return f64::NAN;
            }
            let level = i64::from(java_int(*x)) - i64::from(!self.has_first_level);
            let Ok(level) = usize::try_from(level) else { continue };
            if let Some(index) = start.checked_add(level).filter(|index| *index < end) {
                sum += coefficients.get(index).copied().unwrap_or(0.0);
            }
        }
        let rest = coefficients.get(self.level_coefficients()..).unwrap_or_default();
        let Some((intercept, weights)) = rest.split_last() else { return f64::NAN };
        for (weight, x) in weights.iter().zip(numbers) {
            sum += weight * x;
        }
        sum + intercept
    }

    fn predict(&self, row: &[f64], offset: f64, prediction: &mut [f64]) {
        let lists = self.coefficients.chunks_exact(self.per_class());
        match self.response {
            GlmResponse::Number(link) => {
                prediction.fill(linear_mean(link, self.sum(&self.coefficients, row) + offset));
            }
            GlmResponse::Pair(link, threshold) => {
                let second = linear_mean(link, self.sum(&self.coefficients, row) + offset);
                if let [class, first, other] = prediction {
                    *class = f64::from(u8::from(second >= threshold));
                    (*first, *other) = (1.0 - second, second);
                }
            }
            GlmResponse::Classes => {
                let Some((class, values)) = prediction.split_first_mut() else { return };
                for (value, coefficients) in values.iter_mut().zip(lists) {
                    *value = self.sum(coefficients, row);
                }
                *class = class_of(values);
            }
            GlmResponse::Ordinal => {
                let Some((class, values)) = prediction.split_first_mut() else { return };
                let Some((last, values)) = values.split_last_mut() else { return };
                let mut below = 0.0;
                for (value, coefficients) in values.iter_mut().zip(lists) {
                    let sum = self.sum(coefficients, row) + offset;
                    let up_to = logistic(sum);
                    *value = up_to - below;
                    below = up_to;
                }
                *last = 1.0 - below;
                // H2O compares the class, which is 0 so far, as if it were a probability.
                *class = 0.0;
                let mut best = (-1.0, 0.0);
                for (index, value) in values.iter().chain([&*last]).enumerate() {
                    if *value > best.1 {
                        best = (float(index), *value);
                    }
                }
                *class = best.0;
            }
        }
    }
}

/// Sums become probabilities, which H2O rounds in its own way; returns the index of the largest.
fn class_of(values: &mut [f64]) -> f64 {
    let largest =
        values.iter().fold(0.0, |largest, value| if *value > largest { *value } else { largest });
    let scale = 1.0 / exponentials(values, largest);
    let mut best = (0.0, 0.0);
    for (index, value) in values.iter_mut().enumerate() {
        *value *= scale;
        if *value > best.1 {
            best = (float(index), *value);
        }
    }
    best.0
}

impl MojoScorer for LinearModel {
    fn score(&self, rows: &mut [f64], offsets: &[f64], predictions: &mut [f64]) {
        let rows = rows.chunks_exact_mut(self.columns.max(1));
        let width = predictions.len() / rows.len().max(1);
        let predictions = predictions.chunks_exact_mut(width.max(1));
        for (index, (row, prediction)) in rows.zip(predictions).enumerate() {
            for (x, replacement) in row.iter_mut().zip(&self.replacements) {
                if x.is_nan() {
                    *x = *replacement;
                }
            }
            let offset = offsets.get(index).copied().unwrap_or(0.0);
            self.predict(row, offset, prediction);
        }
    }
}
