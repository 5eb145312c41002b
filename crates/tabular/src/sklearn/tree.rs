//! Decision trees, laid out so that a row's way through them only ever goes forward.

use super::estimator::Estimator;
use super::model::Rows;
use crate::pickle::{NumpyArray, PickleValue, dtype_kind};
use tensorserve_tensor::error::Result;

/// In place of a feature: the node is a leaf.
const LEAF: u32 = u32::MAX >> 1;
/// Beside a feature: a missing value goes left.
const MISSING_LEFT: u32 = !LEAF;

/// One decision, or the end of the way.
#[derive(Clone, Copy)]
struct Node {
    /// A value up to this goes to the next node.
    threshold: f64,
    /// The feature that decides, or [`LEAF`], and [`MISSING_LEFT`].
    feature: u32,
    /// The node that any other value goes to; of a leaf, where its values begin.
    other: u32,
}

/// Trees over the same features.
pub(super) struct Trees {
    features: usize,
    /// The numbers in each leaf.
    width: usize,
    nodes: Vec<Node>,
    roots: Vec<usize>,
    values: Vec<f64>,
}

/// A node as it was stored.
pub(super) struct Stored {
    /// The feature and the threshold; `None` of a leaf.
    pub(super) split: Option<(i64, f64)>,
    pub(super) missing_left: bool,
    pub(super) left: i64,
    pub(super) right: i64,
}

impl Trees {
    pub(super) fn new(features: usize, width: usize) -> Self {
        Trees { features, width, nodes: Vec::new(), roots: Vec::new(), values: Vec::new() }
    }

    pub(super) fn features(&self) -> usize {
        self.features
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn len(&self) -> usize {
        self.roots.len()
    }

    /// Adds a tree: its nodes, and the values of a leaf by its number and its depth. With
    /// `columns`, its features are of those columns.
    pub(super) fn add(
        &mut self,
        of: &Estimator,
        stored: &[Stored],
        columns: Option<&[usize]>,
        mut leaf: impl FnMut(usize, usize, &mut Vec<f64>),
    ) -> Result<()> {
        let cut = |what: &str| of.fault(format_args!("a tree of it {what}"));
        self.roots.push(self.nodes.len());
        let mut seen = vec![false; stored.len()];
        // The node, its depth, and the parent that has it as its other one.
        let mut waiting = vec![(0, 0, None)];
        while let Some((number, depth, parent)) = waiting.pop() {
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            let node = stored.get(number).ok_or_else(|| cut("has a branch that leads nowhere"))?;
            match seen.get_mut(number) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(cut("has a node with two parents")),
            }
            let place = self.nodes.len();
            let short = u32::try_from(place).map_err(|_| cut("is too large"))?;
            if let Some(parent) = parent
                && let Some(parent) = self.nodes.get_mut::<usize>(parent)
            {
                parent.other = short;
            }
            let Some((feature, threshold)) = node.split else {
                let other = u32::try_from(self.values.len()).map_err(|_| cut("is too large"))?;
                self.nodes.push(Node { threshold: 0.0, feature: LEAF, other });
                leaf(number, depth, &mut self.values);
                self.values.resize(usize::try_from(other).unwrap_or(0) + self.width, 0.0);
                continue;
            };
            let feature = usize::try_from(feature).ok().and_then(|feature| match columns {
                Some(columns) => columns.get(feature).copied(),
                None => Some(feature),
            });
            let feature = feature.filter(|feature| *feature < self.features);
            let feature = feature.and_then(|feature| u32::try_from(feature).ok());
            let feature = feature.filter(|feature| *feature < LEAF);
            let feature = feature.ok_or_else(|| cut("asks for a feature that is not there"))?;
            let missing = if node.missing_left { MISSING_LEFT } else { 0 };
            self.nodes.push(Node { threshold, feature: feature | missing, other: 0 });
            // The left one is taken next, and so comes to lie next.
            waiting.push((node.right, depth + 1, Some(place)));
            waiting.push((node.left, depth + 1, None));
        }
        Ok(())
    }

    /// The values of the leaf that `row` comes to in the tree that begins at `root`.
    fn leaf(&self, root: usize, row: &[f64]) -> &[f64] {
        let mut at = root;
        while let Some(node) = self.nodes.get(at) {
            let feature = node.feature & LEAF;
            if feature == LEAF {
                at = node.other as usize;
                break;
            }
            let value = row.get(feature as usize).copied().unwrap_or(f64::NAN);
            let stays =
                value <= node.threshold || (value.is_nan() && node.feature & MISSING_LEFT != 0);
            at = if stays { at + 1 } else { node.other as usize };
        }
        self.values.get(at..at + self.width).unwrap_or_default()
    }

    /// Gives `take` each row's number, and its leaf in each tree, tree after tree.
    pub(super) fn walk(&self, rows: Rows, mut take: impl FnMut(usize, usize, &[f64])) {
        for (tree, root) in self.roots.iter().enumerate() {
            for (number, row) in rows.iter().enumerate() {
                take(tree, number, self.leaf(*root, row));
            }
        }
    }

    /// Adds each row's leaf in every tree to its `width` places of `out`.
    pub(super) fn sum(&self, rows: Rows, out: &mut [f64]) {
        for root in &self.roots {
            for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.width.max(1))) {
                let values = self.leaf(*root, row);
                out.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}

/// The rows as the 32-bit numbers that scikit-learn's trees compare.
pub(super) fn narrowed(rows: Rows) -> Vec<f64> {
    rows.values.iter().map(|value| f64::from(*value as f32)).collect()
}

/// A tree of scikit-learn's.
pub(super) struct Stump<'a> {
    pub(super) nodes: Vec<Stored>,
    /// For each node, the numbers of each output.
    pub(super) values: Vec<f64>,
    pub(super) outputs: usize,
    /// Numbers of an output.
    pub(super) width: usize,
    pub(super) takes_missing: bool,
    array: &'a NumpyArray,
}

impl<'a> Stump<'a> {
    /// Reads the tree of the fitted tree estimator `of`.
    pub(super) fn read(of: &Estimator<'a>) -> Result<Self> {
        let tree = of.child(of.attribute(&["tree_"])?)?;
        let nodes = tree.array(&["nodes"])?;
        let values = tree.array(&["values"])?;
        let count = nodes.len();
        tree.charge(count.saturating_mul(5))?;
        let [rows, outputs, width] = *values.shape() else {
            return Err(tree.fault("its values do not have three dimensions"));
        };
        if rows != count || outputs == 0 || width == 0 {
            return Err(tree.fault("its values are not one for each node"));
        }
        let (_, values) = tree.numbers(&["values"])?;
        let ints = |name: &str| {
            let field = nodes.field(name).and_then(|field| field.i64s());
            field.ok_or_else(|| tree.fault(format_args!("its nodes have no {name}")))
        };
        let (left, right) = (ints("left_child")?, ints("right_child")?);
        let feature = ints("feature")?;
        let threshold = nodes.field("threshold").and_then(|field| field.f64s());
        let threshold = threshold.ok_or_else(|| tree.fault("its nodes have no threshold"))?;
        let missing = nodes.field("missing_go_to_left").and_then(|field| field.i64s());
        let takes_missing = missing.is_some();
        let missing = missing.unwrap_or_else(|| vec![0; count]);
        let sides = left.into_iter().zip(right).zip(missing);
        let nodes = feature.into_iter().zip(threshold).zip(sides);
        let nodes = nodes.map(|(split, ((left, right), missing))| Stored {
            split: (left >= 0).then_some(split),
            missing_left: missing != 0,
            left,
            right,
        });
        let nodes = nodes.collect();
        Ok(Stump { nodes, values, outputs, width, takes_missing, array: tree.array(&["nodes"])? })
    }

    /// The numbers of node `number`.
    pub(super) fn at(&self, number: usize) -> &[f64] {
        let width = self.outputs * self.width;
        self.values.get(number * width..(number + 1) * width).unwrap_or_default()
    }

    /// How many rows each node was fitted with.
    pub(super) fn samples(&self, of: &Estimator) -> Result<Vec<i64>> {
        let samples = self.array.field("n_node_samples").and_then(|field| field.i64s());
        samples.ok_or_else(|| of.fault("its nodes have no n_node_samples"))
    }
}

/// Which columns each of an ensemble's estimators has, if they do not all have all.
pub(super) fn columns_of(ensemble: &Estimator, features: usize) -> Result<Option<Vec<Vec<usize>>>> {
    let Some(value) = ensemble.find(&["estimators_features_"]) else { return Ok(None) };
    let wrong = || ensemble.fault("its estimators_features_ are no columns");
    let column = |number: i64| {
        usize::try_from(number).ok().filter(|column| *column < features).ok_or_else(wrong)
    };
    let mut all = Vec::new();
    let lists: Vec<Vec<i64>> =
        match value.array().filter(|array| array.kind() != dtype_kind::OBJECT) {
            Some(array) => {
                ensemble.charge(array.len())?;
                let width = array.shape().get(1).copied().filter(|width| *width > 0);
                let numbers = array.i64s().ok_or_else(wrong)?;
                numbers.chunks(width.ok_or_else(wrong)?).map(<[i64]>::to_vec).collect()
            }
            None => {
                let items: Vec<PickleValue> = value.items().ok_or_else(wrong)?;
                let list = |item: PickleValue| {
                    let array = item.array().ok_or_else(wrong)?;
                    ensemble.charge(array.len())?;
                    array.i64s().ok_or_else(wrong)
                };
                items.into_iter().map(list).collect::<Result<_>>()?
            }
        };
    for list in lists {
        all.push(list.into_iter().map(column).collect::<Result<_>>()?);
    }
    Ok(Some(all))
}
