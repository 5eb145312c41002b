//! What the worker processes are told.

use std::path::PathBuf;
use std::time::Duration;

/// Python processes that run models' handlers.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkersConfig {
    /// The interpreter.
    pub python: PathBuf,
    /// Processes for each folder of code.
    pub count: usize,
    /// The longest a handler may take.
    pub timeout: Duration,
    /// Memory in bytes that a process may hold; one that holds more is replaced.
    pub memory_limit: Option<usize>,
    /// Where virtual environments are kept.
    pub environments: PathBuf,
}

impl Default for WorkersConfig {
    fn default() -> Self {
        WorkersConfig {
            python: "python3".into(),
            count: 2,
            timeout: Duration::from_secs(30),
            memory_limit: None,
            environments: std::env::temp_dir().join("tensorserve-python"),
        }
    }
}
