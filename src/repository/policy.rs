//! Which versions to serve, and what to do next to get there. Pure functions.

use std::collections::BTreeSet;

use crate::config::VersionPolicy;

/// The versions that should be served, of those that are there.
pub(super) fn aspired(there: &BTreeSet<i64>, policy: &VersionPolicy) -> BTreeSet<i64> {
    match policy {
        VersionPolicy::Latest(count) => there.iter().rev().take(*count).copied().collect(),
        VersionPolicy::All => there.clone(),
        VersionPolicy::Specific(wanted) => {
            let wanted = wanted.iter().filter(|version| there.contains(version));
            wanted.copied().collect()
        }
    }
}

/// What matters of a version for the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) version: i64,
    /// It should be served.
    pub(super) aspired: bool,
    pub(super) phase: Phase,
}

/// Where a version is in its life, as far as the next step goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Could be loaded now.
    Loadable,
    /// On its way, or not to be touched: waiting for files, loading, draining, failed.
    Busy,
    /// Serving.
    Ready,
}

/// The next step for one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Load this version.
    Load(i64),
    /// Stop serving this version.
    Unload(i64),
}

/// The next step, if there is one now, that keeps the model available throughout: a version that
/// should go is unloaded only when one that should stay is serving (or none should), the lowest
/// first; a new one is loaded highest first (TensorFlow Serving's availability-preserving
/// policy).
pub(super) fn next_action(versions: &[Snapshot]) -> Option<Action> {
    let any_aspired = versions.iter().any(|v| v.aspired);
    let replaced = versions.iter().any(|v| v.aspired && v.phase == Phase::Ready);
    if replaced || !any_aspired {
        let outgoing = versions.iter().filter(|v| !v.aspired && v.phase == Phase::Ready);
        if let Some(lowest) = outgoing.map(|v| v.version).min() {
            return Some(Action::Unload(lowest));
        }
    }
    let incoming = versions.iter().filter(|v| v.aspired && v.phase == Phase::Loadable);
    incoming.map(|v| v.version).max().map(Action::Load)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(versions: &[i64]) -> BTreeSet<i64> {
        versions.iter().copied().collect()
    }

    fn next(versions: &[(i64, bool, Phase)]) -> Option<Action> {
        let snapshot = |&(version, aspired, phase)| Snapshot { version, aspired, phase };
        next_action(&versions.iter().map(snapshot).collect::<Vec<_>>())
    }

    #[test]
    fn policies_choose_among_what_is_there() {
        let there = set(&[1, 2, 10]);
        assert_eq!(aspired(&there, &VersionPolicy::Latest(1)), set(&[10]));
        assert_eq!(aspired(&there, &VersionPolicy::Latest(2)), set(&[2, 10]));
        assert_eq!(aspired(&there, &VersionPolicy::Latest(9)), there);
        assert_eq!(aspired(&there, &VersionPolicy::All), there);
        let specific = VersionPolicy::Specific(vec![1, 7]);
        assert_eq!(aspired(&there, &specific), set(&[1]));
    }

    #[test]
    fn nothing_to_do() {
        assert_eq!(next(&[]), None);
        assert_eq!(next(&[(1, true, Phase::Ready)]), None);
        assert_eq!(next(&[(1, true, Phase::Busy)]), None);
    }

    #[test]
    fn the_highest_new_version_is_loaded_first() {
        let versions =
            [(1, true, Phase::Loadable), (3, true, Phase::Loadable), (2, true, Phase::Busy)];
        assert_eq!(next(&versions), Some(Action::Load(3)));
    }

    #[test]
    fn the_old_version_stays_until_the_new_one_serves() {
        let loading = [(1, false, Phase::Ready), (2, true, Phase::Busy)];
        assert_eq!(next(&loading), None);
        let loadable = [(1, false, Phase::Ready), (2, true, Phase::Loadable)];
        assert_eq!(next(&loadable), Some(Action::Load(2)));
        let ready = [(1, false, Phase::Ready), (2, true, Phase::Ready)];
        assert_eq!(next(&ready), Some(Action::Unload(1)));
    }

    #[test]
    fn the_lowest_old_version_goes_first() {
        let versions =
            [(2, false, Phase::Ready), (1, false, Phase::Ready), (3, true, Phase::Ready)];
        assert_eq!(next(&versions), Some(Action::Unload(1)));
    }

    #[test]
    fn a_failing_new_version_leaves_the_old_one_alone() {
        assert_eq!(next(&[(1, false, Phase::Ready), (2, true, Phase::Busy)]), None);
    }

    #[test]
    fn without_any_aspired_version_all_go() {
        assert_eq!(next(&[(1, false, Phase::Ready)]), Some(Action::Unload(1)));
    }

    #[test]
    fn unloading_comes_before_loading() {
        let versions =
            [(1, false, Phase::Ready), (2, true, Phase::Ready), (3, true, Phase::Loadable)];
        assert_eq!(next(&versions), Some(Action::Unload(1)));
    }
}
