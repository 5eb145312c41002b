//! NumPy's file format for one array (`.npy`), versions 1 to 3. It is read directly into an aligned
//! tensor buffer, in either storage order and either byte order, and written as `numpy.save` writes
//! it.
//!
//! NumPy has no name for bfloat16: the arrays of `ml_dtypes` are saved as two raw bytes per element
//! (`V2`), which are read as bfloat16. It is written as float32, which represents all its values and
//! which every client can read. Text (`U`) becomes UTF-8. Python objects, which are pickles, are
//! refused.

use std::sync::Arc;

use half::bf16;

use self::header::{NpyHeader, NpyType};
use crate::places::Places;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Buffer, DType, STRING_OVERHEAD, Shape, Strings, StringsBuilder, Tensor};

mod header;
mod rows;

pub use self::rows::{RowLayout, header_bytes_missing};

/// Reads one array, which must be all of `bytes` and need at most `max_bytes` of memory.
///
/// # Errors
/// [`Error::invalid`] for anything but one complete array of a type that tensors can have.
pub fn read(bytes: &[u8], max_bytes: usize) -> Result<Tensor> {
    let (header, data) = header::read(bytes)?;
    let count = header.shape.elements()?;
    let size = header.element.size();
    if count.checked_mul(size) != Some(data.len()) {
        return Err(Error::invalid(format!(
            "the npy array of shape {:?} has {} bytes of data, not {size} for each element",
            header.shape,
            data.len()
        )));
    }
    let needed = match header.element {
        NpyType::Number(..) => data.len(),
        // A UTF-32 character never gets longer as UTF-8.
        NpyType::Bytes(_) | NpyType::Text(..) => {
            data.len().saturating_add(count.saturating_mul(STRING_OVERHEAD))
        }
    };
    if needed > max_bytes {
        return Err(Error::invalid(format!(
            "the npy array of shape {:?} needs too much memory: {needed} bytes; at most \
             {max_bytes} are allowed",
            header.shape
        )));
    }
    budget::reserve(needed)?;
    match header.element {
        NpyType::Number(dtype, swapped) => read_numbers(dtype, swapped, header, data),
        NpyType::Bytes(_) => read_strings(header, data, |element, out| {
            out.extend_from_slice(without_padding(element));
            Ok(())
        }),
        NpyType::Text(_, swapped) => {
            read_strings(header, data, |element, out| push_utf8(element, swapped, out))
        }
    }
}

/// A numeric tensor in row-major order and this machine's byte order.
fn read_numbers(dtype: DType, swapped: bool, header: NpyHeader, data: &[u8]) -> Result<Tensor> {
    let size = header.element.size();
    let mut bytes = budget::allocated_vec::<u8>(data.len())?;
    match column_major_offsets(&header) {
        None => bytes.extend_from_slice(data),
        Some(offsets) => {
            for offset in offsets {
                bytes.extend_from_slice(element(data, offset, size));
            }
        }
    }
    if swapped {
        let number_size = if dtype.is_complex() { size / 2 } else { size };
        bytes.chunks_exact_mut(number_size).for_each(<[u8]>::reverse);
    }
    if dtype == DType::Bool {
        // The runtime expects 0 or 1; for NumPy every other byte is true, too.
        bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    }
    Tensor::numeric(dtype, header.shape, Buffer::new(Arc::new(bytes)))
}

/// A string tensor in row-major order; `append` converts each element.
fn read_strings(
    header: NpyHeader,
    data: &[u8],
    append: impl Fn(&[u8], &mut Vec<u8>) -> Result<()>,
) -> Result<Tensor> {
    let (count, size) = (header.shape.elements()?, header.element.size());
    let mut strings = StringsBuilder::with_capacity(count, 0);
    let mut push = |index| strings.push_with(|out| append(element(data, index, size), out));
    match column_major_offsets(&header) {
        None => (0..count).try_for_each(&mut push)?,
        Some(mut offsets) => offsets.try_for_each(&mut push)?,
    }
    Tensor::from_strings(header.shape, strings)
}

fn element(data: &[u8], index: usize, size: usize) -> &[u8] {
    data.get(index * size..(index + 1) * size).unwrap_or_default()
}

/// A string without the zero bytes that pad it.
fn without_padding(bytes: &[u8]) -> &[u8] {
    let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.get(..length).unwrap_or_default()
}

/// Appends UTF-32 text as UTF-8, without the NULs that pad it.
fn push_utf8(element: &[u8], swapped: bool, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    let mut end = start;
    for unit in element.as_chunks().0 {
        let number = u32::from_ne_bytes(*unit);
        let number = if swapped { number.swap_bytes() } else { number };
        let Some(character) = char::from_u32(number) else {
            out.truncate(start);
            return Err(Error::invalid(format!(
                "the npy array has text with {number:#x}, which is not a Unicode character"
            )));
        };
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        if character != '\0' {
            end = out.len();
        }
    }
    out.truncate(end);
    Ok(())
}

/// The offsets of the elements of a column-major array, in row-major order. `None` if the array is
/// stored in row-major order, or both orders are the same.
fn column_major_offsets(header: &NpyHeader) -> Option<Places> {
    let orders_differ = header.shape.dims().iter().filter(|dim| **dim != 1).count() > 1;
    let count = header.shape.elements().ok()?;
    if !header.fortran_order || !orders_differ || count == 0 {
        return None;
    }
    let sizes = header.shape.dims().iter().map(|&dim| usize::try_from(dim).unwrap_or(0));
    Some(Places::by_columns(sizes, count))
}

/// What precedes the data of a numeric array, as `numpy.save` writes it. Its length does not depend on
/// the first dimension, so that it can be written again when rows have been added. `dtype` is not
/// bfloat16, for which NumPy has no name, and not string.
#[must_use]
pub fn header(dtype: DType, shape: &Shape) -> Vec<u8> {
    header::write(&header::name(dtype), shape, 0)
}

/// Writes a tensor as `numpy.save` does, in at most `max_bytes`.
///
/// # Errors
/// [`Error::invalid`] for strings that an npy array cannot hold. NumPy pads all of them to one
/// length with zero bytes, so none may end in one, and the result may become too large.
pub fn write(tensor: &Tensor, max_bytes: usize) -> Result<Vec<u8>> {
    if let Some(strings) = tensor.strings() {
        return write_strings(tensor.shape(), strings, max_bytes);
    }
    let data = tensor.bytes();
    budget::reserve(data.len().saturating_mul(2))?;
    if tensor.dtype() == DType::BFloat16 {
        let mut out = header::write(&header::name(DType::Float), tensor.shape(), data.len() * 2);
        for pair in data.as_chunks().0 {
            let wide = bf16::from_ne_bytes(*pair).to_f32();
            out.extend_from_slice(&wide.to_ne_bytes());
        }
        return Ok(out);
    }
    let mut out = header::write(&header::name(tensor.dtype()), tensor.shape(), data.len());
    out.extend_from_slice(data);
    Ok(out)
}

fn write_strings(shape: &Shape, strings: &Strings, max_bytes: usize) -> Result<Vec<u8>> {
    let longest = strings.iter().map(<[u8]>::len).max().unwrap_or(0).max(1);
    let total = strings.len().checked_mul(longest).filter(|total| *total <= max_bytes);
    let total = total.ok_or_else(|| {
        Error::invalid(format!(
            "an npy array of {} strings, each padded to {longest} bytes, needs more than \
             {max_bytes} bytes: request another format",
            strings.len()
        ))
    })?;
    if strings.iter().any(|string| string.last() == Some(&0)) {
        return Err(Error::invalid(
            "an npy array cannot hold a string that ends with a zero byte: request another format",
        ));
    }
    budget::reserve(total)?;
    let mut out = header::write(&format!("|S{longest}"), shape, total);
    for string in strings.iter() {
        let end = out.len() + longest;
        out.extend_from_slice(string);
        out.resize(end, 0);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use tensorserve_tensor::aligned_vec;

    const MAX_BYTES: usize = 1 << 20;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(header.len()).expect("short").to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
    }

    fn refused(bytes: &[u8], why: &str) {
        let error = read(bytes, MAX_BYTES).expect_err(why);
        assert!(error.message().contains(why), "{why:?} is not in {:?}", error.message());
    }

    fn header(descr: &str, shape: &str) -> String {
        format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n")
    }

    #[test]
    fn headers_are_read_in_any_order_and_spacing() {
        for text in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }   \n",
            "{'shape':(2,),'descr':'<f4','fortran_order':False}",
            "  { \"shape\" : ( 2L , ) , 'fortran_order' : True , 'descr' : '<f4' , } \n",
        ] {
            let tensor = read(&file(text, &[0, 0, 128, 63, 0, 0, 0, 64]), MAX_BYTES).expect(text);
            assert_eq!(tensor.values::<f32>(), Some(&[1.0, 2.0][..]), "{text}");
            assert_eq!(tensor.shape().dims(), [2]);
        }
    }

    #[test]
    fn what_is_no_array_is_refused() {
        refused(b"", "does not begin");
        refused(b"PK\x03\x04 an archive", "does not begin");
        refused(b"\x93NUMPY\x04\x00\x00\x00", "version 4.0");
        refused(b"\x93NUMPY\x01\x00\xff\x0f{", "truncated");
        refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "longer than");
        refused(&file(&header("'|O'", "(1,)"), b"cos\nsystem\n"), "Python objects");
        refused(&file(&header("[('a', '<f4')]", "(1,)"), &[0; 4]), "fields");
        for descr in [
            "'<M8[s]'",
            "'<f16'",
            "'|V8'",
            "'f4'",
            "'|f4'",
            "'<q'",
            "''",
            "'<U99999999999999999999'",
        ] {
            refused(&file(&header(descr, "(1,)"), &[0; 4]), "type");
        }
        for shape in ["(1", "1", "(-1,)", "(1.5,)", "(,)", "(99999999999999999999,)", "None"] {
            refused(&file(&header("'<f4'", shape), &[0; 4]), "header");
        }
        for text in [
            "",
            "{}",
            "{'descr': '<f4'}",
            "{'descr': '<f4', 'descr': '<f4'}",
            "{'descr': '<f4",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': ()}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': ()} x",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (), 'more': 1}",
        ] {
            refused(&file(text, &[0; 4]), "header");
        }
    }

    #[test]
    fn data_that_does_not_fit_is_refused() {
        refused(&file(&header("'<f4'", "(2,)"), &[0; 7]), "7 bytes of data");
        refused(&file(&header("'<f4'", "(2,)"), &[0; 9]), "9 bytes of data");
        refused(&file(&header("'<f4'", "(4294967296, 4294967296)"), &[]), "too many elements");
        refused(&file(&header("'<f8'", "(2305843009213693952,)"), &[]), "0 bytes of data");
        refused(&file(&header("'<i4'", &format!("({})", "1,".repeat(65))), &[0; 4]), "dimensions");
        // Empty strings take no bytes in the body, but memory here.
        refused(&file(&header("'|S0'", "(1000000000,)"), &[]), "too much memory");
        refused(&file(&header("'<U1'", "(1,)"), &[0, 0xd8, 0, 0]), "not a Unicode character");
        let large = file(&header("'|u1'", "(2000000,)"), &[0; 2_000_000]);
        refused(&large, "too much memory");
        assert!(read(&large, 2_000_000).is_ok());
    }

    #[test]
    fn columns_become_rows() {
        let text = header("'|u1'", "(2, 1, 3)").replace("False", "True");
        let tensor = read(&file(&text, &[1, 4, 2, 5, 3, 6]), MAX_BYTES).expect("valid");
        assert_eq!(tensor.values::<u8>(), Some(&[1, 2, 3, 4, 5, 6][..]));
    }

    #[test]
    fn strings_that_numpy_cannot_hold_are_refused() {
        let tensor = |values: &[&[u8]]| {
            let mut strings = StringsBuilder::default();
            values.iter().for_each(|value| strings.push(value));
            Tensor::from_strings(Shape::vector(values.len()), strings).expect("a vector")
        };
        assert!(write(&tensor(&[b"a\0"]), MAX_BYTES).is_err());
        assert!(write(&tensor(&[b"a\0b", b""]), MAX_BYTES).is_ok());
        let uneven = tensor(&[&[1; 1000], b"", b"", b""]);
        assert!(write(&uneven, 3999).is_err());
        assert!(write(&uneven, 4000).is_ok());
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        let dims = proptest::collection::vec(0_i64..4, 0..5);
        dims.prop_map(|dims| Shape::new(&dims).expect("small"))
    }

    fn tensors() -> impl Strategy<Value = Tensor> {
        let dtypes = DType::ALL.into_iter().filter(|dtype| *dtype != DType::BFloat16);
        let dtypes = proptest::sample::select(dtypes.collect::<Vec<_>>());
        (dtypes, shapes(), any::<u64>()).prop_map(|(dtype, shape, seed)| {
            let count = shape.elements().expect("small");
            let mut state = seed;
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.to_be_bytes()[0]
            };
            let Some(size) = dtype.size() else {
                let mut strings = StringsBuilder::default();
                for _ in 0..count {
                    let length = random() % 6;
                    let value: Vec<u8> = (0..length).map(|_| random().max(1)).collect();
                    strings.push(&value);
                }
                return Tensor::from_strings(shape, strings).expect("a matching shape");
            };
            let mut bytes = aligned_vec::<u8>(count * size);
            for _ in 0..count * size {
                let byte = random();
                bytes.push(if dtype == DType::Bool { byte % 2 } else { byte });
            }
            Tensor::numeric(dtype, shape, Buffer::new(Arc::new(bytes))).expect("a matching shape")
        })
    }

    fn all_strings(tensor: &Tensor) -> Vec<Vec<u8>> {
        tensor.strings().map_or(Vec::new(), |all| all.iter().map(<[u8]>::to_vec).collect())
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(tensor in tensors()) {
            let bytes = write(&tensor, MAX_BYTES).expect("small");
            let head = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
            prop_assert_eq!(head % 64, 0);
            let back = read(&bytes, MAX_BYTES).expect("valid");
            prop_assert_eq!(back.dtype(), tensor.dtype());
            prop_assert_eq!(back.shape(), tensor.shape());
            prop_assert_eq!(back.bytes(), tensor.bytes());
            prop_assert_eq!(all_strings(&back), all_strings(&tensor));
        }

        #[test]
        fn no_bytes_crash_it(
            tensor in tensors(),
            flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = write(&tensor, MAX_BYTES).expect("small");
            for (at, byte) in flips {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let _ = read(&bytes, MAX_BYTES);
            let _ = read(&bytes[..cut.index(bytes.len())], MAX_BYTES);
        }
    }
}
