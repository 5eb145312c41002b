//! Estimators of XGBoost and LightGBM that are steps of pipelines, or members of ensembles. The models in
//! them are read and evaluated by the platforms of these libraries.

use super::estimator::Estimator;
use super::model::Predictor;
#[cfg(not(all(feature = "lightgbm", feature = "xgboost")))]
use crate::refusal;
use tensorserve_tensor::error::{Error, Result};

#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
use super::accepted::AcceptedValues;
#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
use super::estimator::ClassLabels;
#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
use super::model::{ClassScores, Classifier, Decisions, FeatureRows, Regressor, StepFacts};
#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
use super::numeric::argmax;
#[cfg(feature = "lightgbm")]
use crate::lightgbm::estimator::LightgbmEstimator;
#[cfg(feature = "xgboost")]
use crate::xgboost::estimator::XgboostEstimator;

/// Reads an estimator of another library; `None` if it is one of scikit-learn, or of an unknown library.
pub(super) fn read(estimator: &Estimator) -> Option<Result<Predictor>> {
    let library = estimator.class().split('.').next().unwrap_or_default();
    match library {
        #[cfg(feature = "xgboost")]
        "xgboost" => Some(xgboost(estimator)),
        #[cfg(feature = "lightgbm")]
        "lightgbm" => Some(lightgbm(estimator)),
        #[cfg(not(feature = "xgboost"))]
        "xgboost" => Some(Err(without_library(estimator))),
        #[cfg(not(feature = "lightgbm"))]
        "lightgbm" => Some(Err(without_library(estimator))),
        _ => None,
    }
}

#[cfg(not(all(feature = "lightgbm", feature = "xgboost")))]
/// The error for an estimator whose library this server is built without.
fn without_library(estimator: &Estimator) -> Error {
    let class = estimator.class();
    let library = class.split('.').next().unwrap_or_default();
    let message = format!(
        "{class}: this server was built without the platform {library}, which evaluates this part of the \
         model; build it with the feature {library:?}"
    );
    refusal::unsupported(message)
}

/// A booster of one of the libraries.
#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
enum Booster {
    #[cfg(feature = "xgboost")]
    Xgboost(XgboostEstimator),
    #[cfg(feature = "lightgbm")]
    Lightgbm(LightgbmEstimator),
}

#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
impl Booster {
    fn features(&self) -> usize {
        match self {
            #[cfg(feature = "xgboost")]
            Booster::Xgboost(model) => model.features(),
            #[cfg(feature = "lightgbm")]
            Booster::Lightgbm(model) => model.features(),
        }
    }

    /// The numbers of a prediction.
    fn outputs(&self) -> usize {
        match self {
            #[cfg(feature = "xgboost")]
            Booster::Xgboost(model) => model.outputs(),
            #[cfg(feature = "lightgbm")]
            Booster::Lightgbm(model) => model.outputs(),
        }
    }

    /// Predictions in double; those of XGBoost are in single precision.
    fn predict(&self, rows: FeatureRows) -> Vec<f64> {
        match self {
            #[cfg(feature = "xgboost")]
            Booster::Xgboost(model) => {
                let absent = rows.zeros_are_absent;
                let single = |x: &f64| if absent && *x == 0.0 { f32::NAN } else { *x as f32 };
                let values: Vec<f32> = rows.values.iter().map(single).collect();
                let mut out = Vec::with_capacity(rows.len() * model.outputs());
                model.predict(&values, &mut out);
                out.into_iter().map(f64::from).collect()
            }
            #[cfg(feature = "lightgbm")]
            Booster::Lightgbm(model) => model.predict(rows.values),
        }
    }

    /// The sums before the transform of the objective, which only LightGBM's classifiers offer.
    fn sums(&self, rows: FeatureRows) -> Result<Vec<f64>> {
        match self {
            #[cfg(feature = "xgboost")]
            Booster::Xgboost(_) => {
                let _ = rows;
                Err(Error::internal("a classifier of XGBoost was asked for its decision function"))
            }
            #[cfg(feature = "lightgbm")]
            Booster::Lightgbm(model) => Ok(model.sums(rows.values)),
        }
    }

    /// The probability of the first of two classes, given that of the second.
    fn complement(&self, second: f64) -> f64 {
        match self {
            #[cfg(feature = "xgboost")]
            Booster::Xgboost(_) => f64::from(1.0 - second as f32),
            #[cfg(feature = "lightgbm")]
            Booster::Lightgbm(_) => 1.0 - second,
        }
    }
}

/// A regressor or a ranker.
#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
struct BoosterRegressor(Booster);

#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
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

#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
struct BoosterClassifier {
    booster: Booster,
    classes: usize,
    /// Whether its library offers `decision_function`.
    decides: bool,
}

#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
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
#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
fn check_classes(estimator: &Estimator, booster: &Booster, classes: usize) -> Result<()> {
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
#[cfg(any(feature = "lightgbm", feature = "xgboost"))]
fn classifier(estimator: &Estimator, booster: Booster, labels: ClassLabels) -> Result<Predictor> {
    let classes = labels.len();
    check_classes(estimator, &booster, classes)?;
    // LightGBM does since 4.7, whose classifiers also record whether they know the names of features.
    let is_lightgbm = estimator.class().starts_with("lightgbm.");
    let decides = is_lightgbm && estimator.find(&["_fitted_with_feature_names"]).is_some();
    let model = BoosterClassifier { booster, classes, decides };
    Ok(Predictor::classifier(model, labels, ClassScores::Probabilities))
}

/// Reads an estimator of XGBoost.
#[cfg(feature = "xgboost")]
fn xgboost(estimator: &Estimator) -> Result<Predictor> {
    let class = estimator.class();
    let model = XgboostEstimator::read(estimator.value).map_err(|error| error.context(class))?;
    let booster = Booster::Xgboost(model);
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
#[cfg(feature = "lightgbm")]
fn lightgbm(estimator: &Estimator) -> Result<Predictor> {
    let class = estimator.class();
    let model = LightgbmEstimator::read(estimator.value).map_err(|error| error.context(class))?;
    let labels = model.labels().cloned();
    let booster = Booster::Lightgbm(model);
    match labels {
        Some(labels) => classifier(estimator, booster, labels),
        None if class.ends_with("Classifier") => {
            Err(estimator.unsupported("a classifier with an objective that is not of classes"))
        }
        None => Ok(Predictor::regressor(BoosterRegressor(booster))),
    }
}
