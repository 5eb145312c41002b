//! Writes integers, and floats that are integers.

/// Appends a signed integer.
#[inline(always)]
pub(super) fn signed(value: impl Into<i64>, out: &mut Vec<u8>) {
    let value = value.into();
    integer::<0>(value < 0, value.unsigned_abs(), *b"", out);
}

/// Appends an unsigned integer.
#[inline(always)]
pub(super) fn unsigned(value: impl Into<u64>, out: &mut Vec<u8>) {
    integer::<0>(false, value.into(), *b"", out);
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
        integer(whole < 0, magnitude.into(), *b".0", out);
    }
    is_whole
}

/// Appends an integer, and what is behind it. The digits are written where they stay, into a part of fixed size, of
/// which the rest is then cut off: a copy of a few bytes takes as long as all else.
#[inline(always)]
fn integer<const COUNT: usize>(
    is_negative: bool,
    magnitude: u64,
    behind: [u8; COUNT],
    out: &mut Vec<u8>,
) {
    const MILLION: u64 = 1_000_000;
    let start = out.len();
    out.extend_from_slice(&[b'-'; LINE]);
    let Some(text) = out.get_mut(start..).and_then(|part| part.first_chunk_mut()) else { return };
    let mut line = IntegerLine { text, end: usize::from(is_negative) };
    if magnitude < THOUSAND {
        line.first_three(magnitude);
    } else if magnitude < MILLION {
        line.first_three(magnitude / THOUSAND);
        line.put::<3>(three_digits(magnitude % THOUSAND).into());
    } else {
        line.long(magnitude);
    }
    if let Some(place) = line.text.get_mut(line.end..line.end + COUNT) {
        place.copy_from_slice(&behind);
    }
    let end = line.end + COUNT;
    out.truncate(start + end);
}

const THOUSAND: u64 = 1000;

/// A sign and 20 digits, in whole words.
const LINE: usize = 24;

#[inline(always)]
fn three_digits(n: u64) -> u32 {
    #[allow(clippy::cast_possible_truncation)]
    THREE_DIGITS.get(n as usize).copied().unwrap_or(0)
}

/// An integer that is being written.
struct IntegerLine<'t> {
    text: &'t mut [u8; LINE],
    end: usize,
}

impl IntegerLine<'_> {
    /// The digits of a number below a thousand, without those in front that are zero.
    #[inline(always)]
    fn first_three(&mut self, n: u64) {
        let zeros = u8::from(n < 10) + u8::from(n < 100);
        self.put::<3>((three_digits(n) >> (8 * zeros)).into());
        self.end -= usize::from(zeros);
    }

    /// All digits of a number from a million on.
    #[inline]
    fn long(&mut self, n: u64) {
        const EIGHT: u64 = 100_000_000;
        let (upper, last) = (n / EIGHT, n % EIGHT);
        if upper == 0 {
            return self.first_eight(last);
        }
        if upper < THOUSAND {
            self.first_three(upper);
        } else if upper < EIGHT {
            self.first_eight(upper);
        } else {
            self.first_eight(upper / EIGHT);
            self.put::<8>(eight_digits(upper % EIGHT) | ASCII_ZEROS);
        }
        self.put::<8>(eight_digits(last) | ASCII_ZEROS);
    }

    /// The digits of a number above zero of up to eight, without those in front that are zero.
    #[inline(always)]
    fn first_eight(&mut self, n: u64) {
        let digits = eight_digits(n);
        let zeros = digits.trailing_zeros() / 8;
        self.put::<8>((digits | ASCII_ZEROS) >> (8 * zeros));
        self.end -= zeros as usize;
    }

    /// Writes `COUNT` characters, the first of which is the lowest byte; others may follow, which count no more.
    #[inline(always)]
    fn put<const COUNT: usize>(&mut self, characters: u64) {
        if let Some(place) = self.text.get_mut(self.end..self.end + COUNT) {
            place.copy_from_slice(&characters.to_le_bytes()[..COUNT]);
        }
        self.end += COUNT;
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
            assert_eq!(text(&|out| unsigned(magnitude, out)), format!("[{magnitude}"));
            let value = magnitude.cast_signed();
            for value in [value, value.wrapping_neg()] {
                assert_eq!(text(&|out| signed(value, out)), format!("[{value}"));
            }
        }
        for byte in i8::MIN..=i8::MAX {
            assert_eq!(text(&|out| signed(byte, out)), format!("[{byte}"));
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
