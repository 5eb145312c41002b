//! Walks JSON text.

use std::borrow::Cow;

/// A place in a JSON text.
#[derive(Clone)]
pub struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

/// Text that is no JSON, and where that shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// What is wrong.
    pub kind: Syntax,
    /// The byte at which it shows, counted from the start of the text.
    pub offset: usize,
}

/// Kinds of [`SyntaxError`], with RapidJSON's wording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Syntax {
    DocumentEmpty,
    ValueInvalid,
    ObjectMissName,
    ObjectMissColon,
    ObjectMissCommaOrCurlyBracket,
    ArrayMissCommaOrSquareBracket,
    StringUnicodeEscapeInvalidHex,
    StringUnicodeSurrogateInvalid,
    StringEscapeInvalid,
    StringMissQuotationMark,
    StringInvalidEncoding,
    NumberTooBig,
    NumberMissFraction,
    NumberMissExponent,
}

impl Syntax {
    /// RapidJSON's English text (`error/en.h`).
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Syntax::DocumentEmpty => "The document is empty.",
            Syntax::ValueInvalid => "Invalid value.",
            Syntax::ObjectMissName => "Missing a name for object member.",
            Syntax::ObjectMissColon => "Missing a colon after a name of object member.",
            Syntax::ObjectMissCommaOrCurlyBracket => {
                "Missing a comma or } after an object member."
            }
            Syntax::ArrayMissCommaOrSquareBracket => {
                "Missing a comma or ] after an array element."
            }
            Syntax::StringUnicodeEscapeInvalidHex => {
                "Incorrect hex digit after \\u escape in string."
            }
            Syntax::StringUnicodeSurrogateInvalid => "The surrogate pair in string is invalid.",
            Syntax::StringEscapeInvalid => "Invalid escape character in string.",
            Syntax::StringMissQuotationMark => "Missing a closing quotation mark in string.",
            Syntax::StringInvalidEncoding => "Invalid encoding in string.",
            Syntax::NumberTooBig => "Number too big to be stored in double.",
            Syntax::NumberMissFraction => "Miss fraction part in number.",
            Syntax::NumberMissExponent => "Miss exponent in number.",
        }
    }
}

type Scan<T> = Result<T, SyntaxError>;

/// A number as it stands in the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer token of at least 0 (`-0` included) that fits.
    Unsigned(u64),
    /// An integer token below 0 that fits.
    Negative(i64),
    /// Anything else: a fraction, an exponent, a larger integer, NaN or an infinity.
    Float(f64),
}

impl Number {
    /// The value as a double, rounded to nearest.
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

impl<'a> Cursor<'a> {
    /// The start of `text`. A UTF-8 byte order mark is skipped.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        let at = if text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        Cursor { text, at }
    }

    /// How many bytes into the text this is.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Goes to the byte number `offset`.
    pub fn seek(&mut self, offset: usize) {
        self.at = offset;
    }

    /// How many bytes are left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.text.len().saturating_sub(self.at)
    }

    /// The byte here; 0 at the end (a NUL ends a text, as for RapidJSON).
    #[inline]
    #[must_use]
    pub fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    /// Steps over the byte here.
    #[inline]
    pub fn advance(&mut self) {
        self.at += 1;
    }

    /// Steps over white space, then returns the byte here.
    #[inline]
    pub fn skip_space(&mut self) -> u8 {
        loop {
            let byte = self.peek();
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return byte;
            }
            self.at += 1;
        }
    }

    /// Steps over `byte` if it is here.
    #[inline]
    pub fn take(&mut self, byte: u8) -> bool {
        let here = self.peek() == byte;
        self.at += usize::from(here);
        here
    }

    /// An error of this kind at this place.
    #[must_use]
    pub fn error(&self, kind: Syntax) -> SyntaxError {
        let offset = self.at;
        SyntaxError { kind, offset }
    }

    /// Steps over the start of a document to its one value.
    ///
    /// # Errors
    /// [`Syntax::DocumentEmpty`].
    pub fn open_document(&mut self) -> Scan<()> {
        match self.skip_space() {
            0 => Err(self.error(Syntax::DocumentEmpty)),
            _ => Ok(()),
        }
    }

    /// Steps into an object, from its `{` to its first name; false if it has none (the object is
    /// then behind us).
    ///
    /// # Errors
    /// If neither a name nor `}` follows.
    pub fn open_object(&mut self) -> Scan<bool> {
        self.advance();
        match self.skip_space() {
            b'"' => Ok(true),
            b'}' => {
                self.advance();
                Ok(false)
            }
            _ => Err(self.error(Syntax::ObjectMissName)),
        }
    }

    /// Reads a member's name and steps over the colon to its value.
    ///
    /// # Errors
    /// If there is no name or colon.
    pub fn name(&mut self) -> Scan<Cow<'a, [u8]>> {
        let name = self.string()?;
        if self.skip_space() != b':' {
            return Err(self.error(Syntax::ObjectMissColon));
        }
        self.advance();
        self.skip_space();
        Ok(name)
    }

    /// Steps from behind a member to the next name; false at the end of the object (which is
    /// then behind us).
    ///
    /// # Errors
    /// If neither a comma and a name nor `}` follows.
    pub fn next_member(&mut self) -> Scan<bool> {
        match self.skip_space() {
            b',' => {
                self.advance();
                match self.skip_space() {
                    b'"' => Ok(true),
                    _ => Err(self.error(Syntax::ObjectMissName)),
                }
            }
            b'}' => {
                self.advance();
                Ok(false)
            }
            _ => Err(self.error(Syntax::ObjectMissCommaOrCurlyBracket)),
        }
    }

    /// Steps into an array, from its `[` to its first element; false if it has none (the array
    /// is then behind us).
    pub fn open_array(&mut self) -> bool {
        self.advance();
        if self.skip_space() == b']' {
            self.advance();
            return false;
        }
        true
    }

    /// Steps from behind an element to the next; false at the end of the array (which is then
    /// behind us).
    ///
    /// # Errors
    /// If neither a comma nor `]` follows.
    #[inline]
    pub fn next_element(&mut self) -> Scan<bool> {
        match self.skip_space() {
            b',' => {
                self.advance();
                self.skip_space();
                Ok(true)
            }
            b']' => {
                self.advance();
                Ok(false)
            }
            _ => Err(self.error(Syntax::ArrayMissCommaOrSquareBracket)),
        }
    }

    /// Steps over a whole value. Needs one bit of memory per level of nesting and no stack.
    ///
    /// # Errors
    /// If it is not well formed.
    pub fn skip_value(&mut self) -> Scan<()> {
        let mut open = BitStack::default();
        self.skip_space();
        loop {
            // At a value.
            match self.peek() {
                b'{' => {
                    if self.open_object()? {
                        open.push(true);
                        self.skip_name()?;
                        continue;
                    }
                }
                b'[' => {
                    if self.open_array() {
                        open.push(false);
                        continue;
                    }
                }
                _ => self.skip_scalar()?,
            }
            // Behind a value: close what ends here, up to the next value.
            loop {
                let more = match open.top() {
                    None => return Ok(()),
                    Some(true) => {
                        let more = self.next_member()?;
                        if more {
                            self.skip_name()?;
                        }
                        more
                    }
                    Some(false) => self.next_element()?,
                };
                if more {
                    break;
                }
                open.pop();
            }
        }
    }

    fn skip_name(&mut self) -> Scan<()> {
        self.skip_string()?;
        if self.skip_space() != b':' {
            return Err(self.error(Syntax::ObjectMissColon));
        }
        self.advance();
        self.skip_space();
        Ok(())
    }

    /// Steps over a string, number or literal.
    fn skip_scalar(&mut self) -> Scan<()> {
        match self.peek() {
            b'"' => self.skip_string(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.number().map(drop),
        }
    }

    /// Steps over the literal `word`, whose first byte is here.
    ///
    /// # Errors
    /// At the first byte that differs.
    pub fn literal(&mut self, word: &[u8]) -> Scan<()> {
        for &byte in word {
            if !self.take(byte) {
                return Err(self.error(Syntax::ValueInvalid));
            }
        }
        Ok(())
    }

    /// Reads a string; borrowed from the text if nothing in it is escaped.
    ///
    /// # Errors
    /// If it is not well formed, or does not start here.
    pub fn string(&mut self) -> Scan<Cow<'a, [u8]>> {
        let plain = self.plain_run()?;
        if self.take(b'"') {
            return Ok(Cow::Borrowed(plain));
        }
        let mut value = plain.to_vec();
        self.rest_of_string(&mut value)?;
        Ok(Cow::Owned(value))
    }

    /// Reads a string and appends it to `out`.
    ///
    /// # Errors
    /// If it is not well formed, or does not start here.
    pub fn string_into(&mut self, out: &mut Vec<u8>) -> Scan<()> {
        out.extend_from_slice(self.plain_run()?);
        if self.take(b'"') {
            return Ok(());
        }
        self.rest_of_string(out)
    }

    fn skip_string(&mut self) -> Scan<()> {
        self.plain_run()?;
        if self.take(b'"') {
            return Ok(());
        }
        // Escapes are checked as they are read; strings that have them are mostly short.
        self.rest_of_string(&mut Vec::new())
    }

    /// From a string's opening quote: the bytes up to its end or its first escape.
    fn plain_run(&mut self) -> Scan<&'a [u8]> {
        if !self.take(b'"') {
            return Err(self.error(Syntax::ValueInvalid));
        }
        self.run()
    }

    /// The bytes from here to the next quote or backslash, which is then here.
    fn run(&mut self) -> Scan<&'a [u8]> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
        let run = rest.get(..length).unwrap_or_default();
        // A fold and not `position`, so that the common case runs on vectors.
        if run.iter().fold(false, |found, &byte| found | (byte < 0x20)) {
            let control = run.iter().position(|&byte| byte < 0x20).unwrap_or(0);
            let nul = run.get(control) == Some(&0);
            self.at += control;
            return Err(self.error(if nul {
                Syntax::StringMissQuotationMark
            } else {
                Syntax::StringInvalidEncoding
            }));
        }
        self.at += length;
        if length == rest.len() {
            return Err(self.error(Syntax::StringMissQuotationMark));
        }
        Ok(run)
    }

    /// Reads from an escape to the end of the string.
    fn rest_of_string(&mut self, out: &mut Vec<u8>) -> Scan<()> {
        while !self.take(b'"') {
            self.escape(out)?;
            out.extend_from_slice(self.run()?);
        }
        Ok(())
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Scan<()> {
        let start = self.at;
        let invalid = |kind| SyntaxError { kind, offset: start };
        self.advance();
        let plain = match self.peek() {
            byte @ (b'"' | b'\\' | b'/') => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.advance();
                let character = self.unicode(start)?;
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(invalid(Syntax::StringEscapeInvalid)),
        };
        self.advance();
        out.push(plain);
        Ok(())
    }

    /// Reads the digits behind `\u`, and a second escape if the first is half of a pair.
    fn unicode(&mut self, start: usize) -> Scan<char> {
        let invalid = |kind| SyntaxError { kind, offset: start };
        let surrogate = || invalid(Syntax::StringUnicodeSurrogateInvalid);
        let hex = || invalid(Syntax::StringUnicodeEscapeInvalidHex);
        let first = self.hex4().ok_or_else(hex)?;
        if !(0xd800..=0xdfff).contains(&first) {
            return char::from_u32(first).ok_or_else(surrogate);
        }
        if first > 0xdbff || !self.take(b'\\') || !self.take(b'u') {
            return Err(surrogate());
        }
        let second = self.hex4().ok_or_else(hex)?;
        if !(0xdc00..=0xdfff).contains(&second) {
            return Err(surrogate());
        }
        let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        char::from_u32(code).ok_or_else(surrogate)
    }

    fn hex4(&mut self) -> Option<u32> {
        let mut value = 0;
        for _ in 0..4 {
            value = value * 16 + char::from(self.peek()).to_digit(16)?;
            self.advance();
        }
        Some(value)
    }

    /// Reads a number, or one of `NaN`, `Inf`, `Infinity` with or without a minus.
    ///
    /// # Errors
    /// [`Syntax::ValueInvalid`] if no number starts here, and the kinds that say what part of it
    /// is missing.
    #[inline]
    pub fn number(&mut self) -> Scan<Number> {
        let start = self.at;
        let negative = self.take(b'-');
        let mut digits = Digits::default();
        match self.peek() {
            // A zero stands alone before the point.
            b'0' => {
                self.advance();
                digits.count = 1;
            }
            b'1'..=b'9' => self.digits(&mut digits),
            _ => return self.not_finite(negative),
        }
        let mut exponent = 0i64;
        let mut integer = true;
        if self.take(b'.') {
            integer = false;
            let before = self.at;
            self.digits(&mut digits);
            if self.at == before {
                return Err(self.error(Syntax::NumberMissFraction));
            }
            exponent -= i64::try_from(self.at - before).unwrap_or(i64::MAX);
        }
        if matches!(self.peek(), b'e' | b'E') {
            integer = false;
            exponent = exponent.saturating_add(self.exponent()?);
        }
        if digits.count <= 19 {
            if integer {
                return Ok(integer_of(negative, digits.value));
            }
            if let Some(value) = exact(digits.value, exponent) {
                return Ok(Number::Float(if negative { -value } else { value }));
            }
        }
        self.long_number(start, negative, integer)
    }

    /// A number with too many digits or too large an exponent for the short way.
    #[cold]
    fn long_number(&self, start: usize, negative: bool, integer: bool) -> Scan<Number> {
        let token = self.text.get(start..self.at).unwrap_or_default();
        if integer {
            let text = std::str::from_utf8(token).unwrap_or_default();
            if let Ok(value) = text.trim_start_matches('-').parse::<u64>()
                && let number @ (Number::Unsigned(_) | Number::Negative(_)) =
                    integer_of(negative, value)
            {
                return Ok(number);
            }
        }
        let offset = start;
        let kind = Syntax::NumberTooBig;
        match fast_float2::parse::<f64, _>(token) {
            Ok(value) if value.is_finite() => Ok(Number::Float(value)),
            _ => Err(SyntaxError { kind, offset }),
        }
    }

    /// Reads `NaN`, `Inf` or `Infinity`, behind its sign.
    fn not_finite(&mut self, negative: bool) -> Scan<Number> {
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
        Ok(Number::Float(if negative { -value } else { value }))
    }

    /// Reads `e`, a sign and digits.
    fn exponent(&mut self) -> Scan<i64> {
        self.advance();
        let negative = match self.peek() {
            sign @ (b'+' | b'-') => {
                self.advance();
                sign == b'-'
            }
            _ => false,
        };
        let before = self.at;
        let mut value = 0i64;
        while let digit @ b'0'..=b'9' = self.peek() {
            // Far past any double, and far from overflow.
            value = (value * 10 + i64::from(digit - b'0')).min(1 << 40);
            self.advance();
        }
        if self.at == before {
            return Err(self.error(Syntax::NumberMissExponent));
        }
        Ok(if negative { -value } else { value })
    }

    /// Adds the decimal digits from here on to `digits`, eight at a time.
    #[inline]
    fn digits(&mut self, digits: &mut Digits) {
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

/// Decimal digits read so far. `value` is right while `count` is at most 19.
#[derive(Default)]
struct Digits {
    value: u64,
    count: usize,
}

const POWERS_OF_TEN: [u64; 9] = [
    1,
    10,
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
];

impl Digits {
    #[inline]
    fn push(&mut self, count: usize, value: u64) {
        let power = POWERS_OF_TEN.get(count).copied().unwrap_or(1);
        self.value = self.value.wrapping_mul(power).wrapping_add(value);
        self.count += count;
    }
}

/// Of eight bytes of text (first byte lowest): how many decimal digits they start with, and the
/// number those digits make.
#[inline]
fn leading_digits(chunk: u64) -> (usize, u64) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let nibbles = chunk ^ (0x30 * ONES);
    // The top bit of each byte that is above 9. The carry out of such a byte can only spoil
    // those behind it, which do not count any more.
    let above = (nibbles.wrapping_add(0x76 * ONES) | nibbles) & (0x80 * ONES);
    let count = above.trailing_zeros() / 8;
    if count == 0 {
        return (0, 0);
    }
    // Digits to the top, zeros before them; then join neighbours to pairs, and add the four
    // pairs, each times its power of a hundred, in the upper half of two products.
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    let mut value = nibbles << (64 - 8 * count);
    value = value.wrapping_mul(10).wrapping_add(value >> 8);
    let outer = (value & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let inner = (value >> 16 & PAIRS).wrapping_mul(1 + (10_000 << 32));
    (count as usize, outer.wrapping_add(inner) >> 32)
}

#[inline]
fn integer_of(negative: bool, value: u64) -> Number {
    if !negative || value == 0 {
        return Number::Unsigned(value);
    }
    match 0i64.checked_sub_unsigned(value) {
        Some(value) => Number::Negative(value),
        #[allow(clippy::cast_precision_loss)]
        None => Number::Float(-(value as f64)),
    }
}

/// `digits * 10^exponent` where one correctly rounded operation on exact operands gives it
/// (Clinger's fast path).
#[inline]
fn exact(digits: u64, exponent: i64) -> Option<f64> {
    const POWERS: [f64; 23] = [
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
        1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
    ];
    if digits > 1 << 53 {
        return None;
    }
    let power = *POWERS.get(usize::try_from(exponent.unsigned_abs()).ok()?)?;
    #[allow(clippy::cast_precision_loss)]
    let digits = digits as f64;
    Some(if exponent < 0 {
        digits / power
    } else {
        digits * power
    })
}

/// A stack of bits.
#[derive(Default)]
struct BitStack {
    words: Vec<u64>,
    len: usize,
}

impl BitStack {
    fn push(&mut self, bit: bool) {
        let mask = 1 << (self.len % 64);
        if self.len.is_multiple_of(64) {
            self.words.push(0);
        }
        if let Some(word) = self.words.last_mut() {
            *word = if bit { *word | mask } else { *word & !mask };
        }
        self.len += 1;
    }

    fn top(&self) -> Option<bool> {
        let last = self.len.checked_sub(1)?;
        Some(self.words.last()? >> (last % 64) & 1 == 1)
    }

    fn pop(&mut self) {
        self.len = self.len.saturating_sub(1);
        self.words.truncate(self.len.div_ceil(64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Scan<Number> {
        let mut cursor = Cursor::new(text.as_bytes());
        let number = cursor.number()?;
        assert_eq!(cursor.remaining(), 0, "{text}");
        Ok(number)
    }

    fn failure(text: &str) -> (Syntax, usize) {
        let mut cursor = Cursor::new(text.as_bytes());
        let error = cursor
            .open_document()
            .and_then(|()| cursor.skip_value())
            .expect_err(text);
        (error.kind, error.offset)
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
            "0.1", "1e5", "1E-5", "123456.789", "0.30000000000000004", "1.7976931348623157e308",
            "2.2250738585072014e-308", "5e-324", "1e-400", "9007199254740993.0",
            "0.000000000000000000000000000001", "123456789012345678901234567890.5", "-0.0", "-1.5",
            "3.14159265358979323846264338327950288", "1.00000000000000011102230246251565404",
        ];
        for text in texts {
            let want: f64 = text.parse().expect(text);
            let Ok(Number::Float(got)) = number(text) else {
                panic!("{text} is no float");
            };
            assert_eq!(got.to_bits(), want.to_bits(), "{text}");
        }
    }

    #[test]
    fn every_run_of_digits_is_counted_right() {
        for length in 1..=30 {
            for tail in ["", ".", "e", ",", "]", "x1234567", "/", ":", "\u{e9}"] {
                let digits: String = (1..=length).map(|i| char::from(b'0' + i % 10)).collect();
                let text = format!("{digits}{tail}");
                let mut cursor = Cursor::new(text.as_bytes());
                let mut read = Digits::default();
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
    fn errors_have_the_kinds_and_offsets_of_rapidjson() {
        assert_eq!(failure("  "), (Syntax::DocumentEmpty, 2));
        assert_eq!(failure("instances = [1, 2]"), (Syntax::ValueInvalid, 0));
        assert_eq!(failure("[1,]"), (Syntax::ValueInvalid, 3));
        assert_eq!(failure("[1"), (Syntax::ArrayMissCommaOrSquareBracket, 2));
        assert_eq!(failure("[1 2]"), (Syntax::ArrayMissCommaOrSquareBracket, 3));
        assert_eq!(failure("{\"a\":1"), (Syntax::ObjectMissCommaOrCurlyBracket, 6));
        assert_eq!(failure("{\"a\":1,}"), (Syntax::ObjectMissName, 7));
        assert_eq!(failure("{a:1}"), (Syntax::ObjectMissName, 1));
        assert_eq!(failure("{\"a\" 1}"), (Syntax::ObjectMissColon, 5));
        assert_eq!(failure("nul"), (Syntax::ValueInvalid, 3));
        assert_eq!(failure("+1"), (Syntax::ValueInvalid, 0));
        assert_eq!(failure("-x"), (Syntax::ValueInvalid, 1));
        assert_eq!(failure("[01]"), (Syntax::ArrayMissCommaOrSquareBracket, 2));
        assert_eq!(failure("1.x"), (Syntax::NumberMissFraction, 2));
        assert_eq!(failure("1ex"), (Syntax::NumberMissExponent, 2));
        assert_eq!(failure(" 1e400"), (Syntax::NumberTooBig, 1));
        assert_eq!(failure("\"abc"), (Syntax::StringMissQuotationMark, 4));
        assert_eq!(failure("\"a\nb\""), (Syntax::StringInvalidEncoding, 2));
        assert_eq!(failure("\"a\\x\""), (Syntax::StringEscapeInvalid, 2));
        assert_eq!(failure("\"\\u12g4\""), (Syntax::StringUnicodeEscapeInvalidHex, 1));
        assert_eq!(failure("\"\\ud800x\""), (Syntax::StringUnicodeSurrogateInvalid, 1));
        assert_eq!(failure("\"\\udc00\""), (Syntax::StringUnicodeSurrogateInvalid, 1));
    }

    #[test]
    fn strings_are_unescaped() {
        let text = br#""a\"b\\c\/d\b\f\n\r\t\u0041\u00e9\ud83d\ude00""#;
        let value = Cursor::new(text).string().expect("valid");
        assert_eq!(&*value, "a\"b\\c/d\u{8}\u{c}\n\r\tA\u{e9}\u{1f600}".as_bytes());
        assert!(matches!(Cursor::new(b"\"plain\"").string(), Ok(Cow::Borrowed(b"plain"))));
    }

    #[test]
    fn what_follows_the_first_value_is_not_looked_at() {
        let mut cursor = Cursor::new(b"\xef\xbb\xbf {\"a\":[1,{\"b\":[]}],\"c\":{}} trailing");
        assert_eq!(cursor.open_document().and_then(|()| cursor.skip_value()), Ok(()));
        assert_eq!(cursor.remaining(), " trailing".len());
    }

    #[test]
    fn a_million_brackets_are_an_error_and_no_crash() {
        let deep = "[".repeat(1_000_000);
        assert_eq!(failure(&deep).0, Syntax::ValueInvalid);
        let closed = deep + &"]".repeat(1_000_000);
        let mut cursor = Cursor::new(closed.as_bytes());
        assert_eq!(cursor.skip_value(), Ok(()));
    }

    #[test]
    fn a_million_digits_are_read_in_one_pass() {
        let digits = "9".repeat(1_000_000);
        assert_eq!(failure(&digits), (Syntax::NumberTooBig, 0));
        let number = number(&format!("0.{digits}"));
        assert_eq!(number, Ok(Number::Float(1.0)));
    }
}
