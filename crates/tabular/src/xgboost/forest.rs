//! Trees as they are evaluated: one flat list of the nodes of all of them.
//!
//! The children of a node are adjacent, and behind it. So a node needs one index for both, and every
//! walk ends.

use std::collections::VecDeque;

use super::damaged;
use crate::walk::{LANES, leaves_of};
use tensorserve_tensor::error::Result;

/// A tree as a file stores it.
#[derive(Default)]
pub(super) struct XgboostTree {
    pub(super) nodes: Vec<XgboostNode>,
    /// The categories of all nodes that split by category.
    pub(super) categories: Vec<u32>,
    /// The values of leaves that have one for each output; else empty.
    pub(super) leaf_vectors: Vec<f32>,
}

/// A node as a file stores it.
pub(super) struct XgboostNode {
    /// The indices of the left and the right child in the tree; `None` for a leaf.
    pub(super) children: Option<(usize, usize)>,
    pub(super) feature: usize,
    /// Whether a missing value goes to the left.
    pub(super) default_left: bool,
    pub(super) condition: NodeCondition,
}

/// The condition of a node, or the value of a leaf; a file has one field for both.
pub(super) enum NodeCondition {
    /// The threshold: smaller values go to the left. Or the value of a leaf.
    Number(f32),
    /// The categories that go to the right: a range of [`XgboostTree::categories`].
    Categories { start: usize, count: usize },
    /// Where the values of a leaf start in [`XgboostTree::leaf_vectors`].
    LeafVector(usize),
}

/// All trees of a model.
#[derive(Default)]
pub(super) struct Forest {
    nodes: Vec<FlatNode>,
    trees: Vec<TreeRoot>,
    category_sets: Vec<CategorySet>,
    /// The bits of all category sets.
    words: Vec<u32>,
    leaf_vectors: Vec<f32>,
}

/// A node or a leaf. A leaf is its own left child, where every value goes, so that a walk needs no case for it.
#[derive(Clone, Copy)]
struct FlatNode {
    /// The feature, with the flags [`DEFAULT_RIGHT`] and [`BY_CATEGORY`].
    feature: u32,
    /// The threshold, from which on values go to the right, NaN for a leaf; or the bits of an index into
    /// [`Forest::category_sets`].
    value: f32,
    /// The index of the left child; the right one follows it.
    left: u32,
    /// The value of a leaf. Of one with a value for each output, the bits of where those start in
    /// [`Forest::leaf_vectors`].
    leaf: f32,
}

struct TreeRoot {
    node: u32,
    /// The number of steps to its deepest leaf.
    depth: u32,
    output: u32,
    /// The number of values in a leaf; 0 for a single one, which is in the node.
    width: u32,
}

/// A range of [`Forest::words`].
struct CategorySet {
    start: usize,
    len: usize,
}

/// Flag of [`FlatNode::feature`]: a missing value goes to the right.
const DEFAULT_RIGHT: u32 = 1 << 31;

/// Flag of [`FlatNode::feature`]: the node splits by category.
const BY_CATEGORY: u32 = 1 << 30;

/// The bits of [`FlatNode::feature`] that hold the feature.
const FEATURE_BITS: u32 = BY_CATEGORY - 1;

/// The most features that a node can distinguish.
pub(super) const MAX_FEATURES: usize = FEATURE_BITS as usize;

/// The library's bound on categories: single precision has all integers up to it.
const MAX_CATEGORIES: u32 = 1 << 24;

/// The most words (of 32 categories) of all category sets: 256 MiB. A set takes as many as its
/// largest category needs, so a small hostile file could allocate much memory.
const MAX_CATEGORY_WORDS: usize = 1 << 26;

impl Forest {
    /// Adds a tree. Its leaf values, times `weight`, are added to output number `output` of
    /// `outputs`; leaves with a value for each output are added to all.
    pub(super) fn add(
        &mut self,
        tree: &XgboostTree,
        weight: f32,
        output: usize,
        outputs: usize,
        features: usize,
    ) -> Result<()> {
        if output >= outputs {
            return Err(damaged(format!(
                "output {output} does not exist; the number of outputs is {outputs}"
            )));
        }
        let width = if tree.leaf_vectors.is_empty() { 0 } else { outputs };
        let root = self.nodes.len();
        self.nodes.push(FlatNode::EMPTY);
        // Indices of a node in the file and here, and its depth.
        let mut open = VecDeque::from([(0, root, 0)]);
        let (mut visited, mut depth) = (0, 0);
        while let Some((from, to, level)) = open.pop_front() {
            depth = level;
            let node = tree.nodes.get(from).ok_or_else(|| {
                let nodes = tree.nodes.len();
                damaged(format!("node {from} does not exist; the number of nodes is {nodes}"))
            })?;
            visited += 1;
            if visited > tree.nodes.len() {
                return Err(damaged("the nodes form a cycle"));
            }
            let flat = match node.children {
                None => self.flat_leaf(tree, node, weight, (to, width))?,
                Some((left, right)) => {
                    let index = self.nodes.len();
                    self.nodes.extend([FlatNode::EMPTY; 2]);
                    open.extend([(left, index, level + 1), (right, index + 1, level + 1)]);
                    self.flat_split(tree, node, features, index)?
                }
            };
            if let Some(slot) = self.nodes.get_mut(to) {
                *slot = flat;
            }
        }
        self.trees.push(TreeRoot {
            node: to_u32(root)?,
            depth,
            output: to_u32(output)?,
            width: to_u32(width)?,
        });
        Ok(())
    }

    fn flat_leaf(
        &mut self,
        tree: &XgboostTree,
        leaf: &XgboostNode,
        weight: f32,
        (index, width): (usize, usize),
    ) -> Result<FlatNode> {
        let left = to_u32(index)?;
        match leaf.condition {
            NodeCondition::Number(value) if width == 0 => {
                Ok(FlatNode { left, leaf: value * weight, ..FlatNode::EMPTY })
            }
            NodeCondition::LeafVector(start) if width > 0 => {
                let end = start.checked_add(width);
                let values = end.and_then(|end| tree.leaf_vectors.get(start..end));
                let values = values.ok_or_else(|| damaged("the values of a leaf are missing"))?;
                let start = f32::from_bits(to_u32(self.leaf_vectors.len())?);
                self.leaf_vectors.extend(values.iter().map(|value| value * weight));
                Ok(FlatNode { left, leaf: start, ..FlatNode::EMPTY })
            }
            NodeCondition::Number(_)
            | NodeCondition::LeafVector(_)
            | NodeCondition::Categories { .. } => Err(damaged("a leaf has no value")),
        }
    }

    /// The node whose left child has the index `left`.
    fn flat_split(
        &mut self,
        tree: &XgboostTree,
        node: &XgboostNode,
        features: usize,
        left: usize,
    ) -> Result<FlatNode> {
        let index = node.feature;
        if index >= features.min(MAX_FEATURES) {
            return Err(damaged(format!(
                "feature {index} does not exist; the number of features is {features}"
            )));
        }
        let mut feature = to_u32(index)?;
        if !node.default_left {
            feature |= DEFAULT_RIGHT;
        }
        let value = match node.condition {
            // No value is smaller than NaN. None is smaller than this either, and it marks no leaf.
            NodeCondition::Number(value) if value.is_nan() => f32::NEG_INFINITY,
            NodeCondition::Number(value) => value,
            NodeCondition::Categories { start, count } => {
                feature |= BY_CATEGORY;
                let end = start.checked_add(count);
                let categories = end.and_then(|end| tree.categories.get(start..end));
                let categories =
                    categories.ok_or_else(|| damaged("the categories of a node are missing"))?;
                f32::from_bits(self.add_category_set(categories)?)
            }
            NodeCondition::LeafVector(_) => {
                return Err(damaged("a node with children has the value of a leaf"));
            }
        };
        Ok(FlatNode { feature, value, left: to_u32(left)?, ..FlatNode::EMPTY })
    }

    /// Adds a set of categories, and returns its index.
    fn add_category_set(&mut self, categories: &[u32]) -> Result<u32> {
        let largest = categories.iter().copied().max().unwrap_or(0);
        if largest >= MAX_CATEGORIES {
            return Err(damaged(format!(
                "category {largest} is out of range; the limit is {MAX_CATEGORIES}"
            )));
        }
        let start = self.words.len();
        let len = word_and_bit(largest).0 + 1;
        if start + len > MAX_CATEGORY_WORDS {
            return Err(damaged("the category sets of the model are too large"));
        }
        self.words.resize(start + len, 0);
        for &category in categories {
            let (word, bit) = word_and_bit(category);
            if let Some(word) = self.words.get_mut(start + word) {
                *word |= bit;
            }
        }
        self.category_sets.push(CategorySet { start, len });
        to_u32(self.category_sets.len() - 1)
    }

    /// Removes all trees but the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.trees.truncate(len);
    }

    /// Adds the leaf values of `rows`, of `features` values each, to `sums`, which has `outputs`
    /// values for each row.
    pub(super) fn add_to(&self, sums: &mut [f32], outputs: usize, rows: &[f32], features: usize) {
        let has_categories = !self.category_sets.is_empty();
        // Trees in the outer loop, so that a few of them stay in the cache for all rows.
        for trees in self.trees.chunks(LANES) {
            let depth = trees.iter().map(|tree| tree.depth).max().unwrap_or(0);
            let sums = sums.chunks_exact_mut(outputs);
            for (sums, row) in sums.zip(rows.chunks_exact(features)) {
                let roots = trees.iter().map(|tree| tree.node);
                let leaves = match has_categories {
                    true => leaves_of(depth, roots, |node| self.child_of(node, row)),
                    false => leaves_of(depth, roots, |node| self.child_by_number(node, row)),
                };
                for (tree, leaf) in trees.iter().zip(leaves) {
                    self.add_leaf(tree, leaf, sums);
                }
            }
        }
    }

    fn add_leaf(&self, tree: &TreeRoot, leaf: usize, sums: &mut [f32]) {
        let Some(leaf) = self.nodes.get(leaf) else { return };
        if tree.width == 0 {
            if let Some(sum) = sums.get_mut(tree.output as usize) {
                *sum += leaf.leaf;
            }
        } else {
            let values = self.leaf_vectors.get(leaf.leaf.to_bits() as usize..).unwrap_or_default();
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }

    /// The child of `node` that `row` goes to; of a leaf, the leaf.
    #[inline]
    fn child_of(&self, node: usize, row: &[f32]) -> usize {
        let Some(&FlatNode { feature, value, left, .. }) = self.nodes.get(node) else {
            return node;
        };
        if feature & BY_CATEGORY == 0 {
            return self.child_by_number(node, row);
        }
        let x = row.get((feature & FEATURE_BITS) as usize).copied().unwrap_or(f32::NAN);
        let is_missing_right = x.is_nan() && feature & DEFAULT_RIGHT != 0;
        left as usize + usize::from(is_missing_right || self.is_in_set(value.to_bits(), x))
    }

    /// The same for a node that splits by a number. The choice between left and right is arithmetic, as a
    /// branch could not be predicted.
    #[inline]
    fn child_by_number(&self, node: usize, row: &[f32]) -> usize {
        let Some(&FlatNode { feature, value, left, .. }) = self.nodes.get(node) else {
            return node;
        };
        let x = row.get((feature & FEATURE_BITS) as usize).copied().unwrap_or(f32::NAN);
        let is_right = u32::from(x >= value) | (u32::from(x.is_nan()) & (feature / DEFAULT_RIGHT));
        (left + is_right) as usize
    }

    /// Whether the category `x` is in the category set with the index `set`.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn is_in_set(&self, set: u32, x: f32) -> bool {
        if !(0.0..MAX_CATEGORIES as f32).contains(&x) {
            return false;
        }
        let (word, bit) = word_and_bit(x as u32);
        let set = self.category_sets.get(set as usize).filter(|set| word < set.len);
        let word = set.and_then(|set| self.words.get(set.start + word));
        word.is_some_and(|word| word & bit != 0)
    }
}

impl FlatNode {
    const EMPTY: FlatNode = FlatNode { feature: 0, value: f32::NAN, left: 0, leaf: 0.0 };
}

/// The index of the word and the bit of a category in its set.
fn word_and_bit(category: u32) -> (usize, u32) {
    ((category / u32::BITS) as usize, 1 << (category % u32::BITS))
}

fn to_u32(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| damaged("the model has more than 2^32 nodes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(value: f32) -> XgboostNode {
        XgboostNode {
            children: None,
            feature: 0,
            default_left: false,
            condition: NodeCondition::Number(value),
        }
    }

    fn node(children: (usize, usize), feature: usize, condition: NodeCondition) -> XgboostNode {
        XgboostNode { children: Some(children), feature, default_left: true, condition }
    }

    fn threshold() -> NodeCondition {
        NodeCondition::Number(0.5)
    }

    fn tree(nodes: Vec<XgboostNode>) -> XgboostTree {
        XgboostTree { nodes, ..XgboostTree::default() }
    }

    fn predict(forest: &Forest, row: &[f32]) -> f32 {
        let mut sums = [0.0];
        forest.add_to(&mut sums, 1, row, row.len());
        sums[0]
    }

    #[test]
    fn rows_go_left_below_the_split_and_where_missing_values_go() {
        let mut forest = Forest::default();
        let nodes = vec![node((2, 1), 1, NodeCondition::Number(0.5)), leaf(1.0), leaf(2.0)];
        forest.add(&tree(nodes), 1.0, 0, 1, 2).expect("good");
        for (x, leaf) in [(0.4, 2.0_f32), (0.5, 1.0), (f32::NAN, 2.0), (f32::NEG_INFINITY, 2.0)] {
            assert_eq!(predict(&forest, &[9.0, x]).to_bits(), leaf.to_bits(), "{x}");
        }
        assert_eq!(predict(&Forest::default(), &[9.0]).to_bits(), 0.0_f32.to_bits());
    }

    #[test]
    fn categories_of_the_set_go_right() {
        let mut forest = Forest::default();
        let nodes = vec![
            node((1, 2), 0, NodeCondition::Categories { start: 1, count: 2 }),
            leaf(1.0),
            leaf(2.0),
        ];
        let tree = XgboostTree { nodes, categories: vec![7, 3, 40], leaf_vectors: Vec::new() };
        forest.add(&tree, 1.0, 0, 1, 1).expect("good");
        let right = [3.0, 3.9, 40.0];
        let left = [0.0, 7.0, 41.0, 64.0, 1e30, -0.5, -3.0, f32::NAN, f32::INFINITY];
        assert!(right.iter().all(|&x| predict(&forest, &[x]) > 1.5));
        assert!(left.iter().all(|&x| predict(&forest, &[x]) < 1.5));
    }

    /// The error for a tree that cannot be added.
    fn refusal(tree: XgboostTree) -> String {
        let error = Forest::default().add(&tree, 1.0, 0, 1, 1).expect_err("bad");
        error.message().to_owned()
    }

    #[test]
    fn trees_that_cannot_be_run_are_refused() {
        assert_eq!(refusal(tree(Vec::new())), "node 0 does not exist; the number of nodes is 0");
        assert_eq!(refusal(tree(vec![node((0, 0), 0, threshold())])), "the nodes form a cycle");
        assert_eq!(
            refusal(tree(vec![node((1, 7), 0, threshold()), leaf(0.0)])),
            "node 7 does not exist; the number of nodes is 2"
        );
        let nodes = vec![node((1, 2), 1, threshold()), leaf(0.0), leaf(0.0)];
        assert_eq!(refusal(tree(nodes)), "feature 1 does not exist; the number of features is 1");
        let nodes = vec![
            node((1, 2), 0, NodeCondition::Categories { start: usize::MAX, count: 2 }),
            leaf(0.0),
            leaf(0.0),
        ];
        assert_eq!(refusal(tree(nodes)), "the categories of a node are missing");
        let nodes = vec![
            node((1, 2), 0, NodeCondition::Categories { start: 0, count: 1 }),
            leaf(0.0),
            leaf(0.0),
        ];
        let huge = XgboostTree { nodes, categories: vec![u32::MAX], leaf_vectors: Vec::new() };
        assert_eq!(refusal(huge), "category 4294967295 is out of range; the limit is 16777216");
        assert!(Forest::default().add(&tree(vec![leaf(0.0)]), 1.0, 1, 1, 1).is_err());
    }
}
