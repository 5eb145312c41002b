//! `tensorserve health`: for containers and scripts, which need no HTTP client then.

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

use super::say;
use crate::config::environment::Environment;
use crate::config::sagemaker;
use tensorserve_tensor::error::{Code, Error, Result};

/// What to ask, and how to know who answers.
#[derive(Args, Default)]
pub(super) struct Arguments {
    /// The server [default: the one that the environment of this process would start]
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Check the server's certificate against those in this file, PEM [default: on this machine it
    /// is not checked, elsewhere this or --insecure is needed]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Do not check the server's certificate
    #[arg(long, conflicts_with = "ca")]
    insecure: bool,
    /// Certificate to show to a server that asks for one, PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// Private key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
}

/// Asks `/readyz`.
pub(super) fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode> {
    let urls = match &arguments.url {
        Some(url) => vec![url.trim_end_matches('/').to_owned()],
        None => likely(environment, sagemaker::is_called_for(environment)),
    };
    let mut answer = Err(Error::internal("no server to ask"));
    for url in urls {
        answer = ask(&format!("{url}/readyz"), arguments);
        if answer.is_ok() {
            break;
        }
    }
    let (status, body) = answer?;
    if status == 200 {
        say("ready");
        return Ok(ExitCode::SUCCESS);
    }
    say(body.trim());
    Ok(ExitCode::FAILURE)
}

/// Where a server would be that was started with this environment, likeliest first. What its
/// arguments were is not known: an image serves models of its own, or is SageMaker's container.
fn likely(environment: &Environment, may_be_sagemakers: bool) -> Vec<String> {
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

/// Status and body of a page.
pub(super) fn get(url: &str) -> Result<(u16, String)> {
    ask(url, &Arguments::default())
}

fn ask(url: &str, arguments: &Arguments) -> Result<(u16, String)> {
    let failed = |e: ureq::Error| Error::unavailable(format!("{url}: {e}"));
    let mut config = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(10)))
        .http_status_as_error(false);
    if url.starts_with("https:") {
        config = config.tls_config(tls_config(url, arguments)?);
    }
    let agent: ureq::Agent = config.build().into();
    let mut response = agent.get(url).call().map_err(failed)?;
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
            "{url}: whose certificate is right there? Name its root with --ca, or do without with \
             --insecure"
        )));
    }
    Ok(config.disable_verification(true).build())
}

/// Whether nobody but this machine can answer.
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
        return Err(wrong(path, "no certificate in PEM is there"));
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
    fn the_server_that_the_environment_would_start_is_asked() {
        let urls = |pairs: &[_]| likely(&Environment::of(pairs), sagemakers(pairs));
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
    fn only_this_machine_is_believed_without_a_root() {
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
