//! A tree as a file stores it, in either notation.

/// A tree as a file stores it.
#[derive(Debug, Default)]
pub(super) struct LightgbmTree {
    /// The nodes that split; the first is the root. None if the tree is a single leaf.
    pub(super) splits: Vec<SplitNode>,
    /// The values of the leaves.
    pub(super) leaves: Vec<f64>,
    /// The linear models of the leaves; empty if the tree has none.
    pub(super) linear: Vec<LinearLeaf>,
    /// The bits of all category sets.
    pub(super) words: Vec<u32>,
}

/// A node that splits.
#[derive(Debug)]
pub(super) struct SplitNode {
    pub(super) feature: usize,
    pub(super) condition: SplitCondition,
    /// The index of the left child: of a split, or, if it is negative, of the leaf `!index`.
    pub(super) left: i64,
    pub(super) right: i64,
}

/// What goes to the left.
#[derive(Clone, Copy, Debug)]
pub(super) enum SplitCondition {
    /// Values up to `threshold`, except those that `missing` says are missing.
    Number { threshold: f64, missing: MissingType, default_left: bool },
    /// The categories whose bits are set in this range of [`LightgbmTree::words`].
    Categories { start: usize, end: usize },
}

/// Which values are missing, so that they go in the default direction of a node. Where NaN is not
/// missing, it is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingType {
    None,
    /// Zero, and so NaN.
    Zero,
    Nan,
}

/// The linear model of a leaf: a constant, and a coefficient for each of some features.
#[derive(Clone, Debug, Default)]
pub(super) struct LinearLeaf {
    pub(super) constant: f64,
    pub(super) terms: Vec<(usize, f64)>,
}
