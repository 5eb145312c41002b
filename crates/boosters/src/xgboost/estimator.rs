//! Estimators of XGBoost that are steps of scikit-learn's pipelines, or members of its ensembles.

use super::model::XgboostModel;
use super::pickle;
use tensorserve_pickle::PickleValue;
use tensorserve_tensor::error::Result;

/// A fitted `XGBClassifier`, `XGBRegressor`, `XGBRanker`, or another of XGBoost's wrappers.
pub struct XgboostEstimator(XgboostModel);

impl XgboostEstimator {
    /// Reads a pickled wrapper, whose predictions stop at the best round.
    pub fn read(value: PickleValue) -> Result<Self> {
        pickle::read_value(value).map(XgboostEstimator)
    }

    /// The number of values of a row.
    pub fn features(&self) -> usize {
        self.0.features
    }

    /// How many numbers the prediction of a row has: 1 for two classes, else one for each class.
    pub fn outputs(&self) -> usize {
        self.0.width()
    }

    /// Appends the predictions for `rows` to `out`.
    pub fn predict(&self, rows: &[f32], out: &mut Vec<f32>) {
        self.0.predict(rows, |numbers| out.extend_from_slice(numbers));
    }
}
