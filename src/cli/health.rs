//! `tensorserve health`: for containers and scripts, which need no HTTP client then.

use std::process::ExitCode;
use std::time::Duration;

use super::say;
use crate::config::environment::Environment;
use crate::error::{Error, Result};

/// Asks `/readyz`. Without a URL, asks the server that the environment of this process would
/// start.
pub(super) fn run(url: Option<&str>, environment: &Environment) -> Result<ExitCode> {
    let url = match url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => {
            let port = environment.get("TENSORSERVE_HTTP_PORT").unwrap_or("8500");
            let host = match environment.get("TENSORSERVE_HOST").unwrap_or("127.0.0.1") {
                "0.0.0.0" => "127.0.0.1".to_owned(),
                "::" => "[::1]".to_owned(),
                host if host.contains(':') => format!("[{host}]"),
                host => host.to_owned(),
            };
            format!("http://{host}:{port}")
        }
    };
    let (status, body) = get(&format!("{url}/readyz"))?;
    if status == 200 {
        say("ready");
        return Ok(ExitCode::SUCCESS);
    }
    say(body.trim());
    Ok(ExitCode::FAILURE)
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
