//! Versions of earlier incarnations of a model, until their memory is released.

use std::sync::Arc;

use super::VersionKey;
use crate::repository::policy::{Phase, VersionSnapshot};
use crate::repository::servable::Servable;

/// The versions of earlier incarnations that are in memory, or on their way there.
#[derive(Default)]
pub(super) struct FormerVersions(Vec<FormerVersion>);

struct FormerVersion {
    key: VersionKey,
    /// What it takes in memory, in bytes, by estimate.
    bytes: u64,
    stage: FormerStage,
}

/// What still happens to a version of an earlier incarnation.
pub(super) enum FormerStage {
    /// The version is being loaded, and will be unloaded without having served.
    Loading,
    /// The version serves until the present incarnation has a ready version: a predecessor.
    Serving(Arc<Servable>),
    /// The version gets no new requests; those in flight finish.
    Draining(Arc<Servable>),
    /// Its memory is being released.
    Unloading,
}

impl FormerVersion {
    fn snapshot(&self) -> VersionSnapshot {
        let phase = match &self.stage {
            FormerStage::Loading => Phase::Loading,
            FormerStage::Serving(_) => Phase::Ready,
            FormerStage::Draining(servable) if servable.is_idle() => Phase::Drained,
            FormerStage::Draining(_) => Phase::Draining,
            FormerStage::Unloading => Phase::Unloading,
        };
        let (version, bytes) = (self.key.version, self.bytes);
        VersionSnapshot { version, aspired: false, phase, is_watched: false, bytes }
    }
}

impl FormerVersions {
    pub(super) fn add(&mut self, key: VersionKey, bytes: u64, stage: FormerStage) {
        self.0.push(FormerVersion { key, bytes, stage });
    }

    /// What decides about the next step of each version.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = VersionSnapshot> {
        self.0.iter().map(FormerVersion::snapshot)
    }

    /// The versions that serve until the present incarnation can.
    pub(super) fn predecessors(&self) -> impl Iterator<Item = &Arc<Servable>> {
        self.0.iter().filter_map(|former| match &former.stage {
            FormerStage::Serving(servable) => Some(servable),
            FormerStage::Loading | FormerStage::Draining(_) | FormerStage::Unloading => None,
        })
    }

    /// No new request gets the predecessors. False if there are none.
    pub(super) fn drain_predecessors(&mut self) -> bool {
        let mut any = false;
        for former in &mut self.0 {
            if let FormerStage::Serving(servable) = &former.stage {
                former.stage = FormerStage::Draining(Arc::clone(servable));
                any = true;
            }
        }
        any
    }

    /// One of them is loaded: it is unloaded without having served.
    pub(super) fn loaded(&mut self, key: &VersionKey, servable: Arc<Servable>) {
        if let Some(former) = self.0.iter_mut().find(|former| former.key == *key) {
            former.stage = FormerStage::Draining(servable);
        }
    }

    /// Gives the drained one at `index` away, to be unloaded.
    pub(super) fn take_drained(&mut self, index: usize) -> Option<(VersionKey, Arc<Servable>)> {
        let former = self.0.get_mut(index)?;
        let FormerStage::Draining(servable) = &former.stage else {
            return None;
        };
        let servable = Arc::clone(servable);
        former.stage = FormerStage::Unloading;
        Some((former.key.clone(), servable))
    }

    /// One of them is out of memory.
    pub(super) fn released(&mut self, key: &VersionKey) {
        self.0.retain(|former| former.key != *key);
    }

    /// Whether requests may still hold one that is to be unloaded.
    pub(super) fn is_draining(&self) -> bool {
        self.0.iter().any(|former| matches!(former.stage, FormerStage::Draining(_)))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
