//! Batching parameters that change while a version serves.

use std::sync::Arc;

use super::LifecycleManager;
use super::entry::Origin;

impl LifecycleManager {
    /// Gives those versions of a model new queues whose batching parameters have changed. Nothing
    /// is loaded, and requests in flight stay in the queues they are in.
    pub(super) fn apply_batching(&mut self, name: &Arc<str>) {
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        // The files of a requested model are read only when it is loaded.
        if entry.origin == Origin::Request && entry.config.batching_file {
            return;
        }
        let (files, mut failures) = (&*self.shared.files, Vec::new());
        let mut is_changed = false;
        for (number, version) in entry.versions.iter_mut().filter(|(_, it)| it.is_ready()) {
            let Some(servable) = &version.servable else {
                continue;
            };
            match servable.rebatched(&entry.config, &version.folder, files) {
                Ok(Some(servable)) => {
                    version.servable = Some(Arc::new(servable));
                    is_changed = true;
                    log::info!("{name} version {number}: has new batching parameters");
                }
                Ok(None) => {}
                Err(error) => failures.push(format!("{name} version {number}: {error}")),
            }
        }
        if is_changed {
            entry.publish_later();
        }
        for failure in failures {
            self.logged.warn(format!("{failure}; its batching stays as it is"));
        }
    }
}
