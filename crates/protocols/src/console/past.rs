//! How the server was in the last fifteen minutes.

use serde_json::json;

use super::{no_model, status, text};
use tensorserve_core::engine::{Engine, Point};
use tensorserve_protocol::Head;
use tensorserve_tensor::error::{Error, Result};

/// The longest step that may be asked for, in seconds.
const LONGEST_STEP: usize = 60;

/// The answer to `GET /api/v1/history`.
///
/// # Errors
/// If there is no such model, or the step is none.
pub(super) fn history(engine: &Engine, head: &Head<'_>) -> Result<String> {
    if let Some(model) = head.parameter("model") {
        engine.model(&model).ok_or_else(|| no_model(&model))?;
        return Ok(points(engine.model_step(), &engine.past_of(&model)));
    }
    let step = head.parameter("step").map_or(Ok(1), |step| step.parse::<usize>());
    let step = step.ok().filter(|step| (1..=LONGEST_STEP).contains(step));
    let step = step.ok_or_else(|| {
        Error::invalid(format!("step is a number of seconds, from 1 to {LONGEST_STEP}"))
    })?;
    Ok(points(step as u64, &engine.past(step)))
}

fn points(step: u64, points: &[Point]) -> String {
    let points: Vec<_> = points.iter().map(status::point).collect();
    text(&json!({ "step_seconds": step, "points": points }))
}
