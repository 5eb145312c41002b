//! The lease of an output: two runs of one shard would do everything twice.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use tensorserve_store::objects::Place;
use tensorserve_tensor::error::{Code, Error, Result};

/// How long a lease holds after it was renewed.
const TERM: Duration = Duration::from_secs(60);

/// How often it is renewed.
const RENEWAL: Duration = Duration::from_secs(15);

/// The text of a lease.
#[derive(Serialize, Deserialize, PartialEq, Eq, Clone, Debug)]
struct Holder {
    /// The machine and the process.
    process: String,
    /// When it was renewed, in seconds since 1970.
    renewed: u64,
}

/// A lease, which is renewed until it is dropped, and then given back.
pub struct Lease {
    output: Place,
    key: String,
    ended: Arc<(Mutex<bool>, Condvar)>,
    is_lost: Arc<AtomicBool>,
    renewal: Option<JoinHandle<()>>,
}

impl Lease {
    /// Takes the lease `name` of an output, or takes over one whose process has ended.
    ///
    /// # Errors
    /// [`Code::Aborted`] while another process holds it.
    pub fn take(output: &Place, name: &str) -> Result<Self> {
        let key = format!("_transform/leases/{name}.json");
        let own = Holder { process: this_process(), renewed: now() };
        if !output.put_new(&key, &text(&own))? {
            let held = output.get(&key, 4096)?.and_then(|text| serde_json::from_slice(&text).ok());
            if let Some(held) = held.filter(|held: &Holder| is_held(held)) {
                return Err(Error::new(
                    Code::Aborted,
                    format!(
                        "process {} is writing to {} now: wait for its end, or choose another \
                         --output. A run that was killed on another machine holds its place for {} s",
                        held.process,
                        output.display(),
                        TERM.as_secs()
                    ),
                ));
            }
            output.put(&key, &text(&own))?;
        }
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let is_lost = Arc::new(AtomicBool::new(false));
        let renew = {
            let (output, key) = (output.clone(), key.clone());
            let (ended, is_lost) = (Arc::clone(&ended), Arc::clone(&is_lost));
            move || renew(&output, &key, &ended, &is_lost)
        };
        let renewal = thread::Builder::new()
            .name("lease".to_owned())
            .spawn(renew)
            .map_err(|e| Error::internal("a thread could not be started").with_source(e))?;
        Ok(Lease { output: output.clone(), key, ended, is_lost, renewal: Some(renewal) })
    }

    /// Whether another process has taken it over.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.ended.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.1.notify_all();
        if let Some(renewal) = self.renewal.take() {
            let _ = renewal.join();
        }
        if !self.is_lost()
            && let Err(error) = self.output.delete(&self.key)
        {
            log::warn!("{}: {error}", self.key);
        }
    }
}

fn renew(output: &Place, key: &str, ended: &(Mutex<bool>, Condvar), is_lost: &AtomicBool) {
    let own = this_process();
    loop {
        let guard = ended.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (guard, _) = ended
            .1
            .wait_timeout_while(guard, RENEWAL, |ended| !*ended)
            .unwrap_or_else(PoisonError::into_inner);
        if *guard {
            return;
        }
        drop(guard);
        let held = output.get(key, 4096).ok().flatten();
        let held: Option<Holder> = held.and_then(|text| serde_json::from_slice(&text).ok());
        if held.is_some_and(|held| held.process != own) {
            is_lost.store(true, Relaxed);
            return;
        }
        if let Err(error) = output.put(key, &text(&Holder { process: own.clone(), renewed: now() }))
        {
            log::warn!("{key}: {error}");
        }
    }
}

/// Whether the process still holds it: it has renewed it, and lives if it is one of this machine.
fn is_held(held: &Holder) -> bool {
    let machine = machine();
    if let Some(pid) = held.process.strip_prefix(&format!("{machine}/")) {
        let parts: Vec<&str> = pid.split('/').collect();
        return match parts.as_slice() {
            [pid, start] => start_of(pid).is_some_and(|now| now == *start),
            _ => false,
        };
    }
    now().saturating_sub(held.renewed) < TERM.as_secs()
}

fn this_process() -> String {
    let pid = std::process::id();
    let start = start_of(&pid.to_string()).unwrap_or_default();
    format!("{}/{pid}/{start}", machine())
}

/// When a process of this machine has started, in ticks since the boot; `None` if it has ended.
fn start_of(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may contain anything, also brackets.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19).map(str::to_owned)
}

/// The boot of the machine, and the namespace of its processes: both decide what a process's number says.
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let space: String = space.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    format!("{}-{space}", boot.trim())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn text(holder: &Holder) -> Vec<u8> {
    serde_json::to_vec(holder).unwrap_or_default()
}
