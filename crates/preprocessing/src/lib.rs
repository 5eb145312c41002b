//! Pre- and post-processing of a model, declared in a `tensorserve.toml` beside it: image files
//! become pixels, numbers are scaled, words are looked up, and the highest scores are selected and
//! labeled.
//!
//! [`load_steps`] reads the file and returns the [`ProcessingSteps`] of each signature that has any.
//! They know the signature that clients see ([`ProcessingSteps::client_signature`]), and convert
//! tensors to tensors. The caller decides on which thread they run.
//!
//! `docs/preprocessing.md` is the reference of the file.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::Path;

use self::file::{StepTable, StepsFile};
use self::input::InputSteps;
use self::output::OutputStep;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Signature, Tensor};

mod declared;
mod file;
mod image;
mod input;
mod numbers;
mod output;
mod resize;
mod specs;
mod tokens;

pub use self::declared::{
    DeclaredOutput, DeclaredSignature, declared_signature, template, wrong_declaration,
};
pub use self::file::FILE_NAME;

/// The signature of steps that do not name one.
const DEFAULT_SIGNATURE: &str = "serving_default";

/// The pre- and post-processing steps of one signature.
pub struct ProcessingSteps {
    model_signature: Signature,
    client_signature: Signature,
    /// The pre-processing of each input, in the order of the client signature.
    inputs: Vec<InputSteps>,
    /// The post-processing steps, in order.
    outputs: Vec<OutputStep>,
    /// For each output of the client signature, its index among the outputs of the last step.
    output_order: Vec<usize>,
    /// The most bytes of one pre-processed input.
    max_bytes: usize,
}

/// Reads the steps of the version in `folder`: for each of its signatures its steps, or `None` if it
/// has none. `max_bytes` bounds the size of each pre-processed input.
///
/// # Errors
/// Mistakes in the file, or in the files that it names, with file and line.
pub fn load_steps(
    folder: &Path,
    signatures: &[Signature],
    max_bytes: usize,
) -> Result<Vec<Option<ProcessingSteps>>> {
    let Some(path) = file::find(folder) else {
        return Ok(signatures.iter().map(|_| None).collect());
    };
    let StepsFile { preprocess, postprocess, inputs, outputs } = StepsFile::read(&path)?;
    declared::check(inputs, outputs, signatures)?;
    let mut preprocess = by_signature(preprocess, signatures)?;
    let mut postprocess = by_signature(postprocess, signatures)?;
    let mut all = Vec::with_capacity(signatures.len());
    for (index, signature) in signatures.iter().enumerate() {
        let mut before = take_steps(&mut preprocess, index);
        let mut after = take_steps(&mut postprocess, index);
        let steps = match before.is_empty() && after.is_empty() {
            true => None,
            false => Some(ProcessingSteps::new(signature, &mut before, &mut after, max_bytes)?),
        };
        all.push(steps);
    }
    Ok(all)
}

/// Each step with the index of its signature.
fn by_signature(
    tables: Vec<StepTable>,
    signatures: &[Signature],
) -> Result<Vec<(usize, StepTable)>> {
    let mut indexed = Vec::with_capacity(tables.len());
    for mut table in tables {
        let name = table.text("signature")?;
        let name = name.as_deref().unwrap_or(DEFAULT_SIGNATURE);
        let Some(index) = signatures.iter().position(|signature| signature.name == name) else {
            let names: Vec<&str> = signatures.iter().map(|s| s.name.as_str()).collect();
            return Err(table.error(format_args!(
                "the model has no signature {name:?}; it has {}: select one with \
                 signature = \"…\"",
                names.join(", ")
            )));
        };
        indexed.push((index, table));
    }
    Ok(indexed)
}

/// Removes and returns the steps of the signature `index`.
fn take_steps(steps: &mut Vec<(usize, StepTable)>, index: usize) -> Vec<StepTable> {
    steps.extract_if(.., |(at, _)| *at == index).map(|(_, table)| table).collect()
}

/// Called between two parts of long work.
pub type Between<'a> = &'a mut dyn FnMut() -> Result<()>;

impl ProcessingSteps {
    fn new(
        model_signature: &Signature,
        preprocess: &mut [StepTable],
        postprocess: &mut [StepTable],
        max_bytes: usize,
    ) -> Result<Self> {
        let mut client_signature = model_signature.clone();
        let inputs = input::read_steps(preprocess, &mut client_signature)?;
        let mut outputs = Vec::with_capacity(postprocess.len());
        for table in postprocess {
            outputs.push(OutputStep::read(table, &mut client_signature.outputs)?);
        }
        let specs = &mut client_signature.outputs;
        let mut output_order: Vec<usize> = (0..specs.len()).collect();
        output_order.sort_by_key(|index| specs.get(*index).map(|spec| spec.alias.clone()));
        specs.sort_by(|a, b| a.alias.cmp(&b.alias));
        Ok(ProcessingSteps {
            model_signature: model_signature.clone(),
            client_signature,
            inputs,
            outputs,
            output_order,
            max_bytes,
        })
    }

    /// The signature that the model declares.
    #[must_use]
    pub fn model_signature(&self) -> &Signature {
        &self.model_signature
    }

    /// The signature that clients see.
    #[must_use]
    pub fn client_signature(&self) -> &Signature {
        &self.client_signature
    }

    /// The estimated cost of [`ProcessingSteps::preprocess`], in processed numbers.
    #[must_use]
    pub fn preprocess_cost(&self, inputs: &[Tensor]) -> usize {
        let costs = self.inputs.iter().zip(inputs).map(|(steps, tensor)| steps.cost(tensor));
        costs.fold(0, usize::saturating_add)
    }

    /// The estimated cost of [`ProcessingSteps::postprocess`], in processed numbers.
    #[must_use]
    pub fn postprocess_cost(&self, outputs: &[Tensor]) -> usize {
        let costs = self.outputs.iter().map(|step| step.cost(outputs));
        costs.fold(0, usize::saturating_add)
    }

    /// Converts the inputs of a request, in the order of the client signature, to those of the
    /// model, in the order of its own. Blocks; images may take long.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](tensorserve_tensor::error::Code::InvalidArgument) with the input,
    /// and the element that is invalid.
    pub fn preprocess(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.preprocess_in_turns(inputs, &mut || Ok(()))
    }

    /// As [`ProcessingSteps::preprocess`]; calls `between` before each image, so that other requests get their turn.
    ///
    /// # Errors
    /// Those of [`ProcessingSteps::preprocess`] and of `between`.
    pub fn preprocess_in_turns(
        &self,
        inputs: &[Tensor],
        between: Between<'_>,
    ) -> Result<Vec<Tensor>> {
        let mut preprocessed: Vec<Option<Tensor>> = vec![None; self.inputs.len()];
        let specs = &self.client_signature.inputs;
        for ((steps, tensor), spec) in self.inputs.iter().zip(inputs).zip(specs) {
            let tensor = steps.apply(&spec.alias, tensor, self.max_bytes, between)?;
            if let Some(slot) = preprocessed.get_mut(steps.model_index()) {
                *slot = Some(tensor);
            }
        }
        let all: Option<Vec<Tensor>> = preprocessed.into_iter().collect();
        all.ok_or_else(|| Error::internal("an input is missing"))
    }

    /// Converts the outputs of the model, in the order of its signature, to those of the response,
    /// in the order of the client signature. Blocks.
    ///
    /// # Errors
    /// If the outputs differ from what the model declares.
    pub fn postprocess(&self, mut outputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        if self.outputs.is_empty() {
            return Ok(outputs);
        }
        for step in &self.outputs {
            step.apply(&mut outputs)?;
        }
        let ordered = self.output_order.iter().map(|index| outputs.get(*index).cloned());
        let all: Option<Vec<Tensor>> = ordered.collect();
        all.ok_or_else(|| Error::internal("an output is missing"))
    }
}

#[cfg(test)]
mod tests;
