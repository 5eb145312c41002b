//! The API of SageMaker's TensorFlow Serving container (`/ping`, `/invocations` and `/models`), and that
//! of the SageMaker service in front of it (`/endpoints/NAME/invocations`), which AWS's clients call.
//!
//! Responses are those of the images up to TensorFlow Serving 2.19, with the corrections of the 2.20
//! image where older images fail or garble values; [`Compatibility`] selects the other differences.
//! [`crate::tfs`] implements TensorFlow Serving's API, which the container has below `/tfs/`.
//!
//! Sources: `aws/sagemaker-tensorflow-serving-container`, `aws/deep-learning-containers`
//! (`tensorflow/inference`), the service models of botocore.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;

use self::attributes::Attributes;
use self::models::RequestedModels;
use crate::mlflow;
use tensorserve_auth::Permission;
use tensorserve_codec::json::write;
use tensorserve_core::engine::{Engine, ModelSpec, VersionSelector};
use tensorserve_protocol::{
    ALLOW, Answer, AnswerStyle, Failure, Host, JSON, Methods, NoRoute, Protocol, Reply,
    RequestHead, RoutedRequest, Routes, bounded,
};
use tensorserve_tensor::error::Error;

mod asynchronous;
mod attributes;
pub mod config;
mod convert;
mod direct;
mod handler;
mod inputs;
mod invocation;
pub mod layout;
mod media;
mod models;
pub mod multi_model;
mod outputs;
mod service;

pub use self::config::{Compatibility, SagemakerConfig};
pub use self::direct::{CsvLines, Invoker};
pub use self::media::{PayloadType, payload_format};
pub use self::multi_model::{ModelCandidate, MultiModelConfig};

/// The name of the protocol in metrics.
pub const SAGEMAKER: &str = "sagemaker";

const TAG: &str = "SageMaker";

/// SageMaker's container, and the service in front of it.
pub struct Sagemaker {
    config: SagemakerConfig,
}

impl Sagemaker {
    /// The protocol with this configuration.
    #[must_use]
    pub fn new(config: SagemakerConfig) -> Self {
        Sagemaker { config }
    }
}

impl Protocol for Sagemaker {
    fn name(&self) -> &'static str {
        SAGEMAKER
    }

    fn routes(&self, host: &Host, routes: &mut Routes) {
        let api = Arc::new(SagemakerApi::new(host, self.config.clone()));
        let mut group = routes.group(TAG, &api, refuse);
        // The paths are prefixes, as in the container's proxy.
        for path in ["/ping", "/ping{*rest}"] {
            let ping = group.immediate(Methods::Any, path, Permission::Public, |api, request| {
                api.ping(&request.head)
            });
            ping.without_body().summary("Check whether the default model is available");
            if path.contains('{') {
                ping.hidden();
            }
        }
        for path in ["/invocations", "/invocations{*rest}"] {
            let invoke = group.route(Methods::Any, path, Permission::Infer, |api, request| {
                Box::pin(api.invocations(request))
            });
            invoke.summary("Run a model on a payload in any format that the container supports");
            if path.contains('{') {
                invoke.hidden();
            }
        }
        models::add_routes(&mut group);
        if self.config.is_container {
            group.scope("/", |_, head, missing| not_found(head, missing));
        }
        let mut group = routes.group(TAG, &api, service::refuse).on_reply(service::sign);
        service::add_routes(&mut group);
    }
}

/// What the handlers of the API share. Cheap to clone.
#[derive(Clone)]
struct SagemakerApi {
    engine: Engine,
    models: Option<RequestedModels>,
    shared: Arc<SagemakerShared>,
}

struct SagemakerShared {
    config: SagemakerConfig,
    /// Clients must authenticate. Pings need no credentials.
    has_auth: bool,
    /// A permit for each asynchronous invocation that may wait, and for each that may run.
    waiting: Arc<Semaphore>,
    running: Semaphore,
}

impl SagemakerApi {
    fn new(host: &Host, config: SagemakerConfig) -> Self {
        SagemakerApi::of(&host.engine, config, host.listeners.auth)
    }

    fn of(engine: &Engine, config: SagemakerConfig, has_auth: bool) -> Self {
        let models =
            config.multi_model.clone().map(|config| RequestedModels::new(engine.clone(), config));
        let shared = SagemakerShared {
            config,
            has_auth,
            waiting: Arc::new(Semaphore::new(asynchronous::MOST_WAITING)),
            running: Semaphore::new(asynchronous::MOST_RUNNING),
        };
        SagemakerApi { engine: engine.clone(), models, shared: Arc::new(shared) }
    }

    fn config(&self) -> &SagemakerConfig {
        &self.shared.config
    }

    /// The models that are loaded and unloaded by request.
    fn models(&self) -> Option<&RequestedModels> {
        self.models.as_ref()
    }

    /// Whether the model that the headers select has a ready version and, during the start of the
    /// server, no version that is still loading: the container opens its port when all are loaded.
    /// With authentication it is always the default model: a ping has no credentials, and must not
    /// reveal which models exist.
    fn ping(&self, head: &RequestHead<'_>) -> Answer {
        let attributes = head.header(attributes::HEADER).filter(|_| !self.shared.has_auth);
        let attributes = attributes.unwrap_or_default();
        let ready = match Attributes::parse(attributes, self.config().compatibility) {
            Ok(Attributes { model: Some(model), .. }) => self.check_ready(model),
            Ok(_) if self.models.is_some() => self.engine.readiness(),
            Ok(_) => match self.default_model() {
                Some(model) => self.check_ready(&model),
                None => self.engine.readiness(),
            },
            Err(error) => Err(error),
        };
        ready.map_err(|error| Failure::new(error, 502))?;
        Ok(match self.is_mlflow() {
            true => Reply::ok(JSON, &b"\n"[..]),
            false => Reply::ok(JSON, Bytes::new()),
        })
    }

    fn check_ready(&self, name: &str) -> Result<(), Error> {
        let repository = self.engine.repository();
        let spec = ModelSpec { name, choice: VersionSelector::Latest };
        if repository.resolve(&spec).is_err() {
            let message = format!("no version of the model {name:?} is available");
            return Err(Error::unavailable(message));
        }
        if repository.is_starting(name) {
            let message = format!("versions of the model {name:?} are still loading");
            return Err(Error::unavailable(message));
        }
        Ok(())
    }

    /// The model of requests that do not name one; `None` if there is none, or several.
    fn default_model(&self) -> Option<String> {
        if let Some(name) = &self.config().default_model {
            return Some(name.clone());
        }
        let models = self.engine.repository().all_models();
        if models.len() > 1 {
            return None;
        }
        models.into_iter().next()
    }

    /// Whether the default model is one of MLflow's.
    fn is_mlflow(&self) -> bool {
        let model = self.default_model();
        model.is_some_and(|model| mlflow::is_packaged(&self.engine, &model, None))
    }

    /// Handles `/invocations`.
    async fn invocations(&self, mut request: RoutedRequest<'_>) -> Answer {
        let body = request.take_bytes();
        let head = &request.head;
        if let Some(answer) = self.other_method(head) {
            return answer;
        }
        if let Some(reply) = mlflow::other_method(head).filter(|_| self.is_mlflow()) {
            return Ok(reply);
        }
        let invocation = invocation::Invocation::of_container(head);
        self.invoke(&invocation, body, request.start).await
    }
}

/// Why the container has nothing at a path, or not with this method.
fn not_found(head: &RequestHead<'_>, missing: &NoRoute) -> Failure {
    match missing {
        NoRoute::Path => Failure::new(Error::not_found("Not Found"), 404),
        NoRoute::Method(allowed) => {
            let message = format!("{} is not allowed for {}", head.method, head.path());
            Failure::new(Error::invalid(message), 405).with_header(ALLOW, allowed.join(", "))
        }
    }
}

/// The response of the container for an answer, which becomes a part of another one.
fn rendered(answer: Answer) -> Reply {
    AnswerStyle::new(refuse).render(answer)
}

/// An error in the container's format.
fn refuse(error: Error, status: u16) -> Reply {
    let mut body = b"{\"error\": ".to_vec();
    write::string(bounded(error.message()).as_bytes(), &mut body);
    body.push(b'}');
    let mut reply = Reply::ok(JSON, body).with_status(status);
    reply.error = Some(error);
    reply
}
