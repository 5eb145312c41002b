//! `inference.py`: requests that go through a model's handlers.
//!
//! Between `input_handler` and `output_handler` the request stays in this process: what the first
//! returns goes to TensorFlow Serving's API as a call, and that one's answer to the second.

use std::fmt::Write;
use std::time::Instant;

use bytes::Bytes;

use super::attributes::{self, Attributes};
use super::invocation::Invocation;
use super::{Sagemaker, refuse};
use crate::tfs::{self, Call, Verb};
use tensorserve_codec::json::write;
use tensorserve_core::engine::{
    Choice, Context, Failure, HandlerAnswer, Handlers, ModelAnswer, Served,
};
use tensorserve_protocol::{Head, JSON, Reply, bounded};
use tensorserve_tensor::error::Error;

/// Methods that the container's service for handlers knows.
const ALLOWED: &str = "DELETE, GET, POST, OPTIONS";

/// A request that is to go through handlers.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) invocation: &'a Invocation<'a>,
    pub(super) attributes: &'a Attributes<'a>,
    /// The model that it means.
    pub(super) name: &'a str,
    /// When its head had come.
    pub(super) start: Instant,
}

impl Sagemaker {
    /// The answer to a request for `/invocations` with another method than POST, where there are
    /// handlers.
    pub(super) fn other_method(&self, head: &Head<'_>) -> Option<Reply> {
        let model = self.default_model();
        if head.method == "POST" || matches!(self.engine.handlers(model.as_deref()), Ok(None)) {
            return None;
        }
        if head.method == "GET" {
            return Some(Reply::ok(JSON, &b"{}"[..]));
        }
        let message = format!("{} is not allowed for /invocations", head.method);
        Some(refuse(Error::invalid(message), 405).with_header("allow", ALLOWED))
    }

    /// Answers a request by handlers. The model that it means is not looked at before they ask
    /// for it.
    pub(super) async fn handled(
        &self,
        handlers: &Handlers,
        request: &Request<'_>,
        body: Bytes,
    ) -> Reply {
        let engine = &self.engine;
        let Request { invocation, attributes, name, start } = *request;
        let choice = attributes.version.map_or(Choice::Latest, Choice::Version);
        let given = invocation.attributes.unwrap_or_default();
        let addresses = engine.addresses();
        let rest_uri = rest_uri(&addresses.http, name, choice, attributes.verb);
        let until = engine.deadline(start);
        let context = Context {
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
            timeout: until.saturating_duration_since(start).as_secs().max(1),
        };
        if handlers.is_single() {
            return written(handlers.handler(&context, &body, until).await);
        }
        let (asked, begun) = match handlers.input(&context, &body, until).await {
            Ok(asked) => asked,
            Err(failure) => return failed(failure),
        };
        drop(body);
        let (verb, body) = (attributes.verb, &asked);
        let call = Call { engine, verb, name, choice, body, start, exact: false };
        let mut served = Served::new(call.api());
        let model = model_reply(&call, &mut served).await;
        let model = ModelAnswer {
            status: model.status,
            content_type: &model.content_type,
            body: &model.body,
        };
        // The model's failure is the script's to tell; its own counts as none of the model's.
        written(handlers.output(&context, begun, model, until).await).with_served(served)
    }
}

/// What TensorFlow Serving's API answers to what `input_handler` returned.
async fn model_reply(call: &Call<'_>, served: &mut Served) -> Reply {
    let answer = call.run(served).await;
    match answer.and_then(|answer| answer.json(call.exact)) {
        Ok(body) => Reply::ok(JSON, body),
        Err(error) => {
            served.code = Some(error.code());
            tfs::failure(error)
        }
    }
}

/// Where the model answers over REST.
fn rest_uri(base: &str, name: &str, choice: Choice<'_>, verb: Verb) -> String {
    let mut uri = format!("{base}/v1/models/{name}");
    if let Choice::Version(version) = choice {
        let _ = write!(uri, "/versions/{version}");
    }
    uri.push_str(match verb {
        Verb::Predict => ":predict",
        Verb::Classify => ":classify",
        Verb::Regress => ":regress",
    });
    uri
}

fn written(answer: Result<HandlerAnswer, Failure>) -> Reply {
    match answer {
        Ok(HandlerAnswer { body, content_type: Some(kind) }) => Reply::ok(kind, body),
        Ok(HandlerAnswer { body, content_type: None }) => Reply::ok(JSON, body),
        Err(failure) => failed(failure),
    }
}

/// A failure of a handler in the container's form; one that has a title in that of the web
/// framework whose exception it was.
fn failed(failure: Failure) -> Reply {
    let Failure { status, error, title } = failure;
    let Some(title) = title else {
        return refuse(error, status);
    };
    let mut body = b"{\"title\": ".to_vec();
    write::string(bounded(&title).as_bytes(), &mut body);
    body.extend_from_slice(b", \"description\": ");
    write::string(bounded(error.message()).as_bytes(), &mut body);
    body.push(b'}');
    let mut reply = Reply::ok(JSON, body).with_status(status);
    reply.error = Some(error);
    reply
}
