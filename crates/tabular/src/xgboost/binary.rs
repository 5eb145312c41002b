//! Models in the library's first format: its structures as they lie in memory, little-endian. It
//! was written until 2.1; 3.0 can not read it any more.

use super::forest::{Forest, Split, Tree, TreeNode};
use super::model::{Base, Booster, Learner, Model};
use super::scan::Scan;
use super::{Rounds, broken, unsupported};
use tensorserve_tensor::error::Result;

/// What some files start with.
const MAGIC: &[u8] = b"binf";

/// What the bytes in a booster's pickle started with from 1.0 on, until they were JSON: then come the
/// size of the model, the model, and its settings.
pub(super) const SNAPSHOT: &[u8] = b"CONFIG-offset:";

/// Reads a model from the snapshot of a pickle.
pub(super) fn read_snapshot(bytes: &[u8], rounds: Rounds) -> Result<Model> {
    let mut scan = Scan::new(bytes);
    scan.bytes(SNAPSHOT.len())?;
    let size = length(&mut scan)?;
    read(scan.bytes(size)?, rounds)
}

/// Whether `start`, the first bytes of a file, looks like this format: the name of an objective
/// stands where it should.
pub(super) fn is_one(start: &[u8]) -> bool {
    let mut scan = Scan::new(start.strip_prefix(MAGIC).unwrap_or(start));
    let name = scan.bytes(PARAMETERS).and_then(|_| text(&mut scan));
    let is_name = |c: char| c.is_ascii_lowercase() || c == ':';
    name.is_ok_and(|name| name.contains(':') && name.chars().all(is_name))
}

/// Bytes of the parameters at the start.
const PARAMETERS: usize = 136;

/// Reads a model.
pub(super) fn read(bytes: &[u8], rounds: Rounds) -> Result<Model> {
    let mut scan = Scan::new(bytes.strip_prefix(MAGIC).unwrap_or(bytes));
    let mut parameters = Scan::new(scan.bytes(PARAMETERS)?);
    let base_score = f32::from_le_bytes(parameters.array()?);
    let features = unsigned(&mut parameters)?;
    let classes = count(&mut parameters)?;
    let has_attributes = integer(&mut parameters)? != 0;
    let _has_metrics = integer(&mut parameters)?;
    let version = (unsigned(&mut parameters)?, unsigned(&mut parameters)?);
    let targets = unsigned(&mut parameters)?; // Since 1.6; before, 0.
    let said = Learner {
        version,
        objective: text(&mut scan)?,
        features: features as usize,
        outputs: classes.max(targets as usize).max(1),
        base: match version {
            (0, _) => Base::Margin(base_score),
            _ => Base::Scores(vec![base_score]),
        },
    };
    said.check()?;
    let booster = match &*text(&mut scan)? {
        "gbtree" => Booster::Trees(trees(&mut scan, &said, false, has_attributes, rounds)?),
        "dart" => Booster::Trees(trees(&mut scan, &said, true, has_attributes, rounds)?),
        "gblinear" => {
            scan.bytes(LINEAR_PARAMETERS)?;
            Booster::Linear(floats(&mut scan)?)
        }
        name => {
            return Err(unsupported(format!(
                "its booster is {name:?}; gbtree, dart and gblinear are known here"
            )));
        }
    };
    said.with(booster)
}

const LINEAR_PARAMETERS: usize = 34 * 4;
const RESERVED_OF_TREES: usize = 32 * 4;
const RESERVED_OF_TREE: usize = 31 * 4;
const NODE: usize = 5 * 4;
const STATISTICS: usize = 4 * 4;

fn trees(
    scan: &mut Scan,
    said: &Learner,
    is_dart: bool,
    has_attributes: bool,
    rounds: Rounds,
) -> Result<Forest> {
    let len = count(scan)?;
    let parallel = count(scan)?.max(1); // Before 1.3 the number of roots: 1.
    scan.bytes(4 + 4 + 8 + 4)?; // Not used any more.
    if integer(scan)? > 1 {
        return Err(unsupported("its leaves hold several values each".to_owned()));
    }
    scan.bytes(RESERVED_OF_TREES)?;
    let mut trees = Vec::new();
    for place in 0..len {
        trees.push(tree(scan).map_err(|e| e.context(format!("tree {place}")))?);
    }
    let mut groups = Vec::new();
    for _ in &trees {
        groups.push(count(scan)?);
    }
    let weights = if is_dart && len > 0 { floats(scan)? } else { Vec::new() };
    let mut forest = Forest::default();
    for (place, (tree, group)) in trees.iter().zip(groups).enumerate() {
        let weight = weights.get(place).copied().unwrap_or(1.0);
        let added = forest.add(tree, weight, group, said.outputs, said.features);
        added.map_err(|e| e.context(format!("tree {place}")))?;
    }
    let best = if has_attributes { best_round(scan, rounds)? } else { None };
    if let Some(best) = best {
        let rounds = best.saturating_add(1);
        forest.truncate(rounds.saturating_mul(parallel).saturating_mul(said.outputs));
    }
    Ok(forest)
}

fn tree(scan: &mut Scan) -> Result<Tree> {
    let roots = integer(scan)?;
    let len = count(scan)?;
    scan.bytes(4 + 4 + 4)?; // Thrown away nodes, depth, features.
    if roots > 1 {
        return Err(unsupported(format!("it has {roots} roots")));
    }
    if integer(scan)? > 1 {
        return Err(unsupported("its leaves hold several values each".to_owned()));
    }
    scan.bytes(RESERVED_OF_TREE)?;
    let too_long = || broken(format!("it says to have {len} nodes"));
    let mut nodes = Scan::new(scan.bytes(len.checked_mul(NODE).ok_or_else(too_long)?)?);
    scan.bytes(len.checked_mul(STATISTICS).ok_or_else(too_long)?)?;
    let mut tree = Tree { nodes: Vec::with_capacity(len), ..Tree::default() };
    while !nodes.is_at_end() {
        tree.nodes.push(node(&mut nodes)?);
    }
    Ok(tree)
}

fn node(scan: &mut Scan) -> Result<TreeNode> {
    /// In the number of a feature: missing values go to the left.
    const DEFAULT_LEFT: u32 = 1 << 31;
    let _parent = integer(scan)?;
    let (left, right) = (integer(scan)?, integer(scan)?);
    let feature = unsigned(scan)?;
    // One that is not there is found when the tree is put together.
    let place = |child: i32| usize::try_from(child).unwrap_or(usize::MAX);
    Ok(TreeNode {
        children: (left != -1).then(|| (place(left), place(right))),
        feature: (feature & !DEFAULT_LEFT) as usize,
        default_left: feature & DEFAULT_LEFT != 0,
        split: Split::Number(f32::from_le_bytes(scan.array()?)),
    })
}

/// Reads the attributes, and in them the last round to use; `None` for all.
fn best_round(scan: &mut Scan, rounds: Rounds) -> Result<Option<usize>> {
    let mut best = None;
    let mut is_wrapped = false;
    for _ in 0..length(scan)? {
        let (name, value) = (text(scan)?, text(scan)?);
        match &*name {
            "best_iteration" => best = value.parse().ok(),
            "scikit_learn" => is_wrapped = true,
            _ => {}
        }
    }
    Ok(match rounds {
        Rounds::OfLibrary => best.filter(|_| is_wrapped),
        Rounds::Best => best,
        Rounds::All => None,
    })
}

fn integer(scan: &mut Scan) -> Result<i32> {
    scan.array().map(i32::from_le_bytes)
}

fn unsigned(scan: &mut Scan) -> Result<u32> {
    scan.array().map(u32::from_le_bytes)
}

/// A number of things, as a signed integer.
fn count(scan: &mut Scan) -> Result<usize> {
    let count = integer(scan)?;
    let place = scan.place();
    usize::try_from(count).map_err(|_| broken(format!("there are {count} of something, {place}")))
}

/// A length, in eight bytes.
fn length(scan: &mut Scan) -> Result<usize> {
    let length = scan.array().map(u64::from_le_bytes)?;
    usize::try_from(length).map_err(|_| scan.too_short())
}

fn text(scan: &mut Scan) -> Result<String> {
    let length = length(scan)?;
    Ok(String::from_utf8_lossy(scan.bytes(length)?).into_owned())
}

fn floats(scan: &mut Scan) -> Result<Vec<f32>> {
    let length = length(scan)?;
    let bytes = length.checked_mul(4).ok_or_else(|| scan.too_short())?;
    let chunks = scan.bytes(bytes)?.as_chunks().0;
    Ok(chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect())
}
