//! New versions under load: no request fails, each response comes from exactly one version, and the
//! process does not accumulate memory, threads or open files.
//!
//! `TENSORSERVE_TEST_RELOADS` sets the number of reloads.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::support::client::{Client, post};
use crate::support::data;
use crate::support::process::Process;

const PATH: &str = "/v1/models/m:predict";
const BODY: &[u8] = br#"{"instances":[[[1,2,3],[4,5,6],[7,8,9]]]}"#;
const CONNECTIONS: usize = 8;
/// After this many reloads, the resources are measured for the comparison at the end.
const SETTLED: u64 = 100;

/// Writes a SavedModel that computes x / 2 + `version`: half_plus_two with another constant.
fn write_version(folder: &Path, version: u64) {
    let model = data("tensorflow-serving/upstream/batching/matrix_half_plus_two/1/saved_model.pb");
    let mut bytes = fs::read(model).expect("model");
    let two = 2f32.to_le_bytes();
    let found: Vec<usize> = (0..bytes.len() - 3).filter(|&at| bytes[at..at + 4] == two).collect();
    let [at] = found.as_slice() else {
        panic!("the constant occurs {} times", found.len());
    };
    bytes[*at..at + 4].copy_from_slice(&(version as f32).to_le_bytes());
    fs::create_dir(folder).expect("directory");
    fs::write(folder.join("saved_model.pb"), bytes).expect("file");
}

/// The version that a response comes from; `None` if it mixes versions.
fn version_of(answer: &serde_json::Value) -> Option<u64> {
    let rows = answer["predictions"][0].as_array()?;
    let values = rows.iter().flat_map(|row| row.as_array().into_iter().flatten());
    let mut version = None;
    let mut count = 0;
    for (i, value) in values.enumerate() {
        let found = value.as_f64()? - (i as f64 + 1.0) / 2.0;
        if found < 0.0 || found.fract() != 0.0 || version.is_some_and(|v| v != found) {
            return None;
        }
        version = Some(found);
        count += 1;
    }
    version.filter(|_| count == 9).map(|version| version as u64)
}

/// The versions that may answer, and whether the clients stop.
struct Race {
    oldest: AtomicU64,
    newest: AtomicU64,
    over: AtomicBool,
    requests: AtomicU64,
}

/// Sends requests until the race is over; panics at the first wrong response.
fn ask(address: std::net::SocketAddr, race: &Race) {
    let mut client = Client::connect(address).expect("connects");
    while !race.over.load(SeqCst) {
        let oldest = race.oldest.load(SeqCst);
        let answer = client.request("POST", PATH, &[], BODY).expect("an answer");
        let newest = race.newest.load(SeqCst);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let version = version_of(&answer.json());
        let version = version.unwrap_or_else(|| panic!("no single version: {}", answer.text()));
        assert!((oldest..=newest).contains(&version), "{version}, not {oldest} to {newest}");
        race.requests.fetch_add(1, SeqCst);
        // A constant load that leaves CPU time for the server, whose loads have a low priority.
        thread::sleep(Duration::from_millis(20));
    }
}

fn served_version(process: &Process) -> Option<u64> {
    version_of(&post(process.address, PATH, BODY).json())
}

#[derive(Debug)]
struct Holds {
    resident: u64,
    threads: u64,
    files: usize,
}

impl Holds {
    fn of(process: &Process) -> Self {
        let (resident, threads) = (process.resident(), process.threads());
        Holds { resident, threads, files: process.open_files() }
    }

    /// True if this is not more than `before`; memory may differ by 5 %.
    fn is_within(&self, before: &Self) -> bool {
        self.resident <= before.resident + before.resident / 20
            && self.threads <= before.threads
            && self.files <= before.files
    }
}

/// Adds one version after another, and removes the previous version once the new one serves.
/// Returns the process's resources after [`SETTLED`] reloads and at the end.
fn reload(process: &Process, folder: &Path, staged: &[PathBuf], race: &Race) -> (Holds, Holds) {
    let mut settled = None;
    for (path, version) in staged.iter().zip(2u64..) {
        race.newest.store(version, SeqCst);
        fs::rename(path, folder.join(version.to_string())).expect("renamed");
        let start = Instant::now();
        while served_version(process) != Some(version) {
            assert!(!race.over.load(SeqCst), "a client has failed");
            assert!(start.elapsed() < Duration::from_secs(300), "version {version} never served");
            thread::sleep(Duration::from_millis(5));
        }
        // A request in flight may still be answered by the previous version.
        if version > 2 {
            race.oldest.store(version - 1, SeqCst);
            fs::remove_dir_all(folder.join((version - 1).to_string())).expect("removed");
        }
        if version == SETTLED {
            // Old versions are unloaded, and their memory is freed.
            thread::sleep(Duration::from_millis(1500));
            settled = Some(Holds::of(process));
        }
    }
    let settled = settled.expect("more than SETTLED versions");
    let end = released(process, &settled);
    (settled, end)
}

/// The process's resources once they are not more than `before`, or after 20 seconds: a folder that is
/// being scanned is an open file for a moment, and threads that ran slow requests end when idle.
fn released(process: &Process, before: &Holds) -> Holds {
    let start = Instant::now();
    loop {
        thread::sleep(Duration::from_millis(500));
        let now = Holds::of(process);
        if now.is_within(before) || start.elapsed() > Duration::from_secs(20) {
            return now;
        }
    }
}

#[test]
fn reloads_under_load_lose_nothing_and_keep_nothing() {
    let reloads = std::env::var("TENSORSERVE_TEST_RELOADS").ok();
    let reloads: u64 = reloads.map_or(1000, |n| n.parse().expect("a number"));
    // A probe takes much longer than the load of such a small model.
    reloads_under_load(reloads, &["--load-probe", "false"]);
}

#[test]
fn reloads_with_probes_lose_nothing_and_keep_nothing() {
    reloads_under_load(SETTLED + 20, &[]);
}

fn reloads_under_load(reloads: u64, options: &[&str]) {
    assert!(reloads > SETTLED, "memory is compared with reload {SETTLED}");
    let root = tempfile::tempdir().expect("temporary directory");
    let folder = root.path().join("m");
    fs::create_dir(&folder).expect("directory");
    write_version(&folder.join("1"), 1);
    let staged: Vec<PathBuf> = (2..=reloads + 1)
        .map(|version| {
            let path = root.path().join(format!("staged-{version}"));
            write_version(&path, version);
            path
        })
        .collect();
    let process = Process::serve(&folder, &[&["--poll-interval", "10ms"], options].concat());
    // Files older than a few seconds do not count as a copy in progress, and load at once.
    let written = SystemTime::now();
    while written.elapsed().is_ok_and(|age| age < Duration::from_millis(3100)) {
        thread::sleep(Duration::from_millis(50));
    }
    let race = Race {
        oldest: AtomicU64::new(1),
        newest: AtomicU64::new(1),
        over: AtomicBool::new(false),
        requests: AtomicU64::new(0),
    };
    let start = Instant::now();
    let (settled, end) = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CONNECTIONS).map(|_| scope.spawn(|| ask(process.address, &race))).collect();
        let outcome = reload(&process, &folder, &staged, &race);
        race.over.store(true, SeqCst);
        clients.into_iter().for_each(|client| client.join().expect("no request failed"));
        outcome
    });
    let requests = race.requests.load(SeqCst);
    println!(
        "{reloads} reloads in {:.1} s, {requests} requests: {settled:?}, at the end {end:?}",
        start.elapsed().as_secs_f64()
    );
    assert!(requests > reloads, "only {requests} requests");
    assert!(end.is_within(&settled), "{end:?} at the end, {settled:?} before");
}
