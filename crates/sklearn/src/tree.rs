//! The trees of scikit-learn, as pickles store them, and how they split.

use super::estimator::Estimator;
use super::model::FeatureRows;
use std::marker::PhantomData;
use tensorserve_pickle::{NumpyArray, dtype_kind};
use tensorserve_tabular::trees::{
    BitSets, Forest, Leaf, LeafValue, RowValue, SplitAt, Splits, StoredNode, Threshold, TreeShape,
    word_and_bit,
};
use tensorserve_tensor::error::{Error, Result};

/// Words of a set of categories, numbers from 0 to 255.
pub(super) const WORDS_OF_A_SET: usize = 8;

/// A set of categories.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CategorySet([u32; WORDS_OF_A_SET]);

impl CategorySet {
    /// The set whose bits are in 32-bit words.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The words are unsigned.
    pub(super) fn from_words(words: &[i64; WORDS_OF_A_SET]) -> Self {
        CategorySet(words.map(|word| word as u32))
    }

    /// Adds a category, if it is one.
    pub(super) fn add(&mut self, category: f64) {
        let Some(category) = category_of(category) else { return };
        let (word, bit) = word_and_bit(category);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }
}

/// The category that `value` is, rounded down.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // It is in the range.
fn category_of(value: f64) -> Option<u32> {
    (0.0..256.0).contains(&value).then_some(value as u32)
}

/// A split by categories.
#[derive(Clone, Copy, Debug)]
pub(super) struct CategorySplit {
    /// The categories that go to the left.
    pub(super) left: CategorySet,
    /// All that the feature had in training. Any other is a missing value.
    pub(super) known: CategorySet,
}

/// The left child of a leaf (`sklearn.tree._tree.TREE_LEAF`).
const TREE_LEAF: i64 = -1;

/// The numbers that a node of scikit-learn's trees is read as.
const NUMBERS_PER_NODE: usize = 5;

/// Splits at thresholds of type `T`, up to which values go to the left, and by categories.
struct SklearnSplits<T> {
    /// Of special split number `i`, the categories that go to the left are set `2 i`, all known ones set `2 i + 1`.
    categories: BitSets,
    thresholds: PhantomData<T>,
}

impl<T> Default for SklearnSplits<T> {
    fn default() -> Self {
        SklearnSplits { categories: BitSets::default(), thresholds: PhantomData }
    }
}

impl<T: FeaturePrecision> Splits for SklearnSplits<T>
where
    f64: LeafValue<T>,
{
    type Value = T;
    type Threshold = T;
    type Leaf = f64;

    fn is_right_special(&self, index: usize, value: T, missing_right: bool) -> bool {
        let category = category_of(value.into());
        let is_in = |set| category.is_some_and(|x| self.categories.contains(set, x));
        match () {
            () if is_in(2 * index) => false,
            () if is_in(2 * index + 1) => true,
            () => missing_right,
        }
    }
}

impl<T> SklearnSplits<T> {
    /// Adds a split, and returns its index.
    fn add(&mut self, split: CategorySplit) -> usize {
        let left = self.categories.extend(split.left.0);
        let first = self.categories.add(left);
        let known = self.categories.extend(split.known.0);
        self.categories.add(known);
        first / 2
    }
}

/// The precision in which features are compared with thresholds.
trait FeaturePrecision: Threshold + RowValue + Into<f64> {
    /// The threshold that a file has. Values of this precision are above it exactly if they are above that of the file.
    fn of_file(threshold: f64) -> Self;
}

impl FeaturePrecision for f32 {
    #[allow(clippy::cast_possible_truncation)] // Rounded down.
    fn of_file(threshold: f64) -> Self {
        let nearest = threshold as f32;
        if f64::from(nearest) > threshold { nearest.next_down() } else { nearest }
    }
}

impl FeaturePrecision for f64 {
    fn of_file(threshold: f64) -> Self {
        threshold
    }
}

/// Trees over the same features, whose leaves have the same number of values.
pub(super) struct SklearnTrees {
    features: usize,
    /// The number of values of a leaf.
    width: usize,
    forest: SklearnForest,
}

/// Trees by the precision in which features are compared.
enum SklearnForest {
    /// Features are rounded to it first.
    Single(Forest<SklearnSplits<f32>>),
    Double(Forest<SklearnSplits<f64>>),
}

/// A node as a file stores it.
pub(super) struct SklearnNode {
    /// The feature and the threshold; `None` for a leaf.
    pub(super) split: Option<(i64, f64)>,
    /// The split, if it is by categories; the threshold is not used then.
    pub(super) categories: Option<CategorySplit>,
    pub(super) missing_left: bool,
    pub(super) left: i64,
    pub(super) right: i64,
}

impl SklearnTrees {
    /// No trees yet, of those that compare features in single precision.
    pub(super) fn single_precision(features: usize, width: usize) -> Self {
        SklearnTrees { features, width, forest: SklearnForest::Single(Forest::default()) }
    }

    /// No trees yet, of those that compare features as they are.
    pub(super) fn double_precision(features: usize, width: usize) -> Self {
        SklearnTrees { features, width, forest: SklearnForest::Double(Forest::default()) }
    }

    pub(super) fn features(&self) -> usize {
        self.features
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn len(&self) -> usize {
        match &self.forest {
            SklearnForest::Single(forest) => forest.len(),
            SklearnForest::Double(forest) => forest.len(),
        }
    }

    /// Adds a tree of `estimator`. `leaf` appends the values of a leaf, given its index in the file
    /// and its depth. With `columns`, the features of the tree are indices into these.
    pub(super) fn add(
        &mut self,
        estimator: &Estimator,
        stored: &[SklearnNode],
        columns: Option<&[usize]>,
        leaf: impl FnMut(usize, usize, &mut Vec<f64>),
    ) -> Result<()> {
        let shape = TreeShape {
            output: self.len(),
            features: self.features,
            width: self.width,
            most_nodes: stored.len().max(1),
        };
        let added = match &mut self.forest {
            SklearnForest::Single(forest) => add_tree(forest, shape, stored, columns, leaf),
            SklearnForest::Double(forest) => add_tree(forest, shape, stored, columns, leaf),
        };
        added.map_err(|error| error.context(estimator.class()))
    }

    /// Calls `take` for each row and tree, with the indices of the tree and of the row, and the
    /// values of the leaf.
    pub(super) fn walk(&self, rows: FeatureRows, mut take: impl FnMut(usize, usize, &[f64])) {
        let take = |row, tree, leaf: &[f64]| take(tree, row, leaf);
        match &self.forest {
            SklearnForest::Single(forest) => {
                let values: Vec<f32> = rows.values.iter().map(|value| *value as f32).collect();
                forest.for_each_leaf(values.chunks_exact(rows.columns.max(1)), take);
            }
            SklearnForest::Double(forest) => forest.for_each_leaf(rows.iter(), take),
        }
    }

    /// Adds the values of each row's leaf in every tree to the `width` values of the row in `out`.
    pub(super) fn sum(&self, rows: FeatureRows, out: &mut [f64]) {
        let width = self.width;
        self.walk(rows, |_, row, leaf| {
            let sums = out.get_mut(row * width..(row + 1) * width).unwrap_or_default();
            sums.iter_mut().zip(leaf).for_each(|(sum, value)| *sum += value);
        });
    }
}

/// Adds the tree whose nodes a file has as `stored`, as [`SklearnTrees::add`] describes.
fn add_tree<T: FeaturePrecision>(
    forest: &mut Forest<SklearnSplits<T>>,
    shape: TreeShape,
    stored: &[SklearnNode],
    columns: Option<&[usize]>,
    mut leaf: impl FnMut(usize, usize, &mut Vec<f64>),
) -> Result<()>
where
    f64: LeafValue<T>,
{
    let TreeShape { features, width, .. } = shape;
    forest.add_tree(shape, 0, |number, depth, splits| {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let node = stored
            .get(number)
            .ok_or_else(|| Error::damaged("a node of a tree has a missing child"))?;
        let Some((feature, threshold)) = node.split else {
            let mut values = Vec::with_capacity(width);
            leaf(number, depth as usize, &mut values);
            values.resize(width, 0.0);
            return Ok(StoredNode::Leaf(Leaf::from_values(values)));
        };
        let column = column_of(feature, columns).filter(|column| *column < features);
        let column = column.ok_or_else(|| {
            Error::damaged(format!("a tree splits by feature {feature}, which does not exist"))
        })?;
        let at = match node.categories {
            Some(split) => SplitAt::Special(splits.add(split)),
            None if threshold.is_nan() => {
                return Err(Error::damaged("a threshold of a tree is not a number"));
            }
            None => SplitAt::Threshold(T::of_file(threshold)),
        };
        Ok(StoredNode::Split {
            feature: column,
            at,
            missing_right: !node.missing_left,
            children: [node.left, node.right],
        })
    })
}

/// The column of feature number `feature` of a tree; `None` if there is no such column.
fn column_of(feature: i64, columns: Option<&[usize]>) -> Option<usize> {
    let feature = usize::try_from(feature).ok()?;
    match columns {
        Some(columns) => columns.get(feature).copied(),
        None => Some(feature),
    }
}

/// A fitted `sklearn.tree._tree.Tree`.
pub(super) struct PickledTree<'a> {
    pub(super) nodes: Vec<SklearnNode>,
    /// For each node, `width` values for each of `outputs` outputs.
    values: Vec<f64>,
    pub(super) outputs: usize,
    pub(super) width: usize,
    /// Whether its nodes record where missing values go.
    pub(super) has_missing: bool,
    array: &'a NumpyArray,
}

impl<'a> PickledTree<'a> {
    /// Reads the tree of a fitted tree estimator.
    pub(super) fn read(estimator: &Estimator<'a>) -> Result<Self> {
        let tree = estimator.child(estimator.attribute(&["tree_"])?)?;
        let array = tree.array(&["nodes"])?;
        let values = tree.array(&["values"])?;
        let count = array.len();
        tree.charge(count.saturating_mul(NUMBERS_PER_NODE))?;
        let [rows, outputs, width] = *values.shape() else {
            return Err(tree.damaged("values does not have three dimensions"));
        };
        if rows != count || outputs == 0 || width == 0 {
            return Err(tree.damaged(format_args!("values has {rows} rows for {count} nodes")));
        }
        let (_, values) = tree.numbers(&["values"])?;
        let left = node_integers(&tree, array, "left_child")?;
        let right = node_integers(&tree, array, "right_child")?;
        let feature = node_integers(&tree, array, "feature")?;
        let threshold = node_floats(&tree, array, &["threshold"])?;
        let missing = array.field("missing_go_to_left").and_then(|field| field.i64s());
        let has_missing = missing.is_some();
        let missing = missing.unwrap_or_else(|| vec![0; count]);
        let children = left.into_iter().zip(right).zip(missing);
        let nodes = feature.into_iter().zip(threshold).zip(children);
        let nodes = nodes.map(|(split, ((left, right), missing))| SklearnNode {
            split: (left > TREE_LEAF).then_some(split),
            categories: None,
            missing_left: missing != 0,
            left,
            right,
        });
        Ok(PickledTree { nodes: nodes.collect(), values, outputs, width, has_missing, array })
    }

    /// The values of node `number`, of all outputs.
    pub(super) fn values(&self, number: usize) -> &[f64] {
        let width = self.outputs * self.width;
        self.values.get(number * width..(number + 1) * width).unwrap_or_default()
    }

    /// The number of training rows of each node.
    pub(super) fn sample_counts(&self, estimator: &Estimator) -> Result<Vec<i64>> {
        node_integers(estimator, self.array, "n_node_samples")
    }
}

/// The field `name` of all nodes, as integers.
pub(super) fn node_integers(
    estimator: &Estimator,
    nodes: &NumpyArray,
    name: &str,
) -> Result<Vec<i64>> {
    let field = nodes.field(name).and_then(|field| field.i64s());
    field.ok_or_else(|| missing_field(estimator, name))
}

/// The first of the fields `names` that all nodes have, as floats.
pub(super) fn node_floats(
    estimator: &Estimator,
    nodes: &NumpyArray,
    names: &[&str],
) -> Result<Vec<f64>> {
    let field = names.iter().find_map(|name| nodes.field(name));
    let values = field.and_then(|field| field.f64s());
    values.ok_or_else(|| missing_field(estimator, names.first().unwrap_or(&"?")))
}

fn missing_field(estimator: &Estimator, name: &str) -> tensorserve_tensor::error::Error {
    estimator.damaged(format_args!("nodes has no field {name}"))
}

/// The columns of each estimator of an ensemble; `None` if each uses all of them.
pub(super) fn read_estimator_columns(
    ensemble: &Estimator,
    features: usize,
) -> Result<Option<Vec<Vec<usize>>>> {
    let Some(value) = ensemble.find(&["estimators_features_"]) else { return Ok(None) };
    let wrong = || ensemble.damaged("estimators_features_ is not a list of columns");
    let lists: Vec<Vec<i64>> = match value.array() {
        Some(array) if array.kind() != dtype_kind::OBJECT => {
            ensemble.charge(array.len())?;
            let width = array.shape().get(1).copied().filter(|width| *width > 0);
            let numbers = array.i64s().ok_or_else(wrong)?;
            numbers.chunks(width.ok_or_else(wrong)?).map(<[i64]>::to_vec).collect()
        }
        _ => {
            let mut lists = Vec::new();
            for item in value.items().ok_or_else(wrong)? {
                let array = item.array().ok_or_else(wrong)?;
                ensemble.charge(array.len())?;
                lists.push(array.i64s().ok_or_else(wrong)?);
            }
            lists
        }
    };
    let mut all = Vec::with_capacity(lists.len());
    for list in lists {
        let mut columns = Vec::with_capacity(list.len());
        for number in list {
            let column = usize::try_from(number).ok().filter(|column| *column < features);
            columns.push(column.ok_or_else(wrong)?);
        }
        all.push(columns);
    }
    Ok(Some(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_single_precision_are_on_the_same_side_of_a_threshold_of_single_precision() {
        let (most, least) = (f64::from(f32::MAX), f64::from(f32::from_bits(1)));
        let ends = [0.0, -0.0, most, -most, most * 1.5, -most * 1.5, 1e300, -1e300];
        let infinite = [f64::INFINITY, f64::NEG_INFINITY, least / 2.0, -least / 2.0, least, -least];
        let thresholds = [0.1, -0.1, 1.0, 16_777_217.0, -16_777_217.0, 1.0 + f64::EPSILON];
        for threshold in [&ends[..], &infinite, &thresholds].concat() {
            let nearest = threshold as f32;
            let values = [nearest, nearest.next_up(), nearest.next_down(), 0.0, 1.0, -1.0];
            for value in [&values[..], &[f32::INFINITY, f32::NEG_INFINITY, f32::MAX]].concat() {
                let is_above = f64::from(value) > threshold;
                assert_eq!(value > f32::of_file(threshold), is_above, "{value} and {threshold}");
            }
        }
    }
}
