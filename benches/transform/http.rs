//! The records of the benchmark, sent through the server as a job over HTTP sends them: connections that send, wait for
//! the response, and send again.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::case::{Case, Inputs};
use crate::data::Made;

/// The numbers of connections that are tried.
pub const CONNECTIONS: [usize; 5] = [1, 2, 4, 16, 64];

/// How long each is tried, at most.
const TIME: Duration = Duration::from_secs(10);

pub struct Best {
    pub connections: usize,
    pub records_per_second: f64,
}

/// The most bytes of all requests, about.
const MOST_BYTES: usize = 200 << 20;

struct Request {
    body: Vec<u8>,
    records: usize,
}

struct Server {
    child: Child,
    url: String,
}

/// The best rate of the server.
pub fn best(case: &Case, inputs: &Made) -> Best {
    let server = Server::start(case);
    let requests = requests(case, inputs);
    let content_type = match case.inputs {
        Inputs::Csv { .. } => "text/csv",
        Inputs::Jpeg { .. } => "image/jpeg",
    };
    let tried = CONNECTIONS.map(|connections| {
        let records_per_second = rate(&server.url, content_type, &requests, connections);
        eprintln!("{}: {connections} connections: {records_per_second:.0} records/s", case.name);
        Best { connections, records_per_second }
    });
    let rate = |best: &Best| best.records_per_second;
    tried.into_iter().max_by(|a, b| rate(a).total_cmp(&rate(b))).expect("several")
}

fn rate(url: &str, content_type: &str, requests: &[Request], connections: usize) -> f64 {
    let (next, records) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let agent = ureq::Agent::new_with_defaults();
                while start.elapsed() < TIME
                    && let Some(request) = requests.get(next.fetch_add(1, Relaxed))
                {
                    send(&agent, url, content_type, &request.body);
                    records.fetch_add(request.records, Relaxed);
                }
            });
        }
    });
    records.into_inner() as f64 / start.elapsed().as_secs_f64()
}

/// Sends a request until the server has room for it.
fn send(agent: &ureq::Agent, url: &str, content_type: &str, body: &[u8]) {
    loop {
        let sent = agent.post(url).content_type(content_type).send(body);
        match sent {
            Ok(mut response) => {
                response.body_mut().read_to_vec().expect("a response");
                return;
            }
            Err(ureq::Error::StatusCode(503)) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("the request failed: {error}"),
        }
    }
}

fn requests(case: &Case, inputs: &Made) -> Vec<Request> {
    let mut files: Vec<_> =
        fs::read_dir(&inputs.all).expect("inputs").map(|f| f.expect("a file").path()).collect();
    files.sort();
    let mut requests: Vec<Request> = Vec::new();
    let mut bytes = 0;
    for file in files {
        // They are in memory, and enough for the time.
        if bytes > MOST_BYTES {
            break;
        }
        let content = fs::read(file).expect("a file");
        bytes += content.len();
        if let Inputs::Jpeg { .. } = case.inputs {
            requests.push(Request { body: content, records: 1 });
            continue;
        }
        let lines: Vec<&[u8]> = content.split_inclusive(|byte| *byte == b'\n').collect();
        let of = |lines: &[&[u8]]| Request { body: lines.concat(), records: lines.len() };
        requests.extend(lines.chunks(case.request_rows).map(of));
    }
    requests
}

impl Server {
    fn start(case: &Case) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorserve"));
        command.args(["serve", "--http-port", "0", "--grpc-port", "off", "--log-level", "error"]);
        let mut child = command.arg(&case.model).stdout(Stdio::piped()).spawn().expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut url = None;
        for line in lines.by_ref() {
            let line = line.expect("a line");
            if let Some(address) = line.strip_prefix("listening on http://") {
                url = Some(format!("http://{address}/invocations"));
            }
            if line.starts_with("ready after") {
                break;
            }
        }
        // Further output must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        Server { child, url: url.expect("it prints its address") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
