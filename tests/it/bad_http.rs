//! Requests with faults below JSON: framing, lengths, compression, timing. Each gets at most one
//! response, is never read as two requests, and the server keeps serving.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use tensorserve::config::Settings;

use crate::support::client::{Client, request};
use crate::support::process::{Process, tensorserve};
use crate::support::project;
use crate::support::server::TestServer;

const PREDICT: &str = "/v1/models/half_plus_two:predict";
const GOOD: &str = r#"{"inputs": [1]}"#;
const JSON: (&str, &str) = ("Content-Type", "application/json");
const GZIP: (&str, &str) = ("Content-Encoding", "gzip");

fn serve(change: impl FnOnce(&mut Settings)) -> TestServer {
    TestServer::with(&project("models/half_plus_two"), change)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("written");
    encoder.finish().expect("finished")
}

#[test]
fn two_readings_of_one_request_are_never_both_taken() {
    let server = serve(|_| {});
    // A request that a proxy could take for the body of the previous one.
    let hidden = "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n";
    let post = |headers: &str| format!("POST / HTTP/1.1\r\nHost: h\r\n{headers}\r\n\r\n");
    let cases = [
        ("both lengths", post("Content-Length: 4\r\nTransfer-Encoding: chunked") + "0\r\n\r\n"),
        (
            "both lengths, swapped",
            post("Transfer-Encoding: chunked\r\nContent-Length: 4") + "0\r\n\r\n",
        ),
        ("two lengths", post("Content-Length: 0\r\nContent-Length: 37")),
        ("two equal lengths", post("Content-Length: 0\r\nContent-Length: 0")),
        ("a list of lengths", post("Content-Length: 0, 0")),
        ("a signed length", post("Content-Length: +0")),
        ("a negative length", post("Content-Length: -1")),
        ("a hexadecimal length", post("Content-Length: 0x0")),
        ("an empty length", post("Content-Length: ")),
        ("a huge length", post("Content-Length: 99999999999999999999")),
        ("an unknown coding", post("Transfer-Encoding: xchunked")),
        ("two codings", post("Transfer-Encoding: chunked, identity")),
        ("chunked twice", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked")),
        ("identity", post("Transfer-Encoding: identity")),
        ("a folded header", post("Transfer-Encoding:\r\n chunked")),
        ("a folded header", post("X: a\r\n b")),
        ("a blank before a colon", post("Content-Length : 0")),
        ("a blank before a name", post(" Content-Length: 0")),
        ("a NUL in a header", post("X: a\0b")),
        ("a bare carriage return", post("X: a\rContent-Length: 0")),
        ("a name with a bracket", post("Content-Length[]: 0")),
        ("no size of a chunk", post("Transfer-Encoding: chunked") + "\r\n\r\n"),
        ("a chunk size of letters", post("Transfer-Encoding: chunked") + "xyz\r\n"),
        ("a huge chunk size", post("Transfer-Encoding: chunked") + "fffffffffffffffff\r\n"),
        ("a signed chunk size", post("Transfer-Encoding: chunked") + "+0\r\n\r\n"),
        ("more than the chunk", post("Transfer-Encoding: chunked") + "1\r\naa\r\n0\r\n\r\n"),
        ("no host", "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n".into()),
        ("two hosts", post("Host: i\r\nContent-Length: 0")),
        ("no version", "GET /healthz\r\n\r\n".into()),
        ("version 3", "GET /healthz HTTP/3.0\r\nHost: h\r\n\r\n".into()),
        ("no request", "hello\r\n\r\n".into()),
        ("TLS", "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\r\n\r\n".into()),
        (
            "chunked in HTTP/1.0",
            "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(),
        ),
        (
            "a hundred headers",
            format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: y\r\n".repeat(100)),
        ),
        ("a long path", format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(200_000))),
    ];
    for (what, bytes) in cases {
        let mut client = Client::connect(server.address).expect("connects");
        // The server may close the connection before it has read everything.
        let _ = client.send((bytes + hidden).as_bytes());
        match client.answer("POST") {
            Ok(answer) => assert!((400..=431).contains(&answer.status), "{what}: {answer:?}"),
            Err(e) => println!("{what}: closed: {e}"),
        }
        let rest = String::from_utf8_lossy(&client.rest()).into_owned();
        assert_eq!(rest, "", "{what}: a second answer");
        server.assert_serves(what);
    }
}

/// A header line may legally end with a bare line feed. The bytes after the head are then the body
/// of length `Content-Length`, not a second request. Chunk lines must not end so.
#[test]
fn bare_line_feeds_have_one_meaning() {
    let server = serve(|_| {});
    let hidden = "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n";
    let length = hidden.len();
    let cases = [
        format!("POST {PREDICT} HTTP/1.1\nHost: h\nContent-Length: {length}\nX: y\n\n"),
        format!("POST {PREDICT} HTTP/1.1\r\nHost: h\r\nX: y\nContent-Length: {length}\r\n\r\n"),
        format!("POST {PREDICT} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\n\n"),
    ];
    for bytes in cases {
        let mut client = Client::connect(server.address).expect("connects");
        client.send((bytes.clone() + hidden).as_bytes()).expect("sent");
        let answer = client.answer("POST").expect("an answer");
        assert_eq!(answer.status, 400, "{bytes:?}: {}", answer.text());
        client.writer().shutdown(Shutdown::Write).expect("shutdown of the writer");
        assert_eq!(String::from_utf8_lossy(&client.rest()), "", "{bytes:?}: a second answer");
        server.assert_serves(&bytes);
    }
}

/// Asserts that later bytes on this connection, such as the rest of a body, are not read as a
/// request.
fn assert_ends(client: &mut Client, what: &str) {
    let _ = client.send(b"\r\nGET /healthz HTTP/1.1\r\nHost: h\r\n\r\n");
    // Otherwise the server would wait some seconds for more data before it closes.
    let _ = client.writer().shutdown(Shutdown::Write);
    assert_eq!(String::from_utf8_lossy(&client.rest()), "", "{what}: a second answer");
}

#[test]
fn a_connection_with_an_unread_body_closes_by_itself() {
    let server = serve(|s| s.server.max_body_bytes = Some("1KiB".parse().expect("a size")));
    let mut client = Client::connect(server.address).expect("connects");
    let head = format!("POST {PREDICT} HTTP/1.1\r\nHost: h\r\nContent-Length: 10000\r\n\r\n{{");
    client.send(head.as_bytes()).expect("sent");
    let answer = client.answer("POST").expect("an answer");
    assert_eq!((answer.status, answer.closes()), (413, true), "{:?}", answer.headers);
    let start = Instant::now();
    assert_eq!(client.rest(), b"");
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
}

#[test]
fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let server = serve(|s| s.server.max_body_bytes = Some("1KiB".parse().expect("a size")));
    for path in [PREDICT, "/"] {
        for kind in ["application/json", "multipart/form-data; boundary=b"] {
            let mut client = Client::connect(server.address).expect("connects");
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\nContent-Length: 10737418240\r\n\r\n"
            );
            client.send(head.as_bytes()).expect("sent");
            let _ = client.send(&[b' '; 512]);
            let what = format!("10 GiB to {path} as {kind}");
            let start = Instant::now();
            let answer = client.answer("POST").expect(&what);
            answer.assert_refused(
                &what,
                413,
                "larger than 1024 bytes, the limit set by max_body_bytes",
            );
            assert!(start.elapsed() < Duration::from_secs(50), "{what}: {:?}", start.elapsed());
            assert_ends(&mut client, &what);
            server.assert_serves(&what);
        }
    }
    let exact = format!("{GOOD}{}", " ".repeat(1024 - GOOD.len()));
    assert_eq!(server.post(PREDICT, &exact).status, 200);
    server.post(PREDICT, exact + " ").assert_refused("1025 bytes", 413, "larger than 1024 bytes");
}

#[test]
fn an_endless_body_is_refused_at_the_limit() {
    const ENOUGH: usize = 4 << 30;
    let server = serve(|s| s.server.max_body_bytes = Some("100KiB".parse().expect("a size")));
    let form = "multipart/form-data; boundary=b";
    let part = "--b\r\nContent-Disposition: form-data; name=\"image\"\r\n\r\n";
    let cases = [
        ("a document", PREDICT, "application/json", ""),
        ("a document", "/", "application/json", ""),
        ("a file", "/", form, part),
        ("a preamble", "/", form, ""),
    ];
    for (what, path, kind, start) in cases {
        let mut client = Client::connect(server.address).expect("connects");
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        client.send(head.as_bytes()).expect("sent");
        if !start.is_empty() {
            client.send(format!("{:x}\r\n{start}\r\n", start.len()).as_bytes()).expect("sent");
        }
        let mut writer = client.writer();
        // Line breaks, so that a form preamble is not read as the head of a part.
        let chunk = format!("10000\r\n{}\r\n", " \n".repeat(0x8000));
        let writing = thread::spawn(move || {
            let mut sent = 0;
            // Only the end of the connection ends this loop.
            while sent < ENOUGH && writer.write_all(chunk.as_bytes()).is_ok() {
                sent += chunk.len();
            }
            sent
        });
        let answer = client.answer("POST").unwrap_or_else(|e| panic!("{what} to {path}: {e}"));
        answer.assert_refused(what, 413, "limit set by max_body_bytes");
        let _ = client.writer().shutdown(Shutdown::Both);
        let sent = writing.join().expect("a writer");
        assert!(sent < ENOUGH, "{what} to {path}: {sent} bytes were taken");
        server.assert_serves(what);
    }
}

#[test]
fn a_body_in_single_bytes_is_read() {
    let server = serve(|_| {});
    let body = format!("{}{GOOD}", " ".repeat(100_000 - GOOD.len()));
    let head = format!("POST {PREDICT} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut bytes = head.into_bytes();
    for &byte in body.as_bytes() {
        bytes.extend_from_slice(&[b'1', b'\r', b'\n', byte, b'\r', b'\n']);
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    let mut client = Client::connect(server.address).expect("connects");
    let start = Instant::now();
    client.send(&bytes).expect("sent");
    let answer = client.answer("POST").expect("an answer");
    assert_eq!((answer.status, answer.json()), (200, serde_json::json!({"outputs": [2.5]})));
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
    server.assert_serves("single bytes");
}

#[test]
fn damaged_and_unknown_compression() {
    let server = serve(|_| {});
    let good = gzip(GOOD.as_bytes());
    let mut checksum = good.clone();
    let at = checksum.len() - 6;
    checksum[at] ^= 1;
    let twice = gzip(&good);
    let no_gzip = "the request body is not valid gzip, which its Content-Encoding header declares";
    let cases: [(&str, &str, &[u8], u16, &str); 9] = [
        ("text", "gzip", GOOD.as_bytes(), 400, no_gzip),
        ("half a body", "gzip", &good[..good.len() / 2], 400, no_gzip),
        ("half a head", "gzip", &good[..5], 400, no_gzip),
        ("no checksum", "gzip", &good[..good.len() - 4], 400, no_gzip),
        ("a wrong checksum", "x-gzip", &checksum, 400, no_gzip),
        ("twice", "gzip", &twice, 400, "Invalid"),
        (
            "twice, and declared so",
            "gzip, gzip",
            &twice,
            415,
            "\"gzip, gzip\" is not supported; send gzip, deflate or none",
        ),
        ("brotli", "br", &good, 415, "\"br\" is not supported"),
        ("nothing", "gzip", b"", 400, "The document is empty"),
    ];
    for (what, encoding, body, status, text) in cases {
        for path in [PREDICT, "/"] {
            let headers = [JSON, ("Content-Encoding", encoding)];
            let answer = request(server.address, "POST", path, &headers, body);
            answer.assert_refused(what, status, text);
        }
        server.assert_serves(what);
    }
    let answer = request(server.address, "POST", PREDICT, &[JSON, GZIP], &good);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn a_gzip_bomb_is_refused_and_takes_no_memory() {
    let server = serve(|s| s.server.max_body_bytes = Some("8MiB".parse().expect("a size")));
    // 4 GiB in 4 MB.
    let bomb = gzip(&vec![b' '; 8 << 20]).repeat(512);
    assert!(bomb.len() < 8 << 20, "{} bytes", bomb.len());
    let before = peak_memory();
    for path in [PREDICT, "/"] {
        let answer = request(server.address, "POST", path, &[JSON, GZIP], &bomb);
        answer.assert_refused("a bomb", 413, "larger than 8388608 bytes");
        server.assert_serves("a bomb");
    }
    // Leaves room for concurrent tests, but is less than the inflated bomb.
    let grown = peak_memory().saturating_sub(before);
    assert!(grown < 2 << 30, "{grown} bytes");
}

/// The peak of this process's resident memory.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

#[test]
fn a_slow_head_ends_the_connection() {
    // Long enough for a complete head on a busy machine.
    let server = serve(|s| s.server.header_timeout = Some("2s".parse().expect("a duration")));
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-";
    let mut client = Client::connect(server.address).expect("connects");
    let start = Instant::now();
    client.send(head.as_bytes()).expect("sent");
    let rest = String::from_utf8_lossy(&client.rest()).into_owned();
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
    assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408"), "{rest}");
    server.assert_serves("half a head");
    // Single bytes do not extend the timeout.
    let mut client = Client::connect(server.address).expect("connects");
    let mut writer = client.writer();
    let dripping = thread::spawn(move || {
        let start = Instant::now();
        writer.write_all(head.as_bytes()).expect("sent");
        while start.elapsed() < Duration::from_secs(20) && writer.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
        start.elapsed()
    });
    let rest = String::from_utf8_lossy(&client.rest()).into_owned();
    assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408"), "{rest}");
    let _ = client.writer().shutdown(Shutdown::Both);
    assert!(dripping.join().expect("a writer") < Duration::from_secs(20));
    server.assert_serves("a dripping head");
}

#[test]
fn a_slow_head_ends_a_connection_that_has_served() {
    let server = serve(|s| {
        s.server.header_timeout = Some("1s".parse().expect("a duration"));
        s.server.keep_alive = Some("3s".parse().expect("a duration"));
    });
    let good = "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n";
    let half = "GET /healthz HTTP/1.1\r\nHost: h\r\nX-";
    // Half a head sent separately, half a head directly after a request, and no second head.
    for (together, alone) in
        [(good.to_owned(), half), (format!("{good}{half}"), ""), (good.into(), "")]
    {
        let mut client = Client::connect(server.address).expect("connects");
        client.send(together.as_bytes()).expect("sent");
        assert_eq!(client.answer("GET").expect("an answer").status, 200);
        client.send(alone.as_bytes()).expect("sent");
        let start = Instant::now();
        let rest = client.rest();
        assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{rest:?}");
    }
    // A client with pauses below the keep-alive timeout stays connected.
    let mut client = Client::connect(server.address).expect("connects");
    for _ in 0..6 {
        assert_eq!(client.request("GET", "/healthz", &[], b"").expect("an answer").status, 200);
        std::thread::sleep(Duration::from_millis(1200));
    }
}

#[test]
fn a_slow_body_is_answered_in_time() {
    let server = serve(|s| s.server.body_timeout = Some("300ms".parse().expect("a duration")));
    let form = "multipart/form-data; boundary=b";
    for (path, kind) in [(PREDICT, "application/json"), ("/", "application/json"), ("/", form)] {
        let mut client = Client::connect(server.address).expect("connects");
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\nContent-Length: 100\r\n\r\n"
        );
        client.send((head + "--b").as_bytes()).expect("sent");
        let start = Instant::now();
        let answer = client.answer("POST").expect("an answer");
        let what = format!("half a body to {path} as {kind}");
        answer.assert_refused(&what, 408, "the request body did not arrive within 0.3 s");
        assert_ends(&mut client, &what);
        assert!(start.elapsed() < Duration::from_secs(50), "{what}: {:?}", start.elapsed());
        server.assert_serves(&what);
    }
}

/// Routes whose handlers use no body, with and without credentials.
const WITHOUT_BODY: [&str; 9] = [
    "/",
    "/ping",
    "/pingpong",
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/models/half_plus_two",
    "/api/v1/status",
    "/console/app.js",
];

#[test]
fn a_body_that_is_not_used_is_not_read() {
    let server = serve(|s| s.server.body_timeout = Some("60s".parse().expect("a duration")));
    for path in WITHOUT_BODY {
        // None of these bodies is ever sent.
        for length in
            ["Content-Length: 60000000", "Content-Length: 999999999", "Transfer-Encoding: chunked"]
        {
            let mut client = Client::connect(server.address).expect("connects");
            let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n");
            let start = Instant::now();
            client.send(head.as_bytes()).expect("sent");
            let answer = client.answer("GET").unwrap_or_else(|e| panic!("{path}, {length}: {e}"));
            assert_eq!(answer.status, 200, "{path}, {length}: {}", answer.text());
            assert!(start.elapsed() < Duration::from_secs(50), "{path}, {length}");
        }
        // Nor is this one decompressed.
        let answer = request(server.address, "GET", path, &[GZIP], "not gzip");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        // A small one leaves the connection usable.
        let mut client = Client::connect(server.address).expect("connects");
        for _ in 0..3 {
            let answer = client.request("GET", path, &[], &[b'a'; 1000]).expect("an answer");
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
    }
}

#[test]
fn an_unused_body_without_end_ends_the_connection() {
    let server = serve(|s| s.server.header_timeout = Some("500ms".parse().expect("a duration")));
    for length in ["Content-Length: 999999999", "Transfer-Encoding: chunked"] {
        let mut client = Client::connect(server.address).expect("connects");
        let head = format!("POST /ping HTTP/1.1\r\nHost: h\r\n{length}\r\n\r\n");
        client.send(head.as_bytes()).expect("sent");
        assert_eq!(client.answer("POST").expect("an answer").status, 200, "{length}");
        let start = Instant::now();
        let mut writer = client.writer();
        while writer.write_all(b"4\r\naaaa\r\n").is_ok() {
            assert!(start.elapsed() < Duration::from_secs(50), "{length}: still open");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A request whose response is larger than the buffers of both systems.
fn large_request() -> Vec<u8> {
    let body = format!(r#"{{"instances": [{}1.0]}}"#, "1.0,".repeat(3_000_000));
    let head = format!(
        "POST {PREDICT} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Reads the response to [`large_request`] in `pieces`, with a pause before each. Whether it is
/// complete.
fn read_slowly(client: &mut Client, pieces: usize, pause: Duration) -> bool {
    let mut stream = client.writer();
    let mut buffer = vec![0; 20_000_000 / pieces];
    let mut received = Vec::new();
    loop {
        thread::sleep(pause);
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => received.extend_from_slice(&buffer[..count]),
            _ => return false,
        }
        if received.ends_with(b"]\n}") || received.ends_with(b"]}") {
            return true;
        }
    }
}

#[test]
fn clients_that_do_not_read_their_response_are_disconnected() {
    let server = serve(|s| s.server.write_timeout = Some("2s".parse().expect("a duration")));
    let mut client = Client::connect(server.address).expect("connects");
    client.send(&large_request()).expect("sent");
    let connections = |server: &TestServer| {
        let status = server.get("/api/v1/status").json();
        status["server"]["connections"].as_u64().expect("a number")
    };
    let start = Instant::now();
    server.wait_until("the connection is closed", |server| connections(server) == 1);
    assert!(start.elapsed() > Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(!read_slowly(&mut client, 1000, Duration::ZERO), "the response was kept");
    // A client that reads something in time is served for as long as it takes.
    let mut client = Client::connect(server.address).expect("connects");
    client.send(&large_request()).expect("sent");
    thread::sleep(Duration::from_secs(1));
    let start = Instant::now();
    assert!(read_slowly(&mut client, 100, Duration::from_millis(50)), "the response was cut");
    assert!(start.elapsed() > Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn malformed_requests_are_not_logged_as_errors() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let log = folder.path().join("log");
    let mut command = tensorserve(&["serve", "--http-port", "0", "--grpc-port", "0"]);
    command.arg(project("models/half_plus_two"));
    command.stderr(fs::File::create(&log).expect("a file"));
    let process = Process::start(command);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(300_000));
    for bytes in ["hello\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", &long] {
        for _ in 0..3 {
            let mut client = Client::connect(process.address).expect("connects");
            let _ = client.send(bytes.as_bytes());
            client.rest();
        }
    }
    let text = fs::read_to_string(&log).expect("text");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("actix")).collect();
    assert!(lines.is_empty(), "{lines:?}");
    assert!(text.contains("INFO") && !text.contains("ERROR"), "{text}");
}

#[test]
fn a_body_cut_short_harms_nobody() {
    let server = serve(|_| {});
    for path in [PREDICT, "/"] {
        let mut client = Client::connect(server.address).expect("connects");
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{{");
        client.send(head.as_bytes()).expect("sent");
        client.writer().shutdown(Shutdown::Write).expect("shutdown of the writer");
        // The client gets no response, or an error.
        let rest = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 400"), "{rest}");
        server.assert_serves("half a body");
    }
    server.wait_until("nothing is in flight", |server| {
        server.engine.metrics().in_flight_count() == 0
    });
}
