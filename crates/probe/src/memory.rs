//! How much private memory a process may take while it loads a version and runs it on synthetic inputs.

use std::io;
use std::thread::available_parallelism;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tensorserve_os::machine;

use crate::ProbeConfig;

/// Private memory, per core, of the threads that runtimes start: stacks, of which little is used.
const THREADS_MEMORY: u64 = 64 << 20;

/// What a version may take, in bytes: `load_probe_memory`, or the memory that is free now.
pub(crate) fn limit_of_version(config: &ProbeConfig) -> u64 {
    config.memory_limit.unwrap_or_else(machine::free_memory)
}

/// The limit in bytes for this process, which has memory of its own and starts threads, if a version may take
/// `version` bytes.
pub(crate) fn limit_of_process(version: u64) -> u64 {
    let cores = available_parallelism().map_or(1, |cores| u64::try_from(cores.get()).unwrap_or(1));
    let present = machine::private_memory().unwrap_or(0);
    present.saturating_add(version).saturating_add(cores * THREADS_MEMORY)
}

/// Why a version of which `message` says that memory is exhausted is refused, where it may take `version` bytes.
pub(crate) fn exceeded(version: u64, message: &str) -> String {
    format!("it needs more than the {} MiB of load_probe_memory: {message}", version >> 20)
}

/// A limit of the private memory of this process (`RLIMIT_DATA`), until the value is dropped.
pub(crate) struct MemoryLimit {
    before: Rlimit,
}

impl MemoryLimit {
    /// # Errors
    /// If the limit cannot be set.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        let before = getrlimit(Resource::Data);
        let current = Some(before.current.map_or(bytes, |current| current.min(bytes)));
        setrlimit(Resource::Data, Rlimit { current, ..before })?;
        Ok(Self { before })
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // The hard limit was not lowered, so this can be raised again.
        let _ = setrlimit(Resource::Data, self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_ends_with_its_value_and_raises_none() {
        let current = || getrlimit(Resource::Data).current;
        let before = current();
        // More than the tests of this process take.
        let (high, higher) = (1 << 40, 1 << 41);
        let outer = MemoryLimit::new(high).expect("a limit");
        assert_eq!(current(), Some(high));
        let inner = MemoryLimit::new(higher).expect("a limit");
        assert_eq!(current(), Some(high), "a higher limit raises none");
        drop(inner);
        assert_eq!(current(), Some(high));
        drop(outer);
        assert_eq!(current(), before);
    }

    #[test]
    fn a_process_may_take_what_it_has_and_what_the_version_may_take() {
        let version = 512 << 20;
        assert!(limit_of_process(version) >= version + THREADS_MEMORY);
        assert_eq!(limit_of_process(u64::MAX), u64::MAX);
        let told = "it needs more than the 512 MiB of load_probe_memory: OOM";
        assert_eq!(exceeded(version, "OOM"), told);
    }
}
