//! How much memory versions take, and whether one more fits.

use std::sync::Arc;
use std::time::Instant;

use super::{LifecycleManager, VersionKey};
use crate::config::VersionTransition;
use crate::repository::{State, source};
use tensorserve_tensor::error::{Code, Error, Result};

impl LifecycleManager {
    /// Notes what a version will take in memory, if there is room for it. False if there will be
    /// when what is leaving has left.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] if there is no room.
    pub(super) fn admit(&mut self, name: &Arc<str>, number: i64) -> Result<bool> {
        let Some(model) = self.models.get_mut(name) else {
            return Ok(false);
        };
        let Some(version) = model.versions.get_mut(&number) else {
            return Ok(false);
        };
        let bytes = *version.bytes.get_or_insert_with(|| estimate(&version.folder));
        if let Some(limit) = self.shared.config.memory_limit {
            let (used, stays) = self.memory_in_use(None);
            if stays.saturating_add(bytes) > limit {
                return Err(self.no_room(name, number, bytes, stays, limit));
            }
            if used.saturating_add(bytes) > limit {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn no_room(&self, name: &Arc<str>, number: i64, bytes: u64, used: u64, limit: u64) -> Error {
        let mut message = format!(
            "model {name} version {number} needs about {} of memory, 1.2 times its files; models \
             have {} of the {} that memory_limit gives them",
            Shown(bytes),
            Shown(used),
            Shown(limit)
        );
        let (own, _) = self.memory_in_use(Some(name));
        if own > 0 && (used - own.min(used)).saturating_add(bytes) <= limit {
            message.push_str("; version_transition = \"resource_preserving\" would make room");
        }
        Error::new(Code::ResourceExhausted, message)
    }

    /// The memory of all models, or of one, in bytes: all that is in use, and the part of it that
    /// will not be released without another step.
    fn memory_in_use(&self, name: Option<&Arc<str>>) -> (u64, u64) {
        let (mut used, mut stays) = (0u64, 0u64);
        for entry in self.models.values().filter(|entry| name.is_none_or(|n| *n == entry.name)) {
            for (_, version) in entry.in_memory() {
                let bytes = version.bytes.unwrap_or(0);
                used += bytes;
                stays += if matches!(version.state, State::Draining) { 0 } else { bytes };
            }
            for former in &entry.former {
                used += former.bytes;
                stays += if former.is_predecessor() { former.bytes } else { 0 };
            }
        }
        (used, stays)
    }

    /// Notes that a version is out of memory, and that what had no room may have some now.
    pub(super) fn free(&mut self, key: &VersionKey) {
        self.freed = true;
        if let Some(entry) = self.models.get_mut(&key.model) {
            entry.version_released(key);
        }
        let now = Instant::now();
        for model in self.models.values_mut().filter(|model| model.is_configured()) {
            for version in model.versions.values_mut().filter(|version| version.aspired) {
                let failure = version.failure().map(Error::code);
                if failure == Some(Code::ResourceExhausted) {
                    (version.attempts, version.retry_at) = (0, now);
                    self.next_scan = now;
                }
            }
        }
    }

    /// Sees to it that what a model had from another place has gone before it is loaded from the
    /// new one, where memory counts more than that it can be used. False while that takes.
    pub(super) fn makes_way(&mut self, name: &Arc<str>) -> bool {
        let Some(model) = self.models.get_mut(name) else {
            return false;
        };
        if model.config.transition == VersionTransition::AvailabilityPreserving {
            return true;
        }
        if model.drain_predecessors() {
            self.publish(name);
            return false;
        }
        model.former.is_empty()
    }
}

/// What a version with these files takes in memory, as TensorFlow Serving estimates it: a fifth
/// more than its files.
fn estimate(folder: &std::path::Path) -> u64 {
    let files = source::size_of(folder);
    files.saturating_add(files / 5)
}

/// Bytes, for people.
struct Shown(u64);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.0;
        match bytes {
            0..10_240 => write!(f, "{bytes} bytes"),
            10_240..10_485_760 => write!(f, "{} KiB", bytes.div_ceil(1 << 10)),
            _ => write!(f, "{} MiB", bytes.div_ceil(1 << 20)),
        }
    }
}
