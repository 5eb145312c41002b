//! Decision trees in an array, so that a walk through a tree only goes forward.

use super::estimator::Estimator;
use super::model::FeatureRows;
use crate::pickle::{NumpyArray, dtype_kind};
use tensorserve_tensor::error::Result;

/// The feature of a leaf.
const LEAF: u32 = u32::MAX >> 2;

/// Flag of [`FlatNode::feature`]: a missing value goes to the left.
const MISSING_LEFT: u32 = 1 << 31;

/// Flag of [`FlatNode::feature`]: the node splits by categories.
const CATEGORIES: u32 = 1 << 30;

/// Words of a set of categories in a file.
pub(super) const WORDS_OF_A_SET: usize = 8;

/// A set of categories, numbers from 0 to 255.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CategorySet([u64; 4]);

impl CategorySet {
    /// The set whose bits are in 32-bit words.
    pub(super) fn from_words(words: &[i64; WORDS_OF_A_SET]) -> Self {
        let mut set = CategorySet::default();
        for (word, pair) in set.0.iter_mut().zip(words.as_chunks::<2>().0) {
            let [low, high] = pair.map(|half| u64::from(half as u32));
            *word = low | high << 32;
        }
        set
    }

    /// Adds a category, if it is one.
    pub(super) fn add(&mut self, category: f64) {
        if (0.0..256.0).contains(&category)
            && let Some(word) = self.0.get_mut(category as usize / 64)
        {
            *word |= 1 << (category as u32 % 64);
        }
    }

    /// Whether it has `category`, rounded down.
    fn has(&self, category: f64) -> bool {
        (0.0..256.0).contains(&category)
            && self
                .0
                .get(category as usize / 64)
                .is_some_and(|word| word >> (category as u32 % 64) & 1 != 0)
    }
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

/// A node or a leaf.
#[derive(Clone, Copy)]
struct FlatNode {
    /// Values up to it go to the left child, which is the next node. With the flag [`CATEGORIES`], the
    /// index of the split.
    threshold: f64,
    /// The feature, or [`LEAF`]; and the flags [`MISSING_LEFT`] and [`CATEGORIES`].
    feature: u32,
    /// The index of the right child; of a leaf, where its values start.
    other: u32,
}

/// Trees over the same features, whose leaves have the same number of values.
pub(super) struct SklearnTrees {
    features: usize,
    /// The number of values of a leaf.
    width: usize,
    nodes: Vec<FlatNode>,
    roots: Vec<usize>,
    values: Vec<f64>,
    splits: Vec<CategorySplit>,
}

/// A node as a file stores it.
pub(super) struct StoredNode {
    /// The feature and the threshold; `None` for a leaf.
    pub(super) split: Option<(i64, f64)>,
    /// The split, if it is by categories; the threshold is not used then.
    pub(super) categories: Option<CategorySplit>,
    pub(super) missing_left: bool,
    pub(super) left: i64,
    pub(super) right: i64,
}

/// A node that is still to be added.
struct OpenNode {
    /// Its index in the file.
    number: i64,
    depth: usize,
    /// The index here of the node whose right child it is.
    parent: Option<usize>,
}

impl SklearnTrees {
    pub(super) fn new(features: usize, width: usize) -> Self {
        SklearnTrees {
            features,
            width,
            nodes: Vec::new(),
            roots: Vec::new(),
            values: Vec::new(),
            splits: Vec::new(),
        }
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

    /// Adds a tree of `estimator`. `leaf` appends the values of a leaf, given its index in the file
    /// and its depth. With `columns`, the features of the tree are indices into these.
    pub(super) fn add(
        &mut self,
        estimator: &Estimator,
        stored: &[StoredNode],
        columns: Option<&[usize]>,
        mut leaf: impl FnMut(usize, usize, &mut Vec<f64>),
    ) -> Result<()> {
        let too_large = || estimator.damaged("a tree has too many nodes");
        self.roots.push(self.nodes.len());
        let mut visited = vec![false; stored.len()];
        let mut open = vec![OpenNode { number: 0, depth: 0, parent: None }];
        while let Some(OpenNode { number, depth, parent }) = open.pop() {
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            let node = stored
                .get(number)
                .ok_or_else(|| estimator.damaged("a node of a tree has a missing child"))?;
            match visited.get_mut(number) {
                Some(visited) if !*visited => *visited = true,
                _ => return Err(estimator.damaged("a node of a tree has two parents")),
            }
            let index = self.nodes.len();
            let right = u32::try_from(index).map_err(|_| too_large())?;
            if let Some(parent) = parent
                && let Some(parent) = self.nodes.get_mut::<usize>(parent)
            {
                parent.other = right;
            }
            let Some((feature, threshold)) = node.split else {
                let start = u32::try_from(self.values.len()).map_err(|_| too_large())?;
                self.nodes.push(FlatNode { threshold: 0.0, feature: LEAF, other: start });
                leaf(number, depth, &mut self.values);
                self.values.resize(start as usize + self.width, 0.0);
                continue;
            };
            let feature = self.column_of(feature, columns).ok_or_else(|| {
                estimator.damaged(format_args!(
                    "a tree splits by feature {feature}, which does not exist"
                ))
            })?;
            let mut flags = if node.missing_left { MISSING_LEFT } else { 0 };
            let mut threshold = threshold;
            if let Some(split) = node.categories {
                flags |= CATEGORIES;
                threshold = self.splits.len() as f64;
                self.splits.push(split);
            }
            self.nodes.push(FlatNode { threshold, feature: feature | flags, other: 0 });
            // The left child is popped first, and so is the next node.
            let depth = depth + 1;
            open.push(OpenNode { number: node.right, depth, parent: Some(index) });
            open.push(OpenNode { number: node.left, depth, parent: None });
        }
        Ok(())
    }

    /// The column of feature number `feature` of a tree; `None` if there is no such column.
    fn column_of(&self, feature: i64, columns: Option<&[usize]>) -> Option<u32> {
        let feature = usize::try_from(feature).ok()?;
        let column = match columns {
            Some(columns) => *columns.get(feature)?,
            None => feature,
        };
        let column = u32::try_from(column).ok().filter(|_| column < self.features)?;
        (column < LEAF).then_some(column)
    }

    /// Whether a row goes to the left child of a node that splits by categories.
    fn is_left_category(&self, node: FlatNode, value: f64) -> bool {
        let missing = node.feature & MISSING_LEFT != 0;
        match self.splits.get(node.threshold as usize) {
            Some(split) if split.left.has(value) => true,
            Some(split) if split.known.has(value) => false,
            _ => missing,
        }
    }

    /// The values of the leaf that `row` reaches in the tree with the root `root`.
    fn leaf(&self, root: usize, row: &[f64]) -> &[f64] {
        match self.splits.is_empty() {
            true => self.leaf_by::<false>(root, row),
            false => self.leaf_by::<true>(root, row),
        }
    }

    /// As [`SklearnTrees::leaf`]; only with `CATEGORICAL` are there splits by categories.
    fn leaf_by<const CATEGORICAL: bool>(&self, root: usize, row: &[f64]) -> &[f64] {
        let mut at = root;
        while let Some(node) = self.nodes.get(at) {
            let feature = node.feature & LEAF;
            if feature == LEAF {
                at = node.other as usize;
                break;
            }
            let value = row.get(feature as usize).copied().unwrap_or(f64::NAN);
            let is_left = match CATEGORICAL && node.feature & CATEGORIES != 0 {
                true => self.is_left_category(*node, value),
                false => {
                    value <= node.threshold || (value.is_nan() && node.feature & MISSING_LEFT != 0)
                }
            };
            at = if is_left { at + 1 } else { node.other as usize };
        }
        self.values.get(at..at + self.width).unwrap_or_default()
    }

    /// Calls `take` for each row and tree, with the indices of the tree and of the row, and the
    /// values of the leaf.
    pub(super) fn walk(&self, rows: FeatureRows, mut take: impl FnMut(usize, usize, &[f64])) {
        for (tree, root) in self.roots.iter().enumerate() {
            for (number, row) in rows.iter().enumerate() {
                take(tree, number, self.leaf(*root, row));
            }
        }
    }

    /// Adds the values of each row's leaf in every tree to the `width` values of the row in `out`.
    pub(super) fn sum(&self, rows: FeatureRows, out: &mut [f64]) {
        for root in &self.roots {
            for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.width.max(1))) {
                let values = self.leaf(*root, row);
                out.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}

/// The values of `rows`, rounded to single precision, in which scikit-learn's trees compare.
pub(super) fn to_single_precision(rows: FeatureRows) -> Vec<f64> {
    rows.values.iter().map(|value| f64::from(*value as f32)).collect()
}

/// A fitted `sklearn.tree._tree.Tree`.
pub(super) struct PickledTree<'a> {
    pub(super) nodes: Vec<StoredNode>,
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
        let nodes = nodes.map(|(split, ((left, right), missing))| StoredNode {
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
