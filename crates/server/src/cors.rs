//! CORS: the headers that let browsers send requests for pages of other origins.

use actix_web::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use actix_web::{HttpRequest, HttpResponseBuilder};
use bytes::Bytes;

use crate::config::Cors;
use tensorserve_protocol::{CorsScope, Reply};

/// The methods that Simple TensorFlow Serving allows.
const METHODS: &str = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT";

/// A request of a browser for permission to send another one.
pub(super) struct Preflight<'r> {
    method: &'r str,
    headers: Option<&'r str>,
}

impl<'r> Preflight<'r> {
    /// The preflight request, if all origins are allowed. It has no credentials, and its response
    /// contains nothing about models.
    pub(super) fn of(cors: Cors, request: &'r HttpRequest) -> Option<Self> {
        if cors != Cors::AnyOrigin || request.method() != "OPTIONS" {
            return None;
        }
        let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        request.headers().get(ORIGIN)?;
        let method = text(ACCESS_CONTROL_REQUEST_METHOD)?;
        Some(Preflight { method, headers: text(ACCESS_CONTROL_REQUEST_HEADERS) })
    }

    /// The method of the other request.
    pub(super) fn method(&self) -> &'r str {
        self.method
    }

    pub(super) fn answer(&self) -> Reply {
        let reply = Reply::ok("text/html; charset=utf-8", Bytes::new())
            .with_header("access-control-allow-methods", METHODS);
        match self.headers {
            Some(headers) => reply.with_header("access-control-allow-headers", headers),
            None => reply,
        }
    }
}

/// Adds the headers that let pages of other origins read a response. `scope`: the settings that
/// apply to its route. `shut`: requests need credentials.
pub(super) fn allow(
    cors: Cors,
    request: &HttpRequest,
    scope: CorsScope,
    shut: bool,
    response: &mut HttpResponseBuilder,
) {
    match cors {
        Cors::RestApi if scope.rest_api => {
            response.insert_header((ACCESS_CONTROL_ALLOW_ORIGIN, "*"));
            response.insert_header((ACCESS_CONTROL_ALLOW_METHODS, "POST, GET"));
            let headers = if shut { "Content-Type, Authorization" } else { "Content-Type" };
            response.insert_header((ACCESS_CONTROL_ALLOW_HEADERS, headers));
        }
        Cors::AnyOrigin if scope.simple => {
            let any = || HeaderValue::from_static("*");
            let origin = request.headers().get(ORIGIN).cloned().unwrap_or_else(any);
            response.insert_header((ACCESS_CONTROL_ALLOW_ORIGIN, origin));
            response.append_header((VARY, "Origin"));
        }
        Cors::Off | Cors::RestApi | Cors::AnyOrigin => {}
    }
}
