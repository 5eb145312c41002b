//! CORS: the headers that let browsers send requests for pages of other origins.

use actix_web::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use actix_web::{HttpRequest, HttpResponseBuilder};
use bytes::Bytes;

use crate::config::Cors;
use tensorserve_protocol::Reply;

/// The methods that Simple TensorFlow Serving allows.
const METHODS: &str = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT";

/// The response to a preflight request, if all origins are allowed. Preflight requests have no
/// credentials, and the response contains nothing about models.
pub(super) fn preflight(cors: Cors, request: &HttpRequest) -> Option<Reply> {
    let headers = request.headers();
    let is_question = request.method() == "OPTIONS"
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if cors != Cors::AnyOrigin || !is_question {
        return None;
    }
    let mut reply = Reply::ok("text/html; charset=utf-8", Bytes::new())
        .with_header("access-control-allow-methods", METHODS);
    let wanted = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|value| value.to_str().ok());
    if let Some(wanted) = wanted {
        reply = reply.with_header("access-control-allow-headers", wanted);
    }
    Some(reply)
}

/// Adds the headers that let pages of other origins read a response. `is_rest`: it belongs to
/// TensorFlow Serving's REST API. `shut`: requests need credentials.
pub(super) fn allow(
    cors: Cors,
    request: &HttpRequest,
    is_rest: bool,
    shut: bool,
    response: &mut HttpResponseBuilder,
) {
    match cors {
        Cors::RestApi if is_rest => {
            response.insert_header((ACCESS_CONTROL_ALLOW_ORIGIN, "*"));
            response.insert_header((ACCESS_CONTROL_ALLOW_METHODS, "POST, GET"));
            let headers = if shut { "Content-Type, Authorization" } else { "Content-Type" };
            response.insert_header((ACCESS_CONTROL_ALLOW_HEADERS, headers));
        }
        Cors::AnyOrigin => {
            let any = || HeaderValue::from_static("*");
            let origin = request.headers().get(ORIGIN).cloned().unwrap_or_else(any);
            response.insert_header((ACCESS_CONTROL_ALLOW_ORIGIN, origin));
            response.append_header((VARY, "Origin"));
        }
        Cors::Off | Cors::RestApi => {}
    }
}
