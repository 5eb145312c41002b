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
    /// The threshold of a leaf.
    const NAN: Self;
    /// The number whose bits are `index`.
    fn from_index(index: u32) -> Self;
    /// The index that its bits are.
    fn index(self) -> u32;
}

/// What a node has of a leaf: its value, or the index of its values.
pub trait LeafInNode<V>: Copy {
    /// That of a node that is no leaf.
    const NONE: Self;
    /// That of a leaf of one value, if there is room for it.
    fn of_value(value: V) -> Option<Self>;
    /// The value of a leaf of one value, if there is room for it.
    fn value(&self) -> Option<&V>;
    /// That of a leaf whose values begin at `start`.
    fn of_start(start: u32) -> Self;
    /// Where the values of a leaf begin.
    fn start(self) -> u32;
}

/// The index of the values of a leaf, for which a node has no room: with thresholds of 32 bits it takes no more than
/// 16 bytes.
#[derive(Clone, Copy)]
pub struct LeafIndex(u32);

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
    const NAN: Self = f32::NAN;

    fn from_index(index: u32) -> Self {
        f32::from_bits(index)
    }

    fn index(self) -> u32 {
        self.to_bits()
    }
}

impl Threshold for f64 {
    const NAN: Self = f64::NAN;

    fn from_index(index: u32) -> Self {
        f64::from_bits(u64::from(index))
    }

    #[allow(clippy::cast_possible_truncation)] // It was made of 32 bits.
    fn index(self) -> u32 {
        self.to_bits() as u32
    }
}

impl<T: Threshold> LeafInNode<T> for T {
    const NONE: Self = T::NAN;

    fn of_value(value: T) -> Option<Self> {
        Some(value)
    }

    fn value(&self) -> Option<&T> {
        Some(self)
    }

    fn of_start(start: u32) -> Self {
        T::from_index(start)
    }

    fn start(self) -> u32 {
        self.index()
    }
}

impl LeafInNode<f64> for LeafIndex {
    const NONE: Self = LeafIndex(0);

    fn of_value(_value: f64) -> Option<Self> {
        None
    }

    fn value(&self) -> Option<&f64> {
        None
    }

    fn of_start(start: u32) -> Self {
        LeafIndex(start)
    }

    fn start(self) -> u32 {
        self.0
    }
}
