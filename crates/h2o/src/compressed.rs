//! The bytes of a tree, as GBM, DRF and isolation forests have them, become nodes.
//!
//! A node is: its type (1 byte); its column (2 bytes; 65535 for a tree that is a leaf only, whose value
//! follows); where missing values go (1 byte); the split (a float, or a set of levels; nothing if only
//! missing values are split off). The left child follows: a leaf is its value (a float), a subtree has
//! its size before it, in as many bytes as the type says. Then the right child. All is little-endian.
//!
//! Source: `hex.genmodel.algos.tree.SharedTreeMojoModel` and `hex.genmodel.utils.GenmodelBitSet` of
//! h2o-genmodel 3.46.0.6.

use super::forest::{LevelSet, MojoForest, MojoSplits};
use tensorserve_tabular::trees::{Leaf, SplitAt, StoredNode, TreeShape};
use tensorserve_tensor::error::{Error, Result};

/// The column of a tree that is a leaf.
const LEAF_ONLY: u16 = 65_535;

/// Bits of the type: how the left child is stored.
const LEFT: u8 = 0b0011_0011;

/// The left child is a leaf. Otherwise the value is one less than the number of bytes of its size.
const LEFT_LEAF: u8 = 0b0011_0000;

/// Bit of the type: the right child is a leaf.
const RIGHT_LEAF: u8 = 0b0100_0000;

/// Bits of the type: how the node splits.
const SPLIT: u8 = 0b0000_1100;
const BY_NUMBER: u8 = 0;
const BY_SMALL_SET: u8 = 8;
const BY_SET: u8 = 12;

/// Where missing values go (`NaSplitDir`).
const ONLY_MISSING_RIGHT: u8 = 1;
const MISSING_LEFT: u8 = 2;
const LEFTWARD: u8 = 4;

/// The bytes of a small set.
const SMALL_SET: usize = 4;

/// The least bytes that a node takes: a leaf.
const LEAST_NODE: usize = 4;

/// The versions of the format: they differ in the sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeFormat {
    /// MOJO 1.0: levels that a set does not know go left; its size is in bytes.
    First,
    /// MOJO 1.1: levels that a set does not know go where missing values go.
    Second,
    /// Since MOJO 1.2: the size of a set is in bits.
    Current,
}

impl TreeFormat {
    /// The format of trees in a MOJO of this version.
    pub(super) fn of_mojo(version: f64) -> Self {
        if version < 1.05 {
            TreeFormat::First
        } else if version < 1.15 {
            TreeFormat::Second
        } else {
            TreeFormat::Current
        }
    }
}

/// A part of the bytes of a tree.
#[derive(Clone, Copy)]
struct TreePart {
    /// Where it starts.
    at: usize,
    /// Whether it is the value of a leaf.
    is_leaf: bool,
    /// The set of the last split by levels above it. H2O's evaluator has it at hand still when only
    /// missing values are split off.
    last_set: Option<LevelSet>,
}

/// Adds the tree in `bytes`, whose values add to the sum `output`, and which splits `columns` columns.
pub(super) fn add_tree(
    forest: &mut MojoForest,
    bytes: &[u8],
    output: usize,
    columns: usize,
    format: TreeFormat,
) -> Result<()> {
    let root = TreePart { at: 0, is_leaf: false, last_set: None };
    let shape = TreeShape { output, features: columns, width: 1, most_nodes: usize::MAX };
    let mut count = 0;
    forest.add_tree(shape, root, |part, _, splits| {
        count += 1;
        if count > bytes.len() / LEAST_NODE + 1 {
            return Err(Error::damaged("the parts of a tree overlap"));
        }
        let mut reader = CompressedTreeReader { bytes, at: part.at };
        if part.is_leaf {
            return Ok(StoredNode::Leaf(Leaf::Number(reader.float()?)));
        }
        let kind = reader.byte()?;
        let column = u16::from_le_bytes(reader.array()?);
        if column == LEAF_ONLY {
            return Ok(StoredNode::Leaf(Leaf::Number(reader.float()?)));
        }
        if usize::from(column) >= columns {
            return Err(Error::damaged(format!(
                "a tree splits column {column}, and the model has {columns}"
            )));
        }
        let (split, last_set) = reader.split(splits, kind, format, part.last_set)?;
        let (left, right) = reader.children(kind)?;
        let child = |at, is_leaf| TreePart { at, is_leaf, last_set };
        let is_left_leaf = kind & LEFT == LEFT_LEAF;
        Ok(StoredNode::Split {
            feature: usize::from(column),
            at: split.at,
            missing_right: !split.missing_left,
            children: [child(left, is_left_leaf), child(right, kind & RIGHT_LEAF != 0)],
        })
    })
}

/// What decides at a node of a file.
struct MojoSplit {
    at: SplitAt<f32>,
    missing_left: bool,
}

struct CompressedTreeReader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> CompressedTreeReader<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8]> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| Error::damaged("a tree ends too early"))?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| Error::damaged("a tree ends too early"))
    }

    fn byte(&mut self) -> Result<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn float(&mut self) -> Result<f32> {
        self.array().map(f32::from_le_bytes)
    }

    /// A number of `count` bytes.
    fn size(&mut self, count: usize) -> Result<usize> {
        let bytes = self.take(count)?;
        Ok(bytes.iter().rev().fold(0, |size, byte| (size << 8) | usize::from(*byte)))
    }

    /// Reads the split of a node, and the last set on its path.
    fn split(
        &mut self,
        splits: &mut MojoSplits,
        kind: u8,
        format: TreeFormat,
        last_set: Option<LevelSet>,
    ) -> Result<(MojoSplit, Option<LevelSet>)> {
        let direction = self.byte()?;
        let missing_left = matches!(direction, MISSING_LEFT | LEFTWARD);
        let by = kind & SPLIT;
        if direction == ONLY_MISSING_RIGHT {
            let known = last_set.filter(|_| by != BY_NUMBER && format != TreeFormat::First);
            let set = known.map_or(LevelSet::NONE, |set| LevelSet { set: None, ..set });
            return Ok((MojoSplit { at: splits.add(set), missing_left }, last_set));
        }
        let set = match by {
            BY_NUMBER => {
                let at = self.float()?;
                if at.is_nan() {
                    // No value is at least NaN: all go left.
                    let at = splits.add(LevelSet::NONE);
                    return Ok((MojoSplit { at, missing_left }, last_set));
                }
                return Ok((MojoSplit { at: SplitAt::Threshold(at), missing_left }, last_set));
            }
            BY_SMALL_SET => self.set(splits, 0, SMALL_SET, SMALL_SET * 8)?,
            BY_SET => {
                let offset = i64::from(u16::from_le_bytes(self.array()?));
                let (bytes, bits) = if format == TreeFormat::Current {
                    let bits = self.size(4)?;
                    (bits.div_ceil(8), bits)
                } else {
                    let bytes = self.size(2)?;
                    (bytes, bytes * 8)
                };
                self.set(splits, offset, bytes, bits)?
            }
            _ => return Err(Error::damaged(format!("a tree has a node of the type {kind}"))),
        };
        let set = match format {
            TreeFormat::First => LevelSet { known: LevelSet::NONE.known, ..set },
            TreeFormat::Second | TreeFormat::Current => set,
        };
        Ok((MojoSplit { at: splits.add(set), missing_left }, Some(set)))
    }

    fn set(
        &mut self,
        splits: &mut MojoSplits,
        offset: i64,
        bytes: usize,
        bits: usize,
    ) -> Result<LevelSet> {
        let set = Some(splits.add_bits(self.take(bytes)?));
        // There are fewer bits than eight times the bytes of a file.
        let end = offset.saturating_add(i64::try_from(bits).unwrap_or(i64::MAX));
        Ok(LevelSet { known: (offset, end), offset, set })
    }

    /// Where the left and the right child start.
    fn children(&mut self, kind: u8) -> Result<(usize, usize)> {
        let left = kind & LEFT;
        if left == LEFT_LEAF {
            let start = self.at;
            self.take(LEAST_NODE)?;
            return Ok((start, self.at));
        }
        if left > 3 {
            return Err(Error::damaged(format!("a tree has a node of the type {kind}")));
        }
        let size = self.size(usize::from(left) + 1)?;
        let start = self.at;
        self.take(size)?;
        Ok((start, self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f64 = f64::NAN;

    fn leaves(bytes: &[u8], format: TreeFormat, rows: &[f64]) -> Vec<f64> {
        let mut forest = MojoForest::default();
        add_tree(&mut forest, bytes, 0, 1, format).expect("valid");
        let mut sums = vec![0.0; rows.len()];
        forest.add_to(&mut sums, 1, rows, 1);
        sums
    }

    /// A split whose children are the leaves 1 and 2.
    fn split(kind: u8, direction: u8, split: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind | LEFT_LEAF | RIGHT_LEAF, 0, 0, direction];
        bytes.extend_from_slice(split);
        bytes.extend_from_slice(&1.0_f32.to_le_bytes());
        bytes.extend_from_slice(&2.0_f32.to_le_bytes());
        bytes
    }

    #[test]
    fn numbers_below_the_split_go_left_and_missing_ones_where_it_says() {
        let rows = [0.4, 0.5, f64::INFINITY, NAN];
        let at = 0.5_f32.to_le_bytes();
        for (direction, missing) in [(2, 1.0), (3, 2.0), (4, 1.0), (5, 2.0), (0, 2.0)] {
            let tree = split(0, direction, &at);
            let found = leaves(&tree, TreeFormat::Current, &rows);
            assert_eq!(found, [1.0, 2.0, 2.0, missing], "{direction}");
        }
        let found = leaves(&split(0, 1, &[]), TreeFormat::Current, &rows);
        assert_eq!(found, [1.0, 1.0, 1.0, 2.0], "only missing values go right");
        let found = leaves(&split(0, 2, &f32::NAN.to_le_bytes()), TreeFormat::Current, &rows);
        assert_eq!(found, [1.0; 4]);
    }

    #[test]
    fn levels_in_the_set_go_right_and_unknown_ones_as_the_version_has_it() {
        let rows = [0.0, 1.0, 31.0, 32.0, NAN];
        let small = split(8, 3, &[0b10, 0, 0, 0x80]);
        assert_eq!(leaves(&small, TreeFormat::Current, &rows), [1.0, 2.0, 2.0, 2.0, 2.0]);
        assert_eq!(leaves(&small, TreeFormat::First, &rows), [1.0, 2.0, 2.0, 1.0, 2.0]);

        let rows = [29.0, 30.0, 33.0, 41.0, 42.0, NAN];
        // From level 30 on 12 levels in bits, or 2 bytes of them.
        let current = split(12, 2, &[30, 0, 12, 0, 0, 0, 0b1000, 0b1000]);
        assert_eq!(leaves(&current, TreeFormat::Current, &rows), [1.0, 1.0, 2.0, 2.0, 1.0, 1.0]);
        let old = split(12, 3, &[30, 0, 2, 0, 0b1000, 0b1000]);
        assert_eq!(leaves(&old, TreeFormat::Second, &rows), [2.0, 1.0, 2.0, 2.0, 1.0, 2.0]);
        assert_eq!(leaves(&old, TreeFormat::First, &rows), [1.0, 1.0, 2.0, 2.0, 1.0, 2.0]);
    }

    fn refusal(bytes: &[u8]) -> String {
        let mut forest = MojoForest::default();
        let error = add_tree(&mut forest, bytes, 0, 1, TreeFormat::Current).expect_err("damaged");
        error.message().to_owned()
    }

    #[test]
    fn damaged_trees_are_refused() {
        let good = split(0, 2, &0.5_f32.to_le_bytes());
        for end in 0..good.len() {
            assert_eq!(refusal(&good[..end]), "a tree ends too early");
        }
        let mut other = good.clone();
        other[1] = 1;
        assert_eq!(refusal(&other), "a tree splits column 1, and the model has 1");
        assert_eq!(refusal(&split(4, 2, &[0; 4])), "a tree has a node of the type 116");
        // Each node's left and right child are the bytes of the next node.
        let mut overlapping = [[0, 0, 0, 2, 0, 0, 0, 0, 0]; 40].concat();
        overlapping.extend([0, 255, 255, 0, 0, 0, 0]);
        assert_eq!(refusal(&overlapping), "the parts of a tree overlap");
    }
}
