//! The trees of XGBoost, as files store them, and how they split.

use tensorserve_tabular::trees::{
    self, BitSets, Leaf, SplitAt, Splits, StoredNode, TreeShape, word_and_bit,
};
use tensorserve_tensor::error::{Error, Result};

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
pub(super) type XgboostForest = trees::Forest<XgboostSplits>;

/// Splits at thresholds, from which on values go to the right, and by categories.
#[derive(Default)]
pub(super) struct XgboostSplits {
    /// For each special split, the categories that go to the right.
    categories: BitSets,
}

/// The library's bound on categories: single precision has all integers up to it.
const MAX_CATEGORIES: u32 = 1 << 24;

/// The most words (of 32 categories) of all category sets: 256 MiB. A set takes as many as its
/// largest category needs, so a small hostile file could allocate much memory.
const MAX_CATEGORY_WORDS: usize = 1 << 26;

impl Splits for XgboostSplits {
    type Value = f32;
    type Threshold = f32;
    type Leaf = f32;

    #[inline]
    fn is_right(value: f32, threshold: f32) -> bool {
        value >= threshold
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn is_right_special(&self, index: usize, value: f32, missing_right: bool) -> bool {
        if value.is_nan() {
            return missing_right;
        }
        let is_category = (0.0..MAX_CATEGORIES as f32).contains(&value);
        is_category && self.categories.contains(index, value as u32)
    }
}

impl XgboostSplits {
    /// Adds a set of categories, and returns its index.
    fn add_categories(&mut self, categories: &[u32]) -> Result<usize> {
        let largest = categories.iter().copied().max().unwrap_or(0);
        if largest >= MAX_CATEGORIES {
            return Err(Error::damaged(format!(
                "category {largest} is out of range; the limit is {MAX_CATEGORIES}"
            )));
        }
        if self.categories.words() + word_and_bit(largest).0 >= MAX_CATEGORY_WORDS {
            return Err(Error::damaged("the category sets of the model are too large"));
        }
        Ok(self.categories.add_members(categories))
    }
}

/// Adds a tree to `forest`. Its leaf values, times `weight`, are added to output number `output` of
/// `outputs`; leaves with a value for each output are added to all.
pub(super) fn add_tree(
    forest: &mut XgboostForest,
    tree: &XgboostTree,
    weight: f32,
    output: usize,
    outputs: usize,
    features: usize,
) -> Result<()> {
    if output >= outputs {
        return Err(Error::damaged(format!(
            "output {output} does not exist; the number of outputs is {outputs}"
        )));
    }
    let width = if tree.leaf_vectors.is_empty() { 1 } else { outputs };
    // A file without nodes lacks its root.
    let most_nodes = tree.nodes.len().max(1);
    let shape = TreeShape { output, features, width, most_nodes };
    forest.add_tree(shape, 0, |index, _, splits| {
        let node = tree.nodes.get(index).ok_or_else(|| {
            let nodes = tree.nodes.len();
            Error::damaged(format!("node {index} does not exist; the number of nodes is {nodes}"))
        })?;
        match node.children {
            None => tree.leaf(node, weight, width).map(StoredNode::Leaf),
            Some((left, right)) => Ok(StoredNode::Split {
                feature: node.feature,
                at: tree.split(node, splits)?,
                missing_right: !node.default_left,
                children: [left, right],
            }),
        }
    })
}

impl XgboostTree {
    /// The values of a leaf that has `width`, times `weight`.
    fn leaf(&self, leaf: &XgboostNode, weight: f32, width: usize) -> Result<Leaf<f32>> {
        match leaf.condition {
            NodeCondition::Number(value) if self.leaf_vectors.is_empty() => {
                Ok(Leaf::Number(value * weight))
            }
            NodeCondition::LeafVector(start) => {
                let end = start.checked_add(width);
                let values = end.and_then(|end| self.leaf_vectors.get(start..end));
                let values =
                    values.ok_or_else(|| Error::damaged("the values of a leaf are missing"))?;
                let values = values.iter().map(|value| value * weight);
                Ok(Leaf::from_values(values.collect()))
            }
            NodeCondition::Number(_) | NodeCondition::Categories { .. } => {
                Err(Error::damaged("a leaf has no value"))
            }
        }
    }

    /// What decides at `node`.
    fn split(&self, node: &XgboostNode, splits: &mut XgboostSplits) -> Result<SplitAt<f32>> {
        match node.condition {
            // No value is smaller than NaN. None is smaller than this either.
            NodeCondition::Number(value) if value.is_nan() => {
                Ok(SplitAt::Threshold(f32::NEG_INFINITY))
            }
            NodeCondition::Number(value) => Ok(SplitAt::Threshold(value)),
            NodeCondition::Categories { start, count } => {
                let end = start.checked_add(count);
                let categories = end.and_then(|end| self.categories.get(start..end));
                let categories = categories
                    .ok_or_else(|| Error::damaged("the categories of a node are missing"))?;
                splits.add_categories(categories).map(SplitAt::Special)
            }
            NodeCondition::LeafVector(_) => {
                Err(Error::damaged("a node with children has the value of a leaf"))
            }
        }
    }
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

    fn predict(forest: &XgboostForest, row: &[f32]) -> f32 {
        let mut sums = [0.0];
        forest.add_to(&mut sums, 1, row, row.len());
        sums[0]
    }

    #[test]
    fn rows_go_left_below_the_split_and_where_missing_values_go() {
        let mut forest = XgboostForest::default();
        let nodes = vec![node((2, 1), 1, NodeCondition::Number(0.5)), leaf(1.0), leaf(2.0)];
        add_tree(&mut forest, &tree(nodes), 1.0, 0, 1, 2).expect("good");
        for (x, leaf) in [(0.4, 2.0_f32), (0.5, 1.0), (f32::NAN, 2.0), (f32::NEG_INFINITY, 2.0)] {
            assert_eq!(predict(&forest, &[9.0, x]).to_bits(), leaf.to_bits(), "{x}");
        }
        assert_eq!(predict(&XgboostForest::default(), &[9.0]).to_bits(), 0.0_f32.to_bits());
    }

    #[test]
    fn categories_of_the_set_go_right() {
        let mut forest = XgboostForest::default();
        let nodes = vec![
            node((1, 2), 0, NodeCondition::Categories { start: 1, count: 2 }),
            leaf(1.0),
            leaf(2.0),
        ];
        let tree = XgboostTree { nodes, categories: vec![7, 3, 40], leaf_vectors: Vec::new() };
        add_tree(&mut forest, &tree, 1.0, 0, 1, 1).expect("good");
        let right = [3.0, 3.9, 40.0];
        let left = [0.0, 7.0, 41.0, 64.0, 1e30, -0.5, -3.0, f32::NAN, f32::INFINITY];
        assert!(right.iter().all(|&x| predict(&forest, &[x]) > 1.5));
        assert!(left.iter().all(|&x| predict(&forest, &[x]) < 1.5));
    }

    /// The error for a tree that cannot be added.
    fn refusal(tree: XgboostTree) -> String {
        let error = add_tree(&mut XgboostForest::default(), &tree, 1.0, 0, 1, 1).expect_err("bad");
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
        assert!(
            add_tree(&mut XgboostForest::default(), &tree(vec![leaf(0.0)]), 1.0, 1, 1, 1).is_err()
        );
    }
}
