//! HTTPS: valid and invalid certificates on both sides, and clients that do not speak TLS.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tensorserve::Server;
use tensorserve::config::environment::Environment;
use tensorserve::config::{Config, Settings};
use tensorserve_platform::Platforms;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::client::get;
use crate::support::data;
use crate::support::fake::Model;
use crate::support::place::Place;
use crate::support::process::{Process, tensorserve};
use crate::support::server::settings;

/// A certificate authority with a directory for its certificates and keys.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub root: String,
    folder: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let root = params.self_signed(&key).expect("a root").pem();
        let folder = tempfile::tempdir().expect("temporary directory");
        Authority { issuer: Issuer::new(params, key), root, folder }
    }

    /// A certificate and a key for `name`.
    pub fn sign(&self, name: &str) -> (String, String) {
        self.sign_with(name, |_| ())
    }

    /// Like [`Authority::sign`], with changed parameters.
    pub fn sign_with(
        &self,
        name: &str,
        configure: impl FnOnce(&mut CertificateParams),
    ) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        configure(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }

    pub fn file_path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file_path(name);
        fs::write(&path, text).expect("written");
        path
    }

    /// Gives the HTTP port a certificate of this authority.
    pub fn certify(&self, settings: &mut Settings) {
        let (certificate, key) = self.sign("127.0.0.1");
        settings.server.http_tls_certificate = Some(self.file("server.crt", &certificate));
        settings.server.http_tls_key = Some(self.file("server.key", &key));
    }

    /// A client that trusts this authority and presents the certificate `own`, if any.
    pub fn client(&self, own: Option<(String, String)>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&self.root)).expect("a root");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
                builder.with_client_auth_cert(vec![certificate(&chain)], key).expect("a pair")
            }
        })
    }
}

pub fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

pub type Connection = StreamOwned<ClientConnection, TcpStream>;

fn plain(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    stream
}

/// A connection that offers `protocol` in ALPN.
pub fn connect_as(address: SocketAddr, client: &Arc<ClientConfig>, protocol: &[u8]) -> Connection {
    let mut client = ClientConfig::clone(client);
    client.alpn_protocols = vec![protocol.to_vec()];
    connect(address, &Arc::new(client))
}

pub fn connect(address: SocketAddr, client: &Arc<ClientConfig>) -> Connection {
    let name = address.ip().into();
    let connection = ClientConnection::new(Arc::clone(client), name).expect("a connection");
    StreamOwned::new(connection, plain(address))
}

/// Sends a request and reads the response; the connection stays open.
pub fn ask(stream: &mut Connection, head: &str, body: &str) -> io::Result<String> {
    let length = body.len();
    write!(stream, "{head} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}")?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.expect("a length").parse().expect("a number")];
    stream.read_exact(&mut body)?;
    answer.extend(body);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn serve(authority: &Authority, configure: impl FnOnce(&mut Settings)) -> Place {
    Place::of(&Model::default(), |settings| {
        authority.certify(settings);
        configure(settings);
    })
}

const PREDICT: &str = "POST /v1/models/m:predict";

#[test]
fn requests_are_answered_over_one_connection() {
    let authority = Authority::new();
    let place = serve(&authority, |_| ());
    let mut stream = connect(place.server.address, &authority.client(None));
    for value in ["1.0", "2.0", "3.0"] {
        let body = format!("{{\"instances\": [[{value}]]}}");
        let answer = ask(&mut stream, PREDICT, &body).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(&format!("[[{value}]")), "{answer}");
    }
    // More than one TLS record in each direction.
    let rows = vec!["[1.5]"; 20_000].join(",");
    let body = format!("{{\"instances\": [{rows}]}}");
    let answer = ask(&mut stream, PREDICT, &body).expect("an answer");
    assert_eq!(answer.matches("[1.5]").count(), 20_000);
    assert_eq!(stream.conn.alpn_protocol(), None);
}

#[test]
fn a_client_checks_the_server() {
    let authority = Authority::new();
    let place = serve(&authority, |_| ());
    let stranger = Authority::new();
    let mut stream = connect(place.server.address, &stranger.client(None));
    let error = ask(&mut stream, "GET /healthz", "").expect_err("untrusted server accepted");
    assert!(error.to_string().contains("certificate"), "{error}");
    let mut stream = connect(place.server.address, &authority.client(None));
    assert!(ask(&mut stream, "GET /healthz", "").expect("trusted server").ends_with("ok\n"));
}

#[test]
fn a_server_checks_its_clients_if_it_is_told_to() {
    let authority = Authority::new();
    let roots = authority.file("clients.crt", &authority.root);
    let mutual = serve(&authority, |settings| {
        settings.server.http_tls_client_ca = Some(roots.clone());
    });
    let ask_with = |place: &Place, own: Option<(String, String)>| {
        let mut stream = connect(place.server.address, &authority.client(own));
        ask(&mut stream, "GET /healthz", "")
    };
    let known = authority.sign("client");
    assert!(ask_with(&mutual, Some(known.clone())).expect("known client").ends_with("ok\n"));
    // The kind of error depends on whether the client still writes when it is refused.
    ask_with(&mutual, None).expect_err("client without a certificate accepted");
    let stranger = Authority::new().sign("client");
    ask_with(&mutual, Some(stranger.clone())).expect_err("foreign certificate accepted");
    // Clients without a certificate are accepted, clients with an invalid one are refused.
    let lax = serve(&authority, |settings| {
        settings.server.http_tls_client_ca = Some(roots);
        settings.server.http_tls_verify_clients = Some(false);
    });
    assert!(ask_with(&lax, None).expect("client without a certificate").ends_with("ok\n"));
    assert!(ask_with(&lax, Some(known)).expect("known client").ends_with("ok\n"));
    ask_with(&lax, Some(stranger)).expect_err("foreign certificate accepted");
}

/// All bytes until the server closes the connection, and the time until then.
fn until_closed(stream: &mut impl Read) -> (String, Duration) {
    let start = Instant::now();
    let mut rest = Vec::new();
    // A close without a TLS close_notify is accepted.
    let _ = stream.read_to_end(&mut rest);
    (String::from_utf8_lossy(&rest).into_owned(), start.elapsed())
}

#[test]
fn a_request_in_the_clear_is_told_what_the_port_speaks() {
    let authority = Authority::new();
    let place = serve(&authority, |_| ());
    let mut stream = plain(place.server.address);
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let (answer, _) = until_closed(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    assert!(answer.ends_with("{\"error\": \"this port requires HTTPS; use https://\"}"));
    // Bytes that are neither HTTP nor TLS close the connection.
    let mut stream = plain(place.server.address);
    stream.write_all(&[0x16, 0x03, 0xff, 0xff, 0xff, 1, 2, 3]).expect("sent");
    until_closed(&mut stream);
    let mut stream = connect(place.server.address, &authority.client(None));
    assert!(ask(&mut stream, "GET /healthz", "").is_ok());
}

#[test]
fn handshakes_and_heads_must_come_in_time() {
    let authority = Authority::new();
    let place = serve(&authority, |settings| {
        settings.server.header_timeout = Some("1s".parse().expect("a duration"));
        settings.server.shutdown_timeout = Some("20s".parse().expect("a duration"));
    });
    let address = place.server.address;
    for begun in [&b""[..], b"\x16\x03", b"\x16\x03\x01\x02\x00\x01"] {
        let mut stream = plain(address);
        stream.write_all(begun).expect("sent");
        let (_, time) = until_closed(&mut stream);
        assert!(time < Duration::from_secs(18), "{begun:?}: {time:?}");
    }
    // Half of the head of a second request.
    let mut stream = connect(address, &authority.client(None));
    ask(&mut stream, "GET /healthz", "").expect("an answer");
    stream.write_all(b"GET /healthz HT").expect("sent");
    stream.flush().expect("sent");
    let (_, time) = until_closed(&mut stream);
    assert!(time < Duration::from_secs(18), "{time:?}");
    // Idle connections and incomplete handshakes do not delay the shutdown.
    let mut idle = connect(address, &authority.client(None));
    ask(&mut idle, "GET /healthz", "").expect("an answer");
    let half = plain(address);
    let start = Instant::now();
    let Place { server, .. } = place;
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(18), "{:?}", start.elapsed());
    drop((idle, half));
}

#[test]
fn tensorflow_servings_own_file_leaves_http_as_it_is() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("127.0.0.1");
    let ssl = format!("server_key: {key:?} server_cert: {certificate:?}");
    let ssl = authority.file("ssl.config", &ssl).display().to_string();
    let model = data("tensorflow-serving/upstream/testdata/saved_model_half_plus_two_cpu");
    let start = |flag: &str| {
        let model = format!("--model_base_path={}", model.display());
        let flag = format!("--{flag}={ssl}");
        let mut command = tensorserve(&["tensorflow_model_server", &model, &flag]);
        command.env("TENSORSERVE_HTTP_PORT", "0").env("TENSORSERVE_GRPC_PORT", "0");
        Process::start(command)
    };
    let plain = start("ssl_config_file");
    assert_eq!(get(plain.address, "/v1/models/default").status, 200);
    let encrypted = start("rest_api_ssl_config_file");
    let mut stream = connect(encrypted.address, &authority.client(None));
    let answer = ask(&mut stream, "GET /v1/models/default", "").expect("an answer");
    assert!(answer.contains("AVAILABLE"), "{answer}");
    assert!(encrypted.printed.iter().any(|line| line.starts_with("listening on https://")));
}

#[test]
fn what_is_wrong_with_files_is_told_at_the_start() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("127.0.0.1");
    let certificate = authority.file("a.crt", &certificate);
    let key = authority.file("a.key", &key);
    let other = authority.file("b.key", &authority.sign("127.0.0.1").1);
    let empty = authority.file("empty", "nothing\n");
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let encrypted = authority.file("encrypted", encrypted);
    let missing = authority.folder.path().join("missing");
    let fails = |certificate: &Path, key: &Path, roots: Option<&Path>| {
        let mut settings = settings();
        settings.server.http_tls_certificate = Some(certificate.to_owned());
        settings.server.http_tls_key = Some(key.to_owned());
        settings.server.http_tls_client_ca = roots.map(Path::to_owned);
        let config = Config::new(settings, &Environment::default());
        let started = config.and_then(|c| Server::start(&c, Platforms::new(Vec::new())));
        started.err().expect("server must not start").message().to_owned()
    };
    let named = |path: &Path, setting: &str| format!("{setting}: {}: ", path.display());
    let cases = [
        (fails(&missing, &key, None), named(&missing, "http_tls_certificate"), "No such file"),
        (fails(&certificate, &missing, None), named(&missing, "http_tls_key"), "No such file"),
        (
            fails(&empty, &key, None),
            named(&empty, "http_tls_certificate"),
            "contains no PEM certificate",
        ),
        (
            fails(&certificate, &empty, None),
            named(&empty, "http_tls_key"),
            "contains no PEM private key",
        ),
        (fails(&certificate, &encrypted, None), named(&encrypted, "http_tls_key"), "encrypted"),
        (
            fails(&certificate, &other, None),
            named(&other, "http_tls_key"),
            "does not belong to the certificate in",
        ),
        (
            fails(&certificate, &key, Some(&empty)),
            named(&empty, "http_tls_client_ca"),
            "contains no PEM certificate",
        ),
    ];
    for (message, file, why) in cases {
        assert!(message.contains(&file) && message.contains(why), "{file} {why}: {message}");
    }
    let mut half = settings();
    half.server.http_tls_certificate = Some(certificate);
    half.server.http_tls_verify_clients = Some(true);
    let error = Config::new(half, &Environment::default()).expect_err("incomplete settings");
    for part in ["http_tls_key is missing", "http_tls_verify_clients needs http_tls_client_ca"] {
        assert!(error.message().contains(part), "{error}");
    }
}
