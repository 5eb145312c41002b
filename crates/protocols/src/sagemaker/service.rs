//! The API of the SageMaker service in front of a container, which AWS's clients call: inference under
//! `/endpoints/NAME/…`, with errors in AWS's format.
//!
//! Clients automatically retry 500, 502, 503, 504 and 429. So errors of a request or a model are a 424,
//! and only overload is a 503. Responses are never compressed, because the clients do not decompress.

use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use super::invocation::{Invocation, trace_parent};
use super::media::PayloadType;
use super::{SagemakerApi, attributes, rendered};
use tensorserve_auth::Permission;
use tensorserve_codec::event_stream;
use tensorserve_codec::json::write;
use tensorserve_protocol::{
    ALLOW, Answer, Failure, JSON, Methods, NoRoute, Reply, RequestHead, RouteGroup, RoutedRequest,
    bounded,
};
use tensorserve_tensor::error::{Code, Error};
use tensorserve_tensor::names::beginning;

/// The most bytes of `OriginalMessage` according to the service model.
const LONGEST_ORIGINAL: usize = 2048;

/// Adds the operations of endpoints. An endpoint's name may be empty.
pub(super) fn add_routes(group: &mut RouteGroup<'_, SagemakerApi>) {
    for endpoint in ["{endpoint}", ""] {
        let path = |operation: &str| format!("/endpoints/{endpoint}/{operation}");
        let invoke = path("invocations");
        let invoke = group.route(Methods::Post, invoke, Permission::Infer, |api, request| {
            Box::pin(api.invoke_endpoint(request))
        });
        invoke.summary("Run a model: the operation InvokeEndpoint of SageMaker");
        let stream = path("invocations-response-stream");
        let stream = group.route(Methods::Post, stream, Permission::Infer, |api, request| {
            Box::pin(api.invoke_endpoint_with_response_stream(request))
        });
        stream.summary("Run a model and return the response as an event stream: InvokeEndpointWithResponseStream");
        let later = path("async-invocations");
        let later = group.route(Methods::Post, later, Permission::Infer, |api, request| {
            Box::pin(api.invoke_endpoint_async(request))
        });
        later.summary("Run a model later and write the response to a file: InvokeEndpointAsync");
    }
    group.scope("/endpoints/", |_, head, missing| refuse_call(head, missing));
}

/// Why a call is not an operation of the service.
fn refuse_call(head: &RequestHead<'_>, missing: &NoRoute) -> Failure {
    match missing {
        NoRoute::Path => {
            let message = format!("There is no operation at {}.", head.path());
            Failure::new(Error::not_found(message), 404)
        }
        NoRoute::Method(allowed) => {
            let message = format!("An endpoint is called with POST, not {}.", head.method);
            Failure::new(Error::invalid(message), 405).with_header(ALLOW, allowed.join(", "))
        }
    }
}

impl SagemakerApi {
    async fn invoke_endpoint(&self, mut request: RoutedRequest<'_>) -> Answer {
        let body = request.take_bytes();
        let endpoint = request.params.decoded("endpoint");
        let invocation = of_service(&request.head, &endpoint);
        let reply = rendered(self.invoke(&invocation, body, request.start).await);
        Ok(if reply.status == 200 { invoked(reply) } else { model_error(reply) })
    }

    async fn invoke_endpoint_with_response_stream(&self, mut request: RoutedRequest<'_>) -> Answer {
        let body = request.take_bytes();
        let endpoint = request.params.decoded("endpoint");
        let mut invocation = of_service(&request.head, &endpoint);
        invocation.accept = request.head.header("x-amzn-sagemaker-accept");
        let reply = rendered(self.invoke(&invocation, body, request.start).await);
        Ok(if reply.status == 200 { in_events(reply) } else { model_error(reply) })
    }
}

/// A successful response, with the headers of the service.
fn invoked(reply: Reply) -> Reply {
    reply.with_header("x-amzn-invoked-production-variant", "AllTraffic")
}

/// Reads the head as the service does: a payload without a type is JSON.
fn of_service<'h>(head: &RequestHead<'h>, endpoint: &'h str) -> Invocation<'h> {
    Invocation {
        payload: Some(PayloadType::Named(head.header("content-type").unwrap_or(JSON))),
        accept: head.header("accept"),
        attributes: head.header(attributes::HEADER),
        model: head.header("x-amzn-sagemaker-target-model").map(model_of),
        signature: None,
        endpoint: Some(endpoint),
        parent: trace_parent(head),
    }
}

/// The name of the model in an archive: that of the archive without its extension.
pub(super) fn model_of(archive: &str) -> &str {
    let archive = archive.trim();
    archive.strip_suffix(".tar.gz").unwrap_or(archive)
}

/// The response as the events that clients of a stream expect, or the error that there is no memory for them.
fn in_events(mut reply: Reply) -> Reply {
    let events = match event_stream::payload_parts(&reply.body) {
        Ok(events) => events,
        Err(error) => {
            let status = error.http_status();
            return model_error(Reply::error(error, status));
        }
    };
    let name =
        std::mem::replace(&mut reply.content_type, "application/vnd.amazon.eventstream".into());
    reply.body = events.into();
    invoked(reply.with_header("x-amzn-sagemaker-content-type", name))
}

/// The error response of a container in the service's format.
fn model_error(reply: Reply) -> Reply {
    let Reply { status, body, timing, error, .. } = reply;
    let is_overload = status == 503;
    let text = String::from_utf8_lossy(&body);
    let start = beginning(&text, LONGEST_ORIGINAL);
    let mut answer = if is_overload {
        let error = error.as_ref().map_or("", Error::message);
        refuse(Error::unavailable(error.to_owned()), 503)
    } else {
        let (who, code) = match status {
            ..500 => ("client", "CLIENT_ERROR_FROM_MODEL"),
            _ => ("server", "SERVER_ERROR_FROM_MODEL"),
        };
        let message =
            format!("Received {who} error ({status}) from primary with message \"{start}\"");
        let members = [
            ("ErrorCode", code),
            ("LogStreamArn", ""),
            ("Message", &message),
            ("OriginalMessage", start),
        ];
        let mut body = object(&members);
        body.pop();
        body.extend_from_slice(format!(",\"OriginalStatusCode\":{status}}}").as_bytes());
        of_type("ModelError", body, 424)
    };
    (answer.timing, answer.error) = (timing, error);
    answer
}

/// An error that is not the model's, in the service's format.
pub(super) fn refuse(error: Error, status: u16) -> Reply {
    #[allow(clippy::wildcard_enum_match_arm)] // All other codes are errors of the request.
    let kind = match error.code() {
        Code::Unavailable => "ServiceUnavailable",
        Code::Unauthenticated | Code::PermissionDenied => "AccessDeniedException",
        Code::NotFound => "UnknownOperationException",
        _ if status == 500 => "InternalFailure",
        _ => "ValidationError",
    };
    let mut reply = of_type(kind, object(&[("Message", &bounded(error.message()))]), status);
    reply.error = Some(error);
    reply
}

fn of_type(kind: &'static str, body: Vec<u8>, status: u16) -> Reply {
    Reply::ok(JSON, body).with_status(status).with_header("x-amzn-errortype", kind)
}

/// Adds what every response of the service has.
pub(super) fn sign(reply: &mut Reply) {
    reply.headers.push(("x-amzn-requestid", new_id()));
}

/// `{"NAME":"TEXT",…}`.
pub(super) fn object(members: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    for (index, (name, text)) in members.iter().enumerate() {
        body.push(if index == 0 { b'{' } else { b',' });
        write::string(name.as_bytes(), &mut body);
        body.push(b':');
        write::string(text.as_bytes(), &mut body);
    }
    body.push(b'}');
    body
}

fn random() -> u64 {
    RandomState::new().hash_one(Instant::now())
}

/// A new random identifier in the format of a UUID.
pub(super) fn new_id() -> String {
    let (high, low) = (random(), random());
    // Version 4, variant 1.
    let (high, low) = (high & !0xf000 | 0x4000, low & !(0b11 << 62) | 0b10 << 62);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_distinct_uuids() {
        let (a, b) = (new_id(), new_id());
        assert_ne!(a, b);
        assert_eq!(a.len(), 36);
        assert_eq!((&a[14..15], &a[8..9], &a[23..24]), ("4", "-", "-"));
        assert!("89ab".contains(&a[19..20]), "{a}");
    }
}
