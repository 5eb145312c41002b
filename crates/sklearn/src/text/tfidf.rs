//! `TfidfTransformer`: weights counts of terms by how rare the terms are.

use super::super::estimator::Estimator;
use super::super::model::{FeatureRows, StepFacts, Transformer};
use super::super::scaler::Norm;
use super::super::sparse::SparseMatrix;
use tensorserve_pickle::PickleValue;
use tensorserve_tensor::error::Result;

/// The weights of terms.
pub(super) struct TfIdf {
    /// Whether the logarithm of a count is taken, plus 1.
    is_sublinear: bool,
    /// What each column is multiplied by.
    factors: Option<Vec<f64>>,
    norm: Option<Norm>,
}

impl TfIdf {
    /// Reads a `TfidfTransformer` of `columns` columns, if their number is known.
    pub(super) fn read(estimator: &Estimator, columns: Option<usize>) -> Result<Self> {
        let factors = match estimator.flag("use_idf", true)? {
            true => Some(read_factors(estimator)?),
            false => None,
        };
        if let (Some(factors), Some(columns)) = (&factors, columns)
            && factors.len() != columns
        {
            let have = factors.len();
            return Err(estimator.damaged(format_args!("idf_ has {have} terms, not {columns}")));
        }
        let is_sublinear = estimator.flag("sublinear_tf", false)?;
        Ok(TfIdf { is_sublinear, factors, norm: read_norm(estimator)? })
    }

    /// Weights the counts of all rows.
    pub(super) fn apply(&self, counts: &mut SparseMatrix) {
        for number in 0..counts.len() {
            let row = counts.row_mut(number);
            if self.is_sublinear {
                row.iter_mut().for_each(|(_, value)| *value = value.ln() + 1.0);
            }
            if let Some(factors) = &self.factors {
                for (column, value) in &mut *row {
                    *value *= factors.get(*column as usize).copied().unwrap_or(0.0);
                }
            }
            if let Some(norm) = self.norm {
                norm.divide_sparse(row);
            }
        }
    }
}

/// The parameter `norm`.
pub(super) fn read_norm(estimator: &Estimator) -> Result<Option<Norm>> {
    match estimator.find(&["norm"]) {
        None => Ok(None),
        Some(_) => Norm::read(estimator).map(Some),
    }
}

/// The inverse document frequencies: before 1.4, on the diagonal of a sparse matrix.
fn read_factors(estimator: &Estimator) -> Result<Vec<f64>> {
    if estimator.find(&["idf_"]).is_some() {
        return estimator.vector(&["idf_"]);
    }
    let wrong = || estimator.damaged("_idf_diag is not a diagonal matrix");
    let diagonal = estimator.attribute(&["_idf_diag"])?;
    let data = diagonal.attribute("data").and_then(PickleValue::array).ok_or_else(wrong)?;
    estimator.charge(data.len())?;
    data.f64s().ok_or_else(wrong)
}

/// A `TfidfTransformer` as a step of its own.
struct TfIdfTransformer {
    columns: usize,
    weights: TfIdf,
}

impl Transformer for TfIdfTransformer {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.columns).sparse()
    }

    fn output(&self) -> usize {
        self.columns
    }

    fn is_sparse_there(&self, _: bool) -> bool {
        true
    }

    fn makes_sparse(&self, _: bool) -> bool {
        true
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let matrix = self.apply_sparse(rows)?;
        to.copy_from_slice(&matrix.to_dense(0..matrix.len()));
        Ok(())
    }

    fn apply_sparse(&self, rows: FeatureRows) -> Result<SparseMatrix> {
        let mut matrix = rows.to_sparse();
        self.weights.apply(&mut matrix);
        Ok(matrix)
    }
}

/// Reads a `TfidfTransformer` that is given `columns` columns, if their number is known.
pub(in super::super) fn read(
    estimator: &Estimator,
    columns: Option<usize>,
) -> Result<Box<dyn Transformer>> {
    let weights = TfIdf::read(estimator, estimator.features().or(columns))?;
    let columns = estimator.features().or(columns).or(weights.factors.as_ref().map(Vec::len));
    let columns = columns.filter(|columns| *columns > 0);
    let columns = columns.ok_or_else(|| estimator.damaged("it does not record its columns"))?;
    Ok(Box::new(TfIdfTransformer { columns, weights }))
}
