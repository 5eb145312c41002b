//! TLS: certificates, which can be reloaded while a port serves, handshakes, and streams.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use webpki::{EndEntityCert, KeyUsage};

use super::drain::ListenerActivity;
use super::files::WatchedFiles;
use super::timed_writes::TimedWrites;
use crate::config::{Pem, TlsConfig};
use tensorserve_tensor::error::{Error, Result};

/// Key and certificates of a port. Cheap to clone.
#[derive(Clone)]
pub(super) struct Certificates(Arc<CertificatesInner>);

struct CertificatesInner {
    from: TlsConfig,
    /// The ALPN name of the port's protocol.
    protocol: &'static [u8],
    /// The configuration for the next handshake.
    current: ArcSwap<ServerConfig>,
}

impl Certificates {
    /// The certificates of a port with the protocol `protocol` (its ALPN name).
    ///
    /// # Errors
    /// If the key or a certificate cannot be used: which one, and why.
    pub(super) fn new(tls: &TlsConfig, protocol: &'static [u8]) -> Result<Self> {
        let current = ArcSwap::from_pointee(server_config(tls, protocol)?);
        Ok(Certificates(Arc::new(CertificatesInner { from: tls.clone(), protocol, current })))
    }

    /// Their files, and how they are reloaded. Open connections are not affected.
    pub(super) fn files(&self) -> WatchedFiles {
        let this = self.clone();
        WatchedFiles::new(self.0.from.files(), move || {
            let CertificatesInner { from, protocol, current } = &*this.0;
            current.store(Arc::new(server_config(&from.again()?, protocol)?));
            Ok(format!("{}: reloaded; new connections use it", from.certificate.origin))
        })
    }

    fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.current.load_full())
    }
}

/// Checks key and certificates.
pub(super) fn check(tls: &TlsConfig, protocol: &[u8]) -> Result<()> {
    server_config(tls, protocol).map(drop)
}

/// Key and certificates, checked.
fn server_config(tls: &TlsConfig, protocol: &[u8]) -> Result<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::internal("TLS cannot be initialized").with_source(e))?;
    let config = match &tls.client_roots {
        None => config.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem)? {
                roots.add(certificate).map_err(|e| unusable(pem, e))?;
            }
            let mut verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            if !tls.verify_clients {
                verifier = verifier.allow_unauthenticated();
            }
            config.with_client_cert_verifier(verifier.build().map_err(|e| unusable(pem, e))?)
        }
    };
    let chain = certificates(&tls.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(tls.key.text.as_bytes()).map_err(|e| {
        let why = match tls.key.text.contains("BEGIN ENCRYPTED PRIVATE KEY") {
            true => "the private key is encrypted; remove its passphrase".to_owned(),
            false => format!("it contains no PEM private key ({e})"),
        };
        Error::invalid(format!("{}: {why}", tls.key.origin))
    })?;
    check_time(&tls.certificate, &chain, SystemTime::now())?;
    let config = config.with_single_cert(chain, key).map_err(|e| {
        if !matches!(e, rustls::Error::InconsistentKeys(_)) {
            return unusable(&tls.certificate, e);
        }
        let (key, certificate) = (&tls.key.origin, &tls.certificate.origin);
        Error::invalid(format!(
            "{key}: the private key does not belong to the certificate in {certificate}"
        ))
    });
    let mut config = config?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

/// Checks that each certificate of a chain is valid today.
fn check_time(pem: &Pem, chain: &[CertificateDer<'_>], now: SystemTime) -> Result<()> {
    let today = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
    for certificate in chain {
        let parsed = EndEntityCert::try_from(certificate).map_err(|e| unusable(pem, e))?;
        // Without roots this always fails, but it checks the time first.
        let usage = KeyUsage::server_auth();
        let found = parsed.verify_for_usage(&[], &[], &[], today, usage, None, None);
        match found.err() {
            Some(webpki::Error::CertExpired { not_after, .. }) => {
                return Err(unusable(pem, format!("it expired on {}", date(not_after))));
            }
            Some(webpki::Error::CertNotValidYet { not_before, .. }) => {
                return Err(unusable(pem, format!("it is not valid before {}", date(not_before))));
            }
            _ => {}
        }
    }
    Ok(())
}

fn date(time: UnixTime) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.text.as_bytes()).collect();
    let all = all.map_err(|e| unusable(pem, e))?;
    if all.is_empty() {
        return Err(unusable(pem, "it contains no PEM certificate"));
    }
    Ok(all)
}

fn unusable(pem: &Pem, why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {why}", pem.origin))
}

/// A connection, encrypted or not.
pub(super) enum MaybeTlsStream<S> {
    Plain(S),
    Encrypted(Box<TlsStream<S>>),
}

/// Performs the TLS handshake of an HTTP connection, if the port is encrypted, within `patience`.
/// Later a client that reads nothing for `write_timeout` is disconnected. Both are shorter while the listener
/// ends, whose activity this is.
pub(super) async fn accept(
    mut stream: TcpStream,
    certificates: Option<&Certificates>,
    patience: Duration,
    write_timeout: Duration,
    activity: &ListenerActivity,
) -> io::Result<MaybeTlsStream<TimedWrites<TcpStream>>> {
    let timed = |stream| TimedWrites::new(stream, write_timeout, activity.clone());
    let Some(certificates) = certificates else {
        return Ok(MaybeTlsStream::Plain(timed(stream)));
    };
    let handshake = async {
        let mut first = [0];
        stream.peek(&mut first).await?;
        // A handshake begins with the byte 22, a plain request with its method.
        if first[0].is_ascii_uppercase() {
            refuse_plain(&mut stream).await?;
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the client did not start a TLS handshake",
            ));
        }
        certificates.acceptor().accept(timed(stream)).await
    };
    tokio::select! {
        stream = in_time(handshake, patience) => stream,
        () = activity.until_overdue() => Err(too_slow()),
    }
}

/// Performs the TLS handshake of any other connection, if the port is encrypted, within `patience`.
pub(super) async fn encrypt<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    certificates: Option<&Certificates>,
    patience: Duration,
) -> io::Result<MaybeTlsStream<S>> {
    match certificates {
        Some(certificates) => in_time(certificates.acceptor().accept(stream), patience).await,
        None => Ok(MaybeTlsStream::Plain(stream)),
    }
}

async fn in_time<S>(
    handshake: impl Future<Output = io::Result<TlsStream<S>>>,
    patience: Duration,
) -> io::Result<MaybeTlsStream<S>> {
    let stream = match timeout(patience, handshake).await {
        Ok(Ok(stream)) => Ok(MaybeTlsStream::Encrypted(Box::new(stream))),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(too_slow()),
    };
    stream.inspect_err(|error| log::debug!("a TLS handshake failed: {error}"))
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the handshake timed out")
}

/// Sends an error to a client that sent an unencrypted request.
async fn refuse_plain(stream: &mut TcpStream) -> io::Result<()> {
    const BODY: &str = "{\"error\": \"this port requires HTTPS; use https://\"}";
    // Unread bytes would reset the connection before the client has read the response.
    let mut request = [0; 8192];
    let _ = stream.read(&mut request).await?;
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{BODY}",
        BODY.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// Calls a method of the inner stream.
macro_rules! either {
    ($stream:ident . $method:ident ($($argument:expr),*)) => {
        match $stream.get_mut() {
            MaybeTlsStream::Plain(stream) => Pin::new(stream).$method($($argument),*),
            MaybeTlsStream::Encrypted(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for MaybeTlsStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self.poll_read(context, buffer))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for MaybeTlsStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(self.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self.poll_shutdown(context))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            MaybeTlsStream::Plain(stream) => stream.is_write_vectored(),
            MaybeTlsStream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }
}
