//! What admins change.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::audit::cut;
use super::{Asker, Route, Shared, Target, json as answer, no_model, target, text};
use tensorserve_core::config::{BatchConfig, BatchMode, BatchParameters};
use tensorserve_core::engine::{Change, ModelState, REQUEST};
use tensorserve_protocol::{Head, JSON, Reply};
use tensorserve_tensor::error::{Code, Error, Result};

/// Names that are given here are no longer.
const LONGEST_NAME: usize = 255;

/// A load may take this long; it goes on after that, but nobody waits for it.
const LOAD_TIME: Duration = Duration::from_secs(600);

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Load {
    path: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Label {
    label: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    draining: bool,
}

/// What is left out stays.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Batching {
    batching: Option<String>,
    max_batch_size: Option<usize>,
    batch_timeout_micros: Option<u64>,
    max_enqueued_batches: Option<usize>,
    allowed_batch_sizes: Option<Vec<usize>>,
    pad_variable_length_inputs: Option<bool>,
    enable_large_batch_splitting: Option<bool>,
    max_execution_batch_size: Option<usize>,
}

/// What is asked for, read and checked.
enum Wish {
    Load(Option<String>),
    Unload,
    SetLabel(String, i64),
    RemoveLabel(String, i64),
    Batching(Box<Batching>, Value),
    Drain(bool),
}

impl Shared {
    /// Changes something, and writes down who did.
    ///
    /// # Errors
    /// What keeps it from being changed.
    pub(super) async fn change(
        &self,
        route: Route,
        head: &Head<'_>,
        body: &[u8],
        asker: &Asker,
    ) -> Result<Reply> {
        let target = target(head);
        let wish = wish(route, head, body, &target)?;
        let (what, details) = wish.in_words();
        let model = Some(target.model.as_str()).filter(|_| route != Route::Drain);
        let pending = self.audit.begin(asker, what, model, details);
        let by = asker.name.as_deref().map_or(REQUEST.to_owned(), cut);
        let outcome = self.fulfil(wish, &target.model, &by).await;
        pending.end(&outcome);
        outcome.map(|()| answer(text(&json!({ "ok": true }))))
    }

    async fn fulfil(&self, wish: Wish, model: &str, by: &str) -> Result<()> {
        let engine = &self.engine;
        match wish {
            Wish::Drain(draining) => {
                engine.set_draining(draining);
                Ok(())
            }
            Wish::Load(Some(path)) => {
                let source = engine.source_at(model, Path::new(&path))?;
                engine.load_for(source, Instant::now() + LOAD_TIME, by).await
            }
            Wish::Load(None) => {
                let change = Change::Online(Instant::now() + LOAD_TIME);
                engine.change(model, change, by).await
            }
            Wish::Unload => {
                // Its versions must not be held while they leave.
                let is_asked_for = self.model_of(model)?.is_asked_for;
                match is_asked_for {
                    true => engine.unload_for(model, by).await,
                    false => engine.change(model, Change::Offline, by).await,
                }
            }
            Wish::SetLabel(label, version) => {
                engine.change(model, Change::Label(label, Some(version)), by).await
            }
            Wish::RemoveLabel(label, version) => {
                if self.model_of(model)?.labels.get(&label) != Some(&version) {
                    let message = format!("version {version} of {model} has no label {label:?}");
                    return Err(Error::not_found(message));
                }
                engine.change(model, Change::Label(label, None), by).await
            }
            Wish::Batching(wish, _) => {
                let now = self.batching_of(model)?;
                let config = Box::new(BatchConfig::new(&wish.over(&now)?)?);
                engine.change(model, Change::Batching(config), by).await
            }
        }
    }
}

impl Shared {
    fn model_of(&self, name: &str) -> Result<ModelState> {
        self.engine.model(name).ok_or_else(|| no_model(name))
    }

    /// How requests of the model's newest version are joined.
    fn batching_of(&self, name: &str) -> Result<BatchConfig> {
        let state = self.model_of(name)?;
        let newest = state.versions.iter().find_map(|(_, handle)| handle.as_ref());
        Ok(newest.ok_or_else(|| not_ready(name))?.batching().clone())
    }
}

fn not_ready(model: &str) -> Error {
    let message = format!("no version of model {model} is available: its batching stays as it is");
    Error::new(Code::FailedPrecondition, message)
}

impl Wish {
    /// What it is, for the audit.
    fn in_words(&self) -> (&'static str, Value) {
        match self {
            Wish::Load(path) => ("load", json!({ "path": path.as_deref().map(cut) })),
            Wish::Unload => ("unload", json!({})),
            Wish::SetLabel(label, version) => {
                ("set_label", json!({ "label": label, "version": version }))
            }
            Wish::RemoveLabel(label, version) => {
                ("remove_label", json!({ "label": cut(label), "version": version }))
            }
            Wish::Batching(_, given) => ("batching", given.clone()),
            Wish::Drain(draining) => ("drain", json!({ "draining": draining })),
        }
    }
}

fn wish(route: Route, head: &Head<'_>, body: &[u8], target: &Target) -> Result<Wish> {
    if route == Route::RemoveLabel {
        return Ok(Wish::RemoveLabel(target.label.clone(), version(target)?));
    }
    check_form(head)?;
    match route {
        Route::Load => {
            let Load { path } = read(body, "{} or {\"path\": \"FOLDER\"}")?;
            check_name("a model's name", &target.model)?;
            Ok(Wish::Load(path))
        }
        Route::Unload => {
            let Nothing {} = read(body, "{}")?;
            Ok(Wish::Unload)
        }
        Route::SetLabel => {
            let Label { label } = read(body, "{\"label\": \"NAME\"}")?;
            check_name("a label", &label)?;
            Ok(Wish::SetLabel(label, version(target)?))
        }
        Route::Batching => {
            let form = "{\"max_batch_size\": 32, \"batch_timeout_micros\": 1000}";
            let batching: Batching = read(body, form)?;
            if batching.allowed_batch_sizes.as_ref().is_some_and(|sizes| sizes.len() > 100) {
                return Err(Error::invalid("allowed_batch_sizes has more than 100 sizes"));
            }
            Ok(Wish::Batching(Box::new(batching), read(body, form)?))
        }
        Route::Drain => {
            let Drain { draining } = read(body, "{\"draining\": true}")?;
            Ok(Wish::Drain(draining))
        }
        Route::Status
        | Route::Model
        | Route::History
        | Route::Stream
        | Route::Audit
        | Route::OpenApi
        | Route::RemoveLabel
        | Route::Otherwise => Err(Error::internal("this changes nothing")),
    }
}

/// Checks what a page of another site could not send without asking first.
fn check_form(head: &Head<'_>) -> Result<()> {
    let kind = head.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case(JSON) {
        return Err(Error::invalid("the body must be JSON, with Content-Type: application/json"));
    }
    Ok(())
}

fn read<T: DeserializeOwned>(body: &[u8], form: &str) -> Result<T> {
    // First as an object: a list could stand for one otherwise.
    let members: serde_json::Result<Map<String, Value>> = serde_json::from_slice(body);
    let read = members.and_then(|members| serde_json::from_value(members.into()));
    read.map_err(|error| {
        Error::invalid(format!("the body is not as it should be, such as {form}: {error}"))
    })
}

fn version(target: &Target) -> Result<i64> {
    let number = target.version.parse().ok().filter(|version| *version >= 0);
    number.ok_or_else(|| Error::invalid(format!("{:?} is no number of a version", target.version)))
}

/// Checks that clients can say the name in a path.
fn check_name(what: &str, name: &str) -> Result<()> {
    let is_good = |c: char| !c.is_control() && c != '/' && c != ':';
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_good) {
        let message =
            format!("{what} has 1 to {LONGEST_NAME} bytes, without / and : and control characters");
        return Err(Error::invalid(message));
    }
    Ok(())
}

impl Batching {
    /// These parameters, and where there is none, those of `now`.
    fn over(self, now: &BatchConfig) -> Result<BatchParameters> {
        let mode = match self.batching.as_deref() {
            None => now.mode,
            Some("auto") => BatchMode::Auto,
            Some("on" | "true") => BatchMode::On,
            Some("off" | "false") => BatchMode::Off,
            Some(other) => {
                let message = format!("batching: {other:?} is not auto, on or off");
                return Err(Error::invalid(message));
            }
        };
        let own = BatchParameters {
            mode: Some(mode),
            max_batch_size: self.max_batch_size,
            batch_timeout_micros: self.batch_timeout_micros,
            max_enqueued_batches: self.max_enqueued_batches,
            allowed_batch_sizes: self.allowed_batch_sizes,
            pad_variable_length_inputs: self.pad_variable_length_inputs,
            enable_large_batch_splitting: self.enable_large_batch_splitting,
            max_execution_batch_size: self.max_execution_batch_size,
        };
        let (splits, size) = (own.enable_large_batch_splitting, own.max_execution_batch_size);
        let mut merged = own.or(&now.parameters());
        if size.is_none() {
            let splits = splits.unwrap_or(now.enable_large_batch_splitting);
            let most = merged.max_batch_size.unwrap_or(now.max_batch_size);
            // Without splitting it means nothing, and would only be in the way.
            merged.max_execution_batch_size =
                splits.then(|| now.max_execution_batch_size.min(most));
        }
        Ok(merged)
    }
}
