//! `inference.py`: requests that pass through a model's handlers.
//!
//! The return value of `input_handler` is decoded in this process as a payload of TensorFlow Serving's
//! API, and the response of the model is passed to `output_handler`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::attributes;
use super::invocation::ScriptCall;
use super::media::PayloadType;
use super::{Compatibility, SagemakerApi};
use crate::tfs::{self, OwnedModelSpec, TfsAnswer};
use tensorserve_codec::json::write;
use tensorserve_core::engine::{
    HandlerContext, HandlerError, HandlerReply, Handlers, Method, ModelReply, RunTiming,
};
use tensorserve_protocol::{ALLOW, Answer, Failure, JSON, Reply, RequestHead, bounded};
use tensorserve_tensor::error::Error;
use tensorserve_trace::{self as trace, RequestTrace, Span, TraceParent};

/// The methods of the container's service for handlers.
const ALLOWED: &str = "DELETE, GET, POST, OPTIONS";

impl SagemakerApi {
    /// The response to a request for `/invocations` with another method than POST, where there are
    /// handlers.
    pub(super) fn other_method(&self, head: &RequestHead<'_>) -> Option<Answer> {
        let model = self.default_model();
        if head.method == "POST" || matches!(self.engine.handlers(model.as_deref()), Ok(None)) {
            return None;
        }
        if head.method == "GET" {
            return Some(Ok(Reply::ok(JSON, &b"{}"[..])));
        }
        let message = format!("{} is not allowed for /invocations", head.method);
        Some(Err(Failure::new(Error::invalid(message), 405).with_header(ALLOW, ALLOWED)))
    }

    /// Runs a request through handlers. The model is resolved only after the input handler.
    pub(super) async fn run_handlers(
        &self,
        handlers: &Handlers,
        script: ScriptCall<'_>,
        body: Bytes,
    ) -> Answer {
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
            request_content_type: invocation.payload.map_or(JSON, PayloadType::content_type),
            accept_header: invocation.accept.unwrap_or(JSON),
            content_length: u64::try_from(body.len()).ok(),
            timeout: until.saturating_duration_since(entry.start).as_secs().max(1),
            traceparent: None,
            tracestate: invocation.parent.state,
        };
        let step = |name| HandlerStep::begin(name, &invocation.parent);
        if handlers.is_single() {
            let step = step("handler");
            let answer = handlers.handler(&step.context(&context), &body, until).await;
            step.end(answer.as_ref().err());
            return written(answer, None);
        }
        let of_input = step("input_handler");
        let input = handlers.input(&of_input.context(&context), &body, until).await;
        of_input.end(input.as_ref().err());
        let (document, begun) = match input {
            Ok(input) => input,
            Err(failure) => return failed(failure, None),
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
                return Ok(unhandled(tfs::failure(error)).with_timing(inferred.timing));
            }
            // The script decides how to handle an error of the model.
            Err(error) => tfs::failure(error),
        };
        let model = ModelReply {
            status: model.status,
            content_type: &model.content_type,
            body: &model.body,
        };
        let step = step("output_handler");
        let answer = handlers.output(&step.context(&context), begun, model, until).await;
        step.end(answer.as_ref().err());
        written(answer, inferred.timing)
    }
}

/// A call of a handler, which may call other servers: they get its span as their parent.
struct HandlerStep {
    recorded: Option<(Arc<RequestTrace>, Span)>,
    /// The value of its `traceparent`.
    parent: Option<String>,
}

impl HandlerStep {
    /// Begins the call `name` for the request that this thread works for. If that is not recorded,
    /// the parent is that of the request.
    fn begin(name: &'static str, of_request: &TraceParent<'_>) -> Self {
        let now = Instant::now();
        let trace = trace::recording();
        let recorded = trace.map(|trace| {
            let span = trace.child(name, now, now);
            (trace, span)
        });
        let own = recorded.as_ref().map(|(_, span)| span.context);
        HandlerStep {
            recorded,
            parent: own.or(of_request.context).map(|parent| parent.to_string()),
        }
    }

    /// The context of the request, with this call as the parent of what the handler does.
    fn context<'c>(&'c self, context: &HandlerContext<'c>) -> HandlerContext<'c> {
        HandlerContext { traceparent: self.parent.as_deref(), ..*context }
    }

    fn end(self, failure: Option<&HandlerError>) {
        if let Some((trace, span)) = self.recorded {
            let error = failure.map(|failure| failure.error.code().name().into());
            trace.add(Span { end: Instant::now(), ..span }.failed(error));
        }
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

fn written(answer: Result<HandlerReply, HandlerError>, timing: Option<RunTiming>) -> Answer {
    let reply = match answer {
        Ok(HandlerReply { body, content_type: Some(kind) }) => Reply::ok(kind, body),
        Ok(HandlerReply { body, content_type: None }) => Reply::ok(JSON, body),
        Err(failure) => return failed(failure, timing),
    };
    Ok(reply.with_timing(timing))
}

/// The failure of a handler; one with a title in the format of the web framework whose exception it was.
fn failed(failure: HandlerError, timing: Option<RunTiming>) -> Answer {
    let HandlerError { status, error, title } = failure;
    let Some(title) = title else {
        return Err(Failure::new(error, status).with_timing(timing));
    };
    let mut reply = described(status, &title, error.message()).with_timing(timing);
    reply.error = Some(error);
    Ok(reply)
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
