//! Writes integers, and floats that are integers.

/// An integer to be written.
#[derive(Clone, Copy)]
pub(super) struct Integer {
    is_negative: bool,
    magnitude: u64,
}

/// A signed integer.
#[inline(always)]
pub(super) fn signed(value: impl Into<i64>) -> Integer {
    let value = value.into();
    Integer { is_negative: value < 0, magnitude: value.unsigned_abs() }
}

/// An unsigned integer.
#[inline(always)]
pub(super) fn unsigned(value: impl Into<u64>) -> Integer {
    Integer { is_negative: false, magnitude: value.into() }
}

impl Integer {
    /// Appends it, and what is behind it.
    #[inline(always)]
    pub(super) fn write<const COUNT: usize>(self, behind: [u8; COUNT], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; LINE]);
        let Some(text) = out.get_mut(start..).and_then(|part| part.first_chunk_mut()) else {
            return;
        };
        let end = self.put(text, 0);
        put(text, end, behind);
        out.truncate(start + end + COUNT);
    }

    /// Writes it from `at` on, and returns where it ends.
    #[inline(always)]
    fn put(self, text: &mut [u8; LINE], at: usize) -> usize {
        if let Some(place) = text.get_mut(at) {
            *place = b'-';
        }
        digits(text, at + usize::from(self.is_negative), self.magnitude)
    }
}

/// Appends integers, each behind the first bytes that `separator` has for it. They are written where they stay, into
/// room for all that is then cut off: a copy of a few bytes takes as long as all else, as does an end of `out` that each
/// number reads from memory.
#[inline(always)]
pub(super) fn write_all(
    integers: impl ExactSizeIterator<Item = Integer>,
    mut separator: impl FnMut() -> ([u8; 4], usize),
    out: &mut Vec<u8>,
) {
    let mut end = out.len();
    out.resize(end + LONGEST * integers.len() + LINE, 0);
    for integer in integers {
        let Some(text) = out.get_mut(end..).and_then(|rest| rest.first_chunk_mut()) else { break };
        let (bytes, length) = separator();
        put(text, 0, bytes);
        end += integer.put(text, length);
    }
    out.truncate(end);
}

/// The three digits of each number below a thousand, the first in the lowest byte.
static THREE_DIGITS: [u32; 1000] = {
    let mut all = [0; 1000];
    let mut n = 0;
    while n < 1000 {
        all[n as usize] = 0x30_3030 | (n / 100) | ((n / 10 % 10) << 8) | ((n % 10) << 16);
        n += 1;
    }
    all
};

/// Appends `value` and `.0` if it is an integer other than zero with at most six digits. Returns whether it is.
#[inline(always)]
pub(super) fn whole_float(value: f64, out: &mut Vec<u8>) -> bool {
    #[allow(clippy::cast_possible_truncation)] // What does not fit is not equal.
    let whole = value as i32;
    let magnitude = whole.unsigned_abs();
    let is_whole = f64::from(whole) == value && (1..1_000_000).contains(&magnitude);
    if is_whole {
        signed(whole).write(*b".0", out);
    }
    is_whole
}

/// The most bytes of an integer: what precedes it, a sign and 20 digits.
const LONGEST: usize = 25;

/// An integer with its comma, and room behind it for what is written in whole words.
pub(super) const LINE: usize = 32;

const THOUSAND: u64 = 1000;
const MILLION: u64 = THOUSAND * THOUSAND;

/// Writes the digits of `n` from `at` on, and returns where they end. Places are passed on by value: in memory, each
/// would wait for the one before.
#[inline(always)]
fn digits(text: &mut [u8; LINE], at: usize, n: u64) -> usize {
    if n < THOUSAND {
        return first_three(text, at, n);
    }
    if n < MILLION {
        let at = first_three(text, at, n / THOUSAND);
        return three(text, at, n % THOUSAND);
    }
    many_digits(text, at, n)
}

/// As [`digits`], of a number from a million on.
#[inline(always)]
fn many_digits(text: &mut [u8; LINE], at: usize, n: u64) -> usize {
    const BILLION: u64 = THOUSAND * MILLION;
    const TRILLION: u64 = MILLION * MILLION;
    if n < BILLION {
        let at = first_three(text, at, n / MILLION);
        return six(text, at, n % MILLION);
    }
    if n < TRILLION {
        let at = first_three(text, at, n / BILLION);
        return nine(text, at, n % BILLION);
    }
    let (upper, lower) = (n / BILLION, n % BILLION);
    let at = if upper < BILLION {
        let at = if upper < MILLION {
            first_three(text, at, upper / THOUSAND)
        } else {
            let at = first_three(text, at, upper / MILLION);
            three(text, at, upper / THOUSAND % THOUSAND)
        };
        three(text, at, upper % THOUSAND)
    } else {
        let at = first_three(text, at, upper / BILLION);
        nine(text, at, upper % BILLION)
    };
    nine(text, at, lower)
}

/// All nine digits of a number below a billion.
#[inline(always)]
fn nine(text: &mut [u8; LINE], at: usize, n: u64) -> usize {
    let at = three(text, at, n / MILLION);
    six(text, at, n % MILLION)
}

/// All six digits of a number below a million.
#[inline(always)]
fn six(text: &mut [u8; LINE], at: usize, n: u64) -> usize {
    let at = three(text, at, n / THOUSAND);
    three(text, at, n % THOUSAND)
}

/// All three digits of a number below a thousand.
#[inline(always)]
fn three(text: &mut [u8; LINE], at: usize, n: u64) -> usize {
    put(text, at, three_digits(n).to_le_bytes());
    at + 3
}

/// The digits of a number below a thousand, without those in front that are zero.
#[inline(always)]
fn first_three(text: &mut [u8; LINE], at: usize, n: u64) -> usize {
    let zeros = u8::from(n < 10) + u8::from(n < 100);
    put(text, at, (three_digits(n) >> (8 * zeros)).to_le_bytes());
    at + 3 - usize::from(zeros)
}

#[inline(always)]
fn three_digits(n: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation)]
    THREE_DIGITS.get(n as usize).copied().unwrap_or(0)
}

/// Writes characters, of which the last may count no more.
#[inline(always)]
fn put<const COUNT: usize>(text: &mut [u8; LINE], at: usize, characters: [u8; COUNT]) {
    if let Some(place) = text.get_mut(at..at + COUNT) {
        place.copy_from_slice(&characters);
    }
}

/// Eight digits 0, as text.
pub(super) const ASCII_ZEROS: u64 = 0x3030_3030_3030_3030;

/// The eight decimal digits of `n`, which is below 10^8, one per byte, the first lowest.
#[inline]
pub(super) fn eight_digits(n: u64) -> u64 {
    #[allow(clippy::cast_possible_truncation)]
    let n = n as u32;
    // Split into parts of four, then of two, then of one digit, each time by a multiplication that
    // divides exactly in that range.
    let fours = u64::from(n / 10_000) | u64::from(n % 10_000) << 32;
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = hundreds | (fours - 100 * hundreds) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (pairs - 10 * tens) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_the_standard_library() {
        let text = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = b"[".to_vec();
            write(&mut out);
            String::from_utf8(out).expect("ASCII")
        };
        let powers = (0..20).map(|power| 10_u64.pow(power));
        let near = powers.flat_map(|power| [power - 1, power, power + 1, power / 2, power / 2 * 3]);
        let bits = (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, u64::MAX >> bit]);
        for magnitude in near.chain(bits).chain(0..2000) {
            assert_eq!(text(&|out| unsigned(magnitude).write(*b"", out)), format!("[{magnitude}"));
            let value = magnitude.cast_signed();
            for value in [value, value.wrapping_neg()] {
                assert_eq!(text(&|out| signed(value).write(*b"", out)), format!("[{value}"));
            }
        }
        for byte in i8::MIN..=i8::MAX {
            assert_eq!(text(&|out| signed(byte).write(*b"", out)), format!("[{byte}"));
        }
    }

    #[test]
    fn eight_digits_of_any_number() {
        for n in (0..100_000_000).step_by(7919).chain([0, 9, 10, 99, 9999, 10_000, 99_999_999]) {
            let digits = eight_digits(n).to_le_bytes().map(|digit| char::from(b'0' + digit));
            assert_eq!(digits.iter().collect::<String>(), format!("{n:08}"));
        }
    }
}
