//! Bodies of requests, in the format of each protocol.

use std::sync::Arc;

use clap::ValueEnum;
use prost::Message;
use serde_json::{Value, json};

use super::super::example;
use super::target::{ModelTarget, NamedVersion};
use tensorserve_codec::json::write::{self, Floats, JsonLayout, Style, Texts};
use tensorserve_codec::npy;
use tensorserve_loadgen::plan::WireKind;
use tensorserve_proto::inference::infer_parameter::ParameterChoice;
use tensorserve_proto::inference::model_infer_request::InferInputTensor;
use tensorserve_proto::inference::{InferParameter, ModelInferRequest};
use tensorserve_proto::serving::model_spec::VersionChoice;
use tensorserve_proto::serving::{ModelSpec, PredictRequest};
use tensorserve_proto::{Form, tensor_to_proto};
use tensorserve_protocols::open_inference::datatype_name;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    Buffer, DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// Methods of gRPC.
pub(super) const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";
const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// The signature of requests that name none.
pub(in crate::cli) const DEFAULT_SIGNATURE: &str = "serving_default";

/// The largest array of NumPy that is made.
const LARGEST: usize = 1 << 30;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum LoadProtocol {
    /// TensorFlow Serving's JSON: POST /v1/models/M:predict
    V1,
    /// An array of NumPy for the only input: POST /v1/models/M:predict
    Npy,
    /// A PredictRequest: POST /v1/models/M:predict
    Protobuf,
    /// Simple TensorFlow Serving's JSON: POST /
    Simple,
    /// SageMaker's JSON: POST /invocations
    Invocations,
    /// The Open Inference Protocol's JSON: POST /v2/models/M/infer
    V2,
    /// The same with raw bytes
    V2Raw,
    /// TensorFlow Serving's gRPC: PredictionService/Predict
    Grpc,
    /// The Open Inference Protocol's gRPC: GRPCInferenceService/ModelInfer
    V2Grpc,
}

impl LoadProtocol {
    pub(super) fn words(self) -> &'static str {
        match self {
            LoadProtocol::V1 => "v1 JSON",
            LoadProtocol::Npy => "v1 npy",
            LoadProtocol::Protobuf => "v1 protobuf",
            LoadProtocol::Simple => "POST / JSON",
            LoadProtocol::Invocations => "/invocations",
            LoadProtocol::V2 => "v2 JSON",
            LoadProtocol::V2Raw => "v2 raw bytes",
            LoadProtocol::Grpc => "gRPC",
            LoadProtocol::V2Grpc => "v2 gRPC",
        }
    }

    pub(super) fn path(self, target: &ModelTarget) -> String {
        match self {
            LoadProtocol::V1 | LoadProtocol::Npy | LoadProtocol::Protobuf => {
                format!("{}:predict", target.v1_path())
            }
            LoadProtocol::Simple => format!("{}/", target.prefix),
            LoadProtocol::Invocations => format!("{}/invocations", target.prefix),
            LoadProtocol::V2 | LoadProtocol::V2Raw => format!("{}/infer", target.v2_path()),
            LoadProtocol::Grpc => PREDICT.to_owned(),
            LoadProtocol::V2Grpc => MODEL_INFER.to_owned(),
        }
    }

    /// How requests go over a connection.
    pub(in crate::cli) fn wire(self) -> WireKind {
        match self {
            LoadProtocol::Grpc | LoadProtocol::V2Grpc => WireKind::Grpc,
            LoadProtocol::V1
            | LoadProtocol::Npy
            | LoadProtocol::Protobuf
            | LoadProtocol::Simple
            | LoadProtocol::Invocations
            | LoadProtocol::V2
            | LoadProtocol::V2Raw => WireKind::Http,
        }
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            LoadProtocol::V1
            | LoadProtocol::Simple
            | LoadProtocol::Invocations
            | LoadProtocol::V2 => "application/json",
            LoadProtocol::Npy => "application/x-npy",
            LoadProtocol::Protobuf => "application/x-protobuf",
            LoadProtocol::V2Raw => "application/octet-stream",
            LoadProtocol::Grpc | LoadProtocol::V2Grpc => "application/grpc",
        }
    }

    /// Headers besides those of all requests.
    pub(super) fn headers(self, target: &ModelTarget) -> Result<Vec<(&'static str, String)>> {
        Ok(match self {
            LoadProtocol::Npy => vec![("Accept", "application/x-npy".to_owned())],
            LoadProtocol::Invocations => {
                let mut attributes = format!("tfs-model-name={}", target.model);
                if let Some(number) = number_of(target)? {
                    attributes.push_str(&format!(",tfs-model-version={number}"));
                }
                vec![("X-Amzn-SageMaker-Custom-Attributes", attributes)]
            }
            LoadProtocol::V1
            | LoadProtocol::Protobuf
            | LoadProtocol::Simple
            | LoadProtocol::V2
            | LoadProtocol::V2Raw
            | LoadProtocol::Grpc
            | LoadProtocol::V2Grpc => Vec::new(),
        })
    }
}

/// The number of the version, for protocols without labels.
fn number_of(target: &ModelTarget) -> Result<Option<&str>> {
    match &target.version {
        None => Ok(None),
        Some(NamedVersion::Number(number)) => Ok(Some(number)),
        Some(NamedVersion::Label(label)) => Err(Error::invalid(format!(
            "this protocol has no labels: name the version of {label} by its number"
        ))),
    }
}

/// A body and the headers that belong to it.
pub(super) struct PayloadBody {
    pub(super) bytes: Vec<u8>,
    pub(super) headers: Vec<(&'static str, String)>,
}

impl PayloadBody {
    pub(super) fn text(text: impl Into<Vec<u8>>) -> Self {
        PayloadBody { bytes: text.into(), headers: Vec::new() }
    }

    /// As text.
    #[cfg(test)]
    pub(super) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// A body with synthetic inputs.
pub(super) fn made(
    protocol: LoadProtocol,
    target: &ModelTarget,
    signature: &Signature,
    rows: Option<usize>,
) -> Result<PayloadBody> {
    let has_rows = signature.inputs.iter().any(|spec| spec.shape.is_batched());
    if rows.is_some_and(|rows| rows > 1) && !has_rows {
        return Err(Error::invalid("--rows: no input of the signature has a dimension for rows"));
    }
    example::check(signature)?;
    if matches!(protocol, LoadProtocol::V1 | LoadProtocol::Invocations) {
        return example::body(signature, rows).map(PayloadBody::text);
    }
    if signature.takes_images {
        let message = "the signature takes images: give a body with --data, or use --protocol v1";
        return Err(Error::invalid(message));
    }
    let inputs =
        LoadInputs { signature: signature.name.clone(), tensors: tensors(signature, rows)? };
    inputs.body(protocol, target)
}

/// The inputs of a request, by name.
pub(super) struct LoadInputs {
    pub(super) signature: String,
    pub(super) tensors: Vec<(String, Tensor)>,
}

impl LoadInputs {
    /// The body of a request of this protocol.
    ///
    /// # Errors
    /// If the protocol has no form for them.
    pub(super) fn body(&self, protocol: LoadProtocol, target: &ModelTarget) -> Result<PayloadBody> {
        let is_default = self.is_default();
        match protocol {
            LoadProtocol::V1 | LoadProtocol::Invocations => self.v1().map(PayloadBody::text),
            LoadProtocol::Simple => self.simple(target).map(PayloadBody::text),
            LoadProtocol::V2 => self.v2().map(PayloadBody::text),
            LoadProtocol::V2Raw => self.v2_raw(),
            LoadProtocol::V2Grpc => self.model_infer(target),
            LoadProtocol::Npy => match self.tensors.as_slice() {
                _ if !is_default => {
                    Err(Error::invalid("an array of NumPy is for the signature serving_default"))
                }
                [(_, only)] => npy::write(only, LARGEST).map(PayloadBody::text),
                _ => Err(Error::invalid("an array of NumPy is for signatures with one input")),
            },
            LoadProtocol::Protobuf => {
                // The path names the model.
                Ok(PayloadBody::text(self.predict_request(ModelSpec::default()).encode_to_vec()))
            }
            LoadProtocol::Grpc => {
                let request = self.predict_request(model_spec(target)?);
                Ok(PayloadBody::text(request.encode_to_vec()))
            }
        }
    }

    fn is_default(&self) -> bool {
        self.signature.is_empty() || self.signature == DEFAULT_SIGNATURE
    }

    /// A JSON object of the inputs.
    fn json_members(&self) -> Result<String> {
        let members = self.tensors.iter().map(|(alias, tensor)| {
            Ok(format!("{}: {}", Value::from(alias.as_str()), json_of(tensor)?))
        });
        Ok(format!("{{{}}}", members.collect::<Result<Vec<String>>>()?.join(", ")))
    }

    fn v1(&self) -> Result<String> {
        let inputs = self.json_members()?;
        if self.is_default() {
            return Ok(format!("{{\"inputs\": {inputs}}}"));
        }
        let name = Value::from(self.signature.as_str());
        Ok(format!("{{\"signature_name\": {name}, \"inputs\": {inputs}}}"))
    }

    fn simple(&self, target: &ModelTarget) -> Result<String> {
        let mut members = format!("\"model_name\": {}", Value::from(target.model.as_str()));
        if let Some(number) = number_of(target)? {
            let wrong = |_| Error::invalid("the version is not a number");
            let number: u64 = number.parse().map_err(wrong)?;
            members.push_str(&format!(", \"model_version\": {number}"));
        }
        if !self.is_default() {
            let name = Value::from(self.signature.as_str());
            members.push_str(&format!(", \"signature_name\": {name}"));
        }
        Ok(format!("{{{members}, \"data\": {}}}", self.json_members()?))
    }

    fn v2(&self) -> Result<String> {
        let inputs = self.tensors.iter().map(|(alias, tensor)| {
            Ok(format!(
                "{{\"name\": {}, \"shape\": {:?}, \"datatype\": \"{}\", \"data\": {}}}",
                Value::from(alias.as_str()),
                tensor.shape().dims(),
                datatype_name(tensor.dtype()),
                json_of(tensor)?
            ))
        });
        let inputs = inputs.collect::<Result<Vec<String>>>()?.join(", ");
        let parameters = match self.is_default() {
            true => String::new(),
            false => format!(", \"parameters\": {}", json!({"signature_name": self.signature})),
        };
        Ok(format!("{{\"inputs\": [{inputs}]{parameters}}}"))
    }

    /// JSON with the bytes of the inputs behind it.
    fn v2_raw(&self) -> Result<PayloadBody> {
        let (mut inputs, mut content) = (Vec::new(), Vec::new());
        for (alias, tensor) in &self.tensors {
            let bytes = raw_bytes(tensor)?;
            inputs.push(json!({
                "name": alias,
                "shape": tensor.shape().dims(),
                "datatype": datatype_name(tensor.dtype()),
                "parameters": {"binary_data_size": bytes.len()},
            }));
            content.extend_from_slice(&bytes);
        }
        let mut parameters = json!({"binary_data_output": true});
        if let (false, Some(parameters)) = (self.is_default(), parameters.as_object_mut()) {
            parameters.insert("signature_name".to_owned(), self.signature.clone().into());
        }
        let mut bytes =
            json!({"inputs": inputs, "parameters": parameters}).to_string().into_bytes();
        let headers = vec![("Inference-Header-Content-Length", bytes.len().to_string())];
        bytes.append(&mut content);
        Ok(PayloadBody { bytes, headers })
    }

    fn predict_request(&self, spec: ModelSpec) -> PredictRequest {
        let inputs = self.tensors.iter();
        let inputs =
            inputs.map(|(alias, tensor)| (alias.clone(), tensor_to_proto(tensor, Form::Content)));
        PredictRequest {
            model_spec: Some(ModelSpec { signature_name: self.signature.clone(), ..spec }),
            inputs: inputs.collect(),
            output_filter: Vec::new(),
        }
    }

    /// A ModelInferRequest with raw contents.
    fn model_infer(&self, target: &ModelTarget) -> Result<PayloadBody> {
        let (mut inputs, mut contents) = (Vec::new(), Vec::new());
        for (alias, tensor) in &self.tensors {
            inputs.push(InferInputTensor {
                name: alias.clone(),
                datatype: datatype_name(tensor.dtype()).to_owned(),
                shape: tensor.shape().dims().to_vec(),
                ..InferInputTensor::default()
            });
            contents.push(raw_bytes(tensor)?.into());
        }
        let mut request = ModelInferRequest {
            model_name: target.model.clone(),
            inputs,
            raw_input_contents: contents,
            ..ModelInferRequest::default()
        };
        if let Some(NamedVersion::Number(name) | NamedVersion::Label(name)) = &target.version {
            request.model_version.clone_from(name);
        }
        if !self.is_default() {
            let choice = Some(ParameterChoice::StringParam(self.signature.clone()));
            let parameter = InferParameter { parameter_choice: choice };
            request.parameters.insert("signature_name".to_owned(), parameter);
        }
        Ok(PayloadBody::text(request.encode_to_vec()))
    }
}

/// The model and the version, as calls of TensorFlow Serving name them.
pub(super) fn model_spec(target: &ModelTarget) -> Result<ModelSpec> {
    let version_choice = match &target.version {
        None => None,
        Some(NamedVersion::Label(label)) => Some(VersionChoice::VersionLabel(label.clone())),
        Some(NamedVersion::Number(number)) => {
            let wrong = |_| Error::invalid("the version is not a number");
            Some(VersionChoice::Version(number.parse().map_err(wrong)?))
        }
    };
    Ok(ModelSpec { name: target.model.clone(), version_choice, ..ModelSpec::default() })
}

/// A tensor as nested lists. Texts that are not UTF-8 are in base64.
fn json_of(tensor: &Tensor) -> Result<String> {
    let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
    let all_texts = tensor.strings().is_none_or(|texts| texts.iter().all(is_text));
    let texts = if all_texts { Texts::Raw } else { Texts::Base64 };
    let style = Style { layout: JsonLayout::Compact, floats: Floats::TensorFlowServing, texts };
    let mut text = Vec::new();
    write::tensor(tensor, style, 0, &mut text).map_err(|error| {
        error.into_error(|dtype| {
            Error::invalid(format!("JSON has no values of type {}", dtype.name()))
        })
    })?;
    String::from_utf8(text).map_err(|_| Error::internal("JSON that is not UTF-8"))
}

/// The bytes of a tensor; texts with the length of each before it.
fn raw_bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let Some(texts) = tensor.strings() else {
        return Ok(tensor.bytes().to_vec());
    };
    let mut bytes = Vec::new();
    for text in texts.iter() {
        let length = u32::try_from(text.len()).map_err(|_| Error::invalid("a text is too long"))?;
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(text);
    }
    Ok(bytes)
}

/// A tensor of ones for each input, and of a word for texts.
fn tensors(signature: &Signature, rows: Option<usize>) -> Result<Vec<(String, Tensor)>> {
    let tensor = |spec: &TensorSpec| {
        let none =
            || Error::invalid(format!("no value can be made for the input {:?}", spec.alias));
        let dtype = spec.dtype().ok_or_else(none)?;
        let dims = example::dims_of_rows(signature, spec, rows.unwrap_or(1));
        let dims: Vec<i64> =
            dims.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX)).collect();
        let shape = Shape::new(&dims)?;
        let count = shape.elements()?;
        let Some(one) = one(dtype) else {
            let mut texts = StringsBuilder::with_capacity(count, count * 4);
            (0..count).for_each(|_| texts.push(b"text"));
            return Ok((spec.alias.clone(), Tensor::from_strings(shape, texts)?));
        };
        let mut bytes = aligned_vec::<u8>(count * one.len());
        (0..count).for_each(|_| bytes.extend_from_slice(one));
        let tensor = Tensor::numeric(dtype, shape, Buffer::new(Arc::new(bytes)))?;
        Ok((spec.alias.clone(), tensor))
    };
    signature.inputs.iter().map(tensor).collect()
}

/// The number 1, little-endian; `None` for texts.
fn one(dtype: DType) -> Option<&'static [u8]> {
    Some(match dtype {
        DType::Bool | DType::Int8 | DType::UInt8 => &[1],
        DType::Int16 | DType::UInt16 => &[1, 0],
        DType::Int32 | DType::UInt32 => &[1, 0, 0, 0],
        DType::Int64 | DType::UInt64 => &[1, 0, 0, 0, 0, 0, 0, 0],
        DType::Half => &[0, 0x3c],
        DType::BFloat16 => &[0x80, 0x3f],
        DType::Float => &[0, 0, 0x80, 0x3f],
        DType::Double => &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f],
        DType::Complex64 => &[0, 0, 0x80, 0x3f, 0, 0, 0, 0],
        DType::Complex128 => &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0],
        DType::String => return None,
    })
}
