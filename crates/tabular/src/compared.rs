//! Which versions of a library were compared with its evaluator: a model of another one is served, and named in the log.

/// The versions of a library whose predictions were compared with those of its evaluator here.
#[derive(Clone, Copy)]
pub struct ComparedVersions {
    /// What the versions are of, such as `Spark`.
    pub library: &'static str,
    /// The major and minor number of the oldest.
    pub oldest: (u32, u32),
    /// The major and minor number of the newest.
    pub newest: (u32, u32),
    /// Whether each of them records its version: a model without one is then of another.
    pub recorded: bool,
}

impl ComparedVersions {
    /// The warning for a model that another version wrote, or one that its file does not record.
    /// `version` is its text: the numbers begin at the first digit.
    pub fn warning(&self, version: &str) -> Option<String> {
        if version.is_empty() && !self.recorded {
            return None;
        }
        let numbers = version.find(|c: char| c.is_ascii_digit()).and_then(|at| version.get(at..));
        let numbers = numbers.map(version_numbers);
        let ComparedVersions { library, oldest, newest, .. } = self;
        if numbers.is_some_and(|numbers| (*oldest..=*newest).contains(&numbers)) {
            return None;
        }
        let found = match numbers {
            None => format!("a version of {library} that it does not record"),
            Some(_) if version.starts_with(library) => version.to_owned(),
            Some(_) => format!("{library} {version}"),
        };
        let ((old_major, old_minor), (new_major, new_minor)) = (oldest, newest);
        Some(format!(
            "the model was written by {found}, and predictions were only compared with those of \
             {old_major}.{old_minor} to {new_major}.{new_minor}: compare some before you rely on it"
        ))
    }
}

/// The first two numbers of a version; 0 for what is no number.
pub fn version_numbers(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_and_those_that_are_not_recorded_are_named() {
        let compared =
            ComparedVersions { library: "Spark", oldest: (2, 4), newest: (4, 1), recorded: true };
        for version in ["Spark 2.4.8", "4.1.4", "v3.0"] {
            assert_eq!(compared.warning(version), None, "{version}");
        }
        for (version, named) in [
            ("Spark 5.0.0", "by Spark 5.0.0, "),
            ("2.3", "by Spark 2.3, "),
            ("", "by a version of Spark that it does not record, "),
        ] {
            let warning = compared.warning(version).expect("a warning");
            assert!(warning.contains(named) && warning.contains("2.4 to 4.1"), "{warning}");
        }
    }
}
