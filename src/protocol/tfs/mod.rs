//! TensorFlow Serving's REST API, as `tensorflow_model_server` 2.20 speaks it: routes, order of
//! checks, texts, number and white-space format. Under our own name it also takes and gives what
//! the reference has no form for ([`binary`], JSON of half precision).
//!
//! Sources: `model_servers/http_rest_api_handler.cc`, `http_rest_api_util.cc`,
//! `util/json_tensor.cc`, `servables/tensorflow` of github.com/tensorflow/serving.

use std::time::Instant;

use bytes::Bytes;

use self::binary::Wire;
use self::classify::Method;
use self::examples::Decoded;
use self::path::{Request, Verb};
use super::{Head, JSON, Reply, bounded};
use crate::codec::json::write;
use crate::engine::{
    Api, Choice, Engine, InferRequest, ModelHandle, ModelSpec, Served, Unresolved,
};
use crate::error::{Error, Result};

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
            let (choice, body) = (spec.choice(), &body);
            let call = Call { engine, head, name: &name, choice, body, start };
            return infer(&call, verb).await;
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

/// An inference that is asked for.
struct Call<'a> {
    engine: &'a Engine,
    head: &'a Head<'a>,
    name: &'a str,
    choice: Choice<'a>,
    body: &'a Bytes,
    start: Instant,
}

async fn infer(call: &Call<'_>, verb: Verb) -> Reply {
    let api = match verb {
        Verb::Predict => Api::TfsPredict,
        Verb::Classify => Api::TfsClassify,
        Verb::Regress => Api::TfsRegress,
    };
    let mut served = Served { api, reached: None, code: None };
    let answer = match verb {
        Verb::Predict => predict(call, &mut served).await,
        Verb::Classify => on_examples(call, Method::Classify, &mut served).await,
        Verb::Regress => on_examples(call, Method::Regress, &mut served).await,
    };
    let reply = answer.unwrap_or_else(|error| {
        served.code = Some(error.code());
        failure(error)
    });
    reply.with_served(served)
}

async fn predict(call: &Call<'_>, served: &mut Served) -> Result<Reply> {
    let wire = Wire::of_body(call.head);
    let answer = wire.of_answer(call.head);
    if let Wire::Message(kind) = answer {
        return Ok(Reply::ok(kind, binary::predict(call, served).await?));
    }
    let Call { engine, body, .. } = *call;
    let handle = match resolve(engine, call.name, call.choice) {
        Ok(handle) => handle,
        // What is wrong with a body's form is reported before a model that is not there.
        Err(error) => {
            if wire == Wire::Json {
                predict::check_form(body)?;
            }
            return Err(error);
        }
    };
    let max_bytes = engine.max_tensor_bytes();
    let decoded = match wire {
        Wire::Npy => binary::decode(body, &handle, max_bytes)?,
        Wire::Json | Wire::Message(_) => {
            predict::decode(body, &handle, max_bytes, call.head.exact)?
        }
    };
    let signature = decoded.signature;
    served.reached = Some((handle.clone(), signature));
    if answer == Wire::Npy {
        binary::check_outputs(&handle, signature)?;
    }
    let request = InferRequest { signature, inputs: decoded.inputs };
    let deadline = engine.deadline(call.start);
    let outputs = engine.infer(&handle, request, deadline).await?.outputs;
    if answer == Wire::Npy {
        return Ok(Reply::ok(binary::NPY, binary::encode(&outputs, max_bytes)?));
    }
    let declared = handle.signatures().get(signature);
    let names = declared.map_or(&[][..], |signature| &signature.outputs);
    let text = encode::outputs(decoded.format, names, &outputs, call.head.exact)?;
    Ok(Reply::ok(JSON, text))
}

async fn on_examples(call: &Call<'_>, method: Method, served: &mut Served) -> Result<Reply> {
    let Call { engine, name, choice, .. } = *call;
    let decoded = examples::decode(call.body, engine.max_tensor_bytes())?;
    let Decoded { signature_name, examples } = decoded;
    let handle = resolve(engine, name, choice)?;
    let signature = classify::find(&handle, &signature_name, method)?;
    served.reached = Some((handle.clone(), signature));
    let deadline = engine.deadline(call.start);
    let text = match method {
        Method::Classify => {
            let classes = classify::classify(engine, &handle, signature, examples, deadline);
            encode::classifications(&classes.await?)
        }
        Method::Regress => {
            let values = classify::regress(engine, &handle, signature, examples, deadline);
            encode::regressions(&values.await?)
        }
    };
    Ok(Reply::ok(JSON, text))
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
