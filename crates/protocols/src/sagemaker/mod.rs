//! SageMaker's TensorFlow Serving container: `/ping`, `/invocations` and `/tfs/…`, and the
//! dialect of the SageMaker service in front of it (`/endpoints/NAME/invocations`), which AWS's
//! clients speak.
//!
//! There are three generations of that container. Here is what the images up to TensorFlow
//! Serving 2.19 answer, with the mendings of the 2.20 image where they fail or garble values;
//! [`Compatibility`] is the switch for the rest.
//!
//! Sources: `aws/sagemaker-tensorflow-serving-container`, `aws/deep-learning-containers`
//! (`tensorflow/inference`), the service models of botocore.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Semaphore;

use self::attributes::Attributes;
use self::invocation::Invocation;
use self::models::Models;
use crate::tfs;
use tensorserve_codec::json::write;
use tensorserve_core::engine::{Choice, Engine, ModelSpec};
use tensorserve_protocol::{Head, JSON, Reply, bounded};
use tensorserve_tensor::error::Error;

mod attributes;
pub mod config;
mod convert;
mod handler;
mod inputs;
mod invocation;
mod later;
pub mod layout;
mod media;
mod models;
pub mod multi_model;
mod outputs;
mod service;

pub use self::config::{Compatibility, SagemakerConfig};
pub use self::later::Later;
pub use self::multi_model::{Candidate, MultiModelConfig};

/// The front end. Cheap to clone.
#[derive(Clone)]
pub struct Sagemaker {
    engine: Engine,
    models: Option<Models>,
    shared: Arc<Shared>,
}

struct Shared {
    options: SagemakerConfig,
    /// A permit for each call that may wait to be answered later, and for each that may run.
    calls: Arc<Semaphore>,
    running: Semaphore,
}

/// What a request of the front end asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/ping`: whether the default model can be used.
    Ping,
    /// `/invocations`: an inference, in any of the formats.
    Invocations,
    /// `/tfs/v1/…`: TensorFlow Serving's own API, the state and the metadata of models.
    TfsLook,
    /// The same, inference and whatever has another method.
    TfsInfer,
    /// `/models…`: the models of a multi-model endpoint. Here a list of them.
    ListModels,
    /// One of them.
    ShowModel,
    /// One comes.
    LoadModel,
    /// An inference with one.
    InvokeModel,
    /// One goes.
    UnloadModel,
    /// Nothing that there is.
    ModelsOtherwise,
    /// `/endpoints/…`: the service in front of a container. Here `InvokeEndpoint`.
    Invoke,
    /// `InvokeEndpointWithResponseStream`.
    InvokeStream,
    /// `InvokeEndpointAsync`.
    InvokeLater,
    /// Nothing that there is.
    NoOperation,
}

/// What a request asks for, if the front end knows its path. The container's paths are prefixes,
/// as in its proxy.
#[must_use]
pub fn route(method: &str, path: &str) -> Option<Route> {
    if let Some(rest) = path.strip_prefix("/endpoints/") {
        return Some(service::route(rest));
    }
    if let Some(rest) = path.strip_prefix("/models")
        && (rest.is_empty() || rest.starts_with('/'))
    {
        return Some(models::route(method, rest));
    }
    let tfs = if matches!(method, "GET" | "HEAD") { Route::TfsLook } else { Route::TfsInfer };
    let routes = [("/ping", Route::Ping), ("/invocations", Route::Invocations), ("/tfs/", tfs)];
    let found = routes.into_iter().find(|(prefix, _)| path.starts_with(prefix));
    found.map(|(_, route)| route)
}

impl Sagemaker {
    /// The front end of `engine`.
    #[must_use]
    pub fn new(engine: Engine, options: SagemakerConfig) -> Self {
        let models = options.multi_model.clone().map(|config| Models::new(engine.clone(), config));
        let shared = Shared {
            options,
            calls: Arc::new(Semaphore::new(later::MOST_CALLS)),
            running: Semaphore::new(later::MOST_RUNNING),
        };
        Sagemaker { engine, models, shared: Arc::new(shared) }
    }

    /// How it is set up.
    #[must_use]
    pub fn options(&self) -> &SagemakerConfig {
        &self.shared.options
    }

    /// Answers a request for a path of [`route`], perhaps with the promise to do something
    /// later, which the caller then has to see to.
    pub async fn handle(
        &self,
        route: Route,
        head: &Head<'_>,
        body: Bytes,
        start: Instant,
    ) -> (Reply, Option<Later>) {
        let reply = match route {
            Route::Ping => self.ping(head),
            Route::Invocations => match self.other_method(head) {
                Some(reply) => reply,
                None => self.invoke(&Invocation::of_container(head), body, start).await,
            },
            Route::ListModels
            | Route::ShowModel
            | Route::LoadModel
            | Route::InvokeModel
            | Route::UnloadModel
            | Route::ModelsOtherwise => self.on_models(route, head, body, start).await,
            Route::TfsLook | Route::TfsInfer => {
                let target = head.target.strip_prefix("/tfs").unwrap_or(head.target);
                tfs::handle(&self.engine, &Head { target, ..*head }, body, start).await
            }
            Route::Invoke | Route::InvokeStream | Route::InvokeLater | Route::NoOperation => {
                return self.call(route, head, body, start).await;
            }
        };
        (reply, None)
    }

    /// The models that come and go by request.
    fn models(&self) -> Option<&Models> {
        self.models.as_ref()
    }

    /// Whether the model that a request with these headers means has a version that is ready.
    fn ping(&self, head: &Head<'_>) -> Reply {
        let attributes = head.header(attributes::HEADER).unwrap_or_default();
        let ready = match Attributes::parse(attributes, self.options().compatibility) {
            Ok(Attributes { model: Some(model), .. }) => self.is_ready(model),
            Ok(_) if self.models.is_some() => self.engine.readiness(),
            Ok(_) => match self.default_model() {
                Some(model) => self.is_ready(&model),
                None => self.engine.readiness(),
            },
            Err(error) => Err(error),
        };
        match ready {
            Ok(()) => Reply::ok(JSON, Bytes::new()),
            Err(error) => refuse(error, 502),
        }
    }

    fn is_ready(&self, model: &str) -> Result<(), Error> {
        let found = self.engine.resolve(&ModelSpec { name: model, choice: Choice::Latest });
        let no = |_| Error::unavailable(format!("no version of the model {model:?} is available"));
        found.map(drop).map_err(no)
    }

    /// The model that is meant when none is named; `None` if there is none, or several.
    fn default_model(&self) -> Option<String> {
        if let Some(name) = &self.options().default_model {
            return Some(name.clone());
        }
        let models = self.engine.all_models();
        if models.len() > 1 {
            return None;
        }
        models.into_iter().next()
    }
}

/// The container's answer to a path that it does not know.
#[must_use]
pub fn not_found() -> Reply {
    refuse(Error::not_found("Not Found"), 404)
}

/// A failure that shows before the request is looked at (a body that is too large, say), in the
/// form of the part that `route` is.
#[must_use]
pub fn refuse_body(route: Route, error: Error, status: u16) -> Reply {
    match route {
        Route::Invoke | Route::InvokeStream | Route::InvokeLater | Route::NoOperation => {
            service::refuse_body(error, status)
        }
        Route::TfsLook | Route::TfsInfer => tfs::refuse(error, status),
        Route::Ping
        | Route::Invocations
        | Route::ListModels
        | Route::ShowModel
        | Route::LoadModel
        | Route::InvokeModel
        | Route::UnloadModel
        | Route::ModelsOtherwise => refuse(error, status),
    }
}

/// A failure in the container's form.
fn refuse(error: Error, status: u16) -> Reply {
    let mut body = b"{\"error\": ".to_vec();
    write::string(bounded(error.message()).as_bytes(), &mut body);
    body.push(b'}');
    let mut reply = Reply::ok(JSON, body).with_status(status);
    reply.error = Some(error);
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containers_paths_are_prefixes() {
        let get = |path| route("GET", path);
        assert_eq!(get("/ping"), Some(Route::Ping));
        assert_eq!(get("/pingxyz"), Some(Route::Ping));
        assert_eq!(get("/invocations/"), Some(Route::Invocations));
        assert_eq!(get("/tfs/v1/models/m"), Some(Route::TfsLook));
        assert_eq!(route("POST", "/tfs/v1/models/m"), Some(Route::TfsInfer));
        assert_eq!(get("/models"), Some(Route::ListModels));
        assert_eq!(get("/endpoints/e/invocations"), Some(Route::Invoke));
        for other in
            ["/", "/modelsx", "/tfs", "/PING", "/v1/models/ping", "/nope", "/execution-parameters"]
        {
            assert_eq!(get(other), None, "{other}");
        }
    }
}
