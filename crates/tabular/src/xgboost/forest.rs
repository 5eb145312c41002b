//! Trees as they are run: one flat list of nodes for all of them.
//!
//! A node's children lie side by side and behind it, so a walk needs one index per node, and
//! always ends.

use super::broken;
use tensorserve_tensor::error::Result;

/// A tree as a file has it.
#[derive(Default)]
pub(super) struct Tree {
    pub(super) nodes: Vec<TreeNode>,
    /// Categories of all nodes that split by them.
    pub(super) categories: Vec<u32>,
    /// Leaves that hold a value for every output: those values. Else empty.
    pub(super) vectors: Vec<f32>,
}

/// A node as a file has it.
pub(super) struct TreeNode {
    /// The places of the children in the tree; `None` for a leaf.
    pub(super) children: Option<(usize, usize)>,
    pub(super) feature: usize,
    /// Whether a missing value goes to the left.
    pub(super) default_left: bool,
    pub(super) split: Split,
}

/// What a node decides by, or what a leaf holds.
pub(super) enum Split {
    /// Smaller values go to the left; a leaf's value.
    Number(f32),
    /// Where in [`Tree::categories`] those are that go to the right: the first, and how many.
    Categories(usize, usize),
    /// Where in [`Tree::vectors`] a leaf's values start.
    Vector(usize),
}

/// Trees, and which output each adds to.
#[derive(Default)]
pub(super) struct Forest {
    nodes: Vec<Node>,
    trees: Vec<Root>,
    /// Sets of categories, as bits.
    sets: Vec<Set>,
    words: Vec<u32>,
    vectors: Vec<f32>,
}

/// A node, or a leaf.
#[derive(Clone, Copy)]
struct Node {
    /// The feature, with [`DEFAULT_LEFT`] and [`BY_CATEGORY`]; of a leaf with values for every
    /// output, where those start.
    feature: u32,
    /// The smallest value that goes to the right; the bits of the number of a set; a leaf's value.
    value: f32,
    /// The left child's place; the right one is next. 0 marks a leaf.
    left: u32,
}

struct Root {
    node: u32,
    output: u32,
    /// How many outputs its leaves hold values for; 0 for one, which is in the node.
    width: u32,
}

/// A range of [`Forest::words`].
struct Set {
    start: usize,
    len: usize,
}

/// Trees that are walked side by side.
const LANES: usize = 8;

const DEFAULT_LEFT: u32 = 1 << 31;
const BY_CATEGORY: u32 = 1 << 30;
const FEATURE: u32 = BY_CATEGORY - 1;

/// The most features that a node can tell apart.
pub(super) const MOST_FEATURES: usize = FEATURE as usize;

/// The library's bound on categories: the largest number up to which single precision has all
/// integers.
const MOST_CATEGORIES: u32 = 1 << 24;

/// Words (of 32 categories) that all sets may have: a set takes as many as its largest category
/// needs, so a small hostile file could ask for much memory. 256 MiB.
const MOST_WORDS: usize = 1 << 26;

impl Forest {
    /// Adds a tree whose leaves, times `weight`, add to the output number `output`, or, where they
    /// hold `outputs` values each, to all.
    pub(super) fn add(
        &mut self,
        tree: &Tree,
        weight: f32,
        output: usize,
        outputs: usize,
        features: usize,
    ) -> Result<()> {
        if output >= outputs {
            return Err(broken(format!("it adds to output {output} of {outputs}")));
        }
        let width = if tree.vectors.is_empty() { 0 } else { outputs };
        let root = self.nodes.len();
        self.nodes.push(Node::EMPTY);
        // The places of a node in the file and here.
        let mut open = std::collections::VecDeque::from([(0, root)]);
        let mut seen = 0;
        while let Some((from, to)) = open.pop_front() {
            let node = tree
                .nodes
                .get(from)
                .ok_or_else(|| broken(format!("node {from} of {} is named", tree.nodes.len())))?;
            seen += 1;
            if seen > tree.nodes.len() {
                return Err(broken("its nodes are in a circle".to_owned()));
            }
            let compiled = match node.children {
                None => self.leaf(tree, node, weight, width)?,
                Some((left, right)) => {
                    let place = self.nodes.len();
                    self.nodes.extend([Node::EMPTY; 2]);
                    open.extend([(left, place), (right, place + 1)]);
                    self.split(tree, node, features, place)?
                }
            };
            if let Some(slot) = self.nodes.get_mut(to) {
                *slot = compiled;
            }
        }
        self.trees.push(Root { node: small(root)?, output: small(output)?, width: small(width)? });
        Ok(())
    }

    fn leaf(&mut self, tree: &Tree, leaf: &TreeNode, weight: f32, width: usize) -> Result<Node> {
        match leaf.split {
            Split::Number(value) if width == 0 => {
                Ok(Node { feature: 0, value: value * weight, left: 0 })
            }
            Split::Vector(start) if width > 0 => {
                let values = start.checked_add(width).and_then(|end| tree.vectors.get(start..end));
                let values =
                    values.ok_or_else(|| broken("a leaf's values are not there".to_owned()))?;
                let feature = small(self.vectors.len())?;
                self.vectors.extend(values.iter().map(|value| value * weight));
                Ok(Node { feature, value: 0.0, left: 0 })
            }
            Split::Number(_) | Split::Vector(_) | Split::Categories(..) => {
                Err(broken("a leaf has no value".to_owned()))
            }
        }
    }

    fn split(
        &mut self,
        tree: &Tree,
        node: &TreeNode,
        features: usize,
        left: usize,
    ) -> Result<Node> {
        let index = node.feature;
        if index >= features.min(MOST_FEATURES) {
            return Err(broken(format!("it splits by feature {index}, and there are {features}")));
        }
        let mut feature = small(index)?;
        if node.default_left {
            feature |= DEFAULT_LEFT;
        }
        let value = match node.split {
            // No value is smaller than NaN, nor than this, which needs no case of its own.
            Split::Number(value) if value.is_nan() => f32::NEG_INFINITY,
            Split::Number(value) => value,
            Split::Categories(start, count) => {
                feature |= BY_CATEGORY;
                let end = start.checked_add(count);
                let set = end.and_then(|end| tree.categories.get(start..end));
                let set = set.ok_or_else(|| broken("categories are not there".to_owned()))?;
                f32::from_bits(self.add_set(set)?)
            }
            Split::Vector(_) => return Err(broken("a node is half a leaf".to_owned())),
        };
        Ok(Node { feature, value, left: small(left)? })
    }

    /// Keeps a set of categories, and returns its number.
    fn add_set(&mut self, categories: &[u32]) -> Result<u32> {
        let largest = categories.iter().copied().max().unwrap_or(0);
        if largest >= MOST_CATEGORIES {
            return Err(broken(format!("it splits by category {largest}")));
        }
        let start = self.words.len();
        let len = place_of_bit(largest).0 + 1;
        if start + len > MOST_WORDS {
            return Err(broken("its sets of categories are too large".to_owned()));
        }
        self.words.resize(start + len, 0);
        for &category in categories {
            let (word, bit) = place_of_bit(category);
            if let Some(word) = self.words.get_mut(start + word) {
                *word |= bit;
            }
        }
        self.sets.push(Set { start, len });
        small(self.sets.len() - 1)
    }

    /// Drops all trees but the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.trees.truncate(len);
    }

    /// Adds what the trees say of `rows`, which have `features` values each, to `sums`, which has
    /// `outputs` for each row.
    pub(super) fn add_to(&self, sums: &mut [f32], outputs: usize, rows: &[f32], features: usize) {
        // The trees outside, so that a few are in the cache for all rows.
        for trees in self.trees.chunks(LANES) {
            let sums = sums.chunks_exact_mut(outputs);
            for (sums, row) in sums.zip(rows.chunks_exact(features)) {
                let leaves = self.leaves_of(trees, row);
                for (tree, leaf) in trees.iter().zip(leaves) {
                    self.add_leaf(tree, leaf, sums);
                }
            }
        }
    }

    fn add_leaf(&self, tree: &Root, leaf: usize, sums: &mut [f32]) {
        let Some(leaf) = self.nodes.get(leaf) else { return };
        if tree.width == 0 {
            if let Some(sum) = sums.get_mut(tree.output as usize) {
                *sum += leaf.value;
            }
        } else {
            let values = self.vectors.get(leaf.feature as usize..).unwrap_or_default();
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }

    /// The leaves that `row` reaches in `trees`. Many trees are walked side by side, as each step
    /// waits for the one before.
    #[inline]
    fn leaves_of(&self, trees: &[Root], row: &[f32]) -> [usize; LANES] {
        let mut lanes = [0; LANES];
        lanes.iter_mut().zip(trees).for_each(|(at, tree)| *at = tree.node as usize);
        if trees.len() < LANES {
            for at in lanes.iter_mut().take(trees.len()) {
                *at = self.leaf_of(*at, row);
            }
            return lanes;
        }
        loop {
            let before = lanes;
            for at in &mut lanes {
                *at = self.step(*at, row);
            }
            if lanes == before {
                return lanes;
            }
        }
    }

    /// The leaf that `row` reaches from node `at`.
    fn leaf_of(&self, mut at: usize, row: &[f32]) -> usize {
        loop {
            let next = self.step(at, row);
            if next == at {
                return at;
            }
            at = next;
        }
    }

    /// The node behind node `at` for `row`; a leaf itself. Without a branch for what is left or
    /// right, which could not be foreseen.
    #[inline]
    #[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN is what it is about.
    fn step(&self, at: usize, row: &[f32]) -> usize {
        let Some(&Node { feature, value, left }) = self.nodes.get(at) else { return at };
        let x = row.get((feature & FEATURE) as usize).copied().unwrap_or(f32::NAN);
        let is_default_left = feature & DEFAULT_LEFT != 0;
        let is_left = if feature & BY_CATEGORY == 0 {
            if is_default_left { !(x >= value) } else { x < value }
        } else {
            !self.is_in_set(value.to_bits(), x) && (!x.is_nan() || is_default_left)
        };
        let next = left as usize + usize::from(!is_left);
        if left == 0 { at } else { next }
    }

    /// Whether the category `x` is in the set number `set`.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn is_in_set(&self, set: u32, x: f32) -> bool {
        if !(0.0..MOST_CATEGORIES as f32).contains(&x) {
            return false;
        }
        let (word, bit) = place_of_bit(x as u32);
        let set = self.sets.get(set as usize).filter(|set| word < set.len);
        let word = set.and_then(|set| self.words.get(set.start + word));
        word.is_some_and(|word| word & bit != 0)
    }
}

impl Node {
    const EMPTY: Node = Node { feature: 0, value: 0.0, left: 0 };
}

/// Word and bit of a set's member.
fn place_of_bit(category: u32) -> (usize, u32) {
    ((category / u32::BITS) as usize, 1 << (category % u32::BITS))
}

fn small(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| broken("it has more than 2^32 nodes".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(value: f32) -> TreeNode {
        TreeNode { children: None, feature: 0, default_left: false, split: Split::Number(value) }
    }

    fn node(children: (usize, usize), feature: usize, split: Split) -> TreeNode {
        TreeNode { children: Some(children), feature, default_left: true, split }
    }

    fn tree(nodes: Vec<TreeNode>) -> Tree {
        Tree { nodes, ..Tree::default() }
    }

    fn predict(forest: &Forest, row: &[f32]) -> f32 {
        let mut sums = [0.0];
        forest.add_to(&mut sums, 1, row, row.len());
        sums[0]
    }

    #[test]
    fn rows_go_left_below_the_split_and_where_missing_values_go() {
        let mut forest = Forest::default();
        let nodes = vec![node((2, 1), 1, Split::Number(0.5)), leaf(1.0), leaf(2.0)];
        forest.add(&tree(nodes), 1.0, 0, 1, 2).expect("good");
        for (x, leaf) in [(0.4, 2.0_f32), (0.5, 1.0), (f32::NAN, 2.0), (f32::NEG_INFINITY, 2.0)] {
            assert_eq!(predict(&forest, &[9.0, x]).to_bits(), leaf.to_bits(), "{x}");
        }
        assert_eq!(predict(&Forest::default(), &[9.0]).to_bits(), 0.0_f32.to_bits());
    }

    #[test]
    fn categories_of_the_set_go_right() {
        let mut forest = Forest::default();
        let nodes = vec![node((1, 2), 0, Split::Categories(1, 2)), leaf(1.0), leaf(2.0)];
        let tree = Tree { nodes, categories: vec![7, 3, 40], vectors: Vec::new() };
        forest.add(&tree, 1.0, 0, 1, 1).expect("good");
        let right = [3.0, 3.9, 40.0];
        let left = [0.0, 7.0, 41.0, 64.0, 1e30, -0.5, -3.0, f32::NAN, f32::INFINITY];
        assert!(right.iter().all(|&x| predict(&forest, &[x]) > 1.5));
        assert!(left.iter().all(|&x| predict(&forest, &[x]) < 1.5));
    }

    #[test]
    fn trees_that_can_not_be_run_are_refused() {
        let bad = |tree: Tree| {
            let error = Forest::default().add(&tree, 1.0, 0, 1, 1).expect_err("bad");
            error.message().to_owned()
        };
        let number = || Split::Number(0.5);
        assert_eq!(bad(tree(Vec::new())), "node 0 of 0 is named");
        assert_eq!(bad(tree(vec![node((0, 0), 0, number())])), "its nodes are in a circle");
        assert_eq!(bad(tree(vec![node((1, 7), 0, number()), leaf(0.0)])), "node 7 of 2 is named");
        let nodes = vec![node((1, 2), 1, number()), leaf(0.0), leaf(0.0)];
        assert_eq!(bad(tree(nodes)), "it splits by feature 1, and there are 1");
        let nodes = vec![node((1, 2), 0, Split::Categories(usize::MAX, 2)), leaf(0.0), leaf(0.0)];
        assert_eq!(bad(tree(nodes)), "categories are not there");
        let nodes = vec![node((1, 2), 0, Split::Categories(0, 1)), leaf(0.0), leaf(0.0)];
        let huge = Tree { nodes, categories: vec![u32::MAX], vectors: Vec::new() };
        assert_eq!(bad(huge), "it splits by category 4294967295");
        assert!(Forest::default().add(&tree(vec![leaf(0.0)]), 1.0, 1, 1, 1).is_err());
    }
}
