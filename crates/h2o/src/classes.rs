//! From the probabilities of classes to the predicted class.
//!
//! Source: `GenModel.correctProbabilities` and `GenModel.getPrediction` of h2o-genmodel 3.46.0.6.

use super::info::MojoInfo;
use super::numeric::java_random;
use tensorserve_tensor::error::{Error, Result};

/// The bits of a number that do not take part in the choice between classes that are equally likely.
const IGNORED_BITS: u32 = 6;

/// How a model of classes predicts.
pub(super) struct ClassRule {
    pub(super) classes: usize,
    /// From which probability of the second of two classes it is predicted.
    pub(super) threshold: f64,
    /// The shares of the classes in the data.
    priors: Vec<f64>,
    /// Their shares in the data as the model saw it, if classes were sampled.
    balanced: Option<Vec<f64>>,
}

impl ClassRule {
    /// Reads the rule of a model.
    pub(super) fn read(info: &MojoInfo, classes: usize) -> Result<Self> {
        let shares = |key| -> Result<Vec<f64>> {
            let shares = info.numbers(key)?;
            match shares.len() {
                0 => Ok(shares),
                len if len == classes => Ok(shares),
                len => Err(Error::damaged(format!(
                    "model.ini: {key} has {len} numbers for {classes} classes"
                ))),
            }
        };
        let priors = shares("prior_class_distrib")?;
        let seen = shares("model_class_distrib")?;
        let is_balanced = info.flag_or("balance_classes", false)?;
        if is_balanced && (priors.is_empty() || seen.is_empty()) {
            return Err(Error::damaged("model.ini has no shares of its balanced classes"));
        }
        let threshold = info.number_or("default_threshold", 0.5)?;
        Ok(ClassRule { classes, threshold, priors, balanced: is_balanced.then_some(seen) })
    }

    /// Corrects the probabilities in `prediction`, after its first number, and puts the index of the
    /// predicted class there. `row` decides between classes that are equally likely.
    pub(super) fn decide(&self, prediction: &mut [f64], row: &[f64]) {
        if let (Some(seen), Some((_, probabilities))) =
            (&self.balanced, prediction.split_first_mut())
        {
            correct(probabilities, &self.priors, seen);
        }
        self.choose(prediction, row);
    }

    /// As [`ClassRule::decide`], for probabilities that are not corrected.
    pub(super) fn choose(&self, prediction: &mut [f64], row: &[f64]) {
        let Some((class, probabilities)) = prediction.split_first_mut() else { return };
        *class = match *probabilities {
            [_, second] => f64::from(u8::from(second >= self.threshold)),
            _ => super::numeric::float(self.most_likely(probabilities, row)),
        };
    }

    #[allow(clippy::float_cmp)] // Classes that are equally likely.
    fn most_likely(&self, probabilities: &[f64], row: &[f64]) -> usize {
        let mut best = (0, probabilities.first().copied().unwrap_or(f64::NAN));
        let mut ties = 0;
        for (class, probability) in probabilities.iter().copied().enumerate().skip(1) {
            if best.1 < probability {
                best = (class, probability);
                ties = 0;
            } else if best.1 == probability {
                ties += 1;
            }
        }
        if ties == 0 { best.0 } else { self.broken_tie(probabilities, best.1, ties, row) }
    }

    /// The class among those of the probability `best`, of which there are `ties` besides the first.
    #[allow(clippy::float_cmp)]
    fn broken_tie(&self, probabilities: &[f64], best: f64, ties: i32, row: &[f64]) -> usize {
        let hash = row.iter().fold(0, |hash, x| hash ^ (raw_bits(*x) >> IGNORED_BITS));
        if !self.priors.is_empty() {
            let candidates = self.tie_candidates(probabilities);
            let prior = |class: usize| self.priors.get(class).copied().unwrap_or(0.0);
            let sum: f64 = candidates.clone().map(prior).sum();
            let at = java_random(hash.cast_unsigned());
            let mut reached = 0.0;
            for class in candidates {
                reached += prior(class) / sum;
                if at <= reached {
                    return class;
                }
            }
        }
        #[allow(clippy::cast_possible_truncation)] // As Java's `(int)`.
        let mut skip = hash as i32 % ties.saturating_add(1);
        for (class, probability) in probabilities.iter().enumerate() {
            if *probability == best {
                skip -= 1;
                if skip < 0 {
                    return class;
                }
            }
        }
        0
    }

    /// The classes that H2O draws from: the first of all, and each that was equal to the best so far
    /// when it was compared, even where a better one follows.
    #[allow(clippy::float_cmp)]
    fn tie_candidates<'p>(
        &self,
        probabilities: &'p [f64],
    ) -> impl Iterator<Item = usize> + Clone + use<'p> {
        let mut best = probabilities.first().copied().unwrap_or(f64::NAN);
        probabilities.iter().copied().enumerate().filter_map(move |(class, probability)| {
            if class == 0 {
                return Some(class);
            }
            if best < probability {
                best = probability;
                return None;
            }
            (best == probability).then_some(class)
        })
    }
}

/// The bits of `x` as Java's `doubleToRawLongBits` has them; NaN is Java's.
fn raw_bits(x: f64) -> i64 {
    const NAN: i64 = 0x7FF8_0000_0000_0000;
    if x.is_nan() { NAN } else { x.to_bits().cast_signed() }
}

/// Weights probabilities by how much rarer the classes are in the data than in the sample.
fn correct(probabilities: &mut [f64], priors: &[f64], seen: &[f64]) {
    let mut sum = 0.0;
    for (probability, (prior, seen)) in probabilities.iter_mut().zip(priors.iter().zip(seen)) {
        if *prior != 0.0 && *seen != 0.0 {
            *probability *= prior / seen;
        }
        sum += *probability;
    }
    if sum > 0.0 {
        probabilities.iter_mut().for_each(|probability| *probability /= sum);
    }
}
