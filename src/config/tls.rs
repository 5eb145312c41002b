//! Which certificates each port has, from settings to what is read of files.

use std::path::{Path, PathBuf};

use super::check::Check;
use super::settings::ServerSettings;
use super::{GrpcConfig, HttpConfig, Pem, TlsConfig};

/// The settings of one certificate, as they were written.
struct Written<'s> {
    /// What their names begin with.
    prefix: &'static str,
    certificate: &'s Option<PathBuf>,
    key: &'s Option<PathBuf>,
    roots: &'s Option<PathBuf>,
    verify: Option<bool>,
}

impl Written<'_> {
    fn is_there(&self) -> bool {
        let files = [self.certificate, self.key, self.roots];
        files.into_iter().any(Option::is_some) || self.verify.is_some()
    }
}

impl Check {
    /// Reads the certificates of both ports: those of the `tls_` settings, and for HTTP those of
    /// the `http_tls_` settings if there are some.
    pub(super) fn certify(
        &mut self,
        server: &ServerSettings,
        http: &mut HttpConfig,
        grpc: &mut GrpcConfig,
    ) {
        let shared = self.tls(&Written {
            prefix: "tls",
            certificate: &server.tls_certificate,
            key: &server.tls_key,
            roots: &server.tls_client_ca,
            verify: server.tls_verify_clients,
        });
        let own = Written {
            prefix: "http_tls",
            certificate: &server.http_tls_certificate,
            key: &server.http_tls_key,
            roots: &server.http_tls_client_ca,
            verify: server.http_tls_verify_clients,
        };
        grpc.tls.clone_from(&shared);
        http.tls = if own.is_there() { self.tls(&own) } else { shared };
    }

    fn tls(&mut self, written: &Written<'_>) -> Option<TlsConfig> {
        let Written { prefix, roots, .. } = written;
        if written.verify == Some(true) && roots.is_none() {
            self.mistake(format!(
                "{prefix}_verify_clients needs {prefix}_client_ca, to check clients' certificates \
                 against"
            ));
        }
        let (certificate, key) = match (written.certificate, written.key) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if roots.is_none() => return None,
            (None, _) => {
                self.mistake(format!(
                    "{prefix}_certificate is missing: encryption needs it and {prefix}_key"
                ));
                return None;
            }
            (Some(_), None) => {
                self.mistake(format!(
                    "{prefix}_key is missing: encryption needs the key of the certificate"
                ));
                return None;
            }
        };
        Some(TlsConfig {
            key: self.pem(&format!("{prefix}_key"), key)?,
            certificate: self.pem(&format!("{prefix}_certificate"), certificate)?,
            client_roots: match roots {
                Some(roots) => Some(self.pem(&format!("{prefix}_client_ca"), roots)?),
                None => None,
            },
            verify_clients: written.verify.unwrap_or(roots.is_some()),
        })
    }

    fn pem(&mut self, setting: &str, path: &Path) -> Option<Pem> {
        Pem::read(setting, path).map_err(|error| self.mistake(error.message())).ok()
    }
}
