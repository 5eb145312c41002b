//! An inference that is asked for by name: from its body to an answer that is not yet written
//! down.

use std::time::Instant;

use bytes::Bytes;

use super::binary::{self, Wire};
use super::classify::{self, Classifications, Method};
use super::encode::{self, Format};
use super::examples::{self, Decoded as DecodedExamples};
use super::path::Verb;
use super::predict::{self, Decoded};
use super::{record, resolve};
use tensorserve_core::engine::{Api, Choice, Engine, InferRequest, ModelHandle, Served};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{Tensor, TensorSpec};

/// An inference that is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) verb: Verb,
    pub(crate) name: &'a str,
    pub(crate) choice: Choice<'a>,
    pub(crate) body: &'a Bytes,
    /// When its head had come.
    pub(crate) start: Instant,
    /// Take and give only what the reference does.
    pub(crate) exact: bool,
}

/// What a call came to.
pub(crate) enum Answer {
    /// The outputs of a signature.
    Outputs { handle: ModelHandle, signature: usize, format: Format, tensors: Vec<Tensor> },
    /// The classes of each example.
    Classes(Classifications),
    /// The number of each example.
    Numbers(Vec<f32>),
}

impl Answer {
    /// As the reference writes it; with `exact`, only what it can write.
    pub(crate) fn json(&self, exact: bool) -> Result<Vec<u8>> {
        match self {
            Answer::Outputs { format, tensors, .. } => {
                encode::outputs(*format, self.specs(), tensors, exact)
            }
            Answer::Classes(classes) => Ok(encode::classifications(classes)),
            Answer::Numbers(numbers) => Ok(encode::regressions(numbers)),
        }
    }

    /// What the signature declares of its outputs; nothing for examples.
    pub(crate) fn specs(&self) -> &[TensorSpec] {
        let Answer::Outputs { handle, signature, .. } = self else {
            return &[];
        };
        let declared = handle.signatures().get(*signature);
        declared.map_or(&[], |signature| &signature.outputs)
    }

    /// The outputs; none for examples.
    pub(crate) fn tensors(&self) -> &[Tensor] {
        match self {
            Answer::Outputs { tensors, .. } => tensors,
            Answer::Classes(_) | Answer::Numbers(_) => &[],
        }
    }
}

impl Call<'_> {
    /// How it is counted.
    pub(crate) fn api(&self) -> Api {
        match self.verb {
            Verb::Predict => Api::TfsPredict,
            Verb::Classify => Api::TfsClassify,
            Verb::Regress => Api::TfsRegress,
        }
    }

    /// Does what is asked for with a body of JSON; notes in `served` what it reached.
    pub(crate) async fn run(&self, served: &mut Served) -> Result<Answer> {
        if self.verb == Verb::Predict {
            return self.predict(&Wire::Json, &Wire::Json, served).await;
        }
        let decoded = examples::decode(self.body, self.engine.max_tensor_bytes())?;
        let DecodedExamples { signature_name, examples } = decoded;
        Box::pin(self.on_examples(&signature_name, examples, served)).await
    }

    /// Runs a signature on a body that is `from`, for an answer that is to be `to`.
    pub(super) async fn predict(
        &self,
        from: &Wire,
        to: &Wire,
        served: &mut Served,
    ) -> Result<Answer> {
        let handle = match resolve(self.engine, self.name, self.choice) {
            Ok(handle) => handle,
            // What is wrong with a body's form is reported before a model that is not there.
            Err(error) => {
                if *from == Wire::Json {
                    predict::check_form(self.body)?;
                }
                return Err(error);
            }
        };
        served.version = Some(handle.clone());
        let max_bytes = self.engine.max_tensor_bytes();
        let decoded = match from {
            Wire::Npy => binary::decode(self.body, &handle, max_bytes)?,
            Wire::Json | Wire::Message(_) => {
                predict::decode(self.body, &handle, max_bytes, self.exact)?
            }
        };
        if *to == Wire::Npy {
            binary::check_outputs(&handle, decoded.signature)?;
        }
        self.run_decoded(handle, decoded, served).await
    }

    /// Runs a signature on tensors.
    pub(crate) async fn run_decoded(
        &self,
        handle: ModelHandle,
        decoded: Decoded,
        served: &mut Served,
    ) -> Result<Answer> {
        let Decoded { signature, inputs, format } = decoded;
        served.reach(&handle, signature);
        let sampled = record::sample(&handle, signature, &inputs);
        let request = InferRequest { signature, inputs };
        let deadline = self.engine.deadline(self.start);
        let answer = self.engine.infer(&handle, request, deadline).await?;
        served.took(answer.times);
        let tensors = answer.outputs;
        if let Some(sampled) = sampled {
            let specs = handle.signatures().get(signature).map_or(&[][..], |s| &s.outputs);
            let aliases = specs.iter().map(|spec| spec.alias.clone());
            sampled.predicted(aliases.zip(tensors.iter().cloned()).collect(), Vec::new());
        }
        Ok(Answer::Outputs { handle, signature, format, tensors })
    }

    /// Classifies serialized examples, or finds the number of each.
    pub(crate) async fn on_examples(
        &self,
        signature_name: &str,
        examples: Tensor,
        served: &mut Served,
    ) -> Result<Answer> {
        let engine = self.engine;
        let classifies = self.verb == Verb::Classify;
        let method = if classifies { Method::Classify } else { Method::Regress };
        let handle = resolve(engine, self.name, self.choice)?;
        served.version = Some(handle.clone());
        let signature = classify::find(&handle, signature_name, method)?;
        served.signature = Some(signature);
        let deadline = engine.deadline(self.start);
        Ok(if classifies {
            let classes =
                classify::classify(engine, &handle, signature, examples, deadline, served);
            Answer::Classes(classes.await?)
        } else {
            let numbers = classify::regress(engine, &handle, signature, examples, deadline, served);
            Answer::Numbers(numbers.await?)
        })
    }
}
