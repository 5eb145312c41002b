//! Reads the arrays of a checkpoint: `P-NNNN.params`, which `mx.nd.save` writes.
//!
//! The file is a list of arrays and a list of their names. An array has a magic number for the
//! version of its format, its shape, its device (which does not matter here), its type and its
//! values, all little-endian.

use std::collections::HashMap;

use bytes::{Buf, Bytes};

use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Code, Error, Result};

/// The magic number of a file of arrays (`kMXAPINDArrayListMagic`).
const LIST_MAGIC: u64 = 0x112;

/// The magic numbers of an array: of the first version with 64-bit dimensions, of the version that
/// added sparse arrays, and of the version that added unknown shapes. In older files an array
/// begins with its rank.
const ARRAY_V1_MAGIC: u32 = 0xF993_FAC8;
const ARRAY_V2_MAGIC: u32 = 0xF993_FAC9;
const ARRAY_V3_MAGIC: u32 = 0xF993_FACA;

/// `kDefaultStorage`: the array is dense.
const DENSE_STORAGE: u32 = 0;

/// The rank of an unknown shape.
const UNKNOWN_RANK: u32 = u32::MAX;

/// The largest rank of an array in MXNet.
const MAX_RANK: usize = 32;

/// The length of a device: its type and its number.
const DEVICE_LENGTH: usize = 8;

/// An array of numbers.
pub(super) struct ParamArray {
    pub(super) dtype: DType,
    pub(super) dims: Vec<i64>,
    /// Little-endian, in the file's memory.
    pub(super) values: Bytes,
}

/// The arrays of a file by name, without the prefix `arg:` or `aux:`.
///
/// # Errors
/// [`Code::DataLoss`] if the file is invalid; [`Code::Unimplemented`] for arrays that are sparse
/// or have another element type.
pub(super) fn read(file: Bytes) -> Result<HashMap<String, ParamArray>> {
    let mut reader = ParamsReader { rest: file };
    if reader.u64()? != LIST_MAGIC {
        return Err(invalid_params(
            "the file does not begin with the magic number of an array list",
        ));
    }
    reader.u64()?; // Reserved.
    let count = reader.u64()?;
    // An array takes at least four bytes, so a wrong count soon reaches the end of the file.
    let mut arrays = Vec::new();
    for _ in 0..count {
        arrays.push(reader.array()?);
    }
    if reader.u64()? != count {
        return Err(invalid_params("the number of names differs from the number of arrays"));
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

struct ParamsReader {
    rest: Bytes,
}

impl ParamsReader {
    fn take(&mut self, count: usize) -> Result<Bytes> {
        if count > self.rest.len() {
            return Err(invalid_params("the file is truncated"));
        }
        Ok(self.rest.split_to(count))
    }

    fn u32(&mut self) -> Result<u32> {
        self.take(size_of::<u32>()).map(|mut bytes| bytes.get_u32_le())
    }

    fn u64(&mut self) -> Result<u64> {
        self.take(size_of::<u64>()).map(|mut bytes| bytes.get_u64_le())
    }

    fn dimension(&mut self) -> Result<i64> {
        i64::try_from(self.u64()?).map_err(|_| invalid_params("a dimension is negative"))
    }

    fn name(&mut self) -> Result<String> {
        let length = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        let bytes = self.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| invalid_params("a name is not valid UTF-8"))
    }

    /// The next array; `None` for one without values.
    fn array(&mut self) -> Result<Option<ParamArray>> {
        let magic = self.u32()?;
        let dims = match magic {
            ARRAY_V1_MAGIC => self.shape()?,
            ARRAY_V2_MAGIC | ARRAY_V3_MAGIC => {
                if self.u32()? != DENSE_STORAGE {
                    let message = "the parameters have sparse arrays, which are not supported: \
                                   save them as dense arrays";
                    return Err(Error::new(Code::Unimplemented, message));
                }
                self.shape()?
            }
            rank => Some(self.shape_of_u32(rank)?),
        };
        // An array of rank 0 is a scalar in the last version, and has no values in earlier ones.
        let Some(dims) = dims.filter(|dims| magic == ARRAY_V3_MAGIC || !dims.is_empty()) else {
            return Ok(None);
        };
        self.take(DEVICE_LENGTH)?;
        let dtype = dtype(self.u32()?)?;
        let values = self.take(byte_length(dtype, &dims))?;
        Ok(Some(ParamArray { dtype, dims, values }))
    }

    /// A rank and dimensions of 64 bits; `None` if the shape is unknown.
    fn shape(&mut self) -> Result<Option<Vec<i64>>> {
        let rank = self.u32()?;
        if rank == UNKNOWN_RANK {
            return Ok(None);
        }
        (0..checked_rank(rank)?).map(|_| self.dimension()).collect::<Result<_>>().map(Some)
    }

    /// Dimensions of 32 bits.
    fn shape_of_u32(&mut self, rank: u32) -> Result<Vec<i64>> {
        (0..checked_rank(rank)?).map(|_| self.u32().map(i64::from)).collect()
    }
}

fn checked_rank(rank: u32) -> Result<usize> {
    let rank = usize::try_from(rank).ok().filter(|rank| *rank <= MAX_RANK);
    rank.ok_or_else(|| invalid_params(&format!("an array has more than {MAX_RANK} dimensions")))
}

/// The length of an array's values; `usize::MAX`, which no file has, if it overflows.
fn byte_length(dtype: DType, dims: &[i64]) -> usize {
    let element_size = i64::try_from(dtype.size().unwrap_or(1)).unwrap_or(1);
    let length = dims.iter().try_fold(element_size, |length, &dim| length.checked_mul(dim));
    length.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX)
}

/// MXNet's number of an element type (`mshadow::TypeFlag`); `None` for a dtype that is not supported.
fn type_flag(dtype: DType) -> Option<u32> {
    match dtype {
        DType::Float => Some(0),
        DType::Double => Some(1),
        DType::Half => Some(2),
        DType::UInt8 => Some(3),
        DType::Int32 => Some(4),
        DType::Int8 => Some(5),
        DType::Int64 => Some(6),
        DType::BFloat16
        | DType::Int16
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64
        | DType::Bool
        | DType::Complex64
        | DType::Complex128
        | DType::String => None,
    }
}

/// The dtype for MXNet's number of an element type.
fn dtype(number: u32) -> Result<DType> {
    let dtype = DType::ALL.into_iter().find(|dtype| type_flag(*dtype) == Some(number));
    dtype.ok_or_else(|| {
        let message = format!(
            "the parameters have an array of MXNet's type number {number}, which is not supported"
        );
        Error::new(Code::Unimplemented, message)
    })
}

fn invalid_params(reason: &str) -> Error {
    Error::new(Code::DataLoss, format!("the parameters are invalid: {reason}"))
}
