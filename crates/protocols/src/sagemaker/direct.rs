//! Invocations without HTTP: what `/invocations` does with a payload, for programs in this process.

use std::time::Instant;

use bytes::Bytes;

use super::invocation::{DirectedCall, Invocation};
use super::media::PayloadType;
use super::{SAGEMAKER, SagemakerApi, SagemakerConfig, inputs, invocation, outputs};
use crate::mlflow;
use crate::tfs::rest::RestCall;
use crate::tfs::{OwnedModelSpec, TfsAnswer};
use tensorserve_codec::formats::RecordFormat;
use tensorserve_codec::json::write::{self, Floats, JsonLayout, Style, Texts};
use tensorserve_codec::row_text::{OutputText, RowText};
use tensorserve_codec::table::{self, Header};
use tensorserve_core::engine::{
    Engine, EntryPoint, InferRequest, Method, ModelSpec, VersionSelector,
};
use tensorserve_protocol::Reply;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_trace::TraceParent;

/// Runs payloads on the default model as `/invocations` does.
#[derive(Clone)]
pub struct Invoker {
    api: SagemakerApi,
    signature: Option<String>,
}

impl Invoker {
    /// An invoker for the models of `engine`.
    #[must_use]
    pub fn new(engine: &Engine, config: SagemakerConfig) -> Self {
        Invoker { api: SagemakerApi::of(engine, config, false), signature: None }
    }

    /// With this signature for payloads that name none.
    #[must_use]
    pub fn with_signature(mut self, name: Option<String>) -> Self {
        self.signature = name;
        self
    }

    fn invocation<'h>(
        &'h self,
        payload: PayloadType<'h>,
        accept: Option<&'h str>,
    ) -> Invocation<'h> {
        Invocation {
            payload: Some(payload),
            accept,
            attributes: None,
            model: None,
            signature: self.signature.as_deref(),
            endpoint: None,
            parent: TraceParent::default(),
        }
    }

    /// The response to a payload, as a client gets it.
    pub async fn respond(
        &self,
        payload: PayloadType<'_>,
        accept: Option<&str>,
        body: Bytes,
    ) -> Reply {
        let invocation = self.invocation(payload, accept);
        super::rendered(self.api.invoke(&invocation, body, Instant::now()).await)
    }

    /// The body of the response to a payload.
    ///
    /// # Errors
    /// What the response would report.
    pub async fn infer(
        &self,
        payload: PayloadType<'_>,
        accept: Option<&str>,
        body: Bytes,
    ) -> Result<Bytes> {
        body_of(self.respond(payload, accept, body).await)
    }

    /// The outputs for a payload of several records, by rows.
    ///
    /// # Errors
    /// What the response would report.
    pub async fn rows(
        &self,
        payload: PayloadType<'_>,
        format: RecordFormat,
        body: Bytes,
    ) -> Result<OutputText> {
        let invocation = self.invocation(payload, Some(accept_of(format)));
        match self.api.directed(&invocation, Instant::now()).await {
            Ok(DirectedCall::Tensors(call)) => {
                let write = move |answer: &TfsAnswer| outputs::rows(answer, format);
                self.api.infer_tensors(call, body, write).await.answer.map(OutputText::Rows)
            }
            Ok(DirectedCall::Mlflow(call)) => mlflow::rows(&self.api.engine, call, body).await,
            Ok(DirectedCall::Handlers(handlers, script)) => {
                let answer = self.api.run_handlers(&handlers, script, body).await;
                body_of(super::rendered(answer)).map(OutputText::Text)
            }
            Err(failure) => body_of(super::rendered(Err(failure))).map(OutputText::Text),
        }
    }

    /// The outputs for image files, a row for each. The files are one batch.
    ///
    /// # Errors
    /// As those of [`Invoker::infer`] for one image.
    pub async fn rows_of_images(
        &self,
        images: Vec<Bytes>,
        format: RecordFormat,
    ) -> Result<RowText> {
        let engine = &self.api.engine;
        let name = self.api.default_model().ok_or_else(|| Error::invalid("there is no model"))?;
        let (max_bytes, method) = (engine.max_tensor_bytes(), Method::Predict);
        let spec = OwnedModelSpec { name, version: None, label: None };
        let signature = invocation::signature_of(self.signature.as_deref());
        let call = RestCall { spec, method, signature, exact: false, max_bytes };
        let entry = engine.call(EntryPoint { protocol: SAGEMAKER, method }, Instant::now());
        let inferred = engine.infer(
            entry,
            move |resolver| {
                budget::reserve(images.iter().map(Bytes::len).sum())?;
                inputs::images(&call, resolver, &images)
            },
            move |method, response| outputs::rows(&TfsAnswer::read(method, response)?, format),
        );
        inferred.await.answer
    }

    /// The tensors that a payload becomes, in words: name, type, shape and the first values of each. The
    /// model runs on them.
    ///
    /// # Errors
    /// As those of [`Invoker::infer`]. Payloads for handlers and for models of MLflow have no tensors here.
    pub async fn tensors(&self, payload: PayloadType<'_>, body: Bytes) -> Result<Vec<String>> {
        let engine = &self.api.engine;
        let name = self.api.default_model().ok_or_else(|| Error::invalid("there is no model"))?;
        let no_tensors = || Error::invalid(format!("{} has no tensors", payload.content_type()));
        let format = payload.format()?.ok_or_else(no_tensors)?;
        let (max_bytes, method) = (engine.max_tensor_bytes(), Method::Predict);
        let spec = OwnedModelSpec { name, version: None, label: None };
        let signature = invocation::signature_of(self.signature.as_deref());
        let call = RestCall { spec, method, signature, exact: false, max_bytes };
        let entry = engine.call(EntryPoint { protocol: SAGEMAKER, method }, Instant::now());
        let inferred = engine.infer(
            entry,
            move |resolver| {
                let (request, _) = invocation::decode(&call, resolver, format, &body, true)?;
                let described = described(&request);
                Ok((request, described))
            },
            |described, _| Ok(described),
        );
        inferred.await.answer
    }

    /// How the first line of CSV is read.
    #[must_use]
    pub fn csv_lines(&self) -> CsvLines {
        match (self.has_handlers(), self.api.is_mlflow()) {
            (true, _) => CsvLines::Handlers,
            (_, true) => CsvLines::Named,
            _ => CsvLines::Auto,
        }
    }

    /// Whether the record `first` has the names of columns, as the model's requests are read.
    ///
    /// # Errors
    /// If there is no model, or the record has an open quote.
    pub fn has_header(&self, first: &[u8]) -> Result<bool> {
        let name = self.api.default_model().ok_or_else(|| Error::invalid("there is no model"))?;
        let spec = ModelSpec { name: &name, choice: VersionSelector::Latest };
        let Ok(version) = self.api.engine.repository().resolve(&spec) else {
            return Err(Error::invalid("the model is not available"));
        };
        let signature = invocation::signature_of(self.signature.as_deref());
        let Some(found) = version.signature(&signature) else { return Ok(false) };
        let table = inputs::table_of(&version, found, first, Header::Auto)?;
        match table {
            Some((_, Header::Present)) => Ok(true),
            Some((_, Header::Auto)) => table::has_header(first, found.1, Header::Auto),
            Some((_, Header::Absent)) | None => Ok(false),
        }
    }

    /// Whether requests pass through handlers (`inference.py`).
    #[must_use]
    pub fn has_handlers(&self) -> bool {
        let model = self.api.default_model();
        !matches!(self.api.engine.handlers(model.as_deref()), Ok(None))
    }
}

/// The body of a response.
///
/// # Errors
/// What it reports.
fn body_of(reply: Reply) -> Result<Bytes> {
    if let Some(error) = reply.error {
        return Err(error);
    }
    if reply.status >= 400 {
        // Handlers choose status and text themselves.
        let text = String::from_utf8_lossy(&reply.body);
        let text: String = text.chars().take(1000).collect();
        let code = if reply.status < 500 { Code::InvalidArgument } else { Code::Unknown };
        return Err(Error::new(code, format!("status {}: {text}", reply.status)));
    }
    Ok(reply.body)
}

/// The media type that handlers are asked for.
fn accept_of(format: RecordFormat) -> &'static str {
    match format {
        RecordFormat::Json => "application/jsonlines",
        RecordFormat::Csv => "text/csv",
    }
}

/// How the first line of CSV is read where neither its content type nor an option says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsvLines {
    /// By handlers, which get the text as it is.
    Handlers,
    /// As the names of columns in any case, as MLflow does.
    Named,
    /// By what is in it.
    Auto,
}

/// The inputs of a request, a line each.
fn described(request: &InferRequest) -> Vec<String> {
    let mut lines = Vec::new();
    for run in &request.runs {
        let signature = request.version.signatures().get(run.signature);
        let specs = signature.map(|signature| signature.inputs.as_slice()).unwrap_or_default();
        for (index, tensor) in run.inputs.iter().enumerate() {
            let name = specs.get(index).map_or("input", |spec| spec.alias.as_str());
            let style = Style {
                layout: JsonLayout::Compact,
                floats: Floats::TensorFlowServing,
                texts: Texts::Lossy,
            };
            let mut values = Vec::new();
            let first = if tensor.rows().is_some() { tensor.row(0) } else { tensor.clone() };
            if write::tensor(&first, style, 0, &mut values).is_err() {
                values = b"?".to_vec();
            }
            let values: String = String::from_utf8_lossy(&values).chars().take(160).collect();
            lines.push(format!("{name}: {} {:?}: {values}", tensor.dtype(), tensor.shape()));
        }
    }
    lines
}
