//! One inference through `/invocations`: from the headers to a call, from the body to what a
//! model takes, and back.

use std::borrow::Cow;
use std::time::Instant;

use bytes::Bytes;

use super::attributes::{self, Attributes};
use super::convert::{self, Mended};
use super::handler::Request;
use super::media::{self, Input, Output};
use super::{Compatibility, Sagemaker, inputs, outputs, refuse};
use crate::tfs::{self, Answer, Call};
use tensorserve_codec::npy;
use tensorserve_core::engine::{Choice, Served};
use tensorserve_protocol::{Head, JSON, NPY, Reply};
use tensorserve_tensor::error::{Code, Error, Result};

/// What the head of a request says about an inference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Invocation<'h> {
    /// What the body is.
    pub(super) content_type: Option<&'h str>,
    /// What the answer is to be.
    pub(super) accept: Option<&'h str>,
    /// The custom attributes, as they were sent.
    pub(super) attributes: Option<&'h str>,
    /// A model that is named elsewhere, which counts more than the attributes.
    pub(super) model: Option<&'h str>,
    /// The endpoint that was called. It counts where nothing else says which of several models.
    pub(super) endpoint: Option<&'h str>,
}

impl<'h> Invocation<'h> {
    /// As the container reads it.
    pub(super) fn of_container(head: &Head<'h>) -> Self {
        Invocation {
            content_type: head.header("content-type"),
            accept: head.header("accept"),
            attributes: head.header(attributes::HEADER),
            model: None,
            endpoint: None,
        }
    }
}

impl Sagemaker {
    /// Answers an inference.
    pub(super) async fn invoke(
        &self,
        invocation: &Invocation<'_>,
        body: Bytes,
        start: Instant,
    ) -> Reply {
        let compatibility = self.options().compatibility;
        let given = invocation.attributes.unwrap_or_default();
        let attributes = match Attributes::parse(given, compatibility) {
            Ok(attributes) => attributes,
            Err(error) => return refuse(error, 400),
        };
        let name = match self.model(invocation, &attributes) {
            Ok(name) => name,
            Err(error) => return refuse(error, 400),
        };
        if let Some(models) = self.models()
            && let Err(error) = models.prepare(&name).await
        {
            let status = error.code().http();
            return refuse(error, status);
        }
        // Where there are handlers, the body is theirs, whatever it is.
        match self.engine.handlers(Some(&name)) {
            Ok(None) => {}
            Ok(Some(handlers)) => {
                let request = Request { invocation, attributes: &attributes, name: &name, start };
                return self.handled(&handlers, &request, body).await;
            }
            Err(error) => return refuse(error, 503),
        }
        let content_type = invocation.content_type.unwrap_or("Unknown");
        let Some(input) = Input::of(content_type) else {
            return unsupported(content_type);
        };
        let choice = attributes.version.map_or(Choice::Latest, Choice::Version);
        let (engine, verb, name) = (&self.engine, attributes.verb, name.as_ref());
        let call = Call { engine, verb, name, choice, body: &body, start, exact: false };
        let mut served = Served::new(call.api());
        let mut answer = answer(&call, input, &mut served).await;
        if let Err(error) = &answer
            && error.code() == Code::InvalidArgument
            && matches!(input, Input::Json | Input::Csv)
        {
            let any = compatibility == Compatibility::Extended;
            answer = second_look(&call, input, any, &mut served).await.unwrap_or(answer);
        }
        let output = Output::of(invocation.accept, compatibility);
        let max_bytes = engine.max_tensor_bytes();
        match answer.and_then(|answer| write(&answer, &output, max_bytes)) {
            Ok(reply) => reply.with_served(served),
            Err(error) => {
                served.code = Some(error.code());
                in_form(tfs::failure(error), &output).with_served(served)
            }
        }
    }

    /// The name of the model that is meant.
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
        let models = self.engine.all_models();
        let is_model = |name: &&str| models.iter().any(|model| model == name);
        invocation.endpoint.filter(is_model).map(Cow::Borrowed).ok_or_else(|| {
            let (count, some) = (models.len(), models.get(..models.len().min(10)));
            Error::invalid(format!(
                "The request names no model, and there are {count}: {:?}. Name one with \
                 tfs-model-name=NAME in X-Amzn-SageMaker-Custom-Attributes, or set a default one",
                some.unwrap_or_default()
            ))
        })
    }
}

async fn answer(call: &Call<'_>, input: Input, served: &mut Served) -> Result<Answer> {
    convert::check_not_blank(call.body)?;
    let body = match input {
        Input::Json => {
            convert::check_is_one(call.body)?;
            convert::json(call.body)
        }
        Input::Csv => match inputs::csv(call, served).await {
            Some(answer) => return answer,
            None => convert::csv(call.body).into(),
        },
        Input::Npy | Input::Image | Input::Examples => {
            return inputs::binary(call, input, served).await;
        }
    };
    Call { body: &body, ..*call }.run(served).await
}

/// What can be done about, or at least said of, a body that was refused; `None` if its refusal
/// says it all.
async fn second_look(
    call: &Call<'_>,
    input: Input,
    of_any_kind: bool,
    served: &mut Served,
) -> Option<Result<Answer>> {
    if convert::is_base64_of_json(call.body) {
        return Some(Err(Error::invalid(
            "The body is base64 of JSON, and not JSON. With version 2 of the AWS CLI give \
             --cli-binary-format raw-in-base64-out",
        )));
    }
    if input != Input::Json {
        return None;
    }
    match convert::mend(call.body, of_any_kind) {
        Mended::Sound => None,
        Mended::Bad(error) => Some(Err(error)),
        Mended::Values(body) => Some(Call { body: &body, ..*call }.run(served).await),
    }
}

/// The refusal of a body of a type that is not known, with the container's words at its start.
fn unsupported(content_type: &str) -> Reply {
    let accepted = media::ACCEPTED;
    let message = format!("Unsupported Media Type: {content_type}; accepted are {accepted}");
    refuse(Error::invalid(message), 415)
}

fn write(answer: &Answer, output: &Output, max_bytes: usize) -> Result<Reply> {
    Ok(match output {
        Output::Json | Output::OneLine(_) => in_form(Reply::ok(JSON, answer.json(false)?), output),
        Output::Lines => Reply::ok("application/jsonlines", outputs::lines(answer)?),
        Output::Csv => Reply::ok("text/csv", outputs::csv(answer)?),
        Output::Npy => Reply::ok(NPY, array(answer, max_bytes)?),
    })
}

fn array(answer: &Answer, max_bytes: usize) -> Result<Vec<u8>> {
    match answer.tensors() {
        [output] => npy::write(output, max_bytes),
        outputs => Err(Error::invalid(format!(
            "an npy array is one output, and there are {}: accept application/json",
            outputs.len()
        ))),
    }
}

/// An answer in TensorFlow Serving's JSON as `output` has it.
fn in_form(mut reply: Reply, output: &Output) -> Reply {
    if let Output::OneLine(name) = output {
        reply.body = media::on_one_line(&reply.body).into();
        reply.content_type = Cow::Owned(name.as_ref().to_owned());
    }
    reply
}
