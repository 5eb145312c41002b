//! Settings of gated releases.

use std::path::PathBuf;

use tensorserve_core::comparison::{ReleaseRules, WrittenRules};
use tensorserve_core::config::{ReleaseConfig, VersionTransition};

use super::check::{Check, listed};
use super::environment::Environment;
use super::groups::{EachModelSettings, ReleaseKind, ServerSettings};

/// The directory that remembers which versions are held.
pub(super) fn release_state(server: &ServerSettings, environment: &Environment) -> PathBuf {
    let cache = || environment.cache_directory().join("releases");
    server.release_state.clone().unwrap_or_else(cache)
}

impl Check {
    /// How new versions of a model come to take traffic.
    pub(super) fn release(&mut self, each: &EachModelSettings) -> ReleaseConfig {
        let is_gated = each.release() == ReleaseKind::Gated;
        if is_gated && each.version_transition() == VersionTransition::ResourcePreserving {
            let why = "with version_transition = \"resource_preserving\" the old version is unloaded first, so that \
                       release = \"gated\" has none to compare a new one with; remove one of them";
            self.clash(&["release", "version_transition"], why);
        }
        let mut rules = ReleaseRules {
            max_slowdown: each.release_max_slowdown(),
            allow_changes: each.release_allow_changes(),
            ..ReleaseRules::default()
        };
        let lists = [
            &each.release_tolerance,
            &each.release_top,
            &each.release_max_psi,
            &each.release_max_ks,
        ];
        let [tolerance, top, max_psi, max_ks] = lists.map(listed);
        let written =
            WrittenRules { tolerance: &tolerance, top: &top, max_psi: &max_psi, max_ks: &max_ks };
        if let Err(error) = written.read_into(&mut rules, |name| format!("release_{name}")) {
            self.mistake(error.message());
        }
        ReleaseConfig {
            is_gated,
            rules,
            most_requests: each.release_requests(),
            watch: each.release_watch().0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::configured_by_file;
    use tensorserve_core::comparison::TopRule;

    #[test]
    fn a_model_has_rules_of_its_own() {
        let config = configured_by_file(
            "release_watch = \"5s\"\n[[models]]\npath = \"m\"\nrelease = \"gated\"\n\
             release_tolerance = [\"0.01\", \"scores=0\"]\nrelease_top = [\"scores=3:0.9\"]\n\
             [[models]]\npath = \"n\"\n",
        )
        .expect("valid");
        let [m, n] = &config.repository.sources[..] else { panic!("two models") };
        let release = &m.model.release;
        assert!(release.is_gated && release.watch.as_secs() == 5 && release.most_requests == 1000);
        assert_eq!(release.rules.outputs.tolerance, Some(0.01));
        let scores = &release.rules.of_output["scores"];
        assert_eq!(scores.tolerance, Some(0.0));
        assert_eq!(scores.top, Some(TopRule { count: 3, share: 0.9 }));
        assert!(!n.model.release.is_gated);
    }

    #[test]
    fn a_rule_that_cannot_be_kept_is_refused() {
        for (text, why) in [
            ("release = \"closed\"\n", "is neither open nor gated"),
            ("release_tolerance = [\"x\"]\n", "release_tolerance x: give a number from 0"),
            ("release_top = [\"3\"]\n", "release_top 3: give a number of places and a share"),
            ("release_max_slowdown = 0.0\n", "is not a number above 0"),
            ("release_requests = 0\n", "must be at least 1"),
            (
                "release = \"gated\"\nversion_transition = \"resource_preserving\"\n",
                "has none to compare a new one with",
            ),
        ] {
            let error = configured_by_file(text).expect_err(text);
            assert!(error.message().contains(why), "{text}: {error}");
        }
    }
}
