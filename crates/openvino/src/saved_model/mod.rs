//! Which SavedModels OpenVINO may run in place of libtensorflow, and on which inputs.
//!
//! The library reads SavedModels by itself, and computes some of them differently: integers of 64 bits with 32, other
//! rows for ids out of range, assertions not at all. A graph therefore counts only if every operation on the way to an
//! output is one of those that were found to compute the same ([`ops`]), for all that can reach it ([`flow`]); and a
//! request only if its values are those for which that holds ([`InputGuard`]).

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use self::flow::GraphFlow;
use self::ops::{IdOrigins, Known};
use tensorserve_proto::tensorflow::MetaGraphDef;
use tensorserve_savedmodel as files;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, LARGEST_ORDINARY_FLOAT, Signature, Tensor, TensorSpec};

mod flow;
mod ops;
#[cfg(test)]
mod tests;

/// The only signature that the library reads.
const SIGNATURE: &str = "serving_default";

/// The tag of the only graph that it reads.
const TAG: &str = "serve";

/// What OpenVINO runs of a SavedModel, and when.
#[derive(Clone, Debug)]
pub struct SavedModelPlan {
    /// The directory of the SavedModel.
    pub(crate) folder: PathBuf,
    /// The signature that it runs, as it is declared.
    pub signature: Signature,
    /// What each input must have, in the order of the signature.
    guards: Vec<InputGuard>,
}

/// What an input must have so that OpenVINO computes what TensorFlow does.
#[derive(Clone, Debug, PartialEq, Eq)]
enum InputGuard {
    /// Floats of at most [`LARGEST_ORDINARY_FLOAT`]: the library loses NaN in some operations, and where larger ones overflow, which
    /// depends on the order of a sum, one has NaN and the other does not.
    Floats,
    /// Integers from 0 up to this one, which is out of range: the library reads other rows of a table for them.
    Below(i64),
    /// Integers of 32 bits.
    Of32Bits,
}

impl SavedModelPlan {
    /// The plan for the graph with `tags` of the SavedModel in `folder`.
    ///
    /// # Errors
    /// If the files cannot be read; [`Code::Unimplemented`](tensorserve_tensor::error::Code::Unimplemented), with the
    /// reason, if OpenVINO may not run it.
    pub fn read(folder: &Path, tags: &[String]) -> Result<Self> {
        let found = files::find(folder).ok_or_else(|| Error::unsupported("it is no SavedModel"))?;
        if files::is_text(&found) {
            return Err(Error::unsupported("its main file is a text"));
        }
        if tags != [TAG] {
            return Err(Error::unsupported(format!("OpenVINO reads only the graph {TAG:?}")));
        }
        let meta = files::read(&found, tags)?;
        let (signature, guards) = check(&meta)?;
        Ok(SavedModelPlan { folder: found.into_owned(), signature, guards })
    }

    /// The signature with the names by which the library finds inputs and outputs.
    pub(crate) fn ports(&self) -> Signature {
        let mut ports = self.signature.clone();
        for spec in ports.inputs.iter_mut().chain(&mut ports.outputs) {
            spec.tensor_name.clone_from(&spec.alias);
        }
        ports.read_only = true;
        ports.repeatable = true;
        ports.exact_shapes = true;
        ports
    }

    /// Whether OpenVINO computes what TensorFlow does for these inputs, which have the types of the signature.
    #[must_use]
    pub fn takes(&self, inputs: &[Tensor]) -> bool {
        inputs.len() == self.guards.len()
            && self.guards.iter().zip(inputs).all(|(guard, input)| guard.admits(input))
    }
}

impl InputGuard {
    fn admits(&self, input: &Tensor) -> bool {
        if input.shape().dims().contains(&0) {
            return false;
        }
        match self {
            // NaN is not below anything.
            InputGuard::Floats => input.has_floats_within(LARGEST_ORDINARY_FLOAT),
            InputGuard::Below(limit) => within(input, 0, limit.saturating_sub(1)),
            InputGuard::Of32Bits => within(input, i32::MIN.into(), i32::MAX.into()),
        }
    }
}

fn within(input: &Tensor, least: i64, most: i64) -> bool {
    let range = least..=most;
    if let Some(values) = input.values::<i32>() {
        return values.iter().all(|value| range.contains(&i64::from(*value)));
    }
    input.values::<i64>().is_some_and(|values| values.iter().all(|value| range.contains(value)))
}

/// The signature of a graph that OpenVINO may run, and what its inputs must have.
fn check(meta: &MetaGraphDef) -> Result<(Signature, Vec<InputGuard>)> {
    let graph = meta.graph_def.as_ref().ok_or_else(|| Error::unsupported("it has no graph"))?;
    let definition = meta.signature_def.get(SIGNATURE).ok_or_else(|| {
        Error::unsupported(format!("OpenVINO reads only the signature {SIGNATURE:?}"))
    })?;
    let signature = files::declared_signature(SIGNATURE, definition);
    check_names(&signature)?;
    let mut given = Vec::with_capacity(signature.inputs.len());
    for (number, input) in signature.inputs.iter().enumerate() {
        let known = match input.dtype() {
            Some(DType::Float) => Known::floats(),
            Some(DType::Int32 | DType::Int64) => Known::Ids(IdOrigins::input(number)),
            _ => return Err(about(input, "has neither floats nor integers of 32 or 64 bits")),
        };
        given.push((input.tensor_name.as_str(), known));
    }
    let flow = GraphFlow::new(graph, signature.inputs.len());
    let wanted: Vec<&str> = signature.outputs.iter().map(|it| it.tensor_name.as_str()).collect();
    let outputs = flow.run_graph(&given, &wanted)?;
    for (output, known) in signature.outputs.iter().zip(&outputs) {
        if !known.is_floats() || output.dtype() != Some(DType::Float) {
            return Err(about(output, "is not computed as floats"));
        }
    }
    let limits = flow.limits();
    let guards = signature.inputs.iter().zip(limits).map(|(input, limit)| match limit {
        Some(limit) => InputGuard::Below(limit),
        None if input.dtype() == Some(DType::Float) => InputGuard::Floats,
        None => InputGuard::Of32Bits,
    });
    let guards = guards.collect();
    Ok((signature, guards))
}

/// The library finds inputs and outputs by their names: each must have one of its own.
fn check_names(signature: &Signature) -> Result<()> {
    let (mut aliases, mut tensors) = (HashSet::new(), HashSet::new());
    if signature.inputs.is_empty() || signature.outputs.is_empty() {
        return Err(Error::unsupported("its signature has no input or no output"));
    }
    for spec in signature.inputs.iter().chain(&signature.outputs) {
        if spec.sparse.is_some() || spec.tensor_name.is_empty() {
            return Err(about(spec, "is sparse, or several tensors"));
        }
        if spec.shape.sizes().is_none() {
            return Err(about(spec, "has no known rank"));
        }
        if !aliases.insert(&spec.alias) || !tensors.insert(&spec.tensor_name) {
            return Err(about(spec, "has the name of another input or output"));
        }
    }
    Ok(())
}

fn about(spec: &TensorSpec, what: &str) -> Error {
    Error::unsupported(format!("{:?} {what}", spec.alias))
}
