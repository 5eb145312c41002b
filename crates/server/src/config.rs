//! The configuration of the listeners.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tensorserve_auth::AuthConfig;
use tensorserve_tensor::error::{Code, Error, Result};

/// The checked configuration of the listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// The HTTP listener.
    pub http: HttpConfig,
    /// The gRPC listener.
    pub grpc: GrpcConfig,
    /// Users and their roles; without it, every client may do everything.
    pub auth: Option<AuthConfig>,
    /// Time limits of the shutdown.
    pub shutdown: ShutdownConfig,
    /// Interval for checking watched files; `None` for never.
    pub poll_interval: Option<Duration>,
}

/// The HTTP listener and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpConfig {
    /// IP address to listen on.
    pub host: IpAddr,
    /// Port; 0 selects a free one, `None` disables HTTP.
    pub port: Option<u16>,
    /// What names the port, in the words of the front that was started: an option, a flag or a variable.
    pub port_setting: &'static str,
    /// Additional ports, which are used if they are free, each with the setting that names it.
    pub more_ports: Vec<(u16, &'static str)>,
    /// Threads that serve connections.
    pub threads: usize,
    /// Maximum size of a request body in bytes, before and after decompression.
    pub max_body_bytes: usize,
    /// Time limit for answering a request.
    pub request_timeout: Duration,
    /// Time limit for receiving the body of a request.
    pub body_timeout: Duration,
    /// Time within which a client must read a part of its response.
    pub write_timeout: Duration,
    /// Time limit for receiving the head of a request.
    pub header_timeout: Duration,
    /// Time after which an idle connection is closed.
    pub keep_alive: Duration,
    /// Maximum number of open connections, over all threads.
    pub max_connections: usize,
    /// Which cross-origin requests of browsers are allowed.
    pub cors: Cors,
    /// Generate an id for requests without one.
    pub request_ids: bool,
    /// Send `Server-Timing` with every response, not only on request.
    pub server_timing: bool,
    /// TLS of the port; `None` for plain text.
    pub tls: Option<TlsConfig>,
    /// Which requests may change models.
    pub admin: AdminAccess,
}

/// Which requests to the console may change models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminAccess {
    /// Whether any may.
    pub allowed: bool,
    /// Host names, besides IP addresses and `localhost`, to which browsers may send them.
    pub hosts: Vec<String>,
}

/// Which cross-origin requests of browsers are allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    /// None.
    #[default]
    Off,
    /// Requests to TensorFlow Serving's REST API, from any origin, with its headers.
    RestApi,
    /// Requests to Simple TensorFlow Serving's routes, from any origin, with its headers.
    AnyOrigin,
}

/// The gRPC listener.
#[derive(Clone, Debug, PartialEq)]
pub struct GrpcConfig {
    /// IP address to listen on.
    pub host: IpAddr,
    /// Port; 0 selects a free one, `None` disables the port.
    pub port: Option<u16>,
    /// What names the port, in the words of the front that was started.
    pub port_setting: &'static str,
    /// UNIX socket to listen on, in addition to the port.
    pub socket_path: Option<PathBuf>,
    /// Maximum size of a message in bytes, in either direction.
    pub max_message_bytes: usize,
    /// TLS of the port; `None` for plain text.
    pub tls: Option<TlsConfig>,
    /// Serve `grpc.health.v1.Health`.
    pub health_service: bool,
}

/// The text of a PEM file.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// The text. It may hold a private key, so this type has no `Debug`.
    pub text: String,
    /// Its origin, for errors.
    pub origin: String,
    /// Its file, which is watched; `None` if the text is part of another file.
    pub path: Option<PathBuf>,
}

/// Private key and certificates of a TLS port.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The server's private key.
    pub key: Pem,
    /// The server's certificate, with its intermediate certificates.
    pub certificate: Pem,
    /// CA certificates that client certificates are verified against.
    pub client_roots: Option<Pem>,
    /// Refuse clients without a certificate.
    pub verify_clients: bool,
}

impl fmt::Debug for TlsConfig {
    /// Omits the key, which must not be logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verify = self.verify_clients;
        f.debug_struct("TlsConfig").field("verify_clients", &verify).finish_non_exhaustive()
    }
}

/// Time limits between the signal to stop and the exit.
#[derive(Clone, Debug, PartialEq)]
pub struct ShutdownConfig {
    /// Time to keep serving while reporting not ready, so that load balancers notice.
    pub delay: Duration,
    /// Time limit after that for requests in flight.
    pub timeout: Duration,
}

impl Pem {
    /// The file at `path`, which `setting` names.
    ///
    /// # Errors
    /// If the file cannot be read, or is not UTF-8.
    pub fn read(setting: &str, path: &Path) -> Result<Self> {
        let origin = format!("{setting}: {}", path.display());
        let text = fs::read_to_string(path).map_err(|error| {
            Error::new(Code::of_io(&error), format!("{origin}: {error}")).with_source(error)
        })?;
        Ok(Pem { text, origin, path: Some(path.to_owned()) })
    }

    /// Rereads the file; text of another origin is returned unchanged.
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
    /// The files from which it was read.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let pems = [Some(&self.key), Some(&self.certificate), self.client_roots.as_ref()];
        pems.into_iter().flatten().filter_map(|pem| pem.path.clone()).collect()
    }

    /// Rereads the files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn again(&self) -> Result<Self> {
        Ok(TlsConfig {
            key: self.key.again()?,
            certificate: self.certificate.again()?,
            client_roots: self.client_roots.as_ref().map(Pem::again).transpose()?,
            verify_clients: self.verify_clients,
        })
    }
}
