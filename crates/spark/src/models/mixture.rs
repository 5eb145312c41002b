//! `GaussianMixtureModel`.
//!
//! Source: `org.apache.spark.ml.stat.distribution.MultivariateGaussian` of Spark 4.1, whose pseudo-inverse of
//! the covariances leaves out eigenvalues that are nearly 0.

use std::borrow::Cow;

use super::super::folder::StageFolder;
use super::super::numeric::argmax;
use super::super::schema::{ColumnKind, Schema};
use super::super::stage::PipelineStage;
use super::super::table::{SparkColumn, SparkTable, Vectors, dot};
use super::super::vector::{read_matrices, read_vectors};
use super::super::{MAX_CLASSES, damaged, float, unsupported};
use super::predict::{features, prediction_name};
use tensorserve_tensor::error::Result;

/// The largest size of a covariance matrix: its eigenvalues take the cube of that.
const MAX_FEATURES: usize = 256;

/// How often the eigenvalues are refined at most.
const MAX_SWEEPS: usize = 30;

/// A normal distribution of vectors.
struct Gaussian {
    weight: f64,
    mean: Vec<f64>,
    /// The root of the inverse of the covariances, one row after the other.
    root: Vec<f64>,
    /// The logarithm of the density at the mean.
    log_density: f64,
}

impl Gaussian {
    fn new(weight: f64, mean: Vec<f64>, covariances: Vec<f64>) -> Self {
        let size = mean.len();
        let (values, vectors) = eigen(covariances, size);
        let largest = values.iter().copied().fold(0.0, f64::max);
        let tolerance = f64::EPSILON * largest * float(size);
        let mut root = Vec::with_capacity(size * size);
        let mut log_determinant = 0.0;
        for (at, value) in values.iter().enumerate() {
            let is_kept = *value > tolerance;
            if is_kept {
                log_determinant += value.ln();
            }
            let scale = if is_kept { (1.0 / value).sqrt() } else { 0.0 };
            // The eigenvector is a column.
            root.extend(vectors.iter().skip(at).step_by(size.max(1)).map(|v| v * scale));
        }
        let constant = float(size) * std::f64::consts::TAU.ln();
        Gaussian { weight, mean, root, log_density: -0.5 * (constant + log_determinant) }
    }

    fn density(&self, row: &[f64]) -> f64 {
        let distances: Vec<f64> = row.iter().zip(&self.mean).map(|(x, mean)| x - mean).collect();
        let rows = self.root.chunks_exact(distances.len().max(1));
        let squares = rows.map(|root| dot(root, &distances)).map(|value| value * value);
        (self.log_density - 0.5 * squares.sum::<f64>()).exp()
    }
}

/// The eigenvalues of a symmetric matrix, and its eigenvectors in the columns of another, by the method of
/// Jacobi: rotations that make one element after the other 0.
fn eigen(mut matrix: Vec<f64>, size: usize) -> (Vec<f64>, Vec<f64>) {
    let mut vectors = vec![0.0; size * size];
    (0..size).for_each(|at| put(&mut vectors, at * size + at, 1.0));
    for _ in 0..MAX_SWEEPS {
        let mut rotated = false;
        for p in 0..size {
            for q in p + 1..size {
                rotated |= rotate(&mut matrix, &mut vectors, size, p, q);
            }
        }
        if !rotated {
            break;
        }
    }
    let values = (0..size).map(|at| get(&matrix, at * size + at)).collect();
    (values, vectors)
}

fn get(matrix: &[f64], at: usize) -> f64 {
    matrix.get(at).copied().unwrap_or(0.0)
}

fn put(matrix: &mut [f64], at: usize, value: f64) {
    if let Some(element) = matrix.get_mut(at) {
        *element = value;
    }
}

/// Makes the element in row `p` and column `q` 0; `false` if it is already, next to those of the diagonal.
fn rotate(matrix: &mut [f64], vectors: &mut [f64], size: usize, p: usize, q: usize) -> bool {
    let off = get(matrix, p * size + q);
    let (a, b) = (get(matrix, p * size + p), get(matrix, q * size + q));
    // Comparisons with NaN are false, and end this, too.
    let is_large =
        off.abs() > f64::EPSILON * 1e-3 * (a.abs() * b.abs()).sqrt().max(f64::MIN_POSITIVE);
    if !is_large {
        return false;
    }
    let theta = (b - a) / (2.0 * off);
    let tangent = theta.signum() / (theta.abs() + theta.hypot(1.0));
    let cosine = 1.0 / tangent.hypot(1.0);
    let sine = tangent * cosine;
    for k in 0..size {
        let (kp, kq) = (get(matrix, k * size + p), get(matrix, k * size + q));
        put(matrix, k * size + p, cosine * kp - sine * kq);
        put(matrix, k * size + q, sine * kp + cosine * kq);
    }
    for k in 0..size {
        let (pk, qk) = (get(matrix, p * size + k), get(matrix, q * size + k));
        put(matrix, p * size + k, cosine * pk - sine * qk);
        put(matrix, q * size + k, sine * pk + cosine * qk);
        let (kp, kq) = (get(vectors, k * size + p), get(vectors, k * size + q));
        put(vectors, k * size + p, cosine * kp - sine * kq);
        put(vectors, k * size + q, sine * kp + cosine * kq);
    }
    true
}

struct MixtureStage {
    features: usize,
    prediction: usize,
    probability: Option<usize>,
    gaussians: Vec<Gaussian>,
}

pub(in super::super) fn mixture(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let data = folder.data()?;
    let weights = data.list("weights");
    let (means, covariances) = (read_vectors(&data, "mus")?, read_matrices(&data, "sigmas")?);
    let width = means.first().map_or(0, Vec::len);
    let fits = means.len() == weights.len()
        && covariances.len() == weights.len()
        && means.iter().all(|mean| mean.len() == width)
        && covariances.iter().all(|(rows, all)| *rows == width && all.len() == width * width);
    if !fits || width == 0 {
        return Err(damaged("its weights, mus and sigmas do not fit together"));
    }
    if width > MAX_FEATURES || weights.len() > MAX_CLASSES {
        return Err(unsupported(format!("a Gaussian mixture of {width} features")));
    }
    let parts = weights.iter().zip(means).zip(covariances);
    let gaussians: Vec<Gaussian> =
        parts.map(|((weight, mean), (_, all))| Gaussian::new(*weight, mean, all)).collect();
    let features = features(folder, schema, Some(width))?;
    let prediction = schema.make(prediction_name(folder)?, ColumnKind::Integer)?;
    schema.add_output(prediction);
    let probability = match folder.optional_column("probabilityCol")? {
        None => None,
        Some(name) => {
            let column = schema.make_vector(name, gaussians.len())?;
            schema.add_output(column);
            Some(column)
        }
    };
    Ok(Box::new(MixtureStage { features, prediction, probability, gaussians }))
}

impl PipelineStage for MixtureStage {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let count = self.gaussians.len();
        let (mut all, mut predictions) = (Vec::with_capacity(count * table.rows), Vec::new());
        table.vectors(self.features)?.for_dense_rows(table.rows, |_, row| {
            let densities = self.gaussians.iter().map(|g| f64::EPSILON + g.weight * g.density(row));
            let start = all.len();
            all.extend(densities);
            let own: &mut [f64] = all.get_mut(start..).unwrap_or_default();
            let sum: f64 = own.iter().sum();
            own.iter_mut().for_each(|probability| *probability /= sum);
            predictions.push(argmax(own.iter().copied()));
            Ok(())
        })?;
        table.put(self.prediction, SparkColumn::Numbers(Cow::Owned(predictions)));
        if let Some(probability) = self.probability {
            table.put(probability, SparkColumn::Vectors(Vectors::dense(count, all)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eigenvalues_and_vectors_make_the_matrix_again() {
        let matrix = vec![4.0, 1.0, -2.0, 1.0, 2.0, 0.5, -2.0, 0.5, 3.0];
        let (values, vectors) = eigen(matrix.clone(), 3);
        for row in 0..3 {
            for column in 0..3 {
                let sum: f64 = (0..3)
                    .map(|k| vectors[row * 3 + k] * values[k] * vectors[column * 3 + k])
                    .sum();
                assert!((sum - matrix[row * 3 + column]).abs() < 1e-14);
            }
        }
        let (values, _) = eigen(vec![f64::NAN; 4], 2);
        assert!(values[0].is_nan());
    }
}
