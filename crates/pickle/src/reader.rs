//! Reads the operands of opcodes.

use std::borrow::Cow;

use bytes::Bytes;

use tensorserve_tensor::error::Code;

/// Why an opcode failed.
#[derive(Debug)]
pub(super) struct OpcodeError {
    pub(super) code: Code,
    pub(super) reason: Cow<'static, str>,
}

/// The result of an opcode.
pub(super) type OpcodeResult<T> = Result<T, OpcodeError>;

/// The pickle is damaged.
pub(super) fn damaged<T>(reason: impl Into<Cow<'static, str>>) -> OpcodeResult<T> {
    Err(OpcodeError { code: Code::DataLoss, reason: reason.into() })
}

/// The pickle is valid, but this part of it is not supported.
pub(super) fn unsupported<T>(reason: impl Into<Cow<'static, str>>) -> OpcodeResult<T> {
    Err(OpcodeError { code: Code::Unimplemented, reason: reason.into() })
}

/// The bytes of a pickle, and a position in them.
pub(super) struct PickleReader {
    bytes: Bytes,
    position: usize,
}

impl PickleReader {
    pub(super) fn new(bytes: Bytes) -> Self {
        PickleReader { bytes, position: 0 }
    }

    /// How many bytes are read.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Reads `count` bytes, as a view.
    pub(super) fn take(&mut self, count: usize) -> OpcodeResult<Bytes> {
        let end = self.position.checked_add(count).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            return damaged(format!("unexpected end of file: {count} bytes should follow"));
        };
        let taken = self.bytes.slice(self.position..end);
        self.position = end;
        Ok(taken)
    }

    /// Reads `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> OpcodeResult<[u8; N]> {
        let next = self.bytes.get(self.position..).and_then(|rest| rest.first_chunk::<N>());
        let Some(next) = next else {
            return damaged("unexpected end of file in an operand");
        };
        self.position += N;
        Ok(*next)
    }

    /// Reads one byte.
    pub(super) fn byte(&mut self) -> OpcodeResult<u8> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    /// Reads a little-endian length of `N` bytes, and that many bytes after it.
    pub(super) fn counted<const N: usize>(&mut self) -> OpcodeResult<Bytes> {
        let mut wide = [0; 8];
        let length = self.array::<N>()?;
        wide.iter_mut().zip(length).for_each(|(to, from)| *to = from);
        self.take(usize::try_from(u64::from_le_bytes(wide)).unwrap_or(usize::MAX))
    }

    /// Reads a line, and returns it without its end.
    pub(super) fn line(&mut self) -> OpcodeResult<Bytes> {
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        let Some(length) = memchr::memchr(b'\n', rest) else {
            return damaged("unexpected end of file in a line");
        };
        let line = self.take(length)?;
        self.position += 1;
        Ok(line)
    }

    /// Reads a line of text.
    pub(super) fn text_line(&mut self) -> OpcodeResult<String> {
        text(&self.line()?)
    }

    /// Reads a line with a number.
    pub(super) fn number_line<T: std::str::FromStr>(&mut self) -> OpcodeResult<T> {
        let line = self.text_line()?;
        match line.trim().parse() {
            Ok(number) => Ok(number),
            Err(_) => damaged(INVALID_NUMBER),
        }
    }
}

/// The reason for a line that is not a number.
pub(super) const INVALID_NUMBER: &str = "a line is not a valid number";

/// `bytes` as text.
pub(super) fn text(bytes: &[u8]) -> OpcodeResult<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => damaged("invalid UTF-8"),
    }
}

/// The bytes of a Python 2 string literal.
pub(super) fn string_literal(line: &[u8]) -> OpcodeResult<Vec<u8>> {
    let inner = match line.trim_ascii() {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        _ => return damaged("a string literal is not in quotes"),
    };
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [first, after @ ..] = rest {
        if *first != b'\\' {
            out.push(*first);
            rest = after;
            continue;
        }
        let Some((byte, length)) = escape(after) else {
            return damaged("invalid escape sequence in a string literal");
        };
        out.push(byte);
        rest = after.get(length..).unwrap_or_default();
    }
    Ok(out)
}

/// The byte of the escape sequence at the start of `after`, and the length of the sequence. The
/// backslash before it is not part of either.
fn escape(after: &[u8]) -> Option<(u8, usize)> {
    let simple = match *after.first()? {
        byte @ (b'\\' | b'\'' | b'"') => byte,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'a' => b'\x07',
        b'b' => b'\x08',
        b'f' => b'\x0c',
        b'v' => b'\x0b',
        b'0'..=b'7' => {
            let digits = after.iter().take(3).take_while(|d| matches!(d, b'0'..=b'7')).count();
            return Some((u8::try_from(parse_digits(after.get(..digits)?, 8)?).ok()?, digits));
        }
        b'x' => return Some((u8::try_from(parse_digits(after.get(1..3)?, 16)?).ok()?, 3)),
        _ => return None,
    };
    Some((simple, 1))
}

fn parse_digits(digits: &[u8], base: u32) -> Option<u32> {
    let all_digits = digits.iter().all(|digit| char::from(*digit).is_digit(base));
    let text = std::str::from_utf8(digits).ok().filter(|_| all_digits)?;
    u32::from_str_radix(text, base).ok()
}

/// The text of a line of protocol 0 (`raw-unicode-escape`): Latin-1, with `\u` and `\U` for other
/// characters.
pub(super) fn raw_unicode_escape(line: &[u8]) -> OpcodeResult<String> {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let [first, after @ ..] = rest {
        let digits = match after.first().filter(|_| *first == b'\\') {
            Some(b'u') => 4,
            Some(b'U') => 8,
            _ => 0,
        };
        if digits == 0 {
            out.push(char::from(*first));
            rest = after;
            continue;
        }
        let number = after.get(1..1 + digits).and_then(|digits| parse_digits(digits, 16));
        let Some(character) = number.and_then(char::from_u32) else {
            return damaged("invalid Unicode escape sequence");
        };
        out.push(character);
        rest = after.get(1 + digits..).unwrap_or_default();
    }
    Ok(out)
}

/// A little-endian integer in two's complement; `None` if it does not fit 64 bits.
pub(super) fn integer(bytes: &[u8]) -> Option<i64> {
    let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
    let fill = if negative { 0xff } else { 0 };
    let used = bytes.iter().rposition(|byte| *byte != fill).map_or(0, |last| last + 1);
    let mut wide = [fill; 8];
    let kept = bytes.get(..used).filter(|kept| kept.len() <= wide.len())?;
    wide.iter_mut().zip(kept).for_each(|(to, from)| *to = *from);
    let number = i64::from_le_bytes(wide);
    (negative == (number < 0)).then_some(number)
}
