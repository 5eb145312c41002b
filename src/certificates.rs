//! The PEM files of the program's own HTTP clients.

use std::fs;
use std::path::Path;

use ureq::tls::{Certificate, PemItem, parse_pem};

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

pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Error::new(Code::of_io(&e), format!("{}: {e}", path.display())))
}

/// The error that a file is not what it should be.
pub(crate) fn wrong(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {why}", path.display()))
}
