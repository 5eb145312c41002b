//! The forest that the trees of all libraries become: one list of nodes, and one walk.
//!
//! The children of a node are adjacent, and behind it. So a node needs one distance for both, and every walk ends.
//! What differs between libraries is in their [`Splits`]: the numbers, which side of a threshold goes right, and
//! the splits that no threshold decides.

mod numbers;
mod sets;
#[cfg(test)]
mod tests;
mod walk;

use std::collections::HashMap;
use std::{iter, slice};

use tensorserve_tensor::error::{Error, Result};

pub use self::numbers::{LeafValue, RowValue, Threshold};
pub use self::sets::{BitSets, word_and_bit};
use self::walk::{PARALLEL_WALKS, leaves_of};

/// How the trees of a library split.
pub trait Splits {
    /// A value of a row.
    type Value: RowValue + From<Self::Threshold>;
    /// What values are compared with.
    type Threshold: Threshold;
    /// A value of a leaf.
    type Leaf: LeafValue<Self::Threshold>;

    /// Whether `value` goes to the right of `threshold`: most libraries send all above it there. Not if one of them is
    /// NaN.
    #[inline]
    fn is_right(value: Self::Value, threshold: Self::Threshold) -> bool {
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

    /// Whether one of the values of the first `features` features may be missing. To know that none is makes each step
    /// shorter.
    fn may_miss_values(self, _features: usize) -> bool {
        true
    }
}

impl<V: RowValue> Row<V> for &[V] {
    #[inline]
    fn value(self, feature: usize) -> V {
        self.get(feature).copied().unwrap_or(V::NAN)
    }

    fn may_miss_values(self, features: usize) -> bool {
        self.len() < features || self.iter().any(|value| value.is_nan())
    }
}

/// All trees of a model.
pub struct Forest<S: Splits> {
    nodes: Vec<ForestNode<S::Threshold>>,
    trees: Vec<TreeRoot>,
    splits: S,
    has_special: bool,
    /// How many features a row must have for all splits.
    features: usize,
    /// The values of leaves for which their nodes have no room.
    leaf_values: Vec<S::Leaf>,
    /// Where values in `leaf_values` begin that further leaves may have, by their bits. Most leaves of a classifier that is
    /// grown fully are of one class: as one copy for each class they leave the cache to the nodes.
    shared: HashMap<Vec<u64>, u32>,
}

/// A split or a leaf. A leaf is its own child, so that a walk needs no case for it.
#[derive(Clone, Copy)]
struct ForestNode<T> {
    /// The threshold, or the index of a special split. Of a leaf, its value, or the index of its first value.
    number: T,
    /// The feature, with the flags [`MISSING_RIGHT`] and [`SPECIAL`]; 0 for a leaf.
    feature: u32,
    /// How far behind the node its left child is, which the right one follows; 0 for a leaf.
    to_left: u32,
}

/// Rows go through trees together that begin within so many nodes: with those of 12 bytes, half of the first cache.
const NODES_AT_ONCE: u32 = 2048;

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
pub enum StoredNode<K, T, V> {
    /// A leaf.
    Leaf(Leaf<V>),
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

/// The most values of leaves that later leaves can share.
const MOST_SHARED: usize = 256;

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
            features: 0,
            leaf_values: Vec::new(),
            shared: HashMap::new(),
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
        mut read: impl FnMut(K, u32, &mut S) -> Result<StoredNode<K, S::Threshold, S::Leaf>>,
    ) -> Result<()> {
        let first = self.nodes.len();
        let empty = ForestNode { number: S::Threshold::from_index(0), feature: 0, to_left: 0 };
        self.nodes.push(empty);
        // Depth first, so that a walk often finds its next node beside the last one: in the order of levels, deep trees
        // took up to twice the time.
        let mut open = vec![(root, first, 0)];
        let (mut visited, mut depth) = (0, 0);
        while let Some((from, place, level)) = open.pop() {
            let stored = read(from, level, &mut self.splits)?;
            depth = depth.max(level);
            visited += 1;
            if visited > shape.most_nodes {
                return Err(Error::damaged("the nodes form a cycle"));
            }
            let node = match stored {
                StoredNode::Leaf(leaf) => self.leaf(leaf, shape.width)?,
                StoredNode::Split { feature, at, missing_right, children: [left, right] } => {
                    let next = self.nodes.len();
                    self.nodes.extend([empty; 2]);
                    open.extend([(right, next + 1, level + 1), (left, next, level + 1)]);
                    let feature = checked_feature(feature, shape.features)?;
                    self.split(feature, at, missing_right, next - place)?
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

    /// The node of a leaf of a tree whose leaves have `width` values.
    fn leaf(&mut self, leaf: Leaf<S::Leaf>, width: usize) -> Result<ForestNode<S::Threshold>> {
        let number = match leaf {
            Leaf::Number(value) if width == 1 => match value.in_node() {
                Some(number) => number,
                None => self.values_behind(&[value])?,
            },
            Leaf::Vector(values) if values.len() == width && width != 1 => {
                self.values_behind(&values)?
            }
            Leaf::Number(_) | Leaf::Vector(_) => return Err(Error::damaged("a leaf has no value")),
        };
        Ok(ForestNode { number, feature: 0, to_left: 0 })
    }

    /// What the node of a leaf with `values` has, for which it has no room.
    fn values_behind(&mut self, values: &[S::Leaf]) -> Result<S::Threshold> {
        let bits: Vec<u64> = values.iter().map(|value| LeafValue::bits(*value)).collect();
        if let Some(start) = self.shared.get(&bits) {
            return Ok(S::Threshold::from_index(*start));
        }
        let start = to_u32(self.leaf_values.len())?;
        self.leaf_values.extend_from_slice(values);
        if self.shared.len() < MOST_SHARED {
            self.shared.insert(bits, start);
        }
        Ok(S::Threshold::from_index(start))
    }

    /// The node of a split whose left child is `to_left` nodes behind it.
    fn split(
        &mut self,
        feature: u32,
        at: SplitAt<S::Threshold>,
        missing_right: bool,
        to_left: usize,
    ) -> Result<ForestNode<S::Threshold>> {
        let (number, special) = match at {
            SplitAt::Threshold(threshold) => (threshold, 0),
            SplitAt::Special(index) => (S::Threshold::from_index(to_u32(index)?), SPECIAL),
        };
        self.has_special |= special != 0;
        self.features = self.features.max(feature as usize + 1);
        let missing = if missing_right { MISSING_RIGHT } else { 0 };
        let feature = feature | special | missing;
        Ok(ForestNode { number, feature, to_left: to_u32(to_left)? })
    }

    /// Adds the values of the leaves of `rows`, of `features` values each, to `sums`, which has `outputs` values
    /// for each row: one value to the sum of its tree, several to all sums.
    pub fn add_to(&self, sums: &mut [S::Value], outputs: usize, rows: &[S::Value], features: usize)
    where
        S::Value: From<S::Leaf>,
    {
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
        mut take: impl FnMut(usize, usize, &[S::Leaf]),
    ) {
        let steps = match self.has_special {
            true => WalkSteps::OfAnySplit,
            false if rows.clone().any(|row| row.may_miss_values(self.features)) => {
                WalkSteps::ByThreshold
            }
            false => WalkSteps::ByThresholdOfAll,
        };
        // Trees in the outer loop, so that they stay in the cache for all rows.
        if rows.len() >= PARALLEL_WALKS {
            for trees in self.trees_at_once() {
                self.rows_through(trees, steps, rows.clone(), &mut take);
            }
            return;
        }
        for trees in self.trees.chunks(PARALLEL_WALKS) {
            for (number, row) in rows.clone().enumerate() {
                self.row_through(trees, steps, number, row, &mut take);
            }
        }
    }

    /// The trees in parts whose nodes fit into the first cache: at least one tree, or as many as begin within so many nodes.
    fn trees_at_once(&self) -> impl Iterator<Item = &[TreeRoot]> {
        let mut rest = self.trees.as_slice();
        iter::from_fn(move || {
            let end = rest.first()?.node.saturating_add(NODES_AT_ONCE);
            let count = rest.iter().take_while(|tree| tree.node < end).count();
            let (trees, others) = rest.split_at_checked(count.max(1))?;
            rest = others;
            Some(trees)
        })
    }

    /// Several rows at a time through each of `trees` in parallel.
    fn rows_through<R: Row<S::Value>>(
        &self,
        trees: &[TreeRoot],
        steps: WalkSteps,
        mut rows: impl Iterator<Item = R>,
        mut take: impl FnMut(usize, usize, &[S::Leaf]),
    ) {
        let mut number = 0;
        while let Some(first) = rows.next() {
            let (mut block, mut count) = ([first; PARALLEL_WALKS], 1);
            for (slot, row) in block.iter_mut().skip(1).zip(&mut rows) {
                *slot = row;
                count += 1;
            }
            let row_of = |walk: usize| block.get(walk).copied().unwrap_or(first);
            for tree in trees {
                let roots = [tree.node as usize; PARALLEL_WALKS];
                let leaves = self.leaves(steps, tree.depth, roots, count, row_of);
                for (row, leaf) in (number..).zip(leaves.iter().take(count)) {
                    take(row, tree.output as usize, self.values_of(tree, *leaf));
                }
            }
            number += count;
        }
    }

    /// A row through several trees in parallel, at most [`PARALLEL_WALKS`].
    fn row_through<R: Row<S::Value>>(
        &self,
        trees: &[TreeRoot],
        steps: WalkSteps,
        number: usize,
        row: R,
        mut take: impl FnMut(usize, usize, &[S::Leaf]),
    ) {
        let depth = trees.iter().map(|tree| tree.depth).max().unwrap_or(0);
        let mut roots = [0; PARALLEL_WALKS];
        roots.iter_mut().zip(trees).for_each(|(root, tree)| *root = tree.node as usize);
        let leaves = self.leaves(steps, depth, roots, trees.len(), |_| row);
        for (tree, leaf) in trees.iter().zip(&leaves) {
            take(number, tree.output as usize, self.values_of(tree, *leaf));
        }
    }

    /// The leaves that [`leaves_of`] finds, where walk number `i` is that of row `row_of(i)`.
    #[inline]
    fn leaves<R: Row<S::Value>>(
        &self,
        steps: WalkSteps,
        depth: u32,
        roots: [usize; PARALLEL_WALKS],
        count: usize,
        row_of: impl Fn(usize) -> R,
    ) -> [usize; PARALLEL_WALKS] {
        match steps {
            WalkSteps::OfAnySplit => {
                leaves_of(depth, roots, count, |walk, node| self.child_of(node, row_of(walk)))
            }
            WalkSteps::ByThreshold => leaves_of(depth, roots, count, |walk, node| {
                self.child_by_threshold::<true>(node, row_of(walk))
            }),
            WalkSteps::ByThresholdOfAll => leaves_of(depth, roots, count, |walk, node| {
                self.child_by_threshold::<false>(node, row_of(walk))
            }),
        }
    }

    /// The values of `leaf`.
    #[inline]
    fn values_of(&self, tree: &TreeRoot, leaf: usize) -> &[S::Leaf] {
        let Some(ForestNode { number, .. }) = self.nodes.get(leaf) else { return &[] };
        if tree.width == 1
            && let Some(value) = S::Leaf::of_node(number)
        {
            return slice::from_ref(value);
        }
        let start = number.index() as usize;
        self.leaf_values.get(start..start + tree.width as usize).unwrap_or_default()
    }

    /// The child of `node` that `row` goes to; of a leaf, the leaf.
    #[inline]
    fn child_of(&self, node: usize, row: impl Row<S::Value>) -> usize {
        let Some(&ForestNode { feature, number, to_left }) = self.nodes.get(node) else {
            return node;
        };
        if feature & SPECIAL == 0 {
            return self.child_by_threshold::<true>(node, row);
        }
        let value = row.value((feature & FEATURE_BITS) as usize);
        let (split, missing_right) = (number.index() as usize, feature & MISSING_RIGHT != 0);
        let is_right = self.splits.is_right_special(split, value, missing_right);
        node + to_left as usize + usize::from(is_right)
    }

    /// The child of `node`, whose threshold decides, that `row` goes to; of a leaf, the leaf. The choice between left
    /// and right is arithmetic, as a branch could not be predicted. Values can be missing if `MISSING` says so.
    #[inline]
    fn child_by_threshold<const MISSING: bool>(
        &self,
        node: usize,
        row: impl Row<S::Value>,
    ) -> usize {
        let Some(&ForestNode { feature, number, to_left }) = self.nodes.get(node) else {
            return node;
        };
        let value = row.value((feature & FEATURE_BITS) as usize);
        let is_missing_right =
            if MISSING { u32::from(value.is_nan()) & (feature / MISSING_RIGHT) } else { 0 };
        let is_right = u32::from(S::is_right(value, number)) | is_missing_right;
        // At a leaf, whose number is no threshold, none goes to the right.
        node + (to_left + is_right.min(to_left)) as usize
    }
}

/// What steps of walks have to do.
#[derive(Clone, Copy)]
enum WalkSteps {
    /// Take any split.
    OfAnySplit,
    /// Compare with thresholds; values may be missing.
    ByThreshold,
    /// Compare with thresholds; no value is missing.
    ByThresholdOfAll,
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
