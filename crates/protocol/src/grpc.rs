//! What a protocol brings for gRPC.

use std::time::Instant;

use tonic::Status;
use tonic::service::RoutesBuilder;

use tensorserve_auth::Permission;
use tensorserve_tensor::error::Error;

/// The services of a protocol, as it adds them.
#[derive(Default)]
pub struct GrpcServices {
    /// The services themselves.
    pub services: RoutesBuilder,
    /// Every method of theirs, as `/package.Service/Method`, and what a client must be allowed to.
    pub methods: Vec<(&'static str, Permission)>,
    /// Their descriptions for reflection, as encoded `FileDescriptorSet`s.
    pub descriptors: Vec<&'static [u8]>,
}

/// Bounds on gRPC calls.
#[derive(Clone, Copy, Debug)]
pub struct GrpcLimits {
    /// The largest message in bytes, in either direction.
    pub max_message_bytes: usize,
}

/// When the client of a call stops waiting (`grpc-timeout`): in the extensions of its request.
#[derive(Clone, Copy, Debug)]
pub struct ClientDeadline(pub Instant);

/// The most bytes of an error's text, which travels in a header; as TensorFlow Serving cuts it.
const LONGEST_MESSAGE: usize = 1024;

/// An error of the method `name` as gRPC has it. What is the server's own fault is logged.
#[must_use]
pub fn status(name: &str, error: &Error) -> Status {
    let cause = std::error::Error::source(error).map_or(String::new(), |e| format!(" ({e})"));
    if error.code().is_servers_fault() {
        log::error!("{name}: {error}{cause}");
    } else {
        log::debug!("{name}: {error}{cause}");
    }
    let message = error.message();
    let mut text = message.to_owned();
    if message.len() > LONGEST_MESSAGE {
        let end = (0..=LONGEST_MESSAGE).rev().find(|at| message.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push_str("...TRUNCATED");
    }
    Status::new(tonic::Code::from(i32::from(error.code().grpc())), text)
}
