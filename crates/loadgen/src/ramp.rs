//! Rates one after the other, and where the server's strength ends.

use serde::{Deserialize, Serialize};
use tensorserve_tensor::error::{Error, Result};

use crate::summary::LoadSummary;

/// A rate whose 99th percentile is above that of the lowest rate by more than this factor is beyond the knee.
const BEYOND: f64 = 2.0;

/// The most rates.
const MOST_STEPS: usize = 100;

/// Even steps from one rate to another.
///
/// # Errors
/// If the text is not `FROM..TO` or `FROM..TO:STEPS`.
pub fn rates(text: &str) -> Result<Vec<f64>> {
    let wrong = || {
        Error::invalid(format!("{text:?} is no ramp; write, for example, 100..2000 or 100..2000:8"))
    };
    let (range, steps) = match text.split_once(':') {
        Some((range, steps)) => (range, steps.parse().map_err(|_| wrong())?),
        None => (text, 10),
    };
    let (from, to) = range.split_once("..").ok_or_else(wrong)?;
    let (from, to): (f64, f64) =
        (from.parse().map_err(|_| wrong())?, to.parse().map_err(|_| wrong())?);
    let is_ramp = from > 0.0 && from < to && to.is_finite();
    if !is_ramp || !(2..=MOST_STEPS).contains(&steps) {
        return Err(wrong());
    }
    // Steps are few.
    #[allow(clippy::cast_precision_loss)]
    let at = |step: usize| from + (to - from) * step as f64 / (steps - 1) as f64;
    Ok((0..steps).map(at).collect())
}

/// A run of several rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadRamp {
    /// The runs, from the lowest rate to the highest.
    pub steps: Vec<LoadSummary>,
    /// The number of the step of the knee; none if the server held every rate well, or not even the lowest.
    pub knee: Option<usize>,
}

impl LoadRamp {
    /// Finds the knee: the highest rate below all those that were not held, or whose 99th percentile is more than twice
    /// that of the lowest rate. One slow step between good ones is chance.
    #[must_use]
    pub fn of(steps: Vec<LoadSummary>) -> Self {
        let first = steps.first().map_or(0.0, |step| step.latency_ms.p99);
        let is_beyond =
            |step: &LoadSummary| !step.held_its_rate() || step.latency_ms.p99 > BEYOND * first;
        let good = steps.iter().rposition(|step| !is_beyond(step));
        let knee = good.filter(|last| last + 1 < steps.len());
        LoadRamp { steps, knee }
    }

    /// The rate of the knee.
    #[must_use]
    pub fn knee_rate(&self) -> Option<f64> {
        self.steps.get(self.knee?)?.setting.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::summary_of;

    #[test]
    fn ramps_are_even() {
        assert_eq!(rates("100..400:4").expect("a ramp"), [100.0, 200.0, 300.0, 400.0]);
        assert_eq!(rates("0.5..5").expect("a ramp").len(), 10);
        for text in ["", "5", "5..4", "0..9", "1..2:1", "1..2:x", "1..2:1000", "1..inf", "a..b"] {
            assert!(rates(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_knee_is_before_all_that_is_slow_or_not_held() {
        let ramp = |steps: &[(f64, u64)]| {
            let step = |(index, (p99, unsent)): (usize, &(f64, u64))| {
                let mut summary = summary_of(100);
                (summary.latency_ms.p99, summary.unsent) = (*p99, *unsent);
                summary.setting.rate = Some(100.0 * (index + 1) as f64);
                summary
            };
            LoadRamp::of(steps.iter().enumerate().map(step).collect()).knee_rate()
        };
        assert_eq!(ramp(&[(1.0, 0), (1.1, 0), (1.5, 0), (9.0, 0), (99.0, 5)]), Some(300.0));
        // One step is slow by chance.
        assert_eq!(ramp(&[(1.0, 0), (5.0, 0), (1.5, 0), (9.0, 0)]), Some(300.0));
        assert_eq!(ramp(&[(1.0, 0), (1.0, 7)]), Some(100.0));
        assert_eq!(ramp(&[(1.0, 0), (1.5, 0)]), None);
        assert_eq!(ramp(&[(1.0, 9), (1.5, 9)]), None);
        assert_eq!(ramp(&[]), None);
    }
}
