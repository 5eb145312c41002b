//! The handlers of an `inference.py`, called as the SageMaker TensorFlow Serving container calls
//! them; `python/handlers.py` is the other side.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;

use super::pool::{WorkerCall, WorkerLimits};
use super::wire::{RAISED, WireFrame};
use super::{HandlerError, PoolOwner, Subject, WorkerProgram, Workers, WorkersConfig, environment};
use tensorserve_tensor::error::{Code, Error, Result};

/// The numbers of the functions in `python/handlers.py`.
const HANDLER: u8 = 1;
const INPUT_HANDLER: u8 = 2;
const OUTPUT_HANDLER: u8 = 3;

/// The status of an exception that does not have one.
const DEFAULT_STATUS: u16 = 500;

/// What the Python side reports of a script with a single `handler`.
const SINGLE: &str = "single";

const SCRIPT: Subject = Subject {
    name: "inference.py",
    interpreter: "python",
    memory_limit: "handler_memory_limit",
    more_calls: "handler_workers sets their number, and handler_threads how many calls each serves at \
                 a time",
    ended: Code::Internal,
    timed_out: Code::Internal,
};

/// The open handlers of one directory of code.
pub struct Handlers {
    pool: PoolOwner,
    is_single: bool,
}

/// The context of a request, which handlers receive.
#[derive(Clone, Copy, Debug)]
pub struct HandlerContext<'a> {
    /// The model that the request names.
    pub model_name: Option<&'a str>,
    /// The version that the request names.
    pub model_version: Option<&'a str>,
    /// The method that the request names.
    pub method: Option<&'a str>,
    /// The model's URI in the REST API.
    pub rest_uri: &'a str,
    /// The port of the gRPC API.
    pub grpc_port: Option<u16>,
    /// Whether the server has several models. The handler gets the port as an `int` then, otherwise
    /// as a `str`.
    pub is_multi_model: bool,
    /// The header with SageMaker's custom attributes.
    pub custom_attributes: Option<&'a str>,
    /// The request's content type.
    pub request_content_type: &'a str,
    /// The request's `Accept` header.
    pub accept_header: &'a str,
    /// The request's content length, if it is declared.
    pub content_length: Option<u64>,
    /// The timeout of a call of the model, in seconds.
    pub timeout: u64,
    /// The W3C `traceparent` of the call, for what the handler calls itself.
    pub traceparent: Option<&'a str>,
    /// The `tracestate` that goes with it.
    pub tracestate: Option<&'a str>,
}

/// The reply of a handler.
#[derive(Debug, PartialEq, Eq)]
pub struct HandlerReply {
    /// The body.
    pub body: Bytes,
    /// Its content type, if the handler returned one.
    pub content_type: Option<String>,
}

/// The model's response, which `output_handler` receives.
#[derive(Clone, Copy, Debug)]
pub struct ModelReply<'a> {
    /// The HTTP status.
    pub status: u16,
    /// The content type.
    pub content_type: &'a str,
    /// The body.
    pub body: &'a [u8],
}

/// The process that has run `input_handler` for a request. It is preferred for `output_handler`,
/// because scripts keep state in global variables between the two.
#[derive(Clone, Copy, Debug)]
pub struct InputWorker(u64);

impl Handlers {
    pub(super) fn open(workers: &Workers, code: &Path) -> Result<Self> {
        let context = |error: Error| error.context(code.join("inference.py").display());
        let code_text = code.to_str().ok_or_else(|| {
            Error::precondition("the name of the directory is not valid UTF-8")
                .context(code.display())
        })?;
        environment::check_file(code, &code.join("inference.py"))?;
        let python = environment::python(workers.config(), code).map_err(context)?;
        let start = Instant::now();
        let modules = [("tensorserve_handlers", include_str!("../../../python/handlers.py"))];
        let threads = workers.config().threads.to_string();
        let settings = [("code", code_text), ("threads", threads.as_str())];
        let mut program =
            WorkerProgram::new(SCRIPT, code_text.to_owned(), python, &modules, &settings);
        program.variables.clone_from(&workers.config().variables);
        let WorkersConfig { count, threads, timeout, memory_limit, .. } = *workers.config();
        let limits = WorkerLimits { threads, timeout, memory: memory_limit };
        let pool = workers.start(program, count, limits).map_err(context)?;
        let is_single = pool.about.iter().flatten().any(|kind| kind == SINGLE);
        let time = start.elapsed().as_millis();
        log::info!("{code_text}/inference.py: {count} processes ready after {time} ms");
        Ok(Handlers { pool, is_single })
    }

    /// Whether the script has a single `handler`, which calls the model itself.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.is_single
    }

    /// Calls `handler`.
    ///
    /// # Errors
    /// [`HandlerError`]: the handler's exception, or the end of its process.
    pub async fn handler(
        &self,
        context: &HandlerContext<'_>,
        body: &[u8],
        deadline: Instant,
    ) -> Result<HandlerReply, HandlerError> {
        let numbers = ContextNumbers::new(context);
        let fields = context.fields(&numbers);
        let call = WorkerCall { function: HANDLER, fields: &fields, body: &[body] };
        let (frame, _) = self.pool.call(None, &call, deadline).await?;
        reply(check_exception(frame)?)
    }

    /// Calls `input_handler`, and returns the request for the model.
    ///
    /// # Errors
    /// Those of [`Handlers::handler`].
    pub async fn input(
        &self,
        context: &HandlerContext<'_>,
        body: &[u8],
        deadline: Instant,
    ) -> Result<(Bytes, InputWorker), HandlerError> {
        let numbers = ContextNumbers::new(context);
        let fields = context.fields(&numbers);
        let call = WorkerCall { function: INPUT_HANDLER, fields: &fields, body: &[body] };
        let (frame, worker) = self.pool.call(None, &call, deadline).await?;
        Ok((check_exception(frame)?.body, InputWorker(worker)))
    }

    /// Calls `output_handler` with the model's response.
    ///
    /// # Errors
    /// Those of [`Handlers::handler`].
    pub async fn output(
        &self,
        context: &HandlerContext<'_>,
        worker: InputWorker,
        model: ModelReply<'_>,
        deadline: Instant,
    ) -> Result<HandlerReply, HandlerError> {
        let numbers = ContextNumbers::new(context);
        let status = model.status.to_string();
        let mut fields = [None; CONTEXT_FIELDS + 2];
        let (context_fields, model_fields) = fields.split_at_mut(CONTEXT_FIELDS);
        context_fields.copy_from_slice(&context.fields(&numbers));
        model_fields.copy_from_slice(&[Some(&status), Some(model.content_type)]);
        let call = WorkerCall { function: OUTPUT_HANDLER, fields: &fields, body: &[model.body] };
        let (frame, _) = self.pool.call(Some(worker.0), &call, deadline).await?;
        reply(check_exception(frame)?)
    }
}

/// The numbers of a context as text.
struct ContextNumbers {
    grpc_port: Option<String>,
    content_length: Option<String>,
    timeout: String,
}

impl ContextNumbers {
    fn new(context: &HandlerContext) -> Self {
        ContextNumbers {
            grpc_port: context.grpc_port.map(|port| port.to_string()),
            content_length: context.content_length.map(|length| length.to_string()),
            timeout: context.timeout.to_string(),
        }
    }
}

/// The number of fields of a context.
const CONTEXT_FIELDS: usize = 13;

impl<'a> HandlerContext<'a> {
    /// The fields in the order of `context_of` in `python/handlers.py`.
    fn fields(&self, numbers: &'a ContextNumbers) -> [Option<&'a str>; CONTEXT_FIELDS] {
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
            self.traceparent,
            self.tracestate,
        ]
    }
}

/// The reply, unless it is an exception.
fn check_exception(frame: WireFrame) -> Result<WireFrame, HandlerError> {
    if frame.kind != RAISED {
        return Ok(frame);
    }
    let mut fields = frame.fields.into_iter();
    let mut next = || fields.next().flatten();
    let status = next().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_STATUS);
    let (text, title, description) = (next().unwrap_or_default(), next(), next());
    let code = if status < 500 { Code::InvalidArgument } else { Code::Unavailable };
    let text = match &title {
        Some(_) => description.unwrap_or_default(),
        None => text,
    };
    Err(HandlerError { status, error: Error::new(code, text), title })
}

fn reply(frame: WireFrame) -> Result<HandlerReply, HandlerError> {
    let content_type = frame.fields.into_iter().next().flatten();
    // It becomes the value of a header, and a line break would forge another one.
    let is_invalid = |text: &&String| !text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if let Some(text) = content_type.as_ref().filter(is_invalid) {
        let message = format!("{text:?} is not a valid content type");
        return Err(HandlerError::of(Error::internal(message)));
    }
    Ok(HandlerReply { body: frame.body, content_type })
}
