//! Decision trees, random forests and gradient-boosted trees.
//!
//! Source: `org.apache.spark.ml.tree.treeModels` and `DecisionTreeModelReadWrite` of Spark 2.4 to 4.1.

use std::iter;

use super::super::folder::StageFolder;
use super::super::numeric::{logistic, normalize};
use super::super::parquet::ParquetColumns;
use super::super::parquet::column::NestedColumn;
use super::super::schema::Schema;
use super::super::stage::PipelineStage;
use super::super::table::VectorRow;
use super::super::{damaged, float, index_of};
use super::predict::{
    ClassDecision, ClassModel, SparkClassifier, SparkRegressor, decision, regression,
};
use tensorserve_tabular::trees::{
    self, BitSets, Leaf, Row, SplitAt, Splits, StoredNode, TreeShape, word_and_bit,
};
use tensorserve_tensor::error::Result;

/// The folder with the weights of trees.
const TREES: &str = "treesMetadata";

/// The most categories of all splits of a model.
const MAX_CATEGORIES: usize = 1 << 28;

/// Splits at thresholds, up to which values go to the left, and by categories. NaN goes to the right of a threshold.
#[derive(Default)]
pub(in super::super) struct SparkSplits {
    categories: BitSets,
    /// For each special split, the categories, and whether these go to the left, or all others.
    special: Vec<(usize, bool)>,
}

impl Splits for SparkSplits {
    type Value = f64;
    type Threshold = f64;
    type Leaf = f64;

    fn is_right_special(&self, index: usize, value: f64, _missing_right: bool) -> bool {
        let Some(&(set, is_left)) = self.special.get(index) else { return true };
        let category = index_of(value);
        let is_whole = float(category) == value;
        let category = u32::try_from(category).ok().filter(|_| is_whole);
        category.is_some_and(|category| self.categories.contains(set, category)) != is_left
    }
}

impl Row<f64> for VectorRow<'_> {
    #[inline]
    fn value(self, at: usize) -> f64 {
        match self {
            VectorRow::Dense(values) => values.get(at).copied().unwrap_or(0.0),
            VectorRow::Sparse(entries) => {
                let found = entries.binary_search_by_key(&at, |(position, _)| *position as usize);
                found.ok().and_then(|found| entries.get(found)).map_or(0.0, |(_, value)| *value)
            }
        }
    }
}

/// The columns of the nodes of trees.
struct SparkNodeColumns<'p> {
    ids: &'p [f64],
    predictions: &'p [f64],
    lefts: &'p [f64],
    rights: &'p [f64],
    elements: &'p [f64],
    categories: &'p [f64],
    values: &'p NestedColumn,
    stats: &'p NestedColumn,
}

impl<'p> SparkNodeColumns<'p> {
    fn read(table: &'p ParquetColumns, prefix: &str) -> Result<Self> {
        let missing = |name: &str| damaged(format!("its nodes have no {name}"));
        let flat = |name: &str| {
            let column = table.column(&format!("{prefix}{name}"));
            let column = column.filter(|column| column.depth() == 0);
            column.map(NestedColumn::numbers).ok_or_else(|| missing(name))
        };
        let list = |name: &str| {
            let column = table.column(&format!("{prefix}{name}"));
            column.filter(|column| column.depth() == 1).ok_or_else(|| missing(name))
        };
        Ok(SparkNodeColumns {
            ids: flat("id")?,
            predictions: flat("prediction")?,
            lefts: flat("leftChild")?,
            rights: flat("rightChild")?,
            elements: flat("split.featureIndex")?,
            categories: flat("split.numCategories")?,
            values: list("split.leftCategoriesOrThreshold")?,
            stats: list("impurityStats")?,
        })
    }

    /// Adds the tree of the nodes in `rows` to `forest`, whose splits may have `left_over` more categories.
    fn add_tree(
        &self,
        mut rows: Vec<usize>,
        forest: &mut SparkForest,
        left_over: &mut usize,
    ) -> Result<()> {
        let at = |column: &[f64], row: usize| column.get(row).copied().unwrap_or(f64::NAN);
        rows.sort_by_key(|row| index_of(at(self.ids, *row)));
        if rows.is_empty() {
            return Err(damaged("a tree has no nodes"));
        }
        for (index, row) in rows.iter().enumerate() {
            if index_of(at(self.ids, *row)) != index {
                return Err(damaged("the ids of a tree's nodes are not 0, 1, 2, …"));
            }
            if forest.classes > 0 && self.stats.row(*row).len() != forest.classes {
                return Err(damaged("a node does not have a value for each class"));
            }
        }
        let (classes, features) = (forest.classes, forest.features);
        let shape = TreeShape {
            output: forest.trees.len(),
            features,
            width: classes.max(1),
            most_nodes: rows.len(),
        };
        let invalid = || damaged("a node of a tree has no valid children");
        forest.trees.add_tree(shape, 0, |index, _, splits| {
            let row = *rows.get(index).ok_or_else(invalid)?;
            let (left, right) = (at(self.lefts, row), at(self.rights, row));
            if left < 0.0 {
                return Ok(StoredNode::Leaf(match classes {
                    0 => Leaf::Number(at(self.predictions, row)),
                    _ => Leaf::from_values(self.stats.row(row).to_vec()),
                }));
            }
            let child = |child: f64| Some(index_of(child)).filter(|child| *child > index);
            let feature = index_of(at(self.elements, row));
            let children = child(left).zip(child(right)).filter(|_| feature < features);
            let (left, right) = children.ok_or_else(invalid)?;
            let categories = at(self.categories, row);
            let at = splits.add(categories, self.values.row(row), left_over)?;
            Ok(StoredNode::Split { feature, at, missing_right: true, children: [left, right] })
        })
    }
}

impl SparkSplits {
    /// Adds the split at a threshold, or by categories, of which there are so many. All splits may have `left` more.
    fn add(&mut self, categories: f64, values: &[f64], left: &mut usize) -> Result<SplitAt<f64>> {
        if categories < 0.0 {
            let threshold = values.first().copied().filter(|threshold| !threshold.is_nan());
            let threshold = threshold.ok_or_else(|| damaged("a split has no threshold"))?;
            return Ok(SplitAt::Threshold(threshold));
        }
        let count = index_of(categories);
        *left = left
            .checked_sub(count)
            .ok_or_else(|| damaged("its splits have too many categories"))?;
        // Spark keeps the smaller of both sets, which decides where unseen categories go.
        let is_left = values.len() <= count / 2;
        let mut words = vec![if is_left { 0 } else { u32::MAX }; count.div_ceil(32)];
        for category in values {
            let (word, bit) = word_and_bit(u32::try_from(index_of(*category)).unwrap_or(u32::MAX));
            if let Some(word) = words.get_mut(word) {
                *word = if is_left { *word | bit } else { *word & !bit };
            }
        }
        // No category beyond the last is in a set.
        if let Some(last) = words.last_mut().filter(|_| !count.is_multiple_of(32)) {
            *last &= (1 << (count % 32)) - 1;
        }
        let range = self.categories.extend(words);
        self.special.push((self.categories.add(range), is_left));
        Ok(SplitAt::Special(self.special.len() - 1))
    }
}

/// The number of features of a model, and of its classes.
fn sizes(folder: &StageFolder, is_classifier: bool) -> Result<(usize, usize)> {
    let features = folder.size_field("numFeatures");
    let features = features.ok_or_else(|| damaged("its metadata has no numFeatures"))?;
    if !is_classifier {
        return Ok((features, 0));
    }
    let classes = folder.size_field("numClasses").filter(|classes| *classes > 0);
    let classes = classes.ok_or_else(|| damaged("its metadata has no numClasses"))?;
    match classes <= super::super::MAX_CLASSES {
        true => Ok((features, classes)),
        false => Err(super::super::unsupported(format!("a model of {classes} classes"))),
    }
}

fn read_tree(folder: &StageFolder, is_classifier: bool) -> Result<SparkForest> {
    let (features, classes) = sizes(folder, is_classifier)?;
    let table = folder.table("data")?;
    let mut forest = SparkForest::new(features, classes);
    let mut left_over = MAX_CATEGORIES;
    let rows = (0..table.rows).collect();
    SparkNodeColumns::read(&table, "")?.add_tree(rows, &mut forest, &mut left_over)?;
    Ok(forest)
}

/// Trees with their weights.
#[derive(Default)]
struct SparkForest {
    trees: trees::Forest<SparkSplits>,
    weights: Vec<f64>,
    features: usize,
    /// The classes for each of which a leaf has a value; 0 for trees of numbers.
    classes: usize,
}

impl SparkForest {
    fn new(features: usize, classes: usize) -> Self {
        SparkForest { features, classes, ..SparkForest::default() }
    }

    /// The sum of what `take` makes of each tree, by its number and the values of the leaf of `row`.
    fn sum(&self, row: VectorRow<'_>, take: impl Fn(usize, &[f64]) -> f64) -> f64 {
        // As a sum of an iterator begins.
        let mut sum = -0.0;
        self.trees.for_each_leaf(iter::once(row), |_, tree, leaf| sum += take(tree, leaf));
        sum
    }
}

/// The number that a leaf predicts.
fn prediction(leaf: &[f64]) -> f64 {
    leaf.first().copied().unwrap_or(f64::NAN)
}

fn read_forest(folder: &StageFolder, is_classifier: bool) -> Result<SparkForest> {
    let (features, classes) = sizes(folder, is_classifier)?;
    let table = folder.table("data")?;
    let columns = SparkNodeColumns::read(&table, "nodeData.")?;
    let mut rows: Vec<Vec<usize>> = Vec::new();
    for (row, id) in table.list("treeID").iter().enumerate() {
        let id = index_of(*id);
        // Each tree has a node.
        if id >= table.rows {
            return Err(damaged("the numbers of its trees are not 0, 1, 2, …"));
        }
        if rows.len() <= id {
            rows.resize_with(id + 1, Vec::new);
        }
        if let Some(rows) = rows.get_mut(id) {
            rows.push(row);
        }
    }
    let mut forest = SparkForest::new(features, classes);
    let mut left_over = MAX_CATEGORIES;
    for rows in rows {
        columns.add_tree(rows, &mut forest, &mut left_over)?;
    }
    forest.weights = read_weights(folder, forest.trees.len())?;
    Ok(forest)
}

/// The weights of trees, by their numbers.
fn read_weights(folder: &StageFolder, count: usize) -> Result<Vec<f64>> {
    let table = folder.table(TREES)?;
    let column = |names: [&str; 2]| {
        let found = names.into_iter().find_map(|name| table.column(name));
        found.map_or(&[][..], NestedColumn::numbers)
    };
    let (ids, weights) = (column(["_1", "treeID"]), column(["_3", "weights"]));
    let mut ordered = vec![f64::NAN; count];
    for (id, weight) in ids.iter().zip(weights) {
        if let Some(slot) = ordered.get_mut(index_of(*id)) {
            *slot = *weight;
        }
    }
    match count > 0 && ordered.iter().all(|weight| !weight.is_nan()) {
        true => Ok(ordered),
        false => Err(damaged("its trees do not have a weight each")),
    }
}

/// A single tree.
struct OneTree(SparkForest);

impl SparkRegressor for OneTree {
    fn predict(&self, row: VectorRow<'_>) -> f64 {
        self.0.sum(row, |_, leaf| prediction(leaf))
    }
}

impl SparkClassifier for OneTree {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        self.0.trees.for_each_leaf(iter::once(row), |_, _, leaf| {
            raw.iter_mut().zip(leaf).for_each(|(raw, stat)| *raw = *stat);
        });
    }

    fn probabilities(&self, raw: &mut [f64]) {
        normalize(raw);
    }
}

/// The mean of trees.
struct MeanForest(SparkForest);

impl SparkRegressor for MeanForest {
    fn predict(&self, row: VectorRow<'_>) -> f64 {
        self.0.sum(row, |_, leaf| prediction(leaf)) / float(self.0.trees.len())
    }
}

impl SparkClassifier for MeanForest {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        raw.fill(0.0);
        self.0.trees.for_each_leaf(iter::once(row), |_, _, stats| {
            let total: f64 = stats.iter().sum();
            if total != 0.0 {
                raw.iter_mut().zip(stats).for_each(|(raw, stat)| *raw += stat / total);
            }
        });
    }

    fn probabilities(&self, raw: &mut [f64]) {
        normalize(raw);
    }
}

/// The weighted sum of trees.
struct SparkBoostedTrees(SparkForest);

impl SparkRegressor for SparkBoostedTrees {
    fn predict(&self, row: VectorRow<'_>) -> f64 {
        let weight = |tree| self.0.weights.get(tree).copied().unwrap_or(f64::NAN);
        self.0.sum(row, |tree, leaf| prediction(leaf) * weight(tree))
    }
}

impl SparkClassifier for SparkBoostedTrees {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        let margin = self.predict(row);
        raw.iter_mut().zip([-margin, margin]).for_each(|(raw, value)| *raw = value);
    }

    fn probabilities(&self, raw: &mut [f64]) {
        // The other one is what is left, as in Spark, and less exact when it is small.
        if let [first, second] = raw {
            *first = logistic(2.0 * *first);
            *second = 1.0 - *first;
        }
    }
}

pub(in super::super) fn tree_classifier(folder: &StageFolder) -> Result<ClassModel> {
    let tree = read_tree(folder, true)?;
    class_model(folder, tree.classes, tree.features, Box::new(OneTree(tree)))
}

pub(in super::super) fn forest_classifier(folder: &StageFolder) -> Result<ClassModel> {
    let forest = read_forest(folder, true)?;
    class_model(folder, forest.classes, forest.features, Box::new(MeanForest(forest)))
}

pub(in super::super) fn boosted_classifier(folder: &StageFolder) -> Result<ClassModel> {
    let forest = read_forest(folder, false)?;
    class_model(folder, 2, forest.features, Box::new(SparkBoostedTrees(forest)))
}

fn class_model(
    folder: &StageFolder,
    classes: usize,
    features: usize,
    classifier: Box<dyn SparkClassifier>,
) -> Result<ClassModel> {
    let decision: ClassDecision = decision(folder, classes)?;
    let features = Some(features);
    Ok(ClassModel { classifier, classes, decision, features, has_probabilities: true })
}

pub(in super::super) fn tree_regressor(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let tree = read_tree(folder, false)?;
    regression(folder, schema, Some(tree.features), Box::new(OneTree(tree)))
}

pub(in super::super) fn forest_regressor(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let forest = read_forest(folder, false)?;
    regression(folder, schema, Some(forest.features), Box::new(MeanForest(forest)))
}

pub(in super::super) fn boosted_regressor(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let forest = read_forest(folder, false)?;
    regression(folder, schema, Some(forest.features), Box::new(SparkBoostedTrees(forest)))
}
