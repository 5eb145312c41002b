//! Freezing: a copy of a SavedModel whose requests read constants in place of variables, so that the runtime folds and
//! fuses what depends on them alone. Variables that a run may write, strings and tables are never frozen; large variables
//! stay, because a constant takes several times its size while the runtime optimizes a graph.
//!
//! `forms` says which copies there are, `wire` edits encoded messages, `nodes` encodes nodes, `rewrite` puts the values in, with
//! `crate::scope` to follow handles; this file reads the values and loads the copy.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;

use self::forms::CopyPlan;
use self::rewrite::FrozenCounts;
use self::wire::{Edit, edited};
use super::ffi::{SessionSettings, TensorFlowApi, TensorFlowSession};
use super::scope;
use tensorserve_platform::LARGEST_KEPT;
use tensorserve_proto::tensorflow::GraphDef;
use tensorserve_savedmodel::{self as saved_model, Graph};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, Signature, Tensor};

mod forms;
mod nodes;
mod rewrite;
#[cfg(test)]
mod tests;
mod wire;

/// The largest variable that becomes a constant, in bytes.
const LARGEST_VARIABLE: usize = 1 << 20;

/// The largest `saved_model.pb` that is copied: it is in memory several times meanwhile.
const LARGEST_GRAPH: u64 = 256 << 20;

/// The signature that initializes tables of a model of TensorFlow 2, when it is loaded.
const INITIALIZATION: &str = "__saved_model_init_op";

/// The number of the field of TensorFlow's `SavedModel` with its graphs, and of `MetaGraphDef` with its `GraphDef`
/// (saved_model.proto, meta_graph.proto).
const META_GRAPHS: u32 = 2;
const GRAPH_DEF: u32 = 2;

/// What a SavedModel was loaded from, and how: all that a copy is made of but the values of its variables.
#[derive(Clone)]
pub(super) struct SavedModelOrigin {
    pub(super) api: Arc<TensorFlowApi>,
    pub(super) folder: PathBuf,
    pub(super) tags: Vec<String>,
    pub(super) settings: SessionSettings,
    /// The settings of a session with one thread within an operation; `None` if this one has no more, or must not have a copy.
    pub(super) one_thread: Option<SessionSettings>,
    pub(super) signatures: Vec<Signature>,
    /// For each signature the number of one that computes the same.
    pub(super) alike: Vec<usize>,
    /// Whether its graph has variables.
    pub(super) has_variables: bool,
    /// Of all files.
    pub(super) bytes: u64,
}

/// A loaded copy.
pub(super) struct FrozenModel {
    pub(super) session: TensorFlowSession,
    /// What was frozen, in words.
    pub(super) what: String,
    pub(super) plan: CopyPlan,
    /// Whether there is no copy with a higher number.
    pub(super) is_last: bool,
    /// The folder whose assets its operations may read.
    pub(super) assets: Option<TempDir>,
}

impl SavedModelOrigin {
    /// The signatures that requests call: what initializes the model has run.
    pub(super) fn called(&self) -> impl Iterator<Item = &Signature> {
        self.signatures.iter().filter(|it| it.name != INITIALIZATION)
    }

    /// Makes the copy with this number, with the values of the variables in `session`, and loads it. `Err` inside says why there is none.
    ///
    /// # Errors
    /// Those of files and of the runtime.
    pub(super) fn freeze(
        &self,
        session: &TensorFlowSession,
        number: usize,
    ) -> Result<Result<FrozenModel, String>> {
        if let Some(signature) = self.called().find(|it| !it.read_only || !it.repeatable) {
            let why =
                if signature.read_only { "draws random numbers" } else { "changes the model" };
            return Ok(Err(format!("signature {:?} {why}", signature.name)));
        }
        let file = saved_model::main_file(&self.folder);
        if file.metadata().map_or(0, |meta| meta.len()) > LARGEST_GRAPH {
            return Ok(Err(format!("its graph has more than {} MiB", LARGEST_GRAPH >> 20)));
        }
        let encoded = saved_model::read_main_file(&self.folder)?;
        let (part, meta) = saved_model::numbered_graph(encoded.clone(), &self.tags)?;
        let Some(graph) = &meta.graph_def else {
            return Ok(Err("it has no graph".to_owned()));
        };
        let indexed = Graph::new(graph);
        let outputs = || self.called().flat_map(|it| &it.outputs);
        let names = || outputs().map(|spec| spec.tensor_name.as_str());
        if indexed.is_recursive(names()) {
            return Ok(Err("a function of its graph calls itself".to_owned()));
        }
        let reached = indexed.nodes_of(names());
        let of_graph = reached.iter().filter(|placed| placed.function.is_none());
        let reachable: HashSet<&str> = of_graph.map(|placed| placed.node.name.as_str()).collect();
        let (handles, values) = values(session, graph, &reachable)?;
        let ops = reached.iter().map(|placed| placed.node.op.as_str());
        let may_stay = self.bytes <= LARGEST_KEPT && self.called().any(forms::has_numbers);
        let plans = forms::plans(ops, &values, may_stay);
        let none = || Ok(Err("its requests read no variables that could be constants".to_owned()));
        let Some(plan) = plans.get(number) else {
            return none();
        };
        let is_last = number + 1 == plans.len();
        let (copy, counts) = match plan.variables {
            None => (encoded.to_vec(), FrozenCounts { has_variables: true, ..Default::default() }),
            Some(variables) => {
                let mut counts = FrozenCounts::default();
                let copy = with_graph(&encoded, part, |bytes| {
                    let numbers = handles.iter().copied().zip(0..).collect();
                    let frozen =
                        rewrite::frozen((graph, bytes), &reachable, numbers, &values, variables)?;
                    counts = frozen.counts;
                    Ok(frozen.encoded)
                })?;
                if counts.constants == 0 {
                    return none();
                }
                (copy, counts)
            }
        };
        drop((values, meta, encoded));
        let (session, assets) = self.load(&copy, plan, counts.has_variables)?;
        let what = plan.describe(&counts);
        Ok(Ok(FrozenModel { session, what, plan: *plan, is_last, assets }))
    }

    /// Writes the copy to a folder of its own, and loads it from there. Returns also the folder whose assets its operations
    /// may read.
    fn load(
        &self,
        copy: &[u8],
        plan: &CopyPlan,
        has_variables: bool,
    ) -> Result<(TensorFlowSession, Option<TempDir>)> {
        let failed = |e: std::io::Error| {
            let message = format!("its copy cannot be written to the temporary folder: {e}");
            Error::new(Code::of_io(&e), message)
        };
        let folder =
            tempfile::Builder::new().prefix("tensorserve-form-").tempdir().map_err(failed)?;
        let original = fs::canonicalize(&self.folder).map_err(failed)?;
        let link = |name: &str| -> std::io::Result<Option<PathBuf>> {
            let (from, to) = (original.join(name), folder.path().join(name));
            if !from.is_dir() {
                return Ok(None);
            }
            symlink(from, &to).map(|()| Some(to))
        };
        let assets = link("assets").map_err(failed)?;
        let variables = match has_variables {
            true => link("variables").map_err(failed)?,
            false => None,
        };
        let file = saved_model::main_file(folder.path());
        fs::write(&file, copy).map_err(failed)?;
        let settings = forms::session_settings(&self.settings, plan);
        let session =
            TensorFlowSession::load(&self.api, folder.path(), &self.tags, &settings, None)?;
        for used in variables.into_iter().chain([file]) {
            fs::remove_file(used).map_err(failed)?;
        }
        Ok((session, assets.map(|_| folder)))
    }
}

/// The nodes of variables that could be constants, and their values.
fn values<'g>(
    session: &TensorFlowSession,
    graph: &'g GraphDef,
    reachable: &HashSet<&str>,
) -> Result<(Vec<&'g str>, Vec<Tensor>)> {
    let mut handles: Vec<(&str, DType)> = Vec::new();
    for node in &graph.node {
        let dtype = scope::dtype(node, "dtype").and_then(DType::from_number);
        let is_numeric = dtype.filter(|dtype| *dtype != DType::String);
        let is_variable = node.op == "VarHandleOp" && reachable.contains(node.name.as_str());
        if let (true, Some(dtype)) = (is_variable, is_numeric) {
            handles.push((node.name.as_str(), dtype));
        }
    }
    let values = session.read_variables(&handles)?;
    let known = handles.iter().zip(values).filter_map(|((name, _), value)| {
        Some((*name, value.filter(|value| value.bytes().len() <= LARGEST_VARIABLE)?))
    });
    Ok(known.unzip())
}

/// The SavedModel `encoded` with another graph in its part with this number.
fn with_graph(
    encoded: &[u8],
    number: usize,
    mut change: impl FnMut(&[u8]) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let (mut part, mut graphs) = (0, 0);
    let copy = edited(encoded, |field, meta| {
        if field != META_GRAPHS {
            return Ok(Edit::Keep);
        }
        part += 1;
        if part != number + 1 {
            return Ok(Edit::Keep);
        }
        let meta = edited(meta, |field, graph| {
            if field != GRAPH_DEF {
                return Ok(Edit::Keep);
            }
            graphs += 1;
            change(graph).map(Edit::Replace)
        });
        meta.map(Edit::Replace)
    })?;
    match graphs {
        1 => Ok(copy),
        _ => Err(Error::new(Code::DataLoss, "a part of the model occurs more than once")),
    }
}
