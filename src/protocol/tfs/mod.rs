//! TensorFlow Serving's REST API, as `tensorflow_model_server` 2.20 speaks it: routes, order of
//! checks, texts, number and white-space format. Under our own name it also takes and gives what
//! the reference has no form for ([`binary`], JSON of half precision).
//!
//! Sources: `model_servers/http_rest_api_handler.cc`, `http_rest_api_util.cc`,
//! `util/json_tensor.cc`, `servables/tensorflow` of github.com/tensorflow/serving.

use std::time::Instant;

use bytes::Bytes;

use self::binary::Wire;
use self::path::Request;
use super::{Head, JSON, Reply, bounded};
use crate::codec::json::write;
use crate::engine::{Choice, Engine, ModelHandle, ModelSpec, Served, Unresolved};
use crate::error::{Error, Result};

pub(super) use self::call::{Answer, Call};
pub(super) use self::encode::Format;
pub(super) use self::path::Verb;
pub(super) use self::predict::Decoded;

mod binary;
mod call;
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

/// The signature that a request means which names none.
pub(super) const DEFAULT_SIGNATURE: &str = "serving_default";

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
            let (choice, body, exact) = (spec.choice(), &body, head.exact);
            let call = Call { engine, verb, name: &name, choice, body, start, exact };
            return infer(&call, head).await;
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

async fn infer(call: &Call<'_>, head: &Head<'_>) -> Reply {
    let mut served = Served { api: call.api(), reached: None, code: None };
    let answer = infer_on_wire(call, head, &mut served).await;
    let reply = answer.unwrap_or_else(|error| {
        served.code = Some(error.code());
        failure(error)
    });
    reply.with_served(served)
}

async fn infer_on_wire(call: &Call<'_>, head: &Head<'_>, served: &mut Served) -> Result<Reply> {
    if call.verb != Verb::Predict {
        return Ok(Reply::ok(JSON, call.run(served).await?.json(call.exact)?));
    }
    let wire = Wire::of_body(head);
    let to = wire.of_answer(head);
    if let Wire::Message(kind) = to {
        return Ok(Reply::ok(kind, binary::predict(call, served).await?));
    }
    let answer = call.predict(&wire, &to, served).await?;
    if to == Wire::Npy {
        let array = binary::encode(answer.tensors(), call.engine.max_tensor_bytes())?;
        return Ok(Reply::ok(binary::NPY, array));
    }
    Ok(Reply::ok(JSON, answer.json(call.exact)?))
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
