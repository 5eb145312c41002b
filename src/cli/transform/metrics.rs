//! The metrics of a running job, over HTTP.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tensorserve_core::engine::Engine;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_transform::progress::Progress;

/// How long a client may take for its request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves the metrics of a job and of its model at `/metrics` of `address` until the process ends.
///
/// # Errors
/// If the address cannot be bound.
pub(super) fn serve(address: &str, engine: Engine, progress: Arc<Progress>) -> Result<()> {
    // As in `:9090`, which is every address elsewhere: here the loopback is the default.
    let address = match address.strip_prefix(':') {
        Some(port) => format!("127.0.0.1:{port}"),
        None => address.to_owned(),
    };
    let listener = TcpListener::bind(&address)
        .map_err(|e| Error::invalid(format!("--metrics-addr {address}: {e}")))?;
    let run = move || {
        // One at a time: whoever scrapes a job comes every few seconds.
        for stream in listener.incoming().flatten() {
            let _ = answer(stream, &engine, &progress);
        }
    };
    let started = thread::Builder::new().name("metrics".to_owned()).spawn(run);
    let failed = |e| Error::internal("a thread could not be started").with_source(e);
    started.map(drop).map_err(failed)
}

fn answer(mut stream: TcpStream, engine: &Engine, progress: &Progress) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = [0; 4096];
    let count = stream.read(&mut head)?;
    let is_known = head.get(..count).is_some_and(|head| {
        head.starts_with(b"GET /metrics ") || head.starts_with(b"GET /metrics?")
    });
    if !is_known {
        return stream.write_all(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
    }
    let mut text = of_job(progress);
    text.push_str(&engine.metrics_text().unwrap_or_default());
    let length = text.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())
}

/// The counters of the job in Prometheus' format.
fn of_job(progress: &Progress) -> String {
    let mut text = String::new();
    let counters: [(&str, &AtomicU64, &str); 6] = [
        ("objects", &progress.objects, "Objects that are done"),
        ("failed_objects", &progress.failed, "Objects that have failed"),
        ("input_bytes", &progress.bytes, "Bytes of input that are done"),
        ("output_bytes", &progress.out_bytes, "Bytes of output that are published"),
        ("records", &progress.records, "Records that have been run"),
        ("bad_records", &progress.bad, "Records that have no output"),
    ];
    for (name, counter, help) in counters {
        let name = format!("tensorserve_transform_{name}_total");
        let value = counter.load(Relaxed);
        let _ = write!(text, "# HELP {name} {help}.\n# TYPE {name} counter\n{name} {value}\n");
    }
    for (name, value, help) in [
        ("planned_objects", progress.total_objects, "Objects that this process has to do"),
        ("planned_input_bytes", progress.total_bytes, "Bytes of input that this process has to do"),
    ] {
        let name = format!("tensorserve_transform_{name}");
        let _ = write!(text, "# HELP {name} {help}.\n# TYPE {name} gauge\n{name} {value}\n");
    }
    text
}
