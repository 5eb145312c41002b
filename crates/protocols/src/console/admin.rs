//! Changes by admins: models, labels, batching parameters and readiness.

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::audit::cut;
use super::{ConsoleState, LARGEST_BODY, no_model, reply, schema_of, text};
use tensorserve_auth::Permission;
use tensorserve_core::config::{BatchConfig, BatchMode, BatchParameters, model_path};
use tensorserve_core::engine::{ChangeRequest, ModelState, REQUEST};
use tensorserve_protocol::{
    Answer, JSON, Methods, PathParams, RequestHead, Route, RouteGroup, RoutedRequest, media_type,
};
use tensorserve_tensor::error::{Code, Error, Result};

/// The most bytes of a name in a request.
const LONGEST_NAME: usize = 255;

/// The longest time that a client waits for a load, which continues after that.
const LOAD_TIME: Duration = Duration::from_secs(600);

/// Adds the routes.
pub(super) fn add_routes(group: &mut RouteGroup<'_, ConsoleState>) {
    let post = Methods::Post;
    add_change::<LoadBody>(group, post, "/api/v1/models/{model}/load", read_load)
        .summary("Load a model, or put one back into service");
    add_change::<EmptyBody>(group, post, "/api/v1/models/{model}/unload", read_unload)
        .summary("Take a model out of service");
    let labels = "/api/v1/models/{model}/versions/{version}/labels";
    add_change::<LabelBody>(group, post, labels, read_label).summary("Assign a label to a version");
    let label = "/api/v1/models/{model}/versions/{version}/labels/{label}";
    add_change::<EmptyBody>(group, Methods::Delete, label, read_label_removal)
        .summary("Remove a label from a version");
    let release = "/api/v1/models/{model}/versions/{version}/release";
    add_change::<EmptyBody>(group, post, release, read_release)
        .summary("Let a version that is held serve");
    let drop = "/api/v1/models/{model}/versions/{version}/drop";
    add_change::<EmptyBody>(group, post, drop, read_drop)
        .summary("Unload a version that is held or on trial");
    add_change::<BatchingBody>(group, post, "/api/v1/models/{model}/batching", read_batching)
        .summary("Change the batching parameters of a model");
    add_change::<DrainBody>(group, post, "/api/v1/drain", read_drain)
        .summary("Report that the server is not ready, or stop doing so");
}

/// Decodes a request.
type ReadAction = fn(&PathParams<'_>, &[u8]) -> Result<AdminAction>;

/// Adds a route that changes something. The type of the payload describes it.
fn add_change<'g, B: JsonSchema>(
    group: &'g mut RouteGroup<'_, ConsoleState>,
    methods: Methods,
    path: &'static str,
    read: ReadAction,
) -> &'g mut Route {
    let route = group.route(methods, path, Permission::ConsoleAdmin, move |state, request| {
        Box::pin(state.change(read, request))
    });
    if methods != Methods::Delete {
        route.request(JSON, schema_of::<B>());
    }
    route.response(JSON, schema_of::<ChangeDone>()).body_limit(LARGEST_BODY)
}

/// The change was made.
#[derive(Serialize, JsonSchema)]
struct ChangeDone {
    ok: bool,
}

/// The model to load. Without a path, the model must be configured.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct LoadBody {
    /// The directory of the model.
    path: Option<String>,
}

/// Nothing.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EmptyBody {}

/// A label.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LabelBody {
    label: String,
}

/// Whether the server reports that it is not ready.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    draining: bool,
}

/// Batching parameters. Those that are left out do not change.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct BatchingBody {
    /// `auto`, `on` or `off`.
    batching: Option<String>,
    /// `auto` or `independent`.
    rows: Option<String>,
    max_batch_size: Option<usize>,
    batch_timeout_micros: Option<u64>,
    max_enqueued_batches: Option<usize>,
    allowed_batch_sizes: Option<Vec<usize>>,
    pad_variable_length_inputs: Option<bool>,
    enable_large_batch_splitting: Option<bool>,
    max_execution_batch_size: Option<usize>,
}

/// A decoded and checked request.
enum AdminAction {
    Load(Option<String>),
    Unload,
    SetLabel(String, i64),
    RemoveLabel(String, i64),
    Release(i64),
    Drop(i64),
    SetBatching(Box<BatchingBody>, Value),
    Drain(bool),
}

fn read_load(params: &PathParams<'_>, body: &[u8]) -> Result<AdminAction> {
    let LoadBody { path } = read(body, "{} or {\"path\": \"DIRECTORY\"}")?;
    check_name("a model's name", &params.decoded("model"))?;
    Ok(AdminAction::Load(path))
}

fn read_unload(_params: &PathParams<'_>, body: &[u8]) -> Result<AdminAction> {
    let EmptyBody {} = read(body, "{}")?;
    Ok(AdminAction::Unload)
}

fn read_label(params: &PathParams<'_>, body: &[u8]) -> Result<AdminAction> {
    let LabelBody { label } = read(body, "{\"label\": \"NAME\"}")?;
    check_name("a label", &label)?;
    Ok(AdminAction::SetLabel(label, version(params)?))
}

fn read_label_removal(params: &PathParams<'_>, _body: &[u8]) -> Result<AdminAction> {
    Ok(AdminAction::RemoveLabel(params.decoded("label"), version(params)?))
}

fn read_release(params: &PathParams<'_>, body: &[u8]) -> Result<AdminAction> {
    let EmptyBody {} = read(body, "{}")?;
    Ok(AdminAction::Release(version(params)?))
}

fn read_drop(params: &PathParams<'_>, body: &[u8]) -> Result<AdminAction> {
    let EmptyBody {} = read(body, "{}")?;
    Ok(AdminAction::Drop(version(params)?))
}

fn read_batching(_params: &PathParams<'_>, body: &[u8]) -> Result<AdminAction> {
    let form = "{\"max_batch_size\": 32, \"batch_timeout_micros\": 1000}";
    let batching: BatchingBody = read(body, form)?;
    if batching.allowed_batch_sizes.as_ref().is_some_and(|sizes| sizes.len() > 100) {
        return Err(Error::invalid("allowed_batch_sizes must not have more than 100 sizes"));
    }
    Ok(AdminAction::SetBatching(Box::new(batching), read(body, form)?))
}

fn read_drain(_params: &PathParams<'_>, body: &[u8]) -> Result<AdminAction> {
    let DrainBody { draining } = read(body, "{\"draining\": true}")?;
    Ok(AdminAction::Drain(draining))
}

impl ConsoleState {
    /// Makes a change and records it in the audit log.
    async fn change(&self, read: ReadAction, mut request: RoutedRequest<'_>) -> Answer {
        let body = request.take_bytes();
        check_form(&request.head)?;
        let action = read(&request.params, &body)?;
        let (what, details) = action.described();
        let model = request.params.decoded("model");
        let about = Some(model.as_str()).filter(|model| !model.is_empty());
        let client = self.client(&request);
        let pending = self.audit.begin(&client, what, about, details);
        let by = client.name.as_deref().map_or(REQUEST.to_owned(), cut);
        let outcome = self.carry_out(action, &model, &by).await;
        pending.end(&outcome);
        reply(outcome.map(|()| text(&ChangeDone { ok: true })))
    }

    async fn carry_out(&self, action: AdminAction, model: &str, by: &str) -> Result<()> {
        let engine = self.engine();
        match action {
            AdminAction::Drain(draining) => {
                engine.set_draining(draining);
                Ok(())
            }
            AdminAction::Load(Some(path)) => {
                let source = engine.source_at(model, &model_path(path))?;
                engine.load_for(source, Instant::now() + LOAD_TIME, by).await
            }
            AdminAction::Load(None) => {
                let change = ChangeRequest::ReturnToService(Instant::now() + LOAD_TIME);
                engine.change(model, change, by).await
            }
            AdminAction::Unload => {
                // Drops the handles of its versions, which would delay the unload.
                let is_requested = self.model_of(model)?.is_requested;
                match is_requested {
                    true => engine.unload_for(model, by).await,
                    false => engine.change(model, ChangeRequest::TakeOutOfService, by).await,
                }
            }
            AdminAction::SetLabel(label, version) => {
                engine.change(model, ChangeRequest::SetLabel(label, Some(version)), by).await
            }
            AdminAction::RemoveLabel(label, version) => {
                if self.model_of(model)?.labels.get(&label) != Some(&version) {
                    let message = format!("version {version} of {model} has no label {label:?}");
                    return Err(Error::not_found(message));
                }
                engine.change(model, ChangeRequest::SetLabel(label, None), by).await
            }
            AdminAction::Release(version) => {
                engine.change(model, ChangeRequest::Release(version), by).await
            }
            AdminAction::Drop(version) => {
                engine.change(model, ChangeRequest::Drop(version), by).await
            }
            AdminAction::SetBatching(parameters, _) => {
                let now = self.batching_of(model)?;
                let config = Box::new(BatchConfig::new(&parameters.over(&now)?)?);
                engine.change(model, ChangeRequest::SetBatching(config), by).await
            }
        }
    }

    fn model_of(&self, name: &str) -> Result<ModelState> {
        self.engine().repository().model(name).ok_or_else(|| no_model(name))
    }

    /// The batching parameters of the model's newest version.
    fn batching_of(&self, name: &str) -> Result<BatchConfig> {
        let state = self.model_of(name)?;
        let newest = state.versions.iter().find_map(|(_, handle)| handle.as_ref());
        Ok(newest.ok_or_else(|| not_ready(name))?.batching().clone())
    }
}

fn not_ready(model: &str) -> Error {
    let message = format!(
        "no version of model {model} is available: its batching parameters cannot be changed"
    );
    Error::new(Code::FailedPrecondition, message)
}

impl AdminAction {
    /// The name and details of the change, for the audit log.
    fn described(&self) -> (&'static str, Value) {
        match self {
            AdminAction::Load(path) => ("load", json!({ "path": path.as_deref().map(cut) })),
            AdminAction::Unload => ("unload", json!({})),
            AdminAction::SetLabel(label, version) => {
                ("set_label", json!({ "label": label, "version": version }))
            }
            AdminAction::RemoveLabel(label, version) => {
                ("remove_label", json!({ "label": cut(label), "version": version }))
            }
            AdminAction::Release(version) => ("release", json!({ "version": version })),
            AdminAction::Drop(version) => ("drop", json!({ "version": version })),
            AdminAction::SetBatching(_, given) => ("batching", given.clone()),
            AdminAction::Drain(draining) => ("drain", json!({ "draining": draining })),
        }
    }
}

/// Checks the media type, which a page of another origin cannot send without a preflight request.
fn check_form(head: &RequestHead<'_>) -> Result<()> {
    let kind = media_type(head.header("content-type").unwrap_or_default());
    if head.method != "DELETE" && kind != JSON {
        return Err(Error::invalid("the body must be JSON, with Content-Type: application/json"));
    }
    Ok(())
}

fn read<T: DeserializeOwned>(body: &[u8], form: &str) -> Result<T> {
    // First as an object, because serde would also accept a list.
    let members: serde_json::Result<Map<String, Value>> = serde_json::from_slice(body);
    let read = members.and_then(|members| serde_json::from_value(members.into()));
    read.map_err(|error| Error::invalid(format!("the body is not of the form {form}: {error}")))
}

fn version(params: &PathParams<'_>) -> Result<i64> {
    let text = params.decoded("version");
    let number = text.parse().ok().filter(|version| *version >= 0);
    number.ok_or_else(|| Error::invalid(format!("{text:?} is not a version number")))
}

/// Checks that a name is valid in a path.
fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains(is_forbidden_in_name) {
        let message = format!(
            "{what} must have 1 to {LONGEST_NAME} bytes, without / and : and control characters"
        );
        return Err(Error::invalid(message));
    }
    Ok(())
}

fn is_forbidden_in_name(character: char) -> bool {
    character.is_control() || character == '/' || character == ':'
}

impl BatchingBody {
    /// The parameters of this body, with those of `now` for the ones that are left out.
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
        let independent_rows = match self.rows.as_deref() {
            None => now.independent_rows,
            Some("auto") => false,
            Some("independent") => true,
            Some(other) => {
                let message = format!("rows: {other:?} is not auto or independent");
                return Err(Error::invalid(message));
            }
        };
        let own = BatchParameters {
            mode: Some(mode),
            independent_rows: Some(independent_rows),
            max_batch_size: self.max_batch_size,
            batch_timeout: self.batch_timeout_micros.map(Duration::from_micros),
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
            // It applies only with splitting.
            merged.max_execution_batch_size =
                splits.then(|| now.max_execution_batch_size.min(most));
        }
        Ok(merged)
    }
}
