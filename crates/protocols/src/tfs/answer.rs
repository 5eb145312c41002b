//! What an inference came to, before it is written down in one of the forms that REST clients can
//! ask for.

use super::classify::{self, Classifications};
use super::encode::{self, Format};
use tensorserve_core::engine::{InferResponse, Method, ModelHandle};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Signature, Tensor, TensorSpec};

/// What has to be known of a request to read its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerForm {
    pub(crate) method: Method,
    /// How inputs were given, and outputs are to be.
    pub(crate) format: Format,
    /// How many examples there were.
    pub(crate) examples: usize,
}

impl AnswerForm {
    /// Outputs as tensors.
    pub(crate) fn outputs(format: Format) -> Self {
        AnswerForm { method: Method::Predict, format, examples: 0 }
    }

    /// Something for each of `examples`.
    pub(crate) fn examples(method: Method, examples: &Tensor) -> Self {
        AnswerForm { method, format: Format::Row, examples: examples.rows().unwrap_or(0) }
    }
}

/// What an inference came to.
pub(crate) enum TfsAnswer {
    /// The outputs of a signature.
    Outputs { version: ModelHandle, signature: usize, format: Format, tensors: Vec<Tensor> },
    /// The classes of each example.
    Classes(Classifications),
    /// The number of each example.
    Numbers(Vec<f32>),
}

impl TfsAnswer {
    /// Reads a response.
    ///
    /// # Errors
    /// If the outputs are not those of a classification or a regression.
    pub(crate) fn read(form: AnswerForm, response: InferResponse) -> Result<Self> {
        let version = response.version.clone();
        let run = response.into_single();
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

    /// As the reference writes it; with `exact`, only what it can write.
    pub(crate) fn json(&self, exact: bool) -> Result<Vec<u8>> {
        match self {
            TfsAnswer::Outputs { format, tensors, .. } => {
                encode::outputs(*format, self.specs(), tensors, exact)
            }
            TfsAnswer::Classes(classes) => Ok(encode::classifications(classes)),
            TfsAnswer::Numbers(numbers) => Ok(encode::regressions(numbers)),
        }
    }

    /// What the signature declares of its outputs; nothing for examples.
    pub(crate) fn specs(&self) -> &[TensorSpec] {
        let TfsAnswer::Outputs { version, signature, .. } = self else {
            return &[];
        };
        version.signatures().get(*signature).map_or(&[], |signature| &signature.outputs)
    }

    /// The outputs; none for examples.
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
