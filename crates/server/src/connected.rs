//! The client of a gRPC connection.

use std::net::IpAddr;

use tensorserve_http2::RefusedCalls;

/// The client that a call comes from.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectedClient {
    /// `None` for a UNIX socket.
    pub(super) address: Option<IpAddr>,
    /// Its calls on this connection that were refused because it has too many.
    pub(super) refused: RefusedCalls,
}
