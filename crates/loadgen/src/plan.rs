//! What is sent, when, and on how many connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::hpack;
use tensorserve_tensor::error::{Error, Result};

/// When requests are sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Closed loop: each connection sends, waits for the response, and sends again.
    Closed,
    /// Open loop: this many a second, at even distances.
    Fixed(f64),
    /// Open loop: this many a second on average, independent of each other, as those of many clients are.
    Poisson(f64),
    /// Open loop: at these times, in nanoseconds from the start of the run, ascending; request by request.
    Times(Arc<[u64]>),
}

impl Arrivals {
    /// Requests a second, of an open loop with a rate.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        match self {
            Arrivals::Closed | Arrivals::Times(_) => None,
            Arrivals::Fixed(rate) | Arrivals::Poisson(rate) => Some(*rate),
        }
    }
}

/// How requests go over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireKind {
    /// HTTP/1.1.
    Http,
    /// Calls of gRPC, over HTTP/2. One call at a time is on a connection.
    Grpc,
}

/// TLS of connections.
#[derive(Clone, Debug)]
pub struct LoadTls {
    /// What is trusted, and the protocols that are offered.
    pub config: Arc<ClientConfig>,
    /// The name that the server's certificate must have.
    pub name: ServerName<'static>,
}

/// A request, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireRequest {
    /// The header block of a call; empty for HTTP/1.1.
    pub(crate) head: Vec<u8>,
    /// The message of a call with its length; of HTTP/1.1 all of the request.
    pub(crate) body: Vec<u8>,
}

impl WireRequest {
    /// A request of HTTP/1.1, complete with its head.
    #[must_use]
    pub fn http(bytes: Vec<u8>) -> Self {
        WireRequest { head: Vec::new(), body: bytes }
    }

    /// A call of the method at `path`, such as `/package.Service/Method`, with an encoded message; `scheme` is `http` or
    /// `https`.
    ///
    /// # Errors
    /// If the message is longer than a call may have, or the fields take more than a frame.
    pub fn grpc(
        path: &str,
        (scheme, authority): (&str, &str),
        fields: &[(&str, &str)],
        message: &[u8],
    ) -> Result<Self> {
        let fixed = [("te", "trailers"), ("content-type", "application/grpc")];
        let head = hpack::block(path, (scheme, authority), &[&fixed[..], fields].concat());
        if head.len() > LARGEST_HEAD {
            return Err(Error::invalid("the fields of a call may have 16 KiB"));
        }
        let length = u32::try_from(message.len())
            .map_err(|_| Error::invalid("the message of a call may have 4 GiB"))?;
        // Not compressed.
        let mut body = vec![0];
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(message);
        Ok(WireRequest { head, body })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

/// The largest block of fields that fits into one frame of any server.
const LARGEST_HEAD: usize = 16_384;

/// A run.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// The server.
    pub address: SocketAddr,
    /// How requests go over a connection.
    pub wire: WireKind,
    /// TLS of connections; `None` for none.
    pub tls: Option<LoadTls>,
    /// The requests: one after the other, from the first again after the last.
    pub requests: Arc<Vec<WireRequest>>,
    /// When they are sent.
    pub arrivals: Arrivals,
    /// Connections, and so the most requests that are in flight at a time.
    pub connections: usize,
    /// Threads, at most one for each connection.
    pub threads: usize,
    /// Requests that are due in this time, first of all, are sent and not counted.
    pub warm_up: Duration,
    /// The time that is measured.
    pub duration: Duration,
    /// A request without a complete response after this time, from when it was sent, has failed.
    pub timeout: Duration,
    /// Ends the run before `duration` has passed, once the quantiles are steady.
    pub until_steady: bool,
}

/// The most connections: more than a process may have descriptors for.
const MOST_CONNECTIONS: usize = 100_000;

/// The longest run, whose nanoseconds every counter holds.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// The highest rate: two requests are at least a nanosecond apart.
const HIGHEST_RATE: f64 = 1e9;

impl LoadPlan {
    /// Checks the numbers.
    ///
    /// # Errors
    /// If one of them makes no run.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::invalid(what.to_owned()));
        if self.requests.is_empty() {
            return wrong("there is no request to send");
        }
        if !(1..=MOST_CONNECTIONS).contains(&self.connections) {
            return wrong("the number of connections must be from 1 to 100000");
        }
        if self.threads == 0 {
            return wrong("there must be at least one thread");
        }
        if let Some(rate) = self.arrivals.rate()
            && !(rate > 0.0 && rate <= HIGHEST_RATE)
        {
            return wrong("the rate must be above 0 and at most 1e9 requests a second");
        }
        if self.duration.is_zero() || self.duration > LONGEST || self.warm_up > LONGEST {
            return wrong("the duration must be above 0 and at most 7 days");
        }
        if self.timeout.is_zero() || self.timeout > LONGEST {
            return wrong("the timeout must be above 0 and at most 7 days");
        }
        Ok(())
    }

    /// The length of a window, over which counts are kept together: short runs have twenty, too.
    pub(crate) fn window(&self) -> Duration {
        (self.duration / 20).clamp(Duration::from_millis(50), Duration::from_secs(1))
    }
}
