//! The trees of LightGBM as they are evaluated.
//!
//! The library treats values within [`ZERO_BAND`] of 0 as 0, and NaN as 0 where it is not missing.
//! Neither is done to a row here: when a tree is added, thresholds are moved to the end of the band,
//! and each node gets the direction in which it sends NaN.

use std::ops::Range;

use super::tree::{LightgbmTree, LinearLeaf, MissingType, SplitCondition, SplitNode};
use tensorserve_tabular::trees::{
    self, BitSets, Leaf, SplitAt, Splits, StoredNode, TreeShape, checked_feature,
};
use tensorserve_tensor::error::{Error, Result};

/// All trees of a model. A leaf with a linear model has two values: the one without it, and its index.
#[derive(Default)]
pub(super) struct LightgbmForest {
    trees: trees::Forest<LightgbmSplits>,
    linear_leaves: Vec<FlatLinearLeaf>,
    /// The terms of all linear leaves.
    terms: Vec<LinearTerm>,
}

/// Splits at thresholds, up to which values go to the left, and those of which the threshold alone does not decide.
#[derive(Default)]
struct LightgbmSplits {
    special: Vec<SpecialSplit>,
    categories: BitSets,
}

#[derive(Clone, Copy)]
enum SpecialSplit {
    /// Values around 0 go in the direction opposite to the one that the threshold gives them.
    ZeroOpposite { threshold: f64 },
    /// The categories of this set go to the left.
    Categories(usize),
}

/// The linear model of a leaf: a constant, and a range of [`LightgbmForest::terms`].
struct FlatLinearLeaf {
    constant: f64,
    start: usize,
    end: usize,
}

struct LinearTerm {
    feature: u32,
    coefficient: f64,
}

/// In the place of the index of a leaf's linear model.
const NO_LINEAR_MODEL: f64 = f64::INFINITY;

/// The distance from 0 up to which values are 0: `kZeroThreshold` of the library, which is a number in
/// single precision.
#[allow(clippy::cast_lossless)] // Not in a constant.
const ZERO_BAND: f64 = 1e-35_f32 as f64;

impl Splits for LightgbmSplits {
    type Value = f64;
    type Threshold = f64;
    type Leaf = f64;

    fn is_right_special(&self, index: usize, value: f64, missing_right: bool) -> bool {
        match self.special.get(index) {
            Some(SpecialSplit::ZeroOpposite { threshold }) => {
                let is_right = value > *threshold || (value.is_nan() && missing_right);
                is_right ^ is_zero(value)
            }
            Some(SpecialSplit::Categories(set)) => !self.is_category_of(*set, value),
            None => false,
        }
    }
}

impl LightgbmSplits {
    /// Whether the category `x` is in the set number `set`. Fractions are cut off, so -0.5 is category 0.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn is_category_of(&self, set: usize, x: f64) -> bool {
        // The library converts to a 32-bit integer; on the processors that it is built for, what does
        // not fit becomes a negative one.
        let is_category = x > -1.0 && x < -f64::from(i32::MIN);
        is_category && self.categories.contains(set, x as u32)
    }

    /// What decides at `split`, whose tree has its categories from `first_word` to `end_word`; and whether NaN goes
    /// to the right.
    fn add(&mut self, split: &SplitNode, words: &Range<usize>) -> Result<(SplitAt<f64>, bool)> {
        match split.condition {
            SplitCondition::Number { threshold, missing, default_left } => {
                let rule = NumericRule::new(threshold, missing, default_left);
                let at = match rule.zero_opposite {
                    false => SplitAt::Threshold(rule.threshold),
                    true => {
                        let threshold = rule.threshold;
                        SplitAt::Special(self.push(SpecialSplit::ZeroOpposite { threshold }))
                    }
                };
                Ok((at, !rule.nan_left))
            }
            SplitCondition::Categories { start, end } => {
                let range = words.start.saturating_add(start)..words.start.saturating_add(end);
                if range.start > range.end || range.end > words.end {
                    return Err(Error::damaged("the categories of a node are missing"));
                }
                let set = self.categories.add(range);
                Ok((SplitAt::Special(self.push(SpecialSplit::Categories(set))), true))
            }
        }
    }

    fn push(&mut self, split: SpecialSplit) -> usize {
        self.special.push(split);
        self.special.len() - 1
    }
}

impl LightgbmForest {
    /// Adds a tree, whose values are added to output number `output`.
    pub(super) fn add(
        &mut self,
        tree: &LightgbmTree,
        output: usize,
        features: usize,
    ) -> Result<()> {
        let words = self.trees.splits_mut().categories.extend(tree.words.iter().copied());
        let root = if tree.splits.is_empty() { !0 } else { 0 };
        let width = if tree.linear.is_empty() { 1 } else { 2 };
        let most_nodes = tree.splits.len() + tree.leaves.len();
        let LightgbmForest { trees, linear_leaves, terms } = self;
        let shape = TreeShape { output, features, width, most_nodes: most_nodes.max(1) };
        trees.add_tree(shape, root, |from, _, splits| {
            let Ok(index) = usize::try_from(from) else {
                let leaf = usize::try_from(!from).unwrap_or(usize::MAX);
                let value = tree.leaf(leaf)?;
                if width == 1 {
                    return Ok(StoredNode::Leaf(Leaf::Number(value)));
                }
                let mut linear = NO_LINEAR_MODEL;
                if let Some(stored) = tree.linear.get(leaf) {
                    linear = index_as_number(linear_leaves.len());
                    linear_leaves.push(FlatLinearLeaf::new(stored, features, terms)?);
                }
                return Ok(StoredNode::Leaf(Leaf::Vector(vec![value, linear])));
            };
            let split = tree.splits.get(index).ok_or_else(|| {
                let splits = tree.splits.len();
                Error::damaged(format!("node {index} does not exist; there are {splits}"))
            })?;
            let (at, missing_right) = splits.add(split, &words)?;
            let (feature, children) = (split.feature, [split.left, split.right]);
            Ok(StoredNode::Split { feature, at, missing_right, children })
        })
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
        if self.linear_leaves.is_empty() {
            return self.trees.add_to(sums, outputs, rows, features);
        }
        let all = rows.chunks_exact(features.max(1));
        self.trees.for_each_leaf(all, |number, output, leaf| {
            let Some(sum) = sums.get_mut(number * outputs + output) else { return };
            *sum += match *leaf {
                [value, linear] => {
                    let row = rows.get(number * features..).unwrap_or_default();
                    self.linear_value(linear, value, row)
                }
                [value] => value,
                _ => 0.0,
            };
        });
    }

    /// The value of the linear model of a leaf; `value` if one of its features is NaN.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // It is an index.
    fn linear_value(&self, linear: f64, value: f64, row: &[f64]) -> f64 {
        let Some(leaf) = self.linear_leaves.get(linear as usize) else { return value };
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
}

impl LightgbmTree {
    /// The value of a leaf without its linear model.
    fn leaf(&self, index: usize) -> Result<f64> {
        self.leaves.get(index).copied().ok_or_else(|| {
            let leaves = self.leaves.len();
            Error::damaged(format!("leaf {index} does not exist; there are {leaves}"))
        })
    }
}

impl FlatLinearLeaf {
    /// Adds the terms of a leaf.
    fn new(leaf: &LinearLeaf, features: usize, terms: &mut Vec<LinearTerm>) -> Result<Self> {
        let start = terms.len();
        for &(feature, coefficient) in &leaf.terms {
            let feature = checked_feature(feature, features)?;
            terms.push(LinearTerm { feature, coefficient });
        }
        Ok(FlatLinearLeaf { constant: leaf.constant, start, end: terms.len() })
    }
}

/// A node that compares numbers.
struct NumericRule {
    threshold: f64,
    nan_left: bool,
    /// Whether values around 0 go in the direction opposite to the one that the threshold gives them.
    zero_opposite: bool,
}

impl NumericRule {
    fn new(threshold: f64, missing: MissingType, default_left: bool) -> Self {
        // NaN is never below a threshold, and no value is.
        let threshold = if threshold.is_nan() { f64::NEG_INFINITY } else { threshold };
        let zero_left = threshold >= 0.0;
        // All values of the band are on the side of 0.
        let threshold = match () {
            () if zero_left => threshold.max(ZERO_BAND),
            () if threshold >= -ZERO_BAND => (-ZERO_BAND).next_down(),
            () => threshold,
        };
        let (nan_left, zero_opposite) = match missing {
            MissingType::None => (zero_left, false),
            MissingType::Zero => (default_left, default_left != zero_left),
            MissingType::Nan => (default_left, false),
        };
        NumericRule { threshold, nan_left, zero_opposite }
    }
}

#[allow(clippy::cast_precision_loss)] // There are fewer leaves than bytes.
fn index_as_number(index: usize) -> f64 {
    index as f64
}

fn is_zero(x: f64) -> bool {
    x.abs() <= ZERO_BAND
}
