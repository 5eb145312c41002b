//! `tensorserve health`: a readiness check for containers and scripts without an HTTP client.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio_rustls::rustls::crypto::ring;
use ureq::tls::{
    Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, TlsProvider, parse_pem,
};

use super::print_line;
use crate::config::environment::Environment;
use crate::config::sagemaker;
use tensorserve_codec::base64;
use tensorserve_tensor::error::{Code, Error, Result};

/// The server to check, and how to verify its certificate.
#[derive(Args, Default)]
pub(super) struct Arguments {
    /// URL of the server, such as http://127.0.0.1:8500 [default: from the variables that
    /// `tensorserve serve` reads]
    #[arg(value_name = "URL")]
    url: Option<String>,
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

/// Requests `/readyz`.
pub(super) fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode> {
    let urls = match &arguments.url {
        Some(url) => vec![url.trim_end_matches('/').to_owned()],
        None => candidate_urls(environment, sagemaker::is_called_for(environment)),
    };
    let mut answer = Err(Error::internal("no URL to request"));
    for url in urls {
        answer = request(&format!("{url}/readyz"), arguments, None);
        if answer.is_ok() {
            break;
        }
    }
    let (status, body) = answer?;
    if status == 200 {
        print_line("ready");
        return Ok(ExitCode::SUCCESS);
    }
    print_line(body.trim());
    Ok(ExitCode::FAILURE)
}

/// URLs of a server that was started with this environment, the most likely first. Its arguments
/// are unknown: a container image serves its own models, or is SageMaker's container.
fn candidate_urls(environment: &Environment, may_be_sagemakers: bool) -> Vec<String> {
    let host = match environment.get("TENSORSERVE_HOST").unwrap_or("127.0.0.1") {
        "0.0.0.0" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    };
    let ports = match environment.get("TENSORSERVE_HTTP_PORT") {
        Some(port) => vec![port],
        None if may_be_sagemakers => {
            vec![environment.get("SAGEMAKER_BIND_TO_PORT").unwrap_or("8080"), "8500"]
        }
        None => vec!["8500"],
    };
    let certificates = ["TENSORSERVE_TLS_CERTIFICATE", "TENSORSERVE_HTTP_TLS_CERTIFICATE"];
    let is_encrypted = certificates.iter().any(|name| environment.get(name).is_some());
    let scheme = if is_encrypted { "https" } else { "http" };
    ports.into_iter().map(|port| format!("{scheme}://{host}:{port}")).collect()
}

/// The status and the body of the response to a GET request, with the credentials and the CA of the
/// environment, as in generated clients.
pub(super) fn get(url: &str, environment: &Environment) -> Result<(u16, String)> {
    let ca = environment.get("TENSORSERVE_CA").map(PathBuf::from);
    let arguments = Arguments { ca, ..Arguments::default() };
    request(url, &arguments, authorization(environment).as_deref())
}

/// The `Authorization` header for the key, or else the user, in the environment.
fn authorization(environment: &Environment) -> Option<String> {
    if let Some(key) = environment.get("TENSORSERVE_KEY") {
        return Some(format!("Bearer {key}"));
    }
    let user = environment.get("TENSORSERVE_USER")?;
    let password = environment.get("TENSORSERVE_PASSWORD").unwrap_or_default();
    let mut header = b"Basic ".to_vec();
    base64::encode(format!("{user}:{password}").as_bytes(), &mut header);
    String::from_utf8(header).ok()
}

fn request(url: &str, arguments: &Arguments, authorization: Option<&str>) -> Result<(u16, String)> {
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

fn tls_config(url: &str, arguments: &Arguments) -> Result<TlsConfig> {
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

fn client_certificate(arguments: &Arguments) -> Result<Option<ClientCert>> {
    let (Some(certificate), Some(key)) = (&arguments.certificate, &arguments.key) else {
        return Ok(None);
    };
    let pem = read(key)?;
    let key = PrivateKey::from_pem(&pem).map_err(|e| wrong(key, e))?;
    Ok(Some(ClientCert::new_with_certs(&certificates(certificate)?, key)))
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
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

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Error::new(Code::of_io(&e), format!("{}: {e}", path.display())))
}

fn wrong(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sagemakers(pairs: &[(&str, &str)]) -> bool {
        pairs.iter().any(|(name, _)| name.starts_with("SAGEMAKER_"))
    }

    #[test]
    fn the_url_is_that_of_a_server_with_this_environment() {
        let urls = |pairs: &[_]| candidate_urls(&Environment::of(pairs), sagemakers(pairs));
        assert_eq!(urls(&[("TENSORSERVE_HOST", "0.0.0.0")]), ["http://127.0.0.1:8500"]);
        assert_eq!(urls(&[("TENSORSERVE_HOST", "::")]), ["http://[::1]:8500"]);
        let ours = [("TENSORSERVE_HTTP_PORT", "9000"), ("SAGEMAKER_BIND_TO_PORT", "8081")];
        assert_eq!(urls(&ours), ["http://127.0.0.1:9000"]);
        let container = [("SAGEMAKER_MULTI_MODEL", "true")];
        assert_eq!(urls(&container), ["http://127.0.0.1:8080", "http://127.0.0.1:8500"]);
        let elsewhere = [("SAGEMAKER_BIND_TO_PORT", "8081"), ("TENSORSERVE_HOST", "::1")];
        assert_eq!(urls(&elsewhere), ["http://[::1]:8081", "http://[::1]:8500"]);
        let encrypted = [("TENSORSERVE_TLS_CERTIFICATE", "server.pem")];
        assert_eq!(urls(&encrypted), ["https://127.0.0.1:8500"]);
    }

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
