//! Vertex AI's contract for custom containers: a route for predictions and one for health checks,
//! whose paths the service chooses when it starts the container.
//!
//! A body is `{"instances": […], "parameters": {…}}`, a response `{"predictions": […]}`. Decoding,
//! encoding and errors are TensorFlow Serving's, so that bodies which clients send through the
//! service's `rawPredict` work as well.
//!
//! Source: *Custom container requirements for inference*, version 1.0.0, of Google Cloud's
//! documentation.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use memchr::memmem;

use crate::tfs::rest::RestCall;
use crate::tfs::{self, DEFAULT_SIGNATURE, OwnedModelSpec, TfsAnswer};
use tensorserve_auth::Permission;
use tensorserve_codec::json::scan::Cursor;
use tensorserve_core::engine::{Engine, EntryPoint, Method};
use tensorserve_protocol::{
    Answer, Failure, Host, JSON, Methods, Protocol, Reply, RoutedRequest, Routes, inferred,
};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};

/// The name of the protocol in metrics.
pub const VERTEX: &str = "vertex";

const TAG: &str = "Vertex AI";

/// The paths that the service calls. Each begins with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VertexConfig {
    /// The path of predictions (`AIP_PREDICT_ROUTE`).
    pub predict_route: String,
    /// The path of health checks (`AIP_HEALTH_ROUTE`).
    pub health_route: String,
}

/// A custom container of Vertex AI.
pub struct Vertex {
    config: VertexConfig,
}

impl Vertex {
    /// The protocol with this configuration.
    #[must_use]
    pub fn new(config: VertexConfig) -> Self {
        Vertex { config }
    }
}

impl Protocol for Vertex {
    fn name(&self) -> &'static str {
        VERTEX
    }

    fn routes(&self, host: &Host, routes: &mut Routes) {
        let engine = Arc::new(host.engine.clone());
        let mut group = routes.group(TAG, &engine, tfs::failure_with_status);
        let predict = literal(&self.config.predict_route);
        group
            .route(Methods::Post, predict, Permission::Infer, |engine, request| {
                Box::pin(predictions(engine, request))
            })
            .summary("Run the model on instances");
        let health = literal(&self.config.health_route);
        group
            .immediate(Methods::Get, health, Permission::Public, |engine, _| health_of(engine))
            .summary("Check that the model is ready");
    }
}

/// The pattern that matches only `path`.
fn literal(path: &str) -> String {
    path.replace('{', "{{").replace('}', "}}")
}

/// The service accepts any body with status 200, and routes no requests here for any other status.
fn health_of(engine: &Engine) -> Answer {
    engine.readiness().map_err(|error| Failure::new(error, 503))?;
    Ok(Reply::ok(JSON, &b"{}"[..]))
}

async fn predictions(engine: &Engine, mut request: RoutedRequest<'_>) -> Answer {
    let body = request.take_bytes();
    let name = only_model(engine)?;
    let method = Method::Predict;
    let spec = OwnedModelSpec { name, version: None, label: None };
    let call = RestCall {
        spec,
        method,
        signature: DEFAULT_SIGNATURE.into(),
        exact: false,
        max_bytes: engine.max_tensor_bytes(),
    };
    let entry = engine.call(EntryPoint { protocol: VERTEX, method }, request.start);
    let outcome = engine.infer(
        entry,
        move |resolver| call.decode_json(resolver, &with_signature(body)?),
        |form, response| TfsAnswer::read(form, response)?.json(false),
    );
    inferred(outcome.await, |body| Reply::ok(JSON, body))
}

/// The name of the model: the route does not name one, and the service deploys one.
fn only_model(engine: &Engine) -> Result<String> {
    let mut models = engine.repository().all_models();
    match models.len() {
        0 => Err(Error::unavailable("there is no model yet")),
        1 => Ok(models.remove(0)),
        count => Err(Error::invalid(format!(
            "this route does not name a model, and there are {count}: serve one, or send the request \
             to /v1/models/NAME:predict"
        ))),
    }
}

/// The body with `parameters.signature_name`, if there is one, as its own `signature_name`, which has
/// precedence. Other parameters have no effect.
fn with_signature(body: Bytes) -> Result<Bytes> {
    let Some(name) = signature_in_parameters(&body) else {
        return Ok(body);
    };
    budget::reserve(body.len())?;
    let mut cursor = Cursor::new(&body);
    cursor.skip_space();
    let members = body.get(cursor.offset() + 1..).unwrap_or_default();
    Ok([&b"{\"signature_name\":"[..], name, b",", members].concat().into())
}

/// The JSON value of `parameters.signature_name` in a body without a `signature_name` of its own.
/// `None` for a malformed body: decoding reports that.
fn signature_in_parameters(body: &[u8]) -> Option<&[u8]> {
    // Most bodies are not worth a second pass.
    memmem::find(body, b"\"parameters\"")?;
    let mut cursor = Cursor::new(body);
    cursor.open_document().ok()?;
    let mut found = None;
    let mut more = cursor.peek() == b'{' && cursor.open_object().ok()?;
    while more {
        match &*cursor.name().ok()? {
            b"signature_name" => return None,
            b"parameters" if cursor.peek() == b'{' => found = signature_in_object(&mut cursor)?,
            _ => cursor.skip_value().ok()?,
        }
        more = cursor.next_member().ok()?;
    }
    body.get(found?)
}

/// The place of the value of `signature_name` in the object at `cursor`, which is skipped. The outer
/// `None` is for a malformed object.
fn signature_in_object(cursor: &mut Cursor) -> Option<Option<Range<usize>>> {
    let mut found = None;
    let mut more = cursor.open_object().ok()?;
    while more {
        let is_signature = &*cursor.name().ok()? == b"signature_name";
        let start = cursor.offset();
        cursor.skip_value().ok()?;
        if is_signature {
            found = Some(start..cursor.offset());
        }
        more = cursor.next_member().ok()?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(body: &'static str) -> String {
        let body = with_signature(Bytes::from_static(body.as_bytes())).expect("within the budget");
        String::from_utf8(body.to_vec()).expect("text")
    }

    #[test]
    fn a_parameter_selects_the_signature() {
        assert_eq!(
            named(r#" {"instances": [1], "parameters": {"k": [2], "signature_name": "\u0073"}}"#),
            r#"{"signature_name":"\u0073","instances": [1], "parameters": {"k": [2], "signature_name": "\u0073"}}"#
        );
    }

    #[test]
    fn other_bodies_stay_as_they_are() {
        for body in [
            r#"{"instances": [1]}"#,
            r#"{"instances": [1], "parameters": {}}"#,
            r#"{"instances": [1], "parameters": null}"#,
            r#"{"instances": [1], "parameters": {"k": {"signature_name": "s"}}}"#,
            r#"{"instances": ["\"parameters\""], "k": {"signature_name": "s"}}"#,
            r#"{"signature_name": "a", "parameters": {"signature_name": "s"}, "instances": [1]}"#,
            r#"{"parameters": {"signature_name": "s"}, "instances": [1], "signature_name": "a"}"#,
            r#"{"parameters": {"signature_name": "s"}, "instances": [1]"#,
            r#"["parameters"]"#,
            r#""parameters""#,
            "",
        ] {
            assert_eq!(named(body), body);
        }
    }

    #[test]
    fn paths_are_literal() {
        assert_eq!(literal("/v1/{a}:predict"), "/v1/{{a}}:predict");
    }
}
