//! The gRPC side of a protocol: its services, limits and errors.

use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use prost::Message;
use tonic::service::RoutesBuilder;
use tonic::{Request, Response, Status};

use tensorserve_auth::Permission;
use tensorserve_core::engine::{Engine, EntryPoint, InferenceCall};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::names::beginning;

/// The gRPC services of the server; each protocol adds its own.
#[derive(Default)]
pub struct GrpcServices {
    /// The services themselves.
    pub services: RoutesBuilder,
    /// Every method, as `/package.Service/Method`, with the permission that it requires.
    pub methods: Vec<(&'static str, Permission)>,
    /// The methods whose clients send streams of messages. Their handlers enter a budget for each message before they
    /// wait for it.
    pub streams: Vec<&'static str>,
    /// The methods whose plain calls are answered without the layers around a service.
    pub unary: Vec<UnaryMethod>,
    /// Their encoded `FileDescriptorSet`s, for reflection.
    pub descriptors: Vec<&'static [u8]>,
}

/// Bounds on gRPC calls.
#[derive(Clone, Copy, Debug)]
pub struct GrpcLimits {
    /// The largest message in bytes, in either direction.
    pub max_message_bytes: usize,
}

/// The client's deadline (`grpc-timeout`), stored in the extensions of the request.
#[derive(Clone, Copy, Debug)]
pub struct ClientDeadline(pub Instant);

/// Fields that follow the encoded message of a response, which the server sends from where they are in
/// memory: the key of a field with its length, its bytes, the next key. A service puts them into the
/// extensions of the response to a unary call.
#[derive(Clone, Debug)]
pub struct FollowingFields(pub Vec<Bytes>);

/// The head of a message on the wire: whether the message is compressed, and its length as four bytes.
pub const MESSAGE_HEAD: usize = 5;

type UnaryAnswer = BoxFuture<'static, Result<Response<Bytes>, Status>>;

/// A method that takes one message and answers with one, for calls whose messages are not compressed. Its
/// service has the method too, for all other calls.
#[derive(Clone)]
pub struct UnaryMethod {
    /// `/package.Service/Method`.
    pub path: &'static str,
    /// The most bytes of a message, without its head.
    pub max_message_bytes: usize,
    answer: Arc<dyn Fn(Request<Bytes>) -> UnaryAnswer + Send + Sync>,
}

impl UnaryMethod {
    /// The method at `path`. `decode` reads a message, `answer` is what the service calls.
    pub fn new<Q, R, A>(
        path: &'static str,
        limits: GrpcLimits,
        decode: fn(Bytes) -> Result<Q, Status>,
        answer: impl Fn(Request<Q>) -> A + Clone + Send + Sync + 'static,
    ) -> Self
    where
        Q: Send + 'static,
        R: Message,
        A: Future<Output = Result<Response<R>, Status>> + Send + 'static,
    {
        let max_message_bytes = limits.max_message_bytes;
        let answer = move |request: Request<Bytes>| -> UnaryAnswer {
            let answer = answer.clone();
            Box::pin(async move {
                let (metadata, extensions, message) = request.into_parts();
                let request = Request::from_parts(metadata, extensions, decode(message)?);
                let (metadata, response, extensions) = answer(request).await?.into_parts();
                let message = framed(&response, max_message_bytes)?;
                Ok(Response::from_parts(metadata, message, extensions))
            })
        };
        UnaryMethod { path, max_message_bytes, answer: Arc::new(answer) }
    }

    /// The response to a request whose message is encoded, without a head. That of the response has a head.
    ///
    /// # Errors
    /// Those of the service.
    pub async fn answer(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        (self.answer)(request).await
    }
}

/// `message` with its head.
///
/// # Errors
/// If it is longer than `most` bytes, with the words of tonic.
fn framed<R: Message>(message: &R, most: usize) -> Result<Bytes, Status> {
    let length = message.encoded_len();
    if length > most {
        return Err(Status::out_of_range(format!(
            "Error, encoded message length too large: found {length} bytes, the limit is: {most} bytes"
        )));
    }
    let Ok(short) = u32::try_from(length) else {
        return Err(Status::resource_exhausted(format!(
            "Cannot return body with more than 4GB of data but got {length} bytes"
        )));
    };
    let mut bytes = BytesMut::with_capacity(length + MESSAGE_HEAD);
    bytes.put_u8(0);
    bytes.put_u32(short);
    message.encode_raw(&mut bytes);
    Ok(bytes.freeze())
}

/// An inference through `entry` that begins now. The earlier of the client's and the server's deadline
/// applies.
pub fn call<Q>(engine: &Engine, entry: EntryPoint, request: &Request<Q>) -> InferenceCall {
    let call = engine.call(entry, Instant::now());
    match request.extensions().get() {
        Some(ClientDeadline(theirs)) => {
            InferenceCall { deadline: call.deadline.min(*theirs), ..call }
        }
        None => call,
    }
}

/// The response of the method `name`.
///
/// # Errors
/// The [`status`] of the answer's error.
pub fn wrapped<T>(name: &str, answer: Result<T>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(|error| status(name, &error))
}

/// The most bytes of an error message, which travels in a header. TensorFlow Serving truncates
/// at the same length.
const LONGEST_MESSAGE: usize = 1024;

/// The gRPC status of an error of the method `name`. Errors that the server causes are logged.
#[must_use]
pub fn status(name: &str, error: &Error) -> Status {
    let cause = std::error::Error::source(error).map_or(String::new(), |e| format!(" ({e})"));
    if error.code().is_servers_fault() {
        log::error!("{name}: {error}{cause}");
    } else {
        log::debug!("{name}: {error}{cause}");
    }
    let message = error.message();
    let mut text = beginning(message, LONGEST_MESSAGE).to_owned();
    if message.len() > LONGEST_MESSAGE {
        text.push_str("...TRUNCATED");
    }
    Status::new(tonic::Code::from(i32::from(error.code().grpc())), text)
}
