//! Concatenation of tensors along their 0-th dimension, and padding of their other dimensions.

use std::sync::Arc;

use super::{Buffer, DType, Data, Shape, Strings, StringsBuilder, Tensor, budget};
use crate::error::{Error, Result};

/// Concatenates tensors along the 0-th dimension. If `fill_to` is above the sum of their rows, the
/// first row of the last tensor is repeated to fill the rest (TensorFlow Serving's padding to an
/// allowed batch size).
///
/// # Errors
/// [`Error::precondition`] if dtypes or row shapes differ or one is a scalar.
pub fn concat(parts: &[&Tensor], fill_to: usize) -> Result<Tensor> {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return Err(Error::internal("cannot concatenate zero tensors"));
    };
    let mut rows = 0usize;
    for part in parts {
        let same = part.dtype == first.dtype && part.shape.row_dims() == first.shape.row_dims();
        match part.rows() {
            Some(n) if same => rows += n,
            _ => {
                return Err(Error::precondition(format!(
                    "tensors {part:?} and {first:?} cannot be concatenated: dtypes and shapes \
                     after the 0-th dimension must be equal"
                )));
            }
        }
    }
    let fill = if last.rows() == Some(0) { 0 } else { fill_to.saturating_sub(rows) };
    let shape = first.shape.with_rows(rows + fill);
    let padding_row = last.slice_rows(0..1);
    let pieces = || parts.iter().copied().chain(std::iter::repeat_n(&padding_row, fill));
    if first.dtype == DType::String {
        let strings = || pieces().filter_map(Tensor::strings);
        let count = strings().map(Strings::len).sum();
        let bytes = strings().map(Strings::byte_len).sum();
        let mut builder = StringsBuilder::with_capacity(count, bytes);
        for piece in strings() {
            piece.optional().for_each(|string| builder.push_optional(string));
        }
        return Tensor::from_strings(shape, builder);
    }
    let mut joined = budget::allocated_vec::<u8>(pieces().map(Tensor::byte_len).sum())?;
    for piece in pieces() {
        joined.extend_from_slice(piece.bytes());
    }
    Tensor::numeric(first.dtype, shape, Buffer::new(Arc::new(joined)))
}

/// Pads each dimension after the 0-th at its end, to `row_dims`, with the tensor's first element
/// (TensorFlow Serving's `pad_variable_length_inputs`).
///
/// # Errors
/// [`Error::precondition`] if the rank differs, a dimension would shrink, or the tensor has no
/// first element.
pub fn pad(tensor: &Tensor, row_dims: &[i64]) -> Result<Tensor> {
    let from = tensor.shape.row_dims();
    let fits = from.len() == row_dims.len() && from.iter().zip(row_dims).all(|(a, b)| a <= b);
    if !fits || tensor.rows().is_none() {
        return Err(Error::precondition(format!(
            "{tensor:?} cannot be padded to rows of shape {row_dims:?}"
        )));
    }
    let mut dims = tensor.shape.dims().to_vec();
    dims.truncate(1);
    dims.extend_from_slice(row_dims);
    let shape = Shape::new(&dims)?;
    let total = shape.elements()?;
    let source = PadIndex::new(tensor.shape.dims(), shape.dims());
    if total > 0 && tensor.shape.elements()? == 0 {
        return Err(empty_tensor());
    }
    if let Data::Strings(strings) = &tensor.data {
        let values: Vec<Option<&[u8]>> = strings.optional().collect();
        let mut builder = StringsBuilder::with_capacity(total, strings.byte_len());
        for index in 0..total {
            builder.push_optional(*values.get(source.of(index)).ok_or_else(empty_tensor)?);
        }
        return Tensor::from_strings(shape, builder);
    }
    let size = tensor.dtype.size().unwrap_or(1);
    let bytes = tensor.bytes();
    let mut padded = budget::allocated_vec::<u8>(total * size)?;
    for index in 0..total {
        let at = source.of(index) * size;
        padded.extend_from_slice(bytes.get(at..at + size).ok_or_else(empty_tensor)?);
    }
    Tensor::numeric(tensor.dtype, shape, Buffer::new(Arc::new(padded)))
}

/// TensorFlow Serving's error for a tensor without an element to pad with.
fn empty_tensor() -> Error {
    Error::precondition("Got empty tensor in batch of non-empty tensors.")
}

/// Maps each element of a padded tensor to its source: the same coordinates, or element 0 for
/// padding.
struct PadIndex {
    /// (size in the source, size in the result) of each dimension, last first.
    dims: Vec<(usize, usize)>,
}

impl PadIndex {
    fn new(from: &[i64], to: &[i64]) -> Self {
        let mut dims = Vec::with_capacity(to.len());
        for (&from, &to) in from.iter().zip(to).rev() {
            dims.push((usize::try_from(from).unwrap_or(0), usize::try_from(to).unwrap_or(0)));
        }
        PadIndex { dims }
    }

    /// The source's element for element `index` of the result, both in row-major order.
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
