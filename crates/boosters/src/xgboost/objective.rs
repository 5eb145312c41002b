//! The training objective, as far as it affects predictions: how a sum of leaf values becomes a
//! prediction, and how the file stores the initial value of that sum.
//!
//! The arithmetic and its order are the library's, in single precision, so that predictions agree
//! bit for bit.

use tensorserve_tensor::error::{Error, Result};

/// How the sums of a row become its prediction (`ObjFunction::PredTransform` of the library).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PredictionTransform {
    Identity,
    Sigmoid,
    Exponential,
    /// 1 for a sum above 0, else 0.
    HardThreshold,
    /// Probabilities of the classes.
    Softmax,
    /// The class with the largest sum.
    ArgMax,
    /// The sums of a row in ascending order: quantiles that do not cross.
    SortedQuantiles,
}

/// How a stored `base_score` becomes the initial sum: in most objectives the inverse of the
/// transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScoreLink {
    Identity,
    Logit,
    Log,
}

/// What a model was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Objective {
    pub(super) transform: PredictionTransform,
    link: ScoreLink,
}

/// The objectives of the library, with what they are in most of its versions.
const OBJECTIVES: &[(&str, PredictionTransform, ScoreLink)] = &[
    ("reg:squarederror", PredictionTransform::Identity, ScoreLink::Identity),
    ("reg:linear", PredictionTransform::Identity, ScoreLink::Identity),
    ("reg:squaredlogerror", PredictionTransform::Identity, ScoreLink::Identity),
    ("reg:logistic", PredictionTransform::Sigmoid, ScoreLink::Logit),
    ("reg:pseudohubererror", PredictionTransform::Identity, ScoreLink::Identity),
    ("reg:absoluteerror", PredictionTransform::Identity, ScoreLink::Identity),
    ("reg:quantileerror", PredictionTransform::Identity, ScoreLink::Identity),
    ("reg:gamma", PredictionTransform::Exponential, ScoreLink::Log),
    ("reg:tweedie", PredictionTransform::Exponential, ScoreLink::Log),
    ("count:poisson", PredictionTransform::Exponential, ScoreLink::Log),
    ("binary:logistic", PredictionTransform::Sigmoid, ScoreLink::Logit),
    ("binary:logitraw", PredictionTransform::Identity, ScoreLink::Identity),
    ("binary:hinge", PredictionTransform::HardThreshold, ScoreLink::Identity),
    ("multi:softprob", PredictionTransform::Softmax, ScoreLink::Identity),
    ("multi:softmax", PredictionTransform::ArgMax, ScoreLink::Identity),
    ("rank:pairwise", PredictionTransform::Identity, ScoreLink::Identity),
    ("rank:ndcg", PredictionTransform::Identity, ScoreLink::Identity),
    ("rank:map", PredictionTransform::Identity, ScoreLink::Identity),
    ("survival:cox", PredictionTransform::Exponential, ScoreLink::Log),
    ("survival:aft", PredictionTransform::Exponential, ScoreLink::Log),
];

/// The version of the library that wrote a file: major, minor.
pub(super) type LibraryVersion = (u32, u32);

/// The last version that stores the `base_score` of `binary:logitraw` as a probability.
const LAST_LOGITRAW_PROBABILITY: LibraryVersion = (1, 3);

/// The first version that sorts the quantiles of a row.
const FIRST_SORTED_QUANTILES: LibraryVersion = (3, 4);

/// The prefix of objectives that were trained on a GPU, until 1.0.
const GPU_PREFIX: &str = "gpu:";

/// The library's bound on probabilities, which keeps their logarithms finite.
const MIN_PROBABILITY: f32 = 1e-6;

/// The library's bound on the argument of the sigmoid's exponential, which is infinite above it.
const MAX_SIGMOID_EXPONENT: f32 = 88.7;

/// The library's guard against a division by 0 in the sigmoid.
const SIGMOID_EPSILON: f32 = 1e-16;

impl Objective {
    /// The objective `name` in a file of version `version`.
    pub(super) fn new(name: &str, version: LibraryVersion) -> Result<Self> {
        let known = name.strip_prefix(GPU_PREFIX).unwrap_or(name);
        let found = OBJECTIVES.iter().find(|(name, ..)| *name == known);
        let Some(&(_, mut transform, mut link)) = found else {
            return Err(Error::unsupported(format!(
                "the objective {name:?} is not supported; export the model to ONNX, or train it \
                 with another objective"
            )));
        };
        match known {
            "reg:quantileerror" if version >= FIRST_SORTED_QUANTILES => {
                transform = PredictionTransform::SortedQuantiles;
            }
            "binary:logitraw" if version <= LAST_LOGITRAW_PROBABILITY => link = ScoreLink::Logit,
            _ => {}
        }
        Ok(Objective { transform, link })
    }

    /// The initial sum (the *margin*) of a stored `base_score`.
    pub(super) fn margin(self, base_score: f32) -> Result<f32> {
        let margin = match self.link {
            ScoreLink::Identity => base_score,
            ScoreLink::Logit => {
                -(1.0 / base_score.clamp(MIN_PROBABILITY, 1.0 - MIN_PROBABILITY) - 1.0).ln()
            }
            ScoreLink::Log => base_score.ln(),
        };
        if !margin.is_finite() {
            return Err(Error::damaged(format!(
                "\"base_score\" is {base_score}, which the objective does not allow"
            )));
        }
        Ok(margin)
    }
}

impl PredictionTransform {
    /// How many numbers a prediction has that is made of `sums` sums.
    pub(super) fn width(self, sums: usize) -> usize {
        match self {
            PredictionTransform::ArgMax => 1,
            PredictionTransform::Identity
            | PredictionTransform::Sigmoid
            | PredictionTransform::Exponential
            | PredictionTransform::HardThreshold
            | PredictionTransform::Softmax
            | PredictionTransform::SortedQuantiles => sums,
        }
    }

    /// Turns the sums of rows, `sums` for each, into predictions, and passes those to `push`.
    pub(super) fn apply(self, rows: &mut [f32], sums: usize, mut push: impl FnMut(&[f32])) {
        match self {
            PredictionTransform::Identity => {}
            PredictionTransform::Sigmoid => rows.iter_mut().for_each(|x| *x = sigmoid(*x)),
            PredictionTransform::Exponential => rows.iter_mut().for_each(|x| *x = x.exp()),
            PredictionTransform::HardThreshold => {
                rows.iter_mut().for_each(|x| *x = if *x > 0.0 { 1.0 } else { 0.0 });
            }
            PredictionTransform::Softmax => rows.chunks_exact_mut(sums).for_each(softmax),
            PredictionTransform::SortedQuantiles => {
                rows.chunks_exact_mut(sums).for_each(|row| row.sort_unstable_by(f32::total_cmp));
            }
            PredictionTransform::ArgMax => {
                return rows.chunks_exact(sums).for_each(|row| push(&[argmax(row)]));
            }
        }
        push(rows);
    }
}

fn sigmoid(x: f32) -> f32 {
    let exponent = -x;
    // Not `min`, which would replace NaN.
    let bounded = if exponent > MAX_SIGMOID_EXPONENT { MAX_SIGMOID_EXPONENT } else { exponent };
    1.0 / (bounded.exp() + 1.0 + SIGMOID_EPSILON)
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

/// The index of the largest value; of equal ones, of the first.
#[allow(clippy::cast_precision_loss)] // Classes are fewer than 2^24.
fn argmax(row: &[f32]) -> f32 {
    let mut best = (0, row.first().copied().unwrap_or(0.0));
    for (index, &x) in row.iter().enumerate() {
        if x > best.1 {
            best = (index, x);
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

    fn predict_as(name: &str, version: LibraryVersion, sums: &[f32], width: usize) -> Vec<f32> {
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

    fn margin(name: &str, version: LibraryVersion, score: f32) -> Result<f32, String> {
        Objective::new(name, version).expect("known").margin(score).map_err(|e| e.to_string())
    }

    #[test]
    fn sums_start_from_what_is_written() {
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
    fn the_documentation_has_every_objective() {
        let page = include_str!("../../../../docs/platforms/xgboost.md");
        let (_, listed) = page.split_once("the objectives ").expect("the list");
        let (listed, _) = listed.split_once(".\n").expect("its end");
        let listed: Vec<&str> = listed.split('`').skip(1).step_by(2).collect();
        let shown = |name: &'static str| if name.starts_with("rank:") { "rank:*" } else { name };
        let mut known: Vec<&str> = OBJECTIVES.iter().map(|(name, ..)| shown(name)).collect();
        known.dedup();
        assert_eq!(listed, known);
    }

    #[test]
    fn unknown_objectives_are_named() {
        let error = Objective::new("reg:expectileerror", (3, 4)).expect_err("unknown");
        assert_eq!(error.code(), tensorserve_tensor::error::Code::Unimplemented);
        assert!(error.message().contains("reg:expectileerror"), "{error}");
    }
}
