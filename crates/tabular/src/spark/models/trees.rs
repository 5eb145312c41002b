//! Decision trees, random forests and gradient-boosted trees.
//!
//! Source: `org.apache.spark.ml.tree.treeModels` and `DecisionTreeModelReadWrite` of Spark 2.4 to 4.1.

use super::super::folder::StageFolder;
use super::super::numeric::{logistic, normalize};
use super::super::parquet::ParquetColumns;
use super::super::parquet::column::NestedColumn;
use super::super::schema::Schema;
use super::super::stage::Stage;
use super::super::table::VectorRow;
use super::super::{damaged, float, index_of};
use super::predict::{ClassModel, Classifier, Decision, Regressor, decision, regression};
use tensorserve_tensor::error::Result;

/// The folder with the weights of trees.
const TREES: &str = "treesMetadata";

/// The most categories of all splits of a model.
const MAX_CATEGORIES: usize = 1 << 28;

/// What a node asks.
#[derive(Debug)]
enum Split {
    /// Left if the element is at most this.
    Most(f64),
    /// Left if the element is one of these categories, of which the bits are set.
    Among(Box<[u64]>, bool),
}

#[derive(Debug)]
enum Node {
    Leaf {
        prediction: f64,
    },
    Split {
        element: u32,
        /// The nodes that follow, by their indices.
        left: u32,
        right: u32,
        split: Split,
    },
}

/// A tree, whose root is its first node.
#[derive(Debug, Default)]
pub(in super::super) struct Tree {
    nodes: Vec<Node>,
    /// What each node has for each class; empty for a tree of numbers.
    classes: usize,
    stats: Vec<f64>,
}

impl VectorRow<'_> {
    fn element(self, at: usize) -> f64 {
        match self {
            VectorRow::Dense(values) => values.get(at).copied().unwrap_or(0.0),
            VectorRow::Sparse(entries) => {
                let found = entries.binary_search_by_key(&at, |(position, _)| *position as usize);
                found.ok().and_then(|found| entries.get(found)).map_or(0.0, |(_, value)| *value)
            }
        }
    }
}

impl Split {
    fn goes_left(&self, value: f64) -> bool {
        match self {
            Split::Most(threshold) => value <= *threshold,
            Split::Among(categories, is_left) => {
                let category = index_of(value);
                let is_whole = float(category) == value;
                let bits = categories.get(category / 64).copied().unwrap_or(0);
                (is_whole && bits >> (category % 64) & 1 == 1) == *is_left
            }
        }
    }
}

impl Tree {
    /// The index of the leaf of a row.
    fn leaf(&self, row: VectorRow<'_>) -> usize {
        let mut at = 0;
        // Children come after their parents, so that this ends.
        while let Some(Node::Split { element, left, right, split }) = self.nodes.get(at) {
            let goes_left = split.goes_left(row.element(*element as usize));
            at = (if goes_left { *left } else { *right }) as usize;
        }
        at
    }

    fn prediction(&self, row: VectorRow<'_>) -> f64 {
        match self.nodes.get(self.leaf(row)) {
            Some(Node::Leaf { prediction }) => *prediction,
            _ => f64::NAN,
        }
    }

    /// What the leaf of a row has for each class.
    fn stats(&self, row: VectorRow<'_>) -> &[f64] {
        let start = self.leaf(row) * self.classes;
        self.stats.get(start..start + self.classes).unwrap_or_default()
    }
}

/// The columns of the nodes of trees.
struct NodeColumns<'p> {
    ids: &'p [f64],
    predictions: &'p [f64],
    lefts: &'p [f64],
    rights: &'p [f64],
    elements: &'p [f64],
    categories: &'p [f64],
    values: &'p NestedColumn,
    stats: &'p NestedColumn,
}

impl<'p> NodeColumns<'p> {
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
        Ok(NodeColumns {
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

    /// The tree of the nodes in `rows`, for so many classes and elements. Its splits may have `left_over`
    /// categories.
    fn tree(
        &self,
        mut rows: Vec<usize>,
        classes: usize,
        features: usize,
        left_over: &mut usize,
    ) -> Result<Tree> {
        let at = |column: &[f64], row: usize| column.get(row).copied().unwrap_or(f64::NAN);
        rows.sort_by_key(|row| index_of(at(self.ids, *row)));
        let mut tree = Tree { nodes: Vec::with_capacity(rows.len()), classes, stats: Vec::new() };
        let count = rows.len();
        if count == 0 {
            return Err(damaged("a tree has no nodes"));
        }
        for (index, row) in rows.into_iter().enumerate() {
            if index_of(at(self.ids, row)) != index {
                return Err(damaged("the ids of a tree's nodes are not 0, 1, 2, …"));
            }
            let (left, right) = (at(self.lefts, row), at(self.rights, row));
            let stats = self.stats.row(row);
            if classes > 0 && stats.len() != classes {
                return Err(damaged("a node does not have a value for each class"));
            }
            tree.stats.extend(stats.iter().take(classes));
            if left < 0.0 {
                tree.nodes.push(Node::Leaf { prediction: at(self.predictions, row) });
                continue;
            }
            let child = |child: f64| {
                let child = index_of(child);
                let is_valid = child > index && child < count;
                u32::try_from(child).ok().filter(|_| is_valid)
            };
            let element = index_of(at(self.elements, row));
            let element = u32::try_from(element).ok().filter(|_| element < features);
            let parts = child(left).zip(child(right)).zip(element);
            let ((left, right), element) =
                parts.ok_or_else(|| damaged("a node of a tree has no valid children"))?;
            let split = split_of(at(self.categories, row), self.values.row(row), left_over)?;
            tree.nodes.push(Node::Split { element, left, right, split });
        }
        Ok(tree)
    }
}

/// The split at a threshold, or by categories, of which there are so many. All splits may have `left` more.
fn split_of(categories: f64, values: &[f64], left: &mut usize) -> Result<Split> {
    if categories < 0.0 {
        let threshold = values.first().copied();
        return threshold.map(Split::Most).ok_or_else(|| damaged("a split has no threshold"));
    }
    let count = index_of(categories);
    *left =
        left.checked_sub(count).ok_or_else(|| damaged("its splits have too many categories"))?;
    // Spark keeps the smaller of both sets, which decides where unseen categories go.
    let is_left = values.len() <= count / 2;
    let mut bits = vec![0u64; count.div_ceil(64)];
    let mut set = |category: usize, is_set: bool| {
        if let Some(word) = bits.get_mut(category / 64) {
            let bit = 1 << (category % 64);
            *word = if is_set { *word | bit } else { *word & !bit };
        }
    };
    if !is_left {
        (0..count).for_each(|category| set(category, true));
    }
    values.iter().for_each(|category| set(index_of(*category), is_left));
    Ok(Split::Among(bits.into(), is_left))
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

fn read_tree(folder: &StageFolder, is_classifier: bool) -> Result<(Tree, usize)> {
    let (features, classes) = sizes(folder, is_classifier)?;
    let table = folder.table("data")?;
    let mut left_over = MAX_CATEGORIES;
    let tree = NodeColumns::read(&table, "")?.tree(
        (0..table.rows).collect(),
        classes,
        features,
        &mut left_over,
    )?;
    Ok((tree, features))
}

/// Trees with their weights.
struct Forest {
    trees: Vec<Tree>,
    weights: Vec<f64>,
    features: usize,
}

fn read_forest(folder: &StageFolder, is_classifier: bool) -> Result<Forest> {
    let (features, classes) = sizes(folder, is_classifier)?;
    let table = folder.table("data")?;
    let columns = NodeColumns::read(&table, "nodeData.")?;
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
    let mut left_over = MAX_CATEGORIES;
    let trees = rows.into_iter().map(|rows| columns.tree(rows, classes, features, &mut left_over));
    let trees: Vec<Tree> = trees.collect::<Result<_>>()?;
    let weights = read_weights(folder, trees.len())?;
    Ok(Forest { trees, weights, features })
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

impl Regressor for Tree {
    fn predict(&self, row: VectorRow<'_>) -> f64 {
        self.prediction(row)
    }
}

impl Classifier for Tree {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        raw.iter_mut().zip(self.stats(row)).for_each(|(raw, stat)| *raw = *stat);
    }

    fn probabilities(&self, raw: &mut [f64]) {
        normalize(raw);
    }
}

/// The mean of trees.
struct MeanForest(Forest);

impl Regressor for MeanForest {
    fn predict(&self, row: VectorRow<'_>) -> f64 {
        let sum: f64 = self.0.trees.iter().map(|tree| tree.prediction(row)).sum();
        sum / float(self.0.trees.len())
    }
}

impl Classifier for MeanForest {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        raw.fill(0.0);
        for tree in &self.0.trees {
            let stats = tree.stats(row);
            let total: f64 = stats.iter().sum();
            if total != 0.0 {
                raw.iter_mut().zip(stats).for_each(|(raw, stat)| *raw += stat / total);
            }
        }
    }

    fn probabilities(&self, raw: &mut [f64]) {
        normalize(raw);
    }
}

/// The weighted sum of trees.
struct BoostedTrees(Forest);

impl Regressor for BoostedTrees {
    fn predict(&self, row: VectorRow<'_>) -> f64 {
        let trees = self.0.trees.iter().zip(&self.0.weights);
        trees.map(|(tree, weight)| tree.prediction(row) * weight).sum()
    }
}

impl Classifier for BoostedTrees {
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
    let (tree, features) = read_tree(folder, true)?;
    class_model(folder, tree.classes, features, Box::new(tree))
}

pub(in super::super) fn forest_classifier(folder: &StageFolder) -> Result<ClassModel> {
    let forest = read_forest(folder, true)?;
    let classes = forest.trees.first().map_or(0, |tree| tree.classes);
    class_model(folder, classes, forest.features, Box::new(MeanForest(forest)))
}

pub(in super::super) fn boosted_classifier(folder: &StageFolder) -> Result<ClassModel> {
    let forest = read_forest(folder, false)?;
    class_model(folder, 2, forest.features, Box::new(BoostedTrees(forest)))
}

fn class_model(
    folder: &StageFolder,
    classes: usize,
    features: usize,
    classifier: Box<dyn Classifier>,
) -> Result<ClassModel> {
    let decision: Decision = decision(folder, classes)?;
    let features = Some(features);
    Ok(ClassModel { classifier, classes, decision, features, has_probabilities: true })
}

pub(in super::super) fn tree_regressor(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn Stage>> {
    let (tree, features) = read_tree(folder, false)?;
    regression(folder, schema, Some(features), Box::new(tree))
}

pub(in super::super) fn forest_regressor(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn Stage>> {
    let forest = read_forest(folder, false)?;
    regression(folder, schema, Some(forest.features), Box::new(MeanForest(forest)))
}

pub(in super::super) fn boosted_regressor(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn Stage>> {
    let forest = read_forest(folder, false)?;
    regression(folder, schema, Some(forest.features), Box::new(BoostedTrees(forest)))
}
