//! Tensors that share their 0-th dimension: joined, and padded to fit.

use std::sync::Arc;

use super::{Buffer, DType, Data, Shape, Strings, StringsBuilder, Tensor, aligned_vec};
use crate::error::{Error, Result};

/// Joins tensors along the 0-th dimension. With `fill_to` above the sum of their rows, the rest
/// is filled by repeating the first row of the last tensor (TensorFlow Serving's padding to an
/// allowed batch size).
///
/// # Errors
/// [`Error::precondition`] if dtypes or row shapes differ or one is a scalar.
pub fn concat(parts: &[&Tensor], fill_to: usize) -> Result<Tensor> {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return Err(Error::internal("nothing to join"));
    };
    let mut rows = 0usize;
    for part in parts {
        let same = part.dtype == first.dtype && part.shape.row_dims() == first.shape.row_dims();
        match part.rows() {
            Some(n) if same => rows += n,
            _ => {
                return Err(Error::precondition(format!(
                    "tensors {part:?} and {first:?} can not be joined"
                )));
            }
        }
    }
    let fill = if last.rows() == Some(0) { 0 } else { fill_to.saturating_sub(rows) };
    let shape = first.shape.with_rows(rows + fill);
    let filler = last.slice_rows(0..1);
    let pieces = || {
        let body = parts.iter().copied();
        body.chain(std::iter::repeat_n(&filler, fill))
    };
    if first.dtype == DType::String {
        let strings = || pieces().filter_map(Tensor::strings);
        let count = strings().map(Strings::len).sum();
        let bytes = strings().map(Strings::byte_len).sum();
        let mut builder = StringsBuilder::with_capacity(count, bytes);
        for run in strings() {
            run.iter().for_each(|s| builder.push(s));
        }
        return Tensor::from_strings(shape, builder);
    }
    let mut joined = aligned_vec::<u8>(pieces().map(Tensor::byte_len).sum());
    for piece in pieces() {
        joined.extend_from_slice(piece.bytes());
    }
    Tensor::numeric(first.dtype, shape, Buffer::new(Arc::new(joined)))
}

/// Grows each dimension but the 0-th to `row_dims` by padding at its end with the tensor's own
/// first element (TensorFlow Serving's `pad_variable_length_inputs`).
///
/// # Errors
/// [`Error::precondition`] if the rank differs, a dimension would shrink, or there is no first
/// element to pad with.
pub fn pad(tensor: &Tensor, row_dims: &[i64]) -> Result<Tensor> {
    let from = tensor.shape.row_dims();
    let shrinks = from.len() != row_dims.len() || from.iter().zip(row_dims).any(|(a, b)| a > b);
    if shrinks || tensor.rows().is_none() {
        return Err(Error::precondition(format!(
            "{tensor:?} can not be padded to rows of {row_dims:?}"
        )));
    }
    let mut dims = tensor.shape.dims().to_vec();
    dims.truncate(1);
    dims.extend_from_slice(row_dims);
    let shape = Shape::new(&dims)?;
    let total = shape.elements()?;
    let source = PadIndex::new(tensor.shape.dims(), shape.dims());
    let empty = || Error::precondition("Got empty tensor in batch of non-empty tensors.");
    if total > 0 && tensor.shape.elements()? == 0 {
        return Err(empty());
    }
    if let Data::Strings(strings) = &tensor.data {
        let values: Vec<&[u8]> = strings.iter().collect();
        let mut builder = StringsBuilder::with_capacity(total, strings.byte_len());
        for index in 0..total {
            builder.push(values.get(source.of(index)).ok_or_else(empty)?);
        }
        return Tensor::from_strings(shape, builder);
    }
    let size = tensor.dtype.size().unwrap_or(1);
    let bytes = tensor.bytes();
    let mut padded = aligned_vec::<u8>(total * size);
    for index in 0..total {
        let at = source.of(index) * size;
        padded.extend_from_slice(bytes.get(at..at + size).ok_or_else(empty)?);
    }
    Tensor::numeric(tensor.dtype, shape, Buffer::new(Arc::new(padded)))
}

/// Where each element of a padded tensor comes from: its own place, or element 0 for padding.
struct PadIndex {
    /// (size in the source, size in the result) of each dimension, last first.
    dims: Vec<(usize, usize)>,
}

impl PadIndex {
    fn new(from: &[i64], to: &[i64]) -> Self {
        let size = |d: &i64| usize::try_from(*d).unwrap_or(0);
        let pairs = from.iter().map(size).zip(to.iter().map(size));
        PadIndex { dims: pairs.rev().collect() }
    }

    fn of(&self, index: usize) -> usize {
        let mut rest = index;
        let mut stride = 1;
        let mut at = 0;
        for &(from, to) in &self.dims {
            let coordinate = rest.checked_rem(to).unwrap_or(0);
            rest = rest.checked_div(to).unwrap_or(0);
            if coordinate >= from {
                return 0;
            }
            at += coordinate * stride;
            stride *= from;
        }
        at
    }
}
