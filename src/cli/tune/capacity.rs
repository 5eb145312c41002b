//! The highest rate at which a promise is kept.

/// How long a run lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateRunLength {
    /// To find the way.
    Short,
    /// To be sure.
    Long,
}

/// Bisection ends when the bounds are this close.
const CLOSE: f64 = 1.03;

/// The first rate, by the upper bound.
const FIRST: f64 = 0.75;

/// The lowest rate, by the upper bound. What is not kept there is not kept anywhere.
const LOWEST: f64 = 1.0 / 32.0;

/// How far above the closed-loop throughput the bound is: that is measured, too.
const ABOVE: f64 = 1.15;

/// Long runs to find out how far a machine that was slow for a while has recovered.
const AGAIN: usize = 3;

/// What long runs hold is far below what short ones did.
const FAR: f64 = 1.12;

/// What confirmation multiplies a rate by when it fails, time after time.
const STEPS_DOWN: [f64; 6] = [0.97, 0.95, 0.92, 0.85, 0.75, 0.5];

/// The highest rate that `is_held` holds, which a long run has confirmed; `None` if not even the lowest is held.
///
/// `throughput` is that of a closed loop, which no open loop exceeds by much. Short runs decide while the bounds are
/// far apart. A single one may be wrong: one that fails is run again, and one that succeeds by chance does not pass the
/// long run.
///
/// # Errors
/// Those of `is_held`.
pub(super) fn highest_rate<E>(
    throughput: f64,
    is_held: &mut dyn FnMut(f64, RateRunLength) -> Result<bool, E>,
) -> Result<Option<f64>, E> {
    let Some((mut low, mut high)) = bracket(throughput, is_held)? else { return Ok(None) };
    while high / low > CLOSE {
        let middle = (low * high).sqrt();
        match is_held_once(middle, is_held)? {
            true => low = middle,
            false => high = middle,
        }
    }
    confirmed(low, is_held)
}

/// Whether one of two short runs holds a rate.
fn is_held_once<E>(
    rate: f64,
    is_held: &mut dyn FnMut(f64, RateRunLength) -> Result<bool, E>,
) -> Result<bool, E> {
    Ok(is_held(rate, RateRunLength::Short)? || is_held(rate, RateRunLength::Short)?)
}

/// The highest rate up to `low` that a long run holds.
fn confirmed<E>(
    low: f64,
    is_held: &mut dyn FnMut(f64, RateRunLength) -> Result<bool, E>,
) -> Result<Option<f64>, E> {
    let mut rate = low;
    let mut steps = STEPS_DOWN.iter();
    while !is_held(rate, RateRunLength::Long)? {
        let Some(step) = steps.next() else { return Ok(None) };
        rate *= step;
    }
    // Far below what short runs have held, the machine was slower for a while: up again, as far as that goes.
    let mut high = low;
    for _ in 0..AGAIN {
        if high / rate < FAR {
            break;
        }
        let middle = (rate * high).sqrt();
        match is_held(middle, RateRunLength::Long)? {
            true => rate = middle,
            false => high = middle,
        }
    }
    Ok(Some(rate))
}

/// A rate that is held and one that is not.
fn bracket<E>(
    throughput: f64,
    is_held: &mut dyn FnMut(f64, RateRunLength) -> Result<bool, E>,
) -> Result<Option<(f64, f64)>, E> {
    let (mut rate, mut high) = (throughput * FIRST, throughput * ABOVE);
    let lowest = throughput * LOWEST;
    while !is_held_once(rate, is_held)? {
        if rate <= lowest {
            return Ok(None);
        }
        high = rate;
        rate = (rate / 2.0).max(lowest);
    }
    Ok(Some((rate, high)))
}

#[cfg(test)]
mod tests {
    use super::super::chance::Chance;
    use super::*;

    /// A queue with one server (M/M/1): the rate at which its 99th percentile is `limit` seconds.
    fn known(service: f64, limit: f64) -> f64 {
        service - 100f64.ln() / limit
    }

    /// What is found with noisy quantiles and `throughput`; with the number of runs.
    fn found(service: f64, limit: f64, throughput: f64, seed: u64) -> (Option<f64>, usize) {
        let (mut chance, mut runs) = (Chance(seed), 0);
        let mut is_held = |rate: f64, length: RateRunLength| {
            runs += 1;
            let noise = if length == RateRunLength::Short { 0.15 } else { 0.08 };
            // Now and then the machine does something else.
            let stall = if chance.even() < 0.02 { 5.0 } else { 1.0 };
            let p99 = if rate < service { 100f64.ln() / (service - rate) } else { 9.0 };
            Ok::<bool, ()>(p99 * stall * (noise * chance.normal()).exp() <= limit)
        };
        let found = highest_rate(throughput, &mut is_held).expect("no errors");
        (found, runs)
    }

    #[test]
    fn the_capacity_is_found_within_a_tenth() {
        for (service, limit) in [(1000.0, 0.02), (1000.0, 0.1), (50.0, 0.3), (20_000.0, 0.001)] {
            // The closed loop has seen a little too much, or too little.
            for throughput in [service * 0.93, service, service * 1.05] {
                let want = known(service, limit);
                let is_near = |seed: &u64| {
                    let (found, runs) = found(service, limit, throughput, *seed);
                    assert!(runs < 30, "{runs}");
                    found.is_some_and(|found| (found / want - 1.0).abs() <= 0.1)
                };
                let count = (0..100).filter(is_near).count();
                assert!(count >= 90, "{service} {limit} {throughput}: {count} of 100");
            }
        }
    }

    #[test]
    fn a_machine_that_was_slow_for_a_while_hides_little() {
        let mut long = 0;
        let mut is_held = |rate: f64, length: RateRunLength| {
            long += usize::from(length == RateRunLength::Long);
            let capacity = if (1..=5).contains(&long) { 350.0 } else { 800.0 };
            Ok::<bool, ()>(rate <= capacity)
        };
        let found = highest_rate(1000.0, &mut is_held).expect("no errors").expect("a rate");
        assert!((700.0..=800.0).contains(&found), "{found}");
    }

    #[test]
    fn a_promise_that_no_rate_keeps_has_no_capacity() {
        let mut rates = Vec::new();
        let mut never = |rate, _| {
            rates.push(rate);
            Ok::<bool, ()>(false)
        };
        assert_eq!(highest_rate(1000.0, &mut never), Ok(None));
        assert!(rates.len() < 16 && rates.last().is_some_and(|rate| *rate < 32.0), "{rates:?}");
    }

    #[test]
    fn errors_end_it() {
        let mut fails = |_, _| Err::<bool, &str>("interrupted");
        assert_eq!(highest_rate(10.0, &mut fails), Err("interrupted"));
    }
}
