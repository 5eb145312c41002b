//! The forms in which models run, as a server has found them: with constants for variables, and in another engine.

use serde_json::Value;

use super::table::columns;
use super::{http_client, print_line, print_text};
use crate::config::environment::Environment;
use tensorserve_tensor::error::{Error, Result};

/// Prints the forms of a model's versions, or of one, on a server.
///
/// # Errors
/// If the server does not tell.
pub(super) fn show(
    server: &str,
    model: &str,
    version: Option<&str>,
    environment: &Environment,
) -> Result<()> {
    let model = page(&format!("{server}/api/v1/models/{model}"), environment)?;
    let name = model["name"].as_str().unwrap_or_default();
    for found in model["versions"].as_array().into_iter().flatten() {
        let number = found["version"].to_string();
        if version.is_some_and(|version| version != number) {
            continue;
        }
        print_line(&format!("  {name} version {number}"));
        let row = |what: &str, form: &Value| vec![format!("    {what}"), cpu(form), text(form)];
        let mut rows = vec![row("optimization", &found["optimization"])];
        if !found["other_engine"].is_null() {
            rows.push(row("other engine", &found["other_engine"]));
        }
        print_text(&columns(&rows));
    }
    Ok(())
}

/// The JSON at a URL of a server's console.
///
/// # Errors
/// If the server does not respond with it.
pub(super) fn page(url: &str, environment: &Environment) -> Result<Value> {
    let (status, body) = http_client::get(url, environment)?;
    match serde_json::from_str(&body) {
        Ok(page) if status == 200 => Ok(page),
        _ => Err(Error::unavailable(format!("{url}: the server responded with {status}"))),
    }
}

/// The CPU time of a form that took over, as a share of that of the form before.
fn cpu(form: &Value) -> String {
    form["cpu"]
        .as_f64()
        .map_or("unchanged".to_owned(), |share| format!("{share:.2} of the CPU time"))
}

/// What is different, or why nothing is.
fn text(form: &Value) -> String {
    let text = form["text"].as_str().unwrap_or_else(|| form["state"].as_str().unwrap_or_default());
    match form["compared"].as_u64() {
        Some(compared) => format!("{text}; {compared} results were the same"),
        None => text.to_owned(),
    }
}
