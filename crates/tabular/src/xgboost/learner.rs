//! Models in a document: XGBoost's JSON and UBJSON, of all versions from 1.0 on.

use super::document::{Value, index, narrow};
use super::forest::{Forest, Split, Tree, TreeNode};
use super::model::{Base, Booster, Learner, Model};
use super::objective::Version;
use super::{Rounds, broken, unsupported};
use tensorserve_tensor::error::Result;

/// Reads the model in `document`, or in the snapshot that a pickle holds.
pub(super) fn read(document: &Value, rounds: Rounds) -> Result<Model> {
    let document = document.find("Model").unwrap_or(document);
    let learner = document.member("learner")?;
    let version = version(document);
    let parameters = learner.member("learner_model_param")?;
    let said = Learner {
        version,
        objective: learner.member("objective")?.text("name")?.to_owned(),
        features: parameters.parameter("num_feature")?,
        outputs: outputs(parameters)?,
        base: Base::Scores(base_scores(parameters)?),
    };
    said.check()?;
    let booster = booster(learner, &said, rounds)?;
    let mut model = said.with(booster)?;
    if let Some(Value::Numbers(version)) = document.find("version") {
        let parts: Vec<String> = version.iter().map(f64::to_string).collect();
        model.written_by = parts.join(".");
    }
    model.names = learner.texts("feature_names")?;
    Ok(model)
}

/// Major and minor version; of a document that does not say, that of the first with documents.
fn version(document: &Value) -> Version {
    let numbers = document.numbers("version").unwrap_or_default();
    let part = |place: usize| {
        let number = numbers.get(place).copied().and_then(index);
        number.and_then(|number| u32::try_from(number).ok())
    };
    (part(0).unwrap_or(1), part(1).unwrap_or(0))
}

fn outputs(parameters: &Value) -> Result<usize> {
    let classes: usize = parameters.parameter("num_class")?;
    let targets = match parameters.find("num_target") {
        None => 1, // Before 1.6.
        Some(_) => parameters.parameter("num_target")?,
    };
    if classes > 1 && targets > 1 {
        return Err(broken(format!("it has {classes} classes and {targets} targets")));
    }
    Ok(classes.max(targets).max(1))
}

/// A text with one number, or from 3.1 on with a list of them.
fn base_scores(parameters: &Value) -> Result<Vec<f32>> {
    let text = parameters.text("base_score")?;
    let no_numbers = |_| broken(format!("\"base_score\" is {text:?}"));
    match Value::from_json(text.as_bytes()).map_err(no_numbers)? {
        Value::Number(score) => Ok(vec![narrow(score)]),
        Value::Numbers(scores) => Ok(scores.into_iter().map(narrow).collect()),
        Value::Nothing | Value::Text(_) | Value::List(_) | Value::Object(_) => {
            Err(broken(format!("\"base_score\" is {text:?}")))
        }
    }
}

fn booster(learner: &Value, said: &Learner, rounds: Rounds) -> Result<Booster> {
    let booster = learner.member("gradient_booster")?;
    match booster.text("name")? {
        "gbtree" => trees(booster, None, learner, said, rounds),
        "dart" => {
            let weights = booster.floats("weight_drop")?;
            trees(booster.member("gbtree")?, Some(weights), learner, said, rounds)
        }
        "gblinear" => Ok(Booster::Linear(booster.member("model")?.floats("weights")?)),
        name => Err(unsupported(format!(
            "its booster is {name:?}; gbtree, dart and gblinear are known here"
        ))),
    }
}

fn trees(
    booster: &Value,
    weights: Option<Vec<f32>>,
    learner: &Value,
    said: &Learner,
    rounds: Rounds,
) -> Result<Booster> {
    let model = booster.member("model")?;
    // From 3.3 on, trees that were dropped in training have their weights here.
    let weights = match (weights, model.find("weight_drop")) {
        (Some(weights), _) => weights,
        (None, Some(_)) => model.floats("weight_drop")?,
        (None, None) => Vec::new(),
    };
    let (trees, groups) = (model.list("trees")?, model.numbers("tree_info")?);
    if trees.len() != groups.len() {
        let (trees, groups) = (trees.len(), groups.len());
        return Err(broken(format!("it has {trees} trees, and outputs for {groups}")));
    }
    let mut forest = Forest::default();
    for (place, (document, group)) in trees.iter().zip(groups).enumerate() {
        let weight = weights.get(place).copied().unwrap_or(1.0);
        let mut add = || {
            let (tree, group) = (tree(document, place, said.outputs)?, index(*group));
            let group = group.ok_or_else(|| broken("its output is no number".to_owned()))?;
            forest.add(&tree, weight, group, said.outputs, said.features)
        };
        add().map_err(|error| error.context(format!("tree {place}")))?;
    }
    if let Some(best) = best_round(learner, rounds)? {
        forest.truncate(trees_of(best.saturating_add(1), model, said.outputs)?);
    }
    Ok(Booster::Trees(forest))
}

/// The last round to use; `None` for all.
fn best_round(learner: &Value, rounds: Rounds) -> Result<Option<usize>> {
    let Some(attributes) = learner.find("attributes") else {
        return Ok(None);
    };
    // The wrappers for scikit-learn leave this mark.
    let is_wrapped = attributes.find("scikit_learn").is_some();
    let stops = match rounds {
        Rounds::OfLibrary => is_wrapped,
        Rounds::Best => true,
        Rounds::All => false,
    };
    match attributes.find("best_iteration") {
        Some(_) if stops => attributes.parameter("best_iteration").map(Some),
        Some(_) | None => Ok(None),
    }
}

/// How many trees the first `rounds` rounds made.
fn trees_of(rounds: usize, model: &Value, outputs: usize) -> Result<usize> {
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

/// The tree in `document`, which is number `place`.
fn tree(document: &Value, place: usize, outputs: usize) -> Result<Tree> {
    if document.find("id").is_some() && document.parameter::<usize>("id")? != place {
        return Err(broken("its \"id\" is another".to_owned()));
    }
    let columns = Columns::new(document)?;
    let vectors = vectors(document, outputs)?;
    let mut tree = Tree {
        nodes: Vec::with_capacity(columns.left.len()),
        categories: categories(document)?,
        vectors: vectors.values,
    };
    let mut sets = Sets::new(document)?;
    for place in 0..columns.left.len() {
        let mut node = columns.node(place)?;
        let set = sets.of(place)?;
        if node.children.is_some() {
            if let Some((start, count)) = set {
                node.split = Split::Categories(start, count);
            }
        } else if !tree.vectors.is_empty() {
            let vector = if vectors.by_leaf { columns.right.get(place).copied() } else { None };
            let vector = vector.map_or(Some(place), index);
            let start = vector.and_then(|vector| vector.checked_mul(outputs));
            let start = start.ok_or_else(|| broken(format!("leaf {place} has no values")))?;
            node.split = Split::Vector(start);
        }
        tree.nodes.push(node);
    }
    Ok(tree)
}

/// A tree's lists that have an element for each node.
struct Columns<'a> {
    left: &'a [f64],
    right: &'a [f64],
    feature: &'a [f64],
    value: &'a [f64],
    default_left: &'a [f64],
}

impl<'a> Columns<'a> {
    fn new(document: &'a Value) -> Result<Self> {
        let left = document.numbers("left_children")?;
        let column = |name: &str| {
            let column = document.numbers(name)?;
            if column.len() != left.len() {
                let (have, want) = (column.len(), left.len());
                return Err(broken(format!("{name:?} has {have} elements and needs {want}")));
            }
            Ok(column)
        };
        Ok(Columns {
            left,
            right: column("right_children")?,
            feature: column("split_indices")?,
            value: column("split_conditions")?,
            default_left: column("default_left")?,
        })
    }

    /// Node number `place`. Nodes that training has thrown away are like any other, but no other
    /// names them.
    fn node(&self, place: usize) -> Result<TreeNode> {
        let get = |column: &[f64]| column.get(place).copied().unwrap_or(f64::NAN);
        let (left, right) = (get(self.left), get(self.right));
        let is_leaf = left < 0.0;
        let children = index(left).zip(index(right));
        if !is_leaf && children.is_none() {
            return Err(broken(format!("node {place} has the children {left} and {right}")));
        }
        // That of a leaf, or of a node that is thrown away, may be anything.
        let feature = index(get(self.feature)).unwrap_or(usize::MAX);
        Ok(TreeNode {
            children: if is_leaf { None } else { children },
            feature,
            default_left: get(self.default_left) > 0.0,
            split: Split::Number(narrow(get(self.value))),
        })
    }
}

/// Leaves that hold a value for every output.
struct Vectors {
    values: Vec<f32>,
    /// Whether leaves say which of them are theirs (from 3.2 on), or every node has some.
    by_leaf: bool,
}

fn vectors(document: &Value, outputs: usize) -> Result<Vectors> {
    let parameters = document.member("tree_param")?;
    let size: usize = match parameters.find("size_leaf_vector") {
        None => 1, // Not written by all versions.
        Some(_) => parameters.parameter("size_leaf_vector")?,
    };
    if size <= 1 {
        return Ok(Vectors { values: Vec::new(), by_leaf: false });
    }
    if size != outputs {
        return Err(broken(format!("its leaves have {size} values, for {outputs} outputs")));
    }
    let by_leaf = document.find("leaf_weights").is_some();
    let values = document.floats(if by_leaf { "leaf_weights" } else { "base_weights" })?;
    if values.is_empty() {
        return Err(broken("its leaves have no values".to_owned()));
    }
    Ok(Vectors { values, by_leaf })
}

fn categories(document: &Value) -> Result<Vec<u32>> {
    if document.find("categories").is_none() {
        return Ok(Vec::new()); // Before 1.3.
    }
    let category = |&x: &f64| index(x).and_then(|x| u32::try_from(x).ok());
    let categories: Option<Vec<u32>> =
        document.numbers("categories")?.iter().map(category).collect();
    categories.ok_or_else(|| broken("a category is no number".to_owned()))
}

/// Which nodes split by categories, in the order of the nodes.
struct Sets<'a> {
    nodes: &'a [f64],
    starts: &'a [f64],
    sizes: &'a [f64],
}

impl<'a> Sets<'a> {
    fn new(document: &'a Value) -> Result<Self> {
        if document.find("categories_nodes").is_none() {
            return Ok(Sets { nodes: &[], starts: &[], sizes: &[] });
        }
        let sets = Sets {
            nodes: document.numbers("categories_nodes")?,
            starts: document.numbers("categories_segments")?,
            sizes: document.numbers("categories_sizes")?,
        };
        if sets.starts.len() != sets.nodes.len() || sets.sizes.len() != sets.nodes.len() {
            return Err(broken("its lists of categories do not match".to_owned()));
        }
        Ok(sets)
    }

    /// Start and length of the set of node `place`, if it has one; to be asked for every node in
    /// turn.
    fn of(&mut self, place: usize) -> Result<Option<(usize, usize)>> {
        let Some((node, rest)) = self.nodes.split_first() else {
            return Ok(None);
        };
        if index(*node) != Some(place) {
            return Ok(None);
        }
        self.nodes = rest;
        let first = |list: &mut &'a [f64]| {
            let (first, rest) = list.split_first()?;
            *list = rest;
            index(*first)
        };
        let set = first(&mut self.starts).zip(first(&mut self.sizes));
        set.map(Some).ok_or_else(|| broken(format!("node {place} splits by no categories")))
    }
}
