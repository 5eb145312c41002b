//! Estimators of XGBoost and LightGBM that are steps of pipelines, or members of ensembles. The models in
//! them are read and evaluated by the evaluators of these libraries.

use super::accepted::AcceptedValues;
use super::estimator::{ClassLabels, Estimator};
use super::model::{
    ClassScores, Classifier, Decisions, FeatureRows, Predictor, Regressor, StepFacts,
};
use super::numeric::argmax;
use tensorserve_boosters::lightgbm::estimator::LightgbmEstimator;
use tensorserve_boosters::xgboost::estimator::XgboostEstimator;
use tensorserve_tensor::error::{Error, Result};

/// Reads an estimator of another library; `None` if it is one of scikit-learn, or of an unknown library.
pub(super) fn read(estimator: &Estimator) -> Option<Result<Predictor>> {
    let library = estimator.class().split('.').next().unwrap_or_default();
    match library {
        "xgboost" => Some(xgboost(estimator)),
        "lightgbm" => Some(lightgbm(estimator)),
        _ => None,
    }
}

/// A booster of one of the libraries.
enum BoosterEstimator {
    Xgboost(XgboostEstimator),
    Lightgbm(LightgbmEstimator),
}

impl BoosterEstimator {
    fn features(&self) -> usize {
        match self {
            BoosterEstimator::Xgboost(model) => model.features(),
            BoosterEstimator::Lightgbm(model) => model.features(),
        }
    }

    /// The numbers of a prediction.
    fn outputs(&self) -> usize {
        match self {
            BoosterEstimator::Xgboost(model) => model.outputs(),
            BoosterEstimator::Lightgbm(model) => model.outputs(),
        }
    }

    /// Predictions in double; those of XGBoost are in single precision.
    fn predict(&self, rows: FeatureRows) -> Vec<f64> {
        match self {
            BoosterEstimator::Xgboost(model) => {
                let absent = rows.zeros_are_absent;
                let single = |x: &f64| if absent && *x == 0.0 { f32::NAN } else { *x as f32 };
                let values: Vec<f32> = rows.values.iter().map(single).collect();
                let mut out = Vec::with_capacity(rows.len() * model.outputs());
                model.predict(&values, &mut out);
                out.into_iter().map(f64::from).collect()
            }
            BoosterEstimator::Lightgbm(model) => model.predict(rows.values),
        }
    }

    /// The sums before the transform of the objective, which only LightGBM's classifiers offer.
    fn sums(&self, rows: FeatureRows) -> Result<Vec<f64>> {
        match self {
            BoosterEstimator::Xgboost(_) => {
                Err(Error::internal("a classifier of XGBoost was asked for its decision function"))
            }
            BoosterEstimator::Lightgbm(model) => Ok(model.sums(rows.values)),
        }
    }

    /// The probability of the first of two classes, given that of the second.
    fn complement(&self, second: f64) -> f64 {
        match self {
            BoosterEstimator::Xgboost(_) => f64::from(1.0 - second as f32),
            BoosterEstimator::Lightgbm(_) => 1.0 - second,
        }
    }
}

/// A regressor or a ranker.
struct BoosterRegressor(BoosterEstimator);

impl Regressor for BoosterRegressor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.0.features()).accepting(AcceptedValues::Any)
    }

    fn outputs(&self) -> Option<usize> {
        Some(self.0.outputs()).filter(|outputs| *outputs > 1)
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        out.iter_mut().zip(self.0.predict(rows)).for_each(|(out, number)| *out = number);
        Ok(())
    }
}

struct BoosterClassifier {
    booster: BoosterEstimator,
    classes: usize,
    /// Whether its library offers `decision_function`.
    decides: bool,
}

impl Classifier for BoosterClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.booster.features()).accepting(AcceptedValues::Any)
    }

    fn decisions(&self) -> Decisions {
        match self.decides {
            true => Decisions::Columns(self.booster.outputs()),
            false => Decisions::None,
        }
    }

    fn decide(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let sums = self.booster.sums(rows)?;
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum);
        Ok(())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let predictions = self.booster.predict(rows);
        if self.booster.outputs() > 1 {
            scores.iter_mut().zip(predictions).for_each(|(to, score)| *to = score);
        } else {
            for (scores, second) in scores.chunks_exact_mut(2).zip(predictions) {
                scores.copy_from_slice(&[self.booster.complement(second), second]);
            }
        }
        for (class, scores) in classes.iter_mut().zip(scores.chunks_exact(self.classes)) {
            *class = argmax(scores);
        }
        Ok(())
    }
}

/// Refuses a classifier of `classes` classes whose booster makes another kind of predictions.
fn check_classes(estimator: &Estimator, booster: &BoosterEstimator, classes: usize) -> Result<()> {
    let outputs = booster.outputs();
    match (outputs, classes) {
        (1, 2) => Ok(()),
        (2.., _) if outputs == classes => Ok(()),
        _ => Err(estimator.unsupported(format_args!(
            "a classifier of {classes} classes whose model predicts {outputs} numbers"
        ))),
    }
}

/// A classifier with these labels, whose booster has a number for each class, or one for two classes.
fn classifier(
    estimator: &Estimator,
    booster: BoosterEstimator,
    labels: ClassLabels,
) -> Result<Predictor> {
    let classes = labels.len();
    check_classes(estimator, &booster, classes)?;
    // LightGBM does since 4.7, whose classifiers also record whether they know the names of features.
    let is_lightgbm = estimator.class().starts_with("lightgbm.");
    let decides = is_lightgbm && estimator.find(&["_fitted_with_feature_names"]).is_some();
    let model = BoosterClassifier { booster, classes, decides };
    Ok(Predictor::classifier(model, labels, ClassScores::Probabilities))
}

/// Reads an estimator of XGBoost.
fn xgboost(estimator: &Estimator) -> Result<Predictor> {
    let class = estimator.class();
    let model = XgboostEstimator::read(estimator.value).map_err(|error| error.context(class))?;
    let booster = BoosterEstimator::Xgboost(model);
    if !class.ends_with("Classifier") {
        return Ok(Predictor::regressor(BoosterRegressor(booster)));
    }
    // Until 1.6 it encodes the labels; since then they are the numbers from 0.
    let labels = match estimator.find(&["_le"]) {
        Some(encoder) => estimator.child(encoder)?.labels()?,
        None => {
            let classes = estimator.count(&["n_classes_"])?;
            check_classes(estimator, &booster, classes)?;
            ClassLabels::range(classes)
        }
    };
    classifier(estimator, booster, labels)
}

/// Reads an estimator of LightGBM.
fn lightgbm(estimator: &Estimator) -> Result<Predictor> {
    let class = estimator.class();
    let model = LightgbmEstimator::read(estimator.value).map_err(|error| error.context(class))?;
    let labels = model.labels().cloned();
    let booster = BoosterEstimator::Lightgbm(model);
    match labels {
        Some(labels) => classifier(estimator, booster, labels),
        None if class.ends_with("Classifier") => {
            Err(estimator.unsupported("a classifier with an objective that is not of classes"))
        }
        None => Ok(Predictor::regressor(BoosterRegressor(booster))),
    }
}
