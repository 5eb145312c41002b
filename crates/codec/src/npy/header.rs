//! What an npy file says before its data: a version, and a literal Python dictionary.

use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Shape};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The longest header that `numpy.load` takes by itself.
const LONGEST: usize = 10_000;

/// The most dimensions a NumPy array has.
const MOST_DIMENSIONS: usize = 64;

/// Headers are filled up with blanks so that data begins at a multiple of this.
const ALIGNMENT: usize = 64;

/// Digits that `numpy.save` leaves room for, so that an array can grow in place.
const GROWTH_DIGITS: usize = 21;

/// What the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Numbers, and whether their bytes are not in this machine's order.
    Number(DType, bool),
    /// Strings of this many bytes.
    Bytes(usize),
    /// Strings of this many characters of four bytes, and whether those are not in this
    /// machine's order.
    Text(usize, bool),
}

impl Kind {
    /// Bytes of an element in the file.
    pub(super) fn size(self) -> usize {
        match self {
            Kind::Number(dtype, _) => dtype.size().unwrap_or(0),
            Kind::Bytes(length) => length,
            Kind::Text(length, _) => length.saturating_mul(4),
        }
    }
}

pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) shape: Shape,
    /// Whether the first dimension varies fastest ("Fortran order").
    pub(super) by_columns: bool,
}

fn bad(why: &str) -> Error {
    Error::invalid(format!("the header of the npy array can not be read: {why}"))
}

/// Reads the header and returns it with the bytes behind it.
pub(super) fn read(bytes: &[u8]) -> Result<(Header, &[u8])> {
    let Some([major, minor, rest @ ..]) = bytes.strip_prefix(MAGIC) else {
        return Err(Error::invalid(
            "the body is no npy array: it does not begin as numpy.save writes it",
        ));
    };
    let (length, rest) = match (major, rest) {
        (1, [a, b, rest @ ..]) => (u32::from(u16::from_le_bytes([*a, *b])), rest),
        (2 | 3, [a, b, c, d, rest @ ..]) => (u32::from_le_bytes([*a, *b, *c, *d]), rest),
        (1..=3, _) => return Err(bad("it is cut short")),
        _ => {
            let version = format!("it has version {major}.{minor}; 1.0, 2.0 and 3.0 are known");
            return Err(bad(&version));
        }
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > LONGEST {
        return Err(bad(&format!("it is longer than {LONGEST} bytes")));
    }
    let (text, data) = rest.split_at_checked(length).ok_or_else(|| bad("it is cut short"))?;
    Ok((dictionary(text)?, data))
}

/// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
fn dictionary(text: &[u8]) -> Result<Header> {
    let (mut kind, mut by_columns, mut shape) = (None, None, None);
    let mut scanner = Scanner { rest: text };
    scanner.expect(b'{')?;
    while !scanner.take(b'}') {
        let key = scanner.string()?;
        scanner.expect(b':')?;
        match key {
            b"descr" if kind.is_none() => kind = Some(scanner.descr()?),
            b"fortran_order" if by_columns.is_none() => by_columns = Some(scanner.boolean()?),
            b"shape" if shape.is_none() => shape = Some(scanner.shape()?),
            _ => {
                let key = String::from_utf8_lossy(key);
                return Err(bad(&format!("its key {key:?} is unknown or there twice")));
            }
        }
        if !scanner.take(b',') {
            scanner.expect(b'}')?;
            break;
        }
    }
    scanner.skip_space();
    if !scanner.rest.is_empty() {
        return Err(bad("something follows it"));
    }
    let (Some(kind), Some(by_columns), Some(shape)) = (kind, by_columns, shape) else {
        return Err(bad("descr, fortran_order and shape must all be there"));
    };
    Ok(Header { kind, shape, by_columns })
}

/// Walks the text of a dictionary.
struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    /// Goes past `byte`, if it is next.
    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let Some(rest) = self.rest.strip_prefix(&[byte]) else {
            return false;
        };
        self.rest = rest;
        true
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.take(byte) {
            return Ok(());
        }
        Err(bad(&format!("there is no {:?} where one should be", char::from(byte))))
    }

    /// A string in either kind of quotes. Those NumPy writes have nothing escaped in them.
    fn string(&mut self) -> Result<&'a [u8]> {
        self.skip_space();
        let [quote @ (b'\'' | b'"'), rest @ ..] = self.rest else {
            return Err(bad("there is no string where one should be"));
        };
        let end = memchr::memchr2(*quote, b'\\', rest);
        let Some((text, [end, rest @ ..])) = end.and_then(|end| rest.split_at_checked(end)) else {
            return Err(bad("a string in it does not end"));
        };
        if end != quote {
            return Err(bad("a string in it has a backslash"));
        }
        self.rest = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool> {
        self.skip_space();
        for (name, value) in [(&b"False"[..], false), (b"True", true)] {
            if let Some(rest) = self.rest.strip_prefix(name) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(bad("its fortran_order is neither True nor False"))
    }

    /// A tuple of sizes: `()`, `(2,)`, `(2, 3)`.
    fn shape(&mut self) -> Result<Shape> {
        self.expect(b'(')?;
        let mut dims = Vec::new();
        while !self.take(b')') {
            if dims.len() == MOST_DIMENSIONS {
                let message = format!("it has more than {MOST_DIMENSIONS} dimensions");
                return Err(bad(&message));
            }
            dims.push(self.size()?);
            if !self.take(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Shape::new(&dims)
    }

    fn size(&mut self) -> Result<i64> {
        self.skip_space();
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, rest) = self.rest.split_at_checked(digits).unwrap_or_default();
        // Python 2 wrote large numbers as `3L`.
        self.rest = rest.strip_prefix(b"L").unwrap_or(rest);
        let number = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
        number.ok_or_else(|| bad("a size in its shape is no whole number, or too large"))
    }

    fn descr(&mut self) -> Result<Kind> {
        self.skip_space();
        if self.rest.starts_with(b"[") {
            return Err(Error::invalid(
                "the npy array has fields (a structured type); send an array for each input",
            ));
        }
        let name = String::from_utf8_lossy(self.string()?);
        kind(&name).ok_or_else(|| unknown(&name))
    }
}

fn unknown(name: &str) -> Error {
    if name.trim_start_matches(['|', '<', '>', '=']).starts_with('O') {
        return Error::invalid(
            "the npy array holds Python objects (type 'O'), which are code and not data: convert \
             it first, to numbers or, with .astype('S') or .astype('U'), to strings",
        );
    }
    Error::invalid(format!(
        "the npy array has elements of type {name:?}, which no tensor has: convert it first, with \
         .astype"
    ))
}

/// What NumPy calls `order`, a letter, and a size: `<f4`, `|u1`, `>U10`.
fn kind(name: &str) -> Option<Kind> {
    let order = name.chars().next()?;
    let swapped = match order {
        '<' => cfg!(target_endian = "big"),
        '>' => cfg!(target_endian = "little"),
        '=' | '|' => false,
        _ => return None,
    };
    let (letter, size) = (name.get(1..2)?, name.get(2..)?);
    if !size.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let kind = match (letter, size.parse().ok()?) {
        ("S", length) => return Some(Kind::Bytes(length)),
        ("U", length) => return Some(Kind::Text(length, swapped)),
        ("b", 1) => DType::Bool,
        ("i", 1) => DType::Int8,
        ("u", 1) => DType::UInt8,
        ("V", 2) => DType::BFloat16,
        // From here on the order of bytes counts, and has to be there.
        _ if order == '|' => return None,
        ("i", 2) => DType::Int16,
        ("i", 4) => DType::Int32,
        ("i", 8) => DType::Int64,
        ("u", 2) => DType::UInt16,
        ("u", 4) => DType::UInt32,
        ("u", 8) => DType::UInt64,
        ("f", 2) => DType::Half,
        ("f", 4) => DType::Float,
        ("f", 8) => DType::Double,
        ("c", 8) => DType::Complex64,
        ("c", 16) => DType::Complex128,
        _ => return None,
    };
    Some(Kind::Number(kind, swapped))
}

/// NumPy's name of a type of numbers, in this machine's order of bytes.
pub(super) fn name(dtype: DType) -> String {
    let letter = match dtype {
        DType::Bool => 'b',
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => 'i',
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => 'u',
        DType::Half | DType::Float | DType::Double => 'f',
        DType::Complex64 | DType::Complex128 => 'c',
        DType::BFloat16 => 'V',
        DType::String => 'S',
    };
    let size = dtype.size().unwrap_or(0);
    let order = match size {
        1 => '|',
        _ if cfg!(target_endian = "big") => '>',
        _ => '<',
    };
    format!("{order}{letter}{size}")
}

/// A file up to its data, for which it has room.
pub(super) fn write(descr: &str, shape: &Shape, data: usize) -> Vec<u8> {
    let dims: Vec<String> = shape.dims().iter().map(ToString::to_string).collect();
    let tuple = match &dims[..] {
        [one] => format!("({one},)"),
        _ => format!("({})", dims.join(", ")),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple}, }}");
    if let Some(first) = dims.first() {
        text.extend(std::iter::repeat_n(' ', GROWTH_DIGITS - first.len()));
    }
    let before = MAGIC.len() + 4;
    let total = (before + text.len() + 1).next_multiple_of(ALIGNMENT);
    let mut out = Vec::with_capacity(total + data);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    // Short enough: no shape has more than 254 dimensions of 20 digits.
    let length = u16::try_from(total - before).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    out.resize(total - 1, b' ');
    out.push(b'\n');
    out
}
