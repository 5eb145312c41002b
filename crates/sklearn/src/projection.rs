//! Projections on components: `PCA`, `TruncatedSVD`, `FastICA`, random projections, ….

use super::estimator::{Estimator, Matrix};
use super::model::{FeatureRows, StepFacts, Transformer};
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
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).sparse_if(self.mean.is_none())
    }

    fn output(&self) -> usize {
        self.count
    }

    fn is_sparse_there(&self, _: bool) -> bool {
        false
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

impl Projection {
    /// On the rows of a matrix.
    fn on(estimator: &Estimator, components: Matrix) -> Result<Self> {
        let Matrix { rows: count, columns: features, values: components, .. } = components;
        match count {
            0 => Err(estimator.damaged("components_ is empty")),
            _ => Ok(Projection { features, components, count, mean: None, factors: None }),
        }
    }

    /// With `mean` subtracted from each row before.
    fn centered(self, estimator: &Estimator, names: &[&str]) -> Result<Self> {
        let mean = Some(estimator.vector_of_len(names, self.features)?);
        Ok(Projection { mean, ..self })
    }
}

/// Reads a `PCA`, an `IncrementalPCA` or a `TruncatedSVD`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let mut projection = Projection::on(estimator, estimator.matrix(&["components_"])?)?;
    if estimator.find(&["mean_"]).is_some() {
        projection = projection.centered(estimator, &["mean_"])?;
    }
    if estimator.class() != "TruncatedSVD" && estimator.flag("whiten", false)? {
        projection.factors = Some(whitening_factors(estimator, projection.count)?);
    }
    Ok(Box::new(projection))
}

/// Reads an estimator whose `components_` are used as they are: random projections, `FastICA` and
/// `NeighborhoodComponentsAnalysis`.
pub(super) fn plain(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let components = match estimator.has_sparse(&["components_"]) {
        false => estimator.matrix(&["components_"])?,
        true => {
            let matrix = estimator.sparse_matrix(&["components_"])?;
            let (rows, columns) = (matrix.len(), matrix.columns());
            estimator.charge(rows.saturating_mul(columns) / SPARSE_NUMBERS)?;
            let values = matrix.to_dense(0..rows);
            Matrix { rows, columns, values, is_vector: false }
        }
    };
    let projection = Projection::on(estimator, components)?;
    // `whiten` is a text or `False`.
    let is_whitened = estimator.find(&["whiten"]).and_then(|whiten| whiten.bool()) != Some(false);
    match estimator.class() == "FastICA" && is_whitened {
        true => Ok(Box::new(projection.centered(estimator, &["mean_"])?)),
        false => Ok(Box::new(projection)),
    }
}

/// How many numbers of a sparse matrix, most of which are 0, count as one of a file.
const SPARSE_NUMBERS: usize = 64;

/// Reads a `LinearDiscriminantAnalysis` as a transformer.
pub(super) fn discriminants(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let scalings = transposed(&estimator.matrix(&["scalings_"])?);
    let count = estimator.count(&["_max_components"])?.min(scalings.rows);
    let mut values = scalings.values;
    values.truncate(count * scalings.columns);
    let projection = Projection::on(estimator, Matrix { rows: count, values, ..scalings })?;
    match estimator.text("solver")? {
        "svd" => Ok(Box::new(projection.centered(estimator, &["xbar_"])?)),
        "eigen" => Ok(Box::new(projection)),
        solver => Err(estimator.unsupported(format_args!("a transformer of solver={solver:?}"))),
    }
}

/// Reads a `PLSRegression`, `PLSCanonical`, `PLSSVD` or `CCA` as a transformer.
pub(super) fn least_squares(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    // `PLSSVD` has its weights only.
    let rotations = transposed(&estimator.matrix(&["x_rotations_", "x_weights_"])?);
    let projection = Projection::on(estimator, rotations)?;
    let mut projection = projection.centered(estimator, &["_x_mean", "x_mean_"])?;
    let deviations = estimator.vector_of_len(&["_x_std", "x_std_"], projection.features)?;
    for component in projection.components.chunks_exact_mut(deviations.len().max(1)) {
        component.iter_mut().zip(&deviations).for_each(|(x, deviation)| *x /= deviation);
    }
    Ok(Box::new(projection))
}

/// The most components of a `FactorAnalysis`: a matrix of their square is inverted.
const MAX_FACTORS: usize = 1024;

/// Reads a `FactorAnalysis`: the expected factors of a row, given its noise.
pub(super) fn factors(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let components = estimator.matrix(&["components_"])?;
    let (count, features) = (components.rows, components.columns);
    if count > MAX_FACTORS {
        return Err(estimator.unsupported(format_args!("more than {MAX_FACTORS} components")));
    }
    let noise = estimator.vector_of_len(&["noise_variance_"], features)?;
    let mut weighted = components.values.clone();
    for row in weighted.chunks_exact_mut(features) {
        row.iter_mut().zip(&noise).for_each(|(x, noise)| *x /= noise);
    }
    let mut precision = Vec::with_capacity(count * count);
    for (number, row) in weighted.chunks_exact(features).enumerate() {
        let others = components.iter().enumerate();
        precision.extend(others.map(|(other, component)| {
            dot(row, component) + if number == other { 1.0 } else { 0.0 }
        }));
    }
    let Some(values) = solved(precision, weighted, count, features) else {
        return Err(estimator.damaged("its components are not independent"));
    };
    let components = Matrix { rows: count, columns: features, values, is_vector: false };
    let projection = Projection::on(estimator, components)?;
    Ok(Box::new(projection.centered(estimator, &["mean_"])?))
}

/// Solves `matrix * x = right`, of `count` rows, by elimination with pivots; `None` if there is no solution.
/// `right` has `width` columns.
fn solved(
    mut matrix: Vec<f64>,
    mut right: Vec<f64>,
    count: usize,
    width: usize,
) -> Option<Vec<f64>> {
    for step in 0..count {
        let size = |row: &usize| matrix.get(row * count + step).map_or(0.0, |x| x.abs());
        let pivot = (step..count).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        swap_rows(&mut matrix, count, step, pivot);
        swap_rows(&mut right, width, step, pivot);
        let diagonal = *matrix.get(step * count + step)?;
        if diagonal == 0.0 || !diagonal.is_finite() {
            return None;
        }
        for row in (0..count).filter(|row| *row != step) {
            let factor = matrix.get(row * count + step)? / diagonal;
            subtract_row(&mut matrix, count, row, step, factor);
            subtract_row(&mut right, width, row, step, factor);
        }
    }
    for (step, row) in right.chunks_exact_mut(width).enumerate() {
        let diagonal = *matrix.get(step * count + step)?;
        row.iter_mut().for_each(|x| *x /= diagonal);
    }
    Some(right)
}

fn swap_rows(matrix: &mut [f64], width: usize, one: usize, other: usize) {
    for column in 0..width {
        matrix.swap(one * width + column, other * width + column);
    }
}

/// Subtracts `factor` times row `from` from row `row`.
fn subtract_row(matrix: &mut [f64], width: usize, row: usize, from: usize, factor: f64) {
    for column in 0..width {
        let taken = matrix.get(from * width + column).copied().unwrap_or(0.0) * factor;
        if let Some(x) = matrix.get_mut(row * width + column) {
            *x -= taken;
        }
    }
}

fn transposed(matrix: &Matrix) -> Matrix {
    let column = |number: usize| matrix.values.iter().skip(number).step_by(matrix.columns).copied();
    let values = (0..matrix.columns).flat_map(column).collect();
    Matrix { rows: matrix.columns, columns: matrix.rows, values, is_vector: false }
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
