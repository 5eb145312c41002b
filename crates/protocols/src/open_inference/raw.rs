//! Tensors as raw bytes: little-endian elements without padding, row-major; each byte string after its
//! length as four bytes. The binary extension of REST and the raw contents of gRPC have them.

use bytes::Bytes;

use super::datatype;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, STRING_OVERHEAD, Shape, StringsBuilder, Tensor};

/// The bytes of the length before each string.
const LENGTH: usize = 4;

/// The tensor of raw bytes. Numbers are used in place if they are aligned.
///
/// # Errors
/// If the bytes are not exactly those of the elements.
pub(super) fn read(name: &str, dtype: DType, shape: Shape, content: Bytes) -> Result<Tensor> {
    let count = shape.elements()?;
    let Some(size) = dtype.size() else {
        return read_strings(name, shape, count, &content);
    };
    let (given, expected) = (content.len(), count.checked_mul(size));
    if expected != Some(given) {
        let expected = expected.map_or("more".to_owned(), |expected| expected.to_string());
        return Err(Error::invalid(format!(
            "input {name:?} has {given} bytes, but its shape {shape:?} and its datatype {} need \
             {expected}",
            datatype::name_of(dtype)
        )));
    }
    Tensor::from_bytes(dtype, shape, content)
}

fn read_strings(name: &str, shape: Shape, count: usize, content: &[u8]) -> Result<Tensor> {
    let wrong = |what: &str| {
        Error::invalid(format!(
            "input {name:?} has {} bytes, which are not {count} strings, each after its length as 4 \
             bytes: {what}",
            content.len()
        ))
    };
    let lengths = count.checked_mul(LENGTH).filter(|lengths| *lengths <= content.len());
    let lengths = lengths.ok_or_else(|| wrong("there are too few"))?;
    let bytes = content.len() - lengths;
    budget::reserve(bytes.saturating_add(count.saturating_mul(STRING_OVERHEAD)))?;
    let mut strings = StringsBuilder::with_capacity(count, bytes);
    let mut rest = content;
    for index in 0..count {
        let string = take_string(&mut rest)
            .ok_or_else(|| wrong(&format!("string {index} ends after the last byte")))?;
        strings.push(string);
    }
    if !rest.is_empty() {
        return Err(wrong(&format!("{} bytes are left", rest.len())));
    }
    Tensor::from_strings(shape, strings)
}

fn take_string<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (length, after) = rest.split_first_chunk::<LENGTH>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (string, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(string)
}

/// The number of raw bytes of a tensor.
pub(super) fn len(tensor: &Tensor) -> usize {
    let lengths = tensor.strings().map_or(0, |strings| strings.len().saturating_mul(LENGTH));
    tensor.byte_len().saturating_add(lengths)
}

/// Smaller tensors are copied: that costs less than to keep them.
const WORTH_SHARING: usize = 16 << 10;

/// Whether the raw bytes of a tensor are large, and are those in its memory.
pub(super) fn is_shareable(tensor: &Tensor) -> bool {
    tensor.strings().is_none() && tensor.byte_len() >= WORTH_SHARING
}

/// The raw bytes of a tensor. If they are shareable, they keep it in memory; otherwise they are copied.
///
/// # Errors
/// If a string is longer than its length can say, or there is no memory for a copy.
pub(super) fn bytes(tensor: &Tensor) -> Result<Bytes> {
    /// The bytes of a tensor, which keep it in memory.
    struct SharedTensor(Tensor);

    impl AsRef<[u8]> for SharedTensor {
        fn as_ref(&self) -> &[u8] {
            self.0.bytes()
        }
    }

    if is_shareable(tensor) {
        return Ok(Bytes::from_owner(SharedTensor(tensor.clone())));
    }
    let mut copied = Vec::new();
    budget::grow(&mut copied, len(tensor))?;
    append(tensor, &mut copied)?;
    Ok(copied.into())
}

/// Appends the raw bytes of a tensor.
///
/// # Errors
/// If a string is longer than its length can say.
pub(super) fn append(tensor: &Tensor, out: &mut Vec<u8>) -> Result<()> {
    let Some(strings) = tensor.strings() else {
        out.extend_from_slice(tensor.bytes());
        return Ok(());
    };
    for string in strings.iter() {
        let length = u32::try_from(string.len());
        let length = length.map_err(|_| Error::internal("an output is longer than 4 GiB"))?;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(string);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(dims: &[i64], content: &'static [u8]) -> Result<Tensor> {
        read("x", DType::String, Shape::new(dims)?, Bytes::from_static(content))
    }

    #[test]
    fn what_is_written_is_read() {
        let content = b"\x01\0\0\0a\0\0\0\0\x03\0\0\0\xffbc";
        let tensor = strings(&[3], content).expect("three strings");
        let found: Vec<&[u8]> = tensor.strings().expect("strings").iter().collect();
        assert_eq!(found, [&b"a"[..], b"", b"\xffbc"]);
        let mut out = Vec::new();
        append(&tensor, &mut out).expect("short");
        assert_eq!((out.as_slice(), out.len()), (&content[..], len(&tensor)));
    }

    #[test]
    fn sizes_must_be_exact() {
        for (dims, content) in [
            (&[2_i64][..], &b"\x01\0\0\0a"[..]),
            (&[1], b"\x02\0\0\0a"),
            (&[1], b"\x01\0\0\0ab"),
            (&[0], b"a"),
            (&[1], b"\x01\0\0"),
            (&[1 << 31, 1 << 31], b"\0\0\0\0"),
            (&[1], b"\xff\xff\xff\xff"),
        ] {
            assert!(strings(dims, content).is_err(), "{dims:?} {content:?}");
        }
        let number = |dims: &[i64], len| {
            read("x", DType::Int16, Shape::new(dims)?, Bytes::from(vec![0; len]))
        };
        assert_eq!(number(&[3], 6).expect("fits").shape().dims(), [3]);
        for (dims, len) in [(&[3_i64][..], 5), (&[3], 8), (&[1 << 62], 8), (&[], 0)] {
            assert!(number(dims, len).is_err(), "{dims:?} {len}");
        }
    }
}
