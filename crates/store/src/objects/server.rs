//! A store for the tests: S3's protocol for listings in pages, reads, writes and uploads in parts,
//! with faults on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What happens to a request.
pub(super) enum Fault {
    None,
    /// The request is refused.
    Status(u16, &'static str),
    /// The bucket is in another region.
    Region(&'static str),
    /// Only this many bytes of the content are sent.
    Truncate(usize),
    /// The connection ends before it is carried out, or after.
    Lost,
    Unanswered,
}

type FaultOf = Box<dyn FnMut(&str, &str) -> Fault + Send>;

#[derive(Default)]
struct State {
    /// Content and ETag.
    objects: BTreeMap<String, (Vec<u8>, String)>,
    uploads: BTreeMap<String, BTreeMap<usize, Vec<u8>>>,
    fault: Option<FaultOf>,
    /// Method and target of every request.
    requests: Vec<String>,
    writes: usize,
}

/// The store, with one bucket, `b`.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) url: String,
    state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Response {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Server {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Server { url, state: Arc::default() };
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

    pub(super) fn put(&self, key: &str, content: impl Into<Vec<u8>>) {
        self.state().put(key, content.into());
    }

    pub(super) fn content(&self, key: &str) -> Option<Vec<u8>> {
        self.state().objects.get(key).map(|(content, _)| content.clone())
    }

    /// The uploads that were neither completed nor aborted.
    pub(super) fn open_uploads(&self) -> usize {
        self.state().uploads.len()
    }

    /// Method and target of the requests since the last call.
    pub(super) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().requests)
    }

    /// Decides from now on what happens to a request, from its method and target.
    pub(super) fn fault(&self, fault: impl FnMut(&str, &str) -> Fault + Send + 'static) {
        self.state().fault = Some(Box::new(fault));
    }

    fn connection(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some((target, request)) = read(&mut reader) {
            let fault = {
                let mut state = self.state();
                state.requests.push(format!("{} {target}", request.method));
                let fault = state.fault.as_mut();
                fault.map_or(Fault::None, |fault| fault(&request.method, &target))
            };
            let mut response = match fault {
                Fault::Lost => return,
                Fault::Status(status, code) => refusal(status, code),
                Fault::Region(region) => {
                    let headers = format!("x-amz-bucket-region: {region}\r\n");
                    Response { headers, ..refusal(301, "PermanentRedirect") }
                }
                Fault::None | Fault::Truncate(_) | Fault::Unanswered => {
                    self.state().answer(&request)
                }
            };
            if matches!(fault, Fault::Unanswered) {
                return;
            }
            let Response { status, headers, body } = &mut response;
            let length = body.len();
            let head = format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\n\r\n");
            if let Fault::Truncate(bytes) = fault {
                body.truncate(bytes);
            }
            if request.method == "HEAD" {
                body.clear();
            }
            let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
            if sent.is_err() || matches!(fault, Fault::Truncate(_)) {
                return;
            }
        }
    }
}

impl State {
    fn put(&mut self, key: &str, content: Vec<u8>) -> String {
        self.writes += 1;
        let etag = format!("\"etag-{}\"", self.writes);
        self.objects.insert(key.to_owned(), (content, etag.clone()));
        etag
    }

    fn answer(&mut self, request: &Request) -> Response {
        let Request { method, key, query, headers, body } = request;
        let upload = query.get("uploadId");
        match (method.as_str(), upload) {
            ("GET", _) if key.is_empty() => self.listing(query),
            ("GET" | "HEAD", _) => self.content(key, headers),
            ("PUT", Some(id)) => {
                let number: usize = query["partNumber"].parse().unwrap();
                match self.uploads.get_mut(id) {
                    None => return refusal(404, "NoSuchUpload"),
                    Some(parts) => parts.insert(number, body.clone()),
                };
                ok(format!("ETag: \"part-{number}\"\r\n"), String::new())
            }
            ("PUT", None) if headers.contains_key("if-none-match") => {
                match self.objects.contains_key(key) {
                    true => refusal(412, "PreconditionFailed"),
                    false => {
                        ok(format!("ETag: {}\r\n", self.put(key, body.clone())), String::new())
                    }
                }
            }
            ("PUT", None) => {
                ok(format!("ETag: {}\r\n", self.put(key, body.clone())), String::new())
            }
            ("POST", None) if query.contains_key("uploads") => {
                self.writes += 1;
                let id = format!("upload-{}", self.writes);
                self.uploads.insert(id.clone(), BTreeMap::new());
                let body = "InitiateMultipartUploadResult";
                ok(String::new(), format!("<{body}><UploadId>{id}</UploadId></{body}>"))
            }
            ("POST", Some(id)) => {
                let Some(parts) = self.uploads.remove(id) else {
                    return refusal(404, "NoSuchUpload");
                };
                let is_small = |part: &Vec<u8>| part.len() < 5 << 20;
                assert!(!parts.values().rev().skip(1).any(is_small), "a part is too small");
                let etag = self.put(key, parts.into_values().flatten().collect());
                let body = "CompleteMultipartUploadResult";
                ok(String::new(), format!("<{body}><ETag>{etag}</ETag></{body}>"))
            }
            ("DELETE", Some(id)) => {
                self.uploads.remove(id);
                ok(String::new(), String::new())
            }
            ("DELETE", None) => {
                self.objects.remove(key);
                ok(String::new(), String::new())
            }
            _ => refusal(400, "NotImplemented"),
        }
    }

    fn content(&self, key: &str, headers: &BTreeMap<String, String>) -> Response {
        let Some((content, etag)) = self.objects.get(key) else {
            return refusal(404, "NoSuchKey");
        };
        if headers.get("if-match").is_some_and(|wanted| wanted != etag) {
            return refusal(412, "PreconditionFailed");
        }
        let mut more = format!("ETag: {etag}\r\nLast-Modified: Mon, 02 Nov 2026 00:00:00 GMT\r\n");
        let Some(range) = headers.get("range") else {
            return Response { status: 200, headers: more, body: content.clone() };
        };
        let (start, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (start, last): (usize, usize) = (start.parse().unwrap(), last.parse().unwrap());
        if start >= content.len() {
            return refusal(416, "InvalidRange");
        }
        let end = content.len().min(last + 1);
        more.push_str(&format!("Content-Range: bytes {start}-{}/{}\r\n", end - 1, content.len()));
        Response { status: 206, headers: more, body: content[start..end].to_vec() }
    }

    /// Pages of three objects.
    fn listing(&self, query: &BTreeMap<String, String>) -> Response {
        let prefix = query.get("prefix").cloned().unwrap_or_default();
        let after = query.get("continuation-token").cloned().unwrap_or_default();
        let mut keys = self.objects.iter();
        let keys = keys.by_ref().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
        let mut keys = keys.peekable();
        let (mut body, mut last) = (String::new(), String::new());
        for (key, (content, etag)) in keys.by_ref().take(3) {
            let (size, etag) = (content.len(), etag.replace('"', "&quot;"));
            let time = "2026-11-02T00:00:00.000Z";
            body.push_str(&format!(
                "<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>{etag}</ETag><Size>{size}</Size></Contents>"
            ));
            last.clone_from(key);
        }
        if keys.peek().is_some() {
            body.push_str(&format!("<NextContinuationToken>{last}</NextContinuationToken>"));
        }
        ok(String::new(), format!("<ListBucketResult>{body}</ListBucketResult>"))
    }
}

fn ok(headers: String, body: String) -> Response {
    Response { status: 200, headers, body: body.into_bytes() }
}

fn refusal(status: u16, code: &str) -> Response {
    let body = format!("<Error><Code>{code}</Code><Message>Said by the test</Message></Error>");
    Response { status, headers: String::new(), body: body.into_bytes() }
}

fn read(reader: &mut impl BufRead) -> Option<(String, Request)> {
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
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let url = reqwest::Url::parse(&format!("http://x{target}")).ok()?;
    let query = url.query_pairs().into_owned().collect();
    let key = url.path().strip_prefix("/b")?.trim_start_matches('/').to_owned();
    Some((target, Request { method, key, query, headers, body }))
}
