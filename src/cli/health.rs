//! `tensorserve health`: for containers and scripts, which need no HTTP client then.

use std::process::ExitCode;
use std::time::Duration;

use super::say;
use crate::config::environment::Environment;
use crate::config::sagemaker;
use crate::error::{Error, Result};

/// Asks `/readyz`. Without a URL, asks the server that the environment of this process would
/// start.
pub(super) fn run(url: Option<&str>, environment: &Environment) -> Result<ExitCode> {
    let urls = match url {
        Some(url) => vec![url.trim_end_matches('/').to_owned()],
        None => likely(environment, sagemaker::is_called_for(environment)),
    };
    let mut answer = Err(Error::internal("no server to ask"));
    for url in urls {
        answer = get(&format!("{url}/readyz"));
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
    ports.into_iter().map(|port| format!("http://{host}:{port}")).collect()
}

/// Status and body of a page.
pub(super) fn get(url: &str) -> Result<(u16, String)> {
    if url.starts_with("https:") {
        return Err(Error::invalid(format!("{url}: only http: addresses are supported")));
    }
    let failed = |e: ureq::Error| Error::unavailable(format!("{url}: {e}"));
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(10)))
        .http_status_as_error(false)
        .build()
        .into();
    let mut response = agent.get(url).call().map_err(failed)?;
    let body = response.body_mut().read_to_string().map_err(failed)?;
    Ok((response.status().as_u16(), body))
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
    }
}
