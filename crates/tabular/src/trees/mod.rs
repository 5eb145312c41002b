//! The forest that the trees of all libraries become: one list of nodes, and one walk.
//!
//! The children of a node are adjacent, and behind it. So a node needs one index for both, and every walk ends.
//! What differs between libraries is in their [`Splits`]: the numbers, which side of a threshold goes right, and
//! the splits that no threshold decides.

mod sets;
mod walk;

use std::collections::VecDeque;
use std::ops::AddAssign;
use std::slice;

use tensorserve_tensor::error::{Error, Result};

pub use self::sets::{BitSets, word_and_bit};
use self::walk::{PARALLEL_WALKS, leaves_of};

/// How the trees of a library split.
pub trait Splits {
    /// A value of a row.
    type Value: RowValue + From<Self::Stored>;
    /// A threshold, and a value of a leaf.
    type Stored: StoredNumber;

    /// Whether `value` goes to the right of `threshold`: most libraries send all above it there. Not if one of them is
    /// NaN.
    #[inline]
    fn is_right(value: Self::Value, threshold: Self::Stored) -> bool {
        value > threshold.into()
    }

    /// Whether `value` goes to the right at special split number `index`, which sends missing values to the right
    /// if `missing_right` is set.
    fn is_right_special(&self, index: usize, value: Self::Value, missing_right: bool) -> bool;
}

/// The values of a row.
pub trait Row<V>: Copy {
    /// The value of a feature.
    fn value(self, feature: usize) -> V;
}

impl<V: RowValue> Row<V> for &[V] {
    #[inline]
    fn value(self, feature: usize) -> V {
        self.get(feature).copied().unwrap_or(V::NAN)
    }
}

/// A value of a row.
pub trait RowValue: Copy + AddAssign + PartialOrd {
    /// What a missing value is.
    const NAN: Self;
    /// Whether it is missing.
    fn is_nan(self) -> bool;
}

/// A number as nodes have it, whose bits can hold an index.
pub trait StoredNumber: Copy {
    /// The threshold of a leaf.
    const NAN: Self;
    /// The value of a node that is no leaf.
    const ZERO: Self;
    /// The number whose bits are `index`.
    fn from_index(index: u32) -> Self;
    /// The index that its bits are.
    fn index(self) -> u32;
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

impl StoredNumber for f32 {
    const NAN: Self = f32::NAN;
    const ZERO: Self = 0.0;

    fn from_index(index: u32) -> Self {
        f32::from_bits(index)
    }

    fn index(self) -> u32 {
        self.to_bits()
    }
}

impl StoredNumber for f64 {
    const NAN: Self = f64::NAN;
    const ZERO: Self = 0.0;

    fn from_index(index: u32) -> Self {
        f64::from_bits(u64::from(index))
    }

    #[allow(clippy::cast_possible_truncation)] // It was made of 32 bits.
    fn index(self) -> u32 {
        self.to_bits() as u32
    }
}

/// All trees of a model.
pub struct Forest<S: Splits> {
    nodes: Vec<ForestNode<S::Stored>>,
    trees: Vec<TreeRoot>,
    splits: S,
    has_special: bool,
    /// The values of leaves that have several.
    vectors: Vec<S::Stored>,
}

/// A split or a leaf. A leaf is its own left child, where every value goes, so that a walk needs no case for it.
#[derive(Clone, Copy)]
struct ForestNode<T> {
    /// The threshold, NaN for a leaf; or the index of a special split.
    threshold: T,
    /// The value of a leaf. Of one with several, the index of the first.
    leaf: T,
    /// The feature, with the flags [`MISSING_RIGHT`] and [`SPECIAL`].
    feature: u32,
    /// The index of the left child; the right one follows it.
    left: u32,
}

/// A tree of a forest.
struct TreeRoot {
    node: u32,
    /// The number of steps to its deepest leaf.
    depth: u32,
    /// The sum that the tree adds to.
    output: u32,
    /// The number of values of a leaf.
    width: u32,
}

/// A node that a file has, with what its children are read from.
pub enum StoredNode<K, T> {
    /// A leaf.
    Leaf(Leaf<T>),
    /// A split.
    Split {
        /// The index of the feature whose value decides.
        feature: usize,
        /// What decides.
        at: SplitAt<T>,
        /// Whether a missing value goes to the right.
        missing_right: bool,
        /// The left and the right child.
        children: [K; 2],
    },
}

/// The values of a leaf.
pub enum Leaf<T> {
    /// Of a tree whose leaves have one value.
    Number(T),
    /// As many values as every leaf of the tree has.
    Vector(Vec<T>),
}

impl<T: Copy> Leaf<T> {
    /// The leaf that has `values`.
    pub fn from_values(values: Vec<T>) -> Self {
        match *values {
            [value] => Leaf::Number(value),
            _ => Leaf::Vector(values),
        }
    }
}

/// What decides at a split.
pub enum SplitAt<T> {
    /// A threshold, as [`Splits::is_right`] compares with it.
    Threshold(T),
    /// The split with this index of [`Splits`].
    Special(usize),
}

/// Flag of [`ForestNode::feature`]: a missing value goes to the right.
const MISSING_RIGHT: u32 = 1 << 31;

/// Flag of [`ForestNode::feature`]: the threshold is the index of a special split.
const SPECIAL: u32 = 1 << 30;

/// The bits of [`ForestNode::feature`] that hold the feature.
const FEATURE_BITS: u32 = SPECIAL - 1;

/// The most features that a node can distinguish.
pub const MAX_FEATURES: usize = FEATURE_BITS as usize;

/// What a tree that is added fits into.
#[derive(Clone, Copy)]
pub struct TreeShape {
    /// The sum that it adds to.
    pub output: usize,
    /// The number of features of the model.
    pub features: usize,
    /// The number of values of a leaf: 1 for [`Leaf::Number`].
    pub width: usize,
    /// The most nodes that it can have. More are a cycle, or parts of the file that are read twice.
    pub most_nodes: usize,
}

impl<S: Splits + Default> Default for Forest<S> {
    fn default() -> Self {
        Forest {
            nodes: Vec::new(),
            trees: Vec::new(),
            splits: S::default(),
            has_special: false,
            vectors: Vec::new(),
        }
    }
}

impl<S: Splits> Forest<S> {
    /// The special splits, to add what several splits of a tree have in common.
    pub fn splits_mut(&mut self) -> &mut S {
        &mut self.splits
    }

    /// The number of trees.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // Nobody asks.
    pub fn len(&self) -> usize {
        self.trees.len()
    }

    /// Removes all trees but the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.trees.truncate(len);
    }

    /// Adds a tree. `read` returns the node that `root` leads to, or that a child of a node leads to that it returned
    /// before; it is given how many steps that is away from the root. It adds the special splits that it needs.
    ///
    /// # Errors
    /// Those of `read`; if a feature does not exist, a leaf has another number of values, or there are too many nodes.
    pub fn add_tree<K>(
        &mut self,
        shape: TreeShape,
        root: K,
        mut read: impl FnMut(K, u32, &mut S) -> Result<StoredNode<K, S::Stored>>,
    ) -> Result<()> {
        let first = self.nodes.len();
        self.nodes.push(ForestNode::EMPTY);
        let mut open = VecDeque::from([(root, first, 0)]);
        let (mut visited, mut depth) = (0, 0);
        while let Some((from, place, level)) = open.pop_front() {
            let stored = read(from, level, &mut self.splits)?;
            depth = level;
            visited += 1;
            if visited > shape.most_nodes {
                return Err(Error::damaged("the nodes form a cycle"));
            }
            let node = match stored {
                StoredNode::Leaf(leaf) => self.leaf(leaf, place, shape.width)?,
                StoredNode::Split { feature, at, missing_right, children: [left, right] } => {
                    let next = self.nodes.len();
                    self.nodes.extend([ForestNode::EMPTY; 2]);
                    open.extend([(left, next, level + 1), (right, next + 1, level + 1)]);
                    let feature = checked_feature(feature, shape.features)?;
                    self.split(feature, at, missing_right, next)?
                }
            };
            if let Some(slot) = self.nodes.get_mut(place) {
                *slot = node;
            }
        }
        let (output, width) = (to_u32(shape.output)?, to_u32(shape.width)?);
        self.trees.push(TreeRoot { node: to_u32(first)?, depth, output, width });
        Ok(())
    }

    /// The leaf whose index is `place`, of a tree whose leaves have `width` values.
    fn leaf(
        &mut self,
        leaf: Leaf<S::Stored>,
        place: usize,
        width: usize,
    ) -> Result<ForestNode<S::Stored>> {
        let left = to_u32(place)?;
        let leaf = match leaf {
            Leaf::Number(value) if width == 1 => value,
            Leaf::Vector(values) if values.len() == width && width != 1 => {
                let start = S::Stored::from_index(to_u32(self.vectors.len())?);
                self.vectors.extend(values);
                start
            }
            Leaf::Number(_) | Leaf::Vector(_) => return Err(Error::damaged("a leaf has no value")),
        };
        Ok(ForestNode { leaf, left, ..ForestNode::EMPTY })
    }

    /// The split whose left child has the index `left`.
    fn split(
        &mut self,
        feature: u32,
        at: SplitAt<S::Stored>,
        missing_right: bool,
        left: usize,
    ) -> Result<ForestNode<S::Stored>> {
        let (threshold, special) = match at {
            SplitAt::Threshold(threshold) => (threshold, 0),
            SplitAt::Special(index) => (S::Stored::from_index(to_u32(index)?), SPECIAL),
        };
        self.has_special |= special != 0;
        let missing = if missing_right { MISSING_RIGHT } else { 0 };
        let feature = feature | special | missing;
        Ok(ForestNode { threshold, feature, left: to_u32(left)?, ..ForestNode::EMPTY })
    }

    /// Adds the values of the leaves of `rows`, of `features` values each, to `sums`, which has `outputs` values
    /// for each row: one value to the sum of its tree, several to all sums.
    pub fn add_to(
        &self,
        sums: &mut [S::Value],
        outputs: usize,
        rows: &[S::Value],
        features: usize,
    ) {
        self.for_each_leaf(rows.chunks_exact(features.max(1)), |row, output, leaf| {
            let start = row * outputs;
            match leaf {
                [value] => {
                    if let Some(sum) = sums.get_mut(start + output) {
                        *sum += (*value).into();
                    }
                }
                values => {
                    let sums = sums.get_mut(start..start + outputs).unwrap_or_default();
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += (*value).into());
                }
            }
        });
    }

    /// Calls `take` for each tree and each of `rows`, with the number of the row, the output of the tree and the
    /// values of the leaf. The trees of a row are in their order.
    pub fn for_each_leaf<R: Row<S::Value>>(
        &self,
        rows: impl ExactSizeIterator<Item = R> + Clone,
        mut take: impl FnMut(usize, usize, &[S::Stored]),
    ) {
        // Trees in the outer loop, so that they stay in the cache for all rows.
        if rows.len() >= PARALLEL_WALKS {
            for tree in &self.trees {
                self.rows_through(tree, rows.clone(), &mut take);
            }
            return;
        }
        for trees in self.trees.chunks(PARALLEL_WALKS) {
            for (number, row) in rows.clone().enumerate() {
                self.row_through(trees, number, row, &mut take);
            }
        }
    }

    /// Several rows through a tree in parallel.
    fn rows_through<R: Row<S::Value>>(
        &self,
        tree: &TreeRoot,
        mut rows: impl Iterator<Item = R>,
        mut take: impl FnMut(usize, usize, &[S::Stored]),
    ) {
        let mut number = 0;
        while let Some(first) = rows.next() {
            let (mut block, mut count) = ([first; PARALLEL_WALKS], 1);
            for (slot, row) in block.iter_mut().skip(1).zip(&mut rows) {
                *slot = row;
                count += 1;
            }
            let roots = (0..count).map(|_| tree.node);
            let row_of = |walk: usize| block.get(walk).copied().unwrap_or(first);
            let leaves = match self.has_special {
                true => {
                    leaves_of(tree.depth, roots, |walk, node| self.child_of(node, row_of(walk)))
                }
                false => leaves_of(tree.depth, roots, |walk, node| {
                    self.child_by_threshold(node, row_of(walk))
                }),
            };
            for leaf in leaves.into_iter().take(count) {
                take(number, tree.output as usize, self.values_of(tree, leaf));
                number += 1;
            }
        }
    }

    /// A row through several trees in parallel, at most [`PARALLEL_WALKS`].
    fn row_through<R: Row<S::Value>>(
        &self,
        trees: &[TreeRoot],
        number: usize,
        row: R,
        mut take: impl FnMut(usize, usize, &[S::Stored]),
    ) {
        let depth = trees.iter().map(|tree| tree.depth).max().unwrap_or(0);
        let roots = trees.iter().map(|tree| tree.node);
        let leaves = match self.has_special {
            true => leaves_of(depth, roots, |_, node| self.child_of(node, row)),
            false => leaves_of(depth, roots, |_, node| self.child_by_threshold(node, row)),
        };
        for (tree, leaf) in trees.iter().zip(leaves) {
            take(number, tree.output as usize, self.values_of(tree, leaf));
        }
    }

    /// The values of `leaf`.
    #[inline]
    fn values_of(&self, tree: &TreeRoot, leaf: usize) -> &[S::Stored] {
        let Some(ForestNode { leaf, .. }) = self.nodes.get(leaf) else { return &[] };
        if tree.width == 1 {
            return slice::from_ref(leaf);
        }
        let start = leaf.index() as usize;
        self.vectors.get(start..start + tree.width as usize).unwrap_or_default()
    }

    /// The child of `node` that `row` goes to; of a leaf, the leaf.
    #[inline]
    fn child_of(&self, node: usize, row: impl Row<S::Value>) -> usize {
        let Some(&ForestNode { feature, threshold, left, .. }) = self.nodes.get(node) else {
            return node;
        };
        if feature & SPECIAL == 0 {
            return self.child_by_threshold(node, row);
        }
        let value = row.value((feature & FEATURE_BITS) as usize);
        let (split, missing_right) = (threshold.index() as usize, feature & MISSING_RIGHT != 0);
        left as usize + usize::from(self.splits.is_right_special(split, value, missing_right))
    }

    /// The same for a node whose threshold decides. The choice between left and right is arithmetic, as a branch
    /// could not be predicted.
    #[inline]
    fn child_by_threshold(&self, node: usize, row: impl Row<S::Value>) -> usize {
        let Some(&ForestNode { feature, threshold, left, .. }) = self.nodes.get(node) else {
            return node;
        };
        let value = row.value((feature & FEATURE_BITS) as usize);
        let is_missing_right = u32::from(value.is_nan()) & (feature / MISSING_RIGHT);
        (left + (u32::from(S::is_right(value, threshold)) | is_missing_right)) as usize
    }
}

impl<T: StoredNumber> ForestNode<T> {
    const EMPTY: ForestNode<T> =
        ForestNode { threshold: T::NAN, leaf: T::ZERO, feature: 0, left: 0 };
}

/// `feature` as the index of one of `features`.
///
/// # Errors
/// If there is no such feature.
pub fn checked_feature(feature: usize, features: usize) -> Result<u32> {
    if feature >= features.min(MAX_FEATURES) {
        return Err(Error::damaged(format!(
            "feature {feature} does not exist; the number of features is {features}"
        )));
    }
    to_u32(feature)
}

fn to_u32(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::damaged("the model has more than 2^32 nodes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_testing::Random;

    /// Values up to a threshold go to the left, and at special splits all that are not whole.
    #[derive(Default)]
    struct Whole;

    impl Splits for Whole {
        type Value = f64;
        type Stored = f64;

        fn is_right(value: f64, threshold: f64) -> bool {
            value > threshold
        }

        fn is_right_special(&self, _index: usize, value: f64, missing_right: bool) -> bool {
            if value.is_nan() { missing_right } else { value.fract() == 0.0 }
        }
    }

    /// A node of a tree that is walked node by node.
    #[derive(Clone)]
    enum Plain {
        Leaf(Vec<f64>),
        Split { feature: usize, threshold: Option<f64>, missing_right: bool, children: [usize; 2] },
    }

    const FEATURES: usize = 4;

    /// A tree of at most `depth` levels, whose leaves have `width` values.
    fn random_tree(random: &mut Random, depth: usize, width: usize) -> Vec<Plain> {
        let mut nodes = vec![Plain::Leaf(Vec::new())];
        let mut open = vec![(0, 0)];
        while let Some((at, level)) = open.pop() {
            if level == depth || random.below(5) == 0 {
                nodes[at] = Plain::Leaf((0..width).map(|_| random.below(100) as f64).collect());
                continue;
            }
            let next = nodes.len();
            nodes.extend([Plain::Leaf(Vec::new()), Plain::Leaf(Vec::new())]);
            // The right child may come first in the file.
            let children = if random.below(2) == 0 { [next, next + 1] } else { [next + 1, next] };
            open.extend([(next, level + 1), (next + 1, level + 1)]);
            nodes[at] = Plain::Split {
                feature: random.below(FEATURES),
                threshold: (random.below(3) > 0).then(|| random.below(8) as f64 / 2.0),
                missing_right: random.below(2) == 0,
                children,
            };
        }
        nodes
    }

    fn leaf_of<'t>(tree: &'t [Plain], row: &[f64]) -> &'t [f64] {
        let mut at = 0;
        loop {
            match &tree[at] {
                Plain::Leaf(values) => return values,
                Plain::Split { feature, threshold, missing_right, children } => {
                    let value = row[*feature];
                    let is_right = match threshold {
                        _ if value.is_nan() => *missing_right,
                        Some(threshold) => value > *threshold,
                        None => value.fract() == 0.0,
                    };
                    at = children[usize::from(is_right)];
                }
            }
        }
    }

    fn add(forest: &mut Forest<Whole>, tree: &[Plain], output: usize, width: usize) {
        let shape = TreeShape { output, features: FEATURES, width, most_nodes: tree.len() };
        let added = forest.add_tree(shape, 0, |at: usize, _, _| {
            Ok(match &tree[at] {
                Plain::Leaf(values) => StoredNode::Leaf(Leaf::from_values(values.clone())),
                Plain::Split { feature, threshold, missing_right, children } => StoredNode::Split {
                    feature: *feature,
                    at: threshold.map_or(SplitAt::Special(0), SplitAt::Threshold),
                    missing_right: *missing_right,
                    children: *children,
                },
            })
        });
        added.expect("a tree");
    }

    #[test]
    fn a_forest_finds_the_leaves_that_a_walk_node_by_node_finds() {
        let mut random = Random::seeded(2);
        for (trees, depth, width) in [(1, 0, 1), (3, 4, 1), (8, 9, 3), (21, 16, 1), (9, 14, 2)] {
            let made: Vec<_> = (0..trees).map(|_| random_tree(&mut random, depth, width)).collect();
            let mut forest = Forest::default();
            for (output, tree) in made.iter().enumerate() {
                add(&mut forest, tree, output, width);
            }
            let values =
                [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.5, 1.0, 1.5, 2.0, 9.0];
            let rows: Vec<f64> =
                (0..40 * FEATURES).map(|_| values[random.below(values.len())]).collect();
            let mut found = Vec::new();
            forest.for_each_leaf(rows.chunks_exact(FEATURES), |row, tree, leaf| {
                let expected = leaf_of(&made[tree], &rows[row * FEATURES..][..FEATURES]);
                assert_eq!(leaf, expected, "tree {tree} of {trees}, row {row}");
                found.push((row, tree));
            });
            found.sort_unstable();
            let all = (0..40).flat_map(|row| (0..trees).map(move |tree| (row, tree)));
            assert_eq!(found, all.collect::<Vec<_>>());
        }
    }
}
