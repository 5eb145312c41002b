//! The highest rate at which a promise is kept.
//!
//! The higher the rate, the larger the share of slow requests; the capacity is the rate at which that share is as large
//! as it may be. Where requests are few, chance decides whether a single run keeps the promise: all runs count. Each
//! changes the odds of every capacity, and these say where the next one is (Watson and Pelli 1983, "QUEST: A Bayesian
//! adaptive psychometric method").
//!
//! The odds that a request is slow are taken to be a power of the rate near the capacity. The exponent is not known: it
//! is a few for models that take most of the limit, and above a hundred where a queue grows before a request is slow.

use super::slo::SlowCount;

/// The highest rate at which a promise is kept, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CapacityEstimate {
    /// It is about as probable that the capacity is above this rate as that it is below. A run at no lower rate has kept
    /// the promise.
    pub(super) rate: f64,
    /// It is between these with a probability of [`CERTAINTY`].
    pub(super) low: f64,
    pub(super) high: f64,
}

/// The probability of the range of an estimate.
pub(super) const CERTAINTY: f64 = 0.8;

/// Runs, all of the same length: in many short ones slow requests, which come in clusters, would often be missed.
pub(super) const RUNS: u32 = 10;

/// Where among the odds a run is after one that has kept the promise: that says little of rates far above, and after a
/// disturbed run the capacity may be there. Other runs are at the median.
const AFTER_KEPT: f64 = 0.8;

/// Where among the odds more runs are, until one close to the capacity keeps the promise and the range of the capacity is
/// narrow. Those that are only for the range are at the median.
const MORE_RUNS: [f64; 5] = [0.4, 0.3, 0.2, 0.1, 0.05];

/// How close that is.
const CLOSE: f64 = 0.9;

/// How narrow: the highest rate of the range by the lowest.
const NARROW: f64 = 1.25;

/// The first rate, by the throughput of a closed loop.
const FIRST: f64 = 0.75;

/// The lowest rate, by that throughput. What is not kept there is not kept anywhere.
const LOWEST: f64 = 1.0 / 32.0;

/// How far above that throughput the highest rate is: it is measured, too.
const ABOVE: f64 = 1.15;

/// Capacities that are told apart.
const RATES: u32 = 120;

/// Exponents of the rate in the odds of a slow request.
const EXPONENTS: [f64; 7] = [6.0, 10.0, 16.0, 26.0, 42.0, 68.0, 110.0];

/// Slow requests come in clusters, behind the same burst: so many requests say as much as one that is independent.
const CLUSTER: f64 = 32.0;

/// The most independent requests that a run counts as: the machine is not the same in two runs.
const MOST_INDEPENDENT: f64 = 50.0;

/// The probability that a run is slow because of something else, such as another process, whatever the rate.
const DISTURBED: f64 = 0.2;

/// The probability that a run is quick because of something else.
const LUCKY: f64 = 0.02;

/// The highest rate up to which `run` keeps a promise that lets `slow_share` of the requests be slow; `None` if not even
/// the lowest does.
///
/// `throughput` is that of a closed loop, which no open loop exceeds by much.
///
/// # Errors
/// Those of `run`.
pub(super) fn highest_rate<E>(
    throughput: f64,
    slow_share: f64,
    run: &mut dyn FnMut(f64) -> Result<SlowCount, E>,
) -> Result<Option<CapacityEstimate>, E> {
    let mut odds = CapacityOdds::of(throughput, slow_share);
    let first = throughput * FIRST;
    odds.learn(first, run(first)?);
    for _ in 1..RUNS {
        let rate = odds.quantile(if odds.is_last_kept { AFTER_KEPT } else { 0.5 });
        odds.learn(rate, run(rate)?);
    }
    for lower in MORE_RUNS {
        let (is_close, (low, high)) = (odds.is_kept_close(), odds.range());
        if is_close && high <= NARROW * low {
            break;
        }
        let rate = odds.quantile(if is_close { 0.5 } else { lower });
        odds.learn(rate, run(rate)?);
    }
    if odds.kept.is_none() {
        let lowest = throughput * LOWEST;
        odds.learn(lowest, run(lowest)?);
    }
    Ok(odds.estimate())
}

/// As how many independent requests a run counts.
fn independent(seen: SlowCount) -> f64 {
    (seen.requests / CLUSTER).min(MOST_INDEPENDENT)
}

/// A capacity and an exponent, and how likely they make all that was seen.
struct PossibleCapacity {
    ln_rate: f64,
    exponent: f64,
    ln_likelihood: f64,
}

/// How likely each capacity is.
struct CapacityOdds {
    slow_share: f64,
    /// The highest rate at which a run has kept the promise.
    kept: Option<f64>,
    is_last_kept: bool,
    /// From the lowest capacity to the highest.
    all: Vec<PossibleCapacity>,
}

impl CapacityOdds {
    /// All between the lowest and the highest rate are as likely.
    fn of(throughput: f64, slow_share: f64) -> Self {
        let (low, high) = ((throughput * LOWEST).ln(), (throughput * ABOVE).ln());
        let rate = |number| low + (high - low) * f64::from(number) / f64::from(RATES - 1);
        let possible = |number| {
            let ln_rate = rate(number);
            let with = move |exponent| PossibleCapacity { ln_rate, exponent, ln_likelihood: 0.0 };
            EXPONENTS.into_iter().map(with)
        };
        CapacityOdds {
            slow_share,
            kept: None,
            is_last_kept: false,
            all: (0..RATES).flat_map(possible).collect(),
        }
    }

    /// Counts what a run at a rate has shown.
    fn learn(&mut self, rate: f64, seen: SlowCount) {
        if seen.requests <= 0.0 {
            return;
        }
        self.is_last_kept = seen.is_kept(self.slow_share);
        if self.is_last_kept {
            self.kept = Some(self.kept.map_or(rate, |kept| kept.max(rate)));
        }
        let (share, independent) = (seen.share(), independent(seen));
        let best = weighted_ln(share, share) + weighted_ln(1.0 - share, 1.0 - share);
        let allowed = (self.slow_share / (1.0 - self.slow_share)).ln();
        for possible in &mut self.all {
            let odds = allowed + possible.exponent * (rate.ln() - possible.ln_rate);
            // Exact zeros and ones would rule out too much.
            let slow = 1.0 / (1.0 + (-odds.clamp(-30.0, 30.0)).exp());
            let ln = weighted_ln(share, slow) + weighted_ln(1.0 - share, 1.0 - slow) - best;
            let other = if slow < share { DISTURBED } else { LUCKY };
            let likelihood = (1.0 - other) * (independent * ln).exp() + other;
            possible.ln_likelihood += likelihood.ln();
        }
    }

    /// The rate below which the capacity is with this probability.
    fn quantile(&self, probability: f64) -> f64 {
        let highest = self.all.iter().map(|one| one.ln_likelihood).fold(f64::MIN, f64::max);
        let weight = |one: &PossibleCapacity| (one.ln_likelihood - highest).exp();
        let sum: f64 = self.all.iter().map(weight).sum();
        let (mut below, mut reached) = (0.0, f64::NAN);
        // Exponents of one rate are neighbours.
        let step = ((ABOVE / LOWEST).ln()) / f64::from(RATES - 1);
        for of_rate in self.all.chunks(EXPONENTS.len()) {
            let weight: f64 = of_rate.iter().map(weight).sum();
            reached = of_rate.first().map_or(reached, |one| one.ln_rate);
            let left = probability * sum - below;
            if weight >= left {
                return (reached + (left / weight - 0.5) * step).exp();
            }
            below += weight;
        }
        reached.exp()
    }

    /// Whether a run has kept the promise at the median of the odds, or close to it.
    fn is_kept_close(&self) -> bool {
        self.kept.is_some_and(|kept| kept >= CLOSE * self.quantile(0.5))
    }

    /// The median of the odds, but no rate that no run has held.
    fn estimate(&self) -> Option<CapacityEstimate> {
        let rate = self.quantile(0.5).min(self.kept?);
        let (low, high) = self.range();
        Some(CapacityEstimate { rate, low: low.min(rate), high: high.max(rate) })
    }

    /// Between which rates the capacity is, with a probability of [`CERTAINTY`].
    fn range(&self) -> (f64, f64) {
        let tail = (1.0 - CERTAINTY) / 2.0;
        (self.quantile(tail), self.quantile(1.0 - tail))
    }
}

/// `weight * value.ln()`, which is 0 without a weight.
fn weighted_ln(weight: f64, value: f64) -> f64 {
    if weight > 0.0 { weight * value.ln() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::chance::Chance;
    use super::*;

    const P99: f64 = 0.01;

    /// A queue with one server (M/M/1): the rate at which its 99th percentile is `limit` seconds.
    fn known(service: f64, limit: f64) -> f64 {
        service - 100f64.ln() / limit
    }

    /// What is found on a noisy machine with `throughput`; with the number of runs.
    fn found(service: f64, limit: f64, throughput: f64, seed: u64) -> (CapacityEstimate, u32) {
        let (mut chance, mut runs) = (Chance(seed), 0);
        let mut run = |rate: f64| {
            runs += 1;
            let noise = 0.12;
            // Now and then the machine does something else.
            let stall = if chance.even() < 0.02 { 5.0 } else { 1.0 };
            let mean = 1.0 / (service - rate) * stall * (noise * chance.normal()).exp();
            let share = if rate < service { (-limit / mean).exp() } else { 1.0 };
            Ok::<_, ()>(SlowCount { requests: 5000.0, slow: 5000.0 * share })
        };
        let found = highest_rate(throughput, P99, &mut run).expect("no errors");
        (found.expect("a rate"), runs)
    }

    #[test]
    fn the_capacity_is_found_within_a_tenth() {
        for (service, limit) in [(1000.0, 0.02), (1000.0, 0.1), (50.0, 0.3), (20_000.0, 0.001)] {
            // The closed loop has seen a little too much, or too little.
            for throughput in [service * 0.93, service, service * 1.05] {
                let want = known(service, limit);
                let is_near = |seed: &u64| {
                    let (found, runs) = found(service, limit, throughput, *seed);
                    assert!(runs <= 15, "{runs}");
                    (found.rate / want - 1.0).abs() <= 0.1
                };
                let count = (0..100).filter(is_near).count();
                assert!(count >= 95, "{service} {limit} {throughput}: {count} of 100");
            }
        }
    }

    /// A run of so many seconds of a model that takes about 58 ms, with one request at a time: requests due, and those
    /// that took more than half a second.
    fn slow_model(rate: f64, seconds: f64, chance: &mut Chance) -> SlowCount {
        let (mut at, mut free) = (0.0, 0.0);
        let mut seen = SlowCount { requests: 0.0, slow: 0.0 };
        loop {
            at -= chance.even().ln() / rate;
            if at > seconds {
                return seen;
            }
            free = f64::max(at, free) + 0.0585 * (1.0 + 0.1 * chance.normal()).max(0.2);
            seen.requests += 1.0;
            seen.slow += f64::from(u8::from(free - at > 0.5));
        }
    }

    /// Estimates of such a model from 30 seconds a run, of which the numbered ones are slow because of something else:
    /// those within a tenth, and those whose range holds the capacity.
    fn found_of_slow_model(lapses: &[u32]) -> (usize, usize) {
        let (mut near, mut within) = (0, 0);
        for seed in 0..100 {
            let (mut chance, mut number) = (Chance(seed), 0);
            let mut run = |rate: f64| {
                number += 1;
                let mut seen = slow_model(rate, 30.0, &mut chance);
                if lapses.contains(&number) {
                    seen.slow = seen.requests / 4.0;
                }
                Ok::<_, ()>(seen)
            };
            let found = highest_rate(17.1, P99, &mut run).expect("no errors").expect("a rate");
            near += usize::from((found.rate / SLOW_MODEL - 1.0).abs() <= 0.1);
            within += usize::from((found.low..found.high).contains(&SLOW_MODEL));
        }
        (near, within)
    }

    /// The rate at which 1 % of the requests of the slow model are slow.
    const SLOW_MODEL: f64 = 12.55;

    #[test]
    fn few_requests_are_enough_for_a_slow_model() {
        let share = slow_model(SLOW_MODEL, 100_000.0, &mut Chance(7)).share();
        assert!((0.008..0.0125).contains(&share), "{share}");
        let (near, within) = found_of_slow_model(&[]);
        assert!(near >= 80, "{near} of 100");
        assert!(within >= 75, "{within} of 100");
        for lapse in 1..=RUNS {
            let (near, _) = found_of_slow_model(&[lapse]);
            assert!(near >= 60, "{lapse}: {near} of 100");
        }
    }

    #[test]
    fn a_machine_that_was_slow_for_a_while_hides_little() {
        for slow in 0..RUNS {
            let mut number = 0;
            let mut run = |rate: f64| {
                number += 1;
                let capacity = if (slow..slow + 3).contains(&number) { 350.0 } else { 800.0 };
                let slow = if rate > capacity { 5000.0 } else { 0.0 };
                Ok::<_, ()>(SlowCount { requests: 5000.0, slow })
            };
            let found = highest_rate(1000.0, P99, &mut run).expect("no errors").expect("a rate");
            assert!((700.0..=800.0).contains(&found.rate), "{slow}: {found:?}");
        }
    }

    #[test]
    fn a_promise_that_no_rate_keeps_has_no_capacity() {
        let mut rates = Vec::new();
        let mut never = |rate| {
            rates.push(rate);
            Ok::<_, ()>(SlowCount { requests: 100.0, slow: 100.0 })
        };
        assert_eq!(highest_rate(1000.0, P99, &mut never), Ok(None));
        assert!(rates.len() <= 16 && rates.last().is_some_and(|rate| *rate < 32.0), "{rates:?}");
    }

    #[test]
    fn errors_end_it() {
        let mut fails = |_| Err::<SlowCount, &str>("interrupted");
        assert_eq!(highest_rate(10.0, P99, &mut fails), Err("interrupted"));
    }
}
