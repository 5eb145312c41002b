//! Processes that run a program of another crate, called from threads without a runtime.
//!
//! The first module of the program has two functions, as `python/handlers.py` has: `set_up(settings)`
//! returns functions by number and what the program reports about itself, a list of texts;
//! `describe(error)` returns the fields of a reply that is an exception. A function gets the fields and the
//! body of a call, and returns those of the reply.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::pool::{WorkerCall, WorkerLimits};
use super::wire::RAISED;
use super::{PoolOwner, Subject, WorkerProgram, Workers};
use tensorserve_tensor::error::{Code, Result};

/// A program and its processes.
#[derive(Clone, Debug)]
pub struct ProgramSpec<'a> {
    /// What it runs, in messages: `the Python model`.
    pub subject: &'static str,
    /// Its name in logs and in the list of processes.
    pub name: String,
    /// The interpreter.
    pub python: PathBuf,
    /// Its modules, name and source; the first one serves the calls. They are created in the order of
    /// their names.
    pub modules: &'a [(&'a str, &'a str)],
    /// What it receives when it starts.
    pub settings: &'a [(&'a str, &'a str)],
    /// The number of processes. Each serves one call at a time.
    pub count: usize,
    /// The longest duration of a call, after which its process is replaced.
    pub timeout: Duration,
    /// The resident memory of a process in bytes above which it is replaced.
    pub memory_limit: Option<usize>,
}

/// The running processes of a program. They end when this is dropped.
pub struct RunningProgram {
    pool: PoolOwner,
}

/// The reply of a function of the program.
#[derive(Debug, PartialEq, Eq)]
pub struct ProgramReply {
    /// Whether the function has raised an exception, which the fields describe.
    pub has_raised: bool,
    /// Texts.
    pub fields: Vec<Option<String>>,
    /// Bytes.
    pub body: Bytes,
}

impl Workers {
    /// Starts the processes of a program, and waits until all are ready.
    ///
    /// # Errors
    /// If the interpreter cannot be started; if `set_up` raises an exception, with its summary in the first
    /// line of the message and the traceback in the others.
    pub fn run(&self, spec: ProgramSpec<'_>) -> Result<RunningProgram> {
        let subject = Subject {
            name: spec.subject,
            interpreter: "runner_python",
            memory_limit: "runner_memory_limit",
            more_calls: "runner_workers sets their number",
            ended: Code::Unavailable,
            timed_out: Code::DeadlineExceeded,
        };
        let settings = spec.settings.iter().copied().chain([("threads", "1")]);
        let settings: Vec<(&str, &str)> = settings.collect();
        let program = WorkerProgram::new(subject, spec.name, spec.python, spec.modules, &settings);
        let limits = WorkerLimits { threads: 1, timeout: spec.timeout, memory: spec.memory_limit };
        Ok(RunningProgram { pool: self.start(program, spec.count, limits)? })
    }
}

impl RunningProgram {
    /// What the program reports about itself.
    #[must_use]
    pub fn about(&self) -> &[Option<String>] {
        &self.pool.about
    }

    /// Calls the function with this number. Blocks until it has replied or `deadline` has passed; the
    /// process goes on then, and is stopped when the call has taken as long as a call may.
    ///
    /// # Errors
    /// [`Code::DeadlineExceeded`] after the deadline or the longest duration of a call;
    /// [`Code::Unavailable`] if the process has ended.
    pub fn call(
        &self,
        function: u8,
        fields: &[Option<&str>],
        body: &[&[u8]],
        deadline: Option<Instant>,
    ) -> Result<ProgramReply> {
        let pool = &self.pool.pool;
        // A call waits for a process as long as it may run.
        let deadline = deadline.unwrap_or_else(|| Instant::now() + pool.limits.timeout * 2);
        let call = WorkerCall { function, fields, body };
        let frame = pool.call_blocking(&call, deadline).map_err(|failure| failure.error)?;
        Ok(ProgramReply {
            has_raised: frame.kind == RAISED,
            fields: frame.fields,
            body: frame.body,
        })
    }
}
