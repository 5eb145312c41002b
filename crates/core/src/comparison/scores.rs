//! How the values of an output are distributed, and how far two distributions are apart.

use tensorserve_tensor::random::{STEP, split_mix};

/// The most values that are kept of each output.
const MOST: usize = 50_000;

/// Classes of values for the population stability index.
const CLASSES: usize = 10;

/// The share of a class without a value: its logarithm must be finite.
const LEAST_SHARE: f64 = 1e-4;

/// The values of an output over many requests, or as many of them as are kept, drawn evenly.
#[derive(Clone, Debug, Default)]
pub(super) struct Scores {
    values: Vec<f64>,
    seen: u64,
}

impl Scores {
    /// Adds values; those that are not finite are not part of a distribution.
    pub(super) fn add(&mut self, values: &[f64]) {
        for &value in values.iter().filter(|value| value.is_finite()) {
            self.seen += 1;
            if self.values.len() < MOST {
                self.values.push(value);
            } else if let Some(place) = self.place() {
                *place = value;
            }
        }
    }

    /// Where the value `seen` goes, if it is drawn (reservoir sampling, algorithm R). The numbers are the same in
    /// each run and for both versions, which keeps values of the same requests.
    fn place(&mut self) -> Option<&mut f64> {
        let drawn = split_mix(self.seen.wrapping_mul(STEP)) % self.seen;
        usize::try_from(drawn).ok().and_then(|at| self.values.get_mut(at))
    }

    fn sorted(&self) -> Vec<f64> {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        values
    }
}

/// How far the distribution `new` is from `old`; `None` if one of them has no values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreShift {
    /// Population stability index, with ten classes of as many old values each. Below 0.1 is commonly taken for
    /// stable, above 0.25 for another population (Siddiqi, Credit Risk Scorecards, 2006).
    pub psi: f64,
    /// The Kolmogorov-Smirnov statistic: the largest distance of the cumulative distributions, from 0 to 1.
    pub ks: f64,
}

pub(super) fn shift(old: &Scores, new: &Scores) -> Option<ScoreShift> {
    let (old, new) = (old.sorted(), new.sorted());
    if old.is_empty() || new.is_empty() {
        return None;
    }
    Some(ScoreShift { psi: psi(&old, &new), ks: ks(&old, &new) })
}

/// Of sorted values. Values that are equal are in one class, so that there can be fewer classes than ten.
fn psi(old: &[f64], new: &[f64]) -> f64 {
    let mut bounds: Vec<f64> = Vec::new();
    for class in 1..CLASSES {
        if let Some(&bound) = old.get(old.len() * class / CLASSES)
            && bounds.last().is_none_or(|last| *last < bound)
        {
            bounds.push(bound);
        }
    }
    let mut sum = 0.0;
    let (mut before_old, mut before_new) = (0, 0);
    // A class holds the values below its bound; the last one holds the rest.
    let ends = bounds.iter().map(Some).chain([None]);
    for bound in ends {
        let below = |values: &[f64]| match bound {
            Some(bound) => values.partition_point(|value| value < bound),
            None => values.len(),
        };
        let (end_old, end_new) = (below(old), below(new));
        let of_old = share(end_old - before_old, old.len());
        let of_new = share(end_new - before_new, new.len());
        // The first bound can be the smallest value: nothing is below it, in neither.
        if end_old > before_old || end_new > before_new {
            sum += (of_new - of_old) * (of_new / of_old).ln();
        }
        (before_old, before_new) = (end_old, end_new);
    }
    sum
}

// Counts are far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn share(count: usize, of: usize) -> f64 {
    (count as f64 / of as f64).max(LEAST_SHARE)
}

/// Of sorted values.
// Counts are far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn ks(old: &[f64], new: &[f64]) -> f64 {
    let share_up_to = |values: &[f64], most: f64| {
        values.partition_point(|value| *value <= most) as f64 / values.len() as f64
    };
    let apart = |at: &f64| (share_up_to(old, *at) - share_up_to(new, *at)).abs();
    old.iter().chain(new).map(apart).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(count: u32, of: impl Fn(f64) -> f64) -> Scores {
        let mut scores = Scores::default();
        let values: Vec<f64> = (0..count).map(|n| of(f64::from(n) / f64::from(count))).collect();
        scores.add(&values);
        scores
    }

    #[test]
    fn a_distribution_does_not_differ_from_itself() {
        let even = scores(1000, |x| x);
        let shift = shift(&even, &even).expect("values");
        assert!(shift.psi.abs() < 1e-12 && shift.ks < 1e-12, "{shift:?}");
    }

    #[test]
    fn a_shift_is_seen_in_both_figures() {
        // A fifth of all new values is above all old ones.
        let moved = shift(&scores(1000, |x| x), &scores(1000, |x| x + 0.2)).expect("values");
        assert!((moved.ks - 0.2).abs() < 0.002, "{moved:?}");
        // Two classes are empty, eight as before, and the last has three tenths.
        let want = 2.0 * (1e-4f64 - 0.1) * (1e-4f64 / 0.1).ln() + 0.2 * 3f64.ln();
        assert!((moved.psi - want).abs() < 0.01, "{moved:?} {want}");
        let slight = shift(&scores(1000, |x| x), &scores(1000, |x| x + 0.001)).expect("values");
        assert!(slight.psi < 0.01 && slight.ks < 0.003, "{slight:?}");
    }

    #[test]
    fn values_that_are_all_equal_make_one_class() {
        let same = shift(&scores(100, |_| 1.0), &scores(50, |_| 1.0)).expect("values");
        assert!(same.psi.abs() < 1e-12 && same.ks.abs() < 1e-12, "{same:?}");
        let other = shift(&scores(100, |_| 1.0), &scores(100, |_| 2.0)).expect("values");
        assert!((other.ks - 1.0).abs() < 1e-12, "{other:?}");
        let below = shift(&scores(100, |_| 1.0), &scores(100, |_| 0.0)).expect("values");
        assert!(below.psi > 1.0, "{below:?}");
    }

    #[test]
    fn what_is_not_finite_is_left_out_and_much_is_sampled() {
        assert_eq!(shift(&scores(10, |_| f64::NAN), &scores(10, |x| x)), None);
        let many = scores(200_000, |x| x);
        assert_eq!((many.values.len(), many.seen), (MOST, 200_000));
        let shift = shift(&many, &scores(10_000, |x| x)).expect("values");
        assert!(shift.ks < 0.02 && shift.psi < 0.01, "{shift:?}");
    }
}
