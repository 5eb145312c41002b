//! Tensors to nested JSON arrays, with the white space and number format the caller names.

use half::{bf16, f16};

use super::float;
use crate::base64;
use tensorserve_tensor::{DType, Strings, Tensor};

/// White space of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// None.
    Compact,
    /// A blank behind each comma (RapidJSON's single-line arrays).
    Line,
    /// Each element on a line of its own, indented by four blanks a level.
    Pretty,
}

/// How floating-point numbers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floats {
    /// As TensorFlow Serving does: [`float::float32`].
    TensorFlowServing,
    /// As Python prints the double of the same value: [`float::python`].
    Python,
}

/// How strings are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texts {
    /// As JSON strings, bytes as they are.
    Raw,
    /// As JSON strings; what is not UTF-8 is replaced by U+FFFD.
    Lossy,
    /// As objects `{"b64": "…"}`.
    Base64,
}

/// A whole style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// White space.
    pub layout: Layout,
    /// Floating-point numbers.
    pub floats: Floats,
    /// Strings.
    pub texts: Texts,
}

/// Appends `tensor` as nested arrays (a scalar as a bare value). `depth` is how many arrays and
/// objects are open around it.
///
/// # Errors
/// [`NoJsonForm`] for element types without one.
pub fn tensor(
    tensor: &Tensor,
    style: Style,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), NoJsonForm> {
    let dims = tensor.shape().dims();
    if let Some(strings) = tensor.strings() {
        texts(strings, dims, style, depth, out);
        return Ok(());
    }
    let python = style.floats == Floats::Python;
    let mut numbers = Numbers { bytes: tensor.bytes(), layout: style.layout, out };
    // Room for most numbers, so that the buffer grows a few times at most.
    numbers.out.reserve(tensor.bytes().len() / tensor.dtype().size().unwrap_or(1) * 8);
    match tensor.dtype() {
        DType::Float if python => numbers.nested(dims, depth, |b, out| {
            float::python(f64::from(f32::from_ne_bytes(b)), out);
        }),
        DType::Float => numbers.nested(dims, depth, |b, out| {
            float::float32(f32::from_ne_bytes(b), out);
        }),
        DType::Double if python => numbers.nested(dims, depth, |b, out| {
            float::python(f64::from_ne_bytes(b), out);
        }),
        DType::Double => numbers.nested(dims, depth, |b, out| {
            float::float64(f64::from_ne_bytes(b), out);
        }),
        DType::Half if python => numbers.nested(dims, depth, |b, out| {
            float::python(f16::from_ne_bytes(b).to_f64(), out);
        }),
        DType::Half => numbers.nested(dims, depth, |b, out| {
            float::half(f16::from_ne_bytes(b), out);
        }),
        DType::BFloat16 if python => numbers.nested(dims, depth, |b, out| {
            float::python(bf16::from_ne_bytes(b).to_f64(), out);
        }),
        DType::BFloat16 => numbers.nested(dims, depth, |b, out| {
            float::brain(bf16::from_ne_bytes(b), out);
        }),
        DType::Int8 => numbers.nested(dims, depth, |b, out| integer(i8::from_ne_bytes(b), out)),
        DType::Int16 => numbers.nested(dims, depth, |b, out| integer(i16::from_ne_bytes(b), out)),
        DType::Int32 => numbers.nested(dims, depth, |b, out| integer(i32::from_ne_bytes(b), out)),
        DType::Int64 => numbers.nested(dims, depth, |b, out| integer(i64::from_ne_bytes(b), out)),
        DType::UInt8 => numbers.nested(dims, depth, |b, out| integer(u8::from_ne_bytes(b), out)),
        DType::UInt16 => numbers.nested(dims, depth, |b, out| integer(u16::from_ne_bytes(b), out)),
        DType::UInt32 => numbers.nested(dims, depth, |b, out| integer(u32::from_ne_bytes(b), out)),
        DType::UInt64 => numbers.nested(dims, depth, |b, out| integer(u64::from_ne_bytes(b), out)),
        DType::Bool => numbers.nested(dims, depth, |[b], out| {
            out.extend_from_slice(if b == 0 { b"false" } else { b"true" });
        }),
        DType::Complex64 | DType::Complex128 | DType::String => {
            return Err(NoJsonForm(tensor.dtype()));
        }
    }
    Ok(())
}

/// The element type has no JSON form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoJsonForm(pub DType);

fn integer(value: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

struct Numbers<'a> {
    /// Elements not yet written.
    bytes: &'a [u8],
    layout: Layout,
    out: &'a mut Vec<u8>,
}

impl Numbers<'_> {
    /// Writes the next elements of the shape `dims`, each of `N` bytes.
    fn nested<const N: usize>(
        &mut self,
        dims: &[i64],
        depth: usize,
        write: impl Fn([u8; N], &mut Vec<u8>) + Copy,
    ) {
        let (layout, out) = (self.layout, &mut *self.out);
        match dims {
            [] => {
                if let Some((element, rest)) = self.bytes.split_first_chunk() {
                    self.bytes = rest;
                    write(*element, out);
                }
            }
            [size] => {
                let size = usize::try_from(*size).unwrap_or(0);
                let row = self.bytes.split_at_checked(size.saturating_mul(N));
                let (row, rest) = row.unwrap_or((self.bytes, &[]));
                self.bytes = rest;
                out.push(b'[');
                for (index, element) in row.as_chunks().0.iter().enumerate() {
                    separate(index > 0, layout, depth + 1, out);
                    write(*element, out);
                }
                end(size > 0, layout, depth, out);
            }
            [size, inner @ ..] => {
                out.push(b'[');
                for index in 0..*size {
                    separate(index > 0, layout, depth + 1, self.out);
                    self.nested(inner, depth + 1, write);
                }
                end(*size > 0, layout, depth, self.out);
            }
        }
    }
}

/// Between two elements, and before the first.
#[inline(always)]
fn separate(comma: bool, layout: Layout, depth: usize, out: &mut Vec<u8>) {
    match (layout, comma) {
        (Layout::Line, true) => out.extend_from_slice(b", "),
        (Layout::Compact, true) => out.push(b','),
        (Layout::Line | Layout::Compact, false) => {}
        (Layout::Pretty, _) => {
            if comma {
                out.push(b',');
            }
            new_line(depth, out);
        }
    }
}

/// The end of an array.
#[inline]
fn end(any: bool, layout: Layout, depth: usize, out: &mut Vec<u8>) {
    if any && layout == Layout::Pretty {
        new_line(depth, out);
    }
    out.push(b']');
}

/// Appends a line break and the indentation of `depth` open arrays and objects.
pub fn new_line(depth: usize, out: &mut Vec<u8>) {
    out.push(b'\n');
    out.resize(out.len() + 4 * depth, b' ');
}

fn texts(strings: &Strings, dims: &[i64], style: Style, depth: usize, out: &mut Vec<u8>) {
    fn nested<'a>(
        strings: &mut impl Iterator<Item = &'a [u8]>,
        dims: &[i64],
        style: Style,
        depth: usize,
        out: &mut Vec<u8>,
    ) {
        let Some((&size, inner)) = dims.split_first() else {
            let value = strings.next().unwrap_or_default();
            return one_text(value, style, depth, out);
        };
        out.push(b'[');
        for index in 0..size {
            separate(index > 0, style.layout, depth + 1, out);
            nested(strings, inner, style, depth + 1, out);
        }
        end(size > 0, style.layout, depth, out);
    }
    nested(&mut strings.iter(), dims, style, depth, out);
}

fn one_text(value: &[u8], style: Style, depth: usize, out: &mut Vec<u8>) {
    match style.texts {
        Texts::Raw => string(value, out),
        Texts::Lossy => string(String::from_utf8_lossy(value).as_bytes(), out),
        Texts::Base64 if style.layout == Layout::Compact => {
            out.extend_from_slice(b"{\"b64\":\"");
            base64::encode(value, out);
            out.extend_from_slice(b"\"}");
        }
        // Only arrays go on one line; an object is always spread out.
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
}

/// Appends `value` as a JSON string: `"`, `\` and control characters escaped, everything else
/// (invalid UTF-8 too) as it is.
pub fn string(value: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.reserve(value.len() + 2);
    out.push(b'"');
    let mut rest = value;
    while let Some(at) = rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\')
    {
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
                let digit = |n: u8| HEX.get(usize::from(n)).copied().unwrap_or(b'0');
                let (high, low) = (digit(byte >> 4), digit(byte & 15));
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
        }
        rest = escaped.get(1..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{Shape, StringsBuilder, aligned_vec};

    const TFS: Style =
        Style { layout: Layout::Pretty, floats: Floats::TensorFlowServing, texts: Texts::Raw };

    fn floats(dims: &[i64], values: &[f32]) -> Tensor {
        let mut data = aligned_vec(values.len());
        data.extend_from_slice(values);
        Tensor::from_vec(Shape::new(dims).expect("shape"), data).expect("tensor")
    }

    fn written(value: &Tensor, style: Style, depth: usize) -> String {
        let mut out = Vec::new();
        tensor(value, style, depth, &mut out).expect("has a form");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn three_layouts() {
        let matrix = floats(&[2, 2], &[1.0, 2.5, 3.0, 4.0]);
        let style = |layout| Style { layout, ..TFS };
        assert_eq!(written(&matrix, style(Layout::Compact), 0), "[[1.0,2.5],[3.0,4.0]]");
        assert_eq!(written(&matrix, style(Layout::Line), 0), "[[1.0, 2.5], [3.0, 4.0]]");
        let pretty = "[\n        [\n            1.0,\n            2.5\n        ],\n        [\n            3.0,\n            4.0\n        ]\n    ]";
        assert_eq!(written(&matrix, style(Layout::Pretty), 1), pretty);
        assert_eq!(written(&floats(&[], &[3.0]), TFS, 1), "3.0");
        assert_eq!(written(&floats(&[0], &[]), TFS, 1), "[]");
        assert_eq!(written(&floats(&[2, 0], &[]), style(Layout::Line), 1), "[[], []]");
    }

    #[test]
    fn strings_are_escaped_or_wrapped() {
        let mut builder = StringsBuilder::default();
        builder.push("a\"b\\c/\n\u{1}\u{1f}é".as_bytes());
        let text = Tensor::from_strings(Shape::vector(1), builder).expect("tensor");
        let line = Style { layout: Layout::Line, ..TFS };
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
        assert_eq!(tensor(&complex, TFS, 0, &mut out), Err(NoJsonForm(DType::Complex64)));
    }
}
