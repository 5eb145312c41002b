//! The PEM files of the program's own HTTP clients.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{DigitallySignedStruct, Error as TlsError, SignatureScheme};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, parse_pem};

use tensorserve_tensor::error::{Code, Error, Result};

/// The certificates that servers are verified against: those in the file `ca`, or those of the system.
pub(crate) fn trusted(ca: Option<&Path>) -> Result<Vec<Certificate<'static>>> {
    if let Some(file) = ca {
        return certificates(file);
    }
    let found = rustls_native_certs::load_native_certs().certs;
    Ok(found.iter().map(|c| Certificate::from_der(c.as_ref()).to_owned()).collect())
}

/// The certificates in a PEM file.
pub(crate) fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let mut certificates = Vec::new();
    for item in parse_pem(&read(path)?) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| wrong(path, e))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(wrong(path, "the file contains no PEM certificate"));
    }
    Ok(certificates)
}

/// A client's certificate with its private key, from PEM files, which may be the same.
pub(crate) fn of_client(certificate: &Path, key: &Path) -> Result<ClientCert> {
    let private = PrivateKey::from_pem(&read(key)?).map_err(|e| wrong(key, e))?;
    Ok(ClientCert::new_with_certs(&certificates(certificate)?, private))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Error::new(Code::of_io(&e), format!("{}: {e}", path.display())))
}

/// The error that a file is not what it should be.
fn wrong(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {why}", path.display()))
}

/// Takes any certificate of a server, for addresses of this machine.
#[derive(Debug)]
pub(crate) struct AnyCertificate(pub(crate) Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _status: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
