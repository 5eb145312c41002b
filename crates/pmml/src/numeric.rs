//! The functions that models share.

pub(super) use tensorserve_tabular::numeric::{logistic, softmax};

/// The cumulative distribution function of the standard normal distribution.
pub(super) fn normal_cdf(x: f64) -> f64 {
    0.5 * erfc(-x / std::f64::consts::SQRT_2)
}

/// The density of the standard normal distribution.
pub(super) fn normal_pdf(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// The error function.
pub(super) fn erf(x: f64) -> f64 {
    if x.abs() < SERIES_LIMIT { erf_series(x) } else { 1.0 - erfc(x) }
}

/// The steps of [`inverse_normal_cdf`], each of which triples the number of exact digits.
const INVERSE_STEPS: u32 = 12;

/// The inverse of [`normal_cdf`]; NaN outside of 0 to 1.
pub(super) fn inverse_normal_cdf(probability: f64) -> f64 {
    if probability.is_nan() || !(0.0..=1.0).contains(&probability) {
        return f64::NAN;
    }
    if probability == 0.0 {
        return f64::NEG_INFINITY;
    }
    if probability > 0.5 {
        return -inverse_normal_cdf(1.0 - probability);
    }
    // Hastings' approximation, to three digits (Abramowitz and Stegun 26.2.23).
    let t = (-2.0 * probability.ln()).sqrt();
    let numerator = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let denominator = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let mut x = numerator / denominator - t;
    for _ in 0..INVERSE_STEPS {
        // Halley's method.
        let error = (normal_cdf(x) - probability) / normal_pdf(x);
        let step = error / (1.0 + 0.5 * x * error);
        if step.is_nan() {
            break;
        }
        x -= step;
        if step.abs() <= x.abs() * f64::EPSILON {
            break;
        }
    }
    x
}

/// The median, of an even number the mean of the two in the middle. Sorts `values`.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let high = values.get(middle).copied().unwrap_or(f64::NAN);
    if values.len() % 2 == 1 {
        return high;
    }
    let low = values.get(middle.wrapping_sub(1)).copied().unwrap_or(f64::NAN);
    f64::midpoint(low, high)
}

/// Where the continued fraction converges faster than the series.
const SERIES_LIMIT: f64 = 2.5;

/// From here on, the complementary error function underflows to 0.
const UNDERFLOW: f64 = 27.0;

/// The most terms of the series, and the relative size at which a term no longer matters.
const MAX_TERMS: u32 = 100;
const NEGLIGIBLE: f64 = 1e-17;

/// The depth of the continued fraction, enough for full precision from [`SERIES_LIMIT`] on.
const FRACTION_DEPTH: u32 = 60;

/// The complementary error function.
fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let size = x.abs();
    if size < SERIES_LIMIT {
        return 1.0 - erf_series(x);
    }
    let tail = erfc_fraction(size);
    if x > 0.0 { tail } else { 2.0 - tail }
}

/// The Maclaurin series of the error function.
fn erf_series(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..MAX_TERMS {
        let n = f64::from(n);
        term *= -x * x / n;
        let next = term / (2.0 * n + 1.0);
        sum += next;
        if next.abs() < sum.abs() * NEGLIGIBLE {
            break;
        }
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

/// The continued fraction of the complementary error function, for positive `x`.
fn erfc_fraction(x: f64) -> f64 {
    if x > UNDERFLOW {
        return 0.0;
    }
    let mut fraction = x;
    for n in (1..=FRACTION_DEPTH).rev() {
        fraction = x + f64::from(n) / 2.0 / fraction;
    }
    (-x * x).exp() / fraction * std::f64::consts::FRAC_2_SQRT_PI / 2.0
}

/// Divides values by their sum.
pub(super) fn normalize(values: &mut [f64]) {
    let total: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= total);
}

/// The inverse of the complementary log-log function.
pub(super) fn inverse_cloglog(x: f64) -> f64 {
    1.0 - (-x.exp()).exp()
}

/// The inverse of the log-log function.
pub(super) fn inverse_loglog(x: f64) -> f64 {
    (-(-x).exp()).exp()
}

/// The inverse of the Cauchit function.
pub(super) fn inverse_cauchit(x: f64) -> f64 {
    0.5 + x.atan() / std::f64::consts::PI
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_distribution_is_exact_to_many_digits() {
        // From scipy.stats.norm.cdf.
        let known = [
            (-8.0, 6.220_960_574_271_785e-16),
            (-3.6, 1.591_085_901_575_338_8e-4),
            (-1.0, 0.158_655_253_931_457_05),
            (0.0, 0.5),
            (0.3, 0.617_911_422_188_952_6),
            (2.0, 0.977_249_868_051_820_8),
            (5.0, 0.999_999_713_348_428_1),
        ];
        for (x, expected) in known {
            let got = normal_cdf(x);
            assert!((got / expected - 1.0).abs() < 1e-12, "{x}: {got} {expected}");
        }
        assert_eq!((normal_cdf(-40.0), normal_cdf(40.0)), (0.0, 1.0));
    }

    #[test]
    fn the_inverse_of_the_normal_distribution_leads_back() {
        for x in [-37.0, -8.0, -2.5, -0.3, -1e-9, 0.0, 0.7, 3.0] {
            let got = inverse_normal_cdf(normal_cdf(x));
            assert!((got - x).abs() < 1e-12 * (1.0 + x.abs()), "{x}: {got}");
        }
        assert_eq!(inverse_normal_cdf(1.0), f64::INFINITY);
        assert!(inverse_normal_cdf(1.5).is_nan());
    }
}
