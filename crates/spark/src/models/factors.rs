//! Factorization machines: `FMClassificationModel` and `FMRegressionModel`.

use super::super::damaged;
use super::super::folder::StageFolder;
use super::super::numeric::logistic;
use super::super::schema::Schema;
use super::super::stage::PipelineStage;
use super::super::table::VectorRow;
use super::super::vector::{DenseMatrix, read_vector};
use super::predict::{ClassModel, SparkClassifier, SparkRegressor, decision, regression};
use tensorserve_tensor::error::Result;

/// A sum, and the products of all pairs of features by their factors.
struct Factors {
    intercept: f64,
    linear: Vec<f64>,
    /// The factors of one feature after the other.
    factors: Vec<f64>,
    size: usize,
}

impl Factors {
    fn read(folder: &StageFolder) -> Result<Self> {
        let data = folder.data()?;
        let linear = read_vector(&data, "linear")?;
        let factors = DenseMatrix::read(&data, "factors")?;
        let intercept = data.number("intercept").ok_or_else(|| damaged("it has no intercept"))?;
        if linear.is_empty() || factors.rows != linear.len() || factors.columns == 0 {
            return Err(damaged("its linear and factors do not fit together"));
        }
        Ok(Factors { intercept, linear, factors: factors.values, size: factors.columns })
    }

    fn factors_of(&self, feature: usize) -> &[f64] {
        let start = feature.saturating_mul(self.size);
        self.factors.get(start..start.saturating_add(self.size)).unwrap_or_default()
    }
}

impl SparkRegressor for Factors {
    fn predict(&self, row: VectorRow<'_>) -> f64 {
        let (mut sums, mut squares) = (vec![0.0; self.size], vec![0.0; self.size]);
        let mut add = |feature: usize, value: f64| {
            let pairs = sums.iter_mut().zip(&mut squares);
            for ((sum, square), factor) in pairs.zip(self.factors_of(feature)) {
                let product = factor * value;
                *sum += product;
                *square += product * product;
            }
        };
        match row {
            VectorRow::Dense(values) => {
                values.iter().enumerate().for_each(|(at, value)| add(at, *value));
            }
            VectorRow::Sparse(entries) => {
                entries.iter().for_each(|(at, value)| add(*at as usize, *value));
            }
        }
        let pairs: f64 = sums.iter().zip(&squares).map(|(sum, square)| sum * sum - square).sum();
        self.intercept + row.dot(&self.linear) + 0.5 * pairs
    }
}

struct TwoClasses(Factors);

impl SparkClassifier for TwoClasses {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        let sum = self.0.predict(row);
        raw.iter_mut().zip([-sum, sum]).for_each(|(raw, value)| *raw = value);
    }

    fn probabilities(&self, raw: &mut [f64]) {
        // The other one is what is left, as in Spark, and less exact when it is small.
        if let [first, second] = raw {
            *second = logistic(*second);
            *first = 1.0 - *second;
        }
    }
}

pub(in super::super) fn factor_classifier(folder: &StageFolder) -> Result<ClassModel> {
    let factors = Factors::read(folder)?;
    Ok(ClassModel {
        features: Some(factors.linear.len()),
        classifier: Box::new(TwoClasses(factors)),
        classes: 2,
        decision: decision(folder, 2)?,
        has_probabilities: true,
    })
}

pub(in super::super) fn factor_regressor(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let factors = Factors::read(folder)?;
    regression(folder, schema, Some(factors.linear.len()), Box::new(factors))
}
