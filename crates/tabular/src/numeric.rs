//! Functions that the models of several libraries share. What a library computes differently is in its own module,
//! which says how.

use std::cmp::Ordering;

/// The logistic function, as most libraries compute it: 0 from where the exponential overflows (-709.8), not only
/// from where the result underflows (-745.1).
pub fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Turns logits into probabilities; all are NaN if one is, or if the largest is infinite.
pub fn softmax(logits: &mut [f64]) {
    // Without the largest, no exponential overflows.
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum = exponentials(logits, largest);
    logits.iter_mut().for_each(|value| *value /= sum);
}

/// Replaces values by the exponentials of what they exceed `origin` by; returns their sum.
pub fn exponentials(values: &mut [f64], origin: f64) -> f64 {
    let mut sum = 0.0;
    for value in values.iter_mut() {
        *value = (*value - origin).exp();
        sum += *value;
    }
    sum
}

/// A link function of generalized linear models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Link {
    /// The mean itself.
    Identity,
    /// The natural logarithm.
    Log,
    /// The logarithm of the odds.
    Logit,
    /// 1 / mean.
    Inverse,
    /// The quantile of the standard normal distribution.
    Probit,
    /// ln(-ln(1 - mean)).
    CLogLog,
    /// The square root.
    Sqrt,
    /// The power with this exponent, which is not 0.
    Power(f64),
}

impl Link {
    /// The mean that has this link: the inverse of the function.
    pub fn mean(self, linear: f64) -> f64 {
        match self {
            Link::Identity => linear,
            Link::Log => linear.exp(),
            Link::Logit => logistic(linear),
            Link::Inverse => 1.0 / linear,
            Link::Probit => 0.5 * libm::erfc(-linear / std::f64::consts::SQRT_2),
            Link::CLogLog => 1.0 - (-linear.exp()).exp(),
            Link::Sqrt => linear * linear,
            Link::Power(power) => linear.powf(1.0 / power),
        }
    }
}

/// A point of an isotonic regression.
pub type IsotonicPoint = (f64, f64);

/// An isotonic regression: points that straight lines connect. How libraries round the lines differs.
pub struct Isotonic {
    xs: Vec<f64>,
    ys: Vec<f64>,
}

/// Where a value is among the points.
pub enum Located {
    /// At a point.
    At(f64),
    /// Between two that follow each other.
    Between(IsotonicPoint, IsotonicPoint),
    /// Below all points, of which this is the first.
    Below(f64),
    /// Above all points, of which this is the last; or NaN.
    Above(f64),
}

impl Isotonic {
    /// The function through the points; `None` if there are none, or if they are not pairs. `xs` ascend: other ones
    /// give some number.
    pub fn new(xs: Vec<f64>, ys: Vec<f64>) -> Option<Self> {
        (!xs.is_empty() && xs.len() == ys.len()).then_some(Isotonic { xs, ys })
    }

    /// The least and the greatest x.
    pub fn bounds(&self) -> (f64, f64) {
        let bounds = self.xs.first().zip(self.xs.last());
        bounds.map_or((f64::NAN, f64::NAN), |(first, last)| (*first, *last))
    }

    /// The point `index`; NaN if there is none.
    pub fn point(&self, index: usize) -> IsotonicPoint {
        let at = |values: &[f64]| values.get(index).copied().unwrap_or(f64::NAN);
        (at(&self.xs), at(&self.ys))
    }

    /// The two points on both sides of `x`, the upper of which may be at it; of values beyond the points, the two
    /// that are closest. `None` if there is one point only.
    pub fn around(&self, x: f64) -> Option<(IsotonicPoint, IsotonicPoint)> {
        let last = self.xs.len().checked_sub(1).filter(|last| *last > 0)?;
        let high = self.xs.partition_point(|point| *point < x).clamp(1, last);
        Some((self.point(high - 1), self.point(high)))
    }

    /// Where `x` is, as Java's `Arrays.binarySearch` finds it. Points of a calibration share their x, so it matters
    /// which of them is found.
    pub fn locate(&self, x: f64) -> Located {
        let (mut low, mut high) = (0, self.xs.len());
        while low < high {
            // Java's bounds include the upper one.
            let middle = (low + high - 1) / 2;
            let Some(found) = self.xs.get(middle) else { break };
            match found.total_cmp(&x) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Located::At(self.point(middle).1),
            }
        }
        match low.checked_sub(1) {
            None => Located::Below(self.point(0).1),
            Some(below) if low == self.xs.len() => Located::Above(self.point(below).1),
            Some(below) => Located::Between(self.point(below), self.point(low)),
        }
    }
}
