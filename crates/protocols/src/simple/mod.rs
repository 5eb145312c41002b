//! Simple TensorFlow Serving's `POST /`, as version 0.8.2 means it: JSON with `model_name`,
//! `model_version`, `signature_name` and `data`, or a form with images.
//!
//! Kept: members, sentences, key order and number format of answers, NumPy's coercion of values.
//! Mended on purpose: every failure is a JSON error with a proper status, the highest version is
//! the default, `model_name` counts in forms too, standard base64 is taken beside URL-safe, and
//! a server with one model takes requests that name none.

use std::time::Instant;

use bytes::Bytes;

use self::request::Call;
use tensorserve_codec::base64;
use tensorserve_codec::json::write::{self, Floats, Layout, Style, Texts};
use tensorserve_core::engine::{
    Api, Choice, Engine, InferRequest, ModelHandle, ModelSpec, Served, Unresolved,
};
use tensorserve_protocol::{JSON, Reply, bounded};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, ImageEncoding, Shape, Signature, StringsBuilder, Tensor};

pub mod clients;
mod data;
pub mod describe;
pub mod example;
pub mod pages;
mod profile;
mod request;
mod route;

pub use self::route::{Page, page};

/// A form with images, taken apart.
#[derive(Debug, Default)]
pub struct ImageForm {
    /// The files, `image` first, then each `images`.
    pub images: Vec<Bytes>,
    /// Field `model_name`.
    pub model_name: Option<String>,
    /// Field `model_version`.
    pub model_version: Option<String>,
    /// Field `signature_name`.
    pub signature_name: Option<String>,
    /// Field `run_profile`.
    pub run_profile: Option<String>,
}

/// Answers `POST /` with JSON.
pub async fn json(engine: &Engine, body: &[u8], start: Instant) -> Reply {
    let mut served = Served::new(Api::SimpleJson);
    let answer = match request::decode(engine, body) {
        Ok(call) => run(engine, call, start, &mut served).await,
        Err(error) => Err(error),
    };
    reply(answer, served)
}

/// Answers `POST /` with a form of images.
pub async fn images(engine: &Engine, form: ImageForm, start: Instant) -> Reply {
    let mut served = Served::new(Api::SimpleImage);
    let answer = match image_call(engine, form) {
        Ok(call) => run(engine, call, start, &mut served).await,
        Err(error) => Err(error),
    };
    reply(answer, served)
}

/// A failure outside any inference, in this API's form.
#[must_use]
pub fn refuse(error: Error, status: u16) -> Reply {
    let mut body = b"{\"error\":".to_vec();
    write::string(bounded(error.message()).as_bytes(), &mut body);
    body.extend_from_slice(b"}\n");
    let mut reply = Reply::ok(JSON, body).with_status(status);
    reply.error = Some(error);
    reply
}

fn reply(answer: Result<Vec<u8>>, mut served: Served) -> Reply {
    match answer {
        Ok(body) => Reply::ok(JSON, body).with_served(served),
        Err(error) => {
            let code = error.code();
            served.code = Some(code);
            // Whatever is wrong with a request is a 400 here, an unknown model included.
            let status = if code == Code::NotFound { 400 } else { code.http() };
            refuse(error, status).with_served(served)
        }
    }
}

async fn run(engine: &Engine, call: Call, start: Instant, served: &mut Served) -> Result<Vec<u8>> {
    let Call { handle, signature, inputs, one_row, profile } = call;
    served.reach(&handle, signature);
    let request = InferRequest { signature, inputs };
    let deadline = engine.deadline(start);
    let (answer, profile) = if profile {
        // In a box: it is rare, and would make the future of every request larger.
        let answer = Box::pin(engine.profile(&handle, request, deadline)).await;
        answer.map(|(answer, runs)| (answer, Some(profile::text(&runs))))
    } else {
        engine.infer(&handle, request, deadline).await.map(|answer| (answer, None))
    }
    .map_err(in_words)?;
    served.took(answer.times);
    let declared = handle.signatures().get(signature);
    let mut outputs = answer.outputs;
    if one_row {
        outputs.iter_mut().for_each(|output| *output = output.row(0));
    }
    let mut body = Vec::new();
    if handle.platform() == "pmml" {
        // As Openscoring answers, which the original asks: with the number that the request
        // would have in a batch, and the result in an object of its own.
        body.extend_from_slice(b"{\"id\":null,\"result\":");
        encode(declared, &outputs, profile.as_deref(), &mut body)?;
        body.push(b'}');
    } else {
        encode(declared, &outputs, profile.as_deref(), &mut body)?;
    }
    body.push(b'\n');
    Ok(body)
}

/// A failure of the run in this API's words, if it is the request's fault.
fn in_words(error: Error) -> Error {
    let is_requests_fault = error.code().http() == 400;
    if !is_requests_fault {
        return error;
    }
    let message = error.message();
    Error::new(error.code(), run_failed(message))
}

/// The sentence around everything that is wrong with the values of a request.
fn run_failed(message: &str) -> String {
    format!("Sess.run() fail because of {message}, please check shape of input")
}

/// The member of an answer that holds the text of its profile.
const PROFILE: &str = "__PROFILE__";

/// Outputs as an object: keys sorted, no white space.
fn encode(
    signature: Option<&Signature>,
    outputs: &[Tensor],
    mut profile: Option<&str>,
    body: &mut Vec<u8>,
) -> Result<()> {
    let style = Style { layout: Layout::Compact, floats: Floats::Python, texts: Texts::Lossy };
    let specs = signature.map_or(&[][..], |signature| &signature.outputs);
    body.push(b'{');
    for (spec, output) in specs.iter().zip(outputs) {
        if let Some(text) = profile.take_if(|_| spec.alias.as_str() > PROFILE) {
            member(PROFILE, body);
            write::string(text.as_bytes(), body);
        }
        member(&spec.alias, body);
        write::tensor(output, style, 0, body).map_err(|write::NoJsonForm(dtype)| {
            let message =
                format!("output {:?} is of type {dtype}, which JSON can not hold", spec.alias);
            Error::new(Code::Unimplemented, message)
        })?;
    }
    if let Some(text) = profile {
        member(PROFILE, body);
        write::string(text.as_bytes(), body);
    }
    body.push(b'}');
    Ok(())
}

/// Begins the next member of the object in `body`.
fn member(name: &str, body: &mut Vec<u8>) {
    if body.last() != Some(&b'{') {
        body.push(b',');
    }
    write::string(name.as_bytes(), body);
    body.push(b':');
}

/// The model and signature a request means.
fn find(
    engine: &Engine,
    model: Option<&str>,
    version: Option<i64>,
    signature: Option<&str>,
) -> Result<(ModelHandle, usize)> {
    let handle = find_model(engine, model, version)?;
    let wanted = signature.unwrap_or("serving_default");
    let (index, _) = handle.signature(wanted).ok_or_else(|| {
        Error::invalid(format!(
            "Fail to request the signature name: {wanted}, please check the request JSON"
        ))
    })?;
    Ok((handle, index))
}

fn find_model(engine: &Engine, model: Option<&str>, version: Option<i64>) -> Result<ModelHandle> {
    let choice = version.map_or(Choice::Latest, Choice::Version);
    let name = model.unwrap_or("default");
    match engine.resolve(&ModelSpec { name, choice }) {
        Ok(handle) => return Ok(handle),
        Err(Unresolved::Version)
            if engine.resolve(&ModelSpec { name, choice: Choice::Latest }).is_ok() =>
        {
            return Err(no_version(engine, name, version));
        }
        Err(_) => {}
    }
    let models = engine.ready_models();
    if let (None, [only]) = (model, models.as_slice()) {
        let found = engine.resolve(&ModelSpec { name: only, choice });
        return found.map_err(|_| no_version(engine, only, version));
    }
    Err(Error::not_found(format!("Invalid model name: {name}, available models: {models:?}")))
}

fn no_version(engine: &Engine, model: &str, version: Option<i64>) -> Error {
    let ready = engine.status(model);
    let ready = ready
        .iter()
        .filter(|status| matches!(status.state, tensorserve_core::engine::State::Ready));
    let versions: Vec<i64> = ready.map(|status| status.version).collect();
    let version = version.map_or("None".to_owned(), |version| version.to_string());
    Error::not_found(format!(
        "Invalid model version: {version}, available versions of {model}: {versions:?}"
    ))
}

fn image_call(engine: &Engine, form: ImageForm) -> Result<Call> {
    if form.images.is_empty() {
        return Err(Error::invalid(
            "Invalid form-data: it needs a file in the field image or images",
        ));
    }
    let version = match form.model_version.as_deref().map(str::trim) {
        None | Some("") => None,
        Some(text) => Some(text.parse().map_err(|_| {
            Error::invalid(format!("Invalid model version: {text} is no whole number"))
        })?),
    };
    let named = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let (model, signature) = (named(&form.model_name), named(&form.signature_name));
    let (handle, index) = find(engine, model.as_deref(), version, signature.as_deref())?;
    let declared = handle.signatures().get(index);
    let input = declared.map_or(Err(Error::internal("no such signature")), |declared| {
        image_input(declared, &form.images)
    })?;
    let profile = form.run_profile.as_deref() == Some("true");
    Ok(Call { handle, signature: index, inputs: vec![input], one_row: false, profile })
}

/// The images as the signature's one input: a string each.
pub(super) fn image_input(signature: &Signature, images: &[Bytes]) -> Result<Tensor> {
    let [spec] = signature.inputs.as_slice() else {
        let count = signature.inputs.len();
        return Err(not_for_images(signature, &format!("it has {count} inputs, not one")));
    };
    if spec.dtype() != Some(DType::String) {
        let kind = spec.dtype().map_or("another type", DType::name);
        return Err(not_for_images(signature, &format!("its input is {kind}, not string")));
    }
    let bytes = images.iter().map(Bytes::len).sum();
    let mut strings = StringsBuilder::with_capacity(images.len(), bytes);
    for image in images {
        match signature.images {
            ImageEncoding::Raw => strings.push(image),
            ImageEncoding::Base64Url => {
                let encode = |out: &mut Vec<u8>| {
                    base64::encode_url_safe(image, out);
                    Ok::<(), Error>(())
                };
                strings.push_with(encode)?;
            }
        }
    }
    Tensor::from_strings(Shape::vector(images.len()), strings)
}

fn not_for_images(signature: &Signature, why: &str) -> Error {
    Error::invalid(format!("signature {:?} takes no images: {why}; send JSON", signature.name))
}
