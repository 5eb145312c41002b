//! `inference.py`: requests that pass through a model's handlers.
//!
//! The return value of `input_handler` is decoded in this process as a payload of TensorFlow Serving's
//! API, and the response of the model is passed to `output_handler`.

use std::fmt::Write;

use bytes::Bytes;

use super::attributes;
use super::invocation::ScriptCall;
use super::{Compatibility, SagemakerApi, refuse};
use crate::tfs::{self, OwnedModelSpec, TfsAnswer};
use tensorserve_codec::json::write;
use tensorserve_core::engine::{
    HandlerContext, HandlerError, HandlerReply, Handlers, Method, ModelReply,
};
use tensorserve_protocol::{ALLOW, JSON, Reply, RequestHead, bounded};
use tensorserve_tensor::error::Error;

/// The methods of the container's service for handlers.
const ALLOWED: &str = "DELETE, GET, POST, OPTIONS";

impl SagemakerApi {
    /// The response to a request for `/invocations` with another method than POST, where there are
    /// handlers.
    pub(super) fn other_method(&self, head: &RequestHead<'_>) -> Option<Reply> {
        let model = self.default_model();
        if head.method == "POST" || matches!(self.engine.handlers(model.as_deref()), Ok(None)) {
            return None;
        }
        if head.method == "GET" {
            return Some(Reply::ok(JSON, &b"{}"[..]));
        }
        let message = format!("{} is not allowed for /invocations", head.method);
        Some(refuse(Error::invalid(message), 405).with_header(ALLOW, ALLOWED))
    }

    /// Runs a request through handlers. The model is resolved only after the input handler.
    pub(super) async fn run_handlers(
        &self,
        handlers: &Handlers,
        script: ScriptCall<'_>,
        body: Bytes,
    ) -> Reply {
        let ScriptCall { invocation, attributes, call, entry } = script;
        let given = invocation.attributes.unwrap_or_default();
        let addresses = self.engine.addresses();
        let rest_uri = rest_uri(&addresses.http, &call.spec, call.method);
        let until = entry.deadline;
        let context = HandlerContext {
            model_name: invocation.model.or(attributes.model),
            model_version: attributes::last(given, "tfs-model-version"),
            method: attributes::last(given, "tfs-method"),
            rest_uri: &rest_uri,
            grpc_port: addresses.grpc_port,
            is_multi_model: invocation.model.is_some(),
            custom_attributes: invocation.attributes,
            request_content_type: invocation.content_type.unwrap_or(JSON),
            accept_header: invocation.accept.unwrap_or(JSON),
            content_length: u64::try_from(body.len()).ok(),
            timeout: until.saturating_duration_since(entry.start).as_secs().max(1),
        };
        if handlers.is_single() {
            return written(handlers.handler(&context, &body, until).await);
        }
        let (document, begun) = match handlers.input(&context, &body, until).await {
            Ok(input) => input,
            Err(failure) => return failed(failure),
        };
        drop(body);
        let exact = call.exact;
        let inferred = self.engine.infer(
            entry,
            move |resolver| call.decode_json(resolver, &document),
            move |form, response| TfsAnswer::read(form, response)?.json(exact),
        );
        let inferred = inferred.await;
        let model = match inferred.answer {
            Ok(body) => Reply::ok(JSON, body),
            Err(error) if self.config().compatibility == Compatibility::Tf220 => {
                return unhandled(tfs::failure(error)).with_timing(inferred.timing);
            }
            // The script decides how to handle an error of the model.
            Err(error) => tfs::failure(error),
        };
        let model = ModelReply {
            status: model.status,
            content_type: &model.content_type,
            body: &model.body,
        };
        let answer = handlers.output(&context, begun, model, until).await;
        written(answer).with_timing(inferred.timing)
    }
}

/// The URL of the model's method over REST.
fn rest_uri(base: &str, spec: &OwnedModelSpec, method: Method) -> String {
    let mut uri = format!("{base}/v1/models/{}", spec.name);
    if let Some(version) = spec.version {
        let _ = write!(uri, "/versions/{version}");
    }
    let _ = write!(uri, ":{}", method.name());
    uri
}

fn written(answer: Result<HandlerReply, HandlerError>) -> Reply {
    match answer {
        Ok(HandlerReply { body, content_type: Some(kind) }) => Reply::ok(kind, body),
        Ok(HandlerReply { body, content_type: None }) => Reply::ok(JSON, body),
        Err(failure) => failed(failure),
    }
}

/// The failure of a handler in the container's format; one with a title in that of the web framework
/// whose exception it was.
fn failed(failure: HandlerError) -> Reply {
    let HandlerError { status, error, title } = failure;
    let Some(title) = title else {
        return refuse(error, status);
    };
    let mut reply = described(status, &title, error.message());
    reply.error = Some(error);
    reply
}

/// The model's error as the 2.20 image sends it, past `output_handler`.
fn unhandled(model: Reply) -> Reply {
    let reason = match model.status {
        400 => "Bad Request",
        404 => "Not Found",
        409 => "Conflict",
        429 => "Too Many Requests",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Internal Server Error",
    };
    let title = format!("{} {reason}", model.status);
    let text = String::from_utf8_lossy(&model.body);
    let mut reply = described(model.status, &title, &text).with_header("vary", "Accept");
    reply.error = model.error;
    reply
}

/// An error in the format of the container's web framework.
fn described(status: u16, title: &str, description: &str) -> Reply {
    let mut body = b"{\"title\": ".to_vec();
    write::string(bounded(title).as_bytes(), &mut body);
    body.extend_from_slice(b", \"description\": ");
    write::string(bounded(description).as_bytes(), &mut body);
    body.push(b'}');
    Reply::ok(JSON, body).with_status(status)
}
