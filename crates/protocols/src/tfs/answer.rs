//! The result of an inference, before it is encoded in the format that a REST client requested.

use super::classify::{self, Classifications};
use super::encode::{self, TfsFormat};
use tensorserve_core::engine::{InferResponse, Method, ModelHandle};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Signature, Tensor, TensorSpec};

/// The properties of a request that the response depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerForm {
    pub(crate) method: Method,
    /// The layout of inputs and outputs.
    pub(crate) format: TfsFormat,
    /// The number of examples.
    pub(crate) examples: usize,
}

impl AnswerForm {
    /// For outputs as tensors.
    pub(crate) fn outputs(format: TfsFormat) -> Self {
        AnswerForm { method: Method::Predict, format, examples: 0 }
    }

    /// For one result per example.
    pub(crate) fn examples(method: Method, examples: &Tensor) -> Self {
        AnswerForm { method, format: TfsFormat::Row, examples: examples.rows().unwrap_or(0) }
    }
}

/// The result of an inference.
pub(crate) enum TfsAnswer {
    /// The outputs of a signature.
    Outputs { version: ModelHandle, signature: usize, format: TfsFormat, tensors: Vec<Tensor> },
    /// The classes of each example.
    Classes(Classifications),
    /// The regression value of each example.
    Numbers(Vec<f32>),
}

impl TfsAnswer {
    /// Reads a response.
    ///
    /// # Errors
    /// If the outputs are not those of a classification or a regression.
    pub(crate) fn read(form: AnswerForm, response: InferResponse) -> Result<Self> {
        let (version, run) = response.into_single();
        let (signature, tensors) = (run.signature, run.outputs);
        Ok(match form.method {
            Method::Classify => {
                let declared = declared(&version, signature)?;
                TfsAnswer::Classes(classify::classifications(declared, form.examples, &tensors)?)
            }
            Method::Regress => {
                let declared = declared(&version, signature)?;
                TfsAnswer::Numbers(classify::regressions(declared, form.examples, &tensors)?)
            }
            Method::Predict | Method::MultiInference => {
                TfsAnswer::Outputs { version, signature, format: form.format, tensors }
            }
        })
    }

    /// The JSON of the reference; with `exact`, an error for types that the reference cannot write.
    pub(crate) fn json(&self, exact: bool) -> Result<Vec<u8>> {
        match self {
            TfsAnswer::Outputs { format, tensors, .. } => {
                encode::outputs(*format, self.specs(), tensors, exact)
            }
            TfsAnswer::Classes(classes) => encode::classifications(classes),
            TfsAnswer::Numbers(numbers) => encode::regressions(numbers),
        }
    }

    /// The declared outputs of the signature; empty for examples.
    pub(crate) fn specs(&self) -> &[TensorSpec] {
        let TfsAnswer::Outputs { version, signature, .. } = self else {
            return &[];
        };
        version.signatures().get(*signature).map_or(&[], |signature| &signature.outputs)
    }

    /// The outputs; empty for examples.
    pub(crate) fn tensors(&self) -> &[Tensor] {
        match self {
            TfsAnswer::Outputs { tensors, .. } => tensors,
            TfsAnswer::Classes(_) | TfsAnswer::Numbers(_) => &[],
        }
    }
}

fn declared(version: &ModelHandle, signature: usize) -> Result<&Signature> {
    let declared = version.signatures().get(signature);
    declared.ok_or_else(|| Error::internal("the signature does not exist"))
}
