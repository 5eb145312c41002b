//! Models in the library's binary format: its structures as they lie in memory, little-endian. The
//! library wrote it until 2.1, and cannot read it since 3.0.
//!
//! The names of fields are those of the library's sources at 1.7: `LearnerModelParamLegacy`
//! (`src/learner.cc`), `GBTreeModelParam` (`src/gbm/gbtree_model.h`), `TreeParam` and `RegTree::Node`
//! (`include/xgboost/tree_model.h`), `DeprecatedGBLinearModelParam` (`src/gbm/gblinear_model.h`).

use super::RoundSelection;
use super::forest::{NodeCondition, XgboostForest, XgboostNode, XgboostTree, add_tree};
use super::model::{BaseScore, Booster, LearnerParameters, XgboostModel};
use super::reader::ByteReader;
use tensorserve_tensor::error::{Error, Result};

/// With which some files start.
const MAGIC: &[u8] = b"binf";

/// With which the bytes of a pickled booster start from 1.0 on, until they are JSON. The size of the
/// model, the model and its configuration follow.
pub(super) const SNAPSHOT_MAGIC: &[u8] = b"CONFIG-offset:";

/// The size of an `int`, an `unsigned` and a `float`.
const WORD: usize = 4;

/// The size of `LearnerModelParamLegacy`, with which a model starts.
const LEARNER_PARAMETERS: usize = 34 * WORD;

/// `GBTreeModelParam` between `num_parallel_tree` and `size_leaf_vector`: `deprecated_num_feature`,
/// `pad_32bit`, `deprecated_num_pbuffer` (8 bytes), `deprecated_num_output_group`.
const GBTREE_DEPRECATED: usize = 5 * WORD;

/// `GBTreeModelParam::reserved`.
const GBTREE_RESERVED: usize = 32 * WORD;

/// The size of `DeprecatedGBLinearModelParam`.
const GBLINEAR_PARAMETERS: usize = 34 * WORD;

/// `TreeParam` between `num_nodes` and `size_leaf_vector`: `num_deleted`, `deprecated_max_depth`,
/// `num_feature`.
const TREE_UNUSED: usize = 3 * WORD;

/// `TreeParam::reserved`.
const TREE_RESERVED: usize = 31 * WORD;

/// The size of `RegTree::Node`.
const NODE: usize = 5 * WORD;

/// The size of `RTreeNodeStat`.
const NODE_STATISTICS: usize = 4 * WORD;

/// Flag of `RegTree::Node::sindex_`: a missing value goes to the left.
const DEFAULT_LEFT: u32 = 1 << 31;

/// `RegTree::Node::cleft_` of a leaf.
const NO_CHILD: i32 = -1;

/// Reads the model in the snapshot of a pickle.
pub(super) fn read_snapshot(bytes: &[u8], rounds: RoundSelection) -> Result<XgboostModel> {
    let mut reader = ByteReader::new(bytes);
    reader.bytes(SNAPSHOT_MAGIC.len())?;
    let size = read_length(&mut reader)?;
    read(reader.bytes(size)?, rounds)
}

/// Whether a file with these first bytes is in this format: the name of an objective follows the
/// parameters.
pub(super) fn is_binary_model(start: &[u8]) -> bool {
    let mut reader = ByteReader::new(start.strip_prefix(MAGIC).unwrap_or(start));
    let name = reader.bytes(LEARNER_PARAMETERS).and_then(|_| read_text(&mut reader));
    let Ok(name) = name else { return false };
    name.contains(':') && name.chars().all(|c| c.is_ascii_lowercase() || c == ':')
}

/// Reads a model.
pub(super) fn read(bytes: &[u8], rounds: RoundSelection) -> Result<XgboostModel> {
    let mut reader = ByteReader::new(bytes.strip_prefix(MAGIC).unwrap_or(bytes));
    let mut fields = ByteReader::new(reader.bytes(LEARNER_PARAMETERS)?);
    let base_score = f32::from_le_bytes(fields.array()?);
    let features = read_u32(&mut fields)?;
    let classes = read_count(&mut fields)?;
    let has_attributes = read_i32(&mut fields)? != 0;
    let _contain_eval_metrics = read_i32(&mut fields)?;
    let version = (read_u32(&mut fields)?, read_u32(&mut fields)?);
    let targets = read_u32(&mut fields)?; // Since 1.6; before, 0.
    let parameters = LearnerParameters {
        version,
        objective: read_text(&mut reader)?,
        features: features as usize,
        outputs: classes.max(targets as usize).max(1),
        base_score: match version {
            (0, _) => BaseScore::Margin(base_score),
            _ => BaseScore::Predictions(vec![base_score]),
        },
    };
    parameters.check()?;
    let name = read_text(&mut reader)?;
    let booster = match &*name {
        "gbtree" | "dart" => {
            let is_dart = name == "dart";
            let mut trees = read_trees(&mut reader, &parameters, is_dart)?;
            if has_attributes && let Some(best) = read_best_round(&mut reader, rounds)? {
                trees.truncate(best.saturating_add(1), parameters.outputs);
            }
            Booster::Trees(trees.forest)
        }
        "gblinear" => {
            reader.bytes(GBLINEAR_PARAMETERS)?;
            Booster::Linear(read_floats(&mut reader)?)
        }
        name => {
            return Err(Error::unsupported(format!(
                "the booster {name:?} is not supported, only gbtree, dart and gblinear"
            )));
        }
    };
    parameters.into_model(booster)
}

/// The trees of a model, and how many of them a boosting round made for each output.
struct BinaryTrees {
    forest: XgboostForest,
    parallel: usize,
}

impl BinaryTrees {
    /// Removes all trees but those of the first `rounds` boosting rounds.
    fn truncate(&mut self, rounds: usize, outputs: usize) {
        self.forest.truncate(rounds.saturating_mul(self.parallel).saturating_mul(outputs));
    }
}

fn read_trees(
    reader: &mut ByteReader,
    parameters: &LearnerParameters,
    is_dart: bool,
) -> Result<BinaryTrees> {
    let len = read_count(reader)?;
    let parallel = read_count(reader)?.max(1); // Before 1.3 the number of roots: 1.
    reader.bytes(GBTREE_DEPRECATED)?;
    check_leaf_size(read_i32(reader)?)?;
    reader.bytes(GBTREE_RESERVED)?;
    let mut trees = Vec::new();
    for number in 0..len {
        trees.push(read_tree(reader).map_err(|e| e.context(format!("tree {number}")))?);
    }
    let mut outputs = Vec::new();
    for _ in &trees {
        outputs.push(read_count(reader)?);
    }
    let weights = if is_dart && len > 0 { read_floats(reader)? } else { Vec::new() };
    let mut forest = XgboostForest::default();
    for (number, (tree, output)) in trees.iter().zip(outputs).enumerate() {
        let weight = weights.get(number).copied().unwrap_or(1.0);
        let added =
            add_tree(&mut forest, tree, weight, output, parameters.outputs, parameters.features);
        added.map_err(|e| e.context(format!("tree {number}")))?;
    }
    Ok(BinaryTrees { forest, parallel })
}

/// Refuses a `size_leaf_vector` of several values.
fn check_leaf_size(size: i32) -> Result<()> {
    match size > 1 {
        true => {
            Err(Error::unsupported("leaves with several values are not supported in binary files"))
        }
        false => Ok(()),
    }
}

fn read_tree(reader: &mut ByteReader) -> Result<XgboostTree> {
    let roots = read_i32(reader)?;
    let len = read_count(reader)?;
    reader.bytes(TREE_UNUSED)?;
    if roots > 1 {
        return Err(Error::unsupported(format!("a tree with {roots} roots is not supported")));
    }
    check_leaf_size(read_i32(reader)?)?;
    reader.bytes(TREE_RESERVED)?;
    let mut nodes = ByteReader::new(read_records(reader, len, NODE)?);
    read_records(reader, len, NODE_STATISTICS)?;
    let mut tree = XgboostTree { nodes: Vec::with_capacity(len), ..XgboostTree::default() };
    while !nodes.is_at_end() {
        tree.nodes.push(read_node(&mut nodes)?);
    }
    Ok(tree)
}

/// The bytes of `count` structures of `size` bytes.
fn read_records<'a>(reader: &mut ByteReader<'a>, count: usize, size: usize) -> Result<&'a [u8]> {
    let bytes = count.checked_mul(size).ok_or_else(|| reader.too_short())?;
    reader.bytes(bytes)
}

fn read_node(reader: &mut ByteReader) -> Result<XgboostNode> {
    let _parent = read_i32(reader)?;
    let (left, right) = (read_i32(reader)?, read_i32(reader)?);
    let feature = read_u32(reader)?;
    Ok(XgboostNode {
        children: (left != NO_CHILD).then(|| (child_index(left), child_index(right))),
        feature: (feature & !DEFAULT_LEFT) as usize,
        default_left: feature & DEFAULT_LEFT != 0,
        condition: NodeCondition::Number(f32::from_le_bytes(reader.array()?)),
    })
}

/// The index of a child. An invalid one is detected when the tree is added to the forest.
fn child_index(child: i32) -> usize {
    usize::try_from(child).unwrap_or(usize::MAX)
}

/// Reads the attributes of the model, and in them the last round to use; `None` for all.
fn read_best_round(reader: &mut ByteReader, rounds: RoundSelection) -> Result<Option<usize>> {
    let mut best = None;
    let mut is_wrapped = false;
    for _ in 0..read_length(reader)? {
        let (name, value) = (read_text(reader)?, read_text(reader)?);
        match &*name {
            "best_iteration" => best = value.parse().ok(),
            "scikit_learn" => is_wrapped = true,
            _ => {}
        }
    }
    Ok(match rounds {
        RoundSelection::AsWritten => best.filter(|_| is_wrapped),
        RoundSelection::UpToBest => best,
        RoundSelection::All => None,
    })
}

fn read_i32(reader: &mut ByteReader) -> Result<i32> {
    reader.array().map(i32::from_le_bytes)
}

fn read_u32(reader: &mut ByteReader) -> Result<u32> {
    reader.array().map(u32::from_le_bytes)
}

/// Reads a count, which the library stores as a signed integer.
fn read_count(reader: &mut ByteReader) -> Result<usize> {
    let count = read_i32(reader)?;
    let position = reader.position();
    usize::try_from(count)
        .map_err(|_| Error::damaged(format!("a count is negative ({count}), {position}")))
}

/// Reads a length of eight bytes.
fn read_length(reader: &mut ByteReader) -> Result<usize> {
    let length = reader.array().map(u64::from_le_bytes)?;
    usize::try_from(length).map_err(|_| reader.too_short())
}

fn read_text(reader: &mut ByteReader) -> Result<String> {
    let length = read_length(reader)?;
    Ok(String::from_utf8_lossy(reader.bytes(length)?).into_owned())
}

fn read_floats(reader: &mut ByteReader) -> Result<Vec<f32>> {
    let length = read_length(reader)?;
    let bytes = length.checked_mul(WORD).ok_or_else(|| reader.too_short())?;
    let chunks = reader.bytes(bytes)?.as_chunks().0;
    Ok(chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect())
}
