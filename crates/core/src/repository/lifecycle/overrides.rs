//! Settings of a model that operators override while the server runs: labels and batching. An
//! override lasts until the server ends, or until the source has another setting than it had when
//! it was overridden. Nothing is written to disk.

use std::collections::BTreeMap;

use crate::config::{BatchConfig, ModelConfig};

/// The overrides of one model.
#[derive(Default)]
pub(super) struct Overrides {
    labels: BTreeMap<String, Override<Option<i64>>>,
    /// Parameters, and whether they are in a file of each version.
    batching: Option<Override<(BatchConfig, bool)>>,
}

/// A setting, and what its source had in its place.
struct Override<T> {
    configured: T,
    value: T,
}

impl Overrides {
    /// Whether nothing is overridden.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.batching.is_none()
    }

    /// Overrides a label of `config`, which still has what the source has or an earlier override.
    pub(super) fn set_label(&mut self, config: &ModelConfig, label: &str, version: Option<i64>) {
        let configured = config.labels.get(label).copied();
        let new = Override { configured, value: version };
        self.labels.entry(label.to_owned()).or_insert(new).value = version;
    }

    /// Overrides the batching parameters of `config`, likewise.
    pub(super) fn set_batching(&mut self, config: &ModelConfig, batching: &BatchConfig) {
        let value = (batching.clone(), false);
        let configured = (config.batching.clone(), config.batching_file);
        let new = Override { configured, value: value.clone() };
        self.batching.get_or_insert(new).value = value;
    }

    /// Applies the overrides to the settings that the source has now. Drops those whose setting
    /// has changed in the source.
    pub(super) fn apply(&mut self, config: &mut ModelConfig) {
        self.labels.retain(|label, it| config.labels.get(label).copied() == it.configured);
        for (label, it) in &self.labels {
            set_label(config, label, it.value);
        }
        let configured = (config.batching.clone(), config.batching_file);
        self.batching = self.batching.take().filter(|it| it.configured == configured);
        if let Some(it) = &self.batching {
            (config.batching, config.batching_file) = it.value.clone();
        }
    }
}

/// Sets a label, or (`None`) removes it.
pub(super) fn set_label(config: &mut ModelConfig, label: &str, version: Option<i64>) {
    match version {
        Some(version) => drop(config.labels.insert(label.to_owned(), version)),
        None => drop(config.labels.remove(label)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(labels: &[(&str, i64)]) -> ModelConfig {
        let labels = labels.iter().map(|&(label, version)| (label.to_owned(), version)).collect();
        ModelConfig { labels, ..ModelConfig::default() }
    }

    #[test]
    fn an_overridden_label_stays_until_the_source_has_another() {
        let mut overrides = Overrides::default();
        overrides.set_label(&labelled(&[("stable", 1)]), "stable", Some(2));
        overrides.set_label(&labelled(&[("stable", 2)]), "stable", Some(3));
        overrides.set_label(&labelled(&[("stable", 3)]), "new", Some(4));
        let mut config = labelled(&[("stable", 1)]);
        overrides.apply(&mut config);
        assert_eq!(config, labelled(&[("new", 4), ("stable", 3)]));
        let mut changed = labelled(&[("stable", 5)]);
        overrides.apply(&mut changed);
        assert_eq!(changed, labelled(&[("new", 4), ("stable", 5)]));
        let mut back = labelled(&[("stable", 1)]);
        overrides.apply(&mut back);
        assert_eq!(back, labelled(&[("new", 4), ("stable", 1)]), "the override must be forgotten");
    }

    #[test]
    fn a_removed_label_stays_removed() {
        let mut overrides = Overrides::default();
        overrides.set_label(&labelled(&[("stable", 1)]), "stable", None);
        let mut config = labelled(&[("stable", 1)]);
        overrides.apply(&mut config);
        assert_eq!(config, labelled(&[]));
        assert!(!overrides.is_empty());
    }

    #[test]
    fn overridden_batching_stays_until_the_source_has_another() {
        let source = ModelConfig { batching_file: true, ..ModelConfig::default() };
        let mut overrides = Overrides::default();
        let own = BatchConfig { max_batch_size: 7, ..BatchConfig::default() };
        overrides.set_batching(&source, &own);
        let mut config = source.clone();
        overrides.apply(&mut config);
        assert_eq!((config.batching.max_batch_size, config.batching_file), (7, false));
        let mut changed = ModelConfig::default();
        overrides.apply(&mut changed);
        assert_eq!(changed, ModelConfig::default());
        assert!(overrides.is_empty());
    }
}
