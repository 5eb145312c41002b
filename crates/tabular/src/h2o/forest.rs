//! Trees as they are evaluated: all nodes in one array, in which the two children of a node are
//! neighbours.

use super::{damaged, numeric};
use crate::walk::{LANES, UNKNOWN_DEPTH, leaves_of};
use tensorserve_tensor::error::Result;

/// The trees of a model.
#[derive(Default)]
pub(super) struct MojoForest {
    nodes: Vec<MojoNode>,
    sets: Vec<LevelSet>,
    /// The bits of all sets.
    words: Vec<u32>,
    trees: Vec<MojoTree>,
}

/// A split or a leaf.
#[derive(Clone, Copy)]
struct MojoNode {
    /// The column, and flags.
    column: u32,
    /// The split; the index of a set, as bits; or the value of a leaf.
    value: f32,
    /// The index of the left child; the right one follows it. [`NO_CHILD`] marks a leaf.
    left: u32,
}

struct MojoTree {
    root: u32,
    /// The sum that the tree adds to.
    output: u32,
}

/// Which levels go right, and which are known to the split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LevelSet {
    /// Levels below or not below these go where missing values go.
    pub(super) known: (i64, i64),
    /// The level of the first bit.
    pub(super) offset: i64,
    /// The first word of its bits, and how many they are.
    pub(super) words: (usize, usize),
}

/// What a node of a file decides.
#[derive(Clone, Copy, Debug)]
pub(super) enum MojoSplit {
    Leaf(f32),
    /// Values that are not below this go right.
    Number {
        column: u16,
        at: f32,
        missing_left: bool,
    },
    /// Levels in the set go right.
    Levels {
        column: u16,
        set: LevelSet,
        missing_left: bool,
    },
}

/// Flag of [`MojoNode::column`]: missing values go left.
const MISSING_LEFT: u32 = 1 << 31;

/// Flag of [`MojoNode::column`]: the node splits by levels.
const BY_LEVEL: u32 = 1 << 30;

/// The bits of [`MojoNode::column`] that hold the column.
const COLUMN_BITS: u32 = BY_LEVEL - 1;

/// No node is its own child, and the first node is a root.
const NO_CHILD: u32 = 0;

const EMPTY: MojoNode = MojoNode { column: 0, value: 0.0, left: NO_CHILD };

impl LevelSet {
    /// A set without levels, to which all values are known that are not missing.
    pub(super) const NONE: LevelSet =
        LevelSet { known: (i64::MIN, i64::MAX), offset: 0, words: (0, 0) };
}

impl MojoForest {
    /// Starts a tree that adds to the sum `output`; returns the place of its root.
    pub(super) fn start_tree(&mut self, output: usize) -> Result<usize> {
        let root = self.nodes.len();
        self.nodes.push(EMPTY);
        self.trees.push(MojoTree { root: to_u32(root)?, output: to_u32(output)? });
        Ok(root)
    }

    /// Adds the bits of a set, as bytes; returns where they are.
    pub(super) fn add_bits(&mut self, bytes: &[u8]) -> (usize, usize) {
        let start = self.words.len();
        self.words.extend(bytes.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            u32::from_le_bytes(word)
        }));
        (start, self.words.len() - start)
    }

    /// Puts a node at `place`. Returns the places of its children, if it has any.
    pub(super) fn put(&mut self, place: usize, split: MojoSplit) -> Result<Option<[usize; 2]>> {
        let left = self.nodes.len();
        let mut node = MojoNode { left: to_u32(left)?, ..EMPTY };
        let missing_left = match split {
            MojoSplit::Leaf(value) => {
                self.set(place, MojoNode { value, ..EMPTY });
                return Ok(None);
            }
            MojoSplit::Number { column, at, missing_left } => {
                node.column = u32::from(column);
                node.value = at;
                missing_left
            }
            MojoSplit::Levels { column, set, missing_left } => {
                node.column = u32::from(column) | BY_LEVEL;
                node.value = f32::from_bits(to_u32(self.sets.len())?);
                self.sets.push(set);
                missing_left
            }
        };
        if missing_left {
            node.column |= MISSING_LEFT;
        }
        self.set(place, node);
        self.nodes.extend([EMPTY; 2]);
        Ok(Some([left, left + 1]))
    }

    fn set(&mut self, place: usize, node: MojoNode) {
        if let Some(slot) = self.nodes.get_mut(place) {
            *slot = node;
        }
    }

    /// Adds the leaf values of `rows`, of `columns` values each, to `sums`, which has `outputs` values
    /// for each row. The trees of an output are added in their order.
    pub(super) fn add_to(&self, sums: &mut [f64], outputs: usize, rows: &[f64], columns: usize) {
        for trees in self.trees.chunks(LANES) {
            let pairs = sums.chunks_exact_mut(outputs).zip(rows.chunks_exact(columns));
            for (sums, row) in pairs {
                let roots = trees.iter().map(|tree| tree.root);
                let leaves = leaves_of(UNKNOWN_DEPTH, roots, |node| self.child_of(node, row));
                for (tree, leaf) in trees.iter().zip(leaves) {
                    let leaf = self.nodes.get(leaf).map_or(0.0, |node| node.value);
                    if let Some(sum) = sums.get_mut(tree.output as usize) {
                        *sum += f64::from(leaf);
                    }
                }
            }
        }
    }

    /// The child of `node` that `row` goes to; of a leaf, the leaf. The choice between left and right
    /// is arithmetic, as a branch could not be predicted.
    #[inline]
    #[allow(clippy::neg_cmp_op_on_partial_ord)] // For NaN.
    fn child_of(&self, node: usize, row: &[f64]) -> usize {
        let Some(&MojoNode { column, value, left }) = self.nodes.get(node) else { return node };
        let x = row.get((column & COLUMN_BITS) as usize).copied().unwrap_or(f64::NAN);
        let missing_left = column & MISSING_LEFT != 0;
        let is_right = if column & BY_LEVEL == 0 {
            let at = f64::from(value);
            if missing_left { x >= at } else { !(x < at) }
        } else {
            self.is_right_level(value.to_bits(), x, missing_left)
        };
        let next = left as usize + usize::from(is_right);
        if left == NO_CHILD { node } else { next }
    }

    /// Whether the level `x` goes right at the split with the set number `set`.
    fn is_right_level(&self, set: u32, x: f64, missing_left: bool) -> bool {
        let Some(set) = self.sets.get(set as usize) else { return !missing_left };
        let level = i64::from(numeric::java_int(x));
        if x.is_nan() || level < set.known.0 || level >= set.known.1 {
            return !missing_left;
        }
        let Ok(bit) = usize::try_from(level - set.offset) else { return false };
        let (start, len) = set.words;
        let word = bit / u32::BITS as usize;
        let bits = self.words.get(start.saturating_add(word)).filter(|_| word < len);
        bits.is_some_and(|bits| bits >> (bit % u32::BITS as usize) & 1 == 1)
    }
}

fn to_u32(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| damaged("the model has more than 2^32 nodes"))
}
