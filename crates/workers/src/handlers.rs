//! The handlers of an `inference.py`, as the SageMaker TensorFlow Serving container calls them;
//! `python/handlers.py` is the other side.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;

use super::pool::Call;
use super::wire::Frame;
use super::{Failure, Pool, Program, Workers, environment};
use tensorserve_tensor::error::{Code, Error, Result};

/// Numbers of functions.
const HANDLER: u8 = 1;
const INPUT: u8 = 2;
const OUTPUT: u8 = 3;

/// The kind of frame that is an exception.
const RAISED: u8 = 4;

/// The handlers of one folder of code, open.
pub struct Handlers {
    pool: Pool,
    is_single: bool,
}

/// What a handler is told about its request.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The model that the request names.
    pub model_name: Option<&'a str>,
    /// The version that it names.
    pub model_version: Option<&'a str>,
    /// The method that it names.
    pub method: Option<&'a str>,
    /// Where the model answers over REST.
    pub rest_uri: &'a str,
    /// Our port for gRPC.
    pub grpc_port: Option<u16>,
    /// Whether there are several models, and the port therefore a number and not a text.
    pub is_multi_model: bool,
    /// The header with SageMaker's custom attributes.
    pub custom_attributes: Option<&'a str>,
    /// The request's content type.
    pub request_content_type: &'a str,
    /// What the client accepts.
    pub accept_header: &'a str,
    /// The size of the body, if the request said so.
    pub content_length: Option<u64>,
    /// How many seconds a call of the model may take.
    pub timeout: u64,
}

/// What a handler has answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The body.
    pub body: Bytes,
    /// Its content type, if it said one.
    pub content_type: Option<String>,
}

/// What the model has answered.
#[derive(Clone, Copy, Debug)]
pub struct ModelAnswer<'a> {
    /// The HTTP status.
    pub status: u16,
    /// The content type.
    pub content_type: &'a str,
    /// The body.
    pub body: &'a [u8],
}

/// The process that a request was begun by, and that is best asked to finish it: scripts keep
/// things in global variables between their two handlers.
#[derive(Clone, Copy, Debug)]
pub struct Begun(u64);

impl Handlers {
    pub(super) fn open(workers: &Workers, code: &Path) -> Result<Self> {
        let context = |error: Error| error.context(code.join("inference.py").display());
        let code_text = code.to_str().ok_or_else(|| {
            Error::precondition("the folder's name is no UTF-8").context(code.display())
        })?;
        if !code.join("inference.py").is_file() {
            return Err(context(Error::not_found("there is no such file")));
        }
        let python = environment::python(workers.config(), code).map_err(context)?;
        let start = Instant::now();
        let modules = [("tensorserve_handlers", include_str!("../../../python/handlers.py"))];
        let settings = [("code", code_text)];
        let program = Program::new(code_text.to_owned(), python, &modules, &settings);
        let pool = workers.start(program).map_err(context)?;
        let is_single = pool.about.iter().flatten().any(|word| word == "single");
        let count = workers.config().count;
        let time = start.elapsed().as_millis();
        log::info!("{code_text}/inference.py: {count} processes ready after {time} ms");
        Ok(Handlers { pool, is_single })
    }

    /// Whether there is a single `handler`, which calls the model itself if it wants to.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.is_single
    }

    /// Calls `handler`.
    ///
    /// # Errors
    /// [`Failure`]: its exception, or how its process ended.
    pub async fn handler(
        &self,
        context: &Context<'_>,
        body: &[u8],
        until: Instant,
    ) -> Result<Answer, Failure> {
        let numbers = Numbers::new(context);
        let fields = context.fields(&numbers);
        let call = Call { function: HANDLER, fields: &fields, body };
        let (frame, _) = self.pool.call(None, &call, until).await?;
        answer(raised(frame)?)
    }

    /// Calls `input_handler`; returns the request for the model.
    ///
    /// # Errors
    /// As [`Handlers::handler`].
    pub async fn input(
        &self,
        context: &Context<'_>,
        body: &[u8],
        until: Instant,
    ) -> Result<(Bytes, Begun), Failure> {
        let numbers = Numbers::new(context);
        let fields = context.fields(&numbers);
        let call = Call { function: INPUT, fields: &fields, body };
        let (frame, worker) = self.pool.call(None, &call, until).await?;
        Ok((raised(frame)?.body, Begun(worker)))
    }

    /// Calls `output_handler` with the model's answer.
    ///
    /// # Errors
    /// As [`Handlers::handler`].
    pub async fn output(
        &self,
        context: &Context<'_>,
        begun: Begun,
        model: ModelAnswer<'_>,
        until: Instant,
    ) -> Result<Answer, Failure> {
        let numbers = Numbers::new(context);
        let status = model.status.to_string();
        let [a, b, c, d, e, f, g, h, i, j, k] = context.fields(&numbers);
        let (status, kind) = (Some(status.as_str()), Some(model.content_type));
        let fields = [a, b, c, d, e, f, g, h, i, j, k, status, kind];
        let call = Call { function: OUTPUT, fields: &fields, body: model.body };
        let (frame, _) = self.pool.call(Some(begun.0), &call, until).await?;
        answer(raised(frame)?)
    }
}

/// The numbers of a context as text.
struct Numbers {
    grpc_port: Option<String>,
    content_length: Option<String>,
    timeout: String,
}

impl Numbers {
    fn new(context: &Context) -> Self {
        Numbers {
            grpc_port: context.grpc_port.map(|port| port.to_string()),
            content_length: context.content_length.map(|length| length.to_string()),
            timeout: context.timeout.to_string(),
        }
    }
}

impl<'a> Context<'a> {
    /// In the order that `context_of` in `python/handlers.py` expects.
    fn fields(&self, numbers: &'a Numbers) -> [Option<&'a str>; 11] {
        [
            self.model_name,
            self.model_version,
            self.method,
            Some(self.rest_uri),
            numbers.grpc_port.as_deref(),
            self.is_multi_model.then_some("1"),
            self.custom_attributes,
            Some(self.request_content_type),
            Some(self.accept_header),
            numbers.content_length.as_deref(),
            Some(&numbers.timeout),
        ]
    }
}

/// The frame, unless it is an exception.
fn raised(frame: Frame) -> Result<Frame, Failure> {
    if frame.kind != RAISED {
        return Ok(frame);
    }
    let mut fields = frame.fields.into_iter();
    let mut next = || fields.next().flatten();
    let status = next().and_then(|text| text.parse().ok()).unwrap_or(500);
    let (text, title, description) = (next().unwrap_or_default(), next(), next());
    let code = if status < 500 { Code::InvalidArgument } else { Code::Unavailable };
    let text = match &title {
        Some(_) => description.unwrap_or_default(),
        None => text,
    };
    Err(Failure { status, error: Error::new(code, text), title })
}

fn answer(frame: Frame) -> Result<Answer, Failure> {
    let content_type = frame.fields.into_iter().next().flatten();
    // It becomes a header, and must not become two.
    let is_illegal = |text: &&String| !text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if let Some(text) = content_type.as_ref().filter(is_illegal) {
        let message = format!("{text:?} is no content type");
        return Err(Failure::of(Error::internal(message)));
    }
    Ok(Answer { body: frame.body, content_type })
}
