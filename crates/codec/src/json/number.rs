//! Reads numbers: short plain ones, which are most, in a few steps, and all others exactly. Every
//! float is correctly rounded.

use super::decimal;
use super::scan::{Cursor, ScanResult, Syntax, SyntaxError};

/// A number of a JSON text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A non-negative integer token (`-0` included) that fits.
    Unsigned(u64),
    /// A negative integer token that fits.
    Negative(i64),
    /// Anything else: a fraction, an exponent, a larger integer, NaN or an infinity.
    Float(f64),
}

impl Number {
    /// The value as a double, rounded to nearest, ties to even.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Unsigned(n) => n as f64,
            Number::Negative(n) => n as f64,
            Number::Float(x) => x,
        }
    }
}

impl Cursor<'_> {
    /// Reads a number, or one of `NaN`, `Inf`, `Infinity`, with or without a minus sign.
    ///
    /// # Errors
    /// [`Syntax::ValueInvalid`] if no number starts here; [`Syntax::NumberMissFraction`] and
    /// [`Syntax::NumberMissExponent`]; [`Syntax::NumberTooBig`] if it overflows a double.
    pub fn number(&mut self) -> ScanResult<Number> {
        match self.short_number() {
            Some(number) => Ok(number),
            None => self.any_number(),
        }
    }

    /// Reads a number by the fast path; `None` if that does not apply.
    #[inline]
    fn short_number(&mut self) -> Option<Number> {
        let window = self.text.get(self.at..)?.first_chunk()?;
        let (number, length) = short_number(window)?;
        self.at += length;
        Some(number)
    }

    /// Reads a list element by the fast path, and the comma after it if that follows immediately;
    /// returns whether it did. `None` if the fast path does not apply. Small enough to be inlined
    /// into loops.
    #[inline(always)]
    pub fn short_element(&mut self) -> Option<(Number, bool)> {
        let window = self.text.get(self.at..)?.first_chunk()?;
        let (number, length) = short_number(window)?;
        self.at += length;
        if window.get(length) != Some(&b',') {
            return Some((number, false));
        }
        self.at += 1 + usize::from(window.get(length + 1) == Some(&b' '));
        if self.peek() <= b' ' {
            self.skip_space();
        }
        Some((number, true))
    }

    /// Reads a number of any form.
    fn any_number(&mut self) -> ScanResult<Number> {
        let start = self.at;
        let is_negative = self.take(b'-');
        let mut digits = NumberDigits::default();
        match self.peek() {
            // No digit may follow a leading zero.
            b'0' => {
                self.advance();
                digits.count = 1;
            }
            b'1'..=b'9' => self.digits(&mut digits),
            _ => return self.not_finite(is_negative),
        }
        let mut exponent = 0i64;
        let mut is_integer = true;
        if self.take(b'.') {
            is_integer = false;
            let before = self.at;
            self.digits(&mut digits);
            if self.at == before {
                return Err(self.error(Syntax::NumberMissFraction));
            }
            exponent -= i64::try_from(self.at - before).unwrap_or(i64::MAX);
        }
        if matches!(self.peek(), b'e' | b'E') {
            is_integer = false;
            exponent = exponent.saturating_add(self.exponent()?);
        }
        if digits.count <= EXACT_DIGITS {
            if is_integer {
                return Ok(integer_of(is_negative, digits.value));
            }
            if let Some(value) = exact(digits.value, exponent) {
                return Ok(Number::Float(if is_negative { -value } else { value }));
            }
        }
        self.long_number(start, is_negative, is_integer)
    }

    /// The number from `start` to here, which has too many digits or too large an exponent for
    /// [`exact`].
    #[cold]
    fn long_number(&self, start: usize, is_negative: bool, is_integer: bool) -> ScanResult<Number> {
        let token = self.text.get(start..self.at).unwrap_or_default();
        if is_integer {
            let text = std::str::from_utf8(token).unwrap_or_default();
            if let Ok(value) = text.trim_start_matches('-').parse::<u64>()
                && let number @ (Number::Unsigned(_) | Number::Negative(_)) =
                    integer_of(is_negative, value)
            {
                return Ok(number);
            }
        }
        match fast_float2::parse::<f64, _>(token) {
            Ok(value) if value.is_finite() => Ok(Number::Float(value)),
            _ => Err(SyntaxError { kind: Syntax::NumberTooBig, offset: start }),
        }
    }

    /// Reads `NaN`, `Inf` or `Infinity`, after its sign.
    fn not_finite(&mut self, is_negative: bool) -> ScanResult<Number> {
        let value = match self.peek() {
            b'N' => {
                self.literal(b"NaN")?;
                f64::NAN
            }
            b'I' => {
                self.literal(b"Inf")?;
                if self.peek() == b'i' {
                    self.literal(b"inity")?;
                }
                f64::INFINITY
            }
            _ => return Err(self.error(Syntax::ValueInvalid)),
        };
        Ok(Number::Float(if is_negative { -value } else { value }))
    }

    /// Reads `e`, an optional sign and digits.
    fn exponent(&mut self) -> ScanResult<i64> {
        self.advance();
        let is_negative = match self.peek() {
            sign @ (b'+' | b'-') => {
                self.advance();
                sign == b'-'
            }
            _ => false,
        };
        let before = self.at;
        let mut value = 0i64;
        while let digit @ b'0'..=b'9' = self.peek() {
            value = (value * 10 + i64::from(digit - b'0')).min(MAX_EXPONENT);
            self.advance();
        }
        if self.at == before {
            return Err(self.error(Syntax::NumberMissExponent));
        }
        Ok(if is_negative { -value } else { value })
    }

    /// Reads decimal digits into `digits`, eight at a time.
    #[inline]
    fn digits(&mut self, digits: &mut NumberDigits) {
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let Some(chunk) = rest.first_chunk::<8>() else {
                break;
            };
            let (count, value) = leading_digits(u64::from_le_bytes(*chunk));
            digits.push(count, value);
            self.at += count;
            if count < 8 {
                return;
            }
        }
        while let digit @ b'0'..=b'9' = self.peek() {
            digits.push(1, u64::from(digit - b'0'));
            self.at += 1;
        }
    }
}

/// An exponent beyond that of any double, and far from overflow.
const MAX_EXPONENT: i64 = 1 << 40;

/// The most decimal digits that a `u64` always holds.
const EXACT_DIGITS: usize = 19;

/// Decimal digits. `value` is exact if `count` is at most [`EXACT_DIGITS`].
#[derive(Default)]
struct NumberDigits {
    value: u64,
    count: usize,
}

const POWERS_OF_TEN: [u64; 9] =
    [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

impl NumberDigits {
    #[inline]
    fn push(&mut self, count: usize, value: u64) {
        self.value = self.value.wrapping_mul(power_of_ten(count)).wrapping_add(value);
        self.count += count;
    }
}

/// How many bytes [`short_number`] looks at: a sign, 7 digits, a point, 24 digits, and the byte
/// after them.
const WINDOW: usize = 40;

/// The number at the start of `window` and its length, if it has the usual form: up to seven digits,
/// and optionally a point and up to 23 more, without an exponent.
#[inline(always)]
fn short_number(window: &[u8; WINDOW]) -> Option<(Number, usize)> {
    let is_negative = window[0] == b'-';
    let start = usize::from(is_negative);
    let (whole_digits, whole) = match (window[start], window[start + 1]) {
        // Most numbers are one digit and a fraction.
        (digit @ b'0'..=b'9', b'.') => (1, u64::from(digit - b'0')),
        (b'0', b'0'..=b'9') => return None,
        _ => leading_digits(eight_bytes(window, start)),
    };
    if whole_digits == 0 {
        return None;
    }
    if whole_digits == 8 {
        return long_integer(window, start, whole);
    }
    let mut end = start + whole_digits;
    if window[end] != b'.' {
        return match window[end] {
            b'e' | b'E' => with_exponent(window, whole, 0, end),
            _ => Some((integer_of(is_negative, whole), end)),
        };
    }
    end += 1;
    let (mut digits, fraction) = leading_digits(eight_bytes(window, end));
    end += digits;
    let mut value = whole * power_of_ten(digits) + fraction;
    if digits == 8 {
        let (more, rest) = leading_digits(eight_bytes(window, end));
        digits += more;
        end += more;
        value = value.saturating_mul(power_of_ten(more)).saturating_add(rest);
    }
    if digits == 16 {
        // A double with all its digits, as Python writes it.
        let (more, rest) = leading_digits(eight_bytes(window, end));
        digits += more;
        end += more;
        value = value.saturating_mul(power_of_ten(more)).saturating_add(rest);
    }
    if digits == 0 || window[end].is_ascii_digit() {
        return None;
    }
    if matches!(window[end], b'e' | b'E') {
        return with_exponent(window, value, digits, end);
    }
    if value == u64::MAX {
        // Too many digits for an integer.
        let value = fast_float2::parse(window.get(..end)?).ok()?;
        return Some((Number::Float(value), end));
    }
    let value = if value > EXACT_INTEGERS {
        let digits = i32::try_from(digits).unwrap_or(i32::MAX);
        decimal::to_double(value, -digits)?
    } else {
        // Both operands are exact, so one division rounds correctly.
        #[allow(clippy::cast_precision_loss)]
        let value = value as f64 / POWERS.get(digits)?;
        value
    };
    Some((Number::Float(if is_negative { -value } else { value }), end))
}

/// The integer at the start of `window`, of which eight digits from `start` on are read; `None` if it is longer than 24
/// digits, too large, or no integer.
#[inline(never)]
fn long_integer(window: &[u8; WINDOW], start: usize, eight: u64) -> Option<(Number, usize)> {
    let (mut value, mut end) = (eight, start + 8);
    for _ in 0..2 {
        let (more, rest) = leading_digits(eight_bytes(window, end));
        value = value.checked_mul(power_of_ten(more))?.checked_add(rest)?;
        end += more;
        if more < 8 {
            let ends = !matches!(window.get(end), None | Some(b'.' | b'e' | b'E'));
            return ends.then(|| (integer_of(start > 0, value), end));
        }
    }
    None
}

/// The number at the start of `window`, whose digits end at `end` before an exponent: the last `fraction` of them
/// are behind the point. `None` if the general way has to read it.
#[inline(never)]
fn with_exponent(
    window: &[u8; WINDOW],
    value: u64,
    fraction: usize,
    mut end: usize,
) -> Option<(Number, usize)> {
    let mut next = || {
        end += 1;
        window.get(end).copied()
    };
    let mut byte = next()?;
    let is_below_one = byte == b'-';
    if matches!(byte, b'-' | b'+') {
        byte = next()?;
    }
    // Two digits are what doubles of the quick ways have; `u64::MAX` stands for too many digits of the number.
    let (mut exponent, mut digits) = (0, 0);
    while byte.is_ascii_digit() && digits < 3 {
        exponent = exponent * 10 + i32::from(byte - b'0');
        digits += 1;
        byte = next()?;
    }
    if !(1..=2).contains(&digits) || value == u64::MAX {
        return None;
    }
    let exponent = if is_below_one { -exponent } else { exponent };
    let exponent = exponent - i32::try_from(fraction).ok()?;
    let value = exact(value, exponent.into())?;
    let is_negative = window[0] == b'-';
    Some((Number::Float(if is_negative { -value } else { value }), end))
}

#[inline(always)]
fn eight_bytes(window: &[u8; WINDOW], at: usize) -> u64 {
    let chunk = window.get(at..).and_then(|rest| rest.first_chunk());
    chunk.map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[inline(always)]
fn power_of_ten(digits: usize) -> u64 {
    POWERS_OF_TEN.get(digits).copied().unwrap_or(1)
}

/// The number of leading decimal digits of eight bytes of text (the first byte lowest), and the
/// integer that they form.
#[inline(always)]
fn leading_digits(chunk: u64) -> (usize, u64) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let nibbles = chunk ^ (0x30 * ONES);
    // The top bit of each byte that is above 9. The carry out of such a byte only affects the bytes
    // after it, which no longer count.
    let above = (nibbles.wrapping_add(0x76 * ONES) | nibbles) & (0x80 * ONES);
    let count = above.trailing_zeros() / 8;
    if count == 0 {
        return (0, 0);
    }
    // Shift the digits to the top, with zeros before them. Then join neighbours to pairs, and sum
    // the four pairs, each times its power of a hundred, in the upper halves of two products.
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    let mut value = nibbles << (64 - 8 * count);
    value = value.wrapping_mul(10).wrapping_add(value >> 8);
    let outer = (value & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let inner = (value >> 16 & PAIRS).wrapping_mul(1 + (10_000 << 32));
    (count as usize, outer.wrapping_add(inner) >> 32)
}

#[inline]
fn integer_of(is_negative: bool, value: u64) -> Number {
    if !is_negative || value == 0 {
        return Number::Unsigned(value);
    }
    match 0i64.checked_sub_unsigned(value) {
        Some(value) => Number::Negative(value),
        #[allow(clippy::cast_precision_loss)]
        None => Number::Float(-(value as f64)),
    }
}

/// The powers of ten that a double represents exactly.
pub(super) const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// A double represents every integer up to this exactly.
const EXACT_INTEGERS: u64 = 1 << 53;

/// `digits * 10^exponent`, correctly rounded: by one operation on exact operands if that computes it (Clinger's fast
/// path). `None` for exponents that the general way has to read.
#[inline]
fn exact(digits: u64, exponent: i64) -> Option<f64> {
    let power = usize::try_from(exponent.unsigned_abs()).ok().and_then(|at| POWERS.get(at));
    let Some(power) = power.filter(|_| digits <= EXACT_INTEGERS) else {
        return decimal::to_double(digits, i32::try_from(exponent).ok()?);
    };
    #[allow(clippy::cast_precision_loss)]
    let digits = digits as f64;
    Some(if exponent < 0 { digits / power } else { digits * power })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> ScanResult<Number> {
        let mut cursor = Cursor::new(text.as_bytes());
        let number = cursor.number()?;
        assert_eq!(cursor.remaining(), 0, "{text}");
        Ok(number)
    }

    #[test]
    fn integers_keep_all_their_bits() {
        assert_eq!(number("0"), Ok(Number::Unsigned(0)));
        assert_eq!(number("-0"), Ok(Number::Unsigned(0)));
        assert_eq!(number("18446744073709551615"), Ok(Number::Unsigned(u64::MAX)));
        assert_eq!(number("-9223372036854775808"), Ok(Number::Negative(i64::MIN)));
        assert_eq!(number("18446744073709551616"), Ok(Number::Float(18446744073709551616.0)));
        assert_eq!(number("-9223372036854775809"), Ok(Number::Float(-9223372036854775808.0)));
        assert_eq!(number("12345678901234567"), Ok(Number::Unsigned(12345678901234567)));
    }

    #[test]
    fn decimals_are_correctly_rounded() {
        let texts = [
            "0.1",
            "1e5",
            "1E-5",
            "123456.789",
            "0.30000000000000004",
            "1.7976931348623157e308",
            "2.2250738585072014e-308",
            "5e-324",
            "1e-400",
            "9007199254740993.0",
            "0.000000000000000000000000000001",
            "123456789012345678901234567890.5",
            "-0.0",
            "-1.5",
            "3.14159265358979323846264338327950288",
            "1.00000000000000011102230246251565404",
        ];
        for text in texts {
            let want: f64 = text.parse().expect(text);
            let Ok(Number::Float(got)) = number(text) else {
                panic!("{text} is not a float");
            };
            assert_eq!(got.to_bits(), want.to_bits(), "{text}");
        }
    }

    #[test]
    fn the_short_way_reads_what_the_other_way_reads() {
        let whole = ["0", "-0", "7", "-7", "12", "1234567", "12345678", "00", "01", "-", "", "."];
        let fraction = [
            "",
            ".",
            ".5",
            ".0000000",
            ".12345678",
            ".123456789",
            ".123456789012345",
            ".1234567890123456",
            ".12345678901234567",
            ".123456789012345678901234",
            ".1234567890123456789012",
            ".12345678901234567890123",
            ".123456789012345e1",
            ".5e3",
            ".5E",
            "e5",
            "e",
            "x",
        ];
        for (whole, fraction) in whole.iter().flat_map(|w| fraction.map(|f| (w, f))) {
            for behind in [",", "]", " ", "}", "a", "-"] {
                let text = format!("{whole}{fraction}{behind}").into_bytes();
                let padded = [&text[..], &[b' '; WINDOW]].concat();
                let (mut short, mut long) = (Cursor::new(&padded), Cursor::new(&padded));
                let (a, b) = (short.number(), long.any_number());
                let text = String::from_utf8_lossy(&text);
                assert_eq!(a, b, "{text}");
                assert_eq!(short.offset(), long.offset(), "{text}");
                if let (Ok(Number::Float(a)), Ok(Number::Float(b))) = (a, b) {
                    assert_eq!(a.to_bits(), b.to_bits(), "{text}");
                }
            }
        }
    }

    #[test]
    fn every_run_of_digits_is_counted_right() {
        for length in 1..=30 {
            for tail in ["", ".", "e", ",", "]", "x1234567", "/", ":", "\u{e9}"] {
                let digits: String = (1..=length).map(|i| char::from(b'0' + i % 10)).collect();
                let text = format!("{digits}{tail}");
                let mut cursor = Cursor::new(text.as_bytes());
                let mut read = NumberDigits::default();
                cursor.digits(&mut read);
                assert_eq!(cursor.offset(), usize::from(length), "{text}");
                assert_eq!(read.count, usize::from(length), "{text}");
                if length <= 19 {
                    assert_eq!(read.value, digits.parse::<u64>().expect("fits"), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_million_digits_are_read_in_one_pass() {
        let digits = "9".repeat(1_000_000);
        let error = Cursor::new(digits.as_bytes()).number().expect_err("too big");
        assert_eq!((error.kind, error.offset), (Syntax::NumberTooBig, 0));
        let number = number(&format!("0.{digits}"));
        assert_eq!(number, Ok(Number::Float(1.0)));
    }
}
