//! `tensorserve health`: a readiness check for containers and scripts without an HTTP client.

use std::ffi::OsString;
use std::net::TcpStream;
use std::process::ExitCode;

use clap::Args;

use super::container::{self, ContainerCommand};
use super::http_client::{TlsArguments, request};
use super::{model_server, print_line, print_text, serve_settings};
use crate::config::environment::Environment;
use crate::config::units::Port;
use crate::config::{ServerSettings, sagemaker, vertex};
use tensorserve_tensor::error::{Error, Result};

/// The server to check, and how to verify its certificate.
#[derive(Args, Default)]
pub(super) struct Arguments {
    /// URL of the server, such as http://127.0.0.1:8500 [default: from the command line of the
    /// container, and the variables that `tensorserve serve` reads]
    #[arg(value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    tls: TlsArguments,
}

/// Requests `/readyz`.
pub(super) fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode> {
    let urls = match &arguments.url {
        Some(url) => vec![url.trim_end_matches('/').to_owned()],
        None => match container::first_process() {
            Some(words) => urls_of_process(words, environment),
            None => candidate_urls(environment, sagemaker::is_called_for(environment)),
        },
    };
    let mut answer = Err(Error::internal("no URL to request"));
    for url in urls {
        if let Some(address) = url.strip_prefix("tcp://") {
            return connect(address);
        }
        answer = request(&format!("{url}/readyz"), &arguments.tls, None);
        if answer.is_ok() {
            break;
        }
    }
    let (status, body) = answer?;
    if status == 200 {
        print_line("ready");
        return Ok(ExitCode::SUCCESS);
    }
    print_text(body.trim());
    Ok(ExitCode::FAILURE)
}

/// Checks only whether a gRPC port is open: without HTTP, and as TensorFlow Serving without a health
/// service, no request tells whether models are ready.
fn connect(address: &str) -> Result<ExitCode> {
    match TcpStream::connect(address) {
        Ok(_) => {
            print_line(&format!("{address} is open"));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(Error::unavailable(format!("{address}: {error}"))),
    }
}

/// URLs of a server with this command line, the most likely first.
fn urls_of_process(words: Vec<OsString>, environment: &Environment) -> Vec<String> {
    let is_sagemakers = sagemaker::is_called_for(environment);
    match container::command_of(words, environment) {
        Some(ContainerCommand::ModelServer(flags)) => {
            model_server::health_url(flags, environment).into_iter().collect()
        }
        Some(ContainerCommand::Tensorserve(words, variables)) => {
            let mut environment = environment.clone();
            for (name, value) in variables {
                environment = environment.with(name, value);
            }
            let (settings, asks_for_sagemakers) = serve_settings(words);
            let server = settings.or_environment(&environment).or_file().server;
            if let Some(port) = server.http_port.and_then(Port::number) {
                environment = environment.with("TENSORSERVE_HTTP_PORT", port.to_string());
            }
            if let Some(host) = server.host {
                environment = environment.with("TENSORSERVE_HOST", host);
            }
            if let Some(certificate) = server.tls_certificate.or(server.http_tls_certificate) {
                environment = environment.with("TENSORSERVE_TLS_CERTIFICATE", certificate);
            }
            candidate_urls(&environment, is_sagemakers || asks_for_sagemakers)
        }
        None => candidate_urls(environment, is_sagemakers),
    }
}

/// URLs of a server that was started with this environment, the most likely first. Its arguments
/// are unknown: a container image serves its own models, or is SageMaker's container.
fn candidate_urls(environment: &Environment, may_be_sagemakers: bool) -> Vec<String> {
    let defaults = ServerSettings::default();
    let host = match environment.get("TENSORSERVE_HOST").unwrap_or(&defaults.host()) {
        "0.0.0.0" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    };
    let vertex = vertex::read(environment).and_then(|vertex| vertex.settings.server.http_port);
    let vertex = vertex.and_then(Port::number).map(|port| port.to_string());
    let default_port = defaults.http_port().to_string();
    let ports = match environment.get("TENSORSERVE_HTTP_PORT").or(vertex.as_deref()) {
        Some(port) => vec![port],
        None if may_be_sagemakers => {
            vec![environment.get("SAGEMAKER_BIND_TO_PORT").unwrap_or("8080"), &default_port]
        }
        None => vec![default_port.as_str()],
    };
    let certificates = ["TENSORSERVE_TLS_CERTIFICATE", "TENSORSERVE_HTTP_TLS_CERTIFICATE"];
    let is_encrypted = certificates.iter().any(|name| environment.get(name).is_some());
    let scheme = if is_encrypted { "https" } else { "http" };
    ports.into_iter().map(|port| format!("{scheme}://{host}:{port}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let vertex = [("AIP_HTTP_PORT", "9090"), ("TENSORSERVE_HOST", "0.0.0.0")];
        assert_eq!(urls(&vertex), ["http://127.0.0.1:9090"]);
        let encrypted = [("TENSORSERVE_TLS_CERTIFICATE", "server.pem")];
        assert_eq!(urls(&encrypted), ["https://127.0.0.1:8500"]);
    }

    #[test]
    fn the_url_is_that_of_the_first_process() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(&file, "http_port = 9300").expect("written");
        let config = format!("tensorserve container serve --config {}", file.path().display());
        let urls = |line: &str, pairs: &[_]| {
            let words = line.split(' ').map(OsString::from).collect();
            urls_of_process(words, &Environment::of(pairs)).join(" ")
        };
        let name = [("MODEL_NAME", "m")];
        for (line, pairs, url) in [
            ("tensorserve container", &name[..], "http://127.0.0.1:8501"),
            ("tensorserve container serve /models", &name, "http://127.0.0.1:8500"),
            ("tensorserve container --rest_api_port=9000", &name, "http://127.0.0.1:9000"),
            ("tensorserve tf_serving_entrypoint", &[], "http://127.0.0.1:8501"),
            (
                "/usr/bin/tensorflow_model_server --port=9000 --rest_api_port=8080",
                &[],
                "http://127.0.0.1:8080",
            ),
            ("/usr/bin/tensorflow_model_server --port=9000", &[], "tcp://127.0.0.1:9000"),
            ("tensorflow_model_server", &[("TENSORSERVE_HTTP_PORT", "7")], "http://127.0.0.1:7"),
            (
                "tensorflow_model_server --rest_api_port=1 --rest_api_ssl_config_file=f",
                &[],
                "https://127.0.0.1:1",
            ),
            ("tensorserve container", &[("PORT", "8080")], "http://127.0.0.1:8080"),
            ("tensorserve container", &[("AIP_HTTP_PORT", "8081")], "http://127.0.0.1:8081"),
            (
                "tensorserve container serve --http-port 9100 /m",
                &[("PORT", "1")],
                "http://127.0.0.1:9100",
            ),
            ("tensorserve serve --http-port=9100 --host ::1", &[], "http://[::1]:9100"),
            (&config, &[], "http://127.0.0.1:9300"),
            (
                "tensorserve container serve --sagemaker",
                &[],
                "http://127.0.0.1:8080 http://127.0.0.1:8500",
            ),
        ] {
            assert_eq!(urls(line, pairs), url, "{line}");
        }
    }
}
