//! A minimal HTTP client, for commands that ask a running server.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use ureq::tls::{ClientCert, RootCerts, TlsConfig, TlsProvider};

use crate::certificates::{AnyCertificate, certificates, of_client};
use crate::config::environment::Environment;
use tensorserve_codec::base64;
use tensorserve_tensor::error::{Error, Result};

/// How to verify the certificate of a server, and to authenticate to it.
#[derive(Args, Default)]
pub(super) struct TlsArguments {
    /// CA certificates to verify the server's certificate against, PEM. Not needed for a loopback
    /// address, whose certificate is not verified; other HTTPS URLs need --ca or --insecure
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Do not verify the server's certificate
    #[arg(long, conflicts_with = "ca")]
    insecure: bool,
    /// Client certificate, for servers that require one, PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// Private key of the client certificate, PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
}

/// The status and the body of the response to a GET request, with the credentials and the CA of the
/// environment, as in generated clients.
pub(super) fn get(url: &str, environment: &Environment) -> Result<(u16, String)> {
    let ca = environment.get("TENSORSERVE_CA").map(PathBuf::from);
    if ca.is_none() && url.starts_with("https:") && !is_this_machine(url) {
        return Err(without_ca(url));
    }
    let arguments = TlsArguments { ca, ..TlsArguments::default() };
    request(url, &arguments, authorization(environment).as_deref())
}

/// The `Authorization` header for the key, or else the user, in the environment.
pub(super) fn authorization(environment: &Environment) -> Option<String> {
    if let Some(key) = environment.get("TENSORSERVE_KEY") {
        return Some(format!("Bearer {key}"));
    }
    let user = environment.get("TENSORSERVE_USER")?;
    let password = environment.get("TENSORSERVE_PASSWORD").unwrap_or_default();
    let mut header = b"Basic ".to_vec();
    base64::encode(format!("{user}:{password}").as_bytes(), &mut header);
    String::from_utf8(header).ok()
}

/// The status and the body of the response to a GET request.
pub(super) fn request(
    url: &str,
    arguments: &TlsArguments,
    authorization: Option<&str>,
) -> Result<(u16, String)> {
    let failed = |e: ureq::Error| Error::unavailable(format!("{url}: {e}"));
    let mut config = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(10)))
        .http_status_as_error(false);
    if url.starts_with("https:") {
        config = config.tls_config(tls_config(url, arguments)?);
    }
    let agent: ureq::Agent = config.build().into();
    let mut request = agent.get(url);
    if let Some(authorization) = authorization {
        request = request.header("Authorization", authorization);
    }
    let mut response = request.call().map_err(failed)?;
    let body = response.body_mut().read_to_string().map_err(failed)?;
    Ok((response.status().as_u16(), body))
}

/// TLS for connections to the server of `url` that offer one protocol, with the CA of the environment.
///
/// # Errors
/// If the certificate of the server cannot be verified, or the CA cannot be read.
pub(super) fn client_config(
    url: &str,
    environment: &Environment,
    protocol: &[u8],
) -> Result<Arc<ClientConfig>> {
    let wrong = |e: &dyn std::fmt::Display| Error::invalid(format!("{url}: {e}"));
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(&e))?;
    let mut config = match environment.get("TENSORSERVE_CA") {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(Path::new(ca))? {
                let der = CertificateDer::from(certificate.der().to_vec());
                roots.add(der).map_err(|e| Error::invalid(format!("{ca}: {e}")))?;
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        None if is_this_machine(url) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth(),
        None => return Err(without_ca(url)),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

fn without_ca(url: &str) -> Error {
    Error::invalid(format!(
        "{url}: the server's certificate cannot be verified; name a file with its CA certificates in \
         TENSORSERVE_CA"
    ))
}

fn tls_config(url: &str, arguments: &TlsArguments) -> Result<TlsConfig> {
    let config = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .client_cert(client_certificate(arguments)?);
    if let Some(ca) = &arguments.ca {
        let roots = RootCerts::new_with_certs(&certificates(ca)?);
        return Ok(config.root_certs(roots).build());
    }
    if !arguments.insecure && !is_this_machine(url) {
        return Err(Error::invalid(format!(
            "{url}: the server's certificate cannot be verified; name its CA certificates with \
             --ca, or skip the verification with --insecure"
        )));
    }
    Ok(config.disable_verification(true).build())
}

/// Whether `url` is on a loopback address.
fn is_this_machine(url: &str) -> bool {
    let authority = url.split('/').nth(2).unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

fn client_certificate(arguments: &TlsArguments) -> Result<Option<ClientCert>> {
    let (Some(certificate), Some(key)) = (&arguments.certificate, &arguments.key) else {
        return Ok(None);
    };
    of_client(certificate, key).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_come_from_the_variables_of_generated_clients() {
        let of = |pairs: &[_]| authorization(&Environment::of(pairs));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("TENSORSERVE_PASSWORD", "b")]), None);
        let user = [("TENSORSERVE_USER", "a"), ("TENSORSERVE_PASSWORD", "b")];
        assert_eq!(of(&user).as_deref(), Some("Basic YTpi"));
        let both = [("TENSORSERVE_USER", "a"), ("TENSORSERVE_KEY", "k")];
        assert_eq!(of(&both).as_deref(), Some("Bearer k"));
    }

    #[test]
    fn only_loopback_addresses_need_no_root() {
        for here in ["https://127.0.0.1:8500/x", "https://localhost/x", "https://[::1]:1/x"] {
            assert!(is_this_machine(here), "{here}");
        }
        for there in
            ["https://10.0.0.1/x", "https://localhost.example:1/x", "https://[::2]/x", "https://"]
        {
            assert!(!is_this_machine(there), "{there}");
        }
    }
}
