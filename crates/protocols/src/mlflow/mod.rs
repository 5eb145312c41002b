//! The API of MLflow's scoring server (`mlflow models serve`), for models in MLflow's folders.
//!
//! [`invoke`] answers `POST /invocations`, which [`crate::sagemaker`] has too and passes on by the
//! model. [`Mlflow`] adds `/version` and `/health`.
//!
//! * [`payload`] reads the forms of requests, as [`node`]s and [`table`]s, [`csv`] those of CSV;
//! * [`enforce`] applies the model's signature, with the conversions of [`cast`];
//! * [`inputs`] makes tensors, [`outputs`] writes predictions, [`fault`] errors.
//!
//! Source: `mlflow/pyfunc/scoring_server`, `mlflow/utils/proto_json_utils.py` and
//! `mlflow/models/utils.py` of MLflow 3.17.

use std::sync::Arc;

use bytes::Bytes;

use self::enforce::{ModelData, PayloadKind};
use self::node::Node;
use self::outputs::PredictionsForm;
use self::payload::{JsonRequest, MlflowPayload};
use self::table::MlflowTable;
use tensorserve_auth::Permission;
use tensorserve_codec::row_text::{OutputText, RowText};
use tensorserve_core::engine::{
    Engine, InferRequest, InferenceCall, InferenceOutcome, ModelHandle, ModelSpec, Resolver,
    SignatureRun, VersionSelector,
};
use tensorserve_mlflow::{Flavor, MlflowModel};
use tensorserve_protocol::{
    ALLOW, Answer, Failure, Host, JSON, Methods, Protocol, Reply, RequestHead, Routes,
};
use tensorserve_tensor::error::{Error, Result};

mod cast;
mod csv;
mod enforce;
mod fault;
mod inputs;
mod node;
mod outputs;
mod params;
mod payload;
mod table;

/// The name of the protocol in metrics.
pub const MLFLOW: &str = "mlflow";

/// The signature that is called.
const SIGNATURE: &str = "serving_default";

/// `/version` and `/health` of the scoring server, for a server whose models are MLflow's.
pub struct Mlflow {
    default_model: Option<String>,
}

impl Mlflow {
    /// The protocol; `default_model` is the model of requests that do not name one, if there are several.
    #[must_use]
    pub fn new(default_model: Option<String>) -> Self {
        Mlflow { default_model }
    }
}

/// What the handlers share.
#[derive(Clone)]
struct MlflowApi {
    engine: Engine,
    default_model: Option<String>,
}

impl Protocol for Mlflow {
    fn name(&self) -> &'static str {
        MLFLOW
    }

    fn routes(&self, host: &Host, routes: &mut Routes) {
        let (engine, default_model) = (host.engine.clone(), self.default_model.clone());
        let api = Arc::new(MlflowApi { engine, default_model });
        let mut group = routes.group("MLflow", &api, Reply::error);
        group
            .immediate(Methods::Get, "/health", Permission::Public, |api, _| api.health())
            .summary("Check that the models are ready, as MLflow's scoring server");
        group
            .immediate(Methods::Get, "/version", Permission::Public, |api, _| api.version())
            .summary("Return the version of MLflow that logged the model");
    }
}

impl MlflowApi {
    fn health(&self) -> Answer {
        self.engine.readiness().map_err(|error| Failure::new(error, 503))?;
        Ok(Reply::ok(JSON, &b"\n"[..]))
    }

    /// The version of MLflow that wrote the default model: the scoring server runs the model with the
    /// version that its environment pins.
    fn version(&self) -> Answer {
        let repository = self.engine.repository();
        let models = repository.all_models();
        let name = self.default_model.as_deref().or(models.first().map(String::as_str));
        let model = name.and_then(|name| {
            let spec = ModelSpec { name, choice: VersionSelector::Latest };
            repository.resolve(&spec).ok()?.packaging::<MlflowModel>()
        });
        let model = model.ok_or_else(|| Error::unavailable("no model of MLflow is ready"))?;
        Ok(Reply::ok(JSON, model.mlflow_version.clone()))
    }
}

/// A request for `/invocations`.
pub(crate) struct MlflowCall<'h> {
    /// The name of the model.
    pub(crate) model: String,
    /// Its version; the latest one if there is none.
    pub(crate) version: Option<i64>,
    /// The type of the payload.
    pub(crate) content_type: Option<&'h str>,
    /// The entry point and the deadline.
    pub(crate) call: InferenceCall,
}

/// Whether the version that requests for `model` get is one of MLflow's.
pub(crate) fn is_packaged(engine: &Engine, model: &str, version: Option<i64>) -> bool {
    let spec = ModelSpec { name: model, choice: selector(version) };
    let resolved = engine.repository().resolve(&spec);
    resolved.is_ok_and(|version| version.packaging::<MlflowModel>().is_some())
}

fn selector(version: Option<i64>) -> VersionSelector<'static> {
    version.map_or(VersionSelector::Latest, VersionSelector::Version)
}

/// The response to `/invocations` with another method than POST; `None` for POST.
pub(crate) fn other_method(head: &RequestHead<'_>) -> Option<Reply> {
    if head.method == "POST" {
        return None;
    }
    let mut reply = Reply::ok(JSON, &b"{\"detail\":\"Method Not Allowed\"}"[..]).with_status(405);
    reply.error = Some(Error::invalid(format!("{} is not allowed for /invocations", head.method)));
    Some(reply.with_header(ALLOW, "POST"))
}

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyType {
    Csv,
    Json,
}

/// Handles `POST /invocations`.
pub(crate) async fn invoke(engine: &Engine, request: MlflowCall<'_>, body: Bytes) -> Reply {
    let format = match body_type(request.content_type.unwrap_or_default()) {
        Ok(format) => format,
        Err(message) => return fault::unsupported_media(message),
    };
    let inferred = infer(engine, request, format, body, false).await;
    let reply = match inferred.answer {
        Ok(body) => Reply::ok(JSON, body.text),
        Err(error) => fault::reply(error),
    };
    reply.with_timing(inferred.timing)
}

/// The body of the response to a request, by its rows if the predictions are a list.
///
/// # Errors
/// What the response would report.
pub(crate) async fn rows(
    engine: &Engine,
    request: MlflowCall<'_>,
    body: Bytes,
) -> Result<OutputText> {
    let format = body_type(request.content_type.unwrap_or_default()).map_err(Error::invalid)?;
    let body = infer(engine, request, format, body, true).await.answer?;
    Ok(match body.rows.is_empty() {
        true => OutputText::Text(body.text.into()),
        false => OutputText::Rows(body),
    })
}

/// Runs a request, and writes the response.
async fn infer(
    engine: &Engine,
    request: MlflowCall<'_>,
    format: BodyType,
    body: Bytes,
    by_rows: bool,
) -> InferenceOutcome<RowText> {
    let (model, version) = (request.model, request.version);
    let max_bytes = engine.max_tensor_bytes();
    let inferred = engine.infer(
        request.call,
        move |resolver| {
            let spec = ModelSpec { name: &model, choice: selector(version) };
            decode(resolver, &spec, format, &body, max_bytes)
        },
        move |form, response| {
            let (version, run) = response.into_single();
            let declared = version.signatures().get(run.signature);
            let outputs = declared.map_or(&[][..], |declared| &declared.outputs);
            let all: Vec<&str> = outputs.iter().map(|spec| spec.alias.as_str()).collect();
            outputs::encode(form, &all, run.outputs, by_rows)
        },
    );
    inferred.await
}

/// The format of a body, by its `Content-Type`; the message for any other.
fn body_type(content_type: &str) -> Result<BodyType, String> {
    let mut parts = content_type.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let mut unknown = Vec::new();
    for parameter in parts {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if key != "charset" {
            unknown.push(key);
        } else if !value.eq_ignore_ascii_case("utf-8") {
            return Err("The scoring server only supports UTF-8".to_owned());
        }
    }
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        return Err(format!("Unrecognized content type parameters: {unknown}."));
    }
    match name {
        "text/csv" => Ok(BodyType::Csv),
        "application/json" => Ok(BodyType::Json),
        _ => Err(format!(
            "This predictor only supports the following content types: Types: ['text/csv', \
             'application/json']. Got '{content_type}'."
        )),
    }
}

type Decoded = (InferRequest, PredictionsForm);

fn decode(
    resolver: &mut Resolver<'_>,
    spec: &ModelSpec<'_>,
    format: BodyType,
    body: &[u8],
    max_bytes: usize,
) -> Result<Decoded> {
    let not_ready = |_| Error::unavailable(format!("the model {:?} is not ready", spec.name));
    let version = resolver.resolve(spec).map_err(not_ready)?;
    let model = version.packaging::<MlflowModel>();
    let model = model.ok_or_else(|| Error::unavailable("the model is being replaced"))?;
    let (signature, data) = {
        let (payload, kind, params) = read(format, body, &model)?;
        params::check(params.as_ref(), model.signature.params.as_deref(), model.flavor)?;
        let data = enforce::enforce(payload, model.signature.inputs.as_ref(), kind)?;
        (found_signature(resolver, &version, &data)?, data)
    };
    let Some(declared) = version.signatures().get(signature) else {
        return Err(Error::internal("the signature does not exist"));
    };
    check_rows(&data, model.flavor)?;
    let form = PredictionsForm::of(&model, matches!(data, ModelData::Table(_)));
    let output_filter = outputs::wanted(&model, declared)?;
    let inputs = inputs::tensors(data, declared, max_bytes)?;
    let mut run = SignatureRun::predict(signature, inputs);
    run.output_filter = output_filter;
    Ok((InferRequest::new(version, run), form))
}

/// scikit-learn refuses data without rows.
fn check_rows(data: &ModelData<'_>, flavor: Flavor) -> Result<()> {
    match data {
        ModelData::Table(MlflowTable { rows: 0, .. }) if flavor == Flavor::Sklearn => {
            Err(fault::unexpected("Found array with 0 sample(s) while a minimum of 1 is required."))
        }
        ModelData::Table(_) | ModelData::Array(_) | ModelData::Named(_) => Ok(()),
    }
}

/// The number of the signature that is called: for a table whose columns have names, the one that takes
/// columns by their names, if there is one.
fn found_signature(
    resolver: &mut Resolver<'_>,
    version: &ModelHandle,
    data: &ModelData<'_>,
) -> Result<usize> {
    let Some(found) = version.signature(SIGNATURE) else {
        return Err(fault::unexpected(format_args!("the model has no signature {SIGNATURE:?}")));
    };
    let names = match data {
        ModelData::Table(table) => inputs::column_names(table),
        ModelData::Array(_) | ModelData::Named(_) => None,
    };
    let (signature, declared) = match names {
        Some(names) => inputs::by_columns(version, found, &names)?,
        None => found,
    };
    resolver.found_signature(signature);
    match declared.unsupported() {
        Some(why) => Err(fault::unexpected(why)),
        None => Ok(signature),
    }
}

type Parts<'a> = (MlflowPayload<'a>, PayloadKind, Option<Node<'a>>);

/// The data and the parameters of a body.
fn read<'a>(format: BodyType, body: &'a [u8], model: &MlflowModel) -> Result<Parts<'a>> {
    if format == BodyType::Csv {
        let table = csv::read(body, model.signature.inputs.as_ref())?;
        return Ok((MlflowPayload::Table(table), PayloadKind::Csv, None));
    }
    let JsonRequest { payload, params } = payload::read(body, model.signature.inputs.as_ref())?;
    let kind = match payload {
        MlflowPayload::Table(_) => PayloadKind::Table,
        MlflowPayload::Array(_) | MlflowPayload::Named(_) | MlflowPayload::Records(_) => {
            PayloadKind::Other
        }
    };
    Ok((payload, kind, params))
}

#[cfg(test)]
mod tests;
