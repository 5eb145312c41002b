//! How an array is laid out in rows, for readers that do not read it as a whole.

use super::header::{self, NpyType};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Shape};

/// The layout of an array that is stored row by row, along its first dimension.
pub struct RowLayout {
    /// How many rows there are.
    pub rows: u64,
    /// Size of a row in bytes.
    pub row_bytes: usize,
    /// NumPy's name of the elements' type, as in `<f4`.
    descr: String,
    /// The shape of the whole array.
    shape: Shape,
}

impl RowLayout {
    /// Reads the header of an npy file, which must be all of `bytes`: see [`header_bytes_missing`].
    ///
    /// # Errors
    /// [`Error::invalid`] for anything but the header of an array in row-major order that has at
    /// least one dimension, of a type that tensors can have.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let (header, _) = header::read(bytes)?;
        let Some(rows) = header.shape.dims().first() else {
            return Err(Error::invalid(
                "the npy array is a single value, which has no rows: save it with one dimension",
            ));
        };
        if super::column_major_offsets(&header).is_some() {
            return Err(Error::invalid(
                "the npy array is stored in column-major (Fortran) order, so its rows are not \
                 contiguous: save it with numpy.ascontiguousarray",
            ));
        }
        let rows = u64::try_from(*rows).unwrap_or(0);
        let elements = header.shape.with_rows(1).elements()?;
        let row_bytes = elements.checked_mul(header.element.size()).ok_or_else(|| {
            Error::invalid(format!("the npy array of shape {:?} has too large rows", header.shape))
        })?;
        Ok(RowLayout { rows, row_bytes, descr: descr(header.element), shape: header.shape })
    }

    /// The header of a file with `rows` rows of this array.
    #[must_use]
    pub fn header(&self, rows: u64) -> Vec<u8> {
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        header::write(&self.descr, &self.shape.with_rows(rows), 0)
    }
}

/// How many more bytes than `start`, the start of a file, are needed to have more of its header; 0 if
/// all of it is there, and nothing else.
///
/// # Errors
/// [`Error::invalid`] if the file is not an npy file, or its header is too long.
pub fn header_bytes_missing(start: &[u8]) -> Result<usize> {
    header::missing(start)
}

/// NumPy's name of a type.
fn descr(element: NpyType) -> String {
    let swapped_order = if cfg!(target_endian = "big") { '<' } else { '>' };
    let order = |swapped| match swapped {
        true => swapped_order,
        false if cfg!(target_endian = "big") => '>',
        false => '<',
    };
    match element {
        // Raw bytes have no order.
        NpyType::Number(DType::BFloat16, _) => "|V2".to_owned(),
        NpyType::Number(dtype, false) => header::name(dtype),
        NpyType::Number(dtype, true) => {
            let name = header::name(dtype);
            format!("{swapped_order}{}", name.get(1..).unwrap_or_default())
        }
        NpyType::Bytes(length) => format!("|S{length}"),
        NpyType::Text(length, swapped) => format!("{}U{length}", order(swapped)),
    }
}
