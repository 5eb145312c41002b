//! Which redirects of a web server are followed: those to a URL that could itself stand where the first one does,
//! and none to services that only this machine can reach. A server that was asked for a model must not make this
//! one ask for a cloud's credentials.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;

/// Redirects that are followed, one after another.
const MOST: usize = 5;

/// The rules for what the URL of a model redirects to.
#[derive(Clone, Debug)]
pub(crate) struct RedirectRules {
    /// The host of that URL.
    host: String,
    is_this_machine: bool,
    is_link_local: bool,
    /// URLs without TLS of other machines are allowed, too.
    plain: bool,
    /// The hosts of proxies, which may be anywhere.
    proxies: Vec<String>,
}

/// The environment variables that name proxies.
pub(crate) const PROXIES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

impl RedirectRules {
    /// The rules for redirects of `url`. `plain` allows URLs without TLS of other machines.
    pub(crate) fn of(url: &str, plain: bool) -> Self {
        let host =
            Url::parse(url).ok().and_then(|url| url.host_str().map(bare)).unwrap_or_default();
        let is_this_machine = is_this_machine(&host);
        let is_link_local = address(&host).is_some_and(is_link_local);
        RedirectRules { host, is_this_machine, is_link_local, plain, proxies: Vec::new() }
    }

    /// These rules with the proxies that the environment names. A proxy resolves the names of the hosts that it is
    /// asked for itself; of the names that are resolved here, its own may have any address.
    pub(crate) fn with_proxies<'v>(mut self, variable: impl Fn(&str) -> Option<&'v str>) -> Self {
        let values = PROXIES.into_iter().filter_map(variable);
        self.proxies.extend(values.filter_map(|value| {
            let url = Url::parse(value).ok().filter(Url::has_host);
            let url = url.or_else(|| Url::parse(&format!("http://{value}")).ok())?;
            url.host_str().map(bare)
        }));
        self
    }

    /// Whether the URL leads to this machine.
    pub(crate) fn is_this_machine(&self) -> bool {
        self.is_this_machine
    }

    /// The rules as a policy of the HTTP client.
    pub(crate) fn policy(&self) -> Policy {
        let rules = self.clone();
        Policy::custom(move |attempt| {
            if attempt.previous().len() > MOST {
                return attempt.error("too many redirects");
            }
            match rules.check(attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(why) => attempt.error(why),
            }
        })
    }

    fn check(&self, url: &Url) -> Result<(), &'static str> {
        let host = url.host_str().map(bare).unwrap_or_default();
        if host == self.host {
            return self.check_scheme(url);
        }
        if is_this_machine(&host) && !self.is_this_machine {
            return Err("a redirect to this machine");
        }
        if address(&host).is_some_and(|address| !self.allows(address)) {
            return Err("a redirect to a link-local address");
        }
        self.check_scheme(url)
    }

    fn check_scheme(&self, url: &Url) -> Result<(), &'static str> {
        let host = url.host_str().map(bare).unwrap_or_default();
        match url.scheme() {
            "https" => Ok(()),
            "http" if self.plain || (self.is_this_machine && is_this_machine(&host)) => Ok(()),
            _ => Err("a redirect to a URL without TLS"),
        }
    }

    /// Whether another host than the first may have this address.
    fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        (self.is_link_local || !is_link_local(address))
            && (self.is_this_machine || !(address.is_loopback() || address.is_unspecified()))
    }
}

/// Resolves the names of hosts; those of redirects to the addresses only that they may have.
impl Resolve for RedirectRules {
    fn resolve(&self, name: Name) -> Resolving {
        let rules = Arc::new(self.clone());
        Box::pin(async move {
            let host = name.as_str();
            let bare = bare(host);
            let is_given = bare == rules.host || rules.proxies.contains(&bare);
            let mut found: Vec<SocketAddr> = tokio::net::lookup_host((host, 0)).await?.collect();
            found.retain(|address| is_given || rules.allows(address.ip()));
            if found.is_empty() {
                let why = "the host has no address that a redirect may lead to";
                return Err(Error::new(ErrorKind::PermissionDenied, why).into());
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

/// A host without the brackets of an address and the dot at its end.
fn bare(host: &str) -> String {
    host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

fn address(host: &str) -> Option<IpAddr> {
    host.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn is_this_machine(host: &str) -> bool {
    let is_local = |address: IpAddr| address.is_loopback() || address.is_unspecified();
    host == "localhost" || host.ends_with(".localhost") || address(host).is_some_and(is_local)
}

/// Whether an address is of this network segment only, as the metadata services of clouds are.
fn is_link_local(address: IpAddr) -> bool {
    /// EC2's and Alibaba's metadata services, which have such addresses beside the link-local one.
    const METADATA: [&str; 2] = ["fd00:ec2::254", "100.100.100.200"];
    let is_named = METADATA.iter().any(|known| known.parse() == Ok(address));
    is_named
        || match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(first: &str, plain: bool, next: &str) -> Result<(), &'static str> {
        RedirectRules::of(first, plain).check(&Url::parse(next).expect("a URL"))
    }

    #[test]
    fn redirects_keep_to_the_rules_of_the_first_url() {
        let here = "http://127.0.0.1:8080/m.tar.gz";
        for next in ["http://localhost:9000/", "http://[::1]/", "https://mirror.example/m", here] {
            assert_eq!(outcome(here, false, next), Ok(()), "{next}");
        }
        let plain = Err("a redirect to a URL without TLS");
        assert_eq!(outcome(here, false, "http://mirror.example/m"), plain);
        assert_eq!(outcome("https://a.example/m", false, "http://a.example/m"), plain);
        assert_eq!(outcome("https://a.example/m", false, "ftp://b.example/m"), plain);
        assert_eq!(outcome("https://a.example/m", false, "https://b.example/m"), Ok(()));
        assert_eq!(outcome("http://a.example/m", true, "http://10.0.0.7/m"), Ok(()));
        assert_eq!(outcome("http://169.254.7.7/m", true, "http://169.254.7.8/m"), Ok(()));
    }

    #[test]
    fn this_machine() {
        for host in ["localhost", "127.0.0.1", "127.8.8.8", "[::1]"] {
            assert!(
                RedirectRules::of(&format!("http://{host}:9000/m"), false).is_this_machine(),
                "{host}"
            );
        }
        for host in ["example.com", "localhost.example.com", "10.0.0.1", "[2001:db8::1]"] {
            assert!(
                !RedirectRules::of(&format!("http://{host}:80/m"), false).is_this_machine(),
                "{host}"
            );
        }
    }

    #[test]
    fn redirects_lead_to_no_service_of_this_machine_only() {
        for first in ["http://127.0.0.1/m", "http://a.example/m", "https://a.example/m"] {
            for host in [
                "169.254.169.254",
                "2852039166",
                "0xa9.0xfe.0xa9.0xfe",
                "[::ffff:169.254.169.254]",
                "[fe80::1]",
                "[fd00:ec2::254]",
                "100.100.100.200",
            ] {
                for scheme in ["http", "https"] {
                    let next = format!("{scheme}://{host}/latest/meta-data");
                    let refused = Err("a redirect to a link-local address");
                    assert_eq!(outcome(first, true, &next), refused, "{first} to {next}");
                }
            }
        }
        for host in
            ["127.0.0.1", "localhost", "x.localhost", "localhost.", "[::1]", "0.0.0.0", "127.1"]
        {
            let next = format!("http://{host}:8500/");
            assert_eq!(
                outcome("http://a.example/m", true, &next),
                Err("a redirect to this machine"),
                "{next}"
            );
        }
    }

    #[tokio::test]
    async fn names_lead_to_no_other_addresses_either() {
        let resolve = async |first: &str| {
            let name = "localhost".parse().expect("a name");
            RedirectRules::of(first, true).resolve(name).await.map(Iterator::count)
        };
        assert!(resolve("http://localhost/m").await.is_ok_and(|count| count > 0));
        assert!(resolve("http://127.0.0.1/m").await.is_ok_and(|count| count > 0));
        assert!(resolve("http://a.example/m").await.is_err());
    }

    #[tokio::test]
    async fn a_proxy_may_be_on_this_machine() {
        for (name, value) in [
            ("HTTPS_PROXY", "http://localhost:3128"),
            ("all_proxy", "localhost:3128"),
            ("http_proxy", "http://user:secret@localhost"),
        ] {
            let variable = |asked: &str| (asked == name).then_some(value);
            let rules = RedirectRules::of("https://a.example/m", false).with_proxies(variable);
            let found = rules.resolve("localhost".parse().expect("a name")).await;
            assert!(found.is_ok_and(|found| found.count() > 0), "{name}={value}");
            let next = Url::parse("https://localhost/").expect("a URL");
            assert_eq!(rules.check(&next), Err("a redirect to this machine"));
        }
    }
}
