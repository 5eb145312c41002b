//! `PolynomialFeatures`.

use super::estimator::Estimator;
use super::model::{FeatureRows, StepFacts, Transformer};
use tensorserve_tensor::error::Result;

/// The highest degree of the products that are made. With a higher degree, the number of columns does
/// not match the step that follows, and the model is refused.
const MAX_DEGREE: usize = 64;

/// The most columns that a transformer may make.
const MAX_COLUMNS: usize = 1 << 16;

/// The most factors of all products.
const MAX_FACTORS: usize = 8 * MAX_COLUMNS;

/// Products of columns.
struct PolynomialFeatures {
    columns: usize,
    /// The columns that each product multiplies, one product after the other.
    factors: Vec<usize>,
    /// Where the factors of each product end in `factors`.
    ends: Vec<usize>,
}

impl Transformer for PolynomialFeatures {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.columns)
    }

    fn output(&self) -> usize {
        self.ends.len()
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.ends.len().max(1))) {
            let mut start = 0;
            for (to, end) in to.iter_mut().zip(&self.ends) {
                let factors = self.factors.get(start..*end).unwrap_or_default();
                let values = factors.iter().filter_map(|column| row.get(*column));
                *to = values.product();
                start = *end;
            }
        }
        Ok(())
    }
}

/// Reads `PolynomialFeatures`. Products are ordered by degree, then by columns.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let columns = count_columns(estimator)?;
    let (lowest, highest) = read_degree(estimator)?;
    let interaction_only = estimator.flag("interaction_only", false)?;
    let include_bias = estimator.flag("include_bias", true)?;
    let mut features = PolynomialFeatures { columns, factors: Vec::new(), ends: Vec::new() };
    if include_bias {
        features.ends.push(0);
    }
    for degree in lowest.max(1)..=highest.min(MAX_DEGREE) {
        if interaction_only && degree > columns {
            break;
        }
        let mut product = first_product(degree, interaction_only);
        loop {
            features.factors.extend_from_slice(&product);
            features.ends.push(features.factors.len());
            if features.ends.len() > MAX_COLUMNS || features.factors.len() > MAX_FACTORS {
                return Err(estimator.unsupported(format_args!("more than {MAX_COLUMNS} columns")));
            }
            if !next_product(&mut product, columns, interaction_only) {
                break;
            }
        }
    }
    if features.ends.is_empty() {
        return Err(estimator.damaged("it makes no columns"));
    }
    Ok(Box::new(features))
}

fn count_columns(estimator: &Estimator) -> Result<usize> {
    let columns = estimator.features().or_else(|| {
        let columns = estimator.find(&["n_input_features_"])?.int()?;
        usize::try_from(columns).ok()
    });
    let columns = columns.filter(|columns| *columns > 0);
    columns.ok_or_else(|| estimator.damaged("its number of features is not recorded"))
}

/// The lowest and the highest degree.
fn read_degree(estimator: &Estimator) -> Result<(usize, usize)> {
    if let Some(highest) = estimator.attribute(&["degree"])?.int() {
        return Ok((0, usize::try_from(highest).unwrap_or(usize::MAX)));
    }
    match *estimator.vector(&["degree"])? {
        [lowest, highest] => Ok((lowest as usize, highest as usize)),
        _ => Err(estimator.damaged("degree is not a number or a pair")),
    }
}

/// The columns of the first product of `degree` factors.
fn first_product(degree: usize, interaction_only: bool) -> Vec<usize> {
    match interaction_only {
        true => (0..degree).collect(),
        false => vec![0; degree],
    }
}

/// Replaces `product` by the next one of its degree. Returns whether there is one.
fn next_product(product: &mut [usize], columns: usize, interaction_only: bool) -> bool {
    let degree = product.len();
    // The last factor that can become a later column. Those behind it become the first that may
    // follow it.
    for place in (0..degree).rev() {
        let last = if interaction_only { columns - degree + place } else { columns - 1 };
        let Some(column) = product.get(place).copied().filter(|column| *column < last) else {
            continue;
        };
        for (offset, factor) in product.iter_mut().skip(place).enumerate() {
            *factor = column + 1 + if interaction_only { offset } else { 0 };
        }
        return true;
    }
    false
}
