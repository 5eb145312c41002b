//! Downloads from an index in this process, with a small wheel.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::install::STAMP;
use super::{DownloadDisplay, Fetcher, Installation, Pin, PipSettings, Report, Trust};
use tensorserve_tensor::error::Result;

const WHEEL: &str = "onnxruntime-1.0-cp312-none-any.whl";
const PAGE: &str = "/simple/onnxruntime/";
const LIBRARY: &str = "onnxruntime/libonnxruntime.so.1";

/// A request: its path and its headers, with names in lower case.
#[derive(Clone, Debug)]
struct Received {
    path: String,
    headers: BTreeMap<String, String>,
}

/// A response that is sent as it is, after which the connection is closed.
type Raw = Vec<u8>;

/// An HTTP server that answers each request with `answer`, given its number, and records them.
struct TestIndex {
    url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl TestIndex {
    fn start(answer: impl Fn(usize, &Received) -> Raw + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let received = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&received);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(request) = read_request(&stream) else {
                    continue;
                };
                let number = {
                    let mut record = record.lock().expect("record");
                    record.push(request.clone());
                    record.len() - 1
                };
                let _ = (&stream).write_all(&answer(number, &request));
            }
        });
        TestIndex { url, received }
    }

    fn paths(&self) -> Vec<String> {
        let received = self.received.lock().expect("record");
        received.iter().map(|request| request.path.clone()).collect()
    }

    fn header(&self, request: usize, name: &str) -> Option<String> {
        self.received.lock().expect("record")[request].headers.get(name).cloned()
    }
}

fn read_request(stream: &TcpStream) -> Option<Received> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Some(Received { path, headers })
}

fn response(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Raw {
    let mut raw = format!("HTTP/1.1 {status}\r\nConnection: close\r\n").into_bytes();
    let has_length = headers.iter().any(|(name, _)| *name == "Content-Length");
    if !has_length {
        raw.extend(format!("Content-Length: {}\r\n", body.len()).into_bytes());
    }
    for (name, value) in headers {
        raw.extend(format!("{name}: {value}\r\n").into_bytes());
    }
    raw.extend(b"\r\n");
    raw.extend(body);
    raw
}

/// A page of the index with a relative link.
fn page() -> Raw {
    let html = format!("<!DOCTYPE html><a href=\"../../files/{WHEEL}\">{WHEEL}</a>");
    response("200 OK", &[("Content-Type", "text/html")], html.as_bytes())
}

/// The part of `file` that the request asks for.
fn part(request: &Received, file: &[u8]) -> Raw {
    let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
    let Some(start) = range.and_then(|range| range.trim_end_matches('-').parse::<usize>().ok())
    else {
        return response("200 OK", &[], file);
    };
    let content = format!("bytes {start}-{}/{}", file.len() - 1, file.len());
    response("206 Partial Content", &[("Content-Range", &content)], &file[start..])
}

/// A wheel with a library of 200,000 bytes that do not compress, a licence, and another file.
fn wheel_bytes(seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let library: Vec<u8> = (0..200_000).map(|_| next()).collect();
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in [
        (LIBRARY, library.as_slice()),
        ("onnxruntime/LICENSE", b"Do as you like."),
        ("onnxruntime/__init__.py", b"import nothing"),
    ] {
        archive.start_file(name, SimpleFileOptions::default()).expect("member");
        archive.write_all(content).expect("written");
    }
    archive.finish().expect("archive").into_inner()
}

fn hash(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The list of runtimes with these wheels, each a name and its bytes.
fn pin_of(wheels: &[(&str, &[u8])], unpacked: u64) -> Pin {
    let wheel = |(file, bytes): &(&str, &[u8])| -> Value {
        json!({"file": file, "size": bytes.len(), "sha256": hash(bytes)})
    };
    let wheels: Vec<Value> = wheels.iter().map(wheel).collect();
    let build = json!({"device": "cpu", "machine": ARCH, "unpacked": unpacked, "wheels": wheels});
    let runtime = json!({
        "library": "libonnxruntime", "maker": "Tests", "version": "1.0", "folder": "onnxruntime",
        "needed": [LIBRARY], "libraries": ["onnxruntime/lib[^/]+"], "builds": [build],
        "links": {"links/deep/library.so": LIBRARY},
    });
    let pins = json!({"licences": ["[^/]+/license"], "runtimes": {"onnxruntime": runtime}});
    Pin::of(&pins.to_string(), "onnxruntime").expect("valid")
}

/// Shows nothing.
struct Silent;

impl Report for Silent {
    fn say(&self, _remark: &str) {}

    fn begin(&self, _label: &str, _size: u64) -> Box<dyn DownloadDisplay> {
        Box::new(Silent)
    }
}

impl DownloadDisplay for Silent {
    fn is_at(&self, _bytes: u64) {}
}

/// A home directory, with what is fetched into it.
struct Home {
    folder: TempDir,
    pin: Pin,
}

impl Home {
    fn new(pin: Pin) -> Self {
        Home { folder: tempfile::tempdir().expect("temporary directory"), pin }
    }

    fn fetch(&self, index: &str) -> Result<()> {
        self.fetch_with(&[("PIP_INDEX_URL", index)])
    }

    fn fetch_with(&self, variables: &[(&str, &str)]) -> Result<()> {
        let variables = [&[("PIP_CONFIG_FILE", "/dev/null")], variables].concat();
        let variables = variables.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned()));
        let pip = PipSettings::new(&variables.collect(), None)?;
        let trust = Trust { roots: Vec::new(), client: None };
        let fetcher = Fetcher::new(pip, trust, &Silent)?;
        fetcher.fetch(&self.pin, self.folder.path(), |_| Ok(Vec::new()))
    }

    fn installed(&self) -> PathBuf {
        self.folder.path().join(&self.pin.folder)
    }

    fn partial(&self) -> PathBuf {
        self.folder.path().join(format!(".{}.part/wheels/{WHEEL}", self.pin.folder))
    }

    /// Asserts that all is in place and nothing else.
    fn assert_complete(&self) {
        let installation = Installation::new(&self.pin, self.folder.path());
        assert_eq!(installation.shortcoming(), None);
        assert_eq!(installation.verify().expect("unchanged"), 3);
        assert_eq!(installation.begun(), 0);
        let installed = self.installed();
        assert_eq!(
            fs::metadata(installed.join("links/deep/library.so")).expect("link").len(),
            200_000
        );
        assert!(installed.join("licenses/onnxruntime/LICENSE").is_file());
        assert!(!installed.join("onnxruntime/__init__.py").exists());
    }

    fn assert_absent(&self) {
        assert!(!self.installed().exists());
    }
}

#[test]
fn libraries_of_a_wheel_are_installed_once() {
    let bytes = wheel_bytes(1);
    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
    let index = TestIndex::start(move |_, request| match request.path.as_str() {
        PAGE => response("302 Found", &[("Location", "/moved/onnxruntime/")], b""),
        "/moved/onnxruntime/" => page(),
        _ => part(request, &bytes),
    });
    home.fetch(&format!("{}/simple", index.url)).expect("fetched");
    home.assert_complete();
    let file = format!("/files/{WHEEL}");
    assert_eq!(index.paths(), [PAGE, "/moved/onnxruntime/", &file]);
    home.fetch(&index.url).expect("already there");
    assert_eq!(index.paths().len(), 3);
    // A file that was damaged is installed again.
    fs::write(home.installed().join(LIBRARY), "damaged").expect("written");
    let problem = Installation::new(&home.pin, home.folder.path()).verify().expect_err("damaged");
    assert!(problem.message().contains(LIBRARY), "{problem}");
    home.fetch(&format!("{}/simple", index.url)).expect("fetched again");
    home.assert_complete();
}

#[test]
fn a_broken_download_continues_where_it_stopped() {
    let bytes = wheel_bytes(2);
    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
    let size = bytes.len().to_string();
    let index = TestIndex::start(move |number, request| match number {
        0 => page(),
        // The connection breaks after 1000 bytes, and again after 2000.
        1 => response("200 OK", &[("Content-Length", &size)], &bytes[..1000]),
        2 => part(request, &bytes)[..1200].to_vec(),
        _ => part(request, &bytes),
    });
    home.fetch(&format!("{}/simple", index.url)).expect("fetched");
    home.assert_complete();
    assert_eq!(index.header(1, "range"), None);
    assert_eq!(index.header(2, "range").as_deref(), Some("bytes=1000-"));
    let third = index.header(3, "range").expect("a range");
    let start: usize =
        third.trim_start_matches("bytes=").trim_end_matches('-').parse().expect("number");
    assert!((1001..2200).contains(&start), "{start}");
}

#[test]
fn a_download_that_another_run_began_is_completed() {
    let bytes = wheel_bytes(3);
    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
    fs::create_dir_all(home.partial().parent().expect("parent")).expect("directory");
    fs::write(home.partial(), &bytes[..150_000]).expect("written");
    let file = bytes.clone();
    let index = TestIndex::start(move |number, request| match number {
        0 => page(),
        _ => part(request, &file),
    });
    home.fetch(&format!("{}/simple", index.url)).expect("fetched");
    home.assert_complete();
    assert_eq!(index.header(1, "range").as_deref(), Some("bytes=150000-"));

    // What was there is of another file, is longer than the file, or the server ignores the range.
    for (earlier, ignores_range) in
        [(wheel_bytes(9)[..1000].to_vec(), false), (vec![0; 900_000], false), (vec![1; 10], true)]
    {
        let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
        fs::create_dir_all(home.partial().parent().expect("parent")).expect("directory");
        fs::write(home.partial(), earlier).expect("written");
        let file = bytes.clone();
        let index = TestIndex::start(move |_, request| match request.path.as_str() {
            PAGE => page(),
            _ if ignores_range => response("200 OK", &[], &file),
            _ => part(request, &file),
        });
        home.fetch(&format!("{}/simple", index.url)).expect("fetched");
        home.assert_complete();
    }
}

#[test]
fn a_file_with_another_hash_is_not_unpacked() {
    let (bytes, other) = (wheel_bytes(4), wheel_bytes(5));
    assert_eq!(bytes.len(), other.len());
    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
    let index = TestIndex::start(move |_, request| match request.path.as_str() {
        PAGE => page(),
        _ => part(request, &other),
    });
    let error = home.fetch(&format!("{}/simple", index.url)).expect_err("another file");
    assert!(error.message().contains("is not the file that this version"), "{error}");
    assert_eq!(index.paths().len(), 2);
    home.assert_absent();
    assert!(!home.partial().exists(), "the next run must not continue it");

    // The index says so itself, or the length does.
    let answers: [fn() -> Raw; 2] = [
        || {
            let file =
                json!({"url": "x/onnxruntime-1.0-cp312-none-any.whl", "hashes": {"sha256": "00"}});
            let body = json!({"files": [file]}).to_string();
            response(
                "200 OK",
                &[("Content-Type", "application/vnd.pypi.simple.v1+json")],
                body.as_bytes(),
            )
        },
        page,
    ];
    for answer in answers {
        let index = TestIndex::start(move |_, request| match request.path.as_str() {
            PAGE => answer(),
            _ => response("200 OK", &[], b"<html>Please log in</html>"),
        });
        let error = home.fetch(&format!("{}/simple", index.url)).expect_err("another file");
        assert!(error.message().contains("is not the file that this version"), "{error}");
        home.assert_absent();
    }
}

#[test]
fn busy_servers_are_asked_again_and_refusals_are_final() {
    let bytes = wheel_bytes(6);
    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
    let index = TestIndex::start(move |number, request| match number {
        0 => response("503 Service Unavailable", &[("Retry-After", "0")], b""),
        1 => page(),
        2 => response("429 Too Many Requests", &[("Retry-After", "0")], b""),
        3 => response("500 Internal Server Error", &[("Retry-After", "0")], b""),
        _ => part(request, &bytes),
    });
    home.fetch(&format!("{}/simple", index.url)).expect("fetched");
    home.assert_complete();
    assert_eq!(index.paths().len(), 5);

    let home = Home::new(pin_of(&[(WHEEL, b"x")], 1));
    let busy = TestIndex::start(|_, _| response("502 Bad Gateway", &[("Retry-After", "0")], b""));
    let url = format!("{}/simple", busy.url);
    let variables = [("PIP_INDEX_URL", url.as_str()), ("PIP_RETRIES", "2")];
    let error = home.fetch_with(&variables).expect_err("always busy");
    assert!(error.message().contains("502"), "{error}");
    assert_eq!(busy.paths().len(), 3);

    for (status, part) in [("403 Forbidden", "403"), ("404 Not Found", WHEEL)] {
        let refusing = TestIndex::start(move |_, _| response(status, &[], b""));
        let url = refusing.url.replace("http://", "http://ana:secret@");
        let error = home.fetch(&url).expect_err(status);
        assert!(error.message().contains(part) && !error.message().contains("secret"), "{error}");
        assert_eq!(refusing.paths().len(), 1);
        home.assert_absent();
    }
}

#[test]
fn credentials_go_to_the_index_and_to_no_other_host() {
    let bytes = wheel_bytes(7);
    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
    let files = TestIndex::start(move |_, request| part(request, &bytes));
    let elsewhere = files.url.clone();
    let index = TestIndex::start(move |_, request| match request.path.as_str() {
        PAGE => page(),
        _ => response("307 Temporary Redirect", &[("Location", &format!("{elsewhere}/x"))], b""),
    });
    let url = format!("{}/simple", index.url).replace("http://", "http://ana:secret@");
    home.fetch(&url).expect("fetched");
    home.assert_complete();
    let expected = Some("Basic YW5hOnNlY3JldA==");
    assert_eq!(index.header(0, "authorization").as_deref(), expected);
    assert_eq!(index.header(1, "authorization").as_deref(), expected);
    assert_eq!(files.header(0, "authorization"), None);
}

#[test]
fn the_next_index_and_local_directories_are_used() {
    let bytes = wheel_bytes(8);
    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
    let first = TestIndex::start(|_, _| response("404 Not Found", &[], b""));
    let file = bytes.clone();
    let second = TestIndex::start(move |_, request| match request.path.as_str() {
        PAGE => page(),
        _ => part(request, &file),
    });
    let (first, second) = (format!("{}/simple", first.url), format!("{}/simple", second.url));
    let indexes = [("PIP_INDEX_URL", first.as_str()), ("PIP_EXTRA_INDEX_URL", second.as_str())];
    home.fetch_with(&indexes).expect("fetched");
    home.assert_complete();

    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
    let local = tempfile::tempdir().expect("temporary directory");
    let directory = local.path().display().to_string();
    let offline = [("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", directory.as_str())];
    let error = home.fetch_with(&offline).expect_err("no index");
    assert!(error.message().contains("PIP_FIND_LINKS"), "{error}");
    fs::write(local.path().join(WHEEL), &bytes).expect("written");
    home.fetch_with(&offline).expect("found");
    home.assert_complete();
    assert!(local.path().join(WHEEL).is_file(), "the user's file must stay");
}

#[test]
fn wheels_that_are_unpacked_are_not_fetched_again() {
    let (first, second) = (wheel_bytes(10), wheel_bytes(11));
    let other = "onnxruntime_more-1.0-py3-none-any.whl";
    let home = Home::new(pin_of(&[(WHEEL, &first), (other, &second)], 600_000));
    let answer = move |request: &Received| match request.path.as_str() {
        PAGE => page(),
        "/simple/onnxruntime-more/" => response("403 Forbidden", &[], b""),
        _ => part(request, &first),
    };
    let index = TestIndex::start(move |_, request| answer(request));
    let url = format!("{}/simple", index.url);
    home.fetch(&url).expect_err("the second wheel is refused");
    assert_eq!(index.paths().len(), 3);
    home.assert_absent();
    home.fetch(&url).expect_err("refused again");
    assert_eq!(index.paths()[3..], ["/simple/onnxruntime-more/"]);
}

#[test]
fn a_full_disk_and_a_foreign_directory_are_told_before_the_download() {
    let bytes = wheel_bytes(12);
    let unused = TestIndex::start(|_, _| response("500 Internal Server Error", &[], b""));
    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 1 << 60));
    let error = home.fetch(&unused.url).expect_err("no space");
    assert!(error.message().contains("free") && error.message().contains("--dest"), "{error}");
    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
    fs::create_dir_all(home.installed()).expect("directory");
    fs::write(home.installed().join("thesis.txt"), "mine").expect("written");
    let error = home.fetch(&unused.url).expect_err("someone else's");
    assert!(error.message().contains("was not created by"), "{error}");
    assert!(home.installed().join("thesis.txt").is_file());
    assert!(unused.paths().is_empty());
}

#[test]
fn two_runs_at_once_fetch_once() {
    let bytes = wheel_bytes(13);
    let home = Home::new(pin_of(&[(WHEEL, &bytes)], 300_000));
    let index = TestIndex::start(move |number, request| {
        thread::sleep(std::time::Duration::from_millis(if number == 0 { 300 } else { 0 }));
        if number == 0 { page() } else { part(request, &bytes) }
    });
    let url = format!("{}/simple", index.url);
    thread::scope(|scope| {
        let runs = [(); 2].map(|()| scope.spawn(|| home.fetch(&url)));
        runs.into_iter().for_each(|run| run.join().expect("no panic").expect("fetched"));
    });
    home.assert_complete();
    assert_eq!(index.paths().len(), 2);
    assert!(home.installed().join(STAMP).is_file());
    assert_eq!(fs::metadata(home.installed().join(LIBRARY)).expect("library").nlink(), 1);
}
