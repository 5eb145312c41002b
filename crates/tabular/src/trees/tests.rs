//! Forests against walks node by node.

use super::*;
use std::iter;
use tensorserve_testing::Random;

/// Values up to a threshold go to the left, and at special splits all that are not whole.
#[derive(Default)]
struct Whole;

impl Splits for Whole {
    type Value = f64;
    type Threshold = f64;
    type Leaf = f64;

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

/// A tree of at most `depth` levels, whose leaves have `width` of `many` values.
fn random_tree(random: &mut Random, depth: usize, width: usize, many: usize) -> Vec<Plain> {
    let mut nodes = vec![Plain::Leaf(Vec::new())];
    let mut open = vec![(0, 0)];
    while let Some((at, level)) = open.pop() {
        if level == depth || random.below(5) == 0 {
            nodes[at] = Plain::Leaf((0..width).map(|_| random.below(many) as f64).collect());
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
        let made: Vec<_> =
            (0..trees).map(|_| random_tree(&mut random, depth, width, 100)).collect();
        let mut forest = Forest::default();
        for (output, tree) in made.iter().enumerate() {
            add(&mut forest, tree, output, width);
        }
        // Missing values change how walks step.
        let values = [0.5, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1.0, 1.5, 2.0, 9.0, f64::NAN];
        for many in [values.len(), values.len() - 1] {
            let rows: Vec<f64> = (0..40 * FEATURES).map(|_| values[random.below(many)]).collect();
            assert_leaves(&forest, &made, &rows);
        }
    }
}

#[test]
fn small_trees_are_walked_together() {
    let mut random = Random::seeded(4);
    let (small, large) = (16, 3);
    let mut forest = Forest::default();
    for tree in 0..small + large {
        let depth = if tree < small { 3 } else { 16 };
        add(&mut forest, &random_tree(&mut random, depth, 1, 100), tree, 1);
    }
    let parts: Vec<_> = forest.trees_at_once().map(<[TreeRoot]>::len).collect();
    assert!(forest.nodes.len() > 2 * NODES_AT_ONCE as usize, "{} nodes", forest.nodes.len());
    assert!(parts[0] >= small && parts.len() > 1, "{parts:?}");
    assert_eq!(parts.iter().sum::<usize>(), small + large);
}

#[test]
fn equal_leaves_share_their_values() {
    let mut random = Random::seeded(3);
    let (width, mut forest) = (3, Forest::default());
    let made: Vec<_> = (0..8).map(|_| random_tree(&mut random, 12, width, 2)).collect();
    for (output, tree) in made.iter().enumerate() {
        add(&mut forest, tree, output, width);
    }
    let leaves = made.iter().flatten().filter(|node| matches!(node, Plain::Leaf(_))).count();
    assert!(leaves > 100, "{leaves} leaves");
    assert_eq!(forest.leaf_values.len(), 8 * width, "the leaves of two values for each class");
    let rows: Vec<f64> = (0..40 * FEATURES).map(|_| random.below(9) as f64 / 2.0).collect();
    assert_leaves(&forest, &made, &rows);
    // Zeros of different signs are different values.
    for zero in [0.0, -0.0] {
        add(&mut forest, &[Plain::Leaf(vec![zero; width])], 0, width);
    }
    assert_eq!(forest.leaf_values.len(), 9 * width);
}

/// Asserts that the walks of all rows end at the leaves of `trees`.
fn assert_leaves(forest: &Forest<Whole>, trees: &[Vec<Plain>], rows: &[f64]) {
    let count = rows.len() / FEATURES;
    for of_one_row in [false, true] {
        let mut found = Vec::new();
        let mut take = |row: usize, tree: usize, leaf: &[f64]| {
            let expected = leaf_of(&trees[tree], &rows[row * FEATURES..][..FEATURES]);
            assert_eq!(leaf, expected, "tree {tree} of {}, row {row}", trees.len());
            found.push((row, tree));
        };
        match of_one_row {
            false => forest.for_each_leaf(rows.chunks_exact(FEATURES), &mut take),
            true => rows.chunks_exact(FEATURES).enumerate().for_each(|(number, row)| {
                forest.for_each_leaf(iter::once(row), |_, tree, leaf| take(number, tree, leaf));
            }),
        }
        for row in 0..count {
            let trees = found.iter().filter(|(of, _)| *of == row);
            assert!(trees.is_sorted(), "the trees of row {row} are in their order");
        }
        found.sort_unstable();
        let all = (0..count).flat_map(|row| (0..trees.len()).map(move |tree| (row, tree)));
        assert_eq!(found, all.collect::<Vec<_>>());
    }
}
