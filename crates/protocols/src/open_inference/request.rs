//! A request for inference as a client gives it, of REST and of gRPC, and the run that it asks for.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::datatype;
use super::shared_memory::SharedOutput;
use tensorserve_codec::cast::cast;
use tensorserve_codec::cast::tensor_texts;
use tensorserve_core::engine::{
    InferRequest, ModelHandle, ModelSpec, Resolver, SignatureRun, Unresolved, VersionSelector,
};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::names::InputName;
use tensorserve_tensor::priority::Priority;
use tensorserve_tensor::{DType, Signature, Tensor, TensorSpec};

/// The signature of a request that names none, if the model has it.
const DEFAULT_SIGNATURE: &str = "serving_default";

/// The parameters of a request that have a meaning here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    /// Answer all outputs as raw bytes.
    pub(super) binary_data_output: bool,
    /// Microseconds after which the client has no use for the answer.
    pub(super) timeout: Option<u64>,
    /// How urgent it is.
    pub(super) priority: Option<Priority>,
    /// The signature to run: the protocol has no other place for it.
    pub(super) signature: Option<String>,
}

/// The parameter "priority" as in Triton: 0 is the usual one, 1 the highest.
pub(super) fn priority_of(number: u64) -> Option<Priority> {
    match number {
        0 => None,
        1 => Some(Priority::High),
        2 => Some(Priority::Normal),
        3.. => Some(Priority::Low),
    }
}

/// An output that a client asks for.
pub(super) struct WantedOutput {
    pub(super) name: String,
    /// Answer it as raw bytes; by default as all outputs.
    pub(super) binary: Option<bool>,
    /// Write it to shared memory, and do not answer it.
    pub(super) shared: Option<SharedOutput>,
}

/// The error for an output that is asked for as classes.
pub(super) fn no_classification() -> Error {
    Error::new(Code::Unimplemented, "the classification extension is not supported")
}

/// How an output is answered.
pub(super) enum OutputForm {
    /// As values.
    Values,
    /// As raw bytes.
    Raw,
    /// Written to shared memory.
    Shared(SharedOutput),
}

/// A request, its tensors decoded.
#[derive(Default)]
pub(super) struct GivenRequest {
    pub(super) id: String,
    pub(super) parameters: Parameters,
    pub(super) inputs: Vec<(String, Tensor)>,
    /// Empty for all.
    pub(super) outputs: Vec<WantedOutput>,
}

/// What the response depends on.
pub(super) struct AnswerForm {
    /// The client's, or empty.
    pub(super) id: String,
    /// The outputs in the order of the response, by number in the signature.
    pub(super) outputs: Vec<(usize, OutputForm)>,
}

/// The model and version in a path or a message. The version is a number or a label; empty for the
/// latest.
#[derive(Clone, Debug)]
pub(super) struct NamedModel {
    pub(super) name: String,
    pub(super) version: String,
}

impl NamedModel {
    /// The latest version of a model.
    pub(super) fn latest(name: &str) -> Self {
        NamedModel { name: name.to_owned(), version: String::new() }
    }

    pub(super) fn spec(&self) -> ModelSpec<'_> {
        let choice = match (self.version.as_str(), self.version.parse()) {
            ("", _) => VersionSelector::Latest,
            (_, Ok(number)) => VersionSelector::Version(number),
            (label, Err(_)) => VersionSelector::Label(label),
        };
        ModelSpec { name: &self.name, choice }
    }

    /// The version that is served.
    pub(super) fn resolve(&self, resolver: &mut Resolver<'_>) -> Result<ModelHandle> {
        resolver.resolve(&self.spec()).map_err(|unresolved| self.not_served(unresolved))
    }

    /// Clients look for the beginning of this message.
    pub(super) fn not_served(&self, unresolved: Unresolved) -> Error {
        let NamedModel { name, version } = self;
        match unresolved {
            Unresolved::Model => {
                Error::not_found(format!("Request for unknown model: '{name}' is not found"))
            }
            Unresolved::Version(number) if number.to_string() != *version => {
                Error::not_found(format!(
                    "Request for unknown model: '{name}' version {number}, which has the label \
                     {version}, is not found"
                ))
            }
            Unresolved::Version(_) | Unresolved::Label => Error::not_found(format!(
                "Request for unknown model: '{name}' version {version} is not found"
            )),
        }
    }
}

/// The signature that a request is for: the one that it names, else `serving_default`, else the only
/// one that takes tensors by their names.
///
/// # Errors
/// If there is no such signature.
pub(super) fn signature_of<'h>(
    handle: &'h ModelHandle,
    given: Option<&str>,
) -> Result<(usize, &'h Signature)> {
    let name = given.unwrap_or(DEFAULT_SIGNATURE);
    if let Some(found) = handle.signature(name) {
        return Ok(found);
    }
    let all = handle.signatures();
    if let (None, [only]) = (given, all) {
        return Ok((0, only));
    }
    let names: Vec<&str> = all.iter().map(|signature| signature.name.as_str()).collect();
    Err(Error::invalid(format!(
        "model '{}' has no signature {name:?}; the parameter \"signature_name\" selects one of {names:?}",
        handle.model()
    )))
}

impl GivenRequest {
    /// The run that it asks for, and what the response depends on.
    ///
    /// # Errors
    /// If inputs or outputs are not those of the signature.
    pub(super) fn into_run(
        self,
        version: ModelHandle,
        resolver: &mut Resolver<'_>,
    ) -> Result<(InferRequest, AnswerForm)> {
        let GivenRequest { id, parameters, inputs, outputs } = self;
        let mut found = signature_of(&version, parameters.signature.as_deref())?;
        found = version.signature_by_inputs(found, inputs.iter().map(|(name, _)| name));
        let (index, signature) = found;
        resolver.found_signature(index);
        let inputs = ordered(version.model(), signature, inputs)?;
        let wanted = wanted_outputs(version.model(), signature, &outputs)?;
        let form_of = |binary: Option<bool>, shared: Option<SharedOutput>| match shared {
            Some(shared) => OutputForm::Shared(shared),
            None if binary.unwrap_or(parameters.binary_data_output) => OutputForm::Raw,
            None => OutputForm::Values,
        };
        let all = 0..signature.outputs.len();
        let outputs = match outputs.is_empty() {
            true => all.map(|at| (at, form_of(None, None))).collect(),
            false => {
                let forms = outputs.into_iter().map(|output| form_of(output.binary, output.shared));
                wanted.iter().copied().zip(forms).collect()
            }
        };
        let form = AnswerForm { id, outputs };
        let run = SignatureRun { output_filter: wanted, ..SignatureRun::predict(index, inputs) };
        let mut request = InferRequest::new(version, run);
        request.timeout = parameters.timeout.map(Duration::from_micros);
        request.priority = parameters.priority;
        Ok((request, form))
    }
}

/// One tensor for each input of the signature, in its order.
fn ordered(
    model: &str,
    signature: &Signature,
    given: Vec<(String, Tensor)>,
) -> Result<Vec<Tensor>> {
    let mut found: Vec<Option<Tensor>> = vec![None; signature.inputs.len()];
    for (name, tensor) in given {
        let at = match signature.named(name.as_bytes()) {
            InputName::Declared(at) => Some(at),
            InputName::Unused => continue,
            InputName::Ignored | InputName::Unknown => None,
        };
        let Some((spec, slot)) = at.and_then(|at| signature.inputs.get(at).zip(found.get_mut(at)))
        else {
            let instead = signature.instead_of(name.as_bytes());
            return Err(Error::invalid(format!(
                "unexpected inference input '{name}' for model '{model}'; {instead}"
            )));
        };
        if slot.is_some() {
            let message = format!("input '{name}' for model '{model}' is given twice");
            return Err(Error::invalid(message));
        }
        *slot = Some(as_declared(model, spec, tensor)?);
    }
    let rows = found.iter().flatten().find_map(Tensor::rows).unwrap_or(1);
    let mut missing = Vec::new();
    let mut tensors = Vec::with_capacity(found.len());
    for (spec, tensor) in signature.inputs.iter().zip(found) {
        let tensor = match tensor {
            Some(tensor) => Some(tensor),
            None => signature.absent_input(spec, rows)?,
        };
        match tensor {
            Some(tensor) => tensors.push(tensor),
            None => missing.push(spec.clone()),
        }
    }
    if !missing.is_empty() {
        let (missing, expected) = (names(&missing), signature.inputs.len());
        return Err(Error::invalid(format!(
            "model '{model}' expects {expected} inputs; the request lacks {missing}"
        )));
    }
    Ok(tensors)
}

/// The tensor with the declared type. Numbers become those of another size or floats where their values
/// fit, because clients of models of tables mostly have one type for all columns.
fn as_declared(model: &str, spec: &TensorSpec, tensor: Tensor) -> Result<Tensor> {
    let (given, Some(declared)) = (tensor.dtype(), spec.dtype()) else {
        return Ok(tensor);
    };
    if given == declared {
        return Ok(tensor);
    }
    budget::reserve(tensor.shape().elements()?.saturating_mul(declared.size().unwrap_or(0)))?;
    if let (Some(texts), DType::String) = (spec.number_texts, declared)
        && let Some(tensor) = tensor_texts(&tensor, texts)
    {
        return Ok(tensor);
    }
    // Booleans are numbers in the columns of tables only, as pandas has them.
    let is_castable = given != DType::Bool || spec.takes_missing;
    let cast = is_castable.then(|| checked_cast(&tensor, declared)).flatten();
    cast.ok_or_else(|| {
        Error::invalid(format!(
            "inference input '{}' data-type is '{}', but model '{model}' expects '{}'",
            spec.alias,
            datatype::name_of(given),
            datatype::name_of(declared)
        ))
    })
}

/// The values of a type to which JSON's reader and [`cast`] truncate other numbers, as TensorFlow Serving
/// does; `None` for other types.
pub(super) fn truncated_range(dtype: DType) -> Option<RangeInclusive<i64>> {
    match dtype {
        DType::Int8 => Some(i8::MIN.into()..=i8::MAX.into()),
        DType::Int16 => Some(i16::MIN.into()..=i16::MAX.into()),
        DType::UInt8 => Some(0..=u8::MAX.into()),
        DType::Float
        | DType::Double
        | DType::Half
        | DType::BFloat16
        | DType::Int32
        | DType::Int64
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64
        | DType::Bool
        | DType::Complex64
        | DType::Complex128
        | DType::String => None,
    }
}

/// The tensor with another numeric type, as [`cast`] does it; `None` also for values that it truncates
/// as TensorFlow Serving does.
pub(super) fn checked_cast(tensor: &Tensor, dtype: DType) -> Option<Tensor> {
    if let Some(range) = truncated_range(dtype) {
        let wide = cast(tensor, DType::Int64)?;
        let mut values = wide.values::<i64>().unwrap_or_default().iter();
        values.all(|value| range.contains(value)).then_some(())?;
    }
    cast(tensor, dtype)
}

/// The numbers of the outputs that are asked for; empty for all.
fn wanted_outputs(
    model: &str,
    signature: &Signature,
    wanted: &[WantedOutput],
) -> Result<Vec<usize>> {
    let mut found: Vec<usize> = Vec::with_capacity(wanted.len());
    for WantedOutput { name, .. } in wanted {
        let at = signature.outputs.iter().position(|spec| spec.alias == *name);
        let at = at.ok_or_else(|| {
            let names = names(&signature.outputs);
            Error::invalid(format!(
                "unexpected inference output '{name}' for model '{model}'; its outputs are {names}"
            ))
        })?;
        if found.contains(&at) {
            return Err(Error::invalid(format!("output '{name}' is requested twice")));
        }
        found.push(at);
    }
    Ok(found)
}

/// `['a', 'b']`.
fn names(specs: &[TensorSpec]) -> String {
    let names: Vec<String> = specs.iter().map(|spec| format!("'{}'", spec.alias)).collect();
    format!("[{}]", names.join(", "))
}
