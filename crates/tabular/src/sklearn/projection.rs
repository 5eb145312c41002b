//! Projections on components: `PCA`, `IncrementalPCA`, `TruncatedSVD`.

use super::estimator::Estimator;
use super::model::{FeatureRows, Transformer};
use super::numeric::dot;
use super::sparse::sparse_dot;
use tensorserve_tensor::error::Result;

/// Dot products of a row with components.
struct Projection {
    features: usize,
    /// One component after the other.
    components: Vec<f64>,
    count: usize,
    /// What is subtracted from a row before.
    mean: Option<Vec<f64>>,
    /// What each product is multiplied by.
    factors: Option<Vec<f64>>,
}

impl Transformer for Projection {
    fn input(&self) -> usize {
        self.features
    }

    fn output(&self) -> usize {
        self.count
    }

    fn takes_sparse(&self) -> bool {
        self.mean.is_none()
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        if let Some(matrix) = rows.sparse {
            for (row, to) in matrix.iter().zip(to.chunks_exact_mut(self.count.max(1))) {
                let components = self.components.chunks_exact(self.features);
                for (to, component) in to.iter_mut().zip(components) {
                    *to = sparse_dot(row, component);
                }
            }
            return Ok(());
        }
        let mut centered = vec![0.0; self.features];
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.count.max(1))) {
            let row = match &self.mean {
                None => row,
                Some(mean) => {
                    for ((to, x), mean) in centered.iter_mut().zip(row).zip(mean) {
                        *to = x - mean;
                    }
                    &centered
                }
            };
            for (to, component) in to.iter_mut().zip(self.components.chunks_exact(self.features)) {
                *to = dot(row, component);
            }
            if let Some(factors) = &self.factors {
                to.iter_mut().zip(factors).for_each(|(to, factor)| *to *= factor);
            }
        }
        Ok(())
    }
}

/// Reads a `PCA`, an `IncrementalPCA` or a `TruncatedSVD`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let components = estimator.matrix(&["components_"])?;
    let (features, count) = (components.columns, components.rows);
    if count == 0 {
        return Err(estimator.damaged("components_ is empty"));
    }
    let mean = match estimator.find(&["mean_"]) {
        Some(_) => Some(estimator.vector_of_len(&["mean_"], features)?),
        None => None,
    };
    let is_whitened = estimator.class() != "TruncatedSVD" && estimator.flag("whiten", false)?;
    let factors = match is_whitened {
        true => Some(whitening_factors(estimator, count)?),
        false => None,
    };
    Ok(Box::new(Projection { features, components: components.values, count, mean, factors }))
}

/// The inverse of the standard deviation of each component.
fn whitening_factors(estimator: &Estimator, count: usize) -> Result<Vec<f64>> {
    let variances = estimator.vector_of_len(&["explained_variance_"], count)?;
    // A variance of 0 would make infinity; scikit-learn bounds it since 1.5.
    let smallest = if estimator.is_older_than(1, 5) { f64::NEG_INFINITY } else { f64::EPSILON };
    let mut factors = Vec::with_capacity(count);
    for variance in variances {
        let deviation = variance.sqrt();
        factors.push(1.0 / if deviation < smallest { smallest } else { deviation });
    }
    Ok(factors)
}
