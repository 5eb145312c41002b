//! The address of the server for a generated client: the one that the request for the client used.

use tensorserve_core::engine::Addresses;
use tensorserve_protocol::{Listeners, RequestHead};

/// How a client authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientCredentials {
    None,
    /// With a user and a password.
    Basic,
    /// With a key.
    Bearer,
}

/// How a client reaches the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerLocation {
    /// The start of its URLs, without a trailing slash. It needs no escaping.
    pub(super) url: String,
    pub(super) https: bool,
    /// Host and port for gRPC, if there is one.
    pub(super) grpc: Option<String>,
    pub(super) grpc_tls: bool,
    pub(super) credentials: ClientCredentials,
}

impl ServerLocation {
    /// The location that the request used. A `Host` header that is not a valid host is ignored, so that
    /// a client cannot inject text into the source code.
    pub(super) fn of(head: &RequestHead<'_>, listeners: Listeners, own: &Addresses) -> Self {
        let own_host = own.http.split_once("://").map_or("localhost", |(_, host)| host);
        let host = head.header("host").filter(|host| is_host(host)).unwrap_or(own_host);
        // Set by a proxy that terminates TLS.
        let https = match head.header("x-forwarded-proto") {
            Some("https") => true,
            Some("http") => false,
            _ => listeners.https,
        };
        let scheme = if https { "https" } else { "http" };
        let grpc = own.grpc_port.map(|port| format!("{}:{port}", without_port(host)));
        let grpc_tls = listeners.grpc_tls;
        let credentials = credentials(head, listeners.auth);
        ServerLocation { url: format!("{scheme}://{host}"), https, grpc, grpc_tls, credentials }
    }
}

impl ServerLocation {
    /// Whether the host is an IP address, for which certificates are verified differently.
    pub(super) fn is_address(&self) -> bool {
        let host = self.url.split_once("://").map_or("", |(_, host)| without_port(host));
        host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok()
    }
}

/// A request with an API key gets a client that sends one.
fn credentials(head: &RequestHead<'_>, auth: bool) -> ClientCredentials {
    let shown = head.header("authorization").unwrap_or_default();
    let is_key = shown.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer "));
    match (auth, is_key) {
        (false, _) => ClientCredentials::None,
        (true, true) => ClientCredentials::Bearer,
        (true, false) => ClientCredentials::Basic,
    }
}

/// Whether a text is a host name or address, with or without a port.
fn is_host(text: &str) -> bool {
    let host = without_port(text);
    let port = text.get(host.len()..).unwrap_or_default();
    let digits = port.strip_prefix(':');
    let is_port = port.is_empty() || digits.is_some_and(|digits| digits.parse::<u16>().is_ok());
    let name = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => return is_port && address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host,
    };
    is_port && !name.is_empty() && name.len() <= 255 && name.bytes().all(is_host_byte)
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._".contains(&byte)
}

/// The host without its port; an IPv6 address keeps its brackets.
fn without_port(host: &str) -> &str {
    let end = host.rfind(']').map_or(0, |at| at + 1);
    let tail = host.get(end..).unwrap_or_default();
    let colon = tail.find(':').map_or(host.len(), |at| end + at);
    host.get(..colon).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_protocol::Headers;

    struct TestHeaders(Vec<(&'static str, &'static str)>);

    impl Headers for TestHeaders {
        fn get(&self, name: &str) -> Option<&str> {
            self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
        }
    }

    fn location(headers: &[(&'static str, &'static str)], listeners: Listeners) -> ServerLocation {
        let own = Addresses { http: "http://localhost:8500".to_owned(), grpc_port: Some(8501) };
        let headers = TestHeaders(headers.to_vec());
        ServerLocation::of(
            &RequestHead { method: "GET", target: "/", headers: &headers },
            listeners,
            &own,
        )
    }

    fn url(headers: &[(&'static str, &'static str)], https: bool) -> String {
        location(headers, Listeners { https, ..Listeners::default() }).url
    }

    #[test]
    fn the_host_is_that_of_the_request() {
        for host in
            ["127.0.0.1:9000", "models.example.com", "my_host:80", "[::1]:8500", "[fe80::1]"]
        {
            assert_eq!(url(&[("host", host)], false), format!("http://{host}"));
            assert_eq!(url(&[("host", host)], true), format!("https://{host}"));
        }
        let host = ("host", "models.example.com");
        assert_eq!(
            url(&[host, ("x-forwarded-proto", "https")], false),
            "https://models.example.com"
        );
        assert_eq!(url(&[host, ("x-forwarded-proto", "http")], true), "http://models.example.com");
        assert_eq!(url(&[host, ("x-forwarded-proto", "\"")], true), "https://models.example.com");
    }

    #[test]
    fn invalid_hosts_are_ignored() {
        for host in [
            "", ":80", "a b", "a\"b", "a'b", "$(id)", "a:b", "a:70000", "a:+1x", "a/b", "a@b", "é",
            "[::1", "::1", "[::1]x", "[$]:1", "a`b", "a\\b", "<b>", "a:80:80", "#{x}",
        ] {
            assert_eq!(url(&[("host", host)], false), "http://localhost:8500", "{host}");
        }
        let long: &'static str = Box::leak("a".repeat(256).into_boxed_str());
        assert_eq!(url(&[("host", long)], true), "https://localhost:8500");
    }

    #[test]
    fn grpc_is_on_the_same_host() {
        let grpc = |host| location(&[("host", host)], Listeners::default()).grpc;
        assert_eq!(grpc("h:80").as_deref(), Some("h:8501"));
        assert_eq!(grpc("h").as_deref(), Some("h:8501"));
        assert_eq!(grpc("[::1]:80").as_deref(), Some("[::1]:8501"));
        assert_eq!(grpc("[::1]").as_deref(), Some("[::1]:8501"));
    }

    #[test]
    fn credentials_are_of_the_kind_that_the_request_has() {
        let with = |shown: &[(&'static str, &'static str)], auth| {
            location(shown, Listeners { auth, ..Listeners::default() }).credentials
        };
        assert_eq!(with(&[], true), ClientCredentials::Basic);
        assert_eq!(with(&[("authorization", "Basic YTpi")], true), ClientCredentials::Basic);
        assert_eq!(with(&[("authorization", "bearer k")], true), ClientCredentials::Bearer);
        assert_eq!(with(&[("authorization", "Bearer k")], false), ClientCredentials::None);
    }
}
