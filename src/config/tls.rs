//! Reads the certificates of each port from the files that settings name.

use std::path::{Path, PathBuf};

use super::check::Check;
use super::groups::ServerSettings;
use super::{GrpcConfig, HttpConfig, Pem, TlsConfig};

/// The settings of one certificate.
struct CertificateSettings<'s> {
    /// The prefix of their names.
    prefix: &'static str,
    certificate: &'s Option<PathBuf>,
    key: &'s Option<PathBuf>,
    roots: &'s Option<PathBuf>,
    verify: Option<bool>,
}

impl CertificateSettings<'_> {
    fn is_there(&self) -> bool {
        let files = [self.certificate, self.key, self.roots];
        files.into_iter().any(Option::is_some) || self.verify.is_some()
    }
}

impl Check {
    /// Reads the certificates of both ports from the `tls_` settings, or for HTTP from the
    /// `http_tls_` settings if any of these is set.
    pub(super) fn certify(
        &mut self,
        server: &ServerSettings,
        http: &mut HttpConfig,
        grpc: &mut GrpcConfig,
    ) {
        let shared = self.tls(&CertificateSettings {
            prefix: "tls",
            certificate: &server.tls_certificate,
            key: &server.tls_key,
            roots: &server.tls_client_ca,
            verify: server.tls_verify_clients,
        });
        let own = CertificateSettings {
            prefix: "http_tls",
            certificate: &server.http_tls_certificate,
            key: &server.http_tls_key,
            roots: &server.http_tls_client_ca,
            verify: server.http_tls_verify_clients,
        };
        grpc.tls.clone_from(&shared);
        http.tls = if own.is_there() { self.tls(&own) } else { shared };
    }

    fn tls(&mut self, written: &CertificateSettings<'_>) -> Option<TlsConfig> {
        let CertificateSettings { prefix, roots, .. } = written;
        if written.verify == Some(true) && roots.is_none() {
            let setting = format!("{prefix}_verify_clients");
            let needs = format!("{prefix}_client_ca, to check clients' certificates against");
            self.clash(&[&setting], format!("{setting} needs {needs}"));
        }
        let (certificate, key) = match (written.certificate, written.key) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if roots.is_none() => return None,
            (None, _) => {
                let given = [format!("{prefix}_key"), format!("{prefix}_client_ca")];
                let why = "is missing: TLS needs a certificate and its private key";
                let given = given.each_ref().map(String::as_str);
                self.clash(&given, format!("{prefix}_certificate {why}"));
                return None;
            }
            (Some(_), None) => {
                let why = "is missing: TLS needs the private key of the certificate";
                self.clash(&[&format!("{prefix}_certificate")], format!("{prefix}_key {why}"));
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
        let pem = Pem::read(setting, path);
        pem.map_err(|error| {
            let message = error.message();
            self.wrong(setting, message.strip_prefix(&format!("{setting}: ")).unwrap_or(message));
        })
        .ok()
    }
}
