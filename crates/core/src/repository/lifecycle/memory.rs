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
        let key = VersionKey { model: Arc::clone(name), version: number, life: model.life };
        if let Some(limit) = self.shared.config.memory_limit {
            let used: u64 = self.memory.values().sum();
            let leaving = self.memory.iter().filter(|(key, _)| self.is_leaving(key));
            let stays = used - leaving.map(|(_, bytes)| bytes).sum::<u64>();
            if stays.saturating_add(bytes) > limit {
                return Err(self.no_room(name, number, bytes, stays, limit));
            }
            if used.saturating_add(bytes) > limit {
                return Ok(false);
            }
        }
        self.memory.insert(key, bytes);
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
        let own = self.memory.iter().filter(|(key, _)| key.model == *name);
        let own: u64 = own.map(|(_, bytes)| bytes).sum();
        if own > 0 && (used - own.min(used)).saturating_add(bytes) <= limit {
            message.push_str("; version_transition = \"resource_preserving\" would make room");
        }
        Error::new(Code::ResourceExhausted, message)
    }

    /// Whether a version in memory will go by itself.
    fn is_leaving(&self, key: &VersionKey) -> bool {
        let model = self.models.get(&key.model).filter(|model| model.life == key.life);
        match model.and_then(|model| model.versions.get(&key.version)) {
            Some(version) => matches!(version.state, State::Draining),
            None => !self.is_predecessor(key),
        }
    }

    fn is_predecessor(&self, key: &VersionKey) -> bool {
        let mut all = self.predecessors.get(&key.model).into_iter().flatten();
        all.any(|(other, _)| other == key)
    }

    /// Notes that a version is out of memory, and that what had no room may have some now.
    pub(super) fn free(&mut self, key: &VersionKey) {
        self.freed = true;
        self.memory.remove(key);
        let now = Instant::now();
        for model in self.models.values_mut().filter(|model| model.is_of_sources()) {
            for version in model.versions.values_mut().filter(|version| version.aspired) {
                let failure = version.failure().map(Error::code);
                if failure == Some(Code::ResourceExhausted) {
                    (version.attempts, version.retry_at) = (0, now);
                    self.next_look = now;
                }
            }
        }
    }

    /// Sees to it that what a model had from another place has gone before it is loaded from the
    /// new one, where memory counts more than that it can be used. False while that takes.
    pub(super) fn makes_way(&mut self, name: &Arc<str>) -> bool {
        let Some(model) = self.models.get(name) else {
            return false;
        };
        if model.config.transition == VersionTransition::AvailabilityPreserving {
            return true;
        }
        let life = model.life;
        if self.predecessors.contains_key(name) {
            self.part_with_predecessors(name);
            self.publish(name);
        }
        !self.memory.keys().any(|key| key.model == *name && key.life != life)
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
