//! The model repository extension: the models with their states, and their loads and unloads on request.
//!
//! A model that a source of the server has can be unloaded and loaded again. Others, and files in a
//! request, are refused: what is served is the operator's decision.
//!
//! Source: Triton's `extension_model_repository.md`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::describe::ready_version;
use super::request::NamedModel;
use tensorserve_core::engine::{ChangeRequest, Engine, Unresolved, VersionState, VersionStatus};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Code, Error, Result};

/// The longest time that a client waits for a load, which continues after that.
const LOAD_TIME: Duration = Duration::from_secs(600);

/// How many times the bytes of a body the names of its members may take.
const MEMBERS_GROWTH: usize = 16;

/// A version in the index.
pub(super) struct IndexEntry {
    pub(super) name: String,
    pub(super) version: String,
    /// READY, UNAVAILABLE, LOADING or UNLOADING.
    pub(super) state: &'static str,
    /// Why it is not ready; may be empty.
    pub(super) reason: String,
}

/// All versions of all models, or those that are ready.
pub(super) fn index(engine: &Engine, is_ready_only: bool) -> Vec<IndexEntry> {
    let mut entries = Vec::new();
    for name in engine.repository().all_models() {
        for status in engine.repository().status(&name).into_iter().rev() {
            let (state, reason) = state_of(&status);
            if is_ready_only && state != "READY" {
                continue;
            }
            let version = status.version.to_string();
            entries.push(IndexEntry { name: name.clone(), version, state, reason });
        }
    }
    entries
}

fn state_of(status: &VersionStatus) -> (&'static str, String) {
    match &status.state {
        VersionState::Found(why) => ("LOADING", why.clone()),
        VersionState::Loading | VersionState::Warming => ("LOADING", String::new()),
        VersionState::Trial => ("LOADING", "on trial".to_owned()),
        VersionState::Held(why) => ("UNAVAILABLE", format!("held: {why}")),
        VersionState::Ready => {
            let refusal = status.refusal();
            ("READY", refusal.map_or(String::new(), |error| error.message().to_owned()))
        }
        VersionState::Draining => ("UNLOADING", String::new()),
        VersionState::Unloaded => ("UNAVAILABLE", "unloaded".to_owned()),
        VersionState::Failed(error) => ("UNAVAILABLE", error.message().to_owned()),
    }
}

/// The body of a request for the index.
#[derive(Default, Deserialize)]
#[serde(default)]
struct IndexBody {
    ready: Option<bool>,
}

/// Reads the body of a request for the index: whether only what is ready is asked for.
pub(super) fn read_index(body: &[u8]) -> Result<bool> {
    let IndexBody { ready } = read(body, "{} or {\"ready\": true}")?;
    Ok(ready.unwrap_or(false))
}

/// The body of a load or an unload.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ChangeBody {
    parameters: Option<BTreeMap<String, IgnoredAny>>,
}

/// Reads the body of a load.
///
/// # Errors
/// If it brings a configuration or files of its own.
pub(super) fn check_load(body: &[u8]) -> Result<()> {
    let ChangeBody { parameters } = read(body, "{}")?;
    let names = parameters.iter().flat_map(|parameters| parameters.keys());
    check_parameters(names.map(String::as_str))
}

/// Refuses the parameters of a load that bring a configuration or files.
pub(super) fn check_parameters<'n>(mut names: impl Iterator<Item = &'n str>) -> Result<()> {
    let Some(name) = names.find(|name| *name == "config" || name.starts_with("file:")) else {
        return Ok(());
    };
    let message = format!(
        "failed to load: the parameter {name:?} is not supported: models are loaded as the server's configuration and \
         their files say"
    );
    Err(Error::new(Code::Unimplemented, message))
}

/// Reads the body of an unload.
pub(super) fn check_unload(body: &[u8]) -> Result<()> {
    let ChangeBody { .. } = read(body, "{}")?;
    Ok(())
}

fn read<T: for<'d> Deserialize<'d> + Default>(body: &[u8], form: &str) -> Result<T> {
    if body.is_empty() {
        return Ok(T::default());
    }
    let wrong =
        |why: &dyn Display| Error::invalid(format!("the body is not of the form {form}: {why}"));
    // serde would also accept a list.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(wrong(&"it is not an object"));
    }
    budget::reserve(body.len().saturating_mul(MEMBERS_GROWTH))?;
    serde_json::from_slice(body).map_err(|error| wrong(&error))
}

/// Loads a model that was unloaded. Nothing changes for one that is served.
///
/// # Errors
/// For a model that the server does not know, and what its load reports.
pub(super) async fn load(engine: &Engine, name: &str, by: &str) -> Result<()> {
    let loaded = load_known(engine, name, by).await;
    // Clients look for the beginning of this message.
    loaded.map_err(|error| error.context(format!("failed to load '{name}'")))
}

async fn load_known(engine: &Engine, name: &str, by: &str) -> Result<()> {
    let Some(model) = engine.repository().model(name) else {
        return Err(unknown(name));
    };
    // Its handles would delay the unload of its versions.
    let is_out_of_service = model.is_out_of_service;
    drop(model);
    if is_out_of_service {
        let change = ChangeRequest::ReturnToService(Instant::now() + LOAD_TIME);
        return engine.change(name, change, by).await;
    }
    ready_version(engine, &NamedModel::latest(name)).map(drop)
}

/// Unloads a model, and keeps it unloaded until it is loaded again. Nothing changes for one that is
/// unloaded.
///
/// # Errors
/// For a model that the server does not know.
pub(super) async fn unload(engine: &Engine, name: &str, by: &str) -> Result<()> {
    let Some(model) = engine.repository().model(name) else {
        return Err(unknown(name));
    };
    let (is_requested, is_out_of_service) = (model.is_requested, model.is_out_of_service);
    drop(model);
    match (is_requested, is_out_of_service) {
        (true, _) => engine.unload_for(name, by).await,
        (false, true) => Ok(()),
        (false, false) => engine.change(name, ChangeRequest::TakeOutOfService, by).await,
    }
}

fn unknown(name: &str) -> Error {
    NamedModel::latest(name).not_served(Unresolved::Model)
}
