//! Trees as they are evaluated, on columns of bins.

use super::document::{NonSymmetricNode, StoredTrees};
use super::features::{BLOCK, BinSplit};
use tensorserve_tensor::error::{Error, Result};

/// The most levels of a symmetric tree; CatBoost allows 16.
const MAX_DEPTH: usize = 24;

/// The number of rows that are walked through a tree in parallel.
const PARALLEL_ROWS: usize = 8;

/// The depth up to which the index of a leaf is one byte.
const BYTE_DEPTH: usize = 8;

/// The number of trees whose leaves are added to the sum of a row while that is in a register, and the number
/// of those that are left then. With 16, sums take 5 % longer.
const PARALLEL_TREES: usize = 8;
const FEWER_TREES: usize = PARALLEL_TREES / 2;

/// All trees of a model.
pub(super) enum Trees {
    Symmetric { trees: Vec<SymmetricTree>, levels: Vec<BinSplit>, leaves: Vec<f64> },
    Others { starts: Vec<u32>, nodes: Vec<TreeNode>, leaves: Vec<f64> },
}

/// A tree each of whose levels has one split. Bit `d` of the index of a leaf is the split of level `d`.
pub(super) struct SymmetricTree {
    first_level: usize,
    depth: usize,
    first_leaf: usize,
}

/// A node; a walk ends where the next node is the same.
#[derive(Clone, Copy)]
pub(super) struct TreeNode {
    /// The column, times 256, and the bin of the split.
    split: u32,
    left: u32,
    right: u32,
    /// Where the values begin if the walk ends here.
    leaf: u32,
}

impl Trees {
    /// The trees of a file, with `dimension` values in a leaf.
    pub(super) fn new(stored: StoredTrees, splits: &[BinSplit], dimension: usize) -> Result<Self> {
        match stored {
            StoredTrees::Symmetric { sizes, splits: stored, leaves } => {
                let levels = stored.into_iter().map(|split| resolve(split, splits));
                let levels = levels.collect::<Result<Vec<_>>>()?;
                let trees = symmetric(&sizes, levels.len(), leaves.len(), dimension)?;
                Ok(Trees::Symmetric { trees, levels, leaves })
            }
            StoredTrees::Others { starts, nodes, leaves } => {
                let mut compiled = Vec::with_capacity(nodes.len());
                for (index, node) in nodes.iter().enumerate() {
                    compiled.push(tree_node(index, node, &nodes, splits, leaves.len(), dimension)?);
                }
                let starts = starts.into_iter().map(|start| {
                    let start = u32::try_from(start).ok().filter(|at| (*at as usize) < nodes.len());
                    start.ok_or_else(|| Error::damaged("a tree starts outside of the nodes"))
                });
                Ok(Trees::Others {
                    starts: starts.collect::<Result<_>>()?,
                    nodes: compiled,
                    leaves,
                })
            }
        }
    }

    /// Adds the values of all trees to `sums`, which has `dimension` values for each row. `bins` has
    /// columns of `stride` rows: [`BLOCK`], or fewer.
    pub(super) fn add_to(&self, sums: &mut [f64], dimension: usize, bins: &[u8], stride: usize) {
        match self {
            Trees::Symmetric { trees, levels, leaves } => {
                for run in trees.chunk_by(|tree, next| tree.depth == next.depth) {
                    let depth = run.first().map_or(0, |tree| tree.depth);
                    let by_blocks = stride == BLOCK && depth <= BYTE_DEPTH;
                    let mut others = run;
                    if by_blocks && dimension == 1 {
                        let groups;
                        (groups, others) = others.as_chunks::<PARALLEL_TREES>();
                        add_groups(groups, levels, leaves, sums, bins);
                        let groups;
                        (groups, others) = others.as_chunks::<FEWER_TREES>();
                        add_groups(groups, levels, leaves, sums, bins);
                    }
                    for (levels, leaves) in others.iter().map(|tree| tree.parts(levels, leaves)) {
                        if by_blocks {
                            add_block(levels, leaves, sums, dimension, bins);
                        } else {
                            add_rows(levels, leaves, sums, dimension, bins, stride);
                        }
                    }
                }
            }
            Trees::Others { starts, nodes, leaves } => {
                for start in starts {
                    for (group, sums) in sums.chunks_mut(dimension * PARALLEL_ROWS).enumerate() {
                        let found = walk(*start, nodes, bins, stride, group * PARALLEL_ROWS);
                        for (sums, at) in sums.chunks_exact_mut(dimension).zip(found) {
                            let leaf = nodes.get(at as usize).map_or(0, |node| node.leaf as usize);
                            add_leaf(sums, leaves.get(leaf..).unwrap_or_default());
                        }
                    }
                }
            }
        }
    }
}

impl SymmetricTree {
    /// The splits of its levels, and the leaves from its own on.
    fn parts<'a>(&self, levels: &'a [BinSplit], leaves: &'a [f64]) -> (&'a [BinSplit], &'a [f64]) {
        let end = self.first_level + self.depth;
        let levels = levels.get(self.first_level..end).unwrap_or_default();
        (levels, leaves.get(self.first_leaf..).unwrap_or_default())
    }
}

fn resolve(split: i32, splits: &[BinSplit]) -> Result<BinSplit> {
    let found = usize::try_from(split).ok().and_then(|index| splits.get(index));
    found.copied().ok_or_else(|| {
        let count = splits.len();
        Error::damaged(format!("split {split} does not exist; the number of splits is {count}"))
    })
}

fn symmetric(
    sizes: &[usize],
    levels: usize,
    leaves: usize,
    dimension: usize,
) -> Result<Vec<SymmetricTree>> {
    let (mut first_level, mut first_leaf) = (0_usize, 0_usize);
    let mut trees = Vec::with_capacity(sizes.len());
    for &depth in sizes {
        if depth > MAX_DEPTH {
            return Err(Error::damaged(format!(
                "a tree has {depth} levels; at most {MAX_DEPTH} are allowed"
            )));
        }
        trees.push(SymmetricTree { first_level, depth, first_leaf });
        first_level += depth;
        first_leaf = first_leaf.saturating_add((1_usize << depth).saturating_mul(dimension));
        if first_level > levels || first_leaf > leaves {
            return Err(Error::damaged(
                "the trees need more splits or leaf values than the file has",
            ));
        }
    }
    Ok(trees)
}

fn tree_node(
    index: usize,
    node: &NonSymmetricNode,
    nodes: &[NonSymmetricNode],
    splits: &[BinSplit],
    leaves: usize,
    dimension: usize,
) -> Result<TreeNode> {
    let child = |distance: u16| {
        let child = index + usize::from(distance);
        let child = u32::try_from(child).ok().filter(|_| child < nodes.len());
        child.ok_or_else(|| Error::damaged(format!("a child of node {index} does not exist")))
    };
    let is_leaf = node.left == 0 && node.right == 0;
    let ends = node.left == 0 || node.right == 0;
    if ends && (node.leaf as usize).saturating_add(dimension) > leaves {
        return Err(Error::damaged(format!("the values of node {index} are missing")));
    }
    // The split of a leaf has no meaning.
    let split = if is_leaf { BinSplit { column: 0, bin: 0 } } else { resolve(node.split, splits)? };
    let split = split.column << u8::BITS | u32::from(split.bin);
    Ok(TreeNode { split, left: child(node.left)?, right: child(node.right)?, leaf: node.leaf })
}

/// Adds the leaves of a symmetric tree for a block of rows.
fn add_block(levels: &[BinSplit], leaves: &[f64], sums: &mut [f64], dimension: usize, bins: &[u8]) {
    if dimension == 1 {
        return add_trees([(levels, leaves)], sums, bins);
    }
    for (sums, index) in sums.chunks_exact_mut(dimension).zip(leaf_indices(levels, bins)) {
        add_leaf(sums, leaves.get(usize::from(index) * dimension..).unwrap_or_default());
    }
}

/// The leaf of each row of a block, in a symmetric tree with these levels, at most [`BYTE_DEPTH`].
fn leaf_indices(levels: &[BinSplit], bins: &[u8]) -> [u8; BLOCK] {
    let mut indices = [0_u8; BLOCK];
    for (depth, level) in levels.iter().enumerate() {
        let start = level.column as usize * BLOCK;
        let column = bins.get(start..).and_then(|rest| rest.first_chunk::<BLOCK>());
        let Some(column) = column else { continue };
        // A selection, as vectors of bytes have no shift.
        let bit = 1_u8 << depth;
        for (index, bin) in indices.iter_mut().zip(column) {
            *index |= if *bin >= level.bin { bit } else { 0 };
        }
    }
    indices
}

/// Adds the leaves of groups of symmetric trees of one depth for a block of rows, each with one value.
fn add_groups<const T: usize>(
    groups: &[[SymmetricTree; T]],
    levels: &[BinSplit],
    leaves: &[f64],
    sums: &mut [f64],
    bins: &[u8],
) {
    for group in groups {
        add_trees(group.each_ref().map(|tree| tree.parts(levels, leaves)), sums, bins);
    }
}

/// Adds the leaves of symmetric trees of one depth for a block of rows, each with one value, one tree
/// after the other, as single trees are added.
fn add_trees<const T: usize>(trees: [(&[BinSplit], &[f64]); T], sums: &mut [f64], bins: &[u8]) {
    let indices = trees.map(|(levels, _)| leaf_indices(levels, bins));
    let leaves = trees.map(|(_, leaves)| leaves);
    match trees.first().map_or(0, |(levels, _)| levels.len()) {
        0 => gather::<1, T>(leaves, &indices, sums),
        1 => gather::<2, T>(leaves, &indices, sums),
        2 => gather::<4, T>(leaves, &indices, sums),
        3 => gather::<8, T>(leaves, &indices, sums),
        4 => gather::<16, T>(leaves, &indices, sums),
        5 => gather::<32, T>(leaves, &indices, sums),
        6 => gather::<64, T>(leaves, &indices, sums),
        7 => gather::<128, T>(leaves, &indices, sums),
        _ => gather::<256, T>(leaves, &indices, sums),
    }
}

/// Adds one of `N` leaves of each tree to each sum. `N` is a power of two, so that no index has to be
/// checked.
fn gather<const N: usize, const T: usize>(
    leaves: [&[f64]; T],
    indices: &[[u8; BLOCK]; T],
    sums: &mut [f64],
) {
    let none = &[0.0; N];
    let leaves = leaves.map(|leaves| leaves.first_chunk::<N>().unwrap_or(none));
    // The last block has fewer rows.
    for (row, sum) in sums.iter_mut().enumerate().take(BLOCK) {
        for (leaves, indices) in leaves.iter().zip(indices) {
            let index = indices.get(row).map_or(0, |index| usize::from(*index));
            *sum += leaves.get(index & (N - 1)).copied().unwrap_or(0.0);
        }
    }
}

/// Adds the leaves of a symmetric tree row by row.
fn add_rows(
    levels: &[BinSplit],
    leaves: &[f64],
    sums: &mut [f64],
    dimension: usize,
    bins: &[u8],
    stride: usize,
) {
    for (row, sums) in sums.chunks_exact_mut(dimension).enumerate() {
        let mut index = 0_usize;
        for (depth, level) in levels.iter().enumerate() {
            let bin = bins.get(level.column as usize * stride + row).copied().unwrap_or(0);
            index |= usize::from(bin >= level.bin) << depth;
        }
        add_leaf(sums, leaves.get(index * dimension..).unwrap_or_default());
    }
}

fn add_leaf(sums: &mut [f64], values: &[f64]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// The nodes where [`PARALLEL_ROWS`] rows from `first` on end that start from `start`. They are walked in
/// parallel, as each step depends on the one before.
fn walk(
    start: u32,
    nodes: &[TreeNode],
    bins: &[u8],
    stride: usize,
    first: usize,
) -> [u32; PARALLEL_ROWS] {
    let mut reached = [start; PARALLEL_ROWS];
    if stride - first < PARALLEL_ROWS {
        for (offset, at) in reached.iter_mut().take(stride - first).enumerate() {
            loop {
                let next = next_node(*at, nodes, bins, stride, first + offset);
                if next == *at {
                    break;
                }
                *at = next;
            }
        }
        return reached;
    }
    loop {
        let mut moved = 0;
        for (offset, at) in reached.iter_mut().enumerate() {
            let next = next_node(*at, nodes, bins, stride, first + offset);
            moved |= next ^ *at;
            *at = next;
        }
        if moved == 0 {
            return reached;
        }
    }
}

/// The node that `row` goes to from node `at`.
#[inline]
fn next_node(at: u32, nodes: &[TreeNode], bins: &[u8], stride: usize, row: usize) -> u32 {
    let Some(node) = nodes.get(at as usize) else { return at };
    let bin = bins.get((node.split >> u8::BITS) as usize * stride + row).copied().unwrap_or(0);
    #[allow(clippy::cast_possible_truncation)] // The low byte is the bin.
    let is_right = bin >= node.split as u8;
    if is_right { node.right } else { node.left }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_testing::Random;

    const COLUMNS: usize = 5;

    /// `count` trees of `depth` levels.
    fn trees(random: &mut Random, count: usize, depth: usize) -> Trees {
        let mut number = |most: usize| random.below(most);
        let levels = (0..count * depth).map(|_| BinSplit {
            column: u32::try_from(number(COLUMNS)).expect("a column"),
            bin: u8::try_from(number(254) + 1).expect("a bin"),
        });
        let levels = levels.collect();
        #[allow(clippy::cast_precision_loss)]
        let leaves = (0..count << depth).map(|_| number(1 << 50) as f64 / 1e7).collect();
        let tree =
            |index| SymmetricTree { first_level: index * depth, depth, first_leaf: index << depth };
        Trees::Symmetric { trees: (0..count).map(tree).collect(), levels, leaves }
    }

    #[test]
    fn blocks_have_the_sums_of_single_rows_for_any_number_of_trees() {
        let mut random = Random::seeded(7);
        for count in 0..=2 * PARALLEL_TREES + FEWER_TREES + 1 {
            for depth in 0..=BYTE_DEPTH + 1 {
                let trees = trees(&mut random, count, depth);
                let bins = (0..COLUMNS * BLOCK).map(|_| random.below(256).to_le_bytes()[0]);
                let bins: Vec<u8> = bins.collect();
                let mut together = [0.0; BLOCK];
                trees.add_to(&mut together, 1, &bins, BLOCK);
                for (row, sum) in together.iter().enumerate() {
                    let bins: Vec<u8> = (0..COLUMNS).map(|c| bins[c * BLOCK + row]).collect();
                    let mut alone = [0.0];
                    trees.add_to(&mut alone, 1, &bins, 1);
                    assert_eq!(alone[0].to_bits(), sum.to_bits(), "{count} {depth} {row}");
                }
            }
        }
    }
}
