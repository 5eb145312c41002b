//! `DummyClassifier` and `DummyRegressor`, which ignore the features.

use super::accepted::AcceptedValues;
use super::estimator::Estimator;
use super::model::{ClassScores, Classifier, FeatureRows, Predictor, Regressor, StepFacts};
use super::numeric::{argmax, indicator};
use tensorserve_tensor::error::Result;

/// Always makes the same prediction.
struct ConstantPredictor {
    features: usize,
    /// The index of the class; not used for numbers.
    class: usize,
    /// The scores of the classes, or the numbers.
    values: Vec<f64>,
}

impl Classifier for ConstantPredictor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).accepting(AcceptedValues::Any)
    }

    fn classify(&self, _: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        classes.fill(self.class);
        let scores = scores.chunks_exact_mut(self.values.len());
        scores.for_each(|scores| scores.copy_from_slice(&self.values));
        Ok(())
    }
}

impl Regressor for ConstantPredictor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).accepting(AcceptedValues::Any)
    }

    fn outputs(&self) -> Option<usize> {
        Some(self.values.len()).filter(|width| *width > 1)
    }

    fn predict(&self, _: FeatureRows, out: &mut [f64]) -> Result<()> {
        let rows = out.chunks_exact_mut(self.values.len());
        rows.for_each(|row| row.copy_from_slice(&self.values));
        Ok(())
    }
}

fn count_features(estimator: &Estimator) -> Result<usize> {
    estimator
        .features()
        .ok_or_else(|| estimator.unsupported("one that does not record its number of features"))
}

/// Reads a `DummyClassifier`.
pub(super) fn classifier(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let priors = estimator.vector_of_len(&["class_prior_"], labels.len())?;
    let (class, values) = match estimator.text("strategy")? {
        "prior" => (argmax(&priors), priors),
        "most_frequent" => {
            let class = argmax(&priors);
            (class, one_hot(class, priors.len()))
        }
        "constant" => {
            let class = labels.index_of(estimator.attribute(&["constant"])?);
            let class =
                class.ok_or_else(|| estimator.damaged("constant is not one of classes_"))?;
            (class, one_hot(class, priors.len()))
        }
        other => {
            return Err(estimator.unsupported(format_args!("the random strategy {other:?}")));
        }
    };
    let model = ConstantPredictor { features: count_features(estimator)?, class, values };
    Ok(Predictor::classifier(model, labels, ClassScores::ProbabilitiesAndLogs))
}

/// 1 for `class`, 0 for the other classes.
fn one_hot(class: usize, classes: usize) -> Vec<f64> {
    (0..classes).map(|number| indicator(number == class)).collect()
}

/// Reads a `DummyRegressor`.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    let values = estimator.vector(&["constant_"])?;
    if values.is_empty() {
        return Err(estimator.damaged("constant_ is empty"));
    }
    let features = count_features(estimator)?;
    Ok(Predictor::regressor(ConstantPredictor { features, class: 0, values }))
}
