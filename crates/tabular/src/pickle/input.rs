//! The operands of opcodes.

use std::borrow::Cow;

use bytes::Bytes;

use tensorserve_tensor::error::Code;

/// Why an opcode could not be carried out.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) code: Code,
    pub(super) why: Cow<'static, str>,
}

/// The outcome of an opcode.
pub(super) type Step<T> = Result<T, Fault>;

/// The pickle is damaged.
pub(super) fn damaged<T>(why: impl Into<Cow<'static, str>>) -> Step<T> {
    Err(Fault { code: Code::DataLoss, why: why.into() })
}

/// The pickle is sound, but this is not read.
pub(super) fn unsupported<T>(why: impl Into<Cow<'static, str>>) -> Step<T> {
    Err(Fault { code: Code::Unimplemented, why: why.into() })
}

/// The bytes of a pickle, and how far it is read.
pub(super) struct Input {
    bytes: Bytes,
    at: usize,
}

impl Input {
    pub(super) fn new(bytes: Bytes) -> Self {
        Input { bytes, at: 0 }
    }

    /// How many bytes are read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The next `count` bytes, as a view.
    pub(super) fn take(&mut self, count: usize) -> Step<Bytes> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            return damaged(format!("{count} bytes are announced, and the file ends before"));
        };
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let next = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let Some(next) = next else {
            return damaged("the file ends in the middle of it");
        };
        self.at += N;
        Ok(*next)
    }

    pub(super) fn byte(&mut self) -> Step<u8> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    /// A length of `N` bytes, the lowest first, and as many bytes as it says.
    pub(super) fn counted<const N: usize>(&mut self) -> Step<Bytes> {
        let mut wide = [0; 8];
        let length = self.array::<N>()?;
        wide.iter_mut().zip(length).for_each(|(to, from)| *to = from);
        self.take(usize::try_from(u64::from_le_bytes(wide)).unwrap_or(usize::MAX))
    }

    /// What is up to the end of the line, without it.
    pub(super) fn line(&mut self) -> Step<Bytes> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(length) = memchr::memchr(b'\n', rest) else {
            return damaged("a line does not end");
        };
        let line = self.take(length)?;
        self.at += 1;
        Ok(line)
    }

    /// A line that is text.
    pub(super) fn text_line(&mut self) -> Step<String> {
        text(&self.line()?)
    }

    /// A line that is a number.
    pub(super) fn number_line<T: std::str::FromStr>(&mut self) -> Step<T> {
        let line = self.text_line()?;
        match line.trim().parse() {
            Ok(number) => Ok(number),
            Err(_) => damaged("a line that should be a number is none"),
        }
    }
}

pub(super) fn text(bytes: &[u8]) -> Step<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => damaged("text that is no UTF-8"),
    }
}

/// The bytes that a literal of Python 2, in quotes, stands for.
pub(super) fn quoted(line: &[u8]) -> Step<Vec<u8>> {
    let inner = match line.trim_ascii() {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        _ => return damaged("a string is not in quotes"),
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
            return damaged("a string with an escape that is none");
        };
        out.push(byte);
        rest = after.get(length..).unwrap_or_default();
    }
    Ok(out)
}

/// The byte that an escape stands for, and how long it is behind its backslash.
fn escape(after: &[u8]) -> Option<(u8, usize)> {
    let simple = match *after.first()? {
        byte @ (b'\\' | b'\'' | b'"') => byte,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'a' => 7,
        b'b' => 8,
        b'f' => 12,
        b'v' => 11,
        b'0'..=b'7' => {
            let digits = after.iter().take(3).take_while(|d| matches!(d, b'0'..=b'7')).count();
            return Some((u8::try_from(digits_of(after.get(..digits)?, 8)?).ok()?, digits));
        }
        b'x' => return Some((u8::try_from(digits_of(after.get(1..3)?, 16)?).ok()?, 3)),
        _ => return None,
    };
    Some((simple, 1))
}

fn digits_of(digits: &[u8], base: u32) -> Option<u32> {
    let all_digits = digits.iter().all(|digit| char::from(*digit).is_digit(base));
    let text = std::str::from_utf8(digits).ok().filter(|_| all_digits)?;
    u32::from_str_radix(text, base).ok()
}

/// Text of protocol 0: Latin-1, with `\u` and `\U` for other characters.
pub(super) fn raw_unicode(line: &[u8]) -> Step<String> {
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
        let number = after.get(1..1 + digits).and_then(|digits| digits_of(digits, 16));
        let Some(character) = number.and_then(char::from_u32) else {
            return damaged("text with an escape that is no character");
        };
        out.push(character);
        rest = after.get(1 + digits..).unwrap_or_default();
    }
    Ok(out)
}

/// A whole number in the two's complement, the lowest byte first; `None` beyond 64 bits.
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
