//! Functions of single values: `FunctionTransformer` with a function of NumPy, and the inverse of
//! transformers of targets.

use super::accepted::AcceptedValues;
use super::distribution::{PowerColumns, QuantileColumns};
use super::estimator::Estimator;
use super::model::{FeatureRows, StepFacts, Transformer};
use tensorserve_pickle::PickleValue;
use tensorserve_tensor::error::Result;

/// A function of a number.
pub(super) type NumberFunction = fn(f64) -> f64;

/// The function of NumPy or SciPy that `value` names; `None` for any other.
pub(super) fn known_function(value: PickleValue) -> Option<NumberFunction> {
    let name = value.class()?;
    let (module, function) = name.rsplit_once('.')?;
    let library = module.split('.').next();
    if !matches!(library, Some("numpy" | "scipy" | "math")) {
        return None;
    }
    Some(match function {
        "log" => f64::ln,
        "log1p" => f64::ln_1p,
        "log2" => f64::log2,
        "log10" => f64::log10,
        "exp" => f64::exp,
        "exp2" => f64::exp2,
        "expm1" => f64::exp_m1,
        "sqrt" => f64::sqrt,
        "cbrt" => f64::cbrt,
        "square" => |x| x * x,
        "reciprocal" => |x| 1.0 / x,
        "abs" | "absolute" | "fabs" => f64::abs,
        "negative" => |x| -x,
        "positive" => |x| x,
        "sin" => f64::sin,
        "cos" => f64::cos,
        "tan" => f64::tan,
        "tanh" => f64::tanh,
        "sinh" => f64::sinh,
        "cosh" => f64::cosh,
        "arctan" => f64::atan,
        "arcsin" => f64::asin,
        "arccos" => f64::acos,
        "arcsinh" => f64::asinh,
        "floor" => f64::floor,
        "ceil" => f64::ceil,
        "trunc" => f64::trunc,
        "rint" => f64::round_ties_even,
        "deg2rad" | "radians" => |x| x * (std::f64::consts::PI / 180.0),
        "rad2deg" | "degrees" => |x| x * (180.0 / std::f64::consts::PI),
        "sign" => |x| match x {
            x if x > 0.0 => 1.0,
            x if x < 0.0 => -1.0,
            // 0 and NaN.
            x => x + 0.0,
        },
        "expit" => super::numeric::logistic,
        "isnan" => |x| super::numeric::indicator(x.is_nan()),
        _ => return None,
    })
}

/// A `FunctionTransformer`.
struct FunctionTransformer {
    columns: usize,
    function: NumberFunction,
    /// Whether only finite numbers are accepted.
    validates: bool,
}

impl Transformer for FunctionTransformer {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.columns).accepting(if self.validates {
            AcceptedValues::Finite
        } else {
            AcceptedValues::Any
        })
    }

    fn output(&self) -> usize {
        self.columns
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        to.iter_mut().zip(rows.values).for_each(|(to, x)| *to = (self.function)(*x));
        Ok(())
    }
}

/// Reads a `FunctionTransformer` of `columns` columns with a function.
pub(super) fn transformer(estimator: &Estimator, columns: usize) -> Result<Box<dyn Transformer>> {
    let value = estimator.attribute(&["func"])?;
    let has_arguments =
        estimator.find(&["kw_args"]).is_some_and(|arguments| arguments.entries().next().is_some());
    let function = known_function(value).filter(|_| !has_arguments).ok_or_else(|| {
        let name = value.description();
        estimator.unsupported(format_args!(
            "the function {name} (only functions of NumPy of one argument are)"
        ))
    })?;
    let validates = estimator.flag("validate", false)?;
    Ok(Box::new(FunctionTransformer { columns, function, validates }))
}

/// The inverse of a transformer of targets.
pub(super) enum TargetFunction {
    Identity,
    Function(NumberFunction),
    /// `x * scale + shift` for each column.
    Affine {
        scale: Vec<f64>,
        shift: Vec<f64>,
    },
    /// `(x - shift) / scale` for each column.
    InverseAffine {
        scale: Vec<f64>,
        shift: Vec<f64>,
    },
    Power(PowerColumns),
    Quantile(QuantileColumns),
}

impl TargetFunction {
    /// Reads the inverse of `transformer`, for `columns` targets.
    pub(super) fn inverse(transformer: &Estimator, columns: usize) -> Result<Self> {
        let numbers = |names: &[&str], default: f64| -> Result<Vec<f64>> {
            match transformer.find(names) {
                Some(_) => transformer.vector_of_len(names, columns),
                None => Ok(vec![default; columns]),
            }
        };
        match transformer.class() {
            "FunctionTransformer" => match transformer.find(&["inverse_func"]) {
                None => Ok(TargetFunction::Identity),
                Some(value) => {
                    let function = known_function(value).ok_or_else(|| {
                        let name = value.description();
                        transformer.unsupported(format_args!("the inverse function {name}"))
                    })?;
                    Ok(TargetFunction::Function(function))
                }
            },
            "StandardScaler" => {
                let with_mean = transformer.flag("with_mean", true)?;
                let shift = if with_mean { numbers(&["mean_"], 0.0)? } else { vec![0.0; columns] };
                Ok(TargetFunction::Affine { scale: numbers(&["scale_"], 1.0)?, shift })
            }
            "RobustScaler" => Ok(TargetFunction::Affine {
                scale: numbers(&["scale_"], 1.0)?,
                shift: numbers(&["center_"], 0.0)?,
            }),
            "MaxAbsScaler" => Ok(TargetFunction::Affine {
                scale: numbers(&["scale_"], 1.0)?,
                shift: vec![0.0; columns],
            }),
            "MinMaxScaler" => Ok(TargetFunction::InverseAffine {
                scale: numbers(&["scale_"], 1.0)?,
                shift: numbers(&["min_"], 0.0)?,
            }),
            "PowerTransformer" => {
                PowerColumns::read(transformer, Some(columns)).map(TargetFunction::Power)
            }
            "QuantileTransformer" => {
                QuantileColumns::read(transformer, Some(columns)).map(TargetFunction::Quantile)
            }
            _ => Err(transformer.unsupported("as a transformer of targets this one")),
        }
    }

    /// Applies it to rows of `columns` values.
    pub(super) fn apply(&self, values: &mut [f64], columns: usize) {
        let rows = values.chunks_exact_mut(columns.max(1));
        match self {
            TargetFunction::Identity => {}
            TargetFunction::Function(function) => {
                values.iter_mut().for_each(|value| *value = function(*value));
            }
            TargetFunction::Affine { scale, shift } => {
                for row in rows {
                    for ((value, scale), shift) in row.iter_mut().zip(scale).zip(shift) {
                        *value = *value * scale + shift;
                    }
                }
            }
            TargetFunction::InverseAffine { scale, shift } => {
                for row in rows {
                    for ((value, scale), shift) in row.iter_mut().zip(scale).zip(shift) {
                        *value = (*value - shift) / scale;
                    }
                }
            }
            TargetFunction::Power(columns) => rows.for_each(|row| columns.invert(row)),
            TargetFunction::Quantile(columns) => rows.for_each(|row| columns.invert(row)),
        }
    }
}
