//! `InvokeEndpointAsync`: the server responds at once and writes the outcome of the inference to a file
//! later.
//!
//! Local files replace the objects that the service has in S3: the input is the payload or a file below
//! one of the configured directories, the output a file with a generated name in another one.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::invocation::Invocation;
use super::media::PayloadType;
use super::{SagemakerApi, attributes, service};
use tensorserve_protocol::{Answer, Failure, JSON, Reply, RequestHead, RoutedRequest};
use tensorserve_tensor::error::{Code, Error, Result, Shed};
use tensorserve_trace::TraceParent;

/// The most invocations that may wait or run at a time.
pub(super) const MOST_WAITING: usize = 1000;

/// The most invocations that run at a time, so that they do not delay synchronous requests.
pub(super) const MOST_RUNNING: usize = 2;

/// An accepted inference.
struct AsyncInvocation {
    api: SagemakerApi,
    order: AsyncRequest,
    /// Counts it among those that may wait.
    _permit: OwnedSemaphorePermit,
}

/// A decoded request.
struct AsyncRequest {
    input: AsyncInput,
    content_type: String,
    accept: Option<String>,
    attributes: Option<String>,
    model: Option<String>,
    endpoint: String,
    files: OutcomeFiles,
    /// The moment after which it must not begin.
    expires: Option<Instant>,
    time_limit: Option<Duration>,
}

enum AsyncInput {
    Inline(Bytes),
    File(PathBuf),
}

/// The files of the outcome.
struct OutcomeFiles {
    output: PathBuf,
    failure: PathBuf,
}

impl OutcomeFiles {
    fn new(folder: &Path) -> Self {
        let id = service::new_id();
        let output = folder.join(format!("{id}.out"));
        OutcomeFiles { output, failure: folder.join(format!("{id}-error.out")) }
    }
}

impl SagemakerApi {
    /// Accepts an invocation to be run later. The response has the locations of its output.
    pub(super) async fn invoke_endpoint_async(&self, mut request: RoutedRequest<'_>) -> Answer {
        let body = request.take_bytes();
        let (head, endpoint) = (&request.head, request.params.decoded("endpoint"));
        let order = self.order(head, &endpoint, body).await;
        let order = order.map_err(|error| Failure::new(error, 400))?;
        let Ok(permit) = self.shared.waiting.clone().try_acquire_owned() else {
            let message =
                format!("{MOST_WAITING} asynchronous invocations are waiting: try again later");
            let error = Error::unavailable(message).shed_for(Shed::AsyncFull);
            self.engine.metrics().count_shed(&error);
            return Err(Failure::new(error, 503));
        };
        let id = head.header("x-amzn-sagemaker-inference-id");
        let id = id.map_or_else(service::new_id, str::to_owned);
        let body = service::object(&[("InferenceId", &id)]);
        let mut reply = Reply::ok(JSON, body)
            .with_status(202)
            .with_header("x-amzn-sagemaker-outputlocation", location(&order.files.output))
            .with_header("x-amzn-sagemaker-failurelocation", location(&order.files.failure));
        let invocation = AsyncInvocation { api: self.clone(), order, _permit: permit };
        reply.background = Some(Box::pin(invocation.run()));
        Ok(reply)
    }

    async fn order(
        &self,
        head: &RequestHead<'_>,
        endpoint: &str,
        body: Bytes,
    ) -> Result<AsyncRequest> {
        let config = self.config();
        let Some(output) = &config.async_output else {
            return Err(Error::invalid(
                "Asynchronous invocations need an output directory: set sagemaker_async_output",
            ));
        };
        let owned = |name| head.header(name).map(str::to_owned);
        let refused = ["x-amzn-sagemaker-s3outputpathextension", "x-amzn-sagemaker-filename"];
        if let Some(name) = refused.into_iter().find(|name| head.header(name).is_some()) {
            return Err(Error::invalid(format!("{name} is not supported")));
        }
        let input = match (head.header("x-amzn-sagemaker-inputlocation"), body.is_empty()) {
            (None, false) => AsyncInput::Inline(body),
            (Some(location), true) => {
                AsyncInput::File(confined(location, &config.async_input).await?)
            }
            (None, true) => {
                return Err(Error::invalid("The call has neither InputLocation nor Body"));
            }
            (Some(_), false) => {
                return Err(Error::invalid("The call has both InputLocation and Body"));
            }
        };
        let seconds = |name| seconds(head, name);
        let ttl = seconds("x-amzn-sagemaker-requestttlseconds")?;
        let model = head.header("x-amzn-sagemaker-target-model");
        Ok(AsyncRequest {
            input,
            content_type: owned("x-amzn-sagemaker-content-type").unwrap_or(JSON.to_owned()),
            accept: owned("x-amzn-sagemaker-accept"),
            attributes: owned(attributes::HEADER),
            model: model.map(|archive| service::model_of(archive).to_owned()),
            endpoint: endpoint.to_owned(),
            files: OutcomeFiles::new(output),
            expires: ttl.and_then(|ttl| Instant::now().checked_add(ttl)),
            time_limit: seconds("x-amzn-sagemaker-invocationtimeoutseconds")?,
        })
    }
}

fn seconds(head: &RequestHead<'_>, name: &str) -> Result<Option<Duration>> {
    let Some(text) = head.header(name) else {
        return Ok(None);
    };
    let seconds = text.trim().parse::<u32>().ok().filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or_else(|| {
        Error::invalid(format!("{name} must be a positive number of seconds, not {text:?}"))
    })?;
    Ok(Some(Duration::from_secs(u64::from(seconds))))
}

fn location(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// The file at `location`, which must be below one of `folders` after all links are resolved.
async fn confined(location: &str, folders: &[PathBuf]) -> Result<PathBuf> {
    let Some(path) = location.strip_prefix("file://") else {
        return Err(Error::invalid(format!(
            "InputLocation {location:?} cannot be read: it must start with file://"
        )));
    };
    let (path, folders) = (PathBuf::from(path), folders.to_owned());
    let found = in_background(move || {
        let real = fs::canonicalize(path).ok()?;
        let is_below = |folder: &PathBuf| {
            fs::canonicalize(folder).is_ok_and(|folder| real.starts_with(folder))
        };
        (folders.iter().any(is_below) && real.is_file()).then_some(real)
    });
    // One error for both reasons, so that clients cannot find out which files exist.
    found.await?.ok_or_else(|| {
        Error::invalid(format!(
            "InputLocation {location:?} is not a file below the directories of sagemaker_async_input"
        ))
    })
}

async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| {
        Error::internal("the background thread of a file operation failed").with_source(error)
    })
}

impl AsyncInvocation {
    /// Runs the inference and writes its outcome to a file.
    async fn run(self) {
        let AsyncInvocation { api, order, _permit } = self;
        let Ok(_turn) = api.shared.running.acquire().await else {
            return;
        };
        let is_late = order.expires.is_some_and(|expires| expires < Instant::now());
        let reply = super::rendered(if is_late {
            let message = "The inference did not begin within RequestTTLSeconds";
            Err(Failure::new(Error::new(Code::DeadlineExceeded, message), 504))
        } else {
            api.answer_order(&order).await
        });
        let OutcomeFiles { output, failure } = order.files;
        let path = if reply.status == 200 { output } else { failure };
        let written = in_background(move || write(&path, &reply.body));
        if let Ok(Err(error)) | Err(error) = written.await {
            let cause =
                std::error::Error::source(&error).map_or(String::new(), |e| format!(" ({e})"));
            log::error!(
                "the outcome of an asynchronous invocation cannot be written: {error}{cause}"
            );
        }
    }
}

impl SagemakerApi {
    async fn answer_order(&self, order: &AsyncRequest) -> Answer {
        let invocation = Invocation {
            payload: Some(PayloadType::Named(&order.content_type)),
            accept: order.accept.as_deref(),
            attributes: order.attributes.as_deref(),
            model: order.model.as_deref(),
            signature: None,
            endpoint: Some(&order.endpoint),
            parent: TraceParent::default(),
        };
        let body = match &order.input {
            AsyncInput::Inline(body) => Ok(body.clone()),
            AsyncInput::File(path) => {
                let (path, most) = (path.clone(), self.config().max_input_bytes);
                let read = in_background(move || read(&path, most)).await;
                read.and_then(|body| body)
            }
        };
        let body = body.map_err(|error| Failure::new(error, 400))?;
        let answer = self.invoke(&invocation, body, Instant::now());
        let Some(limit) = order.time_limit else {
            return answer.await;
        };
        tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
            let message = "The inference took longer than InvocationTimeoutSeconds";
            Err(Failure::new(Error::new(Code::DeadlineExceeded, message), 504))
        })
    }
}

fn read(path: &Path, most: usize) -> Result<Bytes> {
    let file = File::open(path).map_err(unreadable)?;
    let mut body = Vec::new();
    let bound = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    file.take(bound).read_to_end(&mut body).map_err(unreadable)?;
    if body.len() > most {
        let message = format!("the file at InputLocation is larger than {most} bytes");
        return Err(Error::invalid(message));
    }
    Ok(body.into())
}

fn unreadable(error: std::io::Error) -> Error {
    let code = Code::of_io(&error);
    Error::new(code, "the file at InputLocation cannot be read").with_source(error)
}

/// Writes a file atomically.
fn write(path: &Path, body: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let done = fs::write(&part, body).and_then(|()| fs::rename(&part, path));
    done.map_err(|error| {
        let message = format!("{} cannot be written", path.display());
        Error::new(Code::of_io(&error), message).with_source(error)
    })
}
