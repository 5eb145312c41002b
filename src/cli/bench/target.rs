//! Where requests go: a model of a running server.

use std::net::{SocketAddr, ToSocketAddrs};

use tokio_rustls::rustls::pki_types::ServerName;

use super::super::http_client;
use crate::config::environment::Environment;
use tensorserve_loadgen::plan::{LoadTls, WireKind};
use tensorserve_protocol::url::{percent_decoded, percent_encoded};
use tensorserve_tensor::error::{Error, Result};

/// The gRPC port of a server with default settings.
const GRPC_PORT: u16 = 8501;

/// A version of a model, as a URL names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum NamedVersion {
    Number(String),
    Label(String),
}

/// A model of a server.
#[derive(Clone, Debug)]
pub(in crate::cli) struct ModelTarget {
    /// `http://HOST:PORT` or `https://HOST:PORT`, with the prefix of a proxy if there is one.
    pub(in crate::cli) server: String,
    /// `http` or `https`.
    pub(in crate::cli) scheme: &'static str,
    /// `HOST:PORT`.
    pub(in crate::cli) authority: String,
    /// What is before `/v1/models/` in paths.
    pub(in crate::cli) prefix: String,
    pub(in crate::cli) address: SocketAddr,
    /// The name of the model, decoded.
    pub(in crate::cli) model: String,
    pub(in crate::cli) version: Option<NamedVersion>,
}

/// What a URL says.
#[derive(Debug, PartialEq, Eq)]
struct UrlParts {
    scheme: &'static str,
    authority: String,
    prefix: String,
    model: Option<String>,
    version: Option<NamedVersion>,
}

/// Whether `target` is a URL of a server, and not a path.
pub(in crate::cli) fn is_url(target: &str) -> bool {
    target.starts_with("http://") || target.starts_with("https://")
}

impl ModelTarget {
    /// The model that a URL names, or `model` on the server that it names.
    ///
    /// # Errors
    /// If it names none, or no server.
    pub(in crate::cli) fn of(
        url: &str,
        model: Option<&str>,
        environment: &Environment,
    ) -> Result<Self> {
        let parts = parse(url)?;
        if let (Some(named), Some(wanted)) = (&parts.model, model)
            && named != wanted
        {
            let message = format!("{url} names the model {named}, and --model the model {wanted}");
            return Err(Error::invalid(message));
        }
        let server = format!("{}://{}{}", parts.scheme, parts.authority, parts.prefix);
        let address = resolve(&parts.authority, parts.scheme, url)?;
        let model = match model.map(str::to_owned).or(parts.model) {
            Some(model) => model,
            None => only_model(&server, url, environment)?,
        };
        let UrlParts { scheme, authority, prefix, version, .. } = parts;
        Ok(ModelTarget { server, scheme, authority, prefix, address, model, version })
    }

    /// The address of its gRPC port: the given one, or the default one of the host.
    ///
    /// # Errors
    /// If it is none.
    pub(in crate::cli) fn grpc_address(&self, given: Option<&str>) -> Result<SocketAddr> {
        match given {
            Some(given) if split_port(given).is_none() => {
                Err(Error::invalid(format!("--grpc: {given} is not HOST:PORT")))
            }
            Some(given) => resolve(given, self.scheme, given),
            None => Ok(SocketAddr::new(self.address.ip(), GRPC_PORT)),
        }
    }

    /// TLS of connections to it that speak `wire`; `None` without TLS.
    ///
    /// # Errors
    /// If its certificate cannot be verified.
    pub(in crate::cli) fn tls(
        &self,
        wire: WireKind,
        environment: &Environment,
    ) -> Result<Option<LoadTls>> {
        if self.scheme != "https" {
            return Ok(None);
        }
        let protocol: &[u8] = match wire {
            WireKind::Http => b"http/1.1",
            WireKind::Grpc => b"h2",
        };
        let host = split_port(&self.authority).map_or(&*self.authority, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let wrong = |e| Error::invalid(format!("{}: {e}", self.server));
        Ok(Some(LoadTls {
            config: http_client::client_config(&self.server, environment, protocol)?,
            name: ServerName::try_from(host).map_err(wrong)?,
        }))
    }

    /// The path of the model in TensorFlow Serving's API.
    pub(in crate::cli) fn v1_path(&self) -> String {
        let version = match &self.version {
            None => String::new(),
            Some(NamedVersion::Number(number)) => format!("/versions/{number}"),
            Some(NamedVersion::Label(label)) => format!("/labels/{}", percent_encoded(label)),
        };
        format!("{}/v1/models/{}{version}", self.prefix, percent_encoded(&self.model))
    }

    /// The path of the model in the Open Inference Protocol.
    pub(in crate::cli) fn v2_path(&self) -> String {
        let version = match &self.version {
            None => String::new(),
            Some(NamedVersion::Number(name) | NamedVersion::Label(name)) => {
                format!("/versions/{}", percent_encoded(name))
            }
        };
        format!("{}/v2/models/{}{version}", self.prefix, percent_encoded(&self.model))
    }
}

/// The name of the only model of a server.
fn only_model(server: &str, url: &str, environment: &Environment) -> Result<String> {
    let wrong = |why: String| Error::invalid(format!("{url}: {why}"));
    let (status, body) = http_client::get(&format!("{server}/v1/models"), environment)?;
    let page: serde_json::Value = serde_json::from_str(&body).unwrap_or_default();
    let names = page.get("models").and_then(serde_json::Value::as_array);
    let names: Option<Vec<&str>> =
        names.map(|all| all.iter().filter_map(|name| name.as_str()).collect());
    match names.as_deref() {
        Some([name]) if status == 200 => Ok((*name).to_owned()),
        Some([]) => Err(wrong("the server has no model".to_owned())),
        Some(names) => Err(wrong(format!(
            "name a model, as in {server}/v1/models/NAME or with --model: the server has {}",
            names.join(", ")
        ))),
        None => {
            let said = page.get("error").and_then(serde_json::Value::as_str);
            let said = said.map(|said| format!("; the server says: {said}")).unwrap_or_default();
            Err(wrong(format!("name a model: {server}/v1/models/NAME, or with --model{said}")))
        }
    }
}

fn parse(url: &str) -> Result<UrlParts> {
    let wrong = |why: &str| Error::invalid(format!("{url}: {why}"));
    let schemes = ["http", "https"].into_iter();
    let mut found =
        schemes.filter_map(|scheme| Some((scheme, url.strip_prefix(scheme)?.strip_prefix("://")?)));
    let (scheme, rest) = found.next().ok_or_else(|| wrong("not a URL of a server"))?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.is_empty() || authority.contains('@') {
        return Err(wrong("not a URL such as http://127.0.0.1:8500/v1/models/NAME"));
    }
    let path = format!("/{}", path.split(['?', '#']).next().unwrap_or_default());
    let authority = authority.to_owned();
    let found = ["/v1/models/", "/v2/models/"].iter().find_map(|mark| path.split_once(mark));
    let Some((prefix, rest)) = found else {
        let prefix = path.trim_end_matches('/');
        let prefix = prefix.strip_suffix("/v1/models").unwrap_or(prefix);
        let prefix = prefix.to_owned();
        return Ok(UrlParts { scheme, authority, prefix, model: None, version: None });
    };
    let rest = rest.rsplit_once(':').map_or(rest, |(rest, _)| rest);
    let mut segments = rest.split('/').filter(|segment| !segment.is_empty());
    let model = segments.next().map(percent_decoded);
    let version = match (segments.next(), segments.next()) {
        (Some("versions"), Some(number)) => Some(NamedVersion::Number(percent_decoded(number))),
        (Some("labels"), Some(label)) => Some(NamedVersion::Label(percent_decoded(label))),
        (None | Some("infer" | "metadata"), None) => None,
        _ => return Err(wrong("the path after the model is not known")),
    };
    Ok(UrlParts { scheme, authority, prefix: prefix.to_owned(), model, version })
}

/// The host and the port, if there is one.
fn split_port(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = authority.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

fn resolve(authority: &str, scheme: &str, url: &str) -> Result<SocketAddr> {
    let default = if scheme == "https" { 443 } else { 80 };
    let with_port = match split_port(authority) {
        Some(_) => authority.to_owned(),
        None => format!("{authority}:{default}"),
    };
    let failed = |why: String| Error::invalid(format!("{url}: {why}"));
    let mut addresses = with_port.to_socket_addrs().map_err(|e| failed(e.to_string()))?;
    addresses.next().ok_or_else(|| failed("the name of the server has no address".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(url: &str) -> (String, String, Option<String>, Option<NamedVersion>) {
        let parts = parse(url).expect(url);
        (parts.authority, parts.prefix, parts.model, parts.version)
    }

    #[test]
    fn a_url_names_a_model_and_a_version() {
        let model = Some("m a".to_owned());
        let number = Some(NamedVersion::Number("3".to_owned()));
        let label = Some(NamedVersion::Label("stable".to_owned()));
        for (url, prefix, version) in [
            ("http://h:1/v1/models/m%20a", "", None),
            ("http://h:1/v1/models/m%20a:predict", "", None),
            ("http://h:1/v1/models/m%20a/metadata?x=1", "", None),
            ("http://h:1/v2/models/m%20a/infer", "", None),
            ("http://h:1/a/b/v1/models/m%20a/versions/3:predict", "/a/b", number.clone()),
            ("http://h:1/v2/models/m%20a/versions/3/infer", "", number),
            ("http://h:1/v1/models/m%20a/labels/stable", "", label),
        ] {
            let (authority, found, name, found_version) = parts(url);
            assert_eq!((authority.as_str(), found.as_str()), ("h:1", prefix), "{url}");
            assert_eq!((&name, found_version), (&model, version), "{url}");
        }
        assert_eq!(parts("http://h:1/v1/models/"), ("h:1".into(), String::new(), None, None));
        assert_eq!(parts("http://h:1").1, "");
        assert_eq!(parts("http://h:1/proxy/").1, "/proxy");
    }

    #[test]
    fn other_urls_are_refused() {
        for url in [
            "https:/h/v1/models/m",
            "httpx://h",
            "ftp://h",
            "http://",
            "http://u@h",
            "http://h/v1/models/m/x/y",
        ] {
            let message = parse(url).expect_err(url).to_string();
            assert!(message.starts_with(url), "{message}");
        }
        let port = |authority, scheme| resolve(authority, scheme, "").expect("an address").port();
        assert_eq!((port("127.0.0.1", "http"), port("127.0.0.1", "https")), (80, 443));
        assert_eq!(port("[::1]:7", "https"), 7);
    }
}
