//! A client for server-sent event streams.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// One connection to an event stream.
pub struct Events {
    stream: BufReader<TcpStream>,
    /// Received text that has not been parsed yet.
    text: String,
    pub head: String,
}

impl Events {
    pub fn listen(address: SocketAddr, path: &str) -> Self {
        Events::listen_as(address, path, "")
    }

    /// Like [`Events::listen`], with further header lines.
    pub fn listen_as(address: SocketAddr, path: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).expect("a head") > 0, "closed: {head}");
        }
        Events { stream, text: String::new(), head }
    }

    /// The name and data of the next event; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                if let (Some(name), Some(data)) = (field("event: "), field("data: ")) {
                    return Some((name.to_owned(), serde_json::from_str(data).expect("JSON")));
                }
                continue;
            }
            let chunk = self.chunk()?;
            self.text.push_str(&chunk);
        }
    }

    /// The next chunk of the body; `None` at its end.
    fn chunk(&mut self) -> Option<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).expect("chunk before the timeout") == 0 {
            panic!("the connection was closed in the middle of the stream");
        }
        let size = usize::from_str_radix(line.trim_end(), 16).expect("a size");
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).expect("a chunk");
        chunk.truncate(size);
        (size > 0).then(|| String::from_utf8(chunk).expect("text"))
    }

    /// The data of the next event with this name.
    pub fn next_named(&mut self, wanted: &str) -> Option<Value> {
        loop {
            let (name, data) = self.next()?;
            if name == wanted {
                return Some(data);
            }
        }
    }
}
