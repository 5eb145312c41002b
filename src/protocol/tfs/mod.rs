//! TensorFlow Serving's REST API, as `tensorflow_model_server` 2.20 speaks it: routes, order of
//! checks, texts, number and white-space format.
//!
//! Sources: `model_servers/http_rest_api_handler.cc`, `http_rest_api_util.cc`,
//! `util/json_tensor.cc`, `servables/tensorflow` of github.com/tensorflow/serving.

use std::time::Instant;

use bytes::Bytes;

use self::binary::Wire;
use self::classify::Method;
use self::examples::Decoded;
use self::path::Request;
use super::{Head, JSON, Reply, bounded};
use crate::codec::json::write;
use crate::engine::{
    Api, Choice, Engine, InferRequest, ModelHandle, ModelSpec, Served, Unresolved,
};
use crate::error::{Error, Result};
use crate::tensor::{Tensor, TensorSpec};

pub(super) use self::encode::Format;
pub(super) use self::path::Verb;
pub(super) use self::predict::Decoded as DecodedPredict;

mod binary;
pub mod classify;
mod describe;
mod encode;
mod examples;
mod fault;
pub mod grpc;
pub mod inference;
mod outline;
mod path;
mod predict;
pub mod warm_up;

/// The signature that a request means which names none.
const DEFAULT_SIGNATURE: &str = "serving_default";

/// Answers a request for a path that starts with `/v1/` in any case. The query is part of what
/// has to match.
pub async fn handle(engine: &Engine, head: &Head<'_>, body: Bytes, start: Instant) -> Reply {
    let Head { method, target, .. } = *head;
    let request = match path::parse(method, target) {
        Ok(request) => request,
        Err(path::Malformed::Request) => {
            let message = format!("Malformed request: {method} {target}");
            return failure(Error::invalid(message));
        }
        // The reference server fails before it has written its JSON.
        Err(path::Malformed::Version) => return Reply::ok(JSON, Bytes::new()).with_status(400),
    };
    let result = match request {
        Request::Status(spec) => describe::status(engine, spec.name.as_deref(), spec.version()),
        Request::Metadata(spec) => {
            let name = spec.name.clone().unwrap_or_default();
            metadata(engine, &name, spec.choice())
        }
        Request::Post(verb, spec) => {
            let name = spec.name.clone().unwrap_or_default();
            let target = Target { verb, name: &name, choice: spec.choice(), exact: head.exact };
            return infer(&Call { engine, head, target, body: &body, start }).await;
        }
    };
    result.unwrap_or_else(failure)
}

fn metadata(engine: &Engine, name: &str, choice: Choice) -> Result<Reply> {
    if name.is_empty() {
        return Err(Error::invalid("Missing model name in request."));
    }
    let handle = resolve(engine, name, choice)?;
    Ok(Reply::ok(JSON, describe::metadata(&handle)))
}

/// What a call is to be answered by, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// What to do with it.
    pub(super) verb: Verb,
    /// The model's name.
    pub(super) name: &'a str,
    /// Which of its versions.
    pub(super) choice: Choice<'a>,
    /// Refuse what the reference has no JSON for.
    pub(super) exact: bool,
}

/// A call over HTTP.
struct Call<'a> {
    engine: &'a Engine,
    head: &'a Head<'a>,
    target: Target<'a>,
    body: &'a Bytes,
    start: Instant,
}

impl Target<'_> {
    /// How the call is counted.
    pub(super) fn api(&self) -> Api {
        match self.verb {
            Verb::Predict => Api::TfsPredict,
            Verb::Classify => Api::TfsClassify,
            Verb::Regress => Api::TfsRegress,
        }
    }

    /// What it does with examples, if it takes them.
    pub(super) fn method(&self) -> Option<Method> {
        match self.verb {
            Verb::Predict => None,
            Verb::Classify => Some(Method::Classify),
            Verb::Regress => Some(Method::Regress),
        }
    }
}

/// What a call came to, not yet written down.
pub(super) enum Answer {
    /// The outputs of a signature.
    Outputs { handle: ModelHandle, signature: usize, format: Format, tensors: Vec<Tensor> },
    /// The classes of each example.
    Classes(classify::Classifications),
    /// The number of each example.
    Numbers(Vec<f32>),
}

impl Answer {
    /// As the reference writes it; with `exact`, only what it has JSON for.
    pub(super) fn json(&self, exact: bool) -> Result<Vec<u8>> {
        match self {
            Answer::Outputs { format, tensors, .. } => {
                encode::outputs(*format, self.outputs(), tensors, exact)
            }
            Answer::Classes(classes) => Ok(encode::classifications(classes)),
            Answer::Numbers(numbers) => Ok(encode::regressions(numbers)),
        }
    }

    /// What the signature declares of its outputs; nothing for examples.
    pub(super) fn outputs(&self) -> &[TensorSpec] {
        let Answer::Outputs { handle, signature, .. } = self else {
            return &[];
        };
        let declared = handle.signatures().get(*signature);
        declared.map_or(&[], |signature| &signature.outputs)
    }
}

async fn infer(call: &Call<'_>) -> Reply {
    let mut served = Served { api: call.target.api(), reached: None, code: None };
    let reply = answer(call, &mut served).await.unwrap_or_else(|error| {
        served.code = Some(error.code());
        failure(error)
    });
    reply.with_served(served)
}

async fn answer(call: &Call<'_>, served: &mut Served) -> Result<Reply> {
    let Call { engine, head, target, body, start } = *call;
    let (asks, wants) = match target.verb {
        Verb::Predict => Wire::of(head),
        Verb::Classify | Verb::Regress => (Wire::Json, Wire::Json),
    };
    let answer = match asks {
        Wire::Message(kind) => return Ok(Reply::ok(kind, binary::predict(call, served).await?)),
        Wire::Npy => {
            let handle = resolve(engine, target.name, target.choice)?;
            let decoded = binary::decode(body, &handle, engine.max_tensor_bytes())?;
            run_decoded(engine, handle, decoded, start, served).await?
        }
        Wire::Json => run(engine, target, body, start, served).await?,
    };
    if wants == Wire::Npy
        && let Answer::Outputs { tensors, .. } = &answer
    {
        let array = binary::encode(tensors, engine.max_tensor_bytes())?;
        return Ok(Reply::ok(binary::NPY, array));
    }
    Ok(Reply::ok(JSON, answer.json(target.exact)?))
}

/// Does what `target` says with the JSON `body`; notes in `served` what it reached.
pub(super) async fn run(
    engine: &Engine,
    target: Target<'_>,
    body: &[u8],
    start: Instant,
    served: &mut Served,
) -> Result<Answer> {
    let Some(method) = target.method() else {
        return predict(engine, target, body, start, served).await;
    };
    let Decoded { signature_name, examples } = examples::decode(body, engine.max_tensor_bytes())?;
    on_examples(engine, target, method, (&signature_name, examples), start, served).await
}

async fn predict(
    engine: &Engine,
    target: Target<'_>,
    body: &[u8],
    start: Instant,
    served: &mut Served,
) -> Result<Answer> {
    let handle = match resolve(engine, target.name, target.choice) {
        Ok(handle) => handle,
        // What is wrong with a body's form is reported before a model that is not there.
        Err(error) => {
            predict::check_form(body)?;
            return Err(error);
        }
    };
    let decoded = predict::decode(body, &handle, engine.max_tensor_bytes(), target.exact)?;
    run_decoded(engine, handle, decoded, start, served).await
}

/// Runs a signature on tensors.
pub(super) async fn run_decoded(
    engine: &Engine,
    handle: ModelHandle,
    decoded: DecodedPredict,
    start: Instant,
    served: &mut Served,
) -> Result<Answer> {
    let DecodedPredict { signature, inputs, format } = decoded;
    served.reached = Some((handle.clone(), signature));
    let request = InferRequest { signature, inputs };
    let tensors = engine.infer(&handle, request, engine.deadline(start)).await?.outputs;
    Ok(Answer::Outputs { handle, signature, format, tensors })
}

/// Classifies serialized examples, or finds the number of each.
pub(super) async fn on_examples(
    engine: &Engine,
    target: Target<'_>,
    method: Method,
    (signature_name, examples): (&str, Tensor),
    start: Instant,
    served: &mut Served,
) -> Result<Answer> {
    let handle = resolve(engine, target.name, target.choice)?;
    let signature = classify::find(&handle, signature_name, method)?;
    served.reached = Some((handle.clone(), signature));
    let deadline = engine.deadline(start);
    match method {
        Method::Classify => {
            let classes = classify::classify(engine, &handle, signature, examples, deadline);
            Ok(Answer::Classes(classes.await?))
        }
        Method::Regress => {
            let numbers = classify::regress(engine, &handle, signature, examples, deadline);
            Ok(Answer::Numbers(numbers.await?))
        }
    }
}

/// The version that is meant.
pub(super) fn resolve(engine: &Engine, name: &str, choice: Choice) -> Result<ModelHandle> {
    let resolved = engine.resolve(&ModelSpec { name, choice });
    resolved.map_err(|unresolved| match (unresolved, choice) {
        (Unresolved::Label, Choice::Label(label)) => {
            Error::invalid(format!("Unrecognized servable version label: {label}"))
        }
        (_, Choice::Version(version)) => {
            Error::not_found(format!("Servable not found for request: Specific({name}, {version})"))
        }
        _ => Error::not_found(format!("Servable not found for request: Latest({name})")),
    })
}

/// The error as this API writes it.
pub(super) fn failure(error: Error) -> Reply {
    let mut body = b"{\n    \"error\": ".to_vec();
    write::string(bounded(error.message()).as_bytes(), &mut body);
    body.extend_from_slice(b"\n}");
    let mut reply = Reply::ok(JSON, body).with_status(error.code().http());
    reply.error = Some(error);
    reply
}

/// A failure that shows before the path is looked at (a body that is too large, say), in this
/// API's form.
#[must_use]
pub fn refuse(error: Error, status: u16) -> Reply {
    failure(error).with_status(status)
}
