//! Writes tensors as nested JSON arrays, with the white space and the formats that the caller
//! selects.

use std::ops::Range;

use half::{bf16, f16};

use super::float;
use super::integer::{self, Integer, signed, unsigned};
pub use super::layout::{JsonLayout, new_line};
use super::layout::{Separators, end, separate, separator_len};
use crate::base64;
use crate::row_text::{self, RowText};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Tensor};

/// The format of floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floats {
    /// TensorFlow Serving's: [`float::float32`].
    TensorFlowServing,
    /// Python's, for the double of the same value: [`float::python`].
    Python,
}

/// The format of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texts {
    /// JSON strings whose bytes are written unchanged, even if they are not valid UTF-8.
    Raw,
    /// JSON strings in which invalid UTF-8 is replaced by U+FFFD.
    Lossy,
    /// Objects `{"b64": "…"}`.
    Base64,
}

/// How a tensor is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// The white space of arrays.
    pub layout: JsonLayout,
    /// The format of floating-point numbers.
    pub floats: Floats,
    /// The format of strings.
    pub texts: Texts,
}

/// Estimated size of a number with its separator, in bytes.
const BYTES_PER_NUMBER: usize = 8;

/// The most memory that is reserved by that estimate.
const MAX_ESTIMATE: usize = 8 << 20;

/// The most bytes of a number: a double such as `-1.7976931348623157e+308`.
const LONGEST_NUMBER: usize = 25;

/// The longest rows that are written together.
const MAX_ROW: i64 = 64;

/// The most numbers that are written before there is room for more.
const MAX_RUN: usize = 4096;

/// Appends `tensor` as nested arrays, or a scalar as a bare value. `depth` is the number of arrays
/// and objects around it, for the indentation.
///
/// # Errors
/// [`WriteError::NoJsonForm`] for dtypes that cannot be written as JSON, [`WriteError::Refused`] if
/// the response exceeds the budget of its request.
pub fn tensor(
    tensor: &Tensor,
    style: Style,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    let dims = tensor.shape().dims();
    if let Some(strings) = tensor.strings() {
        nested_strings(&mut strings.iter(), dims, style, depth, out)?;
        return Ok(());
    }
    numbers(tensor, style, depth, None, out)
}

/// Appends the rows of a tensor of numbers, each on a line of its own. Returns whether it has: other
/// tensors have to be written row by row.
///
/// # Errors
/// As those of [`tensor`].
pub fn rows(tensor: &Tensor, style: Style, out: &mut RowText) -> Result<bool, WriteError> {
    if tensor.strings().is_some() || tensor.rows().is_none() {
        return Ok(false);
    }
    numbers(tensor, style, 0, Some(&mut out.rows), &mut out.text).map(|()| true)
}

fn numbers(
    tensor: &Tensor,
    style: Style,
    depth: usize,
    rows: Option<&mut Vec<Range<usize>>>,
    out: &mut Vec<u8>,
) -> Result<(), WriteError> {
    let dims = tensor.shape().dims();
    let python = style.floats == Floats::Python;
    let count = tensor.bytes().len() / tensor.dtype().size().unwrap_or(1);
    budget::grow(out, count.saturating_mul(BYTES_PER_NUMBER).min(MAX_ESTIMATE))?;
    let (bytes, layout) = (tensor.bytes(), style.layout);
    let mut numbers = NumberWriter { bytes, layout, rows, out };
    match tensor.dtype() {
        DType::Float if python => numbers.all(dims, depth, |b, out| {
            float::python(f64::from(f32::from_ne_bytes(b)), out);
        }),
        DType::Float => numbers.all(dims, depth, |b, out| {
            float::float32(f32::from_ne_bytes(b), out);
        }),
        DType::Double if python => numbers.all(dims, depth, |b, out| {
            float::python(f64::from_ne_bytes(b), out);
        }),
        DType::Double => numbers.all(dims, depth, |b, out| {
            float::float64(f64::from_ne_bytes(b), out);
        }),
        DType::Half if python => numbers.all(dims, depth, |b, out| {
            float::python(f16::from_ne_bytes(b).to_f64(), out);
        }),
        DType::Half => numbers.all(dims, depth, |b, out| {
            float::float16(f16::from_ne_bytes(b), out);
        }),
        DType::BFloat16 if python => numbers.all(dims, depth, |b, out| {
            float::python(bf16::from_ne_bytes(b).to_f64(), out);
        }),
        DType::BFloat16 => numbers.all(dims, depth, |b, out| {
            float::bfloat16(bf16::from_ne_bytes(b), out);
        }),
        DType::Int8 => numbers.integers(dims, depth, |b| signed(i8::from_ne_bytes(b))),
        DType::Int16 => numbers.integers(dims, depth, |b| signed(i16::from_ne_bytes(b))),
        DType::Int32 => numbers.integers(dims, depth, |b| signed(i32::from_ne_bytes(b))),
        DType::Int64 => numbers.integers(dims, depth, |b| signed(i64::from_ne_bytes(b))),
        DType::UInt8 => numbers.integers(dims, depth, |b| unsigned(u8::from_ne_bytes(b))),
        DType::UInt16 => numbers.integers(dims, depth, |b| unsigned(u16::from_ne_bytes(b))),
        DType::UInt32 => numbers.integers(dims, depth, |b| unsigned(u32::from_ne_bytes(b))),
        DType::UInt64 => numbers.integers(dims, depth, |b| unsigned(u64::from_ne_bytes(b))),
        DType::Bool => numbers.all(dims, depth, |[b], out| {
            out.extend_from_slice(if b == 0 { b"false" } else { b"true" });
        }),
        DType::Complex64 | DType::Complex128 | DType::String => {
            return Err(WriteError::NoJsonForm(tensor.dtype()));
        }
    }?;
    Ok(())
}

/// Why a tensor is not written.
#[derive(Debug)]
pub enum WriteError {
    /// Its dtype cannot be written as JSON.
    NoJsonForm(DType),
    /// The response exceeds the memory or the deadline of its request.
    Refused(Error),
}

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        WriteError::Refused(error)
    }
}

impl WriteError {
    /// The error for the response; `no_form` makes the one for a dtype without a JSON form.
    pub fn into_error(self, no_form: impl FnOnce(DType) -> Error) -> Error {
        match self {
            WriteError::NoJsonForm(dtype) => no_form(dtype),
            WriteError::Refused(error) => error,
        }
    }
}

struct NumberWriter<'a> {
    /// The elements that have not been written yet.
    bytes: &'a [u8],
    layout: JsonLayout,
    /// Each row is on a line of its own, and its place goes here.
    rows: Option<&'a mut Vec<Range<usize>>>,
    out: &'a mut Vec<u8>,
}

impl NumberWriter<'_> {
    /// Writes all elements, each with `write`.
    fn all<const N: usize>(
        &mut self,
        dims: &[i64],
        depth: usize,
        write: impl Fn([u8; N], &mut Vec<u8>) + Copy,
    ) -> Result<()> {
        self.lines(dims, depth, |elements: &[[u8; N]], mut separators, out| {
            for element in elements {
                separators.write_next(out);
                write(*element, out);
            }
        })
    }

    /// Writes all elements, which are integers.
    fn integers<const N: usize>(
        &mut self,
        dims: &[i64],
        depth: usize,
        integer: impl Fn([u8; N]) -> Integer + Copy,
    ) -> Result<()> {
        self.lines(dims, depth, |elements: &[[u8; N]], mut separators, out| {
            let integers = elements.iter().map(|element| integer(*element));
            if separators.layout != JsonLayout::Pretty {
                return integer::write_all(integers, || separators.next_on_line(), out);
            }
            for integer in integers {
                separators.write_next(out);
                integer.write(*b"", out);
            }
        })
    }

    /// Writes all elements, those of a row on a line of their own if rows are asked for.
    fn lines<const N: usize>(
        &mut self,
        dims: &[i64],
        depth: usize,
        write: impl Fn(&[[u8; N]], Separators, &mut Vec<u8>) + Copy,
    ) -> Result<()> {
        let (Some(rows), [size, inner @ ..]) = (self.rows.take(), dims) else {
            return self.nested(dims, depth, write);
        };
        for _ in 0..*size {
            let start = self.out.len();
            self.nested(inner, depth, write)?;
            row_text::end_line(self.out, rows, start)?;
        }
        Ok(())
    }

    /// Writes the next elements, of `N` bytes each, as arrays of the shape `dims`.
    fn nested<const N: usize>(
        &mut self,
        dims: &[i64],
        depth: usize,
        write: impl Fn(&[[u8; N]], Separators, &mut Vec<u8>) + Copy,
    ) -> Result<()> {
        let (layout, out) = (self.layout, &mut *self.out);
        let each = LONGEST_NUMBER + separator_len(depth + 1);
        budget::grow(out, each + integer::LINE)?;
        match dims {
            [] => {
                if let Some((element, rest)) = self.bytes.split_first_chunk() {
                    self.bytes = rest;
                    write(&[*element], Separators::of_row(JsonLayout::Line, depth, false), out);
                }
            }
            [_] => {
                let elements = next_elements(&mut self.bytes, dims);
                out.push(b'[');
                for (run, elements) in elements.chunks(MAX_RUN).enumerate() {
                    let most = elements.len().saturating_add(1).saturating_mul(each);
                    budget::grow(out, most.saturating_add(integer::LINE))?;
                    write(elements, Separators::of_row(layout, depth + 1, run > 0), out);
                }
                end(!elements.is_empty(), layout, depth, out);
            }
            [count, size]
                if layout != JsonLayout::Pretty && *count > 0 && (1..=MAX_ROW).contains(size) =>
            {
                // A row is too short for what else is done for each array.
                let row = usize::try_from(*size).unwrap_or(1);
                out.extend_from_slice(b"[[");
                let elements = next_elements(&mut self.bytes, dims);
                for (run, elements) in elements.chunks(MAX_RUN / row * row).enumerate() {
                    let most = elements.len().saturating_add(1).saturating_mul(each);
                    budget::grow(out, most.saturating_add(integer::LINE))?;
                    write(elements, Separators::of_rows(layout, row, run > 0), out);
                }
                out.extend_from_slice(b"]]");
            }
            [size, inner @ ..] => {
                out.push(b'[');
                for index in 0..*size {
                    budget::grow(self.out, each)?;
                    separate(index > 0, layout, depth + 1, self.out);
                    self.nested(inner, depth + 1, write)?;
                }
                budget::grow(self.out, each)?;
                end(*size > 0, layout, depth, self.out);
            }
        }
        Ok(())
    }
}

/// The next elements, as many as an array of the shape `dims` has.
fn next_elements<'b, const N: usize>(bytes: &mut &'b [u8], dims: &[i64]) -> &'b [[u8; N]] {
    let sizes = dims.iter().map(|size| usize::try_from(*size).unwrap_or(0));
    let length = sizes.fold(N, usize::saturating_mul);
    let (next, rest) = bytes.split_at_checked(length).unwrap_or((bytes, &[]));
    *bytes = rest;
    next.as_chunks().0
}

/// Writes the next strings as arrays of the shape `dims`.
fn nested_strings<'a>(
    strings: &mut impl Iterator<Item = &'a [u8]>,
    dims: &[i64],
    style: Style,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let Some((&size, inner)) = dims.split_first() else {
        let value = strings.next().unwrap_or_default();
        return one_string(value, style, depth, out);
    };
    let separator = separator_len(depth + 1);
    budget::grow(out, separator)?;
    out.push(b'[');
    for index in 0..size {
        budget::grow(out, separator)?;
        separate(index > 0, style.layout, depth + 1, out);
        nested_strings(strings, inner, style, depth + 1, out)?;
    }
    budget::grow(out, separator)?;
    end(size > 0, style.layout, depth, out);
    Ok(())
}

fn one_string(value: &[u8], style: Style, depth: usize, out: &mut Vec<u8>) -> Result<()> {
    budget::grow(out, written_len(value, style.texts) + 2 * separator_len(depth + 1) + B64_FRAME)?;
    match style.texts {
        Texts::Raw => string(value, out),
        Texts::Lossy => string(String::from_utf8_lossy(value).as_bytes(), out),
        Texts::Base64 if style.layout == JsonLayout::Compact => {
            out.extend_from_slice(b"{\"b64\":\"");
            base64::encode(value, out);
            out.extend_from_slice(b"\"}");
        }
        // RapidJSON puts only arrays on one line; objects always span several.
        Texts::Base64 => {
            out.push(b'{');
            new_line(depth + 1, out);
            out.extend_from_slice(b"\"b64\": \"");
            base64::encode(value, out);
            out.push(b'"');
            new_line(depth, out);
            out.push(b'}');
        }
    }
    Ok(())
}

/// The most bytes of `{"b64": "…"}` besides the text.
const B64_FRAME: usize = 16;

/// The most bytes of a string in this form, without what is around it.
fn written_len(value: &[u8], texts: Texts) -> usize {
    match texts {
        Texts::Base64 => base64::encoded_len(value.len()),
        Texts::Raw => string_len(value),
        // Each invalid byte becomes a replacement character of three bytes.
        Texts::Lossy => string_len(value) + 2 * value.len(),
    }
}

/// The most bytes that [`string`] appends.
#[must_use]
pub fn string_len(value: &[u8]) -> usize {
    let escaped = value.iter().filter(|byte| is_escaped(**byte)).count();
    value.len() + MAX_ESCAPE * escaped + 2
}

/// The bytes that escaping adds to a byte: `\u001F`.
const MAX_ESCAPE: usize = 5;

fn is_escaped(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}

/// Appends `value` as a JSON string. `"`, `\` and control characters are escaped; everything else,
/// including invalid UTF-8, is written unchanged.
pub fn string(value: &[u8], out: &mut Vec<u8>) {
    out.reserve(value.len() + 2);
    out.push(b'"');
    let mut rest = value;
    while let Some(at) = rest.iter().position(|byte| is_escaped(*byte)) {
        let (plain, escaped) = rest.split_at(at);
        out.extend_from_slice(plain);
        let byte = escaped.first().copied().unwrap_or(b' ');
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                let (high, low) = (hex_digit(byte >> 4), hex_digit(byte & 15));
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
        }
        rest = escaped.get(1..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// The upper-case hexadecimal digit of a number below 16.
fn hex_digit(number: u8) -> u8 {
    if number < 10 { b'0' + number } else { b'A' + (number - 10) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{Shape, StringsBuilder, aligned_vec};

    const TFS: Style =
        Style { layout: JsonLayout::Pretty, floats: Floats::TensorFlowServing, texts: Texts::Raw };

    fn floats(dims: &[i64], values: &[f32]) -> Tensor {
        let mut data = aligned_vec(values.len());
        data.extend_from_slice(values);
        Tensor::from_vec(Shape::new(dims).expect("shape"), data).expect("tensor")
    }

    fn written(value: &Tensor, style: Style, depth: usize) -> String {
        let mut out = Vec::new();
        tensor(value, style, depth, &mut out).expect("representable");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn three_layouts() {
        let matrix = floats(&[2, 2], &[1.0, 2.5, 3.0, 4.0]);
        let style = |layout| Style { layout, ..TFS };
        assert_eq!(written(&matrix, style(JsonLayout::Compact), 0), "[[1.0,2.5],[3.0,4.0]]");
        assert_eq!(written(&matrix, style(JsonLayout::Line), 0), "[[1.0, 2.5], [3.0, 4.0]]");
        let pretty = "[\n        [\n            1.0,\n            2.5\n        ],\n        [\n            3.0,\n            4.0\n        ]\n    ]";
        assert_eq!(written(&matrix, style(JsonLayout::Pretty), 1), pretty);
        assert_eq!(written(&floats(&[], &[3.0]), TFS, 1), "3.0");
        assert_eq!(written(&floats(&[0], &[]), TFS, 1), "[]");
        assert_eq!(written(&floats(&[2, 0], &[]), style(JsonLayout::Line), 1), "[[], []]");
    }

    /// As [`tensor`] writes it, element by element.
    fn nested(
        texts: &mut impl Iterator<Item = String>,
        dims: &[i64],
        layout: JsonLayout,
    ) -> String {
        let Some((size, inner)) = dims.split_first() else {
            return texts.next().expect("an element");
        };
        let elements: Vec<_> = (0..*size).map(|_| nested(texts, inner, layout)).collect();
        let comma = if layout == JsonLayout::Line { ", " } else { "," };
        format!("[{}]", elements.join(comma))
    }

    #[test]
    fn rows_of_any_length() {
        let rows = [[0, 3], [1, 1], [2, 0], [2, 3], [5, 64], [5, 65], [5000, 3], [3, 5000]];
        let shapes = rows.iter().map(|dims| dims.to_vec());
        let deeper = [vec![], vec![0], vec![9000], vec![2, 3, 4], vec![2, 0, 3], vec![2, 3, 0]];
        for dims in shapes.chain(deeper).chain([vec![3, 2, 2, 1], vec![1, 9000, 1]]) {
            let shape = Shape::new(&dims).expect("shape");
            let count: i64 = dims.iter().product();
            let number = |n: i64| (n.wrapping_mul(2_654_435_769) >> (n % 40)) * (1 - 2 * (n % 2));
            let mut integers = aligned_vec::<i64>(0);
            integers.extend_from_slice(&(0..count).map(number).collect::<Vec<_>>());
            let mut halves = aligned_vec::<f32>(0);
            halves
                .extend_from_slice(&(0..count).map(|n| (n % 999) as f32 + 0.5).collect::<Vec<_>>());
            let mut texts = integers.iter().map(i64::to_string).collect::<Vec<_>>();
            let integers = Tensor::from_vec(shape.clone(), integers).expect("tensor");
            for tensor in [integers, Tensor::from_vec(shape, halves).expect("tensor")] {
                for layout in [JsonLayout::Line, JsonLayout::Compact] {
                    let expected = nested(&mut texts.clone().into_iter(), &dims, layout);
                    let style = Style { layout, ..TFS };
                    assert!(written(&tensor, style, 0) == expected, "{dims:?} {layout:?}");
                    let mut rows = RowText::default();
                    if super::rows(&tensor, style, &mut rows).expect("representable") {
                        let text = |row: &Range<usize>| {
                            String::from_utf8(rows.text[row.clone()].to_vec()).expect("UTF-8")
                        };
                        let mut joined = rows.rows.iter().map(text).collect::<Vec<_>>().into_iter();
                        assert!(nested(&mut joined, &dims[..1], layout) == expected, "{dims:?}");
                    }
                }
                texts = (0..count).map(|n| format!("{}.5", n % 999)).collect();
            }
        }
    }

    #[test]
    fn strings_are_escaped_or_wrapped() {
        let mut builder = StringsBuilder::default();
        builder.push("a\"b\\c/\n\u{1}\u{1f}é".as_bytes());
        let text = Tensor::from_strings(Shape::vector(1), builder).expect("tensor");
        let line = Style { layout: JsonLayout::Line, ..TFS };
        assert_eq!(written(&text, line, 0), "[\"a\\\"b\\\\c/\\n\\u0001\\u001Fé\"]");
        let base64 = Style { texts: Texts::Base64, ..line };
        let mut builder = StringsBuilder::default();
        builder.push(b"hello");
        let hello = Tensor::from_strings(Shape::vector(1), builder).expect("tensor");
        assert_eq!(written(&hello, base64, 1), "[{\n            \"b64\": \"aGVsbG8=\"\n        }]");
    }

    #[test]
    fn complex_numbers_have_no_form() {
        let data = std::sync::Arc::new(aligned_vec::<u8>(0));
        let buffer = tensorserve_tensor::Buffer::new(data);
        let complex = Tensor::numeric(DType::Complex64, Shape::vector(0), buffer).expect("tensor");
        let mut out = Vec::new();
        let error = tensor(&complex, TFS, 0, &mut out).expect_err("no form");
        assert!(matches!(error, WriteError::NoJsonForm(DType::Complex64)), "{error:?}");
    }
}
