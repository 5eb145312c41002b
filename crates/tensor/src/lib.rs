//! Tensors: element types, shapes, shared aligned memory, and signatures.
//!
//! A [`Tensor`] is a view of shared memory that is cheap to clone: a batch's output is split among
//! its requests, and a request's input reaches the runtime, without a copy. Numeric data is one
//! buffer aligned to 64 bytes, as libtensorflow requires to use it in place. Strings, which may
//! hold any bytes, are concatenated in one buffer beside their end offsets.
//!
//! Nothing here depends on wire formats, models or runtimes.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use half::{bf16, f16};

use crate::error::{Error, Result};

pub use self::dependence::{RowDependence, RowFinding};
pub use self::dtype::{DType, JsonKind};
pub use self::memory::{ALIGNMENT, AlignedVec, Buffer, Memory, aligned_vec};
pub use self::rows::{concat, pad};
pub use self::shape::{MAX_RANK, Shape};
pub use self::signature::{
    CooSparse, DeclaredShape, ImageEncoding, NumberTexts, Quantization, Signature, TensorSpec,
};
pub use self::strings::{STRING_OVERHEAD, Strings, StringsBuilder};

pub mod budget;
mod dependence;
mod dtype;
pub mod error;
mod memory;
pub mod names;
pub mod priority;
pub mod random;
mod rows;
pub mod same;
mod shape;
pub mod sharded;
mod signature;
mod strings;

/// The elements of a tensor.
#[derive(Clone)]
pub enum Data {
    /// Elements of a fixed size, native byte order, row-major.
    Numeric(Buffer),
    /// Byte strings, row-major.
    Strings(Strings),
}

/// A Rust type that is the element of a tensor.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The dtype of tensors of this type.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })*
    };
}

element! {
    f32 => Float, f64 => Double, i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    u8 => UInt8, u16 => UInt16, u32 => UInt32, u64 => UInt64,
}

/// An n-dimensional array: element type, shape and a view of shared memory.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Data,
}

/// Up to this magnitude, inputs are ordinary: sums of products of larger ones may overflow in one order and not in another,
/// and where they do, another way to compute the same may have NaN or not.
pub const LARGEST_ORDINARY_FLOAT: f32 = 1e12;

impl Tensor {
    /// A tensor of fixed-size elements over `buffer`.
    ///
    /// # Errors
    /// [`Error::invalid`] if the buffer's size does not match dtype and shape, or the dtype is
    /// string.
    pub fn numeric(dtype: DType, shape: Shape, buffer: Buffer) -> Result<Self> {
        let size =
            dtype.size().ok_or_else(|| Error::invalid("a string tensor has no fixed-size data"))?;
        let expected = shape.elements()?.checked_mul(size);
        let actual = buffer.as_slice().len();
        if expected != Some(actual) {
            return Err(Error::invalid(format!(
                "{actual} bytes do not make a {dtype} tensor of shape {shape:?}"
            )));
        }
        Ok(Tensor { dtype, shape, data: Data::Numeric(buffer) })
    }

    /// A tensor of the elements of `values`.
    ///
    /// # Errors
    /// [`Error::invalid`] if their number does not match the shape.
    pub fn from_vec<T: Element>(shape: Shape, values: AlignedVec<T>) -> Result<Self> {
        Tensor::numeric(T::DTYPE, shape, Buffer::new(Arc::new(values)))
    }

    /// A bool tensor; each value is 0 or 1.
    ///
    /// # Errors
    /// [`Error::invalid`] if the number of values does not match the shape.
    pub fn from_bools(shape: Shape, values: AlignedVec<u8>) -> Result<Self> {
        Tensor::numeric(DType::Bool, shape, Buffer::new(Arc::new(values)))
    }

    /// A tensor of the fixed-size elements in `content`, in native byte order. They are copied only
    /// if they are not aligned to [`ALIGNMENT`], or are bools other than 0 and 1: the runtimes expect
    /// these, and any other byte is 1.
    ///
    /// # Errors
    /// [`Error::invalid`] if the size of the content does not match dtype and shape, or the dtype is
    /// string; those of [`budget::reserve`] for a copy.
    pub fn from_bytes(dtype: DType, shape: Shape, content: Bytes) -> Result<Self> {
        let is_bool = dtype == DType::Bool && content.iter().any(|byte| *byte > 1);
        let is_aligned = content.as_ptr().addr().is_multiple_of(ALIGNMENT);
        if is_aligned && !is_bool {
            return Tensor::numeric(dtype, shape, Buffer::new(Arc::new(content)));
        }
        let mut bytes = budget::reserved_vec::<u8>(content.len())?;
        match is_bool {
            true => content.iter().for_each(|byte| bytes.push(u8::from(*byte != 0))),
            false => bytes.extend_from_slice(&content),
        }
        Tensor::numeric(dtype, shape, Buffer::new(Arc::new(bytes)))
    }

    /// A tensor of byte strings.
    ///
    /// # Errors
    /// [`Error::invalid`] if their number does not match the shape.
    pub fn from_strings(shape: Shape, values: StringsBuilder) -> Result<Self> {
        let count = values.len();
        if shape.elements()? != count {
            return Err(Error::invalid(format!(
                "{count} strings do not make a tensor of shape {shape:?}"
            )));
        }
        Ok(Tensor { dtype: DType::String, shape, data: Data::Strings(Strings::new(values)) })
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The elements.
    #[must_use]
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The elements as values of `T`; `None` if the tensor has another type.
    #[must_use]
    pub fn values<T: Element>(&self) -> Option<&[T]> {
        match &self.data {
            Data::Numeric(buffer) if self.dtype == T::DTYPE => {
                bytemuck::try_cast_slice(buffer.as_slice()).ok()
            }
            Data::Numeric(_) | Data::Strings(_) => None,
        }
    }

    /// Whether the elements are real floats, of any size, of at most this magnitude: no NaN, and no infinity.
    #[must_use]
    pub fn has_floats_within(&self, largest: f32) -> bool {
        // NaN is not within.
        if let Some(all) = self.values::<f32>() {
            return all.iter().all(|value| value.abs() <= largest);
        }
        self.every_float(|value| value.abs() <= f64::from(largest)).unwrap_or(false)
    }

    /// Whether `is_so` is true of every element, up to the first of which it is not; `None` unless the elements are real
    /// floats.
    pub(crate) fn every_float(&self, mut is_so: impl FnMut(f64) -> bool) -> Option<bool> {
        let mut halves = self.bytes().as_chunks::<2>().0.iter().copied();
        Some(match self.dtype {
            DType::Float => self.values::<f32>()?.iter().all(|&it| is_so(f64::from(it))),
            DType::Double => self.values::<f64>()?.iter().all(|&it| is_so(it)),
            DType::Half => halves.all(|it| is_so(f16::from_ne_bytes(it).to_f64())),
            DType::BFloat16 => halves.all(|it| is_so(bf16::from_ne_bytes(it).to_f64())),
            DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64
            | DType::Bool
            | DType::Complex64
            | DType::Complex128
            | DType::String => return None,
        })
    }

    /// The strings; `None` if the tensor has another type.
    #[must_use]
    pub fn strings(&self) -> Option<&Strings> {
        match &self.data {
            Data::Strings(strings) => Some(strings),
            Data::Numeric(_) => None,
        }
    }

    /// The bytes of fixed-size elements; empty for strings.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Numeric(buffer) => buffer.as_slice(),
            Data::Strings(_) => &[],
        }
    }

    /// The 0-th dimension; `None` for a scalar.
    #[must_use]
    pub fn rows(&self) -> Option<usize> {
        usize::try_from(*self.shape.dims().first()?).ok()
    }

    /// The size of the elements in bytes.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        match &self.data {
            Data::Numeric(buffer) => buffer.as_slice().len(),
            Data::Strings(strings) => strings.byte_len(),
        }
    }

    /// The size of the shared memory that this view keeps alive, in bytes: that of a whole batch,
    /// for example.
    #[must_use]
    pub fn kept_len(&self) -> usize {
        match &self.data {
            Data::Numeric(buffer) => buffer.kept_len(),
            Data::Strings(strings) => strings.kept_len(),
        }
    }

    /// The rows `range` of the 0-th dimension, as a view. A scalar is returned unchanged; a range
    /// past the end is truncated.
    #[must_use]
    pub fn slice_rows(&self, range: Range<usize>) -> Self {
        let Some(rows) = self.rows() else {
            return self.clone();
        };
        let end = range.end.min(rows);
        let start = range.start.min(end);
        let data = match &self.data {
            Data::Numeric(buffer) => {
                let row = buffer.as_slice().len().checked_div(rows).unwrap_or(0);
                Data::Numeric(buffer.slice(start * row..end * row))
            }
            Data::Strings(strings) => {
                let row = strings.len().checked_div(rows).unwrap_or(0);
                Data::Strings(strings.slice(start * row..end * row))
            }
        };
        Tensor { dtype: self.dtype, shape: self.shape.with_rows(end - start), data }
    }

    /// A tensor with a new 0-th dimension of size 1, whose only row is this tensor, as a view.
    #[must_use]
    pub fn as_row(&self) -> Self {
        let mut row = self.clone();
        row.shape.0.insert(0, 1);
        row
    }

    /// The elements of this tensor in another shape, as a view.
    ///
    /// # Errors
    /// [`Error::invalid`] if the shape has another number of elements.
    pub fn reshaped(&self, shape: Shape) -> Result<Self> {
        if shape.elements()? != self.shape.elements()? {
            return Err(Error::invalid(format!("{:?} has no shape {shape:?}", self.shape)));
        }
        Ok(Tensor { shape, ..self.clone() })
    }

    /// Row `index` without the 0-th dimension, as a view.
    #[must_use]
    pub fn row(&self, index: usize) -> Self {
        let mut row = self.slice_rows(index..index.saturating_add(1));
        if !row.shape.0.is_empty() {
            row.shape.0.remove(0);
        }
        row
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row for each value, with elements of `dtype`.
    fn column(dtype: DType, values: &[f64]) -> Tensor {
        let mut bytes = Vec::new();
        for &value in values {
            match dtype.size() {
                Some(8) => bytes.extend(value.to_ne_bytes()),
                Some(4) => bytes.extend((value as f32).to_ne_bytes()),
                _ if dtype == DType::Half => bytes.extend(f16::from_f64(value).to_ne_bytes()),
                _ => bytes.extend(bf16::from_f64(value).to_ne_bytes()),
            }
        }
        let shape = Shape(vec![values.len() as i64].into());
        Tensor::from_bytes(dtype, shape, bytes.into()).expect("a column")
    }

    #[test]
    fn floats_of_all_sizes_are_within_a_magnitude() {
        for dtype in [DType::Float, DType::Double, DType::Half, DType::BFloat16] {
            let is_within = |values: &[f64]| column(dtype, values).has_floats_within(256.0);
            assert!(is_within(&[]), "{dtype}");
            assert!(is_within(&[-0.0, 1.5, -256.0, 256.0]), "{dtype}");
            for beyond in [258.0, -258.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
                assert!(!is_within(&[1.0, beyond]), "{dtype} {beyond}");
                assert!(!is_within(&[beyond, 1.0]), "{dtype} {beyond}");
            }
        }
        for dtype in [DType::Int64, DType::Complex64] {
            assert!(!column(dtype, &[]).has_floats_within(256.0), "{dtype}");
        }
    }
}
