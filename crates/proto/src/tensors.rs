//! Conversions between TensorFlow's `TensorProto` and [`Tensor`].

use std::sync::Arc;

use bytes::Bytes;

use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    AlignedVec, Buffer, DType, Data, Element, Shape, Strings, StringsBuilder, Tensor, aligned_vec,
};

use crate::tensorflow::tensor_shape_proto::Dim;
pub use crate::tensorflow::{BytesList, Example, Feature, Features, FloatList, Int64List};
use crate::tensorflow::{TensorProto, TensorShapeProto};

/// The most memory of elements that are missing in a message and get the value of the last one: what
/// a message of the default size could have contained.
const MAX_REPEATED_BYTES: usize = 64 << 20;

/// The most bytes of strings that are missing in a message, each of which counts as one at least: a string takes more
/// memory than its bytes.
const MAX_REPEATED_STRINGS: usize = 1 << 24;

/// Reads a `TensorProto`: `tensor_content` if set, else the typed `*_val` field. Missing values
/// repeat the last one, or are zeros if there are no values at all; surplus values are ignored, and
/// so is the content of a tensor without elements (TensorFlow's `Tensor::FromProto`).
///
/// # Errors
/// [`Code::InvalidArgument`](tensorserve_tensor::error::Code::InvalidArgument) if type, shape and
/// content disagree, or the type is not supported.
pub fn tensor_from_proto(proto: &TensorProto) -> Result<Tensor> {
    let dtype = DType::from_number(proto.dtype)
        .ok_or_else(|| Error::invalid(format!("tensor of unsupported type {}", proto.dtype)))?;
    if proto.tensor_shape.as_ref().is_some_and(|shape| shape.unknown_rank) {
        return Err(Error::invalid("a tensor with values must have a shape, not an unknown rank"));
    }
    let dims = proto.tensor_shape.iter().flat_map(|shape| &shape.dim);
    let dims: Vec<i64> = dims.map(|dim| dim.size).collect();
    let shape = Shape::new(&dims)?;
    let count = shape.elements()?;
    if dtype == DType::String {
        return strings_from_proto(proto, shape, count);
    }
    if has_content(proto, count) {
        return Tensor::from_bytes(dtype, shape, proto.tensor_content.clone());
    }
    let given = given_values(proto, dtype);
    let size = dtype.size().unwrap_or(1);
    if count.saturating_sub(given).saturating_mul(size) > MAX_REPEATED_BYTES {
        return Err(Error::invalid(format!(
            "shape {shape:?} is too large for its values: {given} are given; send all of them"
        )));
    }
    budget::reserve(count.saturating_mul(size))?;
    let bytes = typed_values(proto, dtype, count)?;
    Tensor::numeric(dtype, shape, Buffer::new(Arc::new(bytes)))
}

/// Whether the elements are in `tensor_content`.
fn has_content(proto: &TensorProto, count: usize) -> bool {
    count > 0 && !proto.tensor_content.is_empty()
}

/// The number of values in the field for a dtype, which is not string.
fn given_values(proto: &TensorProto, dtype: DType) -> usize {
    match dtype {
        DType::Float => proto.float_val.len(),
        DType::Double => proto.double_val.len(),
        DType::Int32 | DType::Int16 | DType::UInt16 | DType::Int8 | DType::UInt8 => {
            proto.int_val.len()
        }
        DType::Half | DType::BFloat16 => proto.half_val.len(),
        DType::Int64 => proto.int64_val.len(),
        DType::UInt32 => proto.uint32_val.len(),
        DType::UInt64 => proto.uint64_val.len(),
        DType::Bool => proto.bool_val.len(),
        DType::Complex64 => proto.scomplex_val.len() / 2,
        DType::Complex128 => proto.dcomplex_val.len() / 2,
        DType::String => proto.string_val.len(),
    }
}

fn typed_values(proto: &TensorProto, dtype: DType, count: usize) -> Result<AlignedVec<u8>> {
    Ok(match dtype {
        DType::Float => fill(&proto.float_val, count, |v| v.to_ne_bytes()),
        DType::Double => fill(&proto.double_val, count, |v| v.to_ne_bytes()),
        DType::Int32 => fill(&proto.int_val, count, |v| v.to_ne_bytes()),
        // Narrow integers are encoded as int32, and are truncated, not checked, as in TensorFlow.
        DType::Int16 | DType::UInt16 => fill(&proto.int_val, count, |v| low_half(*v)),
        DType::Half | DType::BFloat16 => fill(&proto.half_val, count, |v| low_half(*v)),
        DType::Int8 | DType::UInt8 => fill(&proto.int_val, count, |v| [v.to_le_bytes()[0]]),
        DType::Int64 => fill(&proto.int64_val, count, |v| v.to_ne_bytes()),
        DType::UInt32 => fill(&proto.uint32_val, count, |v| v.to_ne_bytes()),
        DType::UInt64 => fill(&proto.uint64_val, count, |v| v.to_ne_bytes()),
        DType::Bool => fill(&proto.bool_val, count, |v| [u8::from(*v)]),
        DType::Complex64 => {
            let pairs: Vec<[f32; 2]> = proto.scomplex_val.as_chunks().0.to_vec();
            fill(&pairs, count, |v| bytemuck::cast::<[f32; 2], [u8; 8]>(*v))
        }
        DType::Complex128 => {
            let pairs: Vec<[f64; 2]> = proto.dcomplex_val.as_chunks().0.to_vec();
            fill(&pairs, count, |v| bytemuck::cast::<[f64; 2], [u8; 16]>(*v))
        }
        DType::String => return Err(Error::internal("string tensors have no typed values")),
    })
}

/// How a `TensorProto` encodes its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As a list of typed values (`float_val` and similar), which every client can read.
    Values,
    /// As raw bytes (`tensor_content`), which are faster to write and to read. Strings are always
    /// typed values.
    Content,
}

/// Writes a `TensorProto`.
#[must_use]
pub fn tensor_to_proto(tensor: &Tensor, form: Form) -> TensorProto {
    let dims = tensor.shape().dims().iter();
    let dim = dims.map(|&size| Dim { size, name: String::new() }).collect();
    let mut proto = TensorProto {
        dtype: tensor.dtype().number(),
        tensor_shape: Some(TensorShapeProto { dim, unknown_rank: false }),
        ..TensorProto::default()
    };
    if let Data::Strings(strings) = tensor.data() {
        proto.string_val = string_values(strings);
        return proto;
    }
    match form {
        Form::Values => write_values(tensor, &mut proto),
        Form::Content => proto.tensor_content = Bytes::copy_from_slice(tensor.bytes()),
    }
    proto
}

/// The strings as slices of one buffer.
fn string_values(strings: &Strings) -> Vec<Bytes> {
    let mut all = Vec::with_capacity(strings.byte_len());
    strings.iter().for_each(|string| all.extend_from_slice(string));
    let mut rest = Bytes::from(all);
    strings.iter().map(|string| rest.split_to(string.len())).collect()
}

fn write_values(tensor: &Tensor, proto: &mut TensorProto) {
    fn all<T: Element, U>(tensor: &Tensor, convert: impl Fn(T) -> U) -> Vec<U> {
        tensor.values::<T>().unwrap_or_default().iter().map(|&value| convert(value)).collect()
    }
    /// 16-bit floats, whose bits are encoded as integers.
    fn bits(tensor: &Tensor) -> Vec<i32> {
        let pairs = tensor.bytes().as_chunks().0.iter();
        pairs.map(|pair| i32::from(u16::from_ne_bytes(*pair))).collect()
    }
    match tensor.dtype() {
        DType::Float => proto.float_val = all(tensor, |x: f32| x),
        DType::Double => proto.double_val = all(tensor, |x: f64| x),
        DType::Int32 => proto.int_val = all(tensor, |n: i32| n),
        DType::Int16 => proto.int_val = all(tensor, |n: i16| n.into()),
        DType::UInt16 => proto.int_val = all(tensor, |n: u16| n.into()),
        DType::Int8 => proto.int_val = all(tensor, |n: i8| n.into()),
        DType::UInt8 => proto.int_val = all(tensor, |n: u8| n.into()),
        DType::Int64 => proto.int64_val = all(tensor, |n: i64| n),
        DType::UInt32 => proto.uint32_val = all(tensor, |n: u32| n),
        DType::UInt64 => proto.uint64_val = all(tensor, |n: u64| n),
        DType::Half | DType::BFloat16 => proto.half_val = bits(tensor),
        DType::Bool => proto.bool_val = tensor.bytes().iter().map(|&byte| byte != 0).collect(),
        DType::Complex64 => {
            let parts = tensor.bytes().as_chunks().0.iter();
            proto.scomplex_val = parts.map(|part| f32::from_ne_bytes(*part)).collect();
        }
        DType::Complex128 => {
            let parts = tensor.bytes().as_chunks().0.iter();
            proto.dcomplex_val = parts.map(|part| f64::from_ne_bytes(*part)).collect();
        }
        DType::String => {}
    }
}

/// The low 16 bits of a value, in native byte order.
fn low_half(value: i32) -> [u8; 2] {
    let [a, b, ..] = value.to_le_bytes();
    u16::from_le_bytes([a, b]).to_ne_bytes()
}

/// The bytes of `count` values; missing values repeat the last, or are zeros if `values` is empty.
fn fill<T, const N: usize>(
    values: &[T],
    count: usize,
    bytes_of: impl Fn(&T) -> [u8; N],
) -> AlignedVec<u8> {
    let mut bytes = aligned_vec::<u8>(count * N);
    for value in values.iter().take(count) {
        bytes.extend_from_slice(&bytes_of(value));
    }
    let last = values.last().map_or([0; N], &bytes_of);
    for _ in values.len().min(count)..count {
        bytes.extend_from_slice(&last);
    }
    bytes
}

/// As [`tensor_from_proto`], for strings.
fn strings_from_proto(proto: &TensorProto, shape: Shape, count: usize) -> Result<Tensor> {
    if has_content(proto, count) {
        return strings_from_content(&proto.tensor_content, shape, count);
    }
    let given = proto.string_val.len();
    let last = proto.string_val.last();
    let repeated = count.saturating_sub(given);
    if repeated.saturating_mul(last.map_or(1, |s| s.len().max(1))) > MAX_REPEATED_STRINGS {
        return Err(Error::invalid(format!(
            "shape {shape:?} has far more elements than string_val, which has {given}"
        )));
    }
    let bytes: usize = proto.string_val.iter().map(Bytes::len).sum();
    let repeated_bytes = repeated.saturating_mul(last.map_or(0, Bytes::len));
    let ends = count.saturating_mul(size_of::<usize>());
    budget::reserve(bytes.saturating_add(repeated_bytes).saturating_add(ends))?;
    let mut strings = StringsBuilder::with_capacity(count, 0);
    for value in proto.string_val.iter().take(count) {
        strings.push(value);
    }
    for _ in 0..repeated {
        strings.push(last.map_or(&[], |s| s));
    }
    Tensor::from_strings(shape, strings)
}

/// Strings in `tensor_content`: the lengths of all of them as varints, and then their bytes (TensorFlow's
/// `DecodeStringList`).
fn strings_from_content(content: &[u8], shape: Shape, count: usize) -> Result<Tensor> {
    let malformed = |why: &str| {
        Error::invalid(format!(
            "tensor_content of strings must be the lengths of all {count} as varints and then their \
             bytes: {why}; or send them in string_val"
        ))
    };
    // Each length has a byte at least: no shape makes the list of them larger than the message.
    if count > content.len() {
        return Err(malformed(&format!("it has only {} bytes", content.len())));
    }
    let words = count.saturating_mul(2 * size_of::<usize>());
    budget::reserve(content.len().saturating_add(words))?;
    let mut rest = content;
    let mut lengths = Vec::with_capacity(count);
    for _ in 0..count {
        let length = take_length(&mut rest).ok_or_else(|| malformed("a length is not a varint"))?;
        lengths.push(length);
    }
    let total = lengths.iter().fold(0_usize, |total, &length| total.saturating_add(length));
    if total != rest.len() {
        return Err(malformed(&format!("{total} bytes should follow, not {}", rest.len())));
    }
    let mut strings = StringsBuilder::with_capacity(count, rest.len());
    for length in lengths {
        let (string, others) = rest.split_at_checked(length).unwrap_or_default();
        strings.push(string);
        rest = others;
    }
    Tensor::from_strings(shape, strings)
}

/// Takes a varint of 32 bits, which has five bytes at most.
fn take_length(rest: &mut &[u8]) -> Option<usize> {
    let mut length = 0_u32;
    for shift in [0, 7, 14, 21, 28] {
        let (&byte, others) = rest.split_first()?;
        *rest = others;
        length |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return usize::try_from(length).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proto(dtype: DType, dims: &[i64]) -> TensorProto {
        let dim = |&size: &i64| Dim { size, name: String::new() };
        TensorProto {
            dtype: dtype.number(),
            tensor_shape: Some(TensorShapeProto {
                dim: dims.iter().map(dim).collect(),
                unknown_rank: false,
            }),
            ..TensorProto::default()
        }
    }

    #[test]
    fn short_values_repeat_the_last_and_none_are_zeros() {
        let mut p = proto(DType::Float, &[4]);
        p.float_val = vec![1.0, 2.0];
        let t = tensor_from_proto(&p).expect("valid");
        assert_eq!(t.values::<f32>(), Some(&[1.0, 2.0, 2.0, 2.0][..]));
        p.float_val.clear();
        let t = tensor_from_proto(&p).expect("valid");
        assert_eq!(t.values::<f32>(), Some(&[0.0; 4][..]));
    }

    fn strings(content: &[u8], dims: &[i64]) -> Option<Vec<Vec<u8>>> {
        let mut p = proto(DType::String, dims);
        p.string_val = vec![Bytes::from_static(b"not these")];
        p.tensor_content = Bytes::copy_from_slice(content);
        let tensor = tensor_from_proto(&p).ok()?;
        assert_eq!(tensor.shape().dims(), dims);
        let Data::Strings(strings) = tensor.data() else { return None };
        Some(strings.iter().map(<[u8]>::to_vec).collect())
    }

    #[test]
    fn strings_in_the_content_are_lengths_and_then_bytes() {
        let two = Some(vec![b"a".to_vec(), b"bc".to_vec()]);
        assert_eq!(strings(b"\x01\x02abc", &[2]), two);
        assert_eq!(strings(b"\x01\x02abc", &[2, 1]), two);
        assert_eq!(strings(b"\0\0", &[2]), Some(vec![Vec::new(), Vec::new()]));
        let long = [&[0xac, 0x02][..], &[b'x'; 300]].concat();
        assert_eq!(strings(&long, &[]), Some(vec![vec![b'x'; 300]]));
        // A tensor without elements has no content, whatever the message has.
        assert_eq!(strings(b"\xff", &[0]), Some(Vec::new()));
    }

    #[test]
    fn strings_in_a_malformed_content_are_refused() {
        for (content, dims) in [
            (&b"\xff\xd8\xff\xe0 JFIF"[..], &[1][..]),
            (b"\x01\x02ab", &[2]),
            (b"\x01\x02abcd", &[2]),
            (b"\x01", &[2]),
            (b"\x80\x80\x80\x80\x80\x00", &[1]),
            (b"\x80", &[1]),
            (b"\xff\xff\xff\xff\x0fab", &[1]),
            (b"\x01a", &[1 << 40]),
        ] {
            assert_eq!(strings(content, dims), None, "{content:?}");
        }
    }

    #[test]
    fn numbers_of_a_tensor_without_elements_are_ignored() {
        let mut p = proto(DType::Float, &[0]);
        p.tensor_content = vec![0; 7].into();
        assert_eq!(tensor_from_proto(&p).expect("a tensor").bytes(), b"");
    }

    #[test]
    fn content_of_the_wrong_length_is_an_error() {
        let mut p = proto(DType::Int32, &[2]);
        p.tensor_content = vec![0; 7].into();
        assert!(tensor_from_proto(&p).is_err());
    }

    #[test]
    fn content_of_bools_becomes_zeros_and_ones() {
        let mut p = proto(DType::Bool, &[4]);
        p.tensor_content = vec![0, 1, 2, 255].into();
        assert_eq!(tensor_from_proto(&p).expect("a tensor").bytes(), [0, 1, 1, 1]);
    }

    #[test]
    fn a_huge_shape_without_content_is_refused() {
        assert!(tensor_from_proto(&proto(DType::Float, &[1 << 40])).is_err());
        assert!(tensor_from_proto(&proto(DType::Float, &[i64::MAX, 2])).is_err());
        assert!(tensor_from_proto(&proto(DType::String, &[1 << 30])).is_err());
        assert!(tensor_from_proto(&proto(DType::Float, &[-1])).is_err());
        assert!(tensor_from_proto(&proto(DType::Float, &[1; 254])).is_ok());
        assert!(tensor_from_proto(&proto(DType::Float, &[1; 255])).is_err());
    }

    #[test]
    fn an_unknown_rank_is_refused() {
        let mut p = proto(DType::Float, &[]);
        assert!(tensor_from_proto(&p).is_ok());
        p.tensor_shape = Some(TensorShapeProto { dim: Vec::new(), unknown_rank: true });
        assert!(tensor_from_proto(&p).is_err());
    }
}
