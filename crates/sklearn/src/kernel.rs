//! Kernels of support vector machines and of `KernelRidge`.

use super::estimator::Estimator;
use super::known_rows::PairFunction;
use super::numeric::dot;
use tensorserve_tensor::error::Result;

/// A kernel: how alike two rows are.
#[derive(Clone, Copy)]
pub(super) enum Kernel {
    Linear,
    Polynomial { gamma: f64, coef0: f64, degree: f64 },
    Radial { gamma: f64 },
    Laplacian { gamma: f64 },
    Cosine,
    Sigmoid { gamma: f64, coef0: f64 },
}

impl Kernel {
    /// Reads the parameters of a kernel, with this `gamma`.
    pub(super) fn read(estimator: &Estimator, gamma: f64) -> Result<Self> {
        let coef0 = || estimator.number(&["coef0"]);
        Ok(match estimator.text("kernel")? {
            "linear" => Kernel::Linear,
            "poly" | "polynomial" => Kernel::Polynomial {
                gamma,
                coef0: coef0()?,
                degree: estimator.number(&["degree"])?,
            },
            "rbf" => Kernel::Radial { gamma },
            "laplacian" => Kernel::Laplacian { gamma },
            "sigmoid" => Kernel::Sigmoid { gamma, coef0: coef0()? },
            "cosine" => Kernel::Cosine,
            "" => return Err(estimator.unsupported("a kernel as a function")),
            other => return Err(estimator.unsupported(format_args!("the kernel {other:?}"))),
        })
    }

    /// Its value for two rows.
    pub(super) fn evaluate(self, a: &[f64], b: &[f64]) -> f64 {
        match self {
            Kernel::Linear => dot(a, b),
            Kernel::Polynomial { gamma, coef0, degree } => (gamma * dot(a, b) + coef0).powf(degree),
            Kernel::Radial { gamma } => (-gamma * squared_distance(a, b)).exp(),
            Kernel::Laplacian { gamma } => {
                let distance: f64 = a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum();
                (-gamma * distance).exp()
            }
            Kernel::Cosine => {
                let norm = |x: &[f64]| Some(dot(x, x).sqrt()).filter(|norm| *norm != 0.0);
                dot(a, b) / (norm(a).unwrap_or(1.0) * norm(b).unwrap_or(1.0))
            }
            Kernel::Sigmoid { gamma, coef0 } => (gamma * dot(a, b) + coef0).tanh(),
        }
    }
}

impl PairFunction for Kernel {
    fn of_dense(&self, a: &[f64], b: &[f64]) -> f64 {
        self.evaluate(a, b)
    }

    fn of_sparse(&self, a: &[(u32, f64)], b: &[(u32, f64)]) -> f64 {
        let product = || sum_over_pairs(a, b, |a, b| a * b);
        match *self {
            Kernel::Linear => product(),
            Kernel::Polynomial { gamma, coef0, degree } => (gamma * product() + coef0).powf(degree),
            Kernel::Radial { gamma } => {
                (-gamma * sum_over_pairs(a, b, |a, b| (a - b) * (a - b))).exp()
            }
            Kernel::Laplacian { gamma } => {
                (-gamma * sum_over_pairs(a, b, |a, b| (a - b).abs())).exp()
            }
            Kernel::Cosine => {
                let norm = |x: &[(u32, f64)]| {
                    let norm = x.iter().map(|(_, value)| value * value).sum::<f64>().sqrt();
                    if norm == 0.0 { 1.0 } else { norm }
                };
                product() / (norm(a) * norm(b))
            }
            Kernel::Sigmoid { gamma, coef0 } => (gamma * product() + coef0).tanh(),
        }
    }
}

/// The sum of `term` over all columns in which one of two sparse rows is not 0.
pub(super) fn sum_over_pairs(
    a: &[(u32, f64)],
    b: &[(u32, f64)],
    mut term: impl FnMut(f64, f64) -> f64,
) -> f64 {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut sum = 0.0;
    loop {
        let columns = (a.peek().map(|(column, _)| *column), b.peek().map(|(column, _)| *column));
        let (left, right) = match columns {
            (None, None) => return sum,
            (Some(left), Some(right)) if left == right => (a.next(), b.next()),
            (Some(left), right) if right.is_none_or(|right| left < right) => (a.next(), None),
            _ => (None, b.next()),
        };
        sum += term(left.map_or(0.0, |left| left.1), right.map_or(0.0, |right| right.1));
    }
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}
