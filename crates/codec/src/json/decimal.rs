//! Doubles and decimal digits, in integer arithmetic: exact, and without the text between them that the general
//! ways need.

use std::cmp::Ordering;

/// `5^q` for `q` from [`LEAST_POWER`] to 55, as `p` in `p * 2^b` with the top bit of `p` set. Those from 0
/// on are exact: 5^55 has 128 bits. Those below are rounded up.
const POWERS_OF_FIVE: [u128; 83] = {
    let mut powers = [0; 83];
    let (mut power, mut q) = (1_u128, 0);
    while q < powers.len() {
        powers[q] = if q < ZERO_POWER {
            reciprocal(5_u64.pow((ZERO_POWER - q) as u32))
        } else {
            power << power.leading_zeros()
        };
        if q >= ZERO_POWER && q + 1 < powers.len() {
            power *= 5;
        }
        q += 1;
    }
    powers
};

/// The place of `5^0`.
const ZERO_POWER: usize = 27;

const LEAST_POWER: i32 = -27;

/// The first 128 bits of `1 / divisor`, rounded up. The divisor is odd and above 1.
const fn reciprocal(divisor: u64) -> u128 {
    let divisor = divisor as u128;
    let (mut quotient, mut remainder) = (0_u128, 1_u128);
    while quotient >> 127 == 0 {
        remainder <<= 1;
        quotient <<= 1;
        if remainder >= divisor {
            remainder -= divisor;
            quotient |= 1;
        }
    }
    quotient + 1
}

/// `5^q` as above; `None` outside of the table.
#[inline(always)]
fn power_of_five(q: i32) -> Option<u128> {
    POWERS_OF_FIVE.get(usize::try_from(q - LEAST_POWER).ok()?).copied()
}

/// The bits of a double after the first one.
const FRACTION_BITS: u32 = f64::MANTISSA_DIGITS - 1;

/// What is added to the exponent of a double.
const EXPONENT_BIAS: i32 = f64::MAX_EXP - 1;

/// `digits * 10^exponent`, rounded to nearest, ties to even; `None` for exponents outside of -27 to 55.
///
/// The algorithm of Eisel and Lemire ("Number Parsing at a Gigabyte per Second", 2021), in the range where 128
/// bits of the power always decide.
#[inline]
pub(super) fn to_double(digits: u64, exponent: i32) -> Option<f64> {
    // The exponents with which digits of 64 bits can be between two doubles: 5^23 has 54 bits.
    const TIES: std::ops::RangeInclusive<i32> = -4..=23;
    // The bits of the product's upper half that decide, beside the double's own: rounding, and a leading zero.
    const SPARE: u32 = u64::BITS - FRACTION_BITS - 3;
    if digits == 0 {
        return Some(0.0);
    }
    let power = power_of_five(exponent)?;
    let zeros = digits.leading_zeros();
    let digits = digits << zeros;
    let product = u128::from(digits) * (power >> u64::BITS);
    let mut product = split(product);
    if product.0.trailing_ones() >= SPARE {
        // The lower half of the power may carry into the bits that decide.
        #[allow(clippy::cast_possible_truncation)]
        let below = split(u128::from(digits) * u128::from(power as u64)).0;
        let (low, carries) = product.1.overflowing_add(below);
        product = (product.0 + u64::from(carries), low);
    }
    let (high, low) = product;
    let top = u32::from(high.leading_zeros() == 0);
    let shift = SPARE + top;
    let mut mantissa = high >> shift;
    if low <= 1 && TIES.contains(&exponent) && mantissa & 3 == 1 && mantissa << shift == high {
        // Halfway between two: to the even one.
        mantissa &= !1;
    }
    // Half of the last bit up; a carry out of the fraction is one more in the exponent.
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    let binary = binary_exponent(exponent) + (u64::BITS - 1 - zeros + top).cast_signed();
    let bits = u64::from((binary + EXPONENT_BIAS - 1).cast_unsigned()) << FRACTION_BITS;
    Some(f64::from_bits(bits + mantissa))
}

/// The upper and the lower half.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
const fn split(x: u128) -> (u64, u64) {
    ((x >> u64::BITS) as u64, x as u64)
}

/// The binary exponent of `10^q`: `floor(q * log2(10))`.
#[inline(always)]
const fn binary_exponent(q: i32) -> i32 {
    (q * 217_706) >> 16
}

/// The most significant digits that a double needs.
pub(super) const MOST_DIGITS: i32 = 17;

const TEN_TO_17: u64 = 100_000_000_000_000_000;

/// The first 17 digits of `x`, rounded to nearest, ties to even, as an integer, and the decimal exponent of the first
/// one. `None` unless `x` is from 1e-37 to below 1e37.
#[inline]
pub(super) fn seventeen_digits(x: f64) -> Option<(u64, i32)> {
    if !(1e-37..1e37).contains(&x) {
        return None;
    }
    let bits = x.to_bits();
    #[allow(clippy::cast_possible_truncation)]
    let binary = (bits >> FRACTION_BITS) as i32 - EXPONENT_BIAS;
    let mantissa = (bits & ((1 << FRACTION_BITS) - 1)) | 1 << FRACTION_BITS;
    // The binary exponent times log10(2): at most one too low, as the fraction does not count.
    let exponent = (binary * 78_913) >> 18;
    let digits = scaled(mantissa, binary, MOST_DIGITS - 1 - exponent)?;
    if digits < TEN_TO_17 {
        return Some((digits, exponent));
    }
    let digits = scaled(mantissa, binary, MOST_DIGITS - 2 - exponent)?;
    // Rounding up can reach the next power of ten only from below it, where the exponent was right.
    Some((digits, exponent + 1))
}

/// `mantissa * 2^(binary - 52) * 10^shift`, rounded to an integer, ties to even. The result has at most 61 bits.
#[inline(always)]
fn scaled(mantissa: u64, binary: i32, shift: i32) -> Option<u64> {
    let binary = binary - FRACTION_BITS.cast_signed();
    if shift < 0 {
        // Beyond 10^17 all doubles are integers.
        let integer = u128::from(mantissa).checked_shl(u32::try_from(binary).ok()?)?;
        let divisor = 10_u128.pow(shift.unsigned_abs());
        return rounded(integer / divisor, (2 * (integer % divisor)).cmp(&divisor));
    }
    let power = power_of_five(shift)?;
    // The product, exactly: 128 bits and below them 64.
    let (high, low) = split(power);
    let below = u128::from(mantissa) * u128::from(low);
    let high = u128::from(mantissa) * u128::from(high) + (below >> u64::BITS);
    #[allow(clippy::cast_possible_truncation)]
    let low = below as u64;
    // Both have the point after their last bit; the power is 5^shift times 2^(127 - its own exponent).
    let own = binary_exponent(shift) - shift;
    let drop = (u128::BITS - 1).cast_signed() - own - binary - shift - u64::BITS.cast_signed();
    let drop = u32::try_from(drop).ok().filter(|drop| (1..u128::BITS).contains(drop))?;
    let rest = high & ((1 << drop) - 1);
    rounded(high >> drop, rest.cmp(&(1 << (drop - 1))).then(low.cmp(&0)))
}

/// `digits`, of which a rest is left that compares so with a half: to nearest, ties to even.
#[inline(always)]
fn rounded(digits: u128, rest: Ordering) -> Option<u64> {
    let up = rest == Ordering::Greater || (rest == Ordering::Equal && digits & 1 == 1);
    u64::try_from(digits + u128::from(up)).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const GREATEST_POWER: i32 = 55;

    /// Xorshift.
    pub(in super::super) fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn check_read(digits: u64, exponent: i32) {
        let text = format!("{digits}e{exponent}");
        let want: f64 = text.parse().expect("a number");
        let got = to_double(digits, exponent).map(f64::to_bits);
        assert_eq!(got, Some(want.to_bits()), "{text}");
    }

    #[test]
    fn decimals_become_the_nearest_doubles() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for exponent in LEAST_POWER..=GREATEST_POWER {
            for digits in
                [0, 1, 2, 5, 9, 10, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 53, (1 << 53) + 1]
            {
                check_read(digits, exponent);
            }
            for _ in 0..3_000 {
                let bits = random(&mut state) % 64;
                check_read(random(&mut state) >> bits, exponent);
            }
        }
        assert_eq!(to_double(1, LEAST_POWER - 1), None);
        assert_eq!(to_double(1, GREATEST_POWER + 1), None);
    }

    #[test]
    fn halfway_between_two_doubles_is_the_even_one() {
        let mut state = 0x1234_5678_9abc_def1;
        for _ in 0..200_000 {
            // 54 bits that end in one are halfway between two doubles, and so are they times 2^n.
            let halfway = (random(&mut state) >> 10) | 1 << 53 | 1;
            for digits in [halfway - 1, halfway, halfway + 1] {
                check_read(digits, 0);
                check_read(digits << 9, 0);
            }
            // Times 5^n: the decimal digits of halfway / 2^n.
            let n = random(&mut state) % 5;
            let digits = (halfway >> 14 | 1) * 5_u64.pow(n as u32);
            check_read(digits, -(n as i32));
            // Halfway with few digits, above 10^19.
            let power = (random(&mut state) % 24) as u32;
            let few = halfway.div_ceil(5_u64.pow(power)) | 1;
            check_read(few, power.cast_signed());
        }
    }

    /// By the exact printing of the standard library.
    fn reference(x: f64) -> (u64, i32) {
        let text = format!("{x:.16e}");
        let (mantissa, exponent) = text.split_once('e').expect("an exponent");
        let digits = mantissa.replace('.', "").parse().expect("digits");
        (digits, exponent.parse().expect("an exponent"))
    }

    #[test]
    fn doubles_have_the_digits_of_exact_printing() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..300_000 {
            let bits = random(&mut state);
            let binary = bits % 250; // 2^-125 to 2^124
            let x = f64::from_bits((bits >> 12) | (898 + binary) << FRACTION_BITS);
            let few = f64::from_bits(x.to_bits() & (u64::MAX << (bits % 52)));
            for x in [x, few] {
                match seventeen_digits(x) {
                    Some(got) => assert_eq!(got, reference(x), "{x:e}"),
                    None => assert!(!(1e-37..1e37).contains(&x), "{x:e}"),
                }
            }
        }
    }

    #[test]
    fn powers_of_ten_and_their_neighbours_have_the_right_exponent() {
        for exponent in -37..37 {
            let power: f64 = format!("1e{exponent}").parse().expect("a number");
            let mut x = power;
            for _ in 0..40 {
                x = x.next_down();
            }
            for _ in 0..80 {
                if (1e-37..1e37).contains(&x) {
                    assert_eq!(seventeen_digits(x), Some(reference(x)), "{x:e}");
                }
                x = x.next_up();
            }
        }
        for power in -122..=122 {
            let x = 2_f64.powi(power);
            assert_eq!(seventeen_digits(x), Some(reference(x)), "2^{power}");
        }
        for x in [0.0, -1.0, f64::NAN, f64::INFINITY, 5e-324, 1e37, f64::MAX] {
            assert_eq!(seventeen_digits(x), None, "{x:e}");
        }
    }

    #[test]
    fn ties_at_the_seventeenth_digit_go_to_the_even_one() {
        // Integers of 18 digits that end in 5, and halves of integers of 17.
        for x in [100_000_000_000_000_000_f64, 123_456_789_012_345_680.0] {
            let mut x = x;
            for _ in 0..200 {
                assert_eq!(seventeen_digits(x), Some(reference(x)), "{x:e}");
                assert_eq!(
                    seventeen_digits(x / 1024.0),
                    Some(reference(x / 1024.0)),
                    "{x:e} / 1024"
                );
                x = x.next_up();
            }
        }
    }
}
