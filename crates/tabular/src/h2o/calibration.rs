//! Calibrated probabilities of two classes.
//!
//! Source: `CalibrationMojoHelper` and `IsotonicRegressionUtils` of h2o-genmodel 3.46.0.6.

use std::cmp::Ordering;

use super::files::MojoFiles;
use super::head::MojoHead;
use super::info::MojoInfo;
use super::{damaged, unsupported};
use tensorserve_tensor::error::Result;

/// How probabilities are calibrated.
pub(super) enum Calibration {
    /// A logistic regression on the probability of the first class: factor and intercept.
    Platt(f64, f64),
    Isotonic(Isotonic),
}

/// A function of straight lines between points.
pub(super) struct Isotonic {
    least: f64,
    most: f64,
    xs: Vec<f64>,
    ys: Vec<f64>,
}

impl Calibration {
    /// The calibration of a model, if it has one.
    pub(super) fn read(files: &MojoFiles, head: &MojoHead) -> Result<Option<Self>> {
        let info = &head.info;
        let Some(method) = info.text("calib_method") else { return Ok(None) };
        if head.classes != 2 {
            return Err(damaged("a calibration needs two classes"));
        }
        match method {
            "platt" => match *info.numbers("calib_glm_beta")? {
                [factor, intercept] => Ok(Some(Calibration::Platt(factor, intercept))),
                _ => Err(damaged("model.ini: calib_glm_beta does not have two numbers")),
            },
            "isotonic" => Ok(Some(Calibration::Isotonic(Isotonic::read(files, info)?))),
            other => Err(unsupported(format!("the calibration {other:?} is not supported"))),
        }
    }

    /// The calibrated probability of the second class.
    pub(super) fn second(&self, first: f64, second: f64) -> f64 {
        match self {
            Calibration::Platt(factor, intercept) => {
                1.0 / ((-(first * factor + intercept)).exp() + 1.0)
            }
            Calibration::Isotonic(isotonic) => isotonic.at(second),
        }
    }
}

impl Isotonic {
    fn read(files: &MojoFiles, info: &MojoInfo) -> Result<Self> {
        let isotonic = Isotonic {
            least: info.number("calib_min_x")?,
            most: info.number("calib_max_x")?,
            xs: files.counted_floats("calib/thresholds_x")?,
            ys: files.counted_floats("calib/thresholds_y")?,
        };
        if isotonic.xs.is_empty() || isotonic.xs.len() != isotonic.ys.len() {
            return Err(damaged("the points of the calibration are not pairs"));
        }
        Ok(isotonic)
    }

    fn at(&self, x: f64) -> f64 {
        if x.is_nan() {
            return f64::NAN;
        }
        let x = if x < self.least { self.least } else { x.min(self.most) };
        let point = |index: usize| Some((*self.xs.get(index)?, *self.ys.get(index)?));
        let next = match search(&self.xs, x) {
            Ok(found) => return self.ys.get(found).copied().unwrap_or(f64::NAN),
            Err(next) => next,
        };
        match (next.checked_sub(1).and_then(point), point(next)) {
            (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) / (x1 - x0) * (x - x0),
            _ => f64::NAN,
        }
    }
}

/// Where `x` is among sorted numbers, or would be. Points of a calibration share their xs, so it matters
/// which of them is found: the one that Java's `Arrays.binarySearch` finds.
fn search(sorted: &[f64], x: f64) -> std::result::Result<usize, usize> {
    let (mut low, mut high) = (0, sorted.len());
    while low < high {
        // Java's bounds include the upper one.
        let middle = (low + high - 1) / 2;
        let Some(found) = sorted.get(middle) else { break };
        match found.total_cmp(&x) {
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
            Ordering::Equal => return Ok(middle),
        }
    }
    Err(low)
}
