//! Batching parameters that change while a version serves.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::LifecycleManager;
use super::entry::ModelEntry;

impl LifecycleManager {
    /// Gives versions whose batching parameters are others by now queues with these. Nothing is
    /// loaded, and requests under way go on in the queues they are in.
    pub(super) fn apply_batching(&mut self) {
        let shared = Arc::clone(&self.shared);
        let (mut changed, mut notes) = (BTreeSet::new(), Vec::new());
        // The files of those that were asked for were looked at then.
        let may_change = |model: &ModelEntry| model.is_configured() || !model.config.batching_file;
        for (name, model) in self.models.iter_mut().filter(|(_, model)| may_change(model)) {
            for (number, version) in &mut model.versions {
                if !version.is_ready() {
                    continue;
                }
                let servable = version.servable.as_ref();
                let rebatched =
                    servable.map(|s| s.rebatched(&model.config, &version.folder, &*shared.files));
                match rebatched {
                    Some(Ok(Some(servable))) => {
                        version.servable = Some(Arc::new(servable));
                        changed.insert(Arc::clone(name));
                        log::info!("{name} version {number}: has new batching parameters");
                    }
                    Some(Err(error)) => notes.push(format!("{name} version {number}: {error}")),
                    Some(Ok(None)) | None => {}
                }
            }
        }
        changed.iter().for_each(|name| self.publish(name));
        for note in notes {
            self.log_once(format!("{note}; its batching stays as it is"));
        }
    }
}
