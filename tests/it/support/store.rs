//! A store on this machine: S3's protocol for listing and reading, with faults on demand.
//!
//! `GET /BUCKET?list-type=2&prefix=…` lists, `GET /BUCKET/KEY` reads, also ranges and with
//! `If-Match`. The real servers are in `tests/clients/stores`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use tensorserve::config::Settings;

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    None,
    /// A refusal with this status and S3 error code.
    Status(u16, &'static str),
    /// A refusal with this status and S3 error code, and the header that names the bucket's region.
    Region(u16, &'static str),
    /// The connection ends after this many bytes of the content.
    Truncate(usize),
    /// Nothing is sent for so long, in the middle of the content.
    Stall(Duration),
}

/// A request as a fault function sees it.
#[derive(Clone, Debug)]
pub struct StoreRequest {
    /// The key of the object; `None` for a listing.
    pub key: Option<String>,
    /// How many requests came before it.
    pub index: usize,
}

type FaultOf = Box<dyn FnMut(&StoreRequest) -> Fault + Send>;

struct Object {
    bytes: Vec<u8>,
    etag: String,
    modified: SystemTime,
}

struct State {
    objects: BTreeMap<String, Object>,
    fault: FaultOf,
    /// The keys that were read, in order.
    reads: Vec<String>,
    requests: usize,
    writes: u64,
    is_down: bool,
}

/// The store, with one bucket, `b`.
#[derive(Clone)]
pub struct StoreServer {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl StoreServer {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = State {
            objects: BTreeMap::new(),
            fault: Box::new(|_| Fault::None),
            reads: Vec::new(),
            requests: 0,
            writes: 0,
            is_down: false,
        };
        let server = StoreServer { address, state: Arc::new(Mutex::new(state)) };
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                thread::spawn(move || serving.connection(stream));
            }
        });
        server
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settings that reach this store.
    pub fn configure(&self, settings: &mut Settings, cache: &Path) {
        settings.server.store_endpoint = Some(format!("http://{}", self.address));
        settings.server.store_anonymous = Some(true);
        settings.server.model_cache_dir = Some(cache.to_owned());
    }

    /// Writes an object. It looks as if it had been written long ago.
    pub fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.put_at(key, bytes, SystemTime::now() - Duration::from_secs(3600));
    }

    pub fn put_at(&self, key: &str, bytes: impl Into<Vec<u8>>, modified: SystemTime) {
        let mut state = self.state();
        state.writes += 1;
        let etag = format!("\"etag-{}\"", state.writes);
        state.objects.insert(key.to_owned(), Object { bytes: bytes.into(), etag, modified });
    }

    /// Writes the files of a directory.
    pub fn put_folder(&self, key: &str, folder: &Path) {
        for entry in fs::read_dir(folder).expect("a directory").flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let key = format!("{key}/{name}");
            match path.is_dir() {
                true => self.put_folder(&key, &path),
                false => self.put(&key, fs::read(path).expect("a file")),
            }
        }
    }

    pub fn remove(&self, prefix: &str) {
        self.state().objects.retain(|key, _| !key.starts_with(prefix));
    }

    /// Gives an object this ETag.
    pub fn set_etag(&self, key: &str, etag: &str) {
        self.state().objects.get_mut(key).expect("an object").etag = format!("\"{etag}\"");
    }

    /// Decides from now on what happens to each request.
    pub fn fault(&self, fault: impl FnMut(&StoreRequest) -> Fault + Send + 'static) {
        self.state().fault = Box::new(fault);
    }

    /// Ends every connection at once from now on, or not any more.
    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// The keys that were read, in order.
    pub fn reads(&self) -> Vec<String> {
        self.state().reads.clone()
    }

    fn connection(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
        let mut stream = stream;
        while let Some((method, target, headers)) = head(&mut reader) {
            let length = headers.get("content-length").and_then(|length| length.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            if reader.read_exact(&mut body).is_err() || self.state().is_down {
                return;
            }
            let answered = match method.as_str() {
                "PUT" | "DELETE" => self.change(&mut stream, &method, &target, &headers, body),
                _ => self.answer(&mut stream, &method, &target, &headers),
            };
            if answered.is_none() {
                return;
            }
        }
    }

    /// Answers a request that writes or removes an object.
    fn change(
        &self,
        stream: &mut TcpStream,
        method: &str,
        target: &str,
        headers: &BTreeMap<String, String>,
        body: Vec<u8>,
    ) -> Option<()> {
        let (path, _) = target.split_once('?').unwrap_or((target, ""));
        let path = decoded(path.trim_start_matches('/'));
        let key = path.strip_prefix("b/").expect("a key of the bucket");
        if method == "DELETE" {
            self.state().objects.remove(key);
            return write!(stream, "HTTP/1.1 204 No Content\r\n\r\n").ok();
        }
        let must_be_new = headers.get("if-none-match").is_some_and(|value| value == "*");
        // One request at a time decides.
        let mut state = self.state();
        if must_be_new && state.objects.contains_key(key) {
            drop(state);
            return refuse(stream, 412, "PreconditionFailed", "");
        }
        state.writes += 1;
        let etag = format!("\"etag-{}\"", state.writes);
        let object = Object { bytes: body, etag: etag.clone(), modified: SystemTime::now() };
        state.objects.insert(key.to_owned(), object);
        drop(state);
        send(stream, "200 OK", &format!("ETag: {etag}\r\n"), b"", &Fault::None)
    }

    /// The objects whose keys begin so, and their content.
    pub fn objects(&self, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        let state = self.state();
        let all = state.objects.iter().filter(|(key, _)| key.starts_with(prefix));
        all.map(|(key, object)| (key.clone(), object.bytes.clone())).collect()
    }

    /// Answers one request; `None` ends the connection.
    fn answer(
        &self,
        stream: &mut TcpStream,
        method: &str,
        target: &str,
        headers: &BTreeMap<String, String>,
    ) -> Option<()> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = decoded(path.trim_start_matches('/'));
        let key = path.strip_prefix("b/").filter(|key| !key.is_empty()).map(str::to_owned);
        let fault = {
            let mut state = self.state();
            let request = StoreRequest { key: key.clone(), index: state.requests };
            state.requests += 1;
            let mut fault = std::mem::replace(&mut state.fault, Box::new(|_| Fault::None));
            drop(state);
            // The function may change the objects.
            let decided = fault(&request);
            self.state().fault = fault;
            decided
        };
        match fault {
            Fault::Status(status, code) => return refuse(stream, status, code, ""),
            Fault::Region(status, region) => {
                let header = format!("x-amz-bucket-region: {region}\r\n");
                return refuse(stream, status, "PermanentRedirect", &header);
            }
            Fault::None | Fault::Truncate(_) | Fault::Stall(_) => {}
        }
        let Some(key) = key else {
            let body = self.listing(query);
            return send(stream, "200 OK", "", body.as_bytes(), &fault);
        };
        let (content, etag, total, range) = {
            let mut state = self.state();
            let Some(object) = state.objects.get(&key) else {
                drop(state);
                return refuse(stream, 404, "NoSuchKey", "");
            };
            if headers.get("if-match").is_some_and(|wanted| *wanted != object.etag) {
                drop(state);
                return refuse(stream, 412, "PreconditionFailed", "");
            }
            let total = object.bytes.len();
            let range = headers.get("range").and_then(|range| bounds(range, total));
            if headers.contains_key("range") && range.is_none() {
                drop(state);
                return refuse(stream, 416, "InvalidRange", "");
            }
            let (start, end) = range.unwrap_or((0, total));
            let found = (object.bytes[start..end].to_vec(), object.etag.clone(), total, range);
            if method == "GET" {
                state.reads.push(key.clone());
            }
            found
        };
        let mut more = format!(
            "ETag: {etag}\r\nLast-Modified: Mon, 02 Nov 2026 00:00:00 GMT\r\nx-amz-request-id: 1\r\n"
        );
        let status = match range {
            Some((start, end)) => {
                more.push_str(&format!("Content-Range: bytes {start}-{}/{total}\r\n", end - 1));
                "206 Partial Content"
            }
            None => "200 OK",
        };
        if method == "HEAD" {
            return write!(stream, "HTTP/1.1 200 OK\r\n{more}Content-Length: {total}\r\n\r\n").ok();
        }
        send(stream, status, &more, &content, &fault)
    }

    fn listing(&self, query: &str) -> String {
        let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix="));
        let prefix = decoded(prefix.unwrap_or_default());
        let mut contents = String::new();
        let state = self.state();
        for (key, object) in state.objects.range(prefix.clone()..) {
            if !key.starts_with(&prefix) {
                break;
            }
            let since = object.modified.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
            contents.push_str(&format!(
                "<Contents><Key>{key}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
                timestamp(since.as_secs()),
                object.etag.replace('"', "&quot;"),
                object.bytes.len()
            ));
        }
        format!(
            "<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"
        )
    }
}

/// Method, target and headers of a request.
fn head(reader: &mut impl BufRead) -> Option<(String, String, BTreeMap<String, String>)> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut parts = line.split(' ').map(str::to_owned);
    let (method, target) = (parts.next()?, parts.next()?);
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
            None => return Some((method, target, headers)),
        }
    }
}

fn refuse(stream: &mut TcpStream, status: u16, code: &str, more: &str) -> Option<()> {
    let body = format!("<Error><Code>{code}</Code><Message>Said by the test</Message></Error>");
    send(stream, &format!("{status} Refused"), more, body.as_bytes(), &Fault::None)
}

fn send(
    stream: &mut TcpStream,
    status: &str,
    more: &str,
    body: &[u8],
    fault: &Fault,
) -> Option<()> {
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\n{more}Content-Length: {length}\r\n\r\n").ok()?;
    match fault {
        Fault::Truncate(bytes) => {
            stream.write_all(&body[..length.min(*bytes)]).ok()?;
            None
        }
        Fault::Stall(time) => {
            let (first, rest) = body.split_at(length / 2);
            stream.write_all(first).ok()?;
            thread::sleep(*time);
            stream.write_all(rest).ok()
        }
        Fault::None | Fault::Status(..) | Fault::Region(..) => stream.write_all(body).ok(),
    }
}

/// The bounds of `bytes=a-b` in an object of `total` bytes.
fn bounds(range: &str, total: usize) -> Option<(usize, usize)> {
    let (start, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (start, last): (usize, usize) = (start.parse().ok()?, last.parse().ok()?);
    (start < total).then(|| (start, total.min(last + 1)))
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().expect("a digit"), rest.next().expect("a digit")];
                let digits = std::str::from_utf8(&digits).expect("digits").to_owned();
                bytes.push(u8::from_str_radix(&digits, 16).expect("hexadecimal"));
            }
            b'+' => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// A time in seconds since 1970 as S3 writes it.
fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years of 1970 to 2099: every fourth is a leap year.
    let mut year = 1970;
    let mut day = days;
    loop {
        let length = if year % 4 == 0 { 366 } else { 365 };
        if day < length {
            break;
        }
        day -= length;
        year += 1;
    }
    let february = if year % 4 == 0 { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.000Z", day + 1)
}
