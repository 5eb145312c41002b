//! Collects the mistakes in settings, each with where the setting was written.

use std::fmt::Display;

use super::units::CommaSeparated;
use super::written::{Mistakes, Origins};

/// Checks settings, and collects the mistakes.
pub(super) struct Check {
    pub(super) mistakes: Mistakes,
    /// Names the model whose settings these are, for those without an origin.
    model: String,
    pub(super) origins: Origins,
}

impl Check {
    pub(super) fn new(model: String, origins: Origins) -> Self {
        Check { mistakes: Mistakes::default(), model, origins }
    }

    pub(super) fn mistake(&mut self, text: impl Display) {
        self.mistakes.add(text);
    }

    /// Records what is wrong with one setting, after where it was written.
    pub(super) fn wrong(&mut self, setting: &str, why: impl Display) {
        match self.origins.get(setting) {
            Some(origin) => self.mistakes.add(format!("{}: {why}", origin.of(setting))),
            None => self.mistakes.add(format!("{}{setting}: {why}", self.model)),
        }
    }

    /// Records a mistake in how settings go together, before where they were written.
    pub(super) fn clash(&mut self, settings: &[&str], why: impl Display) {
        let origin = |name: &&str| self.origins.get(*name).map(|origin| origin.place(name));
        let places: Vec<String> = settings.iter().filter_map(origin).collect();
        match places.as_slice() {
            [] => self.mistakes.add(format!("{}{why}", self.model)),
            places => self.mistakes.add(format!("{}{why} ({})", self.model, places.join(", "))),
        }
    }

    /// Records what is wrong with values by themselves.
    pub(super) fn values(&mut self, mistakes: Vec<(&'static str, String)>) {
        for (setting, why) in mistakes {
            self.wrong(setting, why);
        }
    }
}

/// The items of a list that is empty by default.
pub(super) fn listed<T: Clone>(list: &Option<CommaSeparated<T>>) -> Vec<T> {
    list.as_ref().map_or(Vec::new(), |CommaSeparated(items)| items.clone())
}
