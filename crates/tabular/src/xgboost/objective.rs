//! What a model was trained for, as far as it changes an answer: how a sum of leaves becomes a
//! prediction, and how the first summand is written in the file.
//!
//! The steps of the arithmetic and their order are the library's, in single precision, so that
//! answers are the same to the bit.

use super::{broken, unsupported};
use tensorserve_tensor::error::Result;

/// How a row's sums become its prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transform {
    /// They are it.
    Identity,
    Sigmoid,
    Exponential,
    /// 1 for a sum above 0, else 0.
    Sign,
    /// Probabilities of the classes.
    Softmax,
    /// The number of the class with the largest sum.
    Largest,
    /// The sums of a row in order: quantiles that do not cross.
    Ascending,
}

/// What turns a written `base_score` into a sum: the inverse of the transform, mostly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Identity,
    Logit,
    Log,
}

/// What a model was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Objective {
    pub(super) transform: Transform,
    link: Link,
}

/// The version of the library that wrote a file, as (major, minor).
pub(super) type Version = (u32, u32);

/// The last version in which `binary:logitraw` took its `base_score` for a probability.
const LAST_LOGITRAW_OF_PROBABILITIES: Version = (1, 3);

/// The first version that puts a row's quantiles in order.
const FIRST_ORDERED_QUANTILES: Version = (3, 4);

impl Objective {
    /// The objective `name` in a file of version `version`.
    pub(super) fn new(name: &str, version: Version) -> Result<Self> {
        // Until 1.0 some had a second name for training on a GPU.
        let (transform, link) = match name.strip_prefix("gpu:").unwrap_or(name) {
            "reg:squarederror"
            | "reg:linear"
            | "reg:squaredlogerror"
            | "reg:pseudohubererror"
            | "reg:absoluteerror"
            | "rank:pairwise"
            | "rank:ndcg"
            | "rank:map" => (Transform::Identity, Link::Identity),
            "reg:quantileerror" if version >= FIRST_ORDERED_QUANTILES => {
                (Transform::Ascending, Link::Identity)
            }
            "reg:quantileerror" => (Transform::Identity, Link::Identity),
            "binary:logitraw" if version <= LAST_LOGITRAW_OF_PROBABILITIES => {
                (Transform::Identity, Link::Logit)
            }
            "binary:logitraw" => (Transform::Identity, Link::Identity),
            "reg:logistic" | "binary:logistic" => (Transform::Sigmoid, Link::Logit),
            "binary:hinge" => (Transform::Sign, Link::Identity),
            "count:poisson" | "reg:gamma" | "reg:tweedie" | "survival:cox" | "survival:aft" => {
                (Transform::Exponential, Link::Log)
            }
            "multi:softprob" => (Transform::Softmax, Link::Identity),
            "multi:softmax" => (Transform::Largest, Link::Identity),
            _ => {
                return Err(unsupported(format!(
                    "its objective is {name:?}, whose predictions are not known here; export the \
                     model to ONNX, or train it with another objective"
                )));
            }
        };
        Ok(Objective { transform, link })
    }

    /// What sums start from, for a `base_score` as it is written.
    pub(super) fn margin(self, base_score: f32) -> Result<f32> {
        /// The library's bound on probabilities, so that their logarithm is finite.
        const SMALLEST: f32 = 1e-6;
        let margin = match self.link {
            Link::Identity => base_score,
            Link::Logit => -(1.0 / base_score.clamp(SMALLEST, 1.0 - SMALLEST) - 1.0).ln(),
            Link::Log => base_score.ln(),
        };
        if !margin.is_finite() {
            return Err(broken(format!("\"base_score\" is {base_score}")));
        }
        Ok(margin)
    }
}

impl Transform {
    /// How many numbers come of `sums` sums.
    pub(super) fn width(self, sums: usize) -> usize {
        match self {
            Transform::Largest => 1,
            Transform::Identity
            | Transform::Sigmoid
            | Transform::Exponential
            | Transform::Sign
            | Transform::Softmax
            | Transform::Ascending => sums,
        }
    }

    /// Turns the sums of rows, `sums` each, into their predictions, and hands those to `push`.
    pub(super) fn apply(self, rows: &mut [f32], sums: usize, mut push: impl FnMut(&[f32])) {
        match self {
            Transform::Identity => {}
            Transform::Sigmoid => rows.iter_mut().for_each(|x| *x = sigmoid(*x)),
            Transform::Exponential => rows.iter_mut().for_each(|x| *x = x.exp()),
            Transform::Sign => {
                rows.iter_mut().for_each(|x| *x = if *x > 0.0 { 1.0 } else { 0.0 });
            }
            Transform::Softmax => rows.chunks_exact_mut(sums).for_each(softmax),
            Transform::Ascending => {
                rows.chunks_exact_mut(sums).for_each(|row| row.sort_unstable_by(f32::total_cmp));
            }
            Transform::Largest => {
                return rows.chunks_exact(sums).for_each(|row| push(&[largest(row)]));
            }
        }
        push(rows);
    }
}

fn sigmoid(x: f32) -> f32 {
    let negative = -x;
    // Above that, the exponential is infinite. (Written so that NaN stays.)
    let bounded = if negative > 88.7 { 88.7 } else { negative };
    1.0 / (bounded.exp() + 1.0 + 1e-16)
}

fn softmax(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0_f64;
    for x in row.iter_mut() {
        *x = (*x - largest).exp();
        sum += f64::from(*x);
    }
    #[allow(clippy::cast_possible_truncation)]
    let sum = sum as f32;
    for x in row.iter_mut() {
        *x /= sum;
    }
}

/// The place of the first of the largest.
#[allow(clippy::cast_precision_loss)] // Classes are fewer than 2^24.
fn largest(row: &[f32]) -> f32 {
    let mut best = (0, row.first().copied().unwrap_or(0.0));
    for (place, &x) in row.iter().enumerate() {
        if x > best.1 {
            best = (place, x);
        }
    }
    best.0 as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predict(name: &str, sums: &[f32], width: usize) -> Vec<f32> {
        predict_as(name, (3, 2), sums, width)
    }

    fn predict_as(name: &str, version: Version, sums: &[f32], width: usize) -> Vec<f32> {
        let mut rows = sums.to_vec();
        let mut out = Vec::new();
        let transform = Objective::new(name, version).expect("known").transform;
        transform.apply(&mut rows, width, |part| out.extend_from_slice(part));
        out
    }

    #[test]
    fn predictions_of_sums() {
        assert_eq!(predict("reg:squarederror", &[1.5, -2.0], 1), [1.5, -2.0]);
        assert_eq!(predict("binary:logistic", &[0.0, 1000.0, -1000.0], 1)[..2], [0.5, 1.0]);
        let nothing = predict("binary:logistic", &[-1000.0], 1)[0];
        assert!(nothing > 0.0 && nothing < 1e-38, "{nothing}");
        assert_eq!(predict("count:poisson", &[0.0], 1), [1.0]);
        assert_eq!(predict("binary:hinge", &[0.0, 0.1], 1), [0.0, 1.0]);
        assert_eq!(predict("multi:softmax", &[1.0, 3.0, 3.0, 2.0, 0.0, 1.0], 3), [1.0, 0.0]);
        assert_eq!(predict("multi:softprob", &[7.0, 7.0], 2), [0.5, 0.5]);
        assert!(predict("binary:logistic", &[f32::NAN], 1)[0].is_nan());
        let crossing = [2.0, 1.0, 3.0];
        assert_eq!(predict("reg:quantileerror", &crossing, 3), crossing);
        assert_eq!(predict_as("reg:quantileerror", (3, 4), &crossing, 3), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn sums_start_from_what_is_written() {
        let margin = |name, version, score| {
            Objective::new(name, version).expect("known").margin(score).map_err(|e| e.to_string())
        };
        assert_eq!(margin("reg:linear", (0, 0), 0.5), Ok(0.5));
        assert_eq!(margin("binary:logistic", (3, 2), 0.5), Ok(0.0));
        assert_eq!(margin("binary:logitraw", (1, 3), 0.5), Ok(0.0));
        assert_eq!(margin("binary:logitraw", (1, 4), 0.5), Ok(0.5));
        assert_eq!(margin("gpu:binary:logistic", (0, 0), 0.5), Ok(0.0));
        assert_eq!(margin("survival:aft", (3, 2), 1.0), Ok(0.0));
        assert!(margin("count:poisson", (3, 2), -1.0).is_err());
        assert!(margin("binary:logistic", (3, 2), 0.0).expect("bounded") < -13.0);
    }

    #[test]
    fn unknown_objectives_are_named() {
        let error = Objective::new("reg:expectileerror", (3, 4)).expect_err("unknown");
        assert_eq!(error.code(), tensorserve_tensor::error::Code::Unimplemented);
        assert!(error.message().contains("reg:expectileerror"), "{error}");
    }
}
