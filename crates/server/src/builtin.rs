//! The server's own routes: probes, metrics, and the response to unknown paths.

use std::sync::Arc;

use tensorserve_auth::Permission;
use tensorserve_core::engine::Engine;
use tensorserve_core::metrics::{CONTENT_TYPE, TEXT_CONTENT_TYPE, text_format};
use tensorserve_protocol::{
    ALLOW, Answer, Failure, Host, JSON, Methods, NoRoute, Protocol, Reply, RequestHead, Routes,
    first_choice,
};
use tensorserve_tensor::error::Error;

const TEXT: &str = "text/plain; charset=utf-8";

/// The server's own routes.
pub(crate) struct BuiltinProtocol;

impl Protocol for BuiltinProtocol {
    fn name(&self) -> &'static str {
        "server"
    }

    fn routes(&self, host: &Host, routes: &mut Routes) {
        let engine = Arc::new(host.engine.clone());
        let mut group = routes.group("server", &engine, Reply::error);
        group
            .immediate(Methods::Get, "/", Permission::Public, |_, _| {
                Reply::ok(JSON, &b"{\"status\":\"alive\"}"[..])
            })
            .summary("Check that the process is alive")
            .response(
                JSON,
                serde_json::json!({ "type": "object", "properties": { "status": { "const": "alive" } } }),
            );
        group
            .immediate(Methods::Get, "/healthz", Permission::Public, |_, _| {
                Reply::ok(TEXT, &b"ok\n"[..])
            })
            .summary("Check that the process is alive")
            .response(TEXT, serde_json::json!({ "const": "ok\n" }));
        group
            .immediate(Methods::Get, "/health", Permission::Public, |_, _| {
                Reply::ok("text/html; charset=utf-8", &b"healthy"[..])
            })
            .simple_cors()
            .summary("Check that the process is alive, as in Simple TensorFlow Serving")
            .response("text/html; charset=utf-8", serde_json::json!({ "const": "healthy" }));
        group
            .immediate(Methods::Get, "/readyz", Permission::Public, |engine, _| readiness(engine))
            .summary("Check that every configured model has a ready version")
            .response(TEXT, serde_json::json!({ "const": "ok\n" }));
        group
            .immediate(Methods::Get, "/metrics", Permission::Metrics, |engine, request| {
                metrics(engine, &request.head)
            })
            .summary("Return the metrics, as OpenMetrics or in Prometheus's text format")
            .response(TEXT, serde_json::json!({ "type": "string" }))
            .members(serde_json::json!({ "responses": { "200": {
                "description": "The metrics, in the format that Accept prefers",
                "content": {
                    "text/plain": { "schema": { "type": "string" } },
                    "application/openmetrics-text": { "schema": { "type": "string" } },
                },
            } } }));
        group.scope("/", |_, head, missing| not_found(head, missing)).simple_cors();
    }
}

fn readiness(engine: &Engine) -> Answer {
    engine.readiness().map_err(|error| Failure::new(error, 503))?;
    Ok(Reply::ok(TEXT, &b"ok\n"[..]))
}

/// The metrics as OpenMetrics, unless the client prefers Prometheus's text format.
fn metrics(engine: &Engine, head: &RequestHead<'_>) -> Answer {
    let page = engine.metrics_text().map_err(|error| Failure::new(error, 500))?;
    let wants_text = |name: &str| match name {
        "text/plain" | "text/*" => Some(true),
        "application/openmetrics-text" | "application/*" | "*/*" => Some(false),
        _ => None,
    };
    let accept = head.header("accept").unwrap_or_default();
    Ok(match first_choice(accept, wants_text) {
        Some(true) => Reply::ok(TEXT_CONTENT_TYPE, text_format(&page)),
        Some(false) | None => Reply::ok(CONTENT_TYPE, page),
    })
}

/// Why there is nothing at a path that no protocol has, or not with this method.
pub(crate) fn not_found(head: &RequestHead<'_>, missing: &NoRoute) -> Failure {
    let path = head.path();
    match missing {
        NoRoute::Path => {
            let message = format!(
                "there is nothing at {path}; models are at /v1/models/NAME:predict and POST /"
            );
            Failure::new(Error::invalid(message), 404)
        }
        NoRoute::Method(allowed) => {
            let message = format!("{} is not allowed for {path}", head.method);
            Failure::new(Error::invalid(message), 405).with_header(ALLOW, allowed.join(", "))
        }
    }
}
