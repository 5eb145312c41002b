//! What the listeners are told.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tensorserve_auth::AuthConfig;
use tensorserve_tensor::error::{Code, Error, Result};

/// Everything the listeners run on, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// The HTTP listener.
    pub http: HttpConfig,
    /// The gRPC listener.
    pub grpc: GrpcConfig,
    /// Who may do what; without it, everybody may do everything.
    pub auth: Option<AuthConfig>,
    /// How long things may take when the server stops.
    pub shutdown: ShutdownConfig,
    /// How often files are looked at that are watched; `None` for never.
    pub poll_interval: Option<Duration>,
}

/// The HTTP listener and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpConfig {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port; 0 picks a free one, `None` means that there is no HTTP.
    pub port: Option<u16>,
    /// More ports on which the same is served, where they are free.
    pub more_ports: Vec<u16>,
    /// Threads that serve connections.
    pub threads: usize,
    /// The largest request body in bytes, before and after decompression.
    pub max_body_bytes: usize,
    /// Answer a request after this long, ready or not.
    pub request_timeout: Duration,
    /// A body must have arrived after this long.
    pub body_timeout: Duration,
    /// A request's head must have arrived after this long.
    pub header_timeout: Duration,
    /// Close a connection that has been idle for this long.
    pub keep_alive: Duration,
    /// Most connections at once, over all threads.
    pub max_connections: usize,
    /// Which requests browsers may make for pages of other origins.
    pub cors: Cors,
    /// Give requests that bring no id one of our own.
    pub request_ids: bool,
    /// Send `Server-Timing` with every response, and not only on request.
    pub server_timing: bool,
    /// Encryption of the port; none without it.
    pub tls: Option<TlsConfig>,
    /// Which requests may change what is served.
    pub admin: AdminAccess,
}

/// Which requests of browsers may change what is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminAccess {
    /// Any at all.
    pub allowed: bool,
    /// Host names by which browsers may send them, besides addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// Which requests browsers may make for pages of other origins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    /// None.
    #[default]
    Off,
    /// Those to TensorFlow Serving's REST API, from any origin, with its headers.
    RestApi,
    /// All of them from any origin, with Simple TensorFlow Serving's headers.
    AnyOrigin,
}

/// The gRPC listener.
#[derive(Clone, Debug, PartialEq)]
pub struct GrpcConfig {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port; 0 picks a free one, `None` means that it listens on no port.
    pub port: Option<u16>,
    /// UNIX socket to listen on, too.
    pub socket_path: Option<PathBuf>,
    /// The largest message in bytes, in either direction.
    pub max_message_bytes: usize,
    /// Encryption of the port; none without it.
    pub tls: Option<TlsConfig>,
    /// Offer `grpc.health.v1.Health`.
    pub health_service: bool,
}

/// The text of a PEM file.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// The text. It may hold a key, so that this type shows nothing of it.
    pub text: String,
    /// Where it comes from, for errors.
    pub origin: String,
    /// Its file, which is watched; `None` if the text was part of another file.
    pub path: Option<PathBuf>,
}

/// Keys and certificates.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The server's private key.
    pub key: Pem,
    /// The server's certificate, and those between it and its root.
    pub certificate: Pem,
    /// Certificates that clients' own are checked against.
    pub client_roots: Option<Pem>,
    /// Refuse clients without a certificate.
    pub verify_clients: bool,
}

impl fmt::Debug for TlsConfig {
    /// Without the key: it must not get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verify = self.verify_clients;
        f.debug_struct("TlsConfig").field("verify_clients", &verify).finish_non_exhaustive()
    }
}

/// What happens between a signal to stop and the end.
#[derive(Clone, Debug, PartialEq)]
pub struct ShutdownConfig {
    /// Keep serving, but not ready, for so long: for load balancers to notice.
    pub delay: Duration,
    /// Requests under way may take so long after that.
    pub timeout: Duration,
}

impl Pem {
    /// The file at `path`, which `setting` names.
    ///
    /// # Errors
    /// If it can not be read, or is no text.
    pub fn read(setting: &str, path: &Path) -> Result<Self> {
        let origin = format!("{setting}: {}", path.display());
        let text = fs::read_to_string(path).map_err(|error| {
            Error::new(Code::of_io(&error), format!("{origin}: {error}")).with_source(error)
        })?;
        Ok(Pem { text, origin, path: Some(path.to_owned()) })
    }

    /// The same as its file is now; what came from elsewhere stays as it is.
    ///
    /// # Errors
    /// As [`Pem::read`].
    fn again(&self) -> Result<Self> {
        let Some(path) = &self.path else {
            return Ok(self.clone());
        };
        let suffix = format!(": {}", path.display());
        Pem::read(self.origin.strip_suffix(&suffix).unwrap_or(&self.origin), path)
    }
}

impl TlsConfig {
    /// The files that it was read from.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let pems = [Some(&self.key), Some(&self.certificate), self.client_roots.as_ref()];
        pems.into_iter().flatten().filter_map(|pem| pem.path.clone()).collect()
    }

    /// The same as its files are now.
    ///
    /// # Errors
    /// If one can not be read.
    pub fn again(&self) -> Result<Self> {
        Ok(TlsConfig {
            key: self.key.again()?,
            certificate: self.certificate.again()?,
            client_roots: self.client_roots.as_ref().map(Pem::again).transpose()?,
            verify_clients: self.verify_clients,
        })
    }
}
