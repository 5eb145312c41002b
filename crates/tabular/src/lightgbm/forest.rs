//! Trees as they are evaluated: one flat list of the nodes of all of them.
//!
//! The children of a node are adjacent, and behind it. So a node needs one index for both, and every
//! walk ends.
//!
//! The library treats values within [`ZERO_BAND`] of 0 as 0, and NaN as 0 where it is not missing.
//! Neither is done to a row here: when a tree is added, thresholds are moved to the end of the band,
//! and each node gets the direction in which it sends NaN.

use std::collections::VecDeque;

use super::damaged;
use super::tree::{LightgbmTree, LinearLeaf, MissingType, SplitCondition, SplitNode};
use crate::walk::{LANES, leaves_of};
use tensorserve_tensor::error::Result;

/// All trees of a model.
#[derive(Default)]
pub(super) struct Forest {
    nodes: Vec<FlatNode>,
    trees: Vec<TreeRoot>,
    category_sets: Vec<WordRange>,
    /// The bits of all category sets.
    words: Vec<u32>,
    /// Whether a threshold alone does not decide somewhere.
    has_special: bool,
    linear_leaves: Vec<FlatLinearLeaf>,
    /// The terms of all linear leaves.
    terms: Vec<LinearTerm>,
}

/// A node or a leaf. A leaf is its own left child, where every value goes, so that a walk needs no case for it.
#[derive(Clone, Copy)]
struct FlatNode {
    /// The threshold, up to which values go to the left, NaN for a leaf; or the index of a category set.
    value: f64,
    /// The value of a leaf.
    leaf: f64,
    /// The feature, with the flags [`NAN_LEFT`], [`SPECIAL`] and [`BY_CATEGORY`]. Of a leaf, one more
    /// than its index in [`Forest::linear_leaves`], or 0, with [`NAN_LEFT`].
    feature: u32,
    /// The index of the left child; the right one follows it.
    left: u32,
}

struct TreeRoot {
    node: u32,
    /// The number of steps to its deepest leaf.
    depth: u32,
    output: u32,
}

/// A range of [`Forest::words`].
struct WordRange {
    start: usize,
    end: usize,
}

/// The linear model of a leaf: a constant, and a range of [`Forest::terms`].
struct FlatLinearLeaf {
    constant: f64,
    start: usize,
    end: usize,
}

struct LinearTerm {
    feature: u32,
    coefficient: f64,
}

/// Flag of [`FlatNode::feature`]: NaN goes to the left.
const NAN_LEFT: u32 = 1 << 31;

/// Flag of [`FlatNode::feature`]: the threshold alone does not decide.
const SPECIAL: u32 = 1 << 30;

/// Flag of [`FlatNode::feature`], with [`SPECIAL`]: the node splits by category. Without it, values
/// around 0 go in the direction opposite to the one that the threshold gives them.
const BY_CATEGORY: u32 = 1 << 29;

/// The bits of [`FlatNode::feature`] that hold the feature.
const FEATURE_BITS: u32 = BY_CATEGORY - 1;

/// The most features that a node can distinguish.
pub(super) const MAX_FEATURES: usize = FEATURE_BITS as usize;

/// The distance from 0 up to which values are 0: `kZeroThreshold` of the library, which is a number in
/// single precision.
#[allow(clippy::cast_lossless)] // Not in a constant.
const ZERO_BAND: f64 = 1e-35_f32 as f64;

impl Forest {
    /// Adds a tree, whose values are added to output number `output`.
    pub(super) fn add(
        &mut self,
        tree: &LightgbmTree,
        output: usize,
        features: usize,
    ) -> Result<()> {
        let first_word = self.words.len();
        self.words.extend_from_slice(&tree.words);
        let root = self.nodes.len();
        self.nodes.push(FlatNode::EMPTY);
        let start = if tree.splits.is_empty() { !0 } else { 0 };
        // Indices of a node in the file and here, and its depth.
        let mut open = VecDeque::from([(start, root, 0)]);
        let (mut visited, mut depth) = (0, 0);
        while let Some((from, to, level)) = open.pop_front() {
            depth = level;
            visited += 1;
            if visited > tree.splits.len() + tree.leaves.len() {
                return Err(damaged("the nodes form a cycle"));
            }
            let flat = match usize::try_from(from) {
                Err(_) => self.flat_leaf(tree, !from, features, to)?,
                Ok(index) => {
                    let split = tree.splits.get(index).ok_or_else(|| {
                        let splits = tree.splits.len();
                        damaged(format!("node {index} does not exist; there are {splits}"))
                    })?;
                    let left = self.nodes.len();
                    self.nodes.extend([FlatNode::EMPTY; 2]);
                    open.extend([
                        (split.left, left, level + 1),
                        (split.right, left + 1, level + 1),
                    ]);
                    self.flat_split(split, features, left, first_word)?
                }
            };
            if let Some(slot) = self.nodes.get_mut(to) {
                *slot = flat;
            }
        }
        self.trees.push(TreeRoot { node: to_u32(root)?, depth, output: to_u32(output)? });
        Ok(())
    }

    /// The leaf number `leaf` of a tree, whose index here is `to`.
    fn flat_leaf(
        &mut self,
        tree: &LightgbmTree,
        leaf: i64,
        features: usize,
        to: usize,
    ) -> Result<FlatNode> {
        let index = usize::try_from(leaf).unwrap_or(usize::MAX);
        let value = *tree.leaves.get(index).ok_or_else(|| {
            let leaves = tree.leaves.len();
            damaged(format!("leaf {leaf} does not exist; there are {leaves}"))
        })?;
        let feature = match tree.linear.get(index) {
            None => 0,
            Some(linear) => self.add_linear_leaf(linear, features)?,
        };
        if feature > FEATURE_BITS {
            return Err(damaged("the model has too many linear leaves"));
        }
        Ok(FlatNode {
            leaf: value,
            feature: feature | NAN_LEFT,
            left: to_u32(to)?,
            ..FlatNode::EMPTY
        })
    }

    /// Adds the linear model of a leaf, and returns one more than its index.
    fn add_linear_leaf(&mut self, leaf: &LinearLeaf, features: usize) -> Result<u32> {
        let start = self.terms.len();
        for &(feature, coefficient) in &leaf.terms {
            self.terms.push(LinearTerm { feature: checked(feature, features)?, coefficient });
        }
        let end = self.terms.len();
        self.linear_leaves.push(FlatLinearLeaf { constant: leaf.constant, start, end });
        to_u32(self.linear_leaves.len())
    }

    /// The node whose left child has the index `left`. The words of its tree begin at `first_word`.
    fn flat_split(
        &mut self,
        split: &SplitNode,
        features: usize,
        left: usize,
        first_word: usize,
    ) -> Result<FlatNode> {
        let feature = checked(split.feature, features)?;
        let (value, flags) = match split.condition {
            SplitCondition::Number { threshold, missing, default_left } => {
                numeric_rule(threshold, missing, default_left)
            }
            SplitCondition::Categories { start, end } => {
                let range = WordRange { start: first_word + start, end: first_word + end };
                if start > end || range.end > self.words.len() {
                    return Err(damaged("the categories of a node are missing"));
                }
                self.category_sets.push(range);
                (f64::from(to_u32(self.category_sets.len() - 1)?), SPECIAL | BY_CATEGORY)
            }
        };
        self.has_special |= flags & SPECIAL != 0;
        Ok(FlatNode { value, feature: feature | flags, left: to_u32(left)?, ..FlatNode::EMPTY })
    }

    /// The number of trees.
    pub(super) fn len(&self) -> usize {
        self.trees.len()
    }

    /// Removes all trees but the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.trees.truncate(len);
    }

    /// Adds the values of all trees for `rows`, of `features` values each, to `sums`, which has
    /// `outputs` values for each row.
    pub(super) fn add_to(&self, sums: &mut [f64], outputs: usize, rows: &[f64], features: usize) {
        // Trees in the outer loop, so that a few of them stay in the cache for all rows.
        for trees in self.trees.chunks(LANES) {
            let depth = trees.iter().map(|tree| tree.depth).max().unwrap_or(0);
            let sums = sums.chunks_exact_mut(outputs);
            for (sums, row) in sums.zip(rows.chunks_exact(features)) {
                let roots = trees.iter().map(|tree| tree.node);
                let leaves = match self.has_special {
                    true => leaves_of(depth, roots, |node| self.child_of(node, row)),
                    false => leaves_of(depth, roots, |node| self.child_by_number(node, row)),
                };
                for (tree, leaf) in trees.iter().zip(leaves) {
                    if let Some(sum) = sums.get_mut(tree.output as usize) {
                        *sum += self.value_of(leaf, row);
                    }
                }
            }
        }
    }

    /// The value of `leaf` for `row`.
    #[inline]
    fn value_of(&self, leaf: usize, row: &[f64]) -> f64 {
        let Some(&FlatNode { leaf: value, feature, .. }) = self.nodes.get(leaf) else { return 0.0 };
        match (feature & FEATURE_BITS).checked_sub(1) {
            None => value,
            Some(linear) => self.linear_value(linear as usize, value, row),
        }
    }

    /// The value of the linear model of a leaf; `value` if one of its features is NaN.
    fn linear_value(&self, linear: usize, value: f64, row: &[f64]) -> f64 {
        let Some(leaf) = self.linear_leaves.get(linear) else { return value };
        let terms = self.terms.get(leaf.start..leaf.end).unwrap_or_default();
        let mut sum = leaf.constant;
        for term in terms {
            let x = row.get(term.feature as usize).copied().unwrap_or(f64::NAN);
            if x.is_nan() {
                return value;
            }
            sum += term.coefficient * if is_zero(x) { 0.0 } else { x };
        }
        sum
    }

    /// The child of `node` that `row` goes to; of a leaf, the leaf.
    #[inline]
    fn child_of(&self, node: usize, row: &[f64]) -> usize {
        let Some(&FlatNode { feature, value, left, .. }) = self.nodes.get(node) else {
            return node;
        };
        let by_number = self.child_by_number(node, row);
        if feature & SPECIAL == 0 {
            return by_number;
        }
        let x = row.get((feature & FEATURE_BITS) as usize).copied().unwrap_or(f64::NAN);
        let is_left = match feature & BY_CATEGORY == 0 {
            true => (by_number == left as usize) ^ is_zero(x),
            false => self.is_in_set(value, x),
        };
        left as usize + usize::from(!is_left)
    }

    /// The same for a node of which the threshold alone decides. The choice between left and right is
    /// arithmetic, as a branch could not be predicted.
    #[inline]
    fn child_by_number(&self, node: usize, row: &[f64]) -> usize {
        let Some(&FlatNode { feature, value, left, .. }) = self.nodes.get(node) else {
            return node;
        };
        let x = row.get((feature & FEATURE_BITS) as usize).copied().unwrap_or(f64::NAN);
        let is_nan_right = u32::from(x.is_nan()) & !(feature / NAN_LEFT);
        (left + (u32::from(x > value) | is_nan_right)) as usize
    }

    /// Whether the category `x` is in the category set with the index `set`. Fractions are cut off, so
    /// -0.5 is category 0.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn is_in_set(&self, set: f64, x: f64) -> bool {
        // The library converts to a 32-bit integer; on the processors that it is built for, what does
        // not fit becomes a negative one.
        if !(x > -1.0 && x < -f64::from(i32::MIN)) {
            return false;
        }
        let (word, bit) = word_and_bit(x as u32);
        let set = self.category_sets.get(set as usize);
        let words = set.and_then(|set| self.words.get(set.start..set.end));
        words.and_then(|words| words.get(word)).is_some_and(|word| word & bit != 0)
    }
}

impl FlatNode {
    const EMPTY: FlatNode = FlatNode { value: f64::NAN, leaf: 0.0, feature: 0, left: 0 };
}

/// The threshold and the flags of a node that compares numbers.
fn numeric_rule(threshold: f64, missing: MissingType, default_left: bool) -> (f64, u32) {
    // NaN is never below a threshold, and no value is.
    let threshold = if threshold.is_nan() { f64::NEG_INFINITY } else { threshold };
    let zero_left = threshold >= 0.0;
    // All values of the band are on the side of 0.
    let threshold = match () {
        () if zero_left => threshold.max(ZERO_BAND),
        () if threshold >= -ZERO_BAND => (-ZERO_BAND).next_down(),
        () => threshold,
    };
    let (nan_left, is_special) = match missing {
        MissingType::None => (zero_left, false),
        MissingType::Zero => (default_left, default_left != zero_left),
        MissingType::Nan => (default_left, false),
    };
    let flags = if nan_left { NAN_LEFT } else { 0 } | if is_special { SPECIAL } else { 0 };
    (threshold, flags)
}

fn is_zero(x: f64) -> bool {
    x.abs() <= ZERO_BAND
}

/// The index of the word and the bit of a category in its set.
pub(super) fn word_and_bit(category: u32) -> (usize, u32) {
    ((category / u32::BITS) as usize, 1 << (category % u32::BITS))
}

/// `feature` as the index of one of `features`.
fn checked(feature: usize, features: usize) -> Result<u32> {
    if feature >= features.min(MAX_FEATURES) {
        return Err(damaged(format!(
            "feature {feature} does not exist; the number of features is {features}"
        )));
    }
    to_u32(feature)
}

fn to_u32(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| damaged("the model has more than 2^32 nodes"))
}
