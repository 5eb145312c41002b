//! Simple TensorFlow Serving's HTTP API, compatible with version 0.8.2: `POST /` accepts JSON with
//! `model_name`, `model_version`, `signature_name` and `data`, or a form with images. There are also
//! pages with forms, sample requests and generated clients.
//!
//! Compatible: members, messages, key order and number format of responses, NumPy's coercion of values.
//! Corrected on purpose: every error is JSON with a matching status, the highest version is the
//! default, forms may contain `model_name`, standard base64 is accepted besides URL-safe, and a server
//! with one model accepts requests that do not name it.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use self::form::ImageForm;
use tensorserve_auth::Permission;
use tensorserve_codec::json::write;
use tensorserve_core::engine::{
    Engine, EntryPoint, InferRequest, Method, ModelHandle, ModelSpec, Resolver, Unresolved,
    VersionSelector, VersionState,
};
use tensorserve_protocol::{
    Answer, AnswerStyle, Body, BodyKind, Failure, Host, JSON, Listeners, Methods, MultipartForm,
    Protocol, Reply, RequestHead, RoutedRequest, Routes, bounded,
};
use tensorserve_tensor::error::{Code, Error, Result};

pub mod clients;
mod data;
mod describe;
mod encode;
mod fault;
mod form;
mod html;
mod pages;
mod profile;
mod request;

/// The name of the protocol in metrics.
pub const SIMPLE: &str = "simple";

const TAG: &str = "Simple TensorFlow Serving";

/// The configuration of Simple TensorFlow Serving's API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimpleConfig {
    /// This server replaces Simple TensorFlow Serving: it handles the paths that both APIs have, and
    /// not TensorFlow Serving's.
    pub replaces_original: bool,
    /// TensorFlow Serving's paths behave exactly as in the reference, so none are added below them.
    pub exact_tfs: bool,
}

/// Simple TensorFlow Serving's API.
pub struct SimpleTensorFlowServing {
    config: SimpleConfig,
}

impl SimpleTensorFlowServing {
    /// The protocol with this configuration.
    #[must_use]
    pub fn new(config: SimpleConfig) -> Self {
        SimpleTensorFlowServing { config }
    }
}

impl Protocol for SimpleTensorFlowServing {
    fn name(&self) -> &'static str {
        SIMPLE
    }

    fn routes(&self, host: &Host, routes: &mut Routes) {
        let state = Arc::new(SimpleApi { engine: host.engine.clone(), listeners: host.listeners });
        let mut group = routes.group(TAG, &state, refuse);
        group
            .route(Methods::Post, "/", Permission::Infer, |api, request| {
                Box::pin(api.infer(request))
            })
            .body(body_kind)
            .simple_cors()
            .summary("Run a signature on JSON data or on a form with images")
            .request(JSON, serde_json::json!({ "type": "object" }))
            .response(JSON, serde_json::json!({ "type": "object" }));
        group
            .immediate(Methods::Get, "/api/v1/clients", Permission::Read, |_, _| clients::list())
            .summary("List the languages of generated clients and their variants")
            .response(JSON, clients::list_schema());
        if !self.config.exact_tfs {
            describe::add_routes(self.config.replaces_original, &mut group);
        }
        pages::add_routes(&mut group);
    }
}

/// What the handlers of the API share.
pub(crate) struct SimpleApi {
    engine: Engine,
    listeners: Listeners,
}

fn body_kind(head: &RequestHead<'_>) -> BodyKind {
    match content_type(head).starts_with("multipart/form-data") {
        true => BodyKind::Form,
        false => BodyKind::Bytes,
    }
}

/// The `Content-Type` of a payload, in lower case; JSON by default.
fn content_type(head: &RequestHead<'_>) -> String {
    head.header("content-type").unwrap_or(JSON).to_ascii_lowercase()
}

impl SimpleApi {
    /// Handles `POST /`.
    async fn infer(&self, mut request: RoutedRequest<'_>) -> Answer {
        let start = request.start;
        if let Body::Form(form) = request.body {
            return self.infer_images(images_of(form)?, start).await;
        }
        let body = request.take_bytes();
        let kind = content_type(&request.head);
        // The content type that `curl -d` sends by default, also with JSON.
        let is_form = kind.starts_with("application/x-www-form-urlencoded");
        let is_json =
            kind.starts_with(JSON) || (is_form && body.trim_ascii_start().starts_with(b"{"));
        if !is_json {
            return Err(Error::invalid("Error, unsupported content type").into());
        }
        self.infer_json(body, start).await
    }

    /// Runs the inference that a JSON document describes.
    async fn infer_json(&self, body: Bytes, start: Instant) -> Answer {
        let engine = self.engine.clone();
        self.run(start, move |resolver| request::decode(&engine, resolver, &body)).await
    }

    /// Runs a model on images.
    async fn infer_images(&self, form: ImageForm, start: Instant) -> Answer {
        let engine = self.engine.clone();
        self.run(start, move |resolver| form.decode(&engine, resolver)).await
    }

    /// Runs the request that `decode` returns. The flag is set for one row without the batch dimension.
    async fn run(
        &self,
        start: Instant,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, bool)> + Send + 'static,
    ) -> Answer {
        let entry = EntryPoint { protocol: SIMPLE, method: Method::Predict };
        let inferred = self.engine.infer(self.engine.call(entry, start), decode, encode::response);
        let inferred = inferred.await;
        let (timing, is_decoded) = (inferred.timing, inferred.is_decoded);
        match inferred.answer {
            Ok(body) => Ok(Reply::ok(JSON, body).with_timing(timing)),
            Err(error) if is_decoded => Err(failure(run_error(error)).with_timing(timing)),
            Err(error) => Err(failure(error).with_timing(timing)),
        }
    }
}

/// A failed inference. An unknown model is a 400 here, like every error of a request.
fn failure(error: Error) -> Failure {
    match error.code() == Code::NotFound {
        true => Failure::new(error, 400),
        false => error.into(),
    }
}

/// The form of a request for images.
fn images_of(form: MultipartForm) -> Result<ImageForm, Failure> {
    ImageForm::of(form).map_err(|error| Failure::new(error, 400))
}

/// The response for an answer, which is a part of a page.
fn rendered(answer: Answer) -> Reply {
    AnswerStyle::new(refuse).render(answer)
}

/// The response for an error.
fn refuse(error: Error, status: u16) -> Reply {
    let mut body = b"{\"error\":".to_vec();
    write::string(bounded(error.message()).as_bytes(), &mut body);
    body.extend_from_slice(b"}\n");
    let mut reply = Reply::ok(JSON, body).with_status(status);
    reply.error = Some(error);
    reply
}

/// An error of a run with the original's message, if the request caused it.
fn run_error(error: Error) -> Error {
    if error.http_status() != 400 {
        return error;
    }
    Error::new(error.code(), run_failed(error.message()))
}

/// The original's message for every error of the values in a request.
fn run_failed(message: &str) -> String {
    format!("Sess.run() fail because of {message}, please check shape of input")
}

/// The model version and signature that a request selects.
fn find(
    engine: &Engine,
    resolver: &mut Resolver<'_>,
    model: Option<&str>,
    version: Option<i64>,
    signature: Option<&str>,
) -> Result<(ModelHandle, usize)> {
    let handle = find_model(engine, resolver, model, version)?;
    let name = signature.unwrap_or("serving_default");
    let (index, _) = handle.signature(name).ok_or_else(|| {
        Error::invalid(format!(
            "Fail to request the signature name: {name}, please check the request JSON"
        ))
    })?;
    resolver.found_signature(index);
    Ok((handle, index))
}

fn find_model(
    engine: &Engine,
    resolver: &mut Resolver<'_>,
    model: Option<&str>,
    version: Option<i64>,
) -> Result<ModelHandle> {
    let choice = version.map_or(VersionSelector::Latest, VersionSelector::Version);
    let name = model.unwrap_or("default");
    match resolver.resolve(&ModelSpec { name, choice }) {
        Ok(handle) => return Ok(handle),
        Err(Unresolved::Version(_))
            if engine
                .repository()
                .resolve(&ModelSpec { name, choice: VersionSelector::Latest })
                .is_ok() =>
        {
            return Err(no_version(engine, name, version));
        }
        Err(_) => {}
    }
    let models = engine.repository().ready_models();
    if let (None, [only]) = (model, models.as_slice()) {
        let found = resolver.resolve(&ModelSpec { name: only, choice });
        return found.map_err(|_| no_version(engine, only, version));
    }
    Err(Error::not_found(format!("Invalid model name: {name}, available models: {models:?}")))
}

fn no_version(engine: &Engine, model: &str, version: Option<i64>) -> Error {
    let all = engine.repository().status(model);
    let ready = all.iter().filter(|status| matches!(status.state, VersionState::Ready));
    let versions: Vec<i64> = ready.map(|status| status.version).collect();
    let version = version.map_or("None".to_owned(), |version| version.to_string());
    Error::not_found(format!(
        "Invalid model version: {version}, available versions of {model}: {versions:?}"
    ))
}
