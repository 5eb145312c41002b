//! Linear models of Spark ML.

use super::super::classes::{ml_logistic_regression, single_sum};
use super::super::folder::StageFolder;
use super::super::numeric::{logistic, softmax};
use super::super::parameters::{BinaryThreshold, LinearParameters, PredictionRule};
use super::super::schema::Schema;
use super::super::stage::PipelineStage;
use super::super::table::VectorRow;
use super::predict::{ClassDecision, ClassModel, SparkClassifier, SparkRegressor, regression};
use tensorserve_tensor::error::{Error, Result};

/// One sum, or one for each class.
pub(in super::super) struct Sums {
    features: usize,
    /// The coefficients of one sum after the other.
    coefficients: Vec<f64>,
    intercepts: Vec<f64>,
}

impl Sums {
    fn write(&self, row: VectorRow<'_>, sums: &mut [f64]) {
        let rows = self.coefficients.chunks_exact(self.features.max(1));
        for ((sum, coefficients), intercept) in sums.iter_mut().zip(rows).zip(&self.intercepts) {
            *sum = row.dot(coefficients) + intercept;
        }
    }
}

impl SparkRegressor for Sums {
    fn predict(&self, row: VectorRow<'_>) -> f64 {
        let mut sums = [0.0];
        self.write(row, &mut sums);
        sums[0]
    }
}

/// Two classes, whose raw values are a sum and its opposite.
struct TwoClasses(Sums);

impl SparkClassifier for TwoClasses {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        let sum = self.0.predict(row);
        raw.copy_from_slice(&[-sum, sum]);
    }

    fn probabilities(&self, raw: &mut [f64]) {
        // The other one is what is left, as in Spark, and less exact when it is small.
        if let [first, second] = raw {
            *first = logistic(*first);
            *second = 1.0 - *first;
        }
    }
}

/// A sum for each class.
struct ManyClasses(Sums);

impl SparkClassifier for ManyClasses {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        self.0.write(row, raw);
    }

    fn probabilities(&self, raw: &mut [f64]) {
        softmax(raw);
    }
}

fn sums_of(parameters: LinearParameters) -> Result<(Sums, PredictionRule)> {
    parameters.check()?;
    let LinearParameters { features, coefficients, intercepts, rule } = parameters;
    Ok((Sums { features, coefficients, intercepts }, rule))
}

/// `LogisticRegressionModel` or `LinearSVCModel`.
pub(in super::super) fn class_model(
    parameters: LinearParameters,
    has_probabilities: bool,
) -> Result<ClassModel> {
    let (sums, rule) = sums_of(parameters)?;
    let (features, classes) = (Some(sums.features), sums.intercepts.len().max(2));
    let (classifier, decision): (Box<dyn SparkClassifier>, ClassDecision) = match rule {
        PredictionRule::Threshold(threshold)
        | PredictionRule::Binary(BinaryThreshold::Sum(threshold)) => {
            (Box::new(TwoClasses(sums)), ClassDecision::Above(threshold))
        }
        PredictionRule::Multinomial { thresholds } if thresholds.is_empty() => {
            (Box::new(ManyClasses(sums)), ClassDecision::Largest)
        }
        PredictionRule::Multinomial { thresholds } => {
            (Box::new(ManyClasses(sums)), ClassDecision::Thresholds(thresholds))
        }
        PredictionRule::Regression | PredictionRule::Binary(_) | PredictionRule::Pivot => {
            return Err(Error::internal("a model of MLlib cannot be a stage"));
        }
    };
    Ok(ClassModel { classifier, classes, decision, features, has_probabilities })
}

/// `LogisticRegressionModel`.
pub(in super::super) fn logistic_model(folder: &StageFolder) -> Result<ClassModel> {
    class_model(ml_logistic_regression(folder.metadata(), &folder.data()?)?, true)
}

/// `LinearSVCModel`.
pub(in super::super) fn svc_model(folder: &StageFolder) -> Result<ClassModel> {
    let rule = PredictionRule::Threshold(folder.number("threshold", 0.0)?);
    class_model(single_sum(&folder.data()?, "coefficients", rule)?, false)
}

/// `LinearRegressionModel`.
pub(in super::super) fn linear(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let rule = PredictionRule::Regression;
    let (sums, _) = sums_of(single_sum(&folder.data()?, "coefficients", rule)?)?;
    regression(folder, schema, Some(sums.features), Box::new(sums))
}
