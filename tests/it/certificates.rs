//! Certificates that have expired, that change under load, and that both ports share.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::date_time_ymd;
use tensorserve::Server;
use tensorserve::config::environment::Environment;
use tensorserve::config::{Config, Settings};
use tensorserve_platform::Platforms;

use crate::https::{Authority, Connection, ask, certificate, connect, connect_as};
use crate::support::fake::Model;
use crate::support::grpc::{PREFACE, SETTINGS, frame};
use crate::support::place::Place;
use crate::support::process::tensorserve;
use crate::support::server::settings;

/// Gives both ports a certificate of `authority`.
fn certify_both(authority: &Authority, settings: &mut Settings) {
    let (chain, key) = authority.sign("127.0.0.1");
    settings.server.tls_certificate = Some(authority.file("server.crt", &chain));
    settings.server.tls_key = Some(authority.file("server.key", &key));
}

/// The certificate that a new connection receives.
fn shown(authority: &Authority, address: SocketAddr) -> Vec<u8> {
    let mut stream = connect(address, &authority.client(None));
    ask(&mut stream, "GET /healthz", "").expect("an answer");
    let chain = stream.conn.peer_certificates().expect("a certificate");
    chain[0].to_vec()
}

/// Checks that the gRPC port speaks HTTP/2 over this connection.
fn speaks_grpc(stream: &mut Connection) -> std::io::Result<()> {
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat())?;
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    assert_eq!(head[3], SETTINGS);
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
    Ok(())
}

#[test]
fn certificates_out_of_their_time_are_told_at_the_start() {
    let authority = Authority::new();
    let fails = |from: (i32, u8, u8), to: (i32, u8, u8), http_only: bool| {
        let (chain, key) = authority.sign_with("127.0.0.1", |params| {
            params.not_before = date_time_ymd(from.0, from.1, from.2);
            params.not_after = date_time_ymd(to.0, to.1, to.2);
        });
        let mut settings = settings();
        let (chain, key) = (authority.file("a.crt", &chain), authority.file("a.key", &key));
        if http_only {
            settings.server.http_tls_certificate = Some(chain.clone());
            settings.server.http_tls_key = Some(key);
        } else {
            settings.server.tls_certificate = Some(chain.clone());
            settings.server.tls_key = Some(key);
        }
        let config = Config::new(settings, &Environment::default());
        let started = config.and_then(|c| Server::start(&c, Platforms::new(Vec::new())));
        let message = started.err().expect("server must not start").message().to_owned();
        assert!(message.contains(&chain.display().to_string()), "{message}");
        message
    };
    let message = fails((2020, 1, 1), (2021, 2, 3), true);
    assert!(message.starts_with("http_tls_certificate: "), "{message}");
    assert!(message.contains("it expired on Wed, 03 Feb 2021"), "{message}");
    let message = fails((2090, 1, 1), (2091, 1, 1), false);
    assert!(message.starts_with("tls_certificate: "), "{message}");
    assert!(message.contains("not valid before Sun, 01 Jan 2090"), "{message}");
}

#[test]
fn both_ports_share_certificates_and_check_clients() {
    let authority = Authority::new();
    let roots = authority.file("clients.crt", &authority.root);
    let place = Place::of(&Model::default(), |settings| {
        certify_both(&authority, settings);
        settings.server.tls_client_ca = Some(roots);
    });
    let (http, grpc) = (place.server.address, place.server.grpc_address());
    let known = authority.sign("client");
    let client = authority.client(Some(known.clone()));
    let mut stream = connect(http, &client);
    assert!(ask(&mut stream, "GET /healthz", "").expect("known client").ends_with("ok\n"));
    speaks_grpc(&mut connect_as(grpc, &authority.client(Some(known)), b"h2"))
        .expect("known client");
    let stranger = Authority::new().sign("client");
    for own in [None, Some(stranger)] {
        let mut stream = connect(http, &authority.client(own.clone()));
        ask(&mut stream, "GET /healthz", "").expect_err("unknown client accepted over HTTP");
        let mut stream = connect_as(grpc, &authority.client(own), b"h2");
        speaks_grpc(&mut stream).expect_err("unknown client accepted over gRPC");
    }
    // Stalled handshakes do not block other clients.
    let silent: Vec<_> =
        (0..50).map(|_| std::net::TcpStream::connect(grpc).expect("connects")).collect();
    let start = Instant::now();
    speaks_grpc(&mut connect_as(grpc, &client, b"h2")).expect("known client");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    drop(silent);
}

#[test]
fn a_port_can_have_certificates_of_its_own() {
    let (shared, own) = (Authority::new(), Authority::new());
    let place = Place::of(&Model::default(), |settings| {
        certify_both(&shared, settings);
        own.certify(settings);
    });
    let mut stream = connect(place.server.address, &own.client(None));
    assert!(ask(&mut stream, "GET /healthz", "").is_ok());
    let grpc = place.server.grpc_address();
    speaks_grpc(&mut connect_as(grpc, &shared.client(None), b"h2")).expect("shared certificate");
    speaks_grpc(&mut connect_as(grpc, &own.client(None), b"h2"))
        .expect_err("certificate of the HTTP port");
}

#[test]
fn certificates_change_while_requests_are_served() {
    let authority = Authority::new();
    let place = Place::of(&Model::default(), |settings| certify_both(&authority, settings));
    let address = place.server.address;
    let first = shown(&authority, address);
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let load = |keeps: bool| {
            let (authority, stop, answered) = (&authority, &stop, &answered);
            move || {
                let client = authority.client(None);
                let mut stream = connect(address, &client);
                while !stop.load(Relaxed) {
                    let answer = ask(&mut stream, "GET /v1/models/m", "").expect("an answer");
                    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                    answered.fetch_add(1, Relaxed);
                    if !keeps {
                        stream = connect(address, &client);
                    }
                }
            }
        };
        scope.spawn(load(true));
        scope.spawn(load(false));
        let wait = || thread::sleep(Duration::from_millis(250));
        // Malformed, expired, with the wrong key, without a key: the old certificate stays in use.
        let file = |name: &str, text: &str| authority.file(name, text);
        file("server.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n");
        wait();
        let (expired, _) = authority.sign_with("127.0.0.1", |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        });
        file("server.crt", &expired);
        wait();
        let (chain, key) = authority.sign("127.0.0.1");
        file("server.crt", &chain);
        wait();
        fs::remove_file(authority.file_path("server.key")).expect("removed");
        wait();
        assert_eq!(shown(&authority, address), first);
        // Valid files: new connections on both ports use them.
        file("server.key", &key);
        place.server.wait_until("the new certificate", |_| shown(&authority, address) != first);
        assert_eq!(shown(&authority, address), certificate(&chain).to_vec());
        let grpc = place.server.grpc_address();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let mut stream = connect_as(grpc, &authority.client(None), b"h2");
            speaks_grpc(&mut stream).expect("gRPC response");
            let current = stream.conn.peer_certificates().expect("a certificate")[0].to_vec();
            if current == certificate(&chain).to_vec() {
                break;
            }
            assert!(Instant::now() < deadline, "gRPC keeps the old certificate");
            wait();
        }
        stop.store(true, Relaxed);
    });
    assert!(answered.load(Relaxed) > 50, "{}", answered.load(Relaxed));
}

/// Runs `tensorserve health`. Returns success and the output.
fn health(arguments: &[&str]) -> (bool, String) {
    let output = tensorserve(&[&["health"], arguments].concat()).output().expect("process starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn health_asks_over_https() {
    let authority = Authority::new();
    let place = Place::of(&Model::default(), |settings| certify_both(&authority, settings));
    let url = format!("https://{}", place.server.address);
    let root = authority.file("root.crt", &authority.root).display().to_string();
    let stranger = Authority::new();
    let other = stranger.file("root.crt", &stranger.root).display().to_string();
    assert_eq!(health(&[&url]), (true, "ready\n".to_owned()));
    assert_eq!(health(&[&url, "--ca", &root]), (true, "ready\n".to_owned()));
    let (is_ready, text) = health(&[&url, "--ca", &other]);
    assert!(!is_ready && text.contains("certificate"), "{text}");
    let (is_ready, text) = health(&["https://models.example:1"]);
    assert!(!is_ready && text.contains("--ca"), "{text}");
    let (is_ready, text) = health(&[&url, "--ca", "/nowhere.crt"]);
    assert!(!is_ready && text.contains("/nowhere.crt"), "{text}");
    // A server that requires client certificates.
    let mutual = Place::of(&Model::default(), |settings| {
        certify_both(&authority, settings);
        settings.server.tls_client_ca = Some(Path::new(&root).to_owned());
    });
    let url = format!("https://{}", mutual.server.address);
    assert!(!health(&[&url]).0);
    let (chain, key) = authority.sign("probe");
    let chain = authority.file("probe.crt", &chain).display().to_string();
    let key = authority.file("probe.key", &key).display().to_string();
    let client = ["--certificate", &chain, "--key", &key];
    assert_eq!(health(&[&[url.as_str()], &client[..]].concat()), (true, "ready\n".to_owned()));
}
