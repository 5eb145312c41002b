//! Inference through `/invocations`: reads the headers, decodes the payload and encodes the response.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::attributes::{self, Attributes};
use super::convert::{self, RepairedBody};
use super::media::{self, PayloadType, ResponseFormat};
use super::{Compatibility, SAGEMAKER, SagemakerApi, inputs, outputs};
use crate::mlflow::{self, MlflowCall};
use crate::tfs::rest::{RestCall, TfsDecoded};
use crate::tfs::{self, DEFAULT_SIGNATURE, OwnedModelSpec, TfsAnswer};
use tensorserve_codec::csv::Dialect;
use tensorserve_codec::formats::{CsvForm, PayloadFormat, RecordFormat};
use tensorserve_codec::npy;
use tensorserve_core::engine::{
    EntryPoint, Handlers, InferenceCall, InferenceOutcome, Method, Resolver,
};
use tensorserve_protocol::{Answer, Failure, JSON, NPY, Reply, RequestHead};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_trace::{TRACEPARENT, TRACESTATE, TraceParent};

/// The parameters of an inference in the head of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Invocation<'h> {
    /// The type of the payload.
    pub(super) payload: Option<PayloadType<'h>>,
    /// The type of the response.
    pub(super) accept: Option<&'h str>,
    /// The custom attributes, as they were sent.
    pub(super) attributes: Option<&'h str>,
    /// The model in the path or in another header; it takes precedence over the attributes.
    pub(super) model: Option<&'h str>,
    /// The signature of payloads that name none, if not the usual one.
    pub(super) signature: Option<&'h str>,
    /// The endpoint in the path. It selects the model if nothing else does.
    pub(super) endpoint: Option<&'h str>,
    /// The caller's span, which scripts get.
    pub(super) parent: TraceParent<'h>,
}

/// A request that passes through handlers.
pub(super) struct ScriptCall<'a> {
    pub(super) invocation: &'a Invocation<'a>,
    pub(super) attributes: Attributes<'a>,
    /// The model and method that it selects.
    pub(super) call: RestCall,
    /// The entry point and the deadline.
    pub(super) entry: InferenceCall,
}

/// An inference, by what handles it.
pub(super) enum DirectedCall<'a> {
    /// `inference.py`, which gets and writes texts of its own.
    Handlers(Arc<Handlers>, ScriptCall<'a>),
    /// The protocol of MLflow.
    Mlflow(MlflowCall<'a>),
    /// This module.
    Tensors(TensorsCall),
}

/// A request whose payload becomes tensors here.
pub(super) struct TensorsCall {
    /// The model and method that it selects.
    pub(super) call: RestCall,
    /// The entry point and the deadline.
    pub(super) entry: InferenceCall,
    /// The format of its payload.
    pub(super) input: PayloadFormat,
}

impl<'h> Invocation<'h> {
    /// Reads the head as the container does.
    pub(super) fn of_container(head: &RequestHead<'h>) -> Self {
        Invocation {
            payload: head.header("content-type").map(PayloadType::Named),
            accept: head.header("accept"),
            attributes: head.header(attributes::HEADER),
            model: None,
            signature: None,
            endpoint: None,
            parent: trace_parent(head),
        }
    }
}

/// The caller's span.
pub(super) fn trace_parent<'h>(head: &RequestHead<'h>) -> TraceParent<'h> {
    let Some(parent) = head.header(TRACEPARENT) else {
        return TraceParent::default();
    };
    TraceParent::of(Some(parent.as_bytes()), head.header(TRACESTATE).map(str::as_bytes))
}

impl SagemakerApi {
    /// Handles an inference.
    pub(super) async fn invoke(
        &self,
        invocation: &Invocation<'_>,
        body: Bytes,
        start: Instant,
    ) -> Answer {
        let call = match self.directed(invocation, start).await? {
            DirectedCall::Tensors(call) => call,
            DirectedCall::Handlers(handlers, script) => {
                return self.run_handlers(&handlers, script, body).await;
            }
            DirectedCall::Mlflow(call) => {
                return Ok(Box::pin(mlflow::invoke(&self.engine, call, body)).await);
            }
        };
        let max_bytes = call.call.max_bytes;
        let output = ResponseFormat::of(invocation.accept, self.config().compatibility);
        let written = output.clone();
        let inferred =
            self.infer_tensors(call, body, move |answer| write(answer, written, max_bytes)).await;
        let reply = match inferred.answer {
            Ok((content_type, body)) => Reply::ok(content_type, body),
            Err(error) => in_form(tfs::failure(error), &output),
        };
        Ok(reply.with_timing(inferred.timing))
    }

    /// Finds out what handles an inference.
    ///
    /// # Errors
    /// If nothing does.
    pub(super) async fn directed<'h>(
        &self,
        invocation: &'h Invocation<'h>,
        start: Instant,
    ) -> Result<DirectedCall<'h>, Failure> {
        let compatibility = self.config().compatibility;
        let given = invocation.attributes.unwrap_or_default();
        let attributes = Attributes::parse(given, compatibility).map_err(bad)?;
        let name = self.model(invocation, &attributes).map_err(bad)?;
        if let Some(models) = self.models() {
            models.prepare(&name).await?;
        }
        let max_bytes = self.engine.max_tensor_bytes();
        let method = attributes.method;
        let handlers = self.engine.handlers(Some(&name));
        let spec =
            OwnedModelSpec { name: name.into_owned(), version: attributes.version, label: None };
        let signature = signature_of(invocation.signature);
        let call = RestCall { spec, method, signature, exact: false, max_bytes };
        let entry = EntryPoint { protocol: SAGEMAKER, method };
        let entry = self.engine.call(entry, start);
        // Handlers accept payloads of any type.
        if let Some(handlers) = handlers.map_err(|error| Failure::new(error, 503))? {
            let script = ScriptCall { invocation, attributes, call, entry };
            return Ok(DirectedCall::Handlers(handlers, script));
        }
        if mlflow::is_packaged(&self.engine, &call.spec.name, call.spec.version) {
            let (model, version) = (call.spec.name, call.spec.version);
            let entry = EntryPoint { protocol: mlflow::MLFLOW, method: Method::Predict };
            let call = self.engine.call(entry, start);
            let content_type = invocation.payload.map(PayloadType::content_type);
            return Ok(DirectedCall::Mlflow(MlflowCall { model, version, content_type, call }));
        }
        let payload = invocation.payload.unwrap_or(PayloadType::Named("Unknown"));
        let input = payload.format().map_err(bad)?;
        let input = input.ok_or_else(|| unsupported(payload.content_type()))?;
        Ok(DirectedCall::Tensors(TensorsCall { call, entry, input }))
    }

    /// Runs a payload that becomes tensors here, and writes the response with `write`.
    pub(super) async fn infer_tensors<T>(
        &self,
        call: TensorsCall,
        body: Bytes,
        write: impl FnOnce(&TfsAnswer) -> Result<T> + Send + 'static,
    ) -> InferenceOutcome<T>
    where
        T: Send + 'static,
    {
        let TensorsCall { call, entry, input } = call;
        let any_kind = self.config().compatibility == Compatibility::Extended;
        let inferred = self.engine.infer(
            entry,
            move |resolver| {
                // Most formats are converted to JSON first.
                budget::reserve(body.len().saturating_mul(2))?;
                decode(&call, resolver, input, &body, any_kind)
            },
            move |form, response| write(&TfsAnswer::read(form, response)?),
        );
        inferred.await
    }

    /// The name of the model that is selected.
    fn model<'h>(
        &self,
        invocation: &Invocation<'h>,
        attributes: &Attributes<'h>,
    ) -> Result<Cow<'h, str>> {
        if let Some(named) = invocation.model.or(attributes.model) {
            return Ok(Cow::Borrowed(named));
        }
        if self.models().is_some() && invocation.endpoint.is_none() {
            return Err(Error::invalid("Invocation request does not contain model name."));
        }
        if let Some(model) = self.default_model() {
            return Ok(Cow::Owned(model));
        }
        let models = self.engine.repository().all_models();
        let is_model = |name: &&str| models.iter().any(|model| model == name);
        invocation.endpoint.filter(is_model).map(Cow::Borrowed).ok_or_else(|| {
            let (count, some) = (models.len(), models.get(..models.len().min(10)));
            Error::invalid(format!(
                "The request does not name a model, and there are {count}: {:?}. Send \
                 tfs-model-name=NAME in X-Amzn-SageMaker-Custom-Attributes, or configure a default \
                 model",
                some.unwrap_or_default()
            ))
        })
    }
}

/// The signature of payloads that name none.
pub(super) fn signature_of(given: Option<&str>) -> Cow<'static, str> {
    given.map_or(DEFAULT_SIGNATURE.into(), |name| name.to_owned().into())
}

/// Decodes a payload. One that is refused is examined again, for a repair or a better error.
pub(super) fn decode(
    call: &RestCall,
    resolver: &mut Resolver<'_>,
    input: PayloadFormat,
    body: &Bytes,
    any_kind: bool,
) -> Result<TfsDecoded> {
    let decoded = decode_as(call, resolver, input, body);
    let decoded = decoded.inspect_err(|_| resolver.names_model(&call.spec.spec()));
    match &decoded {
        Err(error) if error.code() == Code::InvalidArgument => {
            decode_again(call, resolver, input, body, any_kind).unwrap_or(decoded)
        }
        Ok(_) | Err(_) => decoded,
    }
}

fn decode_as(
    call: &RestCall,
    resolver: &mut Resolver<'_>,
    input: PayloadFormat,
    body: &Bytes,
) -> Result<TfsDecoded> {
    convert::check_not_blank(body)?;
    match input {
        // The container distinguishes them by the text and not by the type.
        PayloadFormat::Json | PayloadFormat::JsonLines => {
            convert::check_is_one(body)?;
            call.decode_json(resolver, &convert::json(body))
        }
        PayloadFormat::Csv(CsvForm { header, is_multiline }) => {
            match inputs::csv(call, resolver, body, header) {
                Some(decoded) => decoded,
                None => {
                    let rows = inputs::rows(body, header)?;
                    let dialect =
                        if is_multiline { Dialect::Multiline } else { Dialect::Container };
                    call.decode_json(resolver, &convert::csv(rows, dialect)?)
                }
            }
        }
        PayloadFormat::Npy | PayloadFormat::Image | PayloadFormat::Examples => {
            inputs::binary(call, resolver, input, body)
        }
    }
}

/// Repairs a refused payload, or returns a better error for it; `None` to keep the first error.
fn decode_again(
    call: &RestCall,
    resolver: &mut Resolver<'_>,
    input: PayloadFormat,
    body: &Bytes,
    any_kind: bool,
) -> Option<Result<TfsDecoded>> {
    let is_json = match input {
        PayloadFormat::Json | PayloadFormat::JsonLines => true,
        PayloadFormat::Csv(_) => false,
        PayloadFormat::Npy | PayloadFormat::Image | PayloadFormat::Examples => return None,
    };
    if convert::is_base64_of_json(body) {
        return Some(Err(Error::invalid(
            "The body is base64 of JSON, not JSON. With version 2 of the AWS CLI, use \
             --cli-binary-format raw-in-base64-out",
        )));
    }
    if !is_json {
        return None;
    }
    match convert::repair(body, any_kind) {
        RepairedBody::Sound => None,
        RepairedBody::Bad(error) => Some(Err(error)),
        RepairedBody::Values(body) => Some(call.decode_json(resolver, &body)),
    }
}

/// An error of the request, whatever its code is.
fn bad(error: Error) -> Failure {
    Failure::new(error, 400)
}

/// The error of a payload of an unknown type; it begins with the container's message.
fn unsupported(content_type: &str) -> Failure {
    let accepted = media::ACCEPTED;
    let message = format!("Unsupported Media Type: {content_type}; supported are {accepted}");
    Failure::new(Error::invalid(message), 415)
}

/// The content type and the body of a response.
pub(super) fn write(
    answer: &TfsAnswer,
    output: ResponseFormat,
    max_bytes: usize,
) -> Result<(Cow<'static, str>, Vec<u8>)> {
    Ok(match output {
        ResponseFormat::Json => (JSON.into(), answer.json(false)?),
        ResponseFormat::OneLine(name) => (name, media::on_one_line(&answer.json(false)?)),
        ResponseFormat::Lines => {
            ("application/jsonlines".into(), outputs::rows(answer, RecordFormat::Json)?.text)
        }
        ResponseFormat::Csv => ("text/csv".into(), outputs::rows(answer, RecordFormat::Csv)?.text),
        ResponseFormat::Npy => (NPY.into(), array(answer, max_bytes)?),
    })
}

fn array(answer: &TfsAnswer, max_bytes: usize) -> Result<Vec<u8>> {
    match answer.tensors() {
        [output] => npy::write(output, max_bytes),
        outputs => Err(Error::invalid(format!(
            "an npy response holds only one array, but the model has {} outputs: accept \
             application/json",
            outputs.len()
        ))),
    }
}

/// An error with TensorFlow Serving's JSON in the format `output`.
fn in_form(mut reply: Reply, output: &ResponseFormat) -> Reply {
    if let ResponseFormat::OneLine(name) = output {
        reply.body = media::on_one_line(&reply.body).into();
        reply.content_type = name.clone();
    }
    reply
}
