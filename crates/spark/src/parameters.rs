//! The parameters of linear models.

use super::damaged;
use tensorserve_tensor::error::Result;

/// How the sums become a prediction.
#[derive(Debug)]
pub(super) enum PredictionRule {
    /// The only sum is the prediction.
    Regression,
    /// The prediction is 1 if the only sum is above the threshold, else 0.
    Threshold(f64),
    /// Logistic regression of two classes, with one sum.
    Binary(BinaryThreshold),
    /// Logistic regression with one sum for each class.
    Multinomial {
        /// What the probability of each class is divided by before they are compared; empty for 1.
        thresholds: Vec<f64>,
    },
    /// Logistic regression with one sum for each class but the first, whose sum is 0.
    Pivot,
}

/// When the second of two classes is predicted.
#[derive(Debug)]
pub(super) enum BinaryThreshold {
    /// If the sum is above this.
    Sum(f64),
    /// If its probability is above this.
    Probability(f64),
    /// The model has no threshold: the prediction is the probability itself.
    None,
}

/// The parameters of a model, as they are stored.
pub(super) struct LinearParameters {
    pub(super) features: usize,
    pub(super) coefficients: Vec<f64>,
    pub(super) intercepts: Vec<f64>,
    pub(super) rule: PredictionRule,
}

impl PredictionRule {
    /// The number of classes of a model with `sums` sums; 0 if it has no probabilities.
    pub(super) fn class_count(&self, sums: usize) -> usize {
        match self {
            PredictionRule::Regression | PredictionRule::Threshold(_) => 0,
            PredictionRule::Binary(_) => 2,
            PredictionRule::Multinomial { .. } => sums,
            PredictionRule::Pivot => sums + 1,
        }
    }

    /// Whether a model may have `sums` sums.
    fn allows(&self, sums: usize) -> bool {
        match self {
            PredictionRule::Regression
            | PredictionRule::Threshold(_)
            | PredictionRule::Binary(_) => sums == 1,
            PredictionRule::Multinomial { thresholds } => {
                sums > 1 && (thresholds.is_empty() || thresholds.len() == sums)
            }
            PredictionRule::Pivot => true,
        }
    }
}

impl LinearParameters {
    /// # Errors
    /// If the parameters are not as many as they should be.
    pub(super) fn check(&self) -> Result<()> {
        let (features, sums) = (self.features, self.intercepts.len());
        let have = self.coefficients.len();
        if features == 0 || sums == 0 || sums.checked_mul(features) != Some(have) {
            return Err(damaged(format!(
                "it has {have} coefficients for {features} features and {sums} intercepts"
            )));
        }
        match self.rule.allows(sums) {
            true => Ok(()),
            false => Err(damaged("the number of its sums is not that of its classes")),
        }
    }
}
