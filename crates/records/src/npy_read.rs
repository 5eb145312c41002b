//! The rows of an npy file, in chunks that are npy files themselves.

use std::io::Read;

use bytes::Bytes;
use tensorserve_codec::npy::{self, RowLayout};
use tensorserve_tensor::error::{Code, Error, Result};

use crate::split::input::read_error;

/// The most data that is read at once, so that memory grows with the data that is there, not with
/// what the header says.
const BLOCK: usize = 1 << 20;

/// Consecutive rows of an array.
#[derive(Clone, Debug)]
pub struct NpyChunk {
    /// A complete npy file of the shape `[rows, …]`.
    pub bytes: Bytes,
    /// How many rows it has.
    pub rows: usize,
    /// The index of the first one in the whole array, from 0.
    pub first_row: u64,
}

/// Reads an array row by row, along its first dimension.
pub struct NpyRows<R> {
    source: R,
    layout: RowLayout,
    next_row: u64,
    /// The byte of the object that is read next.
    at: u64,
    failed: Option<Error>,
}

impl<R: Read> NpyRows<R> {
    /// Reads the header of the decompressed object that `source` gives.
    ///
    /// # Errors
    /// [`Error::invalid`] for anything but an npy array in row-major order that has rows, or the
    /// error of the source.
    pub fn open(mut source: R) -> Result<Self> {
        let mut header = Vec::new();
        loop {
            let wanted = npy::header_bytes_missing(&header)?;
            if wanted == 0 {
                break;
            }
            let read = read_up_to(&mut source, wanted, &mut header);
            if read.map_err(|error| read_error(error, header.len() as u64))? < wanted {
                let length = header.len();
                return Err(Error::new(
                    Code::DataLoss,
                    format!("the npy file is truncated in its header, after {length} bytes"),
                ));
            }
        }
        let layout = RowLayout::read(&header)?;
        let at = header.len() as u64;
        Ok(NpyRows { source, layout, next_row: 0, at, failed: None })
    }

    /// How many rows the array has.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.layout.rows
    }

    /// Size of a row in bytes.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.layout.row_bytes
    }

    /// The next rows; `None` behind the last one. At most `max_rows`, whose data together takes at
    /// most `max_bytes` without the header, but at least one.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if the file is shorter than its header says, [`Error::invalid`] if it is
    /// longer, or the error of the source. Every later call returns the same error.
    pub fn next_chunk(&mut self, max_rows: usize, max_bytes: usize) -> Result<Option<NpyChunk>> {
        if let Some(error) = &self.failed {
            return Err(error.duplicate());
        }
        let chunk = self.read_rows(max_rows, max_bytes);
        self.failed = chunk.as_ref().err().map(Error::duplicate);
        chunk
    }

    fn read_rows(&mut self, max_rows: usize, max_bytes: usize) -> Result<Option<NpyChunk>> {
        let RowLayout { rows: all, row_bytes, .. } = self.layout;
        let left = all.saturating_sub(self.next_row);
        if left == 0 {
            return self.check_end();
        }
        let fitting = max_bytes.checked_div(row_bytes).unwrap_or(usize::MAX);
        let wanted = max_rows.min(fitting).max(1);
        let rows = usize::try_from(left).unwrap_or(usize::MAX).min(wanted);
        let Some(size) = row_bytes.checked_mul(rows) else {
            return Err(Error::invalid("a row of the npy array is too large for this machine"));
        };
        let mut bytes = self.layout.header(rows as u64);
        let data_start = bytes.len();
        let target = data_start.saturating_add(size);
        while bytes.len() < target {
            let wanted = BLOCK.min(target - bytes.len());
            let at = self.at.saturating_add((bytes.len() - data_start) as u64);
            let read = read_up_to(&mut self.source, wanted, &mut bytes);
            if read.map_err(|error| read_error(error, at))? < wanted {
                return Err(self.truncated(bytes.len() - data_start));
            }
        }
        let first_row = self.next_row;
        self.next_row = first_row.saturating_add(rows as u64);
        self.at = self.at.saturating_add(size as u64);
        Ok(Some(NpyChunk { bytes: bytes.into(), rows, first_row }))
    }

    /// The file ended with `read` bytes of the next rows.
    fn truncated(&self, read: usize) -> Error {
        let whole = read.checked_div(self.layout.row_bytes).unwrap_or(0);
        let row = self.next_row.saturating_add(whole as u64);
        let at = self.at.saturating_add(read as u64);
        let all = self.layout.rows;
        Error::new(
            Code::DataLoss,
            format!("the npy file is truncated in row {row} of {all}: it ends after {at} bytes"),
        )
    }

    fn check_end(&mut self) -> Result<Option<NpyChunk>> {
        let mut byte = Vec::new();
        let at = self.at;
        let read = read_up_to(&mut self.source, 1, &mut byte);
        if read.map_err(|error| read_error(error, at))? > 0 {
            let all = self.layout.rows;
            return Err(Error::invalid(format!(
                "the npy file has more data than the {all} rows of its header, which end at byte {at}"
            )));
        }
        Ok(None)
    }
}

/// Appends `count` bytes to `out`, or fewer at the end of the source, and returns how many.
fn read_up_to(source: &mut impl Read, count: usize, out: &mut Vec<u8>) -> std::io::Result<usize> {
    out.reserve(count);
    source.by_ref().take(count as u64).read_to_end(out)
}

#[cfg(test)]
mod tests {
    use std::io;

    use proptest::prelude::*;
    use tensorserve_tensor::{Data, Shape, Tensor, aligned_vec, concat};

    use super::*;

    fn matrix(rows: usize, columns: usize) -> Tensor {
        let mut values = aligned_vec::<f32>(rows * columns);
        for index in 0..rows * columns {
            values.push(index as f32 * 0.5);
        }
        let shape = [i64::try_from(rows).unwrap(), i64::try_from(columns).unwrap()];
        Tensor::from_vec(Shape::new(&shape).unwrap(), values).unwrap()
    }

    fn file(tensor: &Tensor) -> Vec<u8> {
        npy::write(tensor, 1 << 20).unwrap()
    }

    fn chunks(file: &[u8], max_rows: usize, max_bytes: usize) -> Result<Vec<NpyChunk>> {
        let mut rows = NpyRows::open(file)?;
        let mut all = Vec::new();
        while let Some(chunk) = rows.next_chunk(max_rows, max_bytes)? {
            all.push(chunk);
        }
        Ok(all)
    }

    fn message(file: &[u8]) -> String {
        chunks(file, 2, 100).unwrap_err().message().to_owned()
    }

    /// A version 1 file with this dictionary.
    fn with_header(dictionary: &str, data: &[u8]) -> Vec<u8> {
        let mut out = b"\x93NUMPY\x01\x00".to_vec();
        out.extend_from_slice(&u16::try_from(dictionary.len()).unwrap().to_le_bytes());
        out.extend_from_slice(dictionary.as_bytes());
        out.extend_from_slice(data);
        out
    }

    #[test]
    fn rows_come_in_complete_files() {
        let whole = matrix(5, 3);
        let found = chunks(&file(&whole), 2, 1000).unwrap();
        let sizes: Vec<_> = found.iter().map(|chunk| (chunk.first_row, chunk.rows)).collect();
        assert_eq!(sizes, [(0, 2), (2, 2), (4, 1)]);
        assert_eq!(found[0].bytes, file(&whole.slice_rows(0..2)));
        assert_eq!(found[2].bytes, file(&whole.slice_rows(4..5)));
        let by_bytes = chunks(&file(&whole), 100, 25).unwrap();
        assert_eq!(by_bytes.iter().map(|chunk| chunk.rows).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(chunks(&file(&whole), 0, 0).unwrap().len(), 5);
        assert_eq!(chunks(&file(&matrix(0, 3)), 2, 100).unwrap().len(), 0);
        assert_eq!(chunks(&file(&matrix(5, 0)), 2, 100).unwrap().len(), 3);
    }

    #[test]
    fn text_and_byte_orders_are_kept() {
        let dictionary = "{'descr': '>i2', 'fortran_order': False, 'shape': (3L,), }";
        let found = chunks(&with_header(dictionary, &[0, 1, 0, 2, 0, 3]), 2, 100).unwrap();
        let tensor = npy::read(&found[0].bytes, 1000).unwrap();
        assert_eq!(tensor.values::<i16>().unwrap(), [1, 2]);
        let dictionary = "{'descr': '<U1', 'fortran_order': False, 'shape': (2, 1), }";
        let found = chunks(&with_header(dictionary, b"a\0\0\0b\0\0\0"), 1, 100).unwrap();
        let tensor = npy::read(&found[1].bytes, 1000).unwrap();
        assert!(matches!(tensor.data(), Data::Strings(strings) if strings.iter().eq([b"b"])));
    }

    #[test]
    fn what_cannot_be_read_by_rows_is_refused() {
        let of = |text: &str| message(&with_header(text, &[0; 100]));
        let text = of("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }");
        assert!(text.contains("column-major"), "{text}");
        let text = of("{'descr': '<f4', 'fortran_order': False, 'shape': (), }");
        assert!(text.contains("no rows"), "{text}");
        let text = of("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }");
        assert!(text.contains("Python objects"), "{text}");
        let huge = "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 4611686018427387904), }";
        assert!(chunks(&with_header(huge, &[0; 100]), 1, 1).is_err());
        assert!(message(b"PK\x03\x04 a zip file").contains("not an npy array"));
    }

    #[test]
    fn a_vector_in_either_order_has_rows() {
        let dictionary = "{'descr': '|u1', 'fortran_order': True, 'shape': (3, 1), }";
        let found = chunks(&with_header(dictionary, &[1, 2, 3]), 2, 100).unwrap();
        assert_eq!(npy::read(&found[1].bytes, 100).unwrap().values::<u8>().unwrap(), [3]);
    }

    #[test]
    fn a_file_of_another_length_is_refused() {
        let whole = file(&matrix(5, 3));
        let text = message(&whole[..whole.len() - 13]);
        assert_eq!(text, "the npy file is truncated in row 3 of 5: it ends after 175 bytes");
        let text = message(&[&whole[..], b"x"].concat());
        assert!(text.contains("more data than the 5 rows"), "{text}");
        for length in 0..128 {
            assert!(message(&whole[..length]).contains("npy"), "{length}");
        }
    }

    #[test]
    fn the_size_in_the_header_takes_no_memory() {
        let dictionary = "{'descr': '<f8', 'fortran_order': False, 'shape': (9, 100000000000), }";
        let text = message(&with_header(dictionary, &[0; 100]));
        assert!(text.contains("truncated in row 0 of 9"), "{text}");
    }

    #[test]
    fn errors_of_the_source_are_told() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("gone"))
            }
        }
        let whole = file(&matrix(5, 3));
        let mut rows = NpyRows::open(whole[..140].chain(Failing)).unwrap();
        let error = rows.next_chunk(2, 100).unwrap_err();
        assert!(error.message().ends_with("gone"), "{error}");
        assert_eq!(rows.next_chunk(2, 100).unwrap_err().message(), error.message());
    }

    proptest! {
        #[test]
        fn chunks_together_are_the_whole(rows in 1usize..20, columns in 1usize..5, max in 1usize..7) {
            let whole = matrix(rows, columns);
            let parts = chunks(&file(&whole), max, 40).unwrap();
            let tensors: Vec<Tensor> =
                parts.iter().map(|part| npy::read(&part.bytes, 1 << 20).unwrap()).collect();
            let joined = concat(&tensors.iter().collect::<Vec<_>>(), rows).unwrap();
            prop_assert_eq!(joined.values::<f32>(), whole.values::<f32>());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, at in 0usize..200, byte: u8) {
            let _ = chunks(&bytes, 2, 100);
            let mut damaged = file(&matrix(5, 3));
            if let Some(one) = damaged.get_mut(at) {
                *one = byte;
            }
            let _ = chunks(&damaged, 2, 100);
        }
    }
}
