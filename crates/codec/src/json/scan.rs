//! Walks JSON text.

use std::borrow::Cow;

/// A place in a JSON text.
#[derive(Clone)]
pub struct Cursor<'a> {
    pub(super) text: &'a [u8],
    pub(super) at: usize,
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

pub(super) type Scan<T> = Result<T, SyntaxError>;

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

    /// Steps over a comma and the white space around it, to what follows; false, and no further
    /// than to the end of white space, if there is none.
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
