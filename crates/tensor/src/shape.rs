//! Shapes.

use std::fmt;

use smallvec::SmallVec;

use crate::error::{Error, Result};

/// The highest rank that libtensorflow supports.
pub const MAX_RANK: usize = 254;

/// The largest product of the dimensions of a tensor without elements, with every zero dimension
/// taken as 1.
const MAX_EXTENT_OF_EMPTY: i64 = 1 << 32;

/// The size of each dimension of a tensor; empty for a scalar.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(pub(super) SmallVec<[i64; 4]>);

impl Shape {
    /// A shape with these dimensions.
    ///
    /// # Errors
    /// [`Error::invalid`] for more than [`MAX_RANK`] dimensions, a negative one, a product that does
    /// not fit an `i64`, or a shape without elements that would have more than 2^32 if every zero
    /// were 1.
    pub fn new(dims: &[i64]) -> Result<Self> {
        if dims.len() > MAX_RANK {
            let count = dims.len();
            let message = format!("a shape has {count} dimensions; at most {MAX_RANK} are allowed");
            return Err(Error::invalid(message));
        }
        let shape = Shape(SmallVec::from_slice(dims));
        // A loop over the rows of [2^40, 0] never ends, and room for each of them does not exist.
        if shape.elements()? == 0 && !shape.has_bounded_extent() {
            return Err(shape.too_large());
        }
        Ok(shape)
    }

    /// Whether the shape is of a reasonable size with every zero dimension taken as 1.
    fn has_bounded_extent(&self) -> bool {
        let product =
            self.0.iter().try_fold(1_i64, |product, &dim| product.checked_mul(dim.max(1)));
        product.is_some_and(|product| product <= MAX_EXTENT_OF_EMPTY)
    }

    /// The shape of a vector of `n` elements.
    #[must_use]
    pub fn vector(n: usize) -> Self {
        Shape(SmallVec::from_slice(&[i64::try_from(n).unwrap_or(i64::MAX)]))
    }

    /// The shape of a scalar.
    #[must_use]
    pub fn scalar() -> Self {
        Shape::default()
    }

    /// The dimensions.
    #[must_use]
    pub fn dims(&self) -> &[i64] {
        &self.0
    }

    /// The number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements: the product of the dimensions.
    ///
    /// # Errors
    /// [`Error::invalid`] for a negative dimension or an overflow.
    pub fn elements(&self) -> Result<usize> {
        let mut product: i64 = 1;
        for &dim in &self.0 {
            if dim < 0 {
                return Err(Error::invalid(format!("shape {self:?} has a negative dimension")));
            }
            product = product.checked_mul(dim).ok_or_else(|| self.too_large())?;
        }
        usize::try_from(product).map_err(|_| self.too_large())
    }

    fn too_large(&self) -> Error {
        Error::invalid(format!("shape {self:?} has too many elements"))
    }

    /// The dimensions after the 0-th; empty for a scalar.
    #[must_use]
    pub fn row_dims(&self) -> &[i64] {
        self.0.get(1..).unwrap_or_default()
    }

    /// This shape with `rows` as its 0-th dimension; a scalar stays a scalar.
    #[must_use]
    pub fn with_rows(&self, rows: usize) -> Self {
        let mut shape = self.clone();
        if let Some(first) = shape.0.first_mut() {
            *first = i64::try_from(rows).unwrap_or(i64::MAX);
        }
        shape
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_dimensions_do_not_hide_huge_ones() {
        for dims in [&[1 << 40, 0][..], &[0, 1 << 40], &[1 << 20, 0, 1 << 20], &[0, i64::MAX, 2]] {
            assert!(Shape::new(dims).is_err(), "{dims:?}");
        }
        for dims in [&[0][..], &[0, 224, 224, 3], &[1 << 20, 0], &[1 << 40]] {
            assert!(Shape::new(dims).is_ok(), "{dims:?}");
        }
    }
}
