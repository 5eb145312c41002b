//! The header of an npy file: a magic number, a version, and a Python dictionary literal.

use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Shape};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The longest header that `numpy.load` accepts by default, in bytes.
const MAX_HEADER: usize = 10_000;

/// The most dimensions of a NumPy array.
const MAX_DIMENSIONS: usize = 64;

/// Headers are padded with spaces so that the data starts at a multiple of this.
const ALIGNMENT: usize = 64;

/// Digits for which `numpy.save` reserves space, so that an array can grow in place.
const GROWTH_DIGITS: usize = 21;

/// Size of a character of type `U` (UTF-32) in bytes.
const CHARACTER_SIZE: usize = 4;

/// The type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NpyType {
    /// Numbers, and whether their byte order differs from this machine's.
    Number(DType, bool),
    /// Strings of this many bytes.
    Bytes(usize),
    /// Strings of this many UTF-32 characters, and whether their byte order differs from this
    /// machine's.
    Text(usize, bool),
}

impl NpyType {
    /// Size of an element in the file, in bytes.
    pub(super) fn size(self) -> usize {
        match self {
            NpyType::Number(dtype, _) => dtype.size().unwrap_or(0),
            NpyType::Bytes(length) => length,
            NpyType::Text(length, _) => length.saturating_mul(CHARACTER_SIZE),
        }
    }
}

pub(super) struct NpyHeader {
    pub(super) element: NpyType,
    pub(super) shape: Shape,
    /// Whether the array is stored in column-major order.
    pub(super) fortran_order: bool,
}

fn header_error(reason: &str) -> Error {
    Error::invalid(format!("the header of the npy array is invalid: {reason}"))
}

/// How many bytes after `start`, the start of a file, are needed next to read the header; 0 if it is
/// complete.
pub(super) fn missing(start: &[u8]) -> Result<usize> {
    // The version tells the size of the length, and the length that of the dictionary.
    let preamble = MAGIC.len() + 2;
    if start.len() < preamble && MAGIC.starts_with(start.get(..MAGIC.len()).unwrap_or(start)) {
        return Ok(preamble - start.len());
    }
    let (major, rest) = versioned(start)?;
    let length_size = if major == 1 { 2 } else { 4 };
    let Some((length, rest)) = length(major, rest) else {
        return Ok(length_size - rest.len().min(length_size));
    };
    if length > MAX_HEADER {
        return Err(too_long());
    }
    Ok(length.saturating_sub(rest.len()))
}

/// Reads the header and returns it with the bytes after it.
pub(super) fn read(bytes: &[u8]) -> Result<(NpyHeader, &[u8])> {
    let (major, rest) = versioned(bytes)?;
    let (length, rest) = length(major, rest).ok_or_else(|| header_error("it is truncated"))?;
    if length > MAX_HEADER {
        return Err(too_long());
    }
    let split = rest.split_at_checked(length);
    let (text, data) = split.ok_or_else(|| header_error("it is truncated"))?;
    Ok((dictionary(text)?, data))
}

fn too_long() -> Error {
    header_error(&format!("it is longer than {MAX_HEADER} bytes"))
}

/// The version of the format, and the bytes after it.
fn versioned(bytes: &[u8]) -> Result<(u8, &[u8])> {
    let Some([major, minor, rest @ ..]) = bytes.strip_prefix(MAGIC) else {
        return Err(Error::invalid(
            "the body is not an npy array: it does not begin with the magic bytes that numpy.save \
             writes",
        ));
    };
    if !matches!(major, 1..=3) {
        return Err(header_error(&format!(
            "it has version {major}.{minor}; supported versions are 1.0, 2.0 and 3.0"
        )));
    }
    Ok((*major, rest))
}

/// The length of the dictionary, and the bytes after it; `None` if there are too few.
fn length(major: u8, rest: &[u8]) -> Option<(usize, &[u8])> {
    let (length, rest) = match (major, rest) {
        (1, [a, b, rest @ ..]) => (u32::from(u16::from_le_bytes([*a, *b])), rest),
        (2 | 3, [a, b, c, d, rest @ ..]) => (u32::from_le_bytes([*a, *b, *c, *d]), rest),
        _ => return None,
    };
    Some((usize::try_from(length).unwrap_or(usize::MAX), rest))
}

/// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
fn dictionary(text: &[u8]) -> Result<NpyHeader> {
    let (mut element, mut fortran_order, mut shape) = (None, None, None);
    let mut scanner = Scanner { rest: text };
    scanner.expect(b'{')?;
    while !scanner.take(b'}') {
        let key = scanner.string()?;
        scanner.expect(b':')?;
        match key {
            b"descr" if element.is_none() => element = Some(scanner.descr()?),
            b"fortran_order" if fortran_order.is_none() => {
                fortran_order = Some(scanner.boolean()?);
            }
            b"shape" if shape.is_none() => shape = Some(scanner.shape()?),
            _ => {
                let key = String::from_utf8_lossy(key);
                return Err(header_error(&format!("its key {key:?} is unknown or duplicate")));
            }
        }
        if !scanner.take(b',') {
            scanner.expect(b'}')?;
            break;
        }
    }
    scanner.skip_space();
    if !scanner.rest.is_empty() {
        return Err(header_error("text follows its dictionary"));
    }
    let (Some(element), Some(fortran_order), Some(shape)) = (element, fortran_order, shape) else {
        return Err(header_error("it must have the keys descr, fortran_order and shape"));
    };
    Ok(NpyHeader { element, shape, fortran_order })
}

/// Reads the text of a dictionary.
struct Scanner<'a> {
    rest: &'a [u8],
}

impl<'a> Scanner<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }

    /// Skips white space, and then `byte` if it is next; whether it was.
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
        Err(header_error(&format!("{:?} is missing", char::from(byte))))
    }

    /// A string in single or double quotes. NumPy writes none with escapes.
    fn string(&mut self) -> Result<&'a [u8]> {
        self.skip_space();
        let [quote @ (b'\'' | b'"'), rest @ ..] = self.rest else {
            return Err(header_error("a string is missing"));
        };
        let end = memchr::memchr2(*quote, b'\\', rest);
        let Some((text, [end, rest @ ..])) = end.and_then(|end| rest.split_at_checked(end)) else {
            return Err(header_error("a string has no closing quote"));
        };
        if end != quote {
            return Err(header_error("a string has a backslash"));
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
        Err(header_error("fortran_order is neither True nor False"))
    }

    /// A tuple of sizes: `()`, `(2,)`, `(2, 3)`.
    fn shape(&mut self) -> Result<Shape> {
        self.expect(b'(')?;
        let mut dims = Vec::new();
        while !self.take(b')') {
            if dims.len() == MAX_DIMENSIONS {
                let reason = format!("the shape has more than {MAX_DIMENSIONS} dimensions");
                return Err(header_error(&reason));
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
        number.ok_or_else(|| header_error("a size in the shape is not an integer, or too large"))
    }

    fn descr(&mut self) -> Result<NpyType> {
        self.skip_space();
        if self.rest.starts_with(b"[") {
            return Err(Error::invalid(
                "the npy array has fields (a structured dtype); send one array per input",
            ));
        }
        let name = String::from_utf8_lossy(self.string()?);
        npy_type(&name).ok_or_else(|| unsupported(&name))
    }
}

fn unsupported(name: &str) -> Error {
    if name.trim_start_matches(['|', '<', '>', '=']).starts_with('O') {
        return Error::invalid(
            "the npy array holds Python objects (type 'O'), which are pickled code, not data: \
             convert it to numbers, or with .astype('S') or .astype('U') to strings",
        );
    }
    Error::invalid(format!(
        "the npy array has elements of type {name:?}, which tensors cannot have: convert it with \
         .astype"
    ))
}

/// The type with a NumPy name: a byte order, a letter and a size, as in `<f4`, `|u1`, `>U10`.
fn npy_type(name: &str) -> Option<NpyType> {
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
    let size: usize = size.parse().ok()?;
    match letter {
        STRING => return Some(NpyType::Bytes(size)),
        "U" => return Some(NpyType::Text(size, swapped)),
        _ => {}
    }
    let is_named = |dtype: &DType| self::letter(*dtype) == letter && dtype.size() == Some(size);
    let dtype = DType::ALL.into_iter().find(is_named)?;
    // Elements of several bytes must declare their byte order, except raw ones.
    let needs_order = size > 1 && letter != RAW;
    (order != '|' || !needs_order).then_some(NpyType::Number(dtype, swapped))
}

/// The letters of strings and of raw bytes.
const STRING: &str = "S";
const RAW: &str = "V";

/// NumPy's letter for the kind of a dtype; with the size of an element it tells the dtype.
fn letter(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "b",
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => "i",
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => "u",
        DType::Half | DType::Float | DType::Double => "f",
        DType::Complex64 | DType::Complex128 => "c",
        DType::BFloat16 => RAW,
        DType::String => STRING,
    }
}

/// NumPy's name of a numeric dtype in this machine's byte order.
pub(super) fn name(dtype: DType) -> String {
    let letter = letter(dtype);
    let size = dtype.size().unwrap_or(0);
    let order = match size {
        1 => '|',
        _ if cfg!(target_endian = "big") => '>',
        _ => '<',
    };
    format!("{order}{letter}{size}")
}

/// A file up to its data, with capacity for `data_bytes` more.
pub(super) fn write(descr: &str, shape: &Shape, data_bytes: usize) -> Vec<u8> {
    let dims: Vec<String> = shape.dims().iter().map(ToString::to_string).collect();
    let tuple = match &dims[..] {
        [one] => format!("({one},)"),
        _ => format!("({})", dims.join(", ")),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple}, }}");
    if let Some(first) = dims.first() {
        text.extend(std::iter::repeat_n(' ', GROWTH_DIGITS - first.len()));
    }
    // The version and the length of the dictionary take two bytes each.
    let preamble = MAGIC.len() + 4;
    let total = (preamble + text.len() + 1).next_multiple_of(ALIGNMENT);
    let mut out = Vec::with_capacity(total + data_bytes);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    // It fits: no shape has more than 254 dimensions of 20 digits.
    let length = u16::try_from(total - preamble).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    out.resize(total - 1, b' ');
    out.push(b'\n');
    out
}
