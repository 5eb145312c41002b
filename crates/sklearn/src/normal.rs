//! The standard normal distribution, as SciPy computes it.

#![allow(clippy::excessive_precision)] // Coefficients as they are published.

/// The probability of a value up to `x`.
pub(super) fn probability(x: f64) -> f64 {
    0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

/// The value up to which the probability is `p`.
///
/// Source: `ndtri` of Stephen L. Moshier's Cephes, which SciPy uses, with a relative error of 1e-15.
pub(super) fn quantile(p: f64) -> f64 {
    if p <= 0.0 {
        return if p == 0.0 { f64::NEG_INFINITY } else { f64::NAN };
    }
    if p >= 1.0 {
        return if p == 1.0 { f64::INFINITY } else { f64::NAN };
    }
    // exp(-2), below which the tails begin.
    let tail = 0.135_335_283_236_612_69;
    let is_upper = p > 1.0 - tail;
    let y = if is_upper { 1.0 - p } else { p };
    if y > tail {
        let y = y - 0.5;
        let y2 = y * y;
        let x = y + y * (y2 * polynomial(&P0, y2) / monic(&Q0, y2));
        // The square root of 2 pi.
        return x * 2.506_628_274_631_000_5;
    }
    let x = (-2.0 * y.ln()).sqrt();
    let x0 = x - x.ln() / x;
    let z = 1.0 / x;
    let x1 = match x < 8.0 {
        true => z * polynomial(&P1, z) / monic(&Q1, z),
        false => z * polynomial(&P2, z) / monic(&Q2, z),
    };
    let x = x0 - x1;
    if is_upper { x } else { -x }
}

/// A polynomial, the coefficient of the highest power first.
fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

/// As [`polynomial`], with 1 before the first coefficient.
fn monic(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().fold(1.0, |sum, coefficient| sum * x + coefficient)
}

const P0: [f64; 5] = [
    -5.99633501014107895267e1,
    9.80010754185999661536e1,
    -5.66762857469070293439e1,
    1.39312609387279679503e1,
    -1.23916583867381258016e0,
];

const Q0: [f64; 8] = [
    1.95448858338141759834e0,
    4.67627912898881538453e0,
    8.63602421390890590575e1,
    -2.25462687854119370527e2,
    2.00260212380060660359e2,
    -8.20372256168333339912e1,
    1.59056225126211695515e1,
    -1.18331621121330003142e0,
];

const P1: [f64; 9] = [
    4.05544892305962419923e0,
    3.15251094599893866154e1,
    5.71628192246421288162e1,
    4.40805073893200834700e1,
    1.46849561928858024014e1,
    2.18663306850790267539e0,
    -1.40256079171354495875e-1,
    -3.50424626827848203418e-2,
    -8.57456785154685413611e-4,
];

const Q1: [f64; 8] = [
    1.57799883256466749731e1,
    4.53907635128879210584e1,
    4.13172038254672030440e1,
    1.50425385692907503408e1,
    2.50464946208309415979e0,
    -1.42182922854787788574e-1,
    -3.80806407691578277194e-2,
    -9.33259480895457427372e-4,
];

const P2: [f64; 9] = [
    3.23774891776946035970e0,
    6.91522889068984211695e0,
    3.93881025292474443415e0,
    1.33303460815807542389e0,
    2.01485389549179081538e-1,
    1.23716634817820021358e-2,
    3.01581553508235416007e-4,
    2.65806974686737550832e-6,
    6.23974539184983293730e-9,
];

const Q2: [f64; 8] = [
    6.02427039364742014255e0,
    3.67983563856160859403e0,
    1.37702099489081330271e0,
    2.16236993594496635890e-1,
    1.34204006088543189037e-2,
    3.28014464682127739104e-4,
    2.89247864745380683936e-6,
    6.79019408009981274425e-9,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are those of `scipy.special.ndtri` of SciPy 1.17.
    #[test]
    fn quantiles_are_those_of_scipy() {
        for (p, want) in [
            (1e-300, -37.0470962993612),
            (1e-20, -9.262340089798409),
            (1e-07, -5.1993375821928165),
            (0.001, -3.090232306167813),
            (0.1, -1.2815515655446004),
            (0.3, -0.5244005127080409),
            (0.7, 0.5244005127080407),
            (0.9, 1.2815515655446004),
            (0.999, 3.090232306167813),
            (0.9999999, 5.199337582290661),
        ] {
            let got = quantile(p);
            assert!((got - want).abs() <= 4e-15 * f64::abs(want), "{p}: {got} is not {want}");
            let back = probability(got);
            assert!((back - p).abs() <= 1e-12 * p, "{p}: {back}");
        }
        assert_eq!(quantile(0.0), f64::NEG_INFINITY);
        assert!(quantile(-1.0).is_nan() && quantile(f64::NAN).is_nan());
    }
}
