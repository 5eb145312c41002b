//! How much memory versions take, by estimate, and when freed memory goes back to the system.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::ModelEntry;
use super::plan::{ModelMemory, NoRoom};
use super::{LifecycleManager, VersionKey};
use tensorserve_os as os;
use tensorserve_tensor::error::{Code, Error};

/// Freed memory is given back to the system at most this often: it stops the allocator.
const RELEASE_EVERY: Duration = Duration::from_millis(500);

/// Memory that the process has freed, and may still keep from the system.
pub(super) struct FreedMemory {
    /// A version was unloaded since the last release.
    is_pending: bool,
    released_at: Instant,
}

impl FreedMemory {
    pub(super) fn new() -> Self {
        FreedMemory { is_pending: false, released_at: Instant::now() }
    }

    /// Gives freed memory back to the system now.
    pub(super) fn release(&mut self) {
        if self.is_pending {
            os::release_memory();
            self.is_pending = false;
            self.released_at = Instant::now();
        }
    }

    /// Gives freed memory back to the system if that is due.
    pub(super) fn release_if_due(&mut self) {
        if self.released_at.elapsed() >= RELEASE_EVERY {
            self.release();
        }
    }
}

impl LifecycleManager {
    /// The memory of all models; `None` if it is not limited.
    pub(super) fn memory_budget(&self) -> Option<ModelMemory> {
        let limit = self.shared.config.memory_limit?;
        let mut budget = ModelMemory { limit, used: 0, leaving: 0 };
        for snapshot in self.models.values().flat_map(ModelEntry::memory) {
            budget.used = budget.used.saturating_add(snapshot.bytes);
            if snapshot.phase.is_leaving() {
                budget.leaving = budget.leaving.saturating_add(snapshot.bytes);
            }
        }
        Some(budget)
    }

    /// A version is out of memory: those that had no room may have some now.
    pub(super) fn memory_released(&mut self, key: &VersionKey) {
        self.freed.is_pending = true;
        if let Some(entry) = self.models.get_mut(&key.model) {
            entry.version_released(key);
        }
        let now = Instant::now();
        for entry in self.models.values_mut().filter(|entry| entry.is_configured()) {
            for version in entry.versions.values_mut().filter(|version| version.aspired) {
                if version.failure().map(Error::code) == Some(Code::ResourceExhausted) {
                    (version.attempts, version.retry_at) = (0, now);
                    self.sources.schedule.check_files_now();
                }
            }
        }
    }
}

/// The error for a version that does not fit into the memory limit.
pub(super) fn no_room(name: &Arc<str>, number: i64, no_room: NoRoom) -> Error {
    let NoRoom { needed, staying, limit, fits_alone } = no_room;
    let mut message = format!(
        "model {name} version {number} needs an estimated {} of memory (1.2 times the size of its \
         files); other versions use {} of the memory_limit of {}",
        Bytes(needed),
        Bytes(staying),
        Bytes(limit)
    );
    if fits_alone {
        message.push_str("; it would fit with version_transition = \"resource_preserving\"");
    }
    Error::new(Code::ResourceExhausted, message)
}

/// A number of bytes in a unit that is easy to read.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        match bytes {
            0..10_240 => write!(f, "{bytes} bytes"),
            10_240..10_485_760 => write!(f, "{} KiB", bytes.div_ceil(1 << 10)),
            _ => write!(f, "{} MiB", bytes.div_ceil(1 << 20)),
        }
    }
}
