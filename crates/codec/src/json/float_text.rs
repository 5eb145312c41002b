//! The text of numbers whose digits are known, in the formats of C's `%g` and Python's `repr`.

use super::decimal;
use super::integer::{ASCII_ZEROS, eight_digits};

/// The significant digits of a number that round-trips with few, and with the most that a float32
/// and a double can need.
pub(super) const SHORT_DIGITS: i32 = 6;
pub(super) const FLOAT32_DIGITS: i32 = 9;
pub(super) const FLOAT64_DIGITS: i32 = decimal::MOST_DIGITS;

/// The least decimal exponent that is written without one.
const MIN_PLAIN_EXPONENT: i32 = -4;

/// The significant digits of a number, at most `N`.
pub(super) struct FloatDigits<const N: usize> {
    /// The digits as text, padded with zeros.
    text: [u8; N],
    /// Their number without trailing zeros.
    count: usize,
    /// The decimal exponent of the first.
    exponent: i32,
    /// The precision of `%g`, which decides whether it writes an exponent.
    precision: i32,
}

impl FloatDigits<9> {
    /// The digits of `nine`, an integer of nine digits, or the next power of ten, which rounding up
    /// can reach.
    #[inline(always)]
    pub(super) fn nine(nine: u32, exponent: i32, precision: i32) -> Self {
        let (nine, exponent) =
            if nine >= 1_000_000_000 { (100_000_000, exponent + 1) } else { (nine, exponent) };
        let rest = eight_digits((nine % 100_000_000).into());
        let [first, ..] = (nine / 100_000_000).to_le_bytes();
        let [a, b, c, d, e, f, g, h] = (rest | ASCII_ZEROS).to_le_bytes();
        FloatDigits {
            text: [b'0' + first, a, b, c, d, e, f, g, h],
            // The trailing digits are the top bytes.
            count: 9 - rest.leading_zeros() as usize / 8,
            exponent,
            precision,
        }
    }
}

impl FloatDigits<17> {
    /// The digits of an integer of 17 digits.
    #[inline(always)]
    pub(super) fn seventeen(digits: u64, exponent: i32) -> Self {
        const EIGHT: u64 = 100_000_000;
        let upper = digits / EIGHT;
        let [middle, last] = [upper % EIGHT, digits % EIGHT].map(eight_digits);
        let [first, ..] = (upper / EIGHT).to_le_bytes();
        let mut text = [b'0' + first; 17];
        text[1..9].copy_from_slice(&(middle | ASCII_ZEROS).to_le_bytes());
        text[9..].copy_from_slice(&(last | ASCII_ZEROS).to_le_bytes());
        let zeros = match last {
            0 => 8 + middle.leading_zeros() / 8,
            _ => last.leading_zeros() / 8,
        };
        FloatDigits { text, count: 17 - zeros as usize, exponent, precision: FLOAT64_DIGITS }
    }
}

impl<const N: usize> FloatDigits<N> {
    /// Appends the number. In the usual cases the text is written where it stays, into a part of `LINE` bytes (`N` and
    /// six more), of which the rest is then cut off, because copies of a few bytes at a time dominate the cost.
    #[inline(always)]
    pub(super) fn print<const LINE: usize>(&self, negative: bool, out: &mut Vec<u8>) {
        if negative {
            out.push(b'-');
        }
        let whole = self.exponent + 1;
        if whole < -3 || whole > self.precision {
            let digits = self.text.get(..self.count).unwrap_or_default();
            return with_exponent(digits, self.exponent, out);
        }
        let end = out.len();
        out.extend_from_slice(&[b'0'; LINE]);
        let Some(line) = out.get_mut(end..).and_then(|part| part.first_chunk_mut::<LINE>()) else {
            return;
        };
        #[allow(clippy::cast_sign_loss)]
        let length = if whole <= 0 {
            line[1] = b'.';
            let start = 2 + (-whole) as usize;
            if let Some(place) = line.get_mut(start..start + N) {
                place.copy_from_slice(&self.text);
            }
            start + self.count
        } else {
            let whole = whole as usize;
            self.write_with_point(whole, line);
            self.count.max(whole + 1) + 1
        };
        out.truncate(end + length);
    }

    /// Writes all digits, and a point after `whole` of them, 1 to `N`. Zeros follow in `line`.
    #[inline(always)]
    fn write_with_point<const LINE: usize>(&self, whole: usize, line: &mut [u8; LINE]) {
        const WORD: usize = 16;
        if whole < WORD {
            // In one word, because a copy of some bytes is a call.
            let mut word = [b'0'; WORD];
            word[..N.min(WORD)].copy_from_slice(&self.text[..N.min(WORD)]);
            let word = u128::from_le_bytes(word);
            let before = (1 << (8 * whole)) - 1;
            let point = u128::from(b'.') << (8 * whole);
            let word = word & before | point | (word & !before) << 8;
            line[..WORD].copy_from_slice(&word.to_le_bytes());
            // What the point pushed out, and the rest.
            if let Some(rest) = self.text.get(WORD - 1..) {
                line[WORD..WORD + rest.len()].copy_from_slice(rest);
            }
            return;
        }
        let (before, fraction) = self.text.split_at(whole);
        line[..whole].copy_from_slice(before);
        line[whole] = b'.';
        line[whole + 1..=N].copy_from_slice(fraction);
    }
}

/// Appends the number `d.ddde-7` in the format of `%g`.
pub(super) fn scientific(text: &str, precision: i32, out: &mut Vec<u8>) {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let digits = mantissa.replace('.', "");
    let exponent = exponent.parse().unwrap_or(0);
    layout(digits.trim_end_matches('0').as_bytes(), exponent, precision, out);
}

/// Appends significant digits, of which the first has this decimal exponent: as a decimal with a
/// point, or with an exponent below 1e-4 and from `10^precision` on.
#[inline]
pub(super) fn layout(digits: &[u8], exponent: i32, precision: i32, out: &mut Vec<u8>) {
    let digits = if digits.is_empty() { b"0" } else { digits };
    if exponent < MIN_PLAIN_EXPONENT || exponent >= precision {
        return with_exponent(digits, exponent, out);
    }
    let Ok(whole) = usize::try_from(exponent + 1) else {
        out.extend_from_slice(b"0.");
        let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
        out.extend_from_slice(b"0000".get(..zeros).unwrap_or_default());
        out.extend_from_slice(digits);
        return;
    };
    if whole == 0 {
        out.extend_from_slice(b"0.");
        out.extend_from_slice(digits);
        return;
    }
    match digits.split_at_checked(whole) {
        Some((whole, fraction)) if !fraction.is_empty() => {
            out.extend_from_slice(whole);
            out.push(b'.');
            out.extend_from_slice(fraction);
        }
        _ => {
            out.extend_from_slice(digits);
            out.resize(out.len() + whole - digits.len(), b'0');
            out.extend_from_slice(b".0");
        }
    }
}

/// Appends digits in the form `d.ddde-07`.
fn with_exponent(digits: &[u8], exponent: i32, out: &mut Vec<u8>) {
    let (first, rest) = digits.split_at(1);
    out.extend_from_slice(first);
    if !rest.is_empty() {
        out.push(b'.');
        out.extend_from_slice(rest);
    }
    out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
    let magnitude = exponent.unsigned_abs();
    if magnitude < 10 {
        out.push(b'0');
    }
    out.extend_from_slice(itoa::Buffer::new().format(magnitude).as_bytes());
}
