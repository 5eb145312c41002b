//! Shared helpers of the integration tests.

pub mod classifier;
pub mod client;
pub mod events;
pub mod fake;
pub mod grpc;
pub mod model_server;
pub mod place;
pub mod process;
pub mod saved_model;
pub mod server;
#[cfg(feature = "stores")]
pub mod store;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A path in the project.
pub fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A path in the test data.
pub fn data(path: &str) -> PathBuf {
    project("tests/data").join(path)
}

/// The directory of the Python package `package` (or in one) among the libraries that `make lib` fetches.
pub fn fetched(package: &str) -> PathBuf {
    let lib = std::env::var_os("TENSORSERVE_LIB_DIR").expect("cargo sets it");
    let folders = std::fs::read_dir(lib).expect("a directory").flatten();
    let mut found = folders.map(|folder| folder.path().join(package));
    found.find(|folder| folder.is_dir()).unwrap_or_else(|| panic!("{package}: run `make lib`"))
}

/// The first of `count` consecutive ports that are free, and that the system does not give to other
/// sockets meanwhile: they are below those that it chooses itself.
pub fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(11_000);
    loop {
        let low = NEXT.fetch_add(count, Relaxed);
        if (low..low + count).all(|port| TcpListener::bind(("0.0.0.0", port)).is_ok()) {
            return low;
        }
    }
}

/// Runs a future on a runtime that has timers but no I/O.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(future)
}

/// Between two requests of a client that asks as long as something else goes on: without it, clients would keep all
/// cores from what they wait for.
pub fn pause_between_requests() {
    thread::sleep(Duration::from_millis(2));
}

/// Waits for an event, for five minutes at most.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(300), "not reached: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Creates a symbolic link to `target` at `link`, with its parent directories.
pub fn link(target: &Path, link: &Path) {
    assert!(target.exists(), "{}", target.display());
    fs::create_dir_all(link.parent().expect("a directory")).expect("directories");
    symlink(target, link).expect("a link");
}

/// Copies a directory, for tests that cannot use a symbolic link.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("copied");
        }
    }
}

/// Whether two JSON values are equal, independent of the order of members. With a `tolerance`,
/// numbers may differ by this fraction of `b`, or by `tolerance` itself if |`b`| is below 1.
pub fn alike(a: &Value, b: &Value, tolerance: Option<f64>) -> bool {
    match (a, b, tolerance) {
        (Value::Number(a), Value::Number(b), Some(tolerance)) => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            (a - b).abs() <= tolerance * b.abs().max(1.0)
        }
        (Value::Array(a), Value::Array(b), _) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b, tolerance))
        }
        (Value::Object(a), Value::Object(b), _) => {
            let same = |(k, v): (&String, &Value)| b.get(k).is_some_and(|w| alike(v, w, tolerance));
            a.len() == b.len() && a.iter().all(same)
        }
        _ => a == b,
    }
}
