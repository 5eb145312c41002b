//! Python processes under supervision, and calls to them.
//!
//! [`Workers`] has one thread, on which a keeper for each process starts it, watches it, empties
//! its log and starts the next one when it has ended (`keeper`). Processes of one program form a
//! pool that hands them out, one call at a time (`pool`). A call is written to the process's
//! socket and its answer awaited on the caller's own thread, so that no other one is woken for it
//! (`process`, `wire`). What programs there are is in [`handlers`].
//!
//! This module must not know of models, of HTTP or of any protocol.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

pub use self::config::WorkersConfig;
use self::pool::{Call, Shared};
use self::wire::Frame;
use tensorserve_tensor::error::{Error, Result};

mod config;
mod environment;
pub mod handlers;
mod keeper;
mod log;
mod pool;
mod process;
mod wire;

use self::handlers::Handlers;

/// Why a call has no good answer.
#[derive(Debug)]
pub struct Failure {
    /// The HTTP status that says so.
    pub status: u16,
    /// What happened. A message only: whatever concerns the log is there already.
    pub error: Error,
    /// A title, if the failure is an exception that has one.
    pub title: Option<String>,
}

impl Failure {
    /// A failure with the status that its kind has.
    #[must_use]
    pub fn of(error: Error) -> Self {
        Failure { status: error.code().http(), error, title: None }
    }
}

/// All worker processes of a server. Cheap to clone.
#[derive(Clone)]
pub struct Workers(Arc<Inner>);

struct Inner {
    config: WorkersConfig,
    keepers: Mutex<Keepers>,
    /// Handlers by the folder of their code, each with a lock for whoever opens it.
    handlers: Mutex<HashMap<PathBuf, Arc<Mutex<Weak<Handlers>>>>>,
    /// Keepers at work.
    kept: Arc<AtomicU64>,
}

/// The thread that keepers run on.
#[derive(Default)]
struct Keepers {
    runtime: Option<(Handle, oneshot::Sender<()>)>,
    pools: Vec<Weak<Shared>>,
    stopped: bool,
}

/// A program for worker processes.
pub(crate) struct Program {
    /// For logs and the list of processes.
    pub(crate) name: String,
    /// The interpreter.
    pub(crate) python: PathBuf,
    /// What it runs.
    pub(crate) text: String,
}

impl Program {
    /// A program of modules (name and text), the first of which takes the calls. `settings` are
    /// handed to it.
    fn new(
        name: String,
        python: PathBuf,
        modules: &[(&str, &str)],
        settings: &[(&str, &str)],
    ) -> Self {
        let worker = ("tensorserve_worker", include_str!("../../../python/worker.py"));
        let object = |pairs: &mut dyn Iterator<Item = (&str, &str)>| {
            let pairs = pairs.map(|(key, value)| (key.to_owned(), Value::from(value)));
            pairs.collect::<serde_json::Map<_, _>>()
        };
        let own = [("name", name.as_str()), ("module", modules.first().map_or("", |m| m.0))];
        let all = object(&mut [worker].into_iter().chain(modules.iter().copied()));
        let mut settings = object(&mut own.into_iter().chain(settings.iter().copied()));
        settings.insert("parent".to_owned(), std::process::id().into());
        // JSON of strings and numbers is Python, too.
        let (all, settings) = (Value::from(all), Value::from(settings));
        let boot = include_str!("../../../python/boot.py");
        let text = format!("{boot}boot({all}, {settings})\n");
        Program { name, python, text }
    }
}

/// The processes of one program. They end when it is dropped.
struct Pool {
    shared: Arc<Shared>,
    /// What the program says about itself.
    about: Vec<Option<String>>,
}

impl Pool {
    async fn call(
        &self,
        wanted: Option<u64>,
        call: &Call<'_>,
        until: Instant,
    ) -> Result<(Frame, u64), Failure> {
        self.shared.call(wanted, call, until).await
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Workers {
    /// None yet.
    #[must_use]
    pub fn new(config: WorkersConfig) -> Self {
        Workers(Arc::new(Inner {
            config,
            keepers: Mutex::default(),
            handlers: Mutex::default(),
            kept: Arc::default(),
        }))
    }

    /// The handlers in folder `code`, ready to be called: those that are open, or opened now.
    /// Blocks for as long as that takes.
    ///
    /// # Errors
    /// With what Python or pip said, if the script can not be imported, has no handlers, or what
    /// it requires can not be installed.
    pub fn open(&self, code: &Path) -> Result<Arc<Handlers>> {
        let place = Arc::clone(lock(&self.0.handlers).entry(code.to_owned()).or_default());
        let mut place = lock(&place);
        if let Some(open) = place.upgrade() {
            return Ok(open);
        }
        let opened = Arc::new(Handlers::open(self, code)?);
        *place = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// The handlers in folder `code`, if some model has them open.
    #[must_use]
    pub fn opened(&self, code: &Path) -> Option<Arc<Handlers>> {
        let place = Arc::clone(lock(&self.0.handlers).get(code)?);
        // Locked only while it is being opened.
        let place = place.try_lock().ok()?;
        place.upgrade()
    }

    fn config(&self) -> &WorkersConfig {
        &self.0.config
    }

    /// Starts the processes of a program, and waits until all are ready.
    fn start(&self, program: Program) -> Result<Pool> {
        let keepers = self.keepers()?;
        let WorkersConfig { count, timeout, memory_limit, .. } = self.0.config;
        let shared = Arc::new(Shared::new(program, timeout, memory_limit, keepers.clone()));
        self.note(&shared)?;
        // Ends what has been started if the rest fails.
        let mut pool = Pool { shared: Arc::clone(&shared), about: Vec::new() };
        let (report, reports) = std::sync::mpsc::channel();
        for place in 1..=count {
            let kept = Kept::new(&self.0.kept);
            let keep = keeper::keep(Arc::clone(&shared), place, report.clone());
            keepers.spawn(async move {
                keep.await;
                drop(kept);
            });
        }
        drop(report);
        for _ in 0..count {
            let ended = || Error::unavailable("the server is stopping");
            pool.about = reports.recv().map_err(|_| ended())??;
        }
        Ok(pool)
    }

    fn note(&self, shared: &Arc<Shared>) -> Result<()> {
        let mut keepers = lock(&self.0.keepers);
        if keepers.stopped {
            return Err(Error::unavailable("the server is stopping"));
        }
        keepers.pools.retain(|pool| pool.strong_count() > 0);
        keepers.pools.push(Arc::downgrade(shared));
        Ok(())
    }

    /// The thread of the keepers, started with the first pool.
    fn keepers(&self) -> Result<Handle> {
        let mut keepers = lock(&self.0.keepers);
        if let Some((handle, _)) = &keepers.runtime {
            return Ok(handle.clone());
        }
        let failed = |e: std::io::Error| {
            Error::unavailable(format!("worker processes can not be kept: {e}")).with_source(e)
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        thread::Builder::new()
            .name("workers".to_owned())
            .spawn(move || runtime.block_on(ended))
            .map_err(failed)?;
        keepers.runtime = Some((handle.clone(), end));
        Ok(handle)
    }

    /// Ends all processes: those without a call at once, the others within `time`. Blocks.
    pub fn stop(&self, time: Duration) {
        let pools: Vec<Arc<Shared>> = {
            let mut keepers = lock(&self.0.keepers);
            keepers.stopped = true;
            keepers.pools.iter().filter_map(Weak::upgrade).collect()
        };
        pools.iter().for_each(|pool| pool.stop());
        self.wait(time);
        pools.iter().for_each(|pool| pool.kill());
        self.wait(Duration::from_secs(2));
    }

    fn wait(&self, time: Duration) {
        let end = Instant::now() + time;
        while self.0.kept.load(Relaxed) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Counts a keeper for as long as it is at work.
struct Kept(Arc<AtomicU64>);

impl Kept {
    fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Relaxed);
        Kept(Arc::clone(count))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
