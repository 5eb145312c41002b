//! Models in documents: XGBoost's JSON and UBJSON, of all versions from 1.0 on. The names of members
//! are those of the library's schema (`doc/model.schema`).

use super::document::{DocumentValue, index, narrow};
use super::forest::{self, NodeCondition, XgboostForest, XgboostNode, XgboostTree};
use super::model::{BaseScore, Booster, LearnerParameters, XgboostModel};
use super::objective::LibraryVersion;
use super::{RoundSelection, json};
use tensorserve_tensor::error::{Error, Result};

/// The version of a document that does not record one: the first that wrote documents.
const FIRST_DOCUMENT_VERSION: LibraryVersion = (1, 0);

/// Reads the model in `document`, which may be the snapshot of a pickle.
pub(super) fn read(document: &DocumentValue, rounds: RoundSelection) -> Result<XgboostModel> {
    let document = document.find("Model").unwrap_or(document);
    let learner = document.member("learner")?;
    let stored = learner.member("learner_model_param")?;
    let parameters = LearnerParameters {
        version: library_version(document),
        objective: learner.member("objective")?.text("name")?.to_owned(),
        features: stored.parameter("num_feature")?,
        outputs: read_outputs(stored)?,
        base_score: BaseScore::Predictions(read_base_scores(stored)?),
    };
    parameters.check()?;
    let booster = read_booster(learner, &parameters, rounds)?;
    let mut model = parameters.into_model(booster)?;
    if let Some(DocumentValue::Numbers(version)) = document.find("version") {
        let parts: Vec<String> = version.iter().map(f64::to_string).collect();
        model.written_by = parts.join(".");
    }
    model.names = learner.texts("feature_names")?;
    Ok(model)
}

fn library_version(document: &DocumentValue) -> LibraryVersion {
    let numbers = document.numbers("version").unwrap_or_default();
    let (major, minor) = FIRST_DOCUMENT_VERSION;
    (version_part(numbers, 0).unwrap_or(major), version_part(numbers, 1).unwrap_or(minor))
}

fn version_part(numbers: &[f64], part: usize) -> Option<u32> {
    let number = index(*numbers.get(part)?)?;
    u32::try_from(number).ok()
}

/// The number of outputs: of classes or of targets.
fn read_outputs(parameters: &DocumentValue) -> Result<usize> {
    let classes: usize = parameters.parameter("num_class")?;
    let targets = match parameters.find("num_target") {
        None => 1, // Before 1.6.
        Some(_) => parameters.parameter("num_target")?,
    };
    if classes > 1 && targets > 1 {
        return Err(Error::damaged(format!(
            "the model has both {classes} classes and {targets} targets"
        )));
    }
    Ok(classes.max(targets).max(1))
}

/// Reads `base_score`: a string with one number, or from 3.1 on with an array of them.
fn read_base_scores(parameters: &DocumentValue) -> Result<Vec<f32>> {
    let text = parameters.text("base_score")?;
    match json::read(text.as_bytes()) {
        Ok(DocumentValue::Number(score)) => Ok(vec![narrow(score)]),
        Ok(DocumentValue::Numbers(scores)) => Ok(scores.into_iter().map(narrow).collect()),
        Ok(
            DocumentValue::Null
            | DocumentValue::Text(_)
            | DocumentValue::List(_)
            | DocumentValue::Object(_),
        )
        | Err(_) => {
            Err(Error::damaged(format!("\"base_score\" is {text:?}, which is not a number")))
        }
    }
}

fn read_booster(
    learner: &DocumentValue,
    parameters: &LearnerParameters,
    rounds: RoundSelection,
) -> Result<Booster> {
    let booster = learner.member("gradient_booster")?;
    match booster.text("name")? {
        "gbtree" => read_trees(booster, None, learner, parameters, rounds),
        "dart" => {
            let weights = booster.floats("weight_drop")?;
            read_trees(booster.member("gbtree")?, Some(weights), learner, parameters, rounds)
        }
        "gblinear" => Ok(Booster::Linear(booster.member("model")?.floats("weights")?)),
        name => Err(Error::unsupported(format!(
            "the booster {name:?} is not supported, only gbtree, dart and gblinear"
        ))),
    }
}

/// Reads the trees of `booster`, whose weights are `weights` where it is a `dart` booster.
fn read_trees(
    booster: &DocumentValue,
    weights: Option<Vec<f32>>,
    learner: &DocumentValue,
    parameters: &LearnerParameters,
    rounds: RoundSelection,
) -> Result<Booster> {
    let model = booster.member("model")?;
    // From 3.3 on, the weights of dropped trees are here.
    let weights = match (weights, model.find("weight_drop")) {
        (Some(weights), _) => weights,
        (None, Some(_)) => model.floats("weight_drop")?,
        (None, None) => Vec::new(),
    };
    let (trees, outputs) = (model.list("trees")?, model.numbers("tree_info")?);
    if trees.len() != outputs.len() {
        let (trees, outputs) = (trees.len(), outputs.len());
        return Err(Error::damaged(format!(
            "\"tree_info\" has {outputs} elements for {trees} trees"
        )));
    }
    let mut forest = XgboostForest::default();
    for (number, (document, output)) in trees.iter().zip(outputs).enumerate() {
        let weight = weights.get(number).copied().unwrap_or(1.0);
        add_tree(&mut forest, document, number, *output, weight, parameters)
            .map_err(|error| error.context(format!("tree {number}")))?;
    }
    if let Some(best) = best_round(learner, rounds)? {
        forest.truncate(count_trees(best.saturating_add(1), model, parameters.outputs)?);
    }
    Ok(Booster::Trees(forest))
}

/// Adds the tree in `document`, which is tree number `number` and adds to `output`.
fn add_tree(
    forest: &mut XgboostForest,
    document: &DocumentValue,
    number: usize,
    output: f64,
    weight: f32,
    parameters: &LearnerParameters,
) -> Result<()> {
    let tree = read_tree(document, number, parameters.outputs)?;
    let output = index(output)
        .ok_or_else(|| Error::damaged(format!("the output {output} is not an index")))?;
    forest::add_tree(forest, &tree, weight, output, parameters.outputs, parameters.features)
}

/// The last boosting round to use; `None` for all.
fn best_round(learner: &DocumentValue, rounds: RoundSelection) -> Result<Option<usize>> {
    let Some(attributes) = learner.find("attributes") else {
        return Ok(None);
    };
    // An attribute of the scikit-learn wrappers.
    let is_wrapped = attributes.find("scikit_learn").is_some();
    let stops_at_best = match rounds {
        RoundSelection::AsWritten => is_wrapped,
        RoundSelection::UpToBest => true,
        RoundSelection::All => false,
    };
    match attributes.find("best_iteration") {
        Some(_) if stops_at_best => attributes.parameter("best_iteration").map(Some),
        Some(_) | None => Ok(None),
    }
}

/// How many trees the first `rounds` boosting rounds made.
fn count_trees(rounds: usize, model: &DocumentValue, outputs: usize) -> Result<usize> {
    if model.find("iteration_indptr").is_some() {
        let ends = model.numbers("iteration_indptr")?;
        return Ok(ends.get(rounds).copied().and_then(index).unwrap_or(usize::MAX));
    }
    let parameters = model.member("gbtree_model_param")?;
    let parallel: usize = match parameters.find("num_parallel_tree") {
        None => 1, // Before 1.3.
        Some(_) => parameters.parameter("num_parallel_tree")?,
    };
    Ok(rounds.saturating_mul(parallel.max(1)).saturating_mul(outputs))
}

/// Reads the tree in `document`, which is tree number `number`.
fn read_tree(document: &DocumentValue, number: usize, outputs: usize) -> Result<XgboostTree> {
    if document.find("id").is_some() {
        let id: usize = document.parameter("id")?;
        if id != number {
            return Err(Error::damaged(format!("\"id\" is {id}, and must be {number}")));
        }
    }
    let columns = XgboostNodeColumns::new(document)?;
    let leaf_vectors = read_leaf_vectors(document, outputs)?;
    let mut tree = XgboostTree {
        nodes: Vec::with_capacity(columns.left.len()),
        categories: read_categories(document)?,
        leaf_vectors: leaf_vectors.values,
    };
    let mut category_splits = CategorySplits::new(document)?;
    for number in 0..columns.left.len() {
        let mut node = columns.node(number)?;
        let categories = category_splits.next_of(number)?;
        if node.children.is_some() {
            if let Some(categories) = categories {
                node.condition = categories;
            }
        } else if !tree.leaf_vectors.is_empty() {
            let vector =
                if leaf_vectors.by_leaf { columns.right.get(number).copied() } else { None };
            let vector = vector.map_or(Some(number), index);
            let start = vector.and_then(|vector| vector.checked_mul(outputs));
            let start =
                start.ok_or_else(|| Error::damaged(format!("leaf {number} has no values")))?;
            node.condition = NodeCondition::LeafVector(start);
        }
        tree.nodes.push(node);
    }
    Ok(tree)
}

/// The arrays of a tree that have an element for each node.
struct XgboostNodeColumns<'a> {
    left: &'a [f64],
    right: &'a [f64],
    feature: &'a [f64],
    condition: &'a [f64],
    default_left: &'a [f64],
}

impl<'a> XgboostNodeColumns<'a> {
    fn new(document: &'a DocumentValue) -> Result<Self> {
        let left = document.numbers("left_children")?;
        let nodes = left.len();
        Ok(XgboostNodeColumns {
            left,
            right: node_column(document, "right_children", nodes)?,
            feature: node_column(document, "split_indices", nodes)?,
            condition: node_column(document, "split_conditions", nodes)?,
            default_left: node_column(document, "default_left", nodes)?,
        })
    }

    /// Node number `number`. Nodes that training has deleted look like any other, but no other node
    /// refers to them.
    fn node(&self, number: usize) -> Result<XgboostNode> {
        let (left, right) = (element(self.left, number), element(self.right, number));
        let is_leaf = left < 0.0;
        let children = index(left).zip(index(right));
        if !is_leaf && children.is_none() {
            return Err(Error::damaged(format!(
                "node {number} has the children {left} and {right}"
            )));
        }
        // The feature of a leaf or of a deleted node may be any number.
        let feature = index(element(self.feature, number)).unwrap_or(usize::MAX);
        Ok(XgboostNode {
            children: if is_leaf { None } else { children },
            feature,
            default_left: element(self.default_left, number) > 0.0,
            condition: NodeCondition::Number(narrow(element(self.condition, number))),
        })
    }
}

/// The array `name` of a tree with `nodes` nodes.
fn node_column<'a>(document: &'a DocumentValue, name: &str, nodes: usize) -> Result<&'a [f64]> {
    let column = document.numbers(name)?;
    if column.len() != nodes {
        let have = column.len();
        return Err(Error::damaged(format!("{name:?} has {have} elements for {nodes} nodes")));
    }
    Ok(column)
}

/// Element number `number`; NaN beyond the end.
fn element(column: &[f64], number: usize) -> f64 {
    column.get(number).copied().unwrap_or(f64::NAN)
}

/// The values of leaves that have one for each output.
struct LeafVectors {
    values: Vec<f32>,
    /// Whether leaves store the index of their values (from 3.2 on), or each node has some.
    by_leaf: bool,
}

fn read_leaf_vectors(document: &DocumentValue, outputs: usize) -> Result<LeafVectors> {
    let parameters = document.member("tree_param")?;
    let size: usize = match parameters.find("size_leaf_vector") {
        None => 1, // Some versions do not write it.
        Some(_) => parameters.parameter("size_leaf_vector")?,
    };
    if size <= 1 {
        return Ok(LeafVectors { values: Vec::new(), by_leaf: false });
    }
    if size != outputs {
        return Err(Error::damaged(format!(
            "leaves have {size} values, and the model {outputs} outputs"
        )));
    }
    let by_leaf = document.find("leaf_weights").is_some();
    let values = document.floats(if by_leaf { "leaf_weights" } else { "base_weights" })?;
    if values.is_empty() {
        return Err(Error::damaged("leaves have no values"));
    }
    Ok(LeafVectors { values, by_leaf })
}

/// Reads the categories of all nodes of a tree.
fn read_categories(document: &DocumentValue) -> Result<Vec<u32>> {
    if document.find("categories").is_none() {
        return Ok(Vec::new()); // Before 1.3.
    }
    let mut categories = Vec::new();
    for &number in document.numbers("categories")? {
        let category = index(number).and_then(|category| u32::try_from(category).ok());
        let category =
            category.ok_or_else(|| Error::damaged(format!("{number} is not a valid category")))?;
        categories.push(category);
    }
    Ok(categories)
}

/// The nodes that split by category, in ascending order, each with its range of the categories.
struct CategorySplits<'a> {
    nodes: &'a [f64],
    starts: &'a [f64],
    counts: &'a [f64],
}

impl<'a> CategorySplits<'a> {
    fn new(document: &'a DocumentValue) -> Result<Self> {
        if document.find("categories_nodes").is_none() {
            return Ok(CategorySplits { nodes: &[], starts: &[], counts: &[] });
        }
        let splits = CategorySplits {
            nodes: document.numbers("categories_nodes")?,
            starts: document.numbers("categories_segments")?,
            counts: document.numbers("categories_sizes")?,
        };
        let nodes = splits.nodes.len();
        if splits.starts.len() != nodes || splits.counts.len() != nodes {
            return Err(Error::damaged(
                "\"categories_nodes\", \"categories_segments\" and \"categories_sizes\" differ in \
                 length",
            ));
        }
        Ok(splits)
    }

    /// The categories of node `node`, if it splits by them. To be called for each node in turn.
    fn next_of(&mut self, node: usize) -> Result<Option<NodeCondition>> {
        let Some((first, rest)) = self.nodes.split_first() else {
            return Ok(None);
        };
        if index(*first) != Some(node) {
            return Ok(None);
        }
        self.nodes = rest;
        let range = next_index(&mut self.starts).zip(next_index(&mut self.counts));
        let (start, count) = range
            .ok_or_else(|| Error::damaged(format!("node {node} has no categories to split by")))?;
        Ok(Some(NodeCondition::Categories { start, count }))
    }
}

/// Removes the first element of `numbers`, and returns it as an index.
fn next_index(numbers: &mut &[f64]) -> Option<usize> {
    let (first, rest) = numbers.split_first()?;
    *numbers = rest;
    index(*first)
}
