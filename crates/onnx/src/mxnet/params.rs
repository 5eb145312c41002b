//! Reads the arrays of a checkpoint: `P-NNNN.params`, which `mx.nd.save` writes.
//!
//! The file is a list of arrays and a list of their names. An array has a mark of its version,
//! its shape, where it was (a device, which does not matter here), its type and its values, all
//! little-endian.

use std::collections::HashMap;

use bytes::{Buf, Bytes};

use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Code, Error, Result};

/// What a file of arrays begins with.
const FILE: u64 = 0x112;

/// What an array begins with: of the first version, of those that may be sparse, and of those
/// whose shape may be unknown. What begins otherwise is older still.
const V1: u32 = 0xF993_FAC8;
const V2: u32 = 0xF993_FAC9;
const V3: u32 = 0xF993_FACA;

/// More dimensions than that no array of MXNet has.
const MOST_DIMENSIONS: usize = 32;

/// An array of numbers.
pub(super) struct Array {
    pub(super) dtype: DType,
    pub(super) dims: Vec<i64>,
    /// In the file's memory, little-endian.
    pub(super) values: Bytes,
}

/// The arrays of a file by name, without the `arg:` or `aux:` before it.
///
/// # Errors
/// [`Code::DataLoss`] if the file is damaged; [`Code::Unimplemented`] for arrays that are sparse
/// or of another type.
pub(super) fn read(file: Bytes) -> Result<HashMap<String, Array>> {
    let mut reader = Reader { rest: file };
    if reader.u64()? != FILE {
        return Err(broken("it does not begin as a file of arrays does"));
    }
    reader.u64()?; // Kept free.
    let count = reader.u64()?;
    let mut arrays = Vec::new();
    for _ in 0..count {
        // Each takes four bytes at least, so a number that lies ends soon.
        arrays.push(reader.array()?);
    }
    if reader.u64()? != count {
        return Err(broken("it has not as many names as arrays"));
    }
    let mut named = HashMap::new();
    for array in arrays {
        let name = reader.name()?;
        let plain = name.split_once(':').map_or(name.as_str(), |(_, plain)| plain).to_owned();
        if let Some(array) = array {
            named.insert(plain, array);
        }
    }
    Ok(named)
}

struct Reader {
    rest: Bytes,
}

impl Reader {
    fn take(&mut self, count: usize) -> Result<Bytes> {
        if count > self.rest.len() {
            return Err(broken("it ends in the middle"));
        }
        Ok(self.rest.split_to(count))
    }

    fn u32(&mut self) -> Result<u32> {
        self.take(4).map(|mut bytes| bytes.get_u32_le())
    }

    fn u64(&mut self) -> Result<u64> {
        self.take(8).map(|mut bytes| bytes.get_u64_le())
    }

    fn size(&mut self) -> Result<i64> {
        let size = i64::try_from(self.u64()?).ok().filter(|size| *size >= 0);
        size.ok_or_else(|| broken("a dimension is negative"))
    }

    fn name(&mut self) -> Result<String> {
        let length = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| broken("a name is not text"))
    }

    /// The next array; `None` for one without values.
    fn array(&mut self) -> Result<Option<Array>> {
        let mark = self.u32()?;
        let dims = match mark {
            V1 => self.wide_shape()?,
            V2 | V3 => {
                if self.u32()? != 0 {
                    let message = "it has sparse arrays, which can not be served: save them dense";
                    return Err(Error::new(Code::Unimplemented, message));
                }
                self.wide_shape()?
            }
            rank => self.old_shape(rank)?,
        };
        // In the last version an array without dimensions is a number.
        let Some(dims) = dims.filter(|dims| mark == V3 || !dims.is_empty()) else {
            return Ok(None);
        };
        self.take(8)?; // The device.
        let dtype = dtype(self.u32()?)?;
        let size = dims.iter().try_fold(i64::try_from(dtype.size().unwrap_or(1)).unwrap_or(1), {
            |size, &dim| size.checked_mul(dim)
        });
        let size = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(usize::MAX);
        Ok(Some(Array { dtype, dims, values: self.take(size)? }))
    }

    /// `None` if the shape is not known.
    fn wide_shape(&mut self) -> Result<Option<Vec<i64>>> {
        let rank = self.u32()?;
        if rank == u32::MAX {
            return Ok(None);
        }
        (0..checked_rank(rank)?).map(|_| self.size()).collect::<Result<_>>().map(Some)
    }

    fn old_shape(&mut self, rank: u32) -> Result<Option<Vec<i64>>> {
        (0..checked_rank(rank)?).map(|_| self.u32().map(i64::from)).collect::<Result<_>>().map(Some)
    }
}

fn checked_rank(rank: u32) -> Result<usize> {
    let rank = usize::try_from(rank).ok().filter(|rank| *rank <= MOST_DIMENSIONS);
    rank.ok_or_else(|| broken("an array has too many dimensions"))
}

fn dtype(flag: u32) -> Result<DType> {
    Ok(match flag {
        0 => DType::Float,
        1 => DType::Double,
        2 => DType::Half,
        3 => DType::UInt8,
        4 => DType::Int32,
        5 => DType::Int8,
        6 => DType::Int64,
        other => {
            let message = format!("it has an array of type number {other}, which is not supported");
            return Err(Error::new(Code::Unimplemented, message));
        }
    })
}

fn broken(what: &str) -> Error {
    Error::new(Code::DataLoss, format!("the parameters are damaged: {what}"))
}
