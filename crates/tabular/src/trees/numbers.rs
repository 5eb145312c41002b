//! The numbers of rows, thresholds and leaves.

use std::ops::AddAssign;

/// A value of a row.
pub trait RowValue: Copy + AddAssign + PartialOrd {
    /// What a missing value is.
    const NAN: Self;
    /// Whether it is missing.
    fn is_nan(self) -> bool;
}

/// A threshold as nodes have it, whose bits can hold an index.
pub trait Threshold: Copy {
    /// The number whose bits are `index`.
    fn from_index(index: u32) -> Self;
    /// The index that its bits are.
    fn index(self) -> u32;
    /// Its bits.
    fn bits(self) -> u64;
}

/// A value of a leaf, for which nodes have room if it is of the type `T` of thresholds.
pub trait LeafValue<T>: Copy {
    /// The value as a node has it, if there is room for it.
    fn in_node(self) -> Option<T>;
    /// The value that a node has, if there is room for it.
    fn of_node(number: &T) -> Option<&Self>;
    /// Its bits.
    fn bits(self) -> u64;
}

impl RowValue for f32 {
    const NAN: Self = f32::NAN;

    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }
}

impl RowValue for f64 {
    const NAN: Self = f64::NAN;

    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }
}

impl Threshold for f32 {
    fn from_index(index: u32) -> Self {
        f32::from_bits(index)
    }

    fn index(self) -> u32 {
        self.to_bits()
    }

    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Threshold for f64 {
    fn from_index(index: u32) -> Self {
        f64::from_bits(u64::from(index))
    }

    #[allow(clippy::cast_possible_truncation)] // It was made of 32 bits.
    fn index(self) -> u32 {
        self.to_bits() as u32
    }

    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl<T: Threshold> LeafValue<T> for T {
    fn in_node(self) -> Option<T> {
        Some(self)
    }

    fn of_node(number: &T) -> Option<&Self> {
        Some(number)
    }

    fn bits(self) -> u64 {
        Threshold::bits(self)
    }
}

impl LeafValue<f32> for f64 {
    fn in_node(self) -> Option<f32> {
        None
    }

    fn of_node(_number: &f32) -> Option<&Self> {
        None
    }

    fn bits(self) -> u64 {
        self.to_bits()
    }
}
