//! Sessions that a server of TensorFlow runs.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use tensorserve_tensor::error::{Code, Error, Result};

/// How long to wait for a connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Whether something listens at `target`, an address `grpc://HOST:PORT`, or empty for this process. The runtime
/// would wait for it for ever.
///
/// # Errors
/// [`Code::Unavailable`] if nothing does.
pub(super) fn check(target: &str) -> Result<()> {
    if target.is_empty() {
        return Ok(());
    }
    let address = target.strip_prefix("grpc://").unwrap_or(target);
    let failed = |e: std::io::Error| {
        let message = format!("session_target {target}: no server of TensorFlow answers: {e}");
        Error::new(Code::Unavailable, message).with_source(e)
    };
    let mut last = std::io::Error::other("the name has no address");
    for address in address.to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

#[cfg(test)]
pub(crate) mod tests;
