//! The metrics of the last fifteen minutes.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::{ConsoleState, add_read, no_model, reply, status, text};
use tensorserve_auth::Permission;
use tensorserve_core::engine::{Engine, HistoryPoint};
use tensorserve_protocol::{RequestHead, RouteGroup};
use tensorserve_tensor::error::{Error, Result};

/// The longest step that a client can request, in seconds.
const LONGEST_STEP: usize = 60;

/// Adds the route.
pub(super) fn add_routes(group: &mut RouteGroup<'_, ConsoleState>) {
    let (path, summary) = (
        "/api/v1/history",
        "Return the metrics of the last fifteen minutes, of the server or of a model",
    );
    add_read::<HistoryView>(group, path, Permission::Read, summary, |state, request| {
        reply(history(state.engine(), &request.head))
    })
    .query("model", "The model; the default is the whole server", json!({ "type": "string" }))
    .query(
        "step",
        "The seconds that a point covers; only for the whole server",
        json!({ "type": "integer", "minimum": 1, "maximum": LONGEST_STEP, "default": 1 }),
    );
}

/// The last fifteen minutes, the oldest point first.
#[derive(Serialize, JsonSchema)]
struct HistoryView {
    /// The seconds that a point covers.
    step_seconds: u64,
    points: Vec<status::PointView>,
}

fn history(engine: &Engine, head: &RequestHead<'_>) -> Result<String> {
    if let Some(model) = head.query_value("model") {
        engine.repository().model(&model).ok_or_else(|| no_model(&model))?;
        return Ok(points(engine.metrics().model_step(), &engine.metrics().past_of(&model)));
    }
    let step = head.query_value("step").map_or(Ok(1), |step| step.parse::<usize>());
    let step = step.ok().filter(|step| (1..=LONGEST_STEP).contains(step));
    let step = step.ok_or_else(|| {
        Error::invalid(format!("step must be a whole number of seconds, from 1 to {LONGEST_STEP}"))
    })?;
    Ok(points(step as u64, &engine.metrics().past(step)))
}

fn points(step_seconds: u64, points: &[HistoryPoint]) -> String {
    text(&HistoryView { step_seconds, points: points.iter().map(status::PointView::new).collect() })
}
