//! Transformers: each makes columns of columns.

use super::estimator::Estimator;
use super::model::{Rows, Takes, Transform, dot};
use super::{columns, select};
use tensorserve_tensor::error::Result;

/// Columns that a transformer may make.
const MOST_COLUMNS: usize = 1 << 16;

/// `(x - shift) * factor + offset`, column by column, and then within bounds.
struct Affine {
    shift: Vec<f64>,
    factor: Vec<f64>,
    offset: Vec<f64>,
    /// Whether to divide by the factor, and not to multiply: it makes another last digit.
    divides: bool,
    bounds: Option<(f64, f64)>,
}

impl Transform for Affine {
    fn input(&self) -> usize {
        self.shift.len()
    }

    fn output(&self) -> usize {
        self.shift.len()
    }

    fn takes(&self) -> Takes {
        Takes::Missing
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(rows.columns)) {
            let columns = self.shift.iter().zip(&self.factor).zip(&self.offset);
            for ((x, to), ((shift, factor), offset)) in row.iter().zip(&mut *to).zip(columns) {
                *to = match self.divides {
                    true => (x - shift) / factor,
                    false => (x - shift) * factor + offset,
                };
            }
        }
        if let Some((low, high)) = self.bounds {
            for value in to {
                // NaN stays.
                *value = if *value < low {
                    low
                } else if *value > high {
                    high
                } else {
                    *value
                };
            }
        }
        Ok(())
    }
}

fn no_shift(columns: usize) -> Vec<f64> {
    vec![0.0; columns]
}

fn no_factor(columns: usize) -> Vec<f64> {
    vec![1.0; columns]
}

/// `(x - center) / scale`, either of which may be missing.
fn standardized(of: &Estimator, center: &str, scale: &str) -> Result<Affine> {
    let shift = of.find(&[center]).map(|_| of.vector(&[center])).transpose()?;
    let factor = of.find(&[scale]).map(|_| of.vector(&[scale])).transpose()?;
    let known = shift.as_ref().or(factor.as_ref()).map(Vec::len).or(of.features());
    let columns = known.ok_or_else(|| of.fault("it has not been fitted"))?;
    let shift = shift.unwrap_or_else(|| no_shift(columns));
    let factor = factor.unwrap_or_else(|| no_factor(columns));
    if shift.len() != columns || factor.len() != columns {
        return Err(of.fault("its center and its scale do not have the same length"));
    }
    let offset = no_shift(columns);
    Ok(Affine { shift, factor, offset, divides: true, bounds: None })
}

fn standard_scaler(of: &Estimator) -> Result<Affine> {
    let mut scaler = standardized(of, "mean_", "scale_")?;
    // Before 0.17 the scale is called std_.
    if of.find(&["scale_"]).is_none() && of.find(&["std_"]).is_some() {
        scaler.factor = of.vector_of(&["std_"], scaler.shift.len())?;
    }
    // The mean is kept even where it is not taken away.
    if !of.flag("with_mean", true)? {
        scaler.shift.fill(0.0);
    }
    if !of.flag("with_std", true)? {
        scaler.factor.fill(1.0);
    }
    Ok(scaler)
}

fn robust_scaler(of: &Estimator) -> Result<Affine> {
    let mut scaler = standardized(of, "center_", "scale_")?;
    if !of.flag("with_centering", true)? {
        scaler.shift.fill(0.0);
    }
    if !of.flag("with_scaling", true)? {
        scaler.factor.fill(1.0);
    }
    Ok(scaler)
}

fn min_max_scaler(of: &Estimator) -> Result<Affine> {
    let factor = of.vector(&["scale_"])?;
    let offset = of.vector_of(&["min_"], factor.len())?;
    let shift = no_shift(factor.len());
    let bounds = match of.flag("clip", false)? {
        false => None,
        true => match *of.vector(&["feature_range"])? {
            [low, high] => Some((low, high)),
            _ => return Err(of.fault("feature_range is no pair")),
        },
    };
    Ok(Affine { shift, factor, offset, divides: false, bounds })
}

fn max_abs_scaler(of: &Estimator) -> Result<Affine> {
    let mut scaler = standardized(of, "", "scale_")?;
    // Since 1.8.
    if of.flag("clip", false)? {
        scaler.bounds = Some((-1.0, 1.0));
    }
    Ok(scaler)
}

/// Each row divided by its length.
struct Normalizer {
    columns: usize,
    norm: Norm,
}

#[derive(Clone, Copy)]
enum Norm {
    Sum,
    Length,
    Largest,
}

impl Transform for Normalizer {
    fn input(&self) -> usize {
        self.columns
    }

    fn output(&self) -> usize {
        self.columns
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(rows.columns)) {
            let length = match self.norm {
                Norm::Sum => row.iter().map(|x| x.abs()).sum(),
                Norm::Length => dot(row, row).sqrt(),
                Norm::Largest => row.iter().map(|x| x.abs()).fold(0.0, f64::max),
            };
            let length = if length == 0.0 { 1.0 } else { length };
            to.iter_mut().zip(row).for_each(|(to, x)| *to = x / length);
        }
        Ok(())
    }
}

struct Binarizer {
    columns: usize,
    threshold: f64,
}

impl Transform for Binarizer {
    fn input(&self) -> usize {
        self.columns
    }

    fn output(&self) -> usize {
        self.columns
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
        for (to, x) in to.iter_mut().zip(rows.values) {
            *to = f64::from(u8::from(*x > self.threshold));
        }
        Ok(())
    }
}

/// Products of powers of columns.
struct Polynomial {
    columns: usize,
    /// For each product, the columns that it multiplies, one after the other.
    factors: Vec<usize>,
    /// Where the factors of each product end.
    ends: Vec<usize>,
}

impl Transform for Polynomial {
    fn input(&self) -> usize {
        self.columns
    }

    fn output(&self) -> usize {
        self.ends.len()
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
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

/// All products of up to a degree: by degree, then by columns.
fn polynomial(of: &Estimator) -> Result<Polynomial> {
    let columns = of.features().or(of
        .find(&["n_input_features_"])
        .and_then(|n| n.int().and_then(|count| usize::try_from(count).ok())));
    let columns = columns.filter(|columns| *columns > 0);
    let columns = columns.ok_or_else(|| of.fault("it does not say its number of columns"))?;
    let (least, most) = match of.attribute(&["degree"])?.int() {
        Some(most) => (0, usize::try_from(most).unwrap_or(usize::MAX)),
        None => match *of.vector(&["degree"])? {
            [least, most] => (least as usize, most as usize),
            _ => return Err(of.fault("its degree is none")),
        },
    };
    let (once, bias) = (of.flag("interaction_only", false)?, of.flag("include_bias", true)?);
    let mut made = Polynomial { columns, factors: Vec::new(), ends: Vec::new() };
    if bias {
        made.ends.push(0);
    }
    for degree in least.max(1)..=most.min(64) {
        let mut product: Vec<usize> = if once { (0..degree).collect() } else { vec![0; degree] };
        if once && degree > columns {
            break;
        }
        loop {
            made.factors.extend_from_slice(&product);
            made.ends.push(made.factors.len());
            if made.ends.len() > MOST_COLUMNS || made.factors.len() > 8 * MOST_COLUMNS {
                return Err(of.unsupported(format_args!("more than {MOST_COLUMNS} columns")));
            }
            // The last place that can go further right, and all behind it as far left as can be.
            let limit = |place: usize| match once {
                true => columns - degree + place,
                false => columns - 1,
            };
            let next = (0..degree)
                .rev()
                .find(|place| product.get(*place).is_some_and(|column| *column < limit(*place)));
            let Some(place) = next else { break };
            let start = product.get(place).copied().unwrap_or(0) + 1;
            let behind = product.iter_mut().skip(place).enumerate();
            behind.for_each(|(more, column)| *column = if once { start + more } else { start });
        }
    }
    if made.ends.is_empty() {
        return Err(of.fault("it makes no column"));
    }
    Ok(made)
}

/// Products with vectors, and constants.
struct Projection {
    from: usize,
    vectors: Vec<f64>,
    constants: Vec<f64>,
    factors: Option<Vec<f64>>,
    shift: Option<Vec<f64>>,
}

impl Transform for Projection {
    fn input(&self) -> usize {
        self.from
    }

    fn output(&self) -> usize {
        self.constants.len()
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
        let mut shifted = vec![0.0; self.from];
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.constants.len().max(1))) {
            let row = match &self.shift {
                None => row,
                Some(shift) => {
                    let apart = row.iter().zip(shift).map(|(x, shift)| x - shift);
                    shifted.iter_mut().zip(apart).for_each(|(to, apart)| *to = apart);
                    &shifted
                }
            };
            let vectors = self.vectors.chunks_exact(self.from);
            for ((to, vector), constant) in to.iter_mut().zip(vectors).zip(&self.constants) {
                *to = dot(row, vector) + constant;
            }
            if let Some(factors) = &self.factors {
                to.iter_mut().zip(factors).for_each(|(to, factor)| *to *= factor);
            }
        }
        Ok(())
    }
}

fn projection(of: &Estimator) -> Result<Projection> {
    let components = of.matrix(&["components_"])?;
    let (from, count) = (components.columns, components.rows);
    if count == 0 {
        return Err(of.fault("components_ is empty"));
    }
    let shift = match of.find(&["mean_"]) {
        Some(_) => Some(of.vector_of(&["mean_"], from)?),
        None => None,
    };
    let factors = match of.flag("whiten", false)? {
        false => None,
        true => {
            let variances = of.vector_of(&["explained_variance_"], count)?;
            // As new versions do: a variance of nothing would make infinity.
            let scale = |variance: f64| match variance.sqrt() {
                scale if scale < f64::EPSILON && !of.is_older_than(1, 5) => f64::EPSILON,
                scale => scale,
            };
            Some(variances.into_iter().map(|variance| 1.0 / scale(variance)).collect())
        }
    };
    let constants = vec![0.0; count];
    Ok(Projection { from, vectors: components.values, constants, factors, shift })
}

/// Values in place of missing ones.
struct Imputer {
    from: usize,
    /// The columns that stay.
    kept: Vec<usize>,
    /// What is put in each of them.
    fill: Vec<f64>,
    missing: f64,
    /// Columns that tell of others whether they are missing.
    indicated: Vec<usize>,
}

impl Imputer {
    fn is_missing(&self, value: f64) -> bool {
        value == self.missing || (value.is_nan() && self.missing.is_nan())
    }
}

impl Transform for Imputer {
    fn input(&self) -> usize {
        self.from
    }

    fn output(&self) -> usize {
        self.kept.len() + self.indicated.len()
    }

    fn takes(&self) -> Takes {
        if self.missing.is_nan() { Takes::Missing } else { Takes::Finite }
    }

    fn apply(&self, rows: Rows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.output().max(1))) {
            let at = |column: &usize| row.get(*column).copied().unwrap_or(f64::NAN);
            let filled = self.kept.iter().zip(&self.fill).map(|(column, fill)| match at(column) {
                value if self.is_missing(value) => *fill,
                value => value,
            });
            let told = self
                .indicated
                .iter()
                .map(|column| f64::from(u8::from(self.is_missing(at(column)))));
            to.iter_mut().zip(filled.chain(told)).for_each(|(to, value)| *to = value);
        }
        Ok(())
    }
}

fn imputer(of: &Estimator) -> Result<Imputer> {
    let statistics = of.vector(&["statistics_"])?;
    let missing = match of.find(&["missing_values"]) {
        None => f64::NAN,
        Some(value) => match (value.text(), value.float()) {
            (Some("NaN"), _) => f64::NAN,
            (_, Some(number)) => number,
            _ => return Err(of.unsupported("missing values that are no numbers")),
        },
    };
    // A column of which nothing was known is dropped, but where it is to be kept.
    let keeps_all = of.flag("keep_empty_features", false)? || of.text("strategy")? == "constant";
    let columns = statistics.iter().copied().enumerate();
    let kept: Vec<(usize, f64)> = columns.filter(|(_, fill)| keeps_all || !fill.is_nan()).collect();
    if matches!(of.find(&["axis"]).and_then(|axis| axis.int()), Some(1)) {
        return Err(of.unsupported("filling by rows"));
    }
    let mut indicated = Vec::new();
    if of.flag("add_indicator", false)? {
        let indicator = of.child(of.attribute(&["indicator_"])?)?;
        for column in indicator.vector(&["features_"])? {
            let column = column as usize;
            if column >= statistics.len() {
                return Err(of.fault("its indicator has columns that are not there"));
            }
            indicated.push(column);
        }
    }
    let (kept, fill) = kept.into_iter().unzip();
    Ok(Imputer { from: statistics.len(), kept, fill, missing, indicated })
}

/// The transformer `of`, which is given `known` columns, if that is known.
pub(super) fn read(of: &Estimator, known: Option<usize>) -> Result<Box<dyn Transform>> {
    let columns = || of.features().or(known).filter(|columns| *columns > 0);
    Ok(match of.class() {
        "StandardScaler" => Box::new(standard_scaler(of)?),
        "MinMaxScaler" => Box::new(min_max_scaler(of)?),
        "MaxAbsScaler" => Box::new(max_abs_scaler(of)?),
        "RobustScaler" => Box::new(robust_scaler(of)?),
        "PolynomialFeatures" => Box::new(polynomial(of)?),
        "PCA" | "IncrementalPCA" | "TruncatedSVD" => Box::new(projection(of)?),
        "SimpleImputer" | "Imputer" => Box::new(imputer(of)?),
        "Normalizer" | "Binarizer" => {
            // Before 0.24 these two do not say what they were fitted with.
            let unknown = || of.unsupported("one that does not say its number of columns");
            let columns = columns().ok_or_else(unknown)?;
            if of.class() == "Binarizer" {
                Box::new(Binarizer { columns, threshold: of.number(&["threshold"])? })
            } else {
                let norm = match of.text("norm")? {
                    "l1" => Norm::Sum,
                    "l2" => Norm::Length,
                    "max" => Norm::Largest,
                    other => return Err(of.fault(format_args!("its norm is {other:?}"))),
                };
                Box::new(Normalizer { columns, norm })
            }
        }
        "FunctionTransformer" if of.find(&["func"]).is_none() => {
            let unknown = || of.unsupported("one that does not say its number of columns");
            Box::new(columns::Same(columns().ok_or_else(unknown)?))
        }
        _ => match (select::read(of)?, columns::read(of)?) {
            (Some(selection), _) => Box::new(selection),
            (None, Some(transformer)) => transformer,
            (None, None) => return Err(of.unsupported("this transformer")),
        },
    })
}
