//! Payloads of `:predict` that are not JSON: NumPy arrays, and the messages of the gRPC API.
//! TensorFlow Serving has neither over REST.

use bytes::Bytes;
use prost::Message;

use super::config::TensorContent;
use super::predict::DecodedTensors;
use super::{DEFAULT_SIGNATURE, OwnedModelSpec, encode::TfsFormat, grpc};
use tensorserve_codec::npy;
use tensorserve_core::engine::{
    Engine, InferenceCall, ModelHandle, ModelSpec as EngineSpec, Resolver, VersionSelector,
};
use tensorserve_proto::bounded;
use tensorserve_proto::serving::model_spec::VersionChoice;
use tensorserve_proto::serving::{ModelSpec, PredictRequest};
use tensorserve_protocol::{Answer, NPY, Reply, RequestHead, first_choice, inferred, media_type};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Error, Result};

/// The format of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BodyFormat {
    Json,
    /// One array, as `numpy.save` writes it.
    Npy,
    /// A serialized message, with the media type that the client sent.
    Message(String),
}

impl BodyFormat {
    /// The format of a request's payload. Unknown media types are JSON, as every media type is for
    /// TensorFlow Serving.
    pub(super) fn of_body(head: &RequestHead<'_>, exact: bool) -> Self {
        let kind = head.header("content-type").filter(|_| !exact).unwrap_or_default();
        let kind = media_type(kind);
        match kind.as_str() {
            NPY => BodyFormat::Npy,
            "application/x-protobuf" | "application/protobuf" => BodyFormat::Message(kind),
            _ => BodyFormat::Json,
        }
    }

    /// The format of the response to such a payload.
    pub(super) fn of_answer(&self, head: &RequestHead<'_>, exact: bool) -> Self {
        let accept = head.header("accept").filter(|_| !exact);
        match self {
            BodyFormat::Message(kind) => BodyFormat::Message(kind.clone()),
            BodyFormat::Json | BodyFormat::Npy if accept.is_some_and(prefers_npy) => {
                BodyFormat::Npy
            }
            BodyFormat::Json | BodyFormat::Npy => BodyFormat::Json,
        }
    }
}

/// Whether a NumPy array is the preferred type among those that are accepted by name.
fn prefers_npy(accept: &str) -> bool {
    first_choice(accept, |name| (!name.contains('*')).then(|| name == NPY)).unwrap_or(false)
}

/// Reads an array: the one input of the default signature.
pub(super) fn decode(
    body: &[u8],
    handle: &ModelHandle,
    max_bytes: usize,
) -> Result<DecodedTensors> {
    let (signature, declared) = handle.signature(DEFAULT_SIGNATURE).ok_or_else(|| {
        Error::invalid(format!(
            "Serving signature name: \"{DEFAULT_SIGNATURE}\" not found in signature def"
        ))
    })?;
    let count = declared.inputs.len();
    if count != 1 {
        return Err(Error::invalid(format!(
            "signature \"{DEFAULT_SIGNATURE}\" has {count} inputs, but an npy payload holds only one \
             array: send JSON, or a PredictRequest as application/x-protobuf"
        )));
    }
    let inputs = vec![npy::read(body, max_bytes)?];
    Ok(DecodedTensors { signature, inputs, format: TfsFormat::Column })
}

/// Refuses a signature whose response is not one array, before it is run.
pub(super) fn check_outputs(handle: &ModelHandle, signature: usize) -> Result<()> {
    match handle.signatures().get(signature) {
        Some(signature) if signature.outputs.len() != 1 => Err(Error::invalid(format!(
            "signature \"{}\" has {} outputs, but an npy response holds only one array: accept \
             application/json",
            signature.name,
            signature.outputs.len()
        ))),
        _ => Ok(()),
    }
}

/// Writes the one output.
pub(super) fn encode(outputs: &[Tensor], max_bytes: usize) -> Result<Vec<u8>> {
    match outputs {
        [output] => npy::write(output, max_bytes),
        _ => Err(Error::internal("there are several outputs")),
    }
}

/// Handles a `PredictRequest` for the model `named` as gRPC does. `kind` is the media type that the client sent.
pub(super) async fn answer(
    engine: &Engine,
    named: OwnedModelSpec,
    entry: InferenceCall,
    body: Bytes,
    kind: String,
) -> Answer {
    let decode = move |resolver: &mut Resolver<'_>| {
        let mut request: PredictRequest = bounded::decode(body).map_err(|error| {
            resolver.names_model(&named.spec());
            let message =
                format!("the body is not a valid tensorflow.serving.PredictRequest: {error}");
            Error::invalid(message)
        })?;
        request.model_spec = Some(agreed(request.model_spec.take(), &named.spec())?);
        let form = TensorContent::IfSent.form(&request);
        grpc::decode_predict(resolver, request, form)
    };
    let outcome = engine.infer(entry, decode, grpc::encode_predict).await;
    inferred(outcome, |response| Reply::ok(kind, response.encode_to_vec()))
}

/// The model spec of the message and the path together. Either may leave a member out; members that
/// both have must be equal.
fn agreed(given: Option<ModelSpec>, named: &EngineSpec<'_>) -> Result<ModelSpec> {
    let (name, choice) = (named.name, named.choice);
    let mut spec = given.unwrap_or_default();
    if spec.name.is_empty() {
        name.clone_into(&mut spec.name);
    }
    if spec.name != name {
        return Err(Error::invalid(format!(
            "the message names model {:?}, but the path names {name:?}: remove the name from the \
             message, or make both the same",
            spec.name
        )));
    }
    let of_path = match choice {
        VersionSelector::Latest => return Ok(spec),
        VersionSelector::Version(version) => VersionChoice::Version(version),
        VersionSelector::Label(label) => VersionChoice::VersionLabel(label.to_owned()),
    };
    if spec.version_choice.as_ref().is_some_and(|given| *given != of_path) {
        return Err(Error::invalid(
            "the message names another version than the path: remove one of them, or make both the \
             same",
        ));
    }
    spec.version_choice = Some(of_path);
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_choice_among_names_counts() {
        for accept in [
            "application/x-npy",
            "*/*, Application/X-NPY",
            "application/json;q=0.5, application/x-npy;q=0.9, */*",
            "application/x-npy, application/json",
        ] {
            assert!(prefers_npy(accept), "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "application/json",
            "application/json, application/x-npy",
            "application/x-npy;q=0",
            "application/x-npy; q=0.2, application/json; q=0.3",
        ] {
            assert!(!prefers_npy(accept), "{accept}");
        }
    }

    #[test]
    fn message_and_path_must_agree() {
        let spec = |name: &str, version: Option<i64>| ModelSpec {
            name: name.to_owned(),
            version_choice: version.map(VersionChoice::Version),
            signature_name: "s".to_owned(),
        };
        let check = |given, choice| {
            let named = EngineSpec { name: "m", choice };
            agreed(given, &named).ok().map(|s| s.version_choice)
        };
        let two = Some(Some(VersionChoice::Version(2)));
        assert_eq!(check(None, VersionSelector::Latest), Some(None));
        assert_eq!(check(Some(spec("", None)), VersionSelector::Version(2)), two);
        assert_eq!(check(Some(spec("m", Some(2))), VersionSelector::Latest), two);
        assert_eq!(check(Some(spec("m", Some(2))), VersionSelector::Version(2)), two);
        assert_eq!(check(Some(spec("m", Some(1))), VersionSelector::Version(2)), None);
        assert_eq!(check(Some(spec("m", Some(1))), VersionSelector::Label("a")), None);
        assert_eq!(check(Some(spec("n", None)), VersionSelector::Latest), None);
    }
}
