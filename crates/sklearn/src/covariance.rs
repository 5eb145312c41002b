//! Kernels of Gaussian processes: trees of sums, products and powers of covariance functions.

use std::f64::consts::PI;

use super::estimator::Estimator;
use super::kernel::Kernel;
use super::numeric::dot;
use tensorserve_tensor::error::Result;

/// The most functions of a kernel: a damaged file could share them.
const MAX_PARTS: usize = 256;

/// A covariance function of two rows.
pub(super) enum Covariance {
    Constant(f64),
    /// The noise of a measurement: rows of a request are not those of the training.
    White(f64),
    Radial(LengthScales),
    Matern(LengthScales, Smoothness),
    RationalQuadratic {
        alpha: f64,
        length_scale: f64,
    },
    Periodic {
        length_scale: f64,
        periodicity: f64,
    },
    DotProduct {
        squared_sigma: f64,
    },
    Pairwise(Kernel),
    Sum(Box<(Covariance, Covariance)>),
    Product(Box<(Covariance, Covariance)>),
    Power(Box<Covariance>, f64),
}

/// What distances are divided by: a number for each feature, or one for all.
pub(super) struct LengthScales(Vec<f64>);

/// How smooth the functions of a Matern kernel are.
#[derive(Clone, Copy)]
pub(super) enum Smoothness {
    /// `nu` is 0.5.
    Half,
    /// `nu` is 1.5.
    ThreeHalves,
    /// `nu` is 2.5.
    FiveHalves,
    Infinite,
}

impl LengthScales {
    fn read(kernel: &Estimator, features: usize) -> Result<Self> {
        let scales = kernel.vector(&["length_scale"])?;
        match scales.len() == 1 || scales.len() == features {
            true => Ok(LengthScales(scales)),
            false => Err(kernel.damaged("length_scale does not match the number of features")),
        }
    }

    fn squared_distance(&self, a: &[f64], b: &[f64]) -> f64 {
        let square = |(a, b): (&f64, &f64), scale: &f64| (a / scale - b / scale).powi(2);
        match *self.0 {
            [scale] => a.iter().zip(b).map(|pair| square(pair, &scale)).sum(),
            _ => a.iter().zip(b).zip(&self.0).map(|(pair, scale)| square(pair, scale)).sum(),
        }
    }
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

impl Covariance {
    /// Reads the kernel of rows with `features` features.
    pub(super) fn read(kernel: &Estimator, features: usize) -> Result<Self> {
        Covariance::read_part(kernel, features, &mut 0)
    }

    /// Reads a part of a kernel. `parts` counts them.
    fn read_part(kernel: &Estimator, features: usize, parts: &mut usize) -> Result<Self> {
        *parts += 1;
        if *parts > MAX_PARTS {
            return Err(kernel.unsupported(format_args!("a sum of more than {MAX_PARTS} kernels")));
        }
        let number = |name: &str| kernel.number(&[name]);
        let mut child = |name: &str| {
            let child = kernel.child(kernel.attribute(&[name])?)?;
            Covariance::read_part(&child, features, parts)
        };
        Ok(match kernel.class() {
            "ConstantKernel" => Covariance::Constant(number("constant_value")?),
            "WhiteKernel" => Covariance::White(number("noise_level")?),
            "RBF" => Covariance::Radial(LengthScales::read(kernel, features)?),
            "Matern" => {
                let scales = LengthScales::read(kernel, features)?;
                Covariance::Matern(scales, Smoothness::read(kernel)?)
            }
            "RationalQuadratic" => Covariance::RationalQuadratic {
                alpha: number("alpha")?,
                length_scale: number("length_scale")?,
            },
            "ExpSineSquared" => Covariance::Periodic {
                length_scale: number("length_scale")?,
                periodicity: number("periodicity")?,
            },
            "DotProduct" => Covariance::DotProduct { squared_sigma: number("sigma_0")?.powi(2) },
            "PairwiseKernel" => Covariance::Pairwise(read_pairwise(kernel)?),
            "Sum" => Covariance::Sum(Box::new((child("k1")?, child("k2")?))),
            "Product" => Covariance::Product(Box::new((child("k1")?, child("k2")?))),
            "Exponentiation" => Covariance::Power(Box::new(child("kernel")?), number("exponent")?),
            _ => return Err(kernel.unsupported("this kernel")),
        })
    }

    /// The covariance of a row of a request and one of the training.
    pub(super) fn evaluate(&self, a: &[f64], b: &[f64]) -> f64 {
        match self {
            Covariance::Constant(value) => *value,
            Covariance::White(_) => 0.0,
            Covariance::Radial(scales) => (-0.5 * scales.squared_distance(a, b)).exp(),
            Covariance::Matern(scales, smoothness) => {
                smoothness.evaluate(scales.squared_distance(a, b))
            }
            Covariance::RationalQuadratic { alpha, length_scale } => {
                let scaled = squared_distance(a, b) / (2.0 * alpha * length_scale * length_scale);
                (1.0 + scaled).powf(-alpha)
            }
            Covariance::Periodic { length_scale, periodicity } => {
                let sine = (PI / periodicity * squared_distance(a, b).sqrt()).sin();
                (-2.0 * (sine / length_scale).powi(2)).exp()
            }
            Covariance::DotProduct { squared_sigma } => dot(a, b) + squared_sigma,
            Covariance::Pairwise(kernel) => kernel.evaluate(a, b),
            Covariance::Sum(parts) => parts.0.evaluate(a, b) + parts.1.evaluate(a, b),
            Covariance::Product(parts) => parts.0.evaluate(a, b) * parts.1.evaluate(a, b),
            Covariance::Power(part, exponent) => part.evaluate(a, b).powf(*exponent),
        }
    }

    /// The variance of a row.
    pub(super) fn variance(&self, row: &[f64]) -> f64 {
        match self {
            Covariance::Constant(value) | Covariance::White(value) => *value,
            Covariance::Radial(_)
            | Covariance::Matern(..)
            | Covariance::RationalQuadratic { .. }
            | Covariance::Periodic { .. } => 1.0,
            Covariance::DotProduct { .. } | Covariance::Pairwise(_) => self.evaluate(row, row),
            Covariance::Sum(parts) => parts.0.variance(row) + parts.1.variance(row),
            Covariance::Product(parts) => parts.0.variance(row) * parts.1.variance(row),
            Covariance::Power(part, exponent) => part.variance(row).powf(*exponent),
        }
    }
}

impl Smoothness {
    fn read(kernel: &Estimator) -> Result<Self> {
        match kernel.number(&["nu"])? {
            0.5 => Ok(Smoothness::Half),
            1.5 => Ok(Smoothness::ThreeHalves),
            2.5 => Ok(Smoothness::FiveHalves),
            f64::INFINITY => Ok(Smoothness::Infinite),
            nu => Err(kernel.unsupported(format_args!(
                "nu={nu}, which takes Bessel functions (0.5, 1.5, 2.5 and inf do not),"
            ))),
        }
    }

    fn evaluate(self, squared_distance: f64) -> f64 {
        let distance = squared_distance.sqrt();
        match self {
            Smoothness::Half => (-distance).exp(),
            Smoothness::ThreeHalves => {
                let scaled = distance * 3.0_f64.sqrt();
                (1.0 + scaled) * (-scaled).exp()
            }
            Smoothness::FiveHalves => {
                let scaled = distance * 5.0_f64.sqrt();
                (1.0 + scaled + scaled * scaled / 3.0) * (-scaled).exp()
            }
            Smoothness::Infinite => (-(distance * distance) / 2.0).exp(),
        }
    }
}

/// The kernel of `sklearn.metrics.pairwise` in a `PairwiseKernel`.
fn read_pairwise(kernel: &Estimator) -> Result<Kernel> {
    if kernel.find(&["pairwise_kernels_kwargs"]).is_some_and(|given| given.entries().count() > 0) {
        return Err(kernel.unsupported("a PairwiseKernel with settings"));
    }
    let gamma = kernel.number(&["gamma"])?;
    match kernel.text("metric")? {
        "linear" => Ok(Kernel::Linear),
        "rbf" => Ok(Kernel::Radial { gamma }),
        "laplacian" => Ok(Kernel::Laplacian { gamma }),
        "poly" | "polynomial" => Ok(Kernel::Polynomial { gamma, coef0: 1.0, degree: 3.0 }),
        "sigmoid" => Ok(Kernel::Sigmoid { gamma, coef0: 1.0 }),
        "cosine" => Ok(Kernel::Cosine),
        metric => Err(kernel.unsupported(format_args!("the metric {metric:?}"))),
    }
}
