//! Estimators of LightGBM that are steps of scikit-learn's pipelines, or members of its ensembles.

use super::model::LightgbmModel;
use super::pickle;
use tensorserve_pickle::PickleValue;
use tensorserve_tabular::labels::ClassLabels;
use tensorserve_tensor::aligned_vec;
use tensorserve_tensor::error::{Error, Result};

/// A fitted `LGBMClassifier`, `LGBMRegressor` or `LGBMRanker`.
pub struct LightgbmEstimator(LightgbmModel);

impl LightgbmEstimator {
    /// Reads a pickled wrapper, whose predictions stop at the best iteration.
    pub fn read(value: PickleValue) -> Result<Self> {
        let booster = value.attribute("_Booster");
        let categories = booster.and_then(|booster| booster.attribute("pandas_categorical"));
        if categories.and_then(PickleValue::items).is_some_and(|columns| !columns.is_empty()) {
            return Err(Error::unsupported(
                "a LightGBM estimator that was fitted on a data frame with columns of the dtype \
                 category is not supported inside a scikit-learn model: encode them with \
                 OrdinalEncoder in the pipeline",
            ));
        }
        pickle::read_value(value).map(LightgbmEstimator)
    }

    /// The labels of a classifier.
    pub fn labels(&self) -> Option<&ClassLabels> {
        self.0.labels.as_ref()
    }

    /// The number of values of a row.
    pub fn features(&self) -> usize {
        self.0.features
    }

    /// How many numbers the prediction of a row has: 1 for two classes, else one for each class.
    pub fn outputs(&self) -> usize {
        self.0.outputs
    }

    /// The predictions for `rows` before the transform of the objective.
    pub fn sums(&self, rows: &[f64]) -> Vec<f64> {
        let mut result = aligned_vec(0);
        self.0.sum(rows, &mut result);
        result.to_vec()
    }

    /// The predictions for `rows`.
    pub fn predict(&self, rows: &[f64]) -> Vec<f64> {
        let mut result = aligned_vec(0);
        self.0.predict(rows, &mut result);
        result.to_vec()
    }
}
