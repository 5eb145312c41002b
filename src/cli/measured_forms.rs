//! `tensorserve inspect --measure`: what other forms of models gain on this machine.

use super::bench::child::ServerChild;
use super::{forms, print_line};
use crate::config::environment::Environment;
use tensorserve_tensor::error::Result;

/// The settings with which a server looks for all forms, each of which it takes only where it pays.
const SETTINGS: [(&str, &str); 2] =
    [("TENSORSERVE_OPTIMIZE", "exact"), ("TENSORSERVE_ENGINE", "auto")];

/// Serves what is at `path` with `optimize = "exact"` and `engine = "auto"` for as long as it takes to find all forms, and
/// prints them.
///
/// # Errors
/// If the server does not become ready.
pub(super) fn run(path: &str) -> Result<()> {
    let variables = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let server = ServerChild::start(path, &variables)?;
    // This server listens on loopback and asks for no credentials.
    let environment = Environment::default();
    let models = forms::page(&format!("{}/api/v1/status", server.url), &environment)?;
    print_line("");
    print_line("measured on this machine, with optimize = \"exact\" and engine = \"auto\":");
    for model in models["models"].as_array().into_iter().flatten() {
        let name = model["name"].as_str().unwrap_or_default();
        forms::show(&server.url, name, None, &environment)?;
    }
    Ok(())
}
