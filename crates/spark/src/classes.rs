//! The classes of linear models of Spark ML and MLlib, and their parameters.

use serde_json::Value;

use super::parameters::{BinaryThreshold, LinearParameters, PredictionRule};
use super::parquet::ParquetColumns;
use super::vector::{DenseMatrix, read_vector};
use super::{damaged, unsupported};
use tensorserve_tensor::error::Result;

/// The threshold of Spark ML where a model has none.
const DEFAULT_THRESHOLD: f64 = 0.5;

/// Reads the parameters of a model of MLlib of any class that is supported.
pub(super) fn read_mllib(metadata: &Value, columns: &ParquetColumns) -> Result<LinearParameters> {
    let class = metadata.get("class").and_then(Value::as_str);
    let class = class.ok_or_else(|| damaged("its metadata has no class"))?;
    match class {
        "org.apache.spark.mllib.classification.LogisticRegressionModel" => {
            mllib_logistic_regression(metadata, columns)
        }
        "org.apache.spark.mllib.classification.SVMModel" => {
            let threshold = columns.number("threshold");
            let rule = threshold.map_or(PredictionRule::Regression, PredictionRule::Threshold);
            single_sum(columns, "weights", rule)
        }
        "org.apache.spark.mllib.regression.LinearRegressionModel"
        | "org.apache.spark.mllib.regression.LassoModel"
        | "org.apache.spark.mllib.regression.RidgeRegressionModel" => {
            single_sum(columns, "weights", PredictionRule::Regression)
        }
        _ => Err(unsupported(format!("models of the class {class}"))),
    }
}

/// A parameter of a model of Spark ML: the value that was set, or else its default.
fn ml_parameter<'m>(metadata: &'m Value, name: &str) -> Option<&'m Value> {
    let set = metadata.get("paramMap").and_then(|map| map.get(name));
    set.or_else(|| metadata.get("defaultParamMap")?.get(name))
}

/// A model of one sum, whose coefficients are in the columns `path.…`.
pub(super) fn single_sum(
    columns: &ParquetColumns,
    path: &str,
    rule: PredictionRule,
) -> Result<LinearParameters> {
    let coefficients = read_vector(columns, path)?;
    let intercept = columns.number("intercept");
    let intercept = intercept.ok_or_else(|| damaged("it has no intercept"))?;
    let features = coefficients.len();
    Ok(LinearParameters { features, coefficients, intercepts: vec![intercept], rule })
}

pub(super) fn ml_logistic_regression(
    metadata: &Value,
    columns: &ParquetColumns,
) -> Result<LinearParameters> {
    // Before Spark 2.1, models have two classes only.
    let is_binary = columns.has("coefficients") && !columns.has("coefficientMatrix");
    if is_binary {
        let threshold = BinaryThreshold::Sum(ml_sum_threshold(metadata)?);
        return single_sum(columns, "coefficients", PredictionRule::Binary(threshold));
    }
    let coefficients = DenseMatrix::read(columns, "coefficientMatrix")?;
    let intercepts = read_vector(columns, "interceptVector")?;
    if intercepts.len() != coefficients.rows {
        let (have, need) = (intercepts.len(), coefficients.rows);
        return Err(damaged(format!("it has {have} intercepts for {need} rows of coefficients")));
    }
    let rule = match columns.number("isMultinomial") == Some(1.0) {
        true => {
            PredictionRule::Multinomial { thresholds: ml_thresholds(metadata)?.unwrap_or_default() }
        }
        false => PredictionRule::Binary(BinaryThreshold::Sum(ml_sum_threshold(metadata)?)),
    };
    let features = coefficients.columns;
    Ok(LinearParameters { features, coefficients: coefficients.values, intercepts, rule })
}

/// The parameter `thresholds`, if it is set.
fn ml_thresholds(metadata: &Value) -> Result<Option<Vec<f64>>> {
    let values = ml_parameter(metadata, "thresholds").filter(|values| !values.is_null());
    let Some(values) = values else {
        return Ok(None);
    };
    let numbers: Option<Vec<f64>> =
        values.as_array().and_then(|all| all.iter().map(Value::as_f64).collect());
    let numbers = numbers.filter(|all| !all.is_empty() && all.iter().all(|t| *t >= 0.0));
    numbers.map(Some).ok_or_else(|| damaged("its thresholds are not valid"))
}

/// The sum above which Spark ML predicts the second of two classes.
fn ml_sum_threshold(metadata: &Value) -> Result<f64> {
    let threshold = match ml_thresholds(metadata)?.as_deref() {
        Some([first, second]) => 1.0 / (1.0 + first / second),
        Some(_) => return Err(damaged("it does not have 2 thresholds")),
        None => {
            let threshold = ml_parameter(metadata, "threshold").and_then(Value::as_f64);
            threshold.unwrap_or(DEFAULT_THRESHOLD)
        }
    };
    if !(0.0..=1.0).contains(&threshold) {
        return Err(damaged("its threshold is not between 0 and 1"));
    }
    // Infinite for 0 and 1.
    Ok((threshold / (1.0 - threshold)).ln())
}

fn mllib_logistic_regression(
    metadata: &Value,
    columns: &ParquetColumns,
) -> Result<LinearParameters> {
    let features = metadata_size(metadata, "numFeatures")?;
    let classes = metadata_size(metadata, "numClasses")?;
    if classes == 2 {
        let threshold = columns.number("threshold");
        let threshold = threshold.map_or(BinaryThreshold::None, BinaryThreshold::Probability);
        let parameters = single_sum(columns, "weights", PredictionRule::Binary(threshold))?;
        let have = parameters.features;
        return match have == features {
            true => Ok(parameters),
            false => Err(damaged(format!("it has {have} weights for {features} features"))),
        };
    }
    let weights = read_vector(columns, "weights")?;
    let sums = classes.checked_sub(1).filter(|sums| *sums > 0);
    let sums = sums.ok_or_else(|| damaged("it has fewer than 2 classes"))?;
    // The intercept of each sum follows its weights, or there are no intercepts.
    let width = weights.len() / sums;
    let has_right_width = width == features || Some(width) == features.checked_add(1);
    if width.checked_mul(sums) != Some(weights.len()) || !has_right_width || features == 0 {
        let have = weights.len();
        return Err(damaged(format!(
            "it has {have} weights for {features} features and {classes} classes"
        )));
    }
    let (mut coefficients, mut intercepts) = (Vec::new(), Vec::new());
    for weights in weights.chunks_exact(width) {
        coefficients.extend(weights.iter().take(features));
        intercepts.push(weights.get(features).copied().unwrap_or(0.0));
    }
    Ok(LinearParameters { features, coefficients, intercepts, rule: PredictionRule::Pivot })
}

/// The size `name` in the metadata of a model of MLlib.
fn metadata_size(metadata: &Value, name: &str) -> Result<usize> {
    let number = metadata.get(name).and_then(Value::as_u64);
    let number = number.and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| damaged(format!("its metadata has no {name}")))
}
