//! The functions that models share.

/// The cumulative distribution function of the standard normal distribution.
pub(super) fn normal_cdf(x: f64) -> f64 {
    0.5 * erfc(-x / std::f64::consts::SQRT_2)
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

/// Turns logits into probabilities.
pub(super) fn softmax(sums: &mut [f64]) {
    // Without the largest, no exponential overflows.
    let largest = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    sums.iter_mut().for_each(|sum| *sum = (*sum - largest).exp());
    normalize(sums);
}

/// Divides values by their sum.
pub(super) fn normalize(values: &mut [f64]) {
    let total: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= total);
}

/// The logistic function.
pub(super) fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
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
}
