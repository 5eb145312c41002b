//! The gRPC side of a protocol: its services, limits and errors.

use std::time::Instant;

use bytes::Bytes;
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
