//! Which versions to serve, and what to do next to get there. Pure functions.

use std::collections::BTreeSet;

use crate::config::{VersionPolicy, VersionTransition};

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
    /// Not in memory, and nothing to be done about it: waiting for files, failed, gone.
    Waiting,
    /// On its way into memory or out of it.
    Moving,
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

/// The next step, if there is one now. A new version is loaded highest first, an old one unloaded
/// lowest first.
///
/// * Availability-preserving: a version that should go is unloaded only when one that should stay
///   is serving (or none should), so that the model is available throughout.
/// * Resource-preserving: versions that should go are unloaded as soon as one that should come
///   could be loaded, and that one is loaded when they have gone, so that old and new are never
///   in memory together.
pub(super) fn next_action(versions: &[Snapshot], transition: VersionTransition) -> Option<Action> {
    let frugal = transition == VersionTransition::ResourcePreserving;
    let aspired = |phase| versions.iter().filter(move |v| v.aspired && v.phase == phase);
    let any_aspired = versions.iter().any(|v| v.aspired);
    let makes_way = frugal && aspired(Phase::Loadable).next().is_some();
    let outgoing = versions.iter().filter(|v| !v.aspired && v.phase == Phase::Ready);
    let may_go = aspired(Phase::Ready).next().is_some() || !any_aspired || makes_way;
    if may_go && let Some(lowest) = outgoing.map(|v| v.version).min() {
        return Some(Action::Unload(lowest));
    }
    let leaves = |v: &Snapshot| !v.aspired && v.phase == Phase::Moving;
    if frugal && versions.iter().any(leaves) {
        return None;
    }
    aspired(Phase::Loadable).map(|v| v.version).max().map(Action::Load)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(versions: &[i64]) -> BTreeSet<i64> {
        versions.iter().copied().collect()
    }

    fn next_by(transition: VersionTransition, versions: &[(i64, bool, Phase)]) -> Option<Action> {
        let snapshot = |&(version, aspired, phase)| Snapshot { version, aspired, phase };
        next_action(&versions.iter().map(snapshot).collect::<Vec<_>>(), transition)
    }

    fn next(versions: &[(i64, bool, Phase)]) -> Option<Action> {
        next_by(VersionTransition::AvailabilityPreserving, versions)
    }

    fn frugal(versions: &[(i64, bool, Phase)]) -> Option<Action> {
        next_by(VersionTransition::ResourcePreserving, versions)
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
        assert_eq!(next(&[(1, true, Phase::Waiting)]), None);
    }

    #[test]
    fn the_highest_new_version_is_loaded_first() {
        let versions =
            [(1, true, Phase::Loadable), (3, true, Phase::Loadable), (2, true, Phase::Waiting)];
        assert_eq!(next(&versions), Some(Action::Load(3)));
    }

    #[test]
    fn the_old_version_stays_until_the_new_one_serves() {
        let loading = [(1, false, Phase::Ready), (2, true, Phase::Moving)];
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
        assert_eq!(next(&[(1, false, Phase::Ready), (2, true, Phase::Waiting)]), None);
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

    #[test]
    fn to_save_memory_the_old_version_goes_first() {
        let loadable = [(1, false, Phase::Ready), (2, true, Phase::Loadable)];
        assert_eq!(frugal(&loadable), Some(Action::Unload(1)));
        assert_eq!(frugal(&[(1, false, Phase::Moving), (2, true, Phase::Loadable)]), None);
        let gone = [(1, false, Phase::Waiting), (2, true, Phase::Loadable)];
        assert_eq!(frugal(&gone), Some(Action::Load(2)));
        assert_eq!(frugal(&[(1, false, Phase::Waiting), (2, true, Phase::Moving)]), None);
    }

    #[test]
    fn to_save_memory_all_that_should_go_go_before_anything_comes() {
        let two = [(1, false, Phase::Ready), (2, false, Phase::Ready), (3, true, Phase::Loadable)];
        assert_eq!(frugal(&two), Some(Action::Unload(1)));
        let one = [(1, false, Phase::Moving), (2, false, Phase::Ready), (3, true, Phase::Loadable)];
        assert_eq!(frugal(&one), Some(Action::Unload(2)));
        // A rollback in the middle of a load waits for that to end.
        let back = [(1, true, Phase::Loadable), (2, false, Phase::Moving)];
        assert_eq!(frugal(&back), None);
    }

    #[test]
    fn to_save_memory_nothing_goes_for_what_can_not_be_loaded() {
        assert_eq!(frugal(&[(1, false, Phase::Ready), (2, true, Phase::Waiting)]), None);
        assert_eq!(frugal(&[(1, false, Phase::Ready)]), Some(Action::Unload(1)));
    }

    #[test]
    fn to_save_memory_what_stays_does_not_wait() {
        let more = [(1, true, Phase::Ready), (2, true, Phase::Loadable)];
        assert_eq!(frugal(&more), Some(Action::Load(2)));
    }
}
