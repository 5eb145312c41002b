//! `/models`: the models of a multi-model endpoint are loaded, listed, run and unloaded by request.
//!
//! Sources: `python_service.py` of `aws/deep-learning-containers`, and for paging
//! "Contract for custom containers for multi-model endpoints" of AWS's developer guide.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::invocation::Invocation;
use super::multi_model::{ModelCandidate, MultiModelConfig};
use super::{Compatibility, SagemakerApi, attributes, not_found};
use crate::tfs;
use tensorserve_auth::Permission;
use tensorserve_codec::json::write;
use tensorserve_core::config::SourceConfig;
use tensorserve_core::engine::{Engine, ModelSpec, VersionSelector};
use tensorserve_protocol::{
    Answer, Failure, JSON, Methods, NoRoute, Reply, RequestHead, RouteGroup, RoutedRequest,
};
use tensorserve_tensor::error::{Code, Error, Result};

/// The models of an endpoint, with their last use and the memory for more. Cheap to clone.
#[derive(Clone)]
pub(super) struct RequestedModels(Arc<RequestedModelsInner>);

struct RequestedModelsInner {
    engine: Engine,
    config: MultiModelConfig,
    used: Mutex<HashMap<String, Instant>>,
    /// Memory that is reserved for models that are being loaded, in bytes.
    reserved: AtomicU64,
    /// Held while a model is loaded on first use.
    loading: tokio::sync::Mutex<()>,
}

/// Memory that a load needs besides the model, in bytes.
const SPARE: u64 = 32 << 20;

/// The default number of models per page.
const PAGE: usize = 100;

/// Memory that is reserved for a model until this is dropped, in bytes.
struct MemoryReservation<'m>(&'m RequestedModelsInner, u64);

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        self.0.reserved.fetch_sub(self.1, Relaxed);
    }
}

impl RequestedModels {
    pub(super) fn new(engine: Engine, config: MultiModelConfig) -> Self {
        RequestedModels(Arc::new(RequestedModelsInner {
            engine,
            config,
            used: Mutex::default(),
            reserved: AtomicU64::new(0),
            loading: tokio::sync::Mutex::default(),
        }))
    }

    /// Records the use of a model, after loading it if `load_on_use` is set.
    pub(super) async fn prepare(&self, name: &str) -> Result<()> {
        if self.is_loaded(name) {
            self.used().insert(name.to_owned(), Instant::now());
            return Ok(());
        }
        let not_loaded = || Error::not_found(format!("Model {name} is not loaded yet."));
        if !self.0.config.load_on_use || !attributes::is_plain(name) {
            return Err(not_loaded());
        }
        let _loading = self.0.loading.lock().await;
        if self.is_loaded(name) {
            return Ok(());
        }
        let place = self.0.config.place_of(name).ok_or_else(not_loaded)?;
        match self.load(name, &place).await {
            // Another request is loading it.
            Err(error) if error.code() == Code::AlreadyExists => {
                Err(Error::unavailable(format!("Model {name} is being loaded.")))
            }
            outcome => outcome,
        }
    }

    fn is_loaded(&self, name: &str) -> bool {
        self.0
            .engine
            .repository()
            .resolve(&ModelSpec { name, choice: VersionSelector::Latest })
            .is_ok()
    }

    fn used(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the model at `url`.
    async fn load(&self, name: &str, url: &str) -> Result<()> {
        let deadline = Instant::now() + self.0.config.load_timeout;
        let fetched = match self.0.config.store_url(url)? {
            Some(location) => Some(self.0.engine.fetch_whole(&location, deadline).await?),
            None => None,
        };
        let (models, of) = (self.clone(), (name.to_owned(), url.to_owned()));
        // Unpacking archives and searching directories is blocking work.
        let looking = move || match fetched {
            Some(folder) => models.0.config.candidate_in(&of.0, &folder, None),
            None => models.0.config.candidate(&of.0, &of.1),
        };
        let looked = tokio::task::spawn_blocking(looking).await;
        let ModelCandidate { source, bytes, archive } = looked.map_err(|e| {
            Error::internal("the background thread that searches models failed").with_source(e)
        })??;
        let _reservation = self.make_room(name, bytes).await?;
        let outcome = self.load_evicting(name, &source, deadline).await;
        let outcome = outcome.map_err(|error| match &archive {
            Some(archive) => archive.describe(error),
            None => error,
        });
        if outcome.is_ok() {
            self.used().insert(name.to_owned(), Instant::now());
        }
        outcome
    }

    /// Loads a model, and evicts others while it does not fit into the `memory_limit` of all models,
    /// which the engine checks.
    async fn load_evicting(
        &self,
        name: &str,
        source: &SourceConfig,
        deadline: Instant,
    ) -> Result<()> {
        loop {
            let outcome = self.0.engine.load_model(source.clone(), deadline).await;
            match outcome {
                Err(error) if error.code() == Code::ResourceExhausted && self.0.config.evict => {
                    let victim = self.least_used().ok_or(error)?;
                    self.evict(&victim, name).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Reserves memory for a model whose files have `bytes` bytes, and evicts others if necessary.
    async fn make_room(&self, name: &str, bytes: u64) -> Result<MemoryReservation<'_>> {
        let RequestedModelsInner { engine, config, reserved, .. } = &*self.0;
        let need = bytes.saturating_add(bytes / 4).saturating_add(SPARE);
        loop {
            let room = engine.room(config.memory_limit);
            let free = room.saturating_sub(reserved.load(Relaxed));
            if need <= free {
                reserved.fetch_add(need, Relaxed);
                return Ok(MemoryReservation(&self.0, need));
            }
            let victim = if config.evict { self.least_used() } else { None };
            let Some(victim) = victim else {
                let (need, free) = (need >> 20, free >> 20);
                let message = format!(
                    "Memory exhausted: not enough memory to load the model {name}: it needs about \
                     {need} MiB, and {free} MiB are free."
                );
                return Err(Error::new(Code::ResourceExhausted, message));
            };
            self.evict(&victim, name).await;
        }
    }

    async fn evict(&self, victim: &str, name: &str) {
        log::info!("model {victim} is unloaded to make room for {name}");
        // Another request may have unloaded it.
        let _ = self.unload(victim).await;
    }

    async fn unload(&self, name: &str) -> Result<()> {
        let outcome = self.0.engine.unload_model(name).await;
        self.used().remove(name);
        outcome
    }

    /// The least recently used model.
    fn least_used(&self) -> Option<String> {
        let used = self.used();
        let names = self.0.engine.repository().loaded_models().into_iter().map(|model| model.name);
        names.min_by_key(|name| used.get(name).copied())
    }
}

/// Adds the routes of a multi-model endpoint.
pub(super) fn add_routes(group: &mut RouteGroup<'_, SagemakerApi>) {
    for path in ["/models", "/models/"] {
        let list = group.immediate(Methods::GetOnly, path, Permission::Read, |api, request| {
            list(api.requested()?, &request.head, api.config().compatibility)
        });
        list.summary("List the models that were loaded by request");
        let load = group.route(Methods::Post, path, Permission::Admin, |api, request| {
            Box::pin(api.load_model(request))
        });
        load.summary("Load a model");
    }
    for path in ["/models/{model}", "/models/{model}/"] {
        let show = group.immediate(Methods::GetOnly, path, Permission::Read, |api, request| {
            show(api.requested()?, &request.params.decoded("model"))
        });
        show.summary("Show the status of a model that was loaded by request");
    }
    for path in ["/models/{model}/invoke", "/models/{model}", "/models/{model}/invoke/"] {
        let invoke = group.route(Methods::Post, path, Permission::Infer, |api, request| {
            Box::pin(api.invoke_model(request))
        });
        invoke.summary("Run a model");
        let unload = group.route(Methods::Delete, path, Permission::Admin, |api, request| {
            Box::pin(api.unload_model(request))
        });
        unload.summary("Unload a model");
    }
    group.scope("/models", |api, head, missing| match missing {
        _ if api.models().is_none() => no_multi_model(),
        NoRoute::Path | NoRoute::Method(_) => not_found(head, missing),
    });
}

/// The payload of `POST /models`.
#[derive(serde::Deserialize)]
struct LoadRequest {
    model_name: String,
    url: String,
}

impl SagemakerApi {
    /// The models, if this is a multi-model endpoint.
    fn requested(&self) -> Result<&RequestedModels, Failure> {
        self.models().ok_or_else(no_multi_model)
    }

    async fn load_model(&self, mut request: RoutedRequest<'_>) -> Answer {
        let body = request.take_bytes();
        load(self.requested()?, &body).await
    }

    async fn unload_model(&self, request: RoutedRequest<'_>) -> Answer {
        unload(self.requested()?, &request.params.decoded("model")).await
    }

    async fn invoke_model(&self, mut request: RoutedRequest<'_>) -> Answer {
        self.requested()?;
        let body = request.take_bytes();
        let name = request.params.decoded("model");
        let of_container = Invocation::of_container(&request.head);
        let invocation = Invocation { model: Some(&name), ..of_container };
        self.invoke(&invocation, body, request.start).await
    }
}

fn no_multi_model() -> Failure {
    let message = "Not Found: this is not a multi-model endpoint (SAGEMAKER_MULTI_MODEL)";
    Failure::new(Error::not_found(message), 404)
}

async fn load(models: &RequestedModels, body: &[u8]) -> Answer {
    let LoadRequest { model_name: name, url } = match serde_json::from_slice(body) {
        Ok(load) => load,
        Err(error) => {
            let message =
                format!("{error}; send {{\"model_name\": \"NAME\", \"url\": \"DIRECTORY\"}}");
            return Err(Error::invalid(message).into());
        }
    };
    if !attributes::is_plain(&name) {
        let message = format!("invalid model_name: '{}'", name.escape_debug());
        return Err(Error::invalid(message).into());
    }
    let error = match models.load(&name, &url).await {
        Ok(()) => {
            let (rest, grpc) = models.0.config.ports;
            return Ok(success(format_args!(
                "Successfully loaded model {name}, listening on rest port {rest} and grpc port \
                 {grpc}."
            )));
        }
        Err(error) => error,
    };
    let seconds = models.0.config.load_timeout.as_secs();
    #[allow(clippy::wildcard_enum_match_arm)] // The other codes have no special message.
    let (status, message) = match error.code() {
        Code::AlreadyExists => (409, format!("Model {name} is already loaded.")),
        Code::NotFound => {
            (404, format!("Could not find valid base path {url} for servable {name}"))
        }
        Code::DeadlineExceeded => (408, format!("Timed out after {seconds} seconds")),
        Code::ResourceExhausted => (507, error.message().to_owned()),
        code => (code.http(), format!("Model {name} cannot be loaded: {error}")),
    };
    log::warn!("model {name} cannot be loaded from {url:?}: {error}");
    Err(Failure::new(Error::new(error.code(), message).with_source(error), status))
}

async fn unload(models: &RequestedModels, name: &str) -> Answer {
    match models.unload(name).await {
        Ok(()) => Ok(success(format_args!("Successfully unloaded model {name}."))),
        // The container's message has no period here.
        Err(error) if error.code() == Code::NotFound => {
            Err(Error::not_found(format!("Model {name} is not loaded yet")).into())
        }
        Err(error) => Err(error.into()),
    }
}

fn success(text: fmt::Arguments<'_>) -> Reply {
    let mut body = b"{\"success\": ".to_vec();
    write::string(text.to_string().as_bytes(), &mut body);
    body.push(b'}');
    Reply::ok(JSON, body)
}

fn show(models: &RequestedModels, name: &str) -> Answer {
    if !models.is_loaded(name) {
        let message = format!("Model {name} is not loaded yet.");
        return Err(Error::not_found(message).into());
    }
    let mut body = b"{\"model\": ".to_vec();
    body.extend_from_slice(&tfs::status(&models.0.engine, name).body);
    body.push(b'}');
    Ok(Reply::ok(JSON, body))
}

/// The loaded models: as the container lists them or, if a page is requested, as AWS documents it.
fn list(models: &RequestedModels, head: &RequestHead<'_>, compatibility: Compatibility) -> Answer {
    let is_page = head.query().any(|(name, _)| !name.is_empty());
    if compatibility == Compatibility::Extended || is_page {
        return page(models, head).map_err(|error| Failure::new(error, 400));
    }
    let mut body = b"{".to_vec();
    for model in models.0.engine.repository().loaded_models() {
        if body.len() > 1 {
            body.extend_from_slice(b", ");
        }
        write::string(model.name.as_bytes(), &mut body);
        body.extend_from_slice(b": ");
        body.extend_from_slice(&tfs::status(&models.0.engine, &model.name).body);
    }
    body.push(b'}');
    Ok(Reply::ok(JSON, body))
}

/// One page of the list. The token is the last name of the previous page.
fn page(models: &RequestedModels, head: &RequestHead<'_>) -> Result<Reply> {
    let (mut after, mut limit) = (String::new(), PAGE);
    for (key, value) in head.query() {
        match &*key {
            "next_page_token" => after = value,
            "limit" => {
                limit = value
                    .parse()
                    .ok()
                    .filter(|&limit| limit > 0)
                    .ok_or_else(|| Error::invalid("limit must be a whole number, 1 or more"))?;
            }
            _ => {}
        }
    }
    let all = models.0.engine.repository().loaded_models();
    let mut rest = all.iter().filter(|model| model.name > after);
    let mut body = b"{\"models\": [".to_vec();
    let mut last = "";
    for model in rest.by_ref().take(limit) {
        if !last.is_empty() {
            body.extend_from_slice(b", ");
        }
        body.extend_from_slice(b"{\"modelName\": ");
        write::string(model.name.as_bytes(), &mut body);
        body.extend_from_slice(b", \"modelUrl\": ");
        write::string(model.path.to_string_lossy().as_bytes(), &mut body);
        body.push(b'}');
        last = &model.name;
    }
    body.push(b']');
    if rest.next().is_some() {
        body.extend_from_slice(b", \"nextPageToken\": ");
        write::string(last.as_bytes(), &mut body);
    }
    body.push(b'}');
    Ok(Reply::ok(JSON, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["m", "half_plus_three", "0a.b-c", &"a".repeat(255)] {
            assert!(attributes::is_plain(good), "{good}");
        }
        for bad in ["", ".", "..", "../m", "./m", "a/b", "-a", "a b", "a\0", &"a".repeat(256)] {
            assert!(!attributes::is_plain(bad), "{bad:?}");
        }
    }
}
