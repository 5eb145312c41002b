//! Inference over REST: decodes payloads and encodes responses.

use std::borrow::Cow;
use std::time::Instant;

use bytes::Bytes;

use super::answer::{AnswerForm, TfsAnswer};
use super::binary::{self, BodyFormat};
use super::encode::TfsFormat;
use super::{OwnedModelSpec, REST, classify, examples, predict};
use tensorserve_core::engine::{
    Engine, EntryPoint, InferRequest, Method, ModelHandle, Resolver, SignatureRun,
};
use tensorserve_protocol::{Answer, JSON, NPY, Reply, RequestHead, inferred};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::Result;

/// The inference that a path selects.
pub(crate) struct RestCall {
    pub(crate) spec: OwnedModelSpec,
    pub(crate) method: Method,
    /// The signature of payloads that name none.
    pub(crate) signature: Cow<'static, str>,
    /// Support only the formats of the reference.
    pub(crate) exact: bool,
    /// The most memory that one input may take, in bytes.
    pub(crate) max_bytes: usize,
}

/// A request, and the properties that its response depends on.
pub(crate) type TfsDecoded = (InferRequest, AnswerForm);

/// Handles `POST …:predict`, `:classify` and `:regress`.
pub(super) async fn answer(
    engine: &Engine,
    call: RestCall,
    head: &RequestHead<'_>,
    body: Bytes,
    start: Instant,
) -> Answer {
    let entry = engine.call(EntryPoint { protocol: REST, method: call.method }, start);
    let from = match call.method {
        Method::Predict => BodyFormat::of_body(head, call.exact),
        Method::Classify | Method::Regress | Method::MultiInference => BodyFormat::Json,
    };
    let to = from.of_answer(head, call.exact);
    if let BodyFormat::Message(kind) = to {
        // Boxed, because it is rare and would enlarge the future of every request.
        let answer = binary::answer(engine, call.spec, entry, body, kind);
        return Box::pin(answer).await;
    }
    let (max_bytes, exact) = (call.max_bytes, call.exact);
    let to_npy = to == BodyFormat::Npy;
    let decode = move |resolver: &mut Resolver<'_>| call.decode(resolver, &body, &from, &to);
    let outcome = engine.infer(entry, decode, move |form, response| {
        let answer = TfsAnswer::read(form, response)?;
        match to_npy {
            true => Ok((NPY, binary::encode(answer.tensors(), max_bytes)?)),
            false => Ok((JSON, answer.json(exact)?)),
        }
    });
    inferred(outcome.await, |(content_type, body)| Reply::ok(content_type, body))
}

impl RestCall {
    /// Decodes a JSON payload.
    pub(crate) fn decode_json(
        &self,
        resolver: &mut Resolver<'_>,
        body: &[u8],
    ) -> Result<TfsDecoded> {
        match self.method {
            Method::Predict | Method::MultiInference => {
                self.decode_predict(resolver, body, &BodyFormat::Json, &BodyFormat::Json)
            }
            Method::Classify | Method::Regress => {
                let decoded = examples::decode(body, self.max_bytes);
                let decoded = decoded.inspect_err(|_| resolver.names_model(&self.spec.spec()))?;
                let name = match decoded.signature_name.is_empty() {
                    true => &*self.signature,
                    false => decoded.signature_name.as_str(),
                };
                self.on_examples(resolver, name, decoded.examples)
            }
        }
    }

    fn decode(
        &self,
        resolver: &mut Resolver<'_>,
        body: &[u8],
        from: &BodyFormat,
        to: &BodyFormat,
    ) -> Result<TfsDecoded> {
        match self.method {
            Method::Predict => self.decode_predict(resolver, body, from, to),
            Method::Classify | Method::Regress | Method::MultiInference => {
                self.decode_json(resolver, body)
            }
        }
    }

    /// Decodes a payload in the format `from`, for a response in the format `to`.
    fn decode_predict(
        &self,
        resolver: &mut Resolver<'_>,
        body: &[u8],
        from: &BodyFormat,
        to: &BodyFormat,
    ) -> Result<TfsDecoded> {
        let version = match self.spec.resolve(resolver) {
            Ok(version) => version,
            // The reference reports a malformed body before an unknown model.
            Err(error) => {
                if *from == BodyFormat::Json {
                    predict::check_form(body)?;
                }
                return Err(error);
            }
        };
        let decoded = match from {
            BodyFormat::Npy => binary::decode(body, &version, self.max_bytes)?,
            BodyFormat::Json | BodyFormat::Message(_) => {
                let signature = &self.signature;
                predict::decode(body, &version, signature, self.max_bytes, self.exact)?
            }
        };
        if *to == BodyFormat::Npy {
            binary::check_outputs(&version, decoded.signature)?;
        }
        Ok(run_of(version, decoded.signature, decoded.inputs, decoded.format))
    }

    /// The request to classify or regress serialized examples.
    pub(crate) fn on_examples(
        &self,
        resolver: &mut Resolver<'_>,
        signature_name: &str,
        examples: Tensor,
    ) -> Result<TfsDecoded> {
        let version = self.spec.resolve(resolver)?;
        let signature = classify::find(&version, signature_name, self.method)?;
        resolver.found_signature(signature);
        let form = AnswerForm::examples(self.method, &examples);
        let run = classify::run(signature, self.method, examples);
        Ok((InferRequest::new(version, run), form))
    }
}

/// The request to run a signature on tensors.
pub(crate) fn run_of(
    version: ModelHandle,
    signature: usize,
    inputs: Vec<Tensor>,
    format: TfsFormat,
) -> TfsDecoded {
    let run = SignatureRun::predict(signature, inputs);
    (InferRequest::new(version, run), AnswerForm::outputs(format))
}
