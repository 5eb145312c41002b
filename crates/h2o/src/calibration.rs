//! Calibrated probabilities of two classes.
//!
//! Source: `CalibrationMojoHelper` and `IsotonicRegressionUtils` of h2o-genmodel 3.46.0.6.

use super::files::MojoFiles;
use super::head::MojoHead;
use super::info::MojoInfo;
use tensorserve_tabular::numeric::{Isotonic, Located, logistic};
use tensorserve_tensor::error::{Error, Result};

/// How probabilities are calibrated.
pub(super) enum MojoCalibration {
    /// A logistic regression on the probability of the first class: factor and intercept.
    Platt(f64, f64),
    Isotonic {
        least: f64,
        most: f64,
        points: Isotonic,
    },
}

impl MojoCalibration {
    /// The calibration of a model, if it has one.
    pub(super) fn read(files: &MojoFiles, head: &MojoHead) -> Result<Option<Self>> {
        let info = &head.info;
        let Some(method) = info.text("calib_method") else { return Ok(None) };
        if head.classes != 2 {
            return Err(Error::damaged("a calibration needs two classes"));
        }
        match method {
            "platt" => match *info.numbers("calib_glm_beta")? {
                [factor, intercept] => Ok(Some(MojoCalibration::Platt(factor, intercept))),
                _ => Err(Error::damaged("model.ini: calib_glm_beta does not have two numbers")),
            },
            "isotonic" => read_isotonic(files, info).map(Some),
            other => Err(Error::unsupported(format!("the calibration {other:?} is not supported"))),
        }
    }

    /// The calibrated probability of the second class.
    pub(super) fn second(&self, first: f64, second: f64) -> f64 {
        match self {
            MojoCalibration::Platt(factor, intercept) => logistic(first * factor + intercept),
            MojoCalibration::Isotonic { .. } if second.is_nan() => f64::NAN,
            MojoCalibration::Isotonic { least, most, points } => {
                let bounded = if second < *least { *least } else { second.min(*most) };
                interpolate(points, bounded)
            }
        }
    }
}

fn read_isotonic(files: &MojoFiles, info: &MojoInfo) -> Result<MojoCalibration> {
    let (least, most) = (info.number("calib_min_x")?, info.number("calib_max_x")?);
    let xs = files.counted_floats("calib/thresholds_x")?;
    let points = Isotonic::new(xs, files.counted_floats("calib/thresholds_y")?);
    let points =
        points.ok_or_else(|| Error::damaged("the points of the calibration are not pairs"))?;
    Ok(MojoCalibration::Isotonic { least, most, points })
}

fn interpolate(points: &Isotonic, x: f64) -> f64 {
    match points.locate(x) {
        Located::At(y) => y,
        Located::Between((x0, y0), (x1, y1)) => y0 + (y1 - y0) / (x1 - x0) * (x - x0),
        Located::Below(_) | Located::Above(_) => f64::NAN,
    }
}
