//! A server that answers when and what the test says.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// What happens to a request.
pub(crate) struct KnownReply {
    /// The response is written at this time or later.
    pub(crate) at: Instant,
    pub(crate) bytes: Vec<u8>,
    pub(crate) closes: bool,
}

impl KnownReply {
    pub(crate) fn ok(at: Instant) -> Self {
        KnownReply::with(at, "200 OK", "{}")
    }

    pub(crate) fn with(at: Instant, status: &str, body: &str) -> Self {
        let length = body.len();
        let text = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
        KnownReply { at, bytes: text.into_bytes(), closes: false }
    }
}

pub(crate) struct KnownServer {
    pub(crate) address: SocketAddr,
    /// How long each response took, in the server.
    pub(crate) took: Arc<Mutex<Vec<Duration>>>,
}

/// Decides about request `number`, which has arrived at a time.
pub(crate) trait Answering: Fn(u64, Instant) -> KnownReply + Send + Sync + 'static {}

impl<T: Fn(u64, Instant) -> KnownReply + Send + Sync + 'static> Answering for T {}

impl KnownServer {
    pub(crate) fn start(answer: impl Answering) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("binds");
        let address = listener.local_addr().expect("an address");
        let took = Arc::new(Mutex::new(Vec::new()));
        let (answer, number, all) =
            (Arc::new(answer), Arc::new(AtomicU64::new(0)), Arc::clone(&took));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, number, took) =
                    (Arc::clone(&answer), Arc::clone(&number), Arc::clone(&all));
                let serve = move || serve(stream, &*answer, &number, &took);
                thread::Builder::new().stack_size(128 << 10).spawn(serve).expect("a thread");
            }
        });
        KnownServer { address, took }
    }

    /// The value that the share `quantile` of the responses did not exceed.
    pub(crate) fn quantile(&self, quantile: f64) -> Duration {
        let mut all = self.took.lock().expect("not poisoned").clone();
        all.sort();
        let rank = ((quantile * all.len() as f64).ceil() as usize).max(1);
        all[rank - 1]
    }
}

fn serve(
    mut stream: TcpStream,
    answer: &dyn Fn(u64, Instant) -> KnownReply,
    number: &AtomicU64,
    took: &Mutex<Vec<Duration>>,
) {
    stream.set_nodelay(true).expect("nodelay");
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let length = loop {
            let head = bytes.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(head) = head {
                let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
                let line = text.lines().find_map(|line| line.strip_prefix("content-length:"));
                let body: usize = line.map_or(0, |value| value.trim().parse().expect("a number"));
                if bytes.len() >= head + 4 + body {
                    break head + 4 + body;
                }
            }
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            }
        };
        bytes.drain(..length);
        let arrived = Instant::now();
        let reply = answer(number.fetch_add(1, Relaxed), arrived);
        thread::sleep(reply.at.saturating_duration_since(Instant::now()));
        took.lock().expect("not poisoned").push(arrived.elapsed());
        if stream.write_all(&reply.bytes).is_err() || reply.closes {
            return;
        }
    }
}
