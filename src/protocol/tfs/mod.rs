//! TensorFlow Serving's REST API, as `tensorflow_model_server` 2.20 speaks it: routes, order of
//! checks, texts, number and white-space format.
//!
//! Sources: `model_servers/http_rest_api_handler.cc`, `http_rest_api_util.cc`,
//! `util/json_tensor.cc`, `servables/tensorflow` of github.com/tensorflow/serving.

use std::time::Instant;

use bytes::Bytes;

use self::classify::Method;
use self::examples::Decoded;
use self::path::{Request, Verb};
use super::{Head, JSON, Reply, bounded};
use crate::codec::json::write;
use crate::engine::{
    Api, Choice, Engine, InferRequest, ModelHandle, ModelSpec, Served, Unresolved,
};
use crate::error::{Error, Result};

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
pub mod record;
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
            return infer(engine, verb, &name, spec.choice(), &body, start).await;
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

async fn infer(
    engine: &Engine,
    verb: Verb,
    name: &str,
    choice: Choice<'_>,
    body: &[u8],
    start: Instant,
) -> Reply {
    let (api, method) = match verb {
        Verb::Predict => (Api::TfsPredict, None),
        Verb::Classify => (Api::TfsClassify, Some(Method::Classify)),
        Verb::Regress => (Api::TfsRegress, Some(Method::Regress)),
    };
    let mut served = Served { api, reached: None, code: None };
    let answer = match method {
        None => predict(engine, name, choice, body, start, &mut served).await,
        Some(method) => on_examples(engine, method, name, choice, body, start, &mut served).await,
    };
    match answer {
        Ok(body) => Reply::ok(JSON, body).with_served(served),
        Err(error) => {
            served.code = Some(error.code());
            failure(error).with_served(served)
        }
    }
}

async fn predict(
    engine: &Engine,
    name: &str,
    choice: Choice<'_>,
    body: &[u8],
    start: Instant,
    served: &mut Served,
) -> Result<Vec<u8>> {
    let handle = match resolve(engine, name, choice) {
        Ok(handle) => handle,
        // What is wrong with a body's form is reported before a model that is not there.
        Err(error) => {
            predict::check_form(body)?;
            return Err(error);
        }
    };
    let decoded = predict::decode(body, &handle, engine.max_tensor_bytes())?;
    let signature = decoded.signature;
    served.reached = Some((handle.clone(), signature));
    let sampled = record::sample(&handle, signature, &decoded.inputs);
    let request = InferRequest { signature, inputs: decoded.inputs };
    let answer = engine.infer(&handle, request, engine.deadline(start)).await?;
    let declared = handle.signatures().get(signature);
    let names = declared.map_or(&[][..], |signature| &signature.outputs);
    if let Some(sampled) = sampled {
        let aliases = names.iter().map(|spec| spec.alias.clone());
        sampled.predicted(aliases.zip(answer.outputs.iter().cloned()).collect(), Vec::new());
    }
    encode::outputs(decoded.format, names, &answer.outputs)
}

async fn on_examples(
    engine: &Engine,
    method: Method,
    name: &str,
    choice: Choice<'_>,
    body: &[u8],
    start: Instant,
    served: &mut Served,
) -> Result<Vec<u8>> {
    let Decoded { signature_name, examples } = examples::decode(body, engine.max_tensor_bytes())?;
    let handle = resolve(engine, name, choice)?;
    let signature = classify::find(&handle, &signature_name, method)?;
    served.reached = Some((handle.clone(), signature));
    let deadline = engine.deadline(start);
    match method {
        Method::Classify => {
            let classes = classify::classify(engine, &handle, signature, examples, deadline);
            Ok(encode::classifications(&classes.await?))
        }
        Method::Regress => {
            let values = classify::regress(engine, &handle, signature, examples, deadline);
            Ok(encode::regressions(&values.await?))
        }
    }
}

fn resolve(engine: &Engine, name: &str, choice: Choice) -> Result<ModelHandle> {
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
fn failure(error: Error) -> Reply {
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
