//! Settings of worker processes.

use std::path::PathBuf;
use std::time::Duration;

/// Python processes that run models' handlers.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkersConfig {
    /// The Python interpreter.
    pub python: PathBuf,
    /// Processes per directory of code.
    pub count: usize,
    /// The most calls that a process serves at a time. Each further one starts a thread.
    pub threads: usize,
    /// The longest duration of a handler call.
    pub timeout: Duration,
    /// The memory limit of a process in bytes; a process above it is replaced.
    pub memory_limit: Option<usize>,
    /// Environment variables of a process, besides those of this program.
    pub variables: Vec<(String, String)>,
    /// The directory of virtual environments.
    pub environments: PathBuf,
}

impl Default for WorkersConfig {
    fn default() -> Self {
        WorkersConfig {
            python: "python3".into(),
            count: 2,
            threads: 128,
            timeout: Duration::from_secs(60),
            memory_limit: None,
            variables: Vec::new(),
            environments: std::env::temp_dir().join("tensorserve-python"),
        }
    }
}
