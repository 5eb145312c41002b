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
use tensorserve_codec::json::write;
use tensorserve_core::engine::{Choice, Engine, ModelHandle, ModelSpec, Served, Unresolved};
use tensorserve_protocol::{ALLOW, Head, JSON, NPY, Reply, bounded};
use tensorserve_tensor::error::{Code, Error, Result};

pub(super) use self::call::{Answer, Call};
pub(super) use self::encode::Format;
pub(super) use self::path::Verb;
pub(super) use self::predict::Decoded;

mod binary;
mod call;
pub mod classify;
pub mod config;
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
pub(super) const DEFAULT_SIGNATURE: &str = "serving_default";

/// Answers a request for a path that starts with `/v1/` in any case. Where answers are to be
/// exactly the reference's, the query is part of what has to match.
pub async fn handle(engine: &Engine, head: &Head<'_>, body: Bytes, start: Instant) -> Reply {
    let target = if head.exact { head.target } else { head.path() };
    let method = if !head.exact && head.method == "HEAD" { "GET" } else { head.method };
    let request = match path::parse(method, target) {
        Ok(request) => request,
        Err(path::Malformed::Request) => {
            engine.count_look("", Some(Code::InvalidArgument), start.elapsed());
            return malformed(head, target);
        }
        Err(path::Malformed::Version) => {
            engine.count_look("", Some(Code::InvalidArgument), start.elapsed());
            return version_too_large(head);
        }
    };
    let (name, result) = match request {
        Request::Status(spec) if spec.is_for_all() && !head.exact => {
            (String::new(), Ok(describe::list(engine)))
        }
        Request::Status(spec) => {
            let result = describe::status(engine, spec.name.as_deref(), spec.version());
            (spec.name.unwrap_or_default(), result)
        }
        Request::Metadata(spec) => {
            let name = spec.name.clone().unwrap_or_default();
            let result = metadata(engine, &name, spec.choice());
            (name, result)
        }
        Request::Post(verb, spec) => {
            let name = spec.name.clone().unwrap_or_default();
            let (choice, body, exact) = (spec.choice(), &body, head.exact);
            let call = Call { engine, verb, name: &name, choice, body, start, exact };
            return infer(&call, head).await;
        }
    };
    engine.count_look(&name, result.as_ref().err().map(Error::code), start.elapsed());
    result.unwrap_or_else(failure)
}

/// The answer to a version that is no 64-bit number. The reference server fails before it has
/// written its JSON.
fn version_too_large(head: &Head<'_>) -> Reply {
    if head.exact {
        return Reply::ok(JSON, Bytes::new()).with_status(400);
    }
    let message = format!("the version in {} is larger than any can be", head.path());
    failure(Error::invalid(message))
}

/// The answer to a path that is none, or not with this method; the reference does not tell one
/// from the other.
fn malformed(head: &Head<'_>, target: &str) -> Reply {
    let Head { method, exact, .. } = *head;
    let takes = |method| path::parse(method, target).is_ok();
    let allowed = match (takes("GET"), takes("POST")) {
        (true, _) => "GET, HEAD",
        (false, true) => "POST",
        (false, false) => "",
    };
    if exact || allowed.is_empty() {
        return failure(Error::invalid(format!("Malformed request: {method} {target}")));
    }
    let message = format!("{method} is not allowed for {target}; it takes {allowed}");
    failure(Error::invalid(message)).with_status(405).with_header(ALLOW, allowed)
}

fn metadata(engine: &Engine, name: &str, choice: Choice) -> Result<Reply> {
    if name.is_empty() {
        return Err(Error::invalid("Missing model name in request."));
    }
    let handle = resolve(engine, name, choice)?;
    Ok(Reply::ok(JSON, describe::metadata(&handle)))
}

async fn infer(call: &Call<'_>, head: &Head<'_>) -> Reply {
    let mut served = Served::new(call.api());
    let answer = infer_on_wire(call, head, &mut served).await;
    let reply = answer.unwrap_or_else(|error| {
        served.code = Some(error.code());
        if served.version.is_none() {
            // The failure counts for the model, if there is one of that name.
            let spec = ModelSpec { name: call.name, choice: Choice::Latest };
            served.version = call.engine.resolve(&spec).ok();
        }
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
        // In boxes what is rarer: the future of every request is as large as its largest part.
        return Ok(Reply::ok(kind, Box::pin(binary::predict(call, served)).await?));
    }
    let answer = call.predict(&wire, &to, served).await?;
    if to == Wire::Npy {
        let array = binary::encode(answer.tensors(), call.engine.max_tensor_bytes())?;
        return Ok(Reply::ok(NPY, array));
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
