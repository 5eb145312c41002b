//! TensorFlow Serving's gRPC methods, from request message to response message, without the
//! transport.
//!
//! Sources: `servables/tensorflow/{predict_util,get_model_metadata_impl}.cc`,
//! `model_servers/{prediction,model}_service_impl.cc` of github.com/tensorflow/serving.

use std::collections::BTreeMap;

use prost::Message;

use super::{DEFAULT_SIGNATURE, not_served};
use tensorserve_core::engine::{
    Engine, InferRequest, InferResponse, InferenceCall, ModelHandle, ModelSpec, Resolver,
    SignatureRun, VersionSelector, VersionStatus,
};
use tensorserve_proto::serving::model_spec::VersionChoice;
use tensorserve_proto::serving::{
    GetModelMetadataRequest, GetModelMetadataResponse, GetModelStatusRequest,
    GetModelStatusResponse, ModelSpec as ModelSpecProto, ModelVersionStatus, PredictRequest,
    PredictResponse, SignatureDefMap, StatusProto,
};
use tensorserve_proto::tensorflow::tensor_info::{CooSparse, Encoding};
use tensorserve_proto::tensorflow::tensor_shape_proto::Dim;
use tensorserve_proto::tensorflow::{SignatureDef, TensorInfo, TensorProto, TensorShapeProto};
use tensorserve_proto::{Form, tensor_from_proto, tensor_to_proto};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::names::{InputName, shown};
use tensorserve_tensor::{DeclaredShape, Signature, Tensor, TensorSpec};

/// The properties of a Predict call that the response depends on.
pub(super) struct PredictForm {
    signature_name: String,
    output_filter: Vec<String>,
    /// The encoding of tensors.
    form: Form,
}

/// `PredictionService.Predict`. Outputs are written in `form`.
///
/// # Errors
/// The errors of the reference, and those of the model.
pub async fn predict(
    engine: &Engine,
    request: PredictRequest,
    form: Form,
    call: InferenceCall,
) -> Result<PredictResponse> {
    let decode = move |resolver: &mut Resolver<'_>| decode_predict(resolver, request, form);
    engine.infer(call, decode, encode_predict).await.answer
}

pub(super) fn decode_predict(
    resolver: &mut Resolver<'_>,
    request: PredictRequest,
    form: Form,
) -> Result<(InferRequest, PredictForm)> {
    let version = find(resolver, request.model_spec.as_ref())?;
    decode_predict_for(resolver, version, request, form)
}

/// Decodes a Predict request for a version that is already resolved.
pub(super) fn decode_predict_for(
    resolver: &mut Resolver<'_>,
    version: ModelHandle,
    request: PredictRequest,
    form: Form,
) -> Result<(InferRequest, PredictForm)> {
    let PredictRequest { model_spec, inputs, output_filter } = request;
    let signature_name = signature_name(model_spec.as_ref()).to_owned();
    let mut found = predict_signature(&version, &signature_name)?;
    found = version.signature_by_inputs(found, inputs.keys());
    let (index, signature) = found;
    resolver.found_signature(index);
    let wanted = wanted_outputs(signature, &output_filter)?;
    let inputs = input_tensors(signature, inputs)?;
    let run = SignatureRun { output_filter: wanted, ..SignatureRun::predict(index, inputs) };
    Ok((InferRequest::new(version, run), PredictForm { signature_name, output_filter, form }))
}

pub(super) fn encode_predict(
    call: PredictForm,
    response: InferResponse,
) -> Result<PredictResponse> {
    let PredictForm { signature_name, output_filter, form } = call;
    let model_spec = Some(effective_spec(&response.version, &signature_name));
    let (version, run) = response.into_single();
    let declared = version.signatures().get(run.signature);
    let aliases: Vec<String> = match output_filter.is_empty() {
        false => output_filter,
        true => declared.into_iter().flat_map(|s| &s.outputs).map(|s| s.alias.clone()).collect(),
    };
    if aliases.len() > run.outputs.len() {
        return Err(Error::internal("an output is missing"));
    }
    // As a message, and as its bytes.
    let bytes: usize = run.outputs.iter().map(Tensor::byte_len).sum();
    budget::reserve(bytes.saturating_mul(2))?;
    let outputs = aliases.into_iter().zip(&run.outputs);
    let outputs = outputs.map(|(alias, output)| (alias, tensor_to_proto(output, form))).collect();
    Ok(PredictResponse { model_spec, outputs })
}

/// The signature `name` for a Predict call.
fn predict_signature<'h>(handle: &'h ModelHandle, name: &str) -> Result<(usize, &'h Signature)> {
    handle
        .signature(name)
        .ok_or_else(|| Error::precondition(format!("Serving signature key \"{name}\" not found.")))
}

/// The version that a request selects.
pub(super) fn find(
    resolver: &mut Resolver<'_>,
    spec: Option<&ModelSpecProto>,
) -> Result<ModelHandle> {
    let spec = checked(spec)?;
    resolver.resolve(&spec).map_err(|unresolved| not_served(unresolved, &spec))
}

fn checked(spec: Option<&ModelSpecProto>) -> Result<ModelSpec<'_>> {
    let spec = spec.ok_or_else(|| Error::invalid("Missing ModelSpec"))?;
    if spec.name.is_empty() {
        return Err(Error::invalid("ModelSpec has no name specified."));
    }
    Ok(ModelSpec { name: &spec.name, choice: choice(spec) })
}

/// The signature that a request selects.
pub(super) fn signature_name(spec: Option<&ModelSpecProto>) -> &str {
    let given = spec.map(|spec| spec.signature_name.as_str()).filter(|name| !name.is_empty());
    given.unwrap_or(DEFAULT_SIGNATURE)
}

fn choice(spec: &ModelSpecProto) -> VersionSelector<'_> {
    match &spec.version_choice {
        None => VersionSelector::Latest,
        Some(VersionChoice::Version(version)) => VersionSelector::Version(*version),
        Some(VersionChoice::VersionLabel(label)) => VersionSelector::Label(label),
    }
}

/// The model spec of a response: the version that produced it.
pub(super) fn effective_spec(handle: &ModelHandle, signature: &str) -> ModelSpecProto {
    ModelSpecProto {
        name: handle.model().to_owned(),
        version_choice: Some(VersionChoice::Version(handle.version())),
        signature_name: signature.to_owned(),
    }
}

/// The indices of the requested outputs, in the order of `filter`; empty without a filter.
fn wanted_outputs(signature: &Signature, filter: &[String]) -> Result<Vec<usize>> {
    let mut wanted: Vec<usize> = Vec::with_capacity(filter.len());
    for alias in filter {
        let Some(at) = signature.outputs.iter().position(|spec| spec.alias == *alias) else {
            let known = names(signature.outputs.iter());
            return Err(Error::invalid(format!(
                "output tensor alias not found in signature: {alias} Outputs expected to be in \
                 the set {known}."
            )));
        };
        if wanted.contains(&at) {
            return Err(Error::invalid(format!("duplicate output tensor alias: {alias}")));
        }
        wanted.push(at);
    }
    Ok(wanted)
}

/// `{a,b}`.
fn names<'a>(specs: impl Iterator<Item = &'a TensorSpec>) -> String {
    let aliases: Vec<&str> = specs.map(|spec| spec.alias.as_str()).collect();
    format!("{{{}}}", aliases.join(","))
}

/// One tensor for each input of the signature, in its order.
fn input_tensors(
    signature: &Signature,
    mut given: BTreeMap<String, TensorProto>,
) -> Result<Vec<Tensor>> {
    if !signature.unused_columns.is_empty() {
        given.retain(|alias, _| signature.named(alias.as_bytes()) != InputName::Unused);
    }
    check_names(signature, &given)?;
    check_number(signature, &given)?;
    let mut sent = Vec::with_capacity(signature.inputs.len());
    for spec in &signature.inputs {
        // Takes the message, so that its values are in memory twice only during the conversion.
        let proto = given.get_mut(&spec.alias).map(std::mem::take);
        let tensor = proto.map(|proto| tensor_from_proto(&proto)).transpose();
        sent.push(tensor.map_err(|error| {
            if error.code() == Code::ResourceExhausted {
                return error;
            }
            let message = format!("tensor parsing error: {} ({error})", spec.alias);
            Error::invalid(message)
        })?);
    }
    let rows = sent.iter().flatten().find_map(Tensor::rows).unwrap_or(1);
    let mut tensors = Vec::with_capacity(sent.len());
    for (spec, tensor) in signature.inputs.iter().zip(sent) {
        let tensor = match tensor {
            Some(tensor) => Some(tensor),
            None => signature.absent_input(spec, rows)?,
        };
        tensors.push(tensor.ok_or_else(|| missing_input(signature, spec, &given))?);
    }
    Ok(tensors)
}

/// Refuses inputs that the model does not have, unless the errors are those of the reference, which looks at
/// their number first.
fn check_names(signature: &Signature, given: &BTreeMap<String, TensorProto>) -> Result<()> {
    let unknown =
        given.keys().find(|alias| signature.named(alias.as_bytes()) == InputName::Unknown);
    let Some(alias) = unknown else {
        return Ok(());
    };
    let (name, instead) = (shown(alias.as_bytes()), signature.instead_of(alias.as_bytes()));
    Err(Error::invalid(format!("Unknown input alias: {name} in request; {instead}")))
}

fn check_number(signature: &Signature, given: &BTreeMap<String, TensorProto>) -> Result<()> {
    let expected = signature.inputs.len();
    let is_known = |name: &&&str| signature.input(name).is_some();
    let sent: Vec<&str> = given.keys().map(String::as_str).collect();
    let may_be_absent = signature.takes_missing() || !signature.defaults.is_empty();
    if given.len() == expected || (may_be_absent && given.len() < expected) {
        return Ok(());
    }
    let extra: Vec<&str> = sent.iter().filter(|name| !is_known(name)).copied().collect();
    let missing = signature.inputs.iter().filter(|spec| !given.contains_key(&spec.alias));
    Err(Error::invalid(format!(
        "input size does not match signature: {}!={expected} len({{{}}}) != len({}). Sent extra: \
         {{{}}}. Missing but required: {}.",
        given.len(),
        sent.join(","),
        names(signature.inputs.iter()),
        extra.join(","),
        names(missing)
    )))
}

fn missing_input(
    signature: &Signature,
    spec: &TensorSpec,
    given: &BTreeMap<String, TensorProto>,
) -> Error {
    let given: Vec<&str> = given.keys().map(String::as_str).collect();
    let defaults: Vec<&str> = signature.defaults.iter().map(|(alias, _)| alias.as_str()).collect();
    Error::invalid(format!(
        "Signature input alias: {}(feed name: {}) not found in request and no default value \
         provided. Inputs expected to be in the request {{{}}}, or default input alias set: {{{}}}",
        spec.alias,
        spec.tensor_name,
        given.join(","),
        defaults.join(",")
    ))
}

/// `PredictionService.GetModelMetadata`.
///
/// # Errors
/// [`Code::InvalidArgument`] for any field but
/// `signature_def`, and the errors of resolving the model.
pub fn metadata(
    engine: &Engine,
    request: &GetModelMetadataRequest,
) -> Result<GetModelMetadataResponse> {
    const FIELD: &str = "signature_def";
    let spec = request.model_spec.as_ref();
    let spec = spec.ok_or_else(|| Error::invalid("Missing ModelSpec"))?;
    if request.metadata_field.is_empty() {
        let message = "GetModelMetadataRequest must specify at least one metadata_field";
        return Err(Error::invalid(message));
    }
    if let Some(other) = request.metadata_field.iter().find(|field| *field != FIELD) {
        return Err(Error::invalid(format!("Metadata field {other} is not supported")));
    }
    let spec = checked(Some(spec))?;
    let found = engine.repository().resolve(&spec);
    let handle = found.map_err(|unresolved| not_served(unresolved, &spec))?;
    let signatures = handle.signatures().iter();
    let signature_def = signatures.map(|s| (s.name.clone(), signature_def(s))).collect();
    let packed = prost_types::Any {
        type_url: "type.googleapis.com/tensorflow.serving.SignatureDefMap".to_owned(),
        value: SignatureDefMap { signature_def }.encode_to_vec(),
    };
    Ok(GetModelMetadataResponse {
        model_spec: Some(effective_spec(&handle, "")),
        metadata: BTreeMap::from([(FIELD.to_owned(), packed)]),
    })
}

fn signature_def(signature: &Signature) -> SignatureDef {
    let defaults = signature.defaults.iter();
    SignatureDef {
        inputs: tensor_infos(&signature.inputs),
        outputs: tensor_infos(&signature.outputs),
        method_name: signature.method_name.clone(),
        defaults: defaults.map(|(k, t)| (k.clone(), tensor_to_proto(t, Form::Values))).collect(),
    }
}

fn tensor_infos(specs: &[TensorSpec]) -> BTreeMap<String, TensorInfo> {
    specs.iter().map(|spec| (spec.alias.clone(), tensor_info(spec))).collect()
}

fn tensor_info(spec: &TensorSpec) -> TensorInfo {
    let encoding = match &spec.sparse {
        None => Encoding::Name(spec.tensor_name.clone()),
        Some(sparse) => Encoding::CooSparse(CooSparse {
            values_tensor_name: sparse.values.clone(),
            indices_tensor_name: sparse.indices.clone(),
            dense_shape_tensor_name: sparse.dense_shape.clone(),
        }),
    };
    let tensor_shape = match &spec.shape {
        DeclaredShape::Missing => None,
        DeclaredShape::UnknownRank => {
            Some(TensorShapeProto { dim: Vec::new(), unknown_rank: true })
        }
        DeclaredShape::Dims(dims) => {
            let dim = |(size, name): &(i64, String)| Dim { size: *size, name: name.clone() };
            Some(TensorShapeProto { dim: dims.iter().map(dim).collect(), unknown_rank: false })
        }
    };
    TensorInfo { dtype: spec.dtype_number, tensor_shape, encoding: Some(encoding) }
}

/// `ModelService.GetModelStatus`.
///
/// # Errors
/// If the model has no versions, or not this one.
pub fn status(engine: &Engine, request: &GetModelStatusRequest) -> Result<GetModelStatusResponse> {
    let spec = request.model_spec.as_ref();
    let spec = spec.ok_or_else(|| Error::invalid("Missing ModelSpec"))?;
    let version = match choice(spec) {
        VersionSelector::Version(version) => Some(version),
        VersionSelector::Latest | VersionSelector::Label(_) => None,
    };
    let versions = super::describe::versions(engine, &spec.name, version)?;
    let model_version_status = versions.iter().map(version_status).collect();
    Ok(GetModelStatusResponse { model_version_status })
}

fn version_status(status: &VersionStatus) -> ModelVersionStatus {
    let (state, error) = super::describe::state_of(status);
    let status_proto = StatusProto {
        error_code: error.as_ref().map_or(0, |error| i32::from(error.code().grpc())),
        error_message: error.map_or(String::new(), |error| error.message().to_owned()),
    };
    ModelVersionStatus { version: status.version, state: state.into(), status: Some(status_proto) }
}
