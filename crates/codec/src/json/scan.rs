//! Tokenizes JSON text.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use super::containers::{ContainerStack, JsonContainer};

/// A position in a JSON text.
///
/// Nothing validates that strings are UTF-8: their bytes are passed on unchanged, and the protocols
/// decide. Control characters and malformed escapes are errors.
#[derive(Clone)]
pub struct Cursor<'a> {
    pub(super) text: &'a [u8],
    pub(super) at: usize,
}

/// Malformed JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The kind of error.
    pub kind: Syntax,
    /// The byte at which RapidJSON reports it, counted from the start of the text.
    pub offset: usize,
}

/// The kinds of [`SyntaxError`], with RapidJSON's names.
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
            Syntax::ObjectMissCommaOrCurlyBracket => "Missing a comma or } after an object member.",
            Syntax::ArrayMissCommaOrSquareBracket => "Missing a comma or ] after an array element.",
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

pub(super) type ScanResult<T> = Result<T, SyntaxError>;

/// The UTF-8 byte order mark.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The surrogates of UTF-16: the first half of a pair, and the second.
const HIGH_SURROGATES: RangeInclusive<u32> = 0xd800..=0xdbff;
const LOW_SURROGATES: RangeInclusive<u32> = 0xdc00..=0xdfff;

/// The first code point beyond 16 bits, which takes a surrogate pair.
const SUPPLEMENTARY_PLANES: u32 = 0x1_0000;

/// The first byte that is not a control character.
const FIRST_PRINTABLE: u8 = b' ';

impl<'a> Cursor<'a> {
    /// The start of `text`, after its UTF-8 byte order mark if it has one.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        let at = if text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        Cursor { text, at }
    }

    /// The offset of the next byte.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Moves to the byte at `offset`.
    pub fn seek(&mut self, offset: usize) {
        self.at = offset;
    }

    /// The number of bytes left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.text.len().saturating_sub(self.at)
    }

    /// The next byte; 0 at the end. As in RapidJSON, a NUL ends the text.
    #[inline]
    #[must_use]
    pub fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    /// Skips one byte.
    #[inline]
    pub fn advance(&mut self) {
        self.at += 1;
    }

    /// Skips white space and returns the next byte.
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

    /// Skips `byte` if it is next; whether it was.
    #[inline]
    pub fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == byte;
        self.at += usize::from(is_next);
        is_next
    }

    /// An error of this kind at this position.
    #[must_use]
    pub fn error(&self, kind: Syntax) -> SyntaxError {
        SyntaxError { kind, offset: self.at }
    }

    /// Moves from the start of a document to its value.
    ///
    /// # Errors
    /// [`Syntax::DocumentEmpty`].
    pub fn open_document(&mut self) -> ScanResult<()> {
        match self.skip_space() {
            0 => Err(self.error(Syntax::DocumentEmpty)),
            _ => Ok(()),
        }
    }

    /// Moves from the `{` of an object to its first name. False if the object is empty; the cursor
    /// is after it then.
    ///
    /// # Errors
    /// If neither a name nor `}` follows.
    pub fn open_object(&mut self) -> ScanResult<bool> {
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

    /// Reads a member's name and moves past the colon to its value.
    ///
    /// # Errors
    /// If the name or the colon is missing.
    pub fn name(&mut self) -> ScanResult<Cow<'a, [u8]>> {
        let name = self.string()?;
        self.skip_colon()?;
        Ok(name)
    }

    /// Moves from the end of a member to the next name. False at the end of the object; the cursor
    /// is after it then.
    ///
    /// # Errors
    /// If neither a comma and a name nor `}` follows.
    pub fn next_member(&mut self) -> ScanResult<bool> {
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

    /// Moves from the `[` of an array to its first element. False if the array is empty; the cursor
    /// is after it then.
    pub fn open_array(&mut self) -> bool {
        self.advance();
        if self.skip_space() == b']' {
            self.advance();
            return false;
        }
        true
    }

    /// Moves from the end of an element to the next one. False at the end of the array; the cursor
    /// is after it then.
    ///
    /// # Errors
    /// If neither a comma nor `]` follows.
    #[inline]
    pub fn next_element(&mut self) -> ScanResult<bool> {
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

    /// Skips a comma and the white space around it. False without a comma; only white space is
    /// skipped then.
    #[inline]
    pub fn skip_comma(&mut self) -> bool {
        if self.peek() != b',' && self.skip_space() != b',' {
            return false;
        }
        self.advance();
        if self.peek() == b' ' {
            self.advance();
        }
        if self.peek() <= b' ' {
            self.skip_space();
        }
        true
    }

    /// Skips a whole value of any depth. Needs one bit of memory per open container and does not
    /// recurse.
    ///
    /// # Errors
    /// If the value is malformed.
    pub fn skip_value(&mut self) -> ScanResult<()> {
        let mut open = ContainerStack::default();
        self.skip_space();
        loop {
            // The cursor is at a value.
            match self.peek() {
                b'{' => {
                    if self.open_object()? {
                        open.push(JsonContainer::Object);
                        self.skip_name()?;
                        continue;
                    }
                }
                b'[' => {
                    if self.open_array() {
                        open.push(JsonContainer::Array);
                        continue;
                    }
                }
                _ => self.skip_scalar()?,
            }
            // The cursor is after a value: leave the containers that end here.
            loop {
                let more = match open.top() {
                    None => return Ok(()),
                    Some(JsonContainer::Object) => {
                        let more = self.next_member()?;
                        if more {
                            self.skip_name()?;
                        }
                        more
                    }
                    Some(JsonContainer::Array) => self.next_element()?,
                };
                if more {
                    break;
                }
                open.pop();
            }
        }
    }

    fn skip_name(&mut self) -> ScanResult<()> {
        self.skip_string()?;
        self.skip_colon()
    }

    /// Skips the colon after a name, and the white space around it.
    #[inline]
    fn skip_colon(&mut self) -> ScanResult<()> {
        if self.skip_space() != b':' {
            return Err(self.error(Syntax::ObjectMissColon));
        }
        self.advance();
        self.skip_space();
        Ok(())
    }

    /// Skips a string, a number or a literal.
    fn skip_scalar(&mut self) -> ScanResult<()> {
        match self.peek() {
            b'"' => self.skip_string(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => self.number().map(drop),
        }
    }

    /// Skips the literal `word`.
    ///
    /// # Errors
    /// At the first byte that differs.
    pub fn literal(&mut self, word: &[u8]) -> ScanResult<()> {
        for &byte in word {
            if !self.take(byte) {
                return Err(self.error(Syntax::ValueInvalid));
            }
        }
        Ok(())
    }

    /// Reads a string, which is borrowed from the text if it has no escapes.
    ///
    /// # Errors
    /// If no string starts here, or it is malformed.
    pub fn string(&mut self) -> ScanResult<Cow<'a, [u8]>> {
        let plain = self.open_string()?;
        if self.take(b'"') {
            return Ok(Cow::Borrowed(plain));
        }
        let mut value = Vec::with_capacity(plain.len() + self.length_of_rest());
        value.extend_from_slice(plain);
        self.rest_of_string(&mut value)?;
        Ok(Cow::Owned(value))
    }

    /// Reads a string and appends it to `out`, in which `make_room` makes room before for a number of further bytes.
    ///
    /// # Errors
    /// If no string starts here, or it is malformed; those of `make_room`.
    pub fn string_into<E: From<SyntaxError>>(
        &mut self,
        out: &mut Vec<u8>,
        make_room: impl Fn(&mut Vec<u8>, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let plain = self.open_string()?;
        if self.take(b'"') {
            make_room(out, plain.len())?;
            out.extend_from_slice(plain);
            return Ok(());
        }
        make_room(out, plain.len() + self.length_of_rest())?;
        out.extend_from_slice(plain);
        self.rest_of_string(out).map_err(E::from)
    }

    /// The bytes from an escape to the end of its string, which has at most as many without escapes.
    fn length_of_rest(&self) -> usize {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let mut escaped = usize::MAX;
        let end = memchr::memchr2_iter(b'"', b'\\', rest).find(|&at| {
            let is_escape = at != escaped && rest.get(at) == Some(&b'\\');
            let is_end = at != escaped && !is_escape;
            escaped = if is_escape { at + 1 } else { escaped };
            is_end
        });
        end.unwrap_or(rest.len())
    }

    fn skip_string(&mut self) -> ScanResult<()> {
        self.open_string()?;
        if self.take(b'"') {
            return Ok(());
        }
        // Decoding validates the escapes.
        let mut escaped = Vec::new();
        while !self.take(b'"') {
            escaped.clear();
            self.escape(&mut escaped)?;
            self.unescaped_part()?;
        }
        Ok(())
    }

    /// Skips the opening quote and reads up to the closing quote or the first escape.
    fn open_string(&mut self) -> ScanResult<&'a [u8]> {
        if !self.take(b'"') {
            return Err(self.error(Syntax::ValueInvalid));
        }
        self.unescaped_part()
    }

    /// Reads up to the next quote or backslash, where the cursor is then.
    fn unescaped_part(&mut self) -> ScanResult<&'a [u8]> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
        let part = rest.get(..length).unwrap_or_default();
        // A fold instead of `position`, so that the common case is vectorized.
        if part.iter().fold(false, |found, &byte| found | (byte < FIRST_PRINTABLE)) {
            let control = part.iter().position(|&byte| byte < FIRST_PRINTABLE).unwrap_or(0);
            let is_nul = part.get(control) == Some(&0);
            self.at += control;
            return Err(self.error(if is_nul {
                Syntax::StringMissQuotationMark
            } else {
                Syntax::StringInvalidEncoding
            }));
        }
        self.at += length;
        if length == rest.len() {
            return Err(self.error(Syntax::StringMissQuotationMark));
        }
        Ok(part)
    }

    /// Reads from an escape to the end of the string.
    fn rest_of_string(&mut self, out: &mut Vec<u8>) -> ScanResult<()> {
        while !self.take(b'"') {
            self.escape(out)?;
            out.extend_from_slice(self.unescaped_part()?);
        }
        Ok(())
    }

    /// Reads one escape. Errors are reported at its backslash.
    fn escape(&mut self, out: &mut Vec<u8>) -> ScanResult<()> {
        let start = self.at;
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
                let character =
                    self.unicode_escape().map_err(|kind| SyntaxError { kind, offset: start })?;
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(SyntaxError { kind: Syntax::StringEscapeInvalid, offset: start }),
        };
        self.advance();
        out.push(plain);
        Ok(())
    }

    /// Reads the digits after `\u`, and the second escape of a surrogate pair.
    fn unicode_escape(&mut self) -> Result<char, Syntax> {
        let first = self.four_hex_digits().ok_or(Syntax::StringUnicodeEscapeInvalidHex)?;
        if let Some(character) = char::from_u32(first) {
            return Ok(character);
        }
        if !HIGH_SURROGATES.contains(&first) || !self.take(b'\\') || !self.take(b'u') {
            return Err(Syntax::StringUnicodeSurrogateInvalid);
        }
        let second = self.four_hex_digits().ok_or(Syntax::StringUnicodeEscapeInvalidHex)?;
        if !LOW_SURROGATES.contains(&second) {
            return Err(Syntax::StringUnicodeSurrogateInvalid);
        }
        let high_bits = (first - HIGH_SURROGATES.start()) << 10;
        let low_bits = second - LOW_SURROGATES.start();
        char::from_u32(SUPPLEMENTARY_PLANES + high_bits + low_bits)
            .ok_or(Syntax::StringUnicodeSurrogateInvalid)
    }

    fn four_hex_digits(&mut self) -> Option<u32> {
        let mut value = 0;
        for _ in 0..4 {
            value = value * 16 + char::from(self.peek()).to_digit(16)?;
            self.advance();
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &str) -> (Syntax, usize) {
        let mut cursor = Cursor::new(text.as_bytes());
        let error = cursor.open_document().and_then(|()| cursor.skip_value()).expect_err(text);
        (error.kind, error.offset)
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
}
