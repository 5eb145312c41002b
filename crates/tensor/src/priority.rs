//! The priority of a request, and who may ask for which.

/// How urgent a request is while it waits for a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// The request runs when no other request waits.
    Low,
    /// That of most requests.
    #[default]
    Normal,
    /// The request runs before the others that wait.
    High,
}

impl Priority {
    /// Every priority, the highest first.
    pub const ALL: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

    /// The priority with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Priority::ALL.into_iter().find(|priority| priority.name() == name)
    }

    /// Its name in headers, files and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Priority::High => "high",
            Priority::Normal => "normal",
            Priority::Low => "low",
        }
    }
}

/// The priority of a client's requests, and the highest one that it may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityGrant {
    /// The priority of a request that asks for none.
    pub usual: Priority,
    /// A request that asks for more gets this one.
    pub highest: Priority,
}

impl Default for PriorityGrant {
    /// That of a client who may ask for anything.
    fn default() -> Self {
        PriorityGrant { usual: Priority::Normal, highest: Priority::High }
    }
}

impl PriorityGrant {
    /// That of a client whose requests have this priority, or a lower one.
    #[must_use]
    pub fn up_to(priority: Priority) -> Self {
        PriorityGrant { usual: priority, highest: priority }
    }

    /// The priority of a request that asks for `asked`.
    #[must_use]
    pub fn priority(self, asked: Option<Priority>) -> Priority {
        asked.unwrap_or(self.usual).min(self.highest)
    }

    /// This grant for requests whose usual priority is `asked`, if it is given.
    #[must_use]
    pub fn asking(self, asked: Option<Priority>) -> Self {
        PriorityGrant { usual: self.priority(asked), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_have_names_and_an_order() {
        for priority in Priority::ALL {
            assert_eq!(Priority::from_name(priority.name()), Some(priority));
        }
        for unknown in ["", "High", "urgent", "1", " high"] {
            assert_eq!(Priority::from_name(unknown), None);
        }
        assert!(Priority::ALL.is_sorted_by(|a, b| a > b));
    }

    #[test]
    fn nobody_gets_more_than_was_granted() {
        let anybody = PriorityGrant::default();
        assert_eq!(anybody.priority(None), Priority::Normal);
        assert_eq!(anybody.priority(Some(Priority::High)), Priority::High);
        let batch_job = PriorityGrant::up_to(Priority::Low);
        assert_eq!(batch_job.priority(None), Priority::Low);
        assert_eq!(batch_job.priority(Some(Priority::High)), Priority::Low);
        let urgent = PriorityGrant::up_to(Priority::High);
        assert_eq!(urgent.priority(None), Priority::High);
        // What the body of a request asks for takes the place of what its header asks for.
        let lower = urgent.asking(Some(Priority::Low));
        assert_eq!(lower.priority(None), Priority::Low);
        assert_eq!(lower.priority(Some(Priority::High)), Priority::High);
    }
}
