//! `GaussianMixture` and `BayesianGaussianMixture`: the component that a row most likely comes from.

use super::estimator::{ClassLabels, Estimator};
use super::model::{ClassScores, Classifier, FeatureRows, Predictor, StepFacts};
use super::numeric::{argmax, dot, log_softmax};
use tensorserve_tensor::error::{Error, Result};

/// One component: a multivariate normal distribution.
struct Component {
    mean: Vec<f64>,
    /// The Cholesky factor of the precision matrix, one column after the other; or its diagonal.
    factor: Vec<f64>,
    is_diagonal: bool,
    /// The terms that do not depend on the row.
    constant: f64,
}

impl Component {
    /// The log-likelihood of `row`, up to a constant that is the same for all components.
    fn log_likelihood(&self, row: &[f64], centered: &mut [f64]) -> f64 {
        for ((to, x), mean) in centered.iter_mut().zip(row).zip(&self.mean) {
            *to = x - mean;
        }
        let distance: f64 = match self.is_diagonal {
            true => centered.iter().zip(&self.factor).map(|(x, factor)| (x * factor).powi(2)).sum(),
            false => {
                let columns = self.factor.chunks_exact(row.len());
                columns.map(|column| dot(centered, column).powi(2)).sum()
            }
        };
        self.constant - 0.5 * distance
    }
}

struct Mixture {
    features: usize,
    components: Vec<Component>,
}

impl Classifier for Mixture {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features)
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let mut centered = vec![0.0; self.features];
        let scores = scores.chunks_exact_mut(self.components.len());
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            for (score, component) in scores.iter_mut().zip(&self.components) {
                *score = component.log_likelihood(row, &mut centered);
            }
            *class = argmax(scores);
            log_softmax(scores);
            scores.iter_mut().for_each(|score| *score = score.exp());
        }
        Ok(())
    }
}

/// Reads a `GaussianMixture` or a `BayesianGaussianMixture`.
pub(super) fn read(estimator: &Estimator) -> Result<Predictor> {
    let means = estimator.matrix(&["means_"])?;
    let (count, features) = (means.rows, means.columns);
    let weights = log_weights(estimator, count)?;
    let kind = estimator.text("covariance_type")?;
    let (_, factors) = estimator.numbers(&["precisions_cholesky_"])?;
    let wrong = || estimator.damaged("precisions_cholesky_ does not fit means_");
    let size = match kind {
        "full" => count.saturating_mul(features).saturating_mul(features),
        "tied" => features.saturating_mul(features),
        "diag" => count.saturating_mul(features),
        "spherical" => count,
        other => {
            return Err(estimator.damaged(format_args!("covariance_type={other:?} is not valid")));
        }
    };
    if factors.len() != size || count == 0 {
        return Err(wrong());
    }
    // A tied factor is copied for each component.
    estimator.charge(count.saturating_mul(features).saturating_mul(features))?;
    let extra = bayesian_terms(estimator, count, features)?;
    let mut components = Vec::with_capacity(count);
    for (number, (mean, constant)) in means.iter().zip(weights).enumerate() {
        let part = |length: usize| factors.get(number * length..(number + 1) * length);
        let is_diagonal = matches!(kind, "diag" | "spherical");
        let factor = match kind {
            "full" => transposed(part(features * features).ok_or_else(wrong)?, features),
            "tied" => transposed(&factors, features),
            "diag" => part(features).ok_or_else(wrong)?.to_vec(),
            _ => vec![factors.get(number).copied().unwrap_or(0.0); features],
        };
        let log_determinant: f64 = match is_diagonal {
            true => factor.iter().map(|value| value.ln()).sum(),
            false => factor.iter().step_by(features + 1).map(|value| value.ln()).sum(),
        };
        let extra = extra.get(number).copied().unwrap_or(0.0);
        let constant = constant + log_determinant + extra;
        components.push(Component { mean: mean.to_vec(), factor, is_diagonal, constant });
    }
    let labels = ClassLabels::range(count);
    let model = Mixture { features, components };
    Ok(Predictor::classifier(model, labels, ClassScores::Probabilities))
}

/// The columns of a square matrix that has its rows one after the other.
fn transposed(matrix: &[f64], size: usize) -> Vec<f64> {
    (0..size).flat_map(|column| matrix.iter().skip(column).step_by(size)).copied().collect()
}

/// The logarithm of the weight of each component.
fn log_weights(estimator: &Estimator, count: usize) -> Result<Vec<f64>> {
    if estimator.class() == "GaussianMixture" {
        let weights = estimator.vector_of_len(&["weights_"], count)?;
        return Ok(weights.into_iter().map(f64::ln).collect());
    }
    let wrong = || estimator.damaged("weight_concentration_ does not fit means_");
    if estimator.text("weight_concentration_prior_type")? == "dirichlet_distribution" {
        let concentrations = estimator.vector_of_len(&["weight_concentration_"], count)?;
        let all = digamma(concentrations.iter().sum());
        return Ok(concentrations.into_iter().map(|value| digamma(value) - all).collect());
    }
    // A Dirichlet process: the weights of the sticks that are broken off.
    let value = estimator.attribute(&["weight_concentration_"])?;
    let parts: Option<Vec<Vec<f64>>> = value.items().and_then(|items| {
        items.into_iter().map(|item| item.array().and_then(|array| array.f64s())).collect()
    });
    let [first, second] = &*parts.ok_or_else(wrong)? else { return Err(wrong()) };
    if first.len() != count || second.len() != count {
        return Err(wrong());
    }
    let (mut weights, mut rest) = (Vec::with_capacity(count), 0.0);
    for (first, second) in first.iter().zip(second) {
        let sum = digamma(first + second);
        weights.push(digamma(*first) - sum + rest);
        rest += digamma(*second) - sum;
    }
    Ok(weights)
}

/// The terms that the distribution of the precisions adds for each component; none for fixed ones.
fn bayesian_terms(estimator: &Estimator, count: usize, features: usize) -> Result<Vec<f64>> {
    if estimator.class() == "GaussianMixture" {
        return Ok(Vec::new());
    }
    let freedom = estimator.vector(&["degrees_of_freedom_"])?;
    let precision = estimator.vector_of_len(&["mean_precision_"], count)?;
    let mut terms = Vec::with_capacity(count);
    for (number, precision) in precision.into_iter().enumerate() {
        let freedom = freedom.get(number).or(freedom.first()).copied();
        let freedom = freedom.ok_or_else(|| missing_freedom(estimator))?;
        let halves = (0..features).map(|feature| digamma(0.5 * (freedom - feature as f64)));
        let log_lambda = features as f64 * std::f64::consts::LN_2 + halves.sum::<f64>();
        let normal = -0.5 * features as f64 * freedom.ln();
        terms.push(normal + 0.5 * (log_lambda - features as f64 / precision));
    }
    Ok(terms)
}

fn missing_freedom(estimator: &Estimator) -> Error {
    estimator.damaged("degrees_of_freedom_ is empty")
}

/// The derivative of the logarithm of the gamma function, for positive numbers.
fn digamma(mut x: f64) -> f64 {
    let mut sum = 0.0;
    // No more than ten steps for a positive number.
    for _ in 0..10 {
        if x >= 10.0 {
            break;
        }
        sum -= 1.0 / x;
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = square
        * (1.0 / 12.0
            - square
                * (1.0 / 120.0
                    - square
                        * (1.0 / 252.0
                            - square
                                * (1.0 / 240.0
                                    - square
                                        * (1.0 / 132.0
                                            - square * (691.0 / 32760.0 - square / 12.0))))));
    sum + x.ln() - 0.5 / x - series
}
