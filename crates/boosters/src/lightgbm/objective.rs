//! The training objective, as far as it affects predictions: how the sums of a row become its
//! prediction.
//!
//! The arithmetic and its order are those of `ObjectiveFunction::ConvertOutput` of the library.

use tensorserve_tabular::numeric::{logistic, softmax};
use tensorserve_tensor::error::{Error, Result};

/// How the sums of a row become its prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OutputTransform {
    Identity,
    /// The square of the sum, with its sign: labels were square roots in training.
    SignedSquare,
    /// With the factor of the sum.
    Sigmoid(f64),
    Exponential,
    /// ln(1 + exp(x)).
    Softplus,
    Softmax,
}

/// What a model was trained for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Objective {
    pub(super) transform: OutputTransform,
    /// Whether predictions are probabilities of classes.
    pub(super) is_classification: bool,
}

impl Objective {
    /// The objective of a model without one, or with one that the user wrote: predictions are the
    /// sums.
    pub(super) const CUSTOM: Objective =
        Objective { transform: OutputTransform::Identity, is_classification: false };

    /// The objective that `text` describes: its name, and parameters (`binary sigmoid:1`).
    pub(super) fn read(text: &str) -> Result<Self> {
        let mut words = text.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let transform = match name {
            "regression"
            | "regression_l2"
            | "mean_squared_error"
            | "mse"
            | "l2"
            | "l2_root"
            | "root_mean_squared_error"
            | "rmse"
            | "regression_l1"
            | "mean_absolute_error"
            | "l1"
            | "mae"
            | "fair"
            | "quantile"
            | "mape"
            | "mean_absolute_percentage_error" => match words.any(|word| word == "sqrt") {
                true => OutputTransform::SignedSquare,
                false => OutputTransform::Identity,
            },
            "huber" | "lambdarank" | "rank_xendcg" | "xendcg" | "xe_ndcg" | "xe_ndcg_mart"
            | "xendcg_mart" | "none" | "null" | "custom" | "na" => OutputTransform::Identity,
            "poisson" | "gamma" | "tweedie" => OutputTransform::Exponential,
            "binary" | "multiclassova" | "multiclass_ova" | "ova" | "ovr" => {
                OutputTransform::Sigmoid(sigmoid_factor(words)?)
            }
            "multiclass" | "softmax" => OutputTransform::Softmax,
            "cross_entropy" | "xentropy" => OutputTransform::Sigmoid(1.0),
            "cross_entropy_lambda" | "xentlambda" => OutputTransform::Softplus,
            _ => {
                return Err(Error::unsupported(format!(
                    "the objective {name:?} is not supported; train the model with one of \
                     LightGBM's own objectives, or save it without one"
                )));
            }
        };
        let is_classification = matches!(
            name,
            "binary"
                | "multiclassova"
                | "multiclass_ova"
                | "ova"
                | "ovr"
                | "multiclass"
                | "softmax"
        );
        Ok(Objective { transform, is_classification })
    }
}

/// The parameter `sigmoid` of an objective.
fn sigmoid_factor<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<f64> {
    let value = words.find_map(|word| word.strip_prefix("sigmoid:"));
    let value =
        value.ok_or_else(|| Error::damaged("the objective has no parameter \"sigmoid\""))?;
    // The library reads this number with its own function, which rounds otherwise.
    match decimal(value) {
        Some(factor) if factor > 0.0 && factor.is_finite() => Ok(factor),
        _ => Err(Error::damaged(format!(
            "the objective's \"sigmoid\" is {value:?}, not a number above 0"
        ))),
    }
}

/// A number without a sign, as `Common::Atof` of the library reads it: the digits before and after the
/// point are added, and the result is scaled by powers of ten. `None` if it is not a number.
fn decimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut value = digits(whole)?;
    if mantissa.contains('.') {
        value += digits(fraction)? / power_of_ten(i32::try_from(fraction.len()).ok()?);
    }
    let scale = scale_of(exponent.unsigned_abs());
    Some(if exponent < 0 { value / scale } else { value * scale })
}

fn digits(text: &str) -> Option<f64> {
    let mut value = 0.0;
    for byte in text.bytes() {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value = value * 10.0 + f64::from(digit);
    }
    Some(value)
}

/// `Common::Pow` of the library for the base 10.
fn power_of_ten(power: i32) -> f64 {
    let (mut base, mut power, mut factor) = (10.0_f64, power, 1.0_f64);
    // The factors of odd steps are multiplied from the last to the first there; all are exact up to
    // 10^22.
    while power > 0 {
        if power % 2 == 0 {
            (base, power) = (base * base, power / 2);
        } else if power % 3 == 0 {
            (base, power) = (base * base * base, power / 3);
        } else {
            (factor, power) = (factor * base, power - 1);
        }
    }
    factor
}

fn scale_of(exponent: u32) -> f64 {
    let mut left = exponent.min(308);
    let mut scale = 1.0;
    for (step, factor) in [(50, 1e50), (8, 1e8), (1, 10.0)] {
        while left >= step {
            scale *= factor;
            left -= step;
        }
    }
    scale
}

impl OutputTransform {
    /// Turns the sums of rows, `sums` for each, into predictions.
    pub(super) fn apply(self, rows: &mut [f64], sums: usize) {
        match self {
            OutputTransform::Identity => {}
            OutputTransform::SignedSquare => rows.iter_mut().for_each(|x| *x = signed_square(*x)),
            OutputTransform::Sigmoid(factor) => {
                // As the library negates: NaN keeps its sign.
                rows.iter_mut().for_each(|x| *x = logistic(-(-factor * *x)));
            }
            OutputTransform::Exponential => rows.iter_mut().for_each(|x| *x = x.exp()),
            OutputTransform::Softplus => rows.iter_mut().for_each(|x| *x = x.exp().ln_1p()),
            OutputTransform::Softmax => rows.chunks_exact_mut(sums).for_each(softmax),
        }
    }
}

fn signed_square(x: f64) -> f64 {
    let sign = f64::from(i8::from(x > 0.0) - i8::from(x < 0.0));
    sign * x * x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predict(objective: &str, sums: &[f64]) -> Vec<f64> {
        let mut rows = sums.to_vec();
        Objective::read(objective).expect("known").transform.apply(&mut rows, sums.len());
        rows
    }

    #[test]
    fn predictions_of_sums() {
        assert_eq!(predict("regression", &[-1.5]), [-1.5]);
        assert_eq!(predict("regression sqrt", &[-1.5, 2.0, 0.0]), [-2.25, 4.0, 0.0]);
        assert_eq!(predict("huber sqrt", &[-1.5]), [-1.5]);
        assert_eq!(predict("binary sigmoid:1", &[0.0, 1e9, -1e9]), [0.5, 1.0, 0.0]);
        assert_eq!(predict("binary sigmoid:2", &[0.5]), predict("cross_entropy", &[1.0]));
        assert_eq!(predict("tweedie tweedie_variance_power:1.5", &[0.0]), [1.0]);
        assert_eq!(predict("cross_entropy_lambda", &[0.0]), [2.0_f64.ln()]);
        assert_eq!(predict("multiclass num_class:2", &[7.0, 7.0]), [0.5, 0.5]);
        assert!(predict("multiclass num_class:2", &[f64::NAN, 1.0])[0].is_nan());
        assert_eq!(predict("custom", &[3.0]), [3.0]);
    }

    #[test]
    fn numbers_of_the_objective_are_read_as_the_library_does() {
        assert_eq!(decimal("1"), Some(1.0));
        assert_eq!(decimal("0.7"), Some(0.7));
        assert_eq!(decimal("1.37"), Some(1.0 + 37.0 / 100.0));
        assert_eq!(decimal("1e-05"), Some(1.0 / 1e5));
        assert_eq!(decimal("2.5E+3"), Some(2500.0));
        for wrong in ["x", "1.x", "1e", "-1", "0x1"] {
            assert_eq!(decimal(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unknown_objectives_and_wrong_parameters_are_named() {
        let error = Objective::read("mine sigmoid:1").expect_err("unknown");
        assert_eq!(error.code(), tensorserve_tensor::error::Code::Unimplemented);
        assert!(error.message().contains("\"mine\""), "{error}");
        for wrong in ["binary", "binary sigmoid:0", "binary sigmoid:-1", "ova sigmoid:x"] {
            assert!(Objective::read(wrong).is_err(), "{wrong}");
        }
    }
}
