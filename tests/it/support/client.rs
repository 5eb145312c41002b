//! A small HTTP/1.1 client that sends the given bytes unchanged and keeps its connection open.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use socket2::{Domain, Socket, Type};

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("the body is not JSON ({e}): {}", self.text()))
    }

    /// The message of an error response.
    pub fn error(&self) -> String {
        let json = self.json();
        let message = json["error"].as_str();
        message.unwrap_or_else(|| panic!("no error member: {json}")).to_owned()
    }

    /// Asserts a JSON error with this status whose message contains `text`.
    pub fn assert_refused(&self, what: &str, status: u16, text: &str) {
        assert_eq!(self.status, status, "{what}: {}", self.text());
        let kind = self.headers.get("content-type").map(String::as_str);
        assert_eq!(kind, Some("application/json"), "{what}: {}", self.text());
        let error = self.error();
        assert!(error.contains(text), "{what}: {text:?} is not in {error:?}");
        // Errors quote request values, but truncate them.
        assert!(error.len() < 10_000, "{what}: {} bytes", error.len());
    }

    pub fn closes(&self) -> bool {
        self.headers.get("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

pub struct Client {
    address: SocketAddr,
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Client::over(address, TcpStream::connect(address)?)
    }

    /// Connects from another of this machine's loopback addresses.
    pub fn connect_from(from: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(from, 0).into())?;
        socket.connect(&address.into())?;
        Client::over(address, socket.into())
    }

    fn over(address: SocketAddr, stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        let stream = BufReader::new(stream);
        Ok(Client { address, stream })
    }

    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Answer> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.send(&bytes)?;
        self.answer(method)
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads one response.
    pub fn answer(&mut self, method: &str) -> io::Result<Answer> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed"));
        }
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status = status.ok_or_else(|| bad(&line))?;
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad(line))?;
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").map_or(Ok(0), |n| n.parse::<usize>());
        let mut body = vec![0; length.map_err(|_| bad("content-length"))?];
        if method != "HEAD" {
            self.stream.read_exact(&mut body)?;
        }
        Ok(Answer { status, headers, body })
    }

    /// A second handle to the connection, for writing while this one waits for the response.
    pub fn writer(&self) -> TcpStream {
        self.stream.get_ref().try_clone().expect("cloned socket")
    }

    /// Reads until the server closes the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }
}

/// Sends one request on a new connection.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> Answer {
    let mut client = Client::connect(address).expect("connects");
    client
        .request(method, path, headers, body.as_ref())
        .unwrap_or_else(|e| panic!("{method} {path}: {e}"))
}

/// What the console says of a version; null if the model has none with this number.
pub fn version(address: SocketAddr, model: &str, number: i64) -> Value {
    let detail = get(address, &format!("/api/v1/models/{model}")).json();
    let versions = detail["versions"].as_array().cloned().unwrap_or_default();
    versions.into_iter().find(|it| it["version"] == number).unwrap_or_default()
}

pub fn get(address: SocketAddr, path: &str) -> Answer {
    request(address, "GET", path, &[], "")
}

pub fn post(address: SocketAddr, path: &str, body: impl AsRef<[u8]>) -> Answer {
    request(address, "POST", path, &[("Content-Type", "application/json")], body)
}

/// One form field: name, optional file name, content.
pub type Field<'a> = (&'a str, Option<&'a str>, &'a [u8]);

pub fn post_form(address: SocketAddr, path: &str, fields: &[Field]) -> Answer {
    const BOUNDARY: &str = "------------------------c0ffee";
    let mut body = Vec::new();
    for (name, file, content) in fields {
        let file = file.map_or(String::new(), |file| format!("; filename=\"{file}\""));
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    request(address, "POST", path, &[("Content-Type", &kind)], body)
}
