//! Requests and responses over gRPC: contents as typed values, or raw as in the binary extension of REST.
//!
//! The response to a raw request is raw. The response to typed contents has both: clients of KServe's
//! and Seldon's servers read the typed ones, those of Triton, which answers no others, the raw ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use prost::encoding::encode_varint;

use super::datatype;
use super::raw;
use super::request::{
    AnswerForm, GivenRequest, NamedModel, OutputForm, Parameters, WantedOutput, no_classification,
    priority_of,
};
use super::response::new_id;
use super::shared_memory::{Regions, SharedRange};
use tensorserve_core::engine::{Engine, InferRequest, InferResponse, InferenceCall, Resolver};
use tensorserve_proto::inference::infer_parameter::ParameterChoice;
use tensorserve_proto::inference::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use tensorserve_proto::inference::model_infer_response::InferOutputTensor;
use tensorserve_proto::inference::{
    InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse,
};
use tensorserve_protocol::grpc::FollowingFields;
use tensorserve_tensor::budget::{self, reserved_vec};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    AlignedVec, DType, Element, STRING_OVERHEAD, Shape, StringsBuilder, Tensor,
};

/// `GRPCInferenceService.ModelInfer`.
///
/// # Errors
/// For requests that are wrong, and what the model reports.
pub async fn infer(
    engine: &Engine,
    regions: &Arc<Regions>,
    request: ModelInferRequest,
    call: InferenceCall,
) -> Result<ModelInferResponse> {
    let regions = Arc::clone(regions);
    let decode = move |resolver: &mut Resolver<'_>| decode(resolver, request, &regions);
    engine.infer(call, decode, encode).await.answer
}

/// What a response over gRPC depends on.
struct GrpcForm {
    form: AnswerForm,
    is_raw: bool,
}

/// Decodes a request.
fn decode(
    resolver: &mut Resolver<'_>,
    request: ModelInferRequest,
    regions: &Regions,
) -> Result<(InferRequest, GrpcForm)> {
    let ModelInferRequest {
        model_name,
        model_version,
        id,
        parameters,
        inputs,
        outputs,
        raw_input_contents,
    } = request;
    let named = NamedModel { name: model_name, version: model_version };
    let version = named.resolve(resolver)?;
    let parameters = read_parameters(&parameters)?;
    let outputs = outputs.iter().map(|output| wanted(output, regions)).collect::<Result<_>>()?;
    let is_raw = !raw_input_contents.is_empty() || inputs.iter().any(is_shared);
    let inputs = match is_raw {
        true => raw_inputs(&named.name, inputs, raw_input_contents, regions)?,
        false => inputs.into_iter().map(typed_input).collect::<Result<_>>()?,
    };
    let given = GivenRequest { id, parameters, inputs, outputs };
    let (request, form) = given.into_run(version, resolver)?;
    Ok((request, GrpcForm { form, is_raw }))
}

fn read_parameters(parameters: &BTreeMap<String, InferParameter>) -> Result<Parameters> {
    let mut read = Parameters::default();
    let choice =
        |name: &str| parameters.get(name).and_then(|value| value.parameter_choice.as_ref());
    let wrong =
        |name: &str, what: &str| Error::invalid(format!("the parameter {name:?} must be {what}"));
    let whole = |name: &str, what: &str| {
        let Some(choice) = choice(name) else {
            return Ok(None);
        };
        let number = match choice {
            ParameterChoice::Int64Param(number) => u64::try_from(*number).ok(),
            ParameterChoice::Uint64Param(number) => Some(*number),
            ParameterChoice::BoolParam(_)
            | ParameterChoice::StringParam(_)
            | ParameterChoice::DoubleParam(_) => None,
        };
        number.map(Some).ok_or_else(|| wrong(name, what))
    };
    let priority = whole("priority", "a number from 0, the usual priority, or 1, the highest")?;
    read.priority = priority.and_then(priority_of);
    if let Some(micros) = whole("timeout", "a number of microseconds")? {
        // As in Triton, 0 is none.
        read.timeout = (micros > 0).then_some(micros);
    }
    if let Some(signature) = choice("signature_name") {
        let ParameterChoice::StringParam(name) = signature else {
            return Err(wrong("signature_name", "a string"));
        };
        read.signature = Some(name.clone());
    }
    Ok(read)
}

const REGION: &str = "shared_memory_region";

fn is_shared(input: &InferInputTensor) -> bool {
    input.parameters.contains_key(REGION)
}

/// The range of shared memory that parameters name.
fn shared_range(
    what: &str,
    parameters: &BTreeMap<String, InferParameter>,
) -> Result<Option<SharedRange>> {
    let choice =
        |name: &str| parameters.get(name).and_then(|value| value.parameter_choice.as_ref());
    let wrong =
        |name: &str| Error::invalid(format!("{what}: the parameter {name:?} is missing or wrong"));
    let whole = |name: &str| match choice(name) {
        None => Ok(None),
        Some(ParameterChoice::Int64Param(number)) => {
            u64::try_from(*number).map(Some).map_err(|_| wrong(name))
        }
        Some(ParameterChoice::Uint64Param(number)) => Ok(Some(*number)),
        Some(
            ParameterChoice::BoolParam(_)
            | ParameterChoice::StringParam(_)
            | ParameterChoice::DoubleParam(_),
        ) => Err(wrong(name)),
    };
    let region = match choice(REGION) {
        None => return Ok(None),
        Some(ParameterChoice::StringParam(region)) => region.clone(),
        Some(_) => return Err(wrong(REGION)),
    };
    let byte_size = whole("shared_memory_byte_size")?;
    Ok(Some(SharedRange {
        region,
        offset: whole("shared_memory_offset")?.unwrap_or(0),
        byte_size: byte_size.ok_or_else(|| wrong("shared_memory_byte_size"))?,
    }))
}

fn wanted(output: &InferRequestedOutputTensor, regions: &Regions) -> Result<WantedOutput> {
    if output.parameters.contains_key("classification") {
        return Err(no_classification());
    }
    let name = output.name.clone();
    let range = shared_range(&format!("output {name:?}"), &output.parameters)?;
    let shared = range.map(|range| regions.output(&name, range)).transpose()?;
    Ok(WantedOutput { name, binary: None, shared })
}

/// The type and the shape of an input.
fn head(input: &InferInputTensor) -> Result<(DType, Shape)> {
    let InferInputTensor { name, datatype, shape, .. } = input;
    let dtype = datatype::of_name(datatype).ok_or_else(|| {
        Error::invalid(format!("input {name:?} has an unknown datatype, {datatype:?}"))
    })?;
    let shape = Shape::new(shape).map_err(|error| error.context(format!("input {name:?}")))?;
    Ok((dtype, shape))
}

/// Inputs with raw contents, in the order of those that are not in shared memory.
fn raw_inputs(
    model: &str,
    inputs: Vec<InferInputTensor>,
    contents: Vec<Bytes>,
    regions: &Regions,
) -> Result<Vec<(String, Tensor)>> {
    let expected = inputs.iter().filter(|input| !is_shared(input)).count();
    if contents.len() != expected {
        return Err(Error::invalid(format!(
            "raw_input_contents has {} elements, but there are {expected} inputs; each needs one",
            contents.len()
        )));
    }
    let mut contents = contents.into_iter();
    let read = |input: InferInputTensor| {
        if input.contents.is_some() {
            return Err(Error::invalid(format!(
                "contents field must not be specified when using raw_input_contents for '{}' for model \
                 '{model}'",
                input.name
            )));
        }
        let (dtype, shape) = head(&input)?;
        let content = match shared_range(&format!("input {:?}", input.name), &input.parameters)? {
            Some(range) => regions.read(&input.name, &range)?,
            None => contents.next().unwrap_or_default(),
        };
        let tensor = raw::read(&input.name, dtype, shape, content)?;
        Ok((input.name, tensor))
    };
    inputs.into_iter().map(read).collect()
}

/// An input with typed contents.
fn typed_input(input: InferInputTensor) -> Result<(String, Tensor)> {
    let (dtype, shape) = head(&input)?;
    let (name, datatype) = (input.name, input.datatype);
    if datatype::is_raw_only(dtype) {
        return Err(Error::invalid(format!(
            "input {name:?}: {datatype} has no typed contents; send it in raw_input_contents"
        )));
    }
    let contents = input.contents.unwrap_or_default();
    let (count, field) = (shape.elements()?, field_of(dtype));
    let given = elements(&contents, dtype);
    if given != count {
        return Err(Error::invalid(format!(
            "input {name:?} has {given} elements in {field}, but its shape {shape:?} has {count}"
        )));
    }
    if all_elements(&contents) != given {
        return Err(Error::invalid(format!(
            "input {name:?} is {datatype}, whose contents are {field} alone; others are set, too"
        )));
    }
    let too_large =
        || Error::invalid(format!("input {name:?}: a value in {field} does not fit {datatype}"));
    let tensor = tensor_of(dtype, shape, contents)?.ok_or_else(too_large)?;
    Ok((name, tensor))
}

/// The field with the contents of a type.
fn field_of(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool_contents",
        DType::Int8 | DType::Int16 | DType::Int32 => "int_contents",
        DType::Int64 => "int64_contents",
        DType::UInt8 | DType::UInt16 | DType::UInt32 => "uint_contents",
        DType::UInt64 => "uint64_contents",
        DType::Float => "fp32_contents",
        DType::Double => "fp64_contents",
        DType::String => "bytes_contents",
        DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 => "no contents",
    }
}

/// The number of elements in all fields.
fn all_elements(contents: &InferTensorContents) -> usize {
    let InferTensorContents {
        bool_contents,
        int_contents,
        int64_contents,
        uint_contents,
        uint64_contents,
        fp32_contents,
        fp64_contents,
        bytes_contents,
    } = contents;
    let signed = int_contents.len() + int64_contents.len();
    let unsigned = uint_contents.len() + uint64_contents.len();
    let floats = fp32_contents.len() + fp64_contents.len();
    bool_contents.len() + signed + unsigned + floats + bytes_contents.len()
}

/// The number of elements in the field of a type.
fn elements(contents: &InferTensorContents, dtype: DType) -> usize {
    match dtype {
        DType::Bool => contents.bool_contents.len(),
        DType::Int8 | DType::Int16 | DType::Int32 => contents.int_contents.len(),
        DType::Int64 => contents.int64_contents.len(),
        DType::UInt8 | DType::UInt16 | DType::UInt32 => contents.uint_contents.len(),
        DType::UInt64 => contents.uint64_contents.len(),
        DType::Float => contents.fp32_contents.len(),
        DType::Double => contents.fp64_contents.len(),
        DType::String => contents.bytes_contents.len(),
        DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 => 0,
    }
}

/// The tensor of typed contents; `None` if a value does not fit the type.
fn tensor_of(dtype: DType, shape: Shape, contents: InferTensorContents) -> Result<Option<Tensor>> {
    fn all<T: Element, V: Copy>(
        shape: Shape,
        values: &[V],
        convert: impl Fn(V) -> Option<T>,
    ) -> Result<Option<Tensor>> {
        let mut converted: AlignedVec<T> = reserved_vec(values.len())?;
        for value in values {
            let Some(value) = convert(*value) else {
                return Ok(None);
            };
            converted.push(value);
        }
        Tensor::from_vec(shape, converted).map(Some)
    }
    match dtype {
        DType::Int8 => all(shape, &contents.int_contents, |n| i8::try_from(n).ok()),
        DType::Int16 => all(shape, &contents.int_contents, |n| i16::try_from(n).ok()),
        DType::Int32 => all(shape, &contents.int_contents, Some),
        DType::Int64 => all(shape, &contents.int64_contents, Some),
        DType::UInt8 => all(shape, &contents.uint_contents, |n| u8::try_from(n).ok()),
        DType::UInt16 => all(shape, &contents.uint_contents, |n| u16::try_from(n).ok()),
        DType::UInt32 => all(shape, &contents.uint_contents, Some),
        DType::UInt64 => all(shape, &contents.uint64_contents, Some),
        DType::Float => all(shape, &contents.fp32_contents, Some),
        DType::Double => all(shape, &contents.fp64_contents, Some),
        DType::Bool => {
            let mut bytes = reserved_vec::<u8>(contents.bool_contents.len())?;
            contents.bool_contents.iter().for_each(|value| bytes.push(u8::from(*value)));
            Tensor::from_bools(shape, bytes).map(Some)
        }
        DType::String => {
            let strings = &contents.bytes_contents;
            let bytes: usize = strings.iter().map(Bytes::len).sum();
            budget::reserve(bytes.saturating_add(strings.len().saturating_mul(STRING_OVERHEAD)))?;
            let mut built = StringsBuilder::with_capacity(strings.len(), bytes);
            strings.iter().for_each(|string| built.push(string));
            Tensor::from_strings(shape, built).map(Some)
        }
        DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 => Ok(None),
    }
}

/// Encodes a response.
fn encode(form: GrpcForm, response: InferResponse) -> Result<ModelInferResponse> {
    let GrpcForm { form: AnswerForm { id, outputs: order }, is_raw } = form;
    let (version, run) = response.into_single();
    let specs = version.signatures().get(run.signature).map_or(&[][..], |s| &s.outputs);
    // As bytes of the message; typed contents, too, which take up to four times the memory of an int8.
    let bytes: usize = run.outputs.iter().map(raw::len).sum();
    budget::reserve(bytes.saturating_mul(if is_raw { 1 } else { 8 }))?;
    let (mut outputs, mut raws) = (Vec::with_capacity(order.len()), Vec::new());
    for ((at, form), tensor) in order.iter().zip(&run.outputs) {
        let name = specs.get(*at).map_or_else(String::new, |spec| spec.alias.clone());
        let (mut parameters, mut bytes) = (BTreeMap::new(), Bytes::new());
        if let OutputForm::Shared(shared) = form {
            let size = shared.write(&name, tensor)?;
            parameters = shared_parameters(&shared.range, size);
        } else {
            bytes = raw::bytes(tensor)?;
        }
        let has_contents = !is_raw && parameters.is_empty();
        raws.push(bytes);
        outputs.push(InferOutputTensor {
            name,
            datatype: datatype::name_of(tensor.dtype()).to_owned(),
            shape: tensor.shape().dims().to_vec(),
            parameters,
            contents: has_contents.then(|| contents_of(tensor)),
        });
    }
    Ok(ModelInferResponse {
        model_name: version.model().to_owned(),
        model_version: version.version().to_string(),
        id: if id.is_empty() { new_id() } else { id },
        parameters: BTreeMap::new(),
        outputs,
        raw_output_contents: raws,
    })
}

/// The key of `ModelInferResponse.raw_output_contents`, field 6, whose elements have lengths.
const RAW_OUTPUT_CONTENTS: u8 = 6 << 3 | 2;

/// Takes the raw contents out of a response if they are large, as fields that follow its message: they are
/// sent from where they are. A response of more than `most` bytes stays whole, to be refused.
pub(super) fn take_raw_contents(
    response: &mut ModelInferResponse,
    most: usize,
) -> Option<FollowingFields> {
    let bytes: usize = response.raw_output_contents.iter().map(Bytes::len).sum();
    if bytes < WORTH_SENDING_APART || response.encoded_len() > most {
        return None;
    }
    let mut fields = Vec::new();
    for content in std::mem::take(&mut response.raw_output_contents) {
        let mut key = vec![RAW_OUTPUT_CONTENTS];
        encode_varint(content.len() as u64, &mut key);
        fields.extend([key.into(), content]);
    }
    Some(FollowingFields(fields))
}

/// Smaller contents are copied into the message: that costs less than to send them by themselves.
const WORTH_SENDING_APART: usize = 16 << 10;

fn shared_parameters(range: &SharedRange, size: u64) -> BTreeMap<String, InferParameter> {
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let whole = |number| ParameterChoice::Int64Param(i64::try_from(number).unwrap_or(i64::MAX));
    [
        (REGION, ParameterChoice::StringParam(range.region.clone())),
        ("shared_memory_offset", whole(range.offset)),
        ("shared_memory_byte_size", whole(size)),
    ]
    .map(|(name, choice)| (name.to_owned(), parameter(choice)))
    .into()
}

fn contents_of(tensor: &Tensor) -> InferTensorContents {
    fn all<T: Element, V>(tensor: &Tensor, convert: impl Fn(T) -> V) -> Vec<V> {
        tensor.values::<T>().unwrap_or_default().iter().map(|value| convert(*value)).collect()
    }
    let mut contents = InferTensorContents::default();
    match tensor.dtype() {
        DType::Bool => {
            contents.bool_contents = tensor.bytes().iter().map(|byte| *byte != 0).collect();
        }
        DType::Int8 => contents.int_contents = all(tensor, |n: i8| n.into()),
        DType::Int16 => contents.int_contents = all(tensor, |n: i16| n.into()),
        DType::Int32 => contents.int_contents = all(tensor, |n: i32| n),
        DType::Int64 => contents.int64_contents = all(tensor, |n: i64| n),
        DType::UInt8 => contents.uint_contents = all(tensor, |n: u8| n.into()),
        DType::UInt16 => contents.uint_contents = all(tensor, |n: u16| n.into()),
        DType::UInt32 => contents.uint_contents = all(tensor, |n: u32| n),
        DType::UInt64 => contents.uint64_contents = all(tensor, |n: u64| n),
        DType::Float => contents.fp32_contents = all(tensor, |n: f32| n),
        DType::Double => contents.fp64_contents = all(tensor, |n: f64| n),
        DType::String => {
            let strings = tensor.strings().into_iter().flat_map(|strings| strings.iter());
            contents.bytes_contents = strings.map(Bytes::copy_from_slice).collect();
        }
        DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 => {}
    }
    contents
}
