//! The PEM files of the program's own HTTP clients.

use std::fs;
use std::path::Path;

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
