//! Transformers with kernels: `Nystroem`, `KernelPCA`, and `RBFSampler`, which approximates one.

use super::estimator::{Estimator, Matrix};
use super::kernel::Kernel;
use super::known_rows::KnownRows;
use super::model::{FeatureRows, StepFacts, Transformer};
use super::numeric::dot;
use super::sparse::sparse_dot;
use tensorserve_tensor::error::{Error, Result};

/// Products of the kernels of a row and those of the training with a matrix.
struct KernelMap {
    kernel: Kernel,
    known: KnownRows,
    /// The mean of the kernels with each row of the training, and of all, if they are centered.
    means: Option<(Vec<f64>, f64)>,
    /// A column for each output, one after the other.
    columns: Vec<Vec<f64>>,
}

impl Transformer for KernelMap {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.known.features()).sparse_if(self.known.are_sparse())
    }

    fn output(&self) -> usize {
        self.columns.len()
    }

    fn is_sparse_there(&self, _: bool) -> bool {
        false
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let mut kernels = vec![0.0; self.known.len()];
        let first_row = rows.first_row;
        let rows = self.known.compare(rows);
        for (row, to) in to.chunks_exact_mut(self.columns.len().max(1)).enumerate() {
            rows.evaluate(row, &self.kernel, &mut kernels);
            if let Some((means, of_all)) = &self.means {
                // As the centering of scikit-learn does.
                if kernels.iter().any(|kernel| !kernel.is_finite()) {
                    let row = first_row + row;
                    return Err(Error::invalid(format!(
                        "the kernel of row {row} is not finite, as the model needs it"
                    )));
                }
                let mean = kernels.iter().sum::<f64>() / kernels.len() as f64;
                for (kernel, of_row) in kernels.iter_mut().zip(means) {
                    *kernel = *kernel - of_row - mean + of_all;
                }
            }
            to.iter_mut().zip(&self.columns).for_each(|(to, column)| *to = dot(&kernels, column));
        }
        Ok(())
    }
}

/// The columns of a matrix.
fn columns(matrix: &Matrix) -> Vec<Vec<f64>> {
    let column = |number: usize| matrix.values.iter().skip(number).step_by(matrix.columns);
    (0..matrix.columns).map(|number| column(number).copied().collect()).collect()
}

/// The kernel of an estimator, whose parameters may be missing: those of
/// `sklearn.metrics.pairwise` are used then, with `gamma` 1 over the number of features.
fn read_kernel(estimator: &Estimator, features: usize) -> Result<Kernel> {
    if estimator.find(&["kernel_params"]).is_some_and(|given| given.entries().count() > 0) {
        return Err(estimator.unsupported("kernel_params"));
    }
    let gamma = estimator.optional_number(&["gamma_", "gamma"])?;
    let gamma = gamma.unwrap_or(1.0 / features.max(1) as f64);
    let coef0 = estimator.optional_number(&["coef0"])?.unwrap_or(1.0);
    let degree = estimator.optional_number(&["degree"])?.unwrap_or(3.0);
    Ok(match estimator.text("kernel")? {
        "poly" | "polynomial" => Kernel::Polynomial { gamma, coef0, degree },
        "sigmoid" => Kernel::Sigmoid { gamma, coef0 },
        _ => Kernel::read(estimator, gamma)?,
    })
}

/// Reads a `Nystroem`.
pub(super) fn nystroem(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let known = KnownRows::read(estimator, &["components_"])?;
    let kernel = read_kernel(estimator, known.features())?;
    let matrix = estimator.matrix_of_shape(&["normalization_"], known.len(), known.len())?;
    // The rows of the matrix, which scikit-learn transposes, are the columns here.
    let columns = matrix.iter().map(<[f64]>::to_vec).collect();
    Ok(Box::new(KernelMap { kernel, known, means: None, columns }))
}

/// Reads a `KernelPCA`.
pub(super) fn components(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let known = KnownRows::read(estimator, &["X_fit_"])?;
    let kernel = read_kernel(estimator, known.features())?;
    let values = estimator.vector(&["eigenvalues_", "lambdas_"])?;
    let names = ["eigenvectors_", "alphas_"];
    let mut columns = columns(&estimator.matrix_of_shape(&names, known.len(), values.len())?);
    for (column, value) in columns.iter_mut().zip(values) {
        let scale = if value == 0.0 { 0.0 } else { 1.0 / value.sqrt() };
        column.iter_mut().for_each(|x| *x *= scale);
    }
    let centerer = estimator.child(estimator.attribute(&["_centerer"])?)?;
    let means = centerer.vector_of_len(&["K_fit_rows_"], known.len())?;
    let means = Some((means, centerer.number(&["K_fit_all_"])?));
    Ok(Box::new(KernelMap { kernel, known, means, columns }))
}

/// Cosines of random projections.
struct RandomCosines {
    features: usize,
    columns: Vec<Vec<f64>>,
    offsets: Vec<f64>,
}

impl Transformer for RandomCosines {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).sparse()
    }

    fn output(&self) -> usize {
        self.columns.len()
    }

    fn is_sparse_there(&self, _: bool) -> bool {
        false
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let scale = (2.0 / self.columns.len() as f64).sqrt();
        for (row, to) in to.chunks_exact_mut(self.columns.len().max(1)).enumerate() {
            for ((to, column), offset) in to.iter_mut().zip(&self.columns).zip(&self.offsets) {
                let product = match rows.sparse {
                    Some(matrix) => sparse_dot(matrix.row(row), column),
                    None => dot(rows.row(row), column),
                };
                *to = (product + offset).cos() * scale;
            }
        }
        Ok(())
    }
}

/// Reads an `RBFSampler`.
pub(super) fn cosines(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let weights = estimator.matrix(&["random_weights_"])?;
    let offsets = estimator.vector_of_len(&["random_offset_"], weights.columns)?;
    let (features, columns) = (weights.rows, columns(&weights));
    Ok(Box::new(RandomCosines { features, columns, offsets }))
}
