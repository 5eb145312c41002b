//! Supervised Python processes, and calls to them.
//!
//! [`Workers`] has one thread, on which a keeper for each process starts it, supervises it, forwards
//! its output, and starts the next one when it has ended (`keeper`, `process`). Each process serves
//! calls on several connections, each with a thread of its own. The processes of one program form a pool
//! that leases a connection for one call at a time (`pool`). A call is written to the connection's socket and its
//! reply awaited on the caller's own thread, so that no other thread is woken (`connection`, `wire`). The
//! programs are in [`handlers`], and those of other crates run with [`program`].
//!
//! Nothing here depends on models, HTTP or protocols.
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
use self::pool::{WorkerCall, WorkerLimits, WorkerPool};
use self::wire::WireFrame;
use tensorserve_tensor::error::{Code, Error, Result};

mod blocking;
mod config;
mod connection;
mod environment;
pub mod handlers;
mod keeper;
mod log;
mod pool;
mod process;
pub mod program;
mod wire;

use self::handlers::Handlers;

/// The failure of a handler call.
#[derive(Debug)]
pub struct HandlerError {
    /// The HTTP status of the response.
    pub status: u16,
    /// The message for the client. Everything for the log has been logged.
    pub error: Error,
    /// The title of the exception, if it has one.
    pub title: Option<String>,
}

impl HandlerError {
    /// A failure with the HTTP status of the error's code.
    #[must_use]
    pub fn of(error: Error) -> Self {
        HandlerError { status: error.http_status(), error, title: None }
    }
}

/// How long a stop waits for processes that were killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval at which a stop checks whether processes have ended.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// All worker processes of a server. Cheap to clone.
#[derive(Clone)]
pub struct Workers(Arc<WorkersInner>);

struct WorkersInner {
    config: WorkersConfig,
    keeper_thread: Mutex<KeeperThread>,
    /// Handlers by the directory of their code. Each has a lock, which is held while it is opened.
    handlers: Mutex<HashMap<PathBuf, Arc<Mutex<Weak<Handlers>>>>>,
    /// The number of tasks that keep or supervise processes.
    active_keepers: Arc<AtomicU64>,
}

/// The thread on which keepers run.
#[derive(Default)]
struct KeeperThread {
    runtime: Option<(Handle, oneshot::Sender<()>)>,
    pools: Vec<Weak<WorkerPool>>,
    stopped: bool,
}

/// Begins a Python program that is given with `-c`: removes the working directory from the path of
/// modules before any import, because files there are not part of the program. Python 3.11 has an
/// option for this.
macro_rules! leave_directory {
    () => {
        "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]\n"
    };
}
pub(crate) use leave_directory;

/// What a program runs, and its settings, in messages.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    /// `inference.py`.
    pub(crate) name: &'static str,
    /// The setting of the interpreter.
    pub(crate) interpreter: &'static str,
    /// The setting of the memory limit of a process.
    pub(crate) memory_limit: &'static str,
    /// How more calls are served at a time.
    pub(crate) more_calls: &'static str,
    /// The code of the error of a call whose process has ended.
    pub(crate) ended: Code,
    /// That of a call that took too long.
    pub(crate) timed_out: Code,
}

/// A program for worker processes.
pub(crate) struct WorkerProgram {
    pub(crate) subject: Subject,
    /// The name in logs and in the list of processes.
    pub(crate) name: String,
    /// The interpreter.
    pub(crate) python: PathBuf,
    /// The Python source.
    pub(crate) text: String,
    /// Environment variables, besides those of this process.
    pub(crate) variables: Vec<(String, String)>,
}

impl WorkerProgram {
    /// A program of modules (name and source), the first of which serves the calls and receives
    /// `settings`.
    fn new(
        subject: Subject,
        name: String,
        python: PathBuf,
        modules: &[(&str, &str)],
        settings: &[(&str, &str)],
    ) -> Self {
        // They are created in the order of their names.
        let worker = [
            ("tensorserve_waits", include_str!("../../../python/waits.py")),
            ("tensorserve_worker", include_str!("../../../python/worker.py")),
        ];
        let main_module = modules.first().map_or("", |(name, _)| name);
        let own_settings = [("name", name.as_str()), ("module", main_module)];
        let modules = json_object(worker.into_iter().chain(modules.iter().copied()));
        let mut settings = json_object(own_settings.into_iter().chain(settings.iter().copied()));
        settings.insert("parent".to_owned(), std::process::id().into());
        // JSON of strings and numbers is a Python expression, too.
        let (modules, settings) = (Value::from(modules), Value::from(settings));
        let boot = include_str!("../../../python/boot.py");
        let text = format!("{boot}boot({modules}, {settings})\n");
        WorkerProgram { subject, name, python, text, variables: Vec::new() }
    }
}

fn json_object<'a>(
    members: impl Iterator<Item = (&'a str, &'a str)>,
) -> serde_json::Map<String, Value> {
    members.map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
}

/// Owns the processes of one program, which end when this is dropped.
struct PoolOwner {
    pool: Arc<WorkerPool>,
    /// What the program reports about itself.
    about: Vec<Option<String>>,
}

impl PoolOwner {
    async fn call(
        &self,
        preferred: Option<u64>,
        call: &WorkerCall<'_>,
        deadline: Instant,
    ) -> Result<(WireFrame, u64), HandlerError> {
        self.pool.call(preferred, call, deadline).await
    }
}

impl Drop for PoolOwner {
    fn drop(&mut self) {
        self.pool.stop();
    }
}

impl Workers {
    /// A set of workers without processes.
    #[must_use]
    pub fn new(config: WorkersConfig) -> Self {
        Workers(Arc::new(WorkersInner {
            config,
            keeper_thread: Mutex::default(),
            handlers: Mutex::default(),
            active_keepers: Arc::default(),
        }))
    }

    /// The handlers in the directory `code`, which are opened if they are not open yet. Blocks until
    /// they are ready to be called.
    ///
    /// # Errors
    /// With the output of Python or pip, if the script cannot be imported, has no handlers, or its
    /// requirements cannot be installed.
    pub fn open(&self, code: &Path) -> Result<Arc<Handlers>> {
        let slot = Arc::clone(lock(&self.0.handlers).entry(code.to_owned()).or_default());
        let mut slot = lock(&slot);
        if let Some(handlers) = slot.upgrade() {
            return Ok(handlers);
        }
        let handlers = Arc::new(Handlers::open(self, code)?);
        *slot = Arc::downgrade(&handlers);
        Ok(handlers)
    }

    /// The handlers in the directory `code`, if they are open.
    #[must_use]
    pub fn opened(&self, code: &Path) -> Option<Arc<Handlers>> {
        let slot = Arc::clone(lock(&self.0.handlers).get(code)?);
        // The slot is locked only while the handlers are being opened.
        let slot = slot.try_lock().ok()?;
        slot.upgrade()
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &WorkersConfig {
        &self.0.config
    }

    /// Starts `count` processes of a program, and waits until all are ready.
    fn start(
        &self,
        program: WorkerProgram,
        count: usize,
        limits: WorkerLimits,
    ) -> Result<PoolOwner> {
        let keepers = self.keeper_runtime()?;
        let active = Arc::clone(&self.0.active_keepers);
        let pool = Arc::new(WorkerPool::new(program, limits, keepers.clone(), active));
        self.register(&pool)?;
        // Dropping the owner ends the processes if one of them fails.
        let mut owner = PoolOwner { pool: Arc::clone(&pool), about: Vec::new() };
        let (report, reports) = std::sync::mpsc::channel();
        for slot in 1..=count {
            let active = ActiveKeeper::new(&self.0.active_keepers);
            let keep = keeper::keep(Arc::clone(&pool), slot, report.clone());
            keepers.spawn(async move {
                keep.await;
                drop(active);
            });
        }
        drop(report);
        for _ in 0..count {
            owner.about = reports.recv().map_err(|_| stopping())??;
        }
        Ok(owner)
    }

    /// Adds a pool to those that [`Workers::stop`] stops.
    fn register(&self, pool: &Arc<WorkerPool>) -> Result<()> {
        let mut keepers = lock(&self.0.keeper_thread);
        if keepers.stopped {
            return Err(stopping());
        }
        keepers.pools.retain(|pool| pool.strong_count() > 0);
        keepers.pools.push(Arc::downgrade(pool));
        Ok(())
    }

    /// The runtime of the keepers, whose thread is started with the first pool.
    fn keeper_runtime(&self) -> Result<Handle> {
        let mut keepers = lock(&self.0.keeper_thread);
        if let Some((handle, _)) = &keepers.runtime {
            return Ok(handle.clone());
        }
        let failed = |e: std::io::Error| {
            Error::unavailable(format!("the thread of worker processes cannot be started: {e}"))
                .with_source(e)
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

    /// Ends all processes: those without calls at once, the others within `timeout`. Blocks.
    pub fn stop(&self, timeout: Duration) {
        let pools: Vec<Arc<WorkerPool>> = {
            let mut keepers = lock(&self.0.keeper_thread);
            keepers.stopped = true;
            keepers.pools.iter().filter_map(Weak::upgrade).collect()
        };
        pools.iter().for_each(|pool| pool.stop());
        self.wait(timeout);
        pools.iter().for_each(|pool| pool.kill());
        self.wait(KILL_TIMEOUT);
    }

    /// Waits until all keepers have ended.
    fn wait(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while self.0.active_keepers.load(Relaxed) > 0 && Instant::now() < deadline {
            thread::sleep(STOP_CHECK_INTERVAL);
        }
    }
}

fn stopping() -> Error {
    Error::unavailable("the server is stopping")
}

/// Counts a task that keeps or supervises a process, for as long as it runs.
pub(crate) struct ActiveKeeper(Arc<AtomicU64>);

impl ActiveKeeper {
    fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Relaxed);
        ActiveKeeper(Arc::clone(count))
    }
}

impl Drop for ActiveKeeper {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
