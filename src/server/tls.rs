//! Encryption of the HTTP port: certificates, the handshake, and the stream that comes of it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::rt::net::TcpStream;
use actix_web::rt::time::timeout;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::config::{Pem, TlsConfig};
use crate::error::{Error, Result};

/// What makes the handshakes of a port with these certificates.
///
/// # Errors
/// If key or certificates can not be used: which of them, and why.
pub(super) fn acceptor(tls: &TlsConfig) -> Result<TlsAcceptor> {
    let mut config = server_config(tls)?;
    // Nothing else is spoken on this port.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Key and certificates, checked.
///
/// # Errors
/// As [`acceptor`].
pub(super) fn server_config(tls: &TlsConfig) -> Result<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::internal("TLS can not be set up").with_source(e))?;
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
            true => "the key is encrypted; write it out without a passphrase".to_owned(),
            false => format!("no private key in PEM is there ({e})"),
        };
        Error::invalid(format!("{}: {why}", tls.key.origin))
    })?;
    config.with_single_cert(chain, key).map_err(|e| {
        if !matches!(e, rustls::Error::InconsistentKeys(_)) {
            return unusable(&tls.certificate, e);
        }
        let (key, certificate) = (&tls.key.origin, &tls.certificate.origin);
        Error::invalid(format!("{key}: it is not the key of the certificate of {certificate}"))
    })
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.text.as_bytes()).collect();
    let all = all.map_err(|e| unusable(pem, e))?;
    if all.is_empty() {
        return Err(unusable(pem, "no certificate in PEM is there"));
    }
    Ok(all)
}

fn unusable(pem: &Pem, why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {why}", pem.origin))
}

/// A connection's bytes, as the HTTP library sees them.
pub(super) enum Stream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// Makes the handshake, if there is one to make, in at most `patience`.
pub(super) async fn accept(
    mut stream: TcpStream,
    acceptor: Option<&TlsAcceptor>,
    patience: Duration,
) -> io::Result<Stream> {
    let Some(acceptor) = acceptor else {
        return Ok(Stream::Plain(stream));
    };
    let handshake = async {
        let mut first = [0];
        stream.peek(&mut first).await?;
        // A handshake begins with a byte of 22, a request with its method.
        if first[0].is_ascii_uppercase() {
            refuse_plain(&mut stream).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak TLS"));
        }
        acceptor.accept(stream).await
    };
    let stream = match timeout(patience, handshake).await {
        Ok(Ok(stream)) => Ok(Stream::Encrypted(Box::new(stream))),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")),
    };
    stream.inspect_err(|error| log::debug!("a TLS handshake failed: {error}"))
}

/// Tells whoever sends a request in the clear.
async fn refuse_plain(stream: &mut TcpStream) -> io::Result<()> {
    const BODY: &str = "{\"error\": \"this port speaks HTTPS: ask with https://\"}";
    // What is left unread would make the connection end before the answer is read.
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

/// Hands a call on to the stream that there is.
macro_rules! either {
    ($stream:ident . $method:ident ($($argument:expr),*)) => {
        match $stream.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Stream::Encrypted(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(self.poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
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
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }
}
