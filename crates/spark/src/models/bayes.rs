//! `NaiveBayesModel`: multinomial, complement, Bernoulli and Gaussian.
//!
//! Source: `org.apache.spark.ml.classification.NaiveBayes` of Spark 4.1.

use super::super::damaged;
use super::super::folder::StageFolder;
use super::super::numeric::softmax;
use super::super::table::VectorRow;
use super::super::unsupported;
use super::super::vector::{DenseMatrix, read_vector};
use super::predict::{ClassModel, SparkClassifier, decision};
use tensorserve_tensor::error::Result;

/// What features a model takes.
#[derive(Clone, Copy)]
enum Accepted {
    NotNegative,
    ZeroOrOne,
}

/// A sum for each class: its constant, and the features multiplied by its weights.
struct LinearBayes {
    constants: Vec<f64>,
    weights: Vec<f64>,
    width: usize,
    accepted: Accepted,
    /// Whether sums become logarithms of probabilities.
    is_complement: bool,
}

impl SparkClassifier for LinearBayes {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        let weights = self.weights.chunks_exact(self.width.max(1));
        for ((raw, constant), weights) in raw.iter_mut().zip(&self.constants).zip(weights) {
            *raw = row.dot(weights) + constant;
        }
        if self.is_complement {
            let largest = raw.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = raw.iter().map(|value| (value - largest).exp()).sum();
            raw.iter_mut().for_each(|value| *value -= sum.ln() + largest);
        }
    }

    fn probabilities(&self, raw: &mut [f64]) {
        softmax(raw);
    }

    fn refusal(&self, row: VectorRow<'_>) -> Option<String> {
        let (is_accepted, words): (fn(f64) -> bool, &str) = match self.accepted {
            Accepted::NotNegative => (|value| value >= 0.0, "features that are not negative"),
            Accepted::ZeroOrOne => {
                (|value| value == 0.0 || value == 1.0, "features that are 0 or 1")
            }
        };
        let wrong = row.values().find(|value| !is_accepted(*value))?;
        Some(format!("has the feature {wrong}, and the naive Bayes model takes {words}"))
    }
}

/// Normal distributions of each feature in each class.
struct GaussianBayes {
    priors: Vec<f64>,
    means: Vec<f64>,
    variances: Vec<f64>,
    width: usize,
    /// The sums of the logarithms of the variances of each class.
    logs: Vec<f64>,
}

impl SparkClassifier for GaussianBayes {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        let mut dense = Vec::new();
        let row = match row {
            VectorRow::Dense(values) => values,
            VectorRow::Sparse(entries) => {
                dense.resize(self.width, 0.0);
                for (at, value) in entries {
                    if let Some(element) = dense.get_mut(*at as usize) {
                        *element = *value;
                    }
                }
                &dense
            }
        };
        let width = self.width.max(1);
        let classes = self.means.chunks_exact(width).zip(self.variances.chunks_exact(width));
        let constants = self.priors.iter().zip(&self.logs);
        for ((raw, (means, variances)), (prior, log)) in raw.iter_mut().zip(classes).zip(constants)
        {
            let mut sum = 0.0;
            for ((value, mean), variance) in row.iter().zip(means).zip(variances) {
                let distance = value - mean;
                sum += distance * distance / variance;
            }
            *raw = prior - (sum + log) / 2.0;
        }
    }

    fn probabilities(&self, raw: &mut [f64]) {
        softmax(raw);
    }
}

pub(in super::super) fn bayes(folder: &StageFolder) -> Result<ClassModel> {
    let data = folder.data()?;
    let priors = read_vector(&data, "pi")?;
    let theta = DenseMatrix::read(&data, "theta")?;
    let (classes, width) = (priors.len(), theta.columns);
    if classes == 0 || width == 0 || theta.rows != classes {
        return Err(damaged("its pi and theta do not fit together"));
    }
    let linear = |constants: Vec<f64>, weights: Vec<f64>, accepted, is_complement| {
        let model = LinearBayes { constants, weights, width, accepted, is_complement };
        Box::new(model) as Box<dyn SparkClassifier>
    };
    let classifier = match folder.text("modelType", "multinomial")? {
        "multinomial" => linear(priors, theta.values, Accepted::NotNegative, false),
        "complement" => linear(vec![0.0; classes], theta.values, Accepted::NotNegative, true),
        "bernoulli" => {
            // The logarithm of the probability that a feature is 0.
            let zero = |log: &f64| (1.0 - log.exp()).ln();
            let rows = theta.values.chunks_exact(width);
            let sums = rows.map(|row| row.iter().map(zero).sum::<f64>());
            let constants = priors.iter().zip(sums).map(|(prior, sum)| prior + sum).collect();
            let mut weights = theta.values;
            weights.iter_mut().for_each(|log| *log -= zero(log));
            linear(constants, weights, Accepted::ZeroOrOne, false)
        }
        "gaussian" => {
            let sigma = DenseMatrix::read(&data, "sigma")?;
            if (sigma.rows, sigma.columns) != (classes, width) {
                return Err(damaged("its theta and sigma differ in size"));
            }
            let logs = sigma.values.chunks_exact(width);
            let logs = logs.map(|row| row.iter().map(|variance| variance.ln()).sum()).collect();
            let (means, variances) = (theta.values, sigma.values);
            Box::new(GaussianBayes { priors, means, variances, width, logs })
        }
        other => return Err(unsupported(format!("the modelType {other:?}"))),
    };
    let decision = decision(folder, classes)?;
    Ok(ClassModel { classifier, classes, decision, features: Some(width), has_probabilities: true })
}
