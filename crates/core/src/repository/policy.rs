//! Which versions to serve, and in which order they replace others. Pure functions.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::{VersionPolicy, VersionTransition};

/// The versions among those in the source that the policy wants to be served.
pub(super) fn aspired(there: &BTreeSet<i64>, policy: &VersionPolicy) -> BTreeSet<i64> {
    match policy {
        VersionPolicy::Latest(count) => there.iter().rev().take(*count).copied().collect(),
        VersionPolicy::All => there.clone(),
        VersionPolicy::Specific(named) => {
            let named = named.iter().filter(|version| there.contains(version));
            named.copied().collect()
        }
    }
}

/// What decides about the next step of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VersionSnapshot {
    pub(super) version: i64,
    /// The version should be served.
    pub(super) aspired: bool,
    pub(super) phase: Phase,
    /// It may be held after all: what it has replaced stays until then.
    pub(super) is_watched: bool,
    /// What it takes in memory once it is loaded, in bytes, by estimate.
    pub(super) bytes: u64,
}

/// Where a version is in its lifecycle, as far as the next step goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its files have not been checked yet, or are still changing.
    Unchecked,
    /// Some of its files are missing.
    Incomplete,
    /// The version could be loaded now.
    Loadable,
    /// The version is being loaded or warmed up.
    Loading,
    /// The version is loaded and may not serve.
    Held,
    /// The version serves.
    Ready,
    /// The version gets no new requests, and some are still in flight.
    Draining,
    /// The version gets no new requests, and none is in flight.
    Drained,
    /// Its memory is being released.
    Unloading,
    /// The version could not be loaded.
    Failed,
    /// The version is not in memory any more.
    Unloaded,
}

impl Phase {
    /// Whether it is in memory, or on its way there.
    pub(super) fn is_in_memory(self) -> bool {
        match self {
            Phase::Loading | Phase::Held | Phase::Ready => true,
            Phase::Draining | Phase::Drained | Phase::Unloading => true,
            Phase::Unchecked | Phase::Incomplete | Phase::Loadable => false,
            Phase::Failed | Phase::Unloaded => false,
        }
    }

    /// Whether its memory will be released without another decision.
    pub(super) fn is_leaving(self) -> bool {
        matches!(self, Phase::Draining | Phase::Drained | Phase::Unloading)
    }

    /// Whether a version in this phase stays in it until its files change.
    pub(super) fn is_settled(self, aspired: bool) -> bool {
        match self {
            Phase::Ready | Phase::Held | Phase::Failed | Phase::Incomplete => true,
            // One that became aspired again while it drained is loaded again.
            Phase::Unchecked | Phase::Loadable | Phase::Unloaded => !aspired,
            Phase::Loading | Phase::Draining | Phase::Drained | Phase::Unloading => false,
        }
    }
}

/// The next step from one version of a model to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransitionStep {
    /// Load this version.
    Load(i64),
    /// Stop serving this version.
    Drain(i64),
}

/// The next step, if there is one now. A new version is loaded highest first, an old one drained
/// lowest first. A version that is held and should go goes at once: no request gets it.
///
/// * Availability-preserving: a version that should go is drained only when one that should stay
///   is serving (or none should), so that the model is available throughout.
/// * Resource-preserving: versions that should go are drained as soon as one that should come
///   could be loaded, and that one is loaded when they are unloaded, so that old and new are never
///   in memory together.
pub(super) fn next_transition_step(
    versions: &[VersionSnapshot],
    transition: VersionTransition,
) -> Option<TransitionStep> {
    let frugal = transition == VersionTransition::ResourcePreserving;
    let aspired = |phase| versions.iter().filter(move |v| v.aspired && v.phase == phase);
    let any_aspired = versions.iter().any(|v| v.aspired);
    let makes_way = frugal && aspired(Phase::Loadable).next().is_some();
    let leaving = |phase| versions.iter().filter(move |v| !v.aspired && v.phase == phase);
    if let Some(held) = leaving(Phase::Held).map(|v| v.version).min() {
        return Some(TransitionStep::Drain(held));
    }
    let outgoing = leaving(Phase::Ready);
    let may_go = aspired(Phase::Ready).any(|v| !v.is_watched) || !any_aspired || makes_way;
    if may_go && let Some(lowest) = outgoing.map(|v| v.version).min() {
        return Some(TransitionStep::Drain(lowest));
    }
    if frugal && versions.iter().any(|v| !v.aspired && v.phase.is_in_memory()) {
        return None;
    }
    aspired(Phase::Loadable).map(|v| v.version).max().map(TransitionStep::Load)
}

/// The delay between attempts at a failed load doubles up to this, unless it begins longer.
pub(super) const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// How long to wait after the load has failed `attempts` times, if the first delay is `first`.
pub(super) fn retry_delay(attempts: u32, first: Duration) -> Duration {
    let doubled = first * 2u32.saturating_pow(attempts.saturating_sub(1).min(8));
    doubled.min(LONGEST_RETRY.max(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(versions: &[i64]) -> BTreeSet<i64> {
        versions.iter().copied().collect()
    }

    fn next_by(
        transition: VersionTransition,
        versions: &[(i64, bool, Phase)],
    ) -> Option<TransitionStep> {
        let snapshot = |&(version, aspired, phase)| VersionSnapshot {
            version,
            aspired,
            phase,
            is_watched: false,
            bytes: 0,
        };
        next_transition_step(&versions.iter().map(snapshot).collect::<Vec<_>>(), transition)
    }

    fn next(versions: &[(i64, bool, Phase)]) -> Option<TransitionStep> {
        next_by(VersionTransition::AvailabilityPreserving, versions)
    }

    fn frugal(versions: &[(i64, bool, Phase)]) -> Option<TransitionStep> {
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
        for phase in [Phase::Unchecked, Phase::Incomplete, Phase::Failed, Phase::Unloaded] {
            assert_eq!(next(&[(1, true, phase)]), None, "{phase:?}");
        }
    }

    #[test]
    fn the_highest_new_version_is_loaded_first() {
        let versions =
            [(1, true, Phase::Loadable), (3, true, Phase::Loadable), (2, true, Phase::Incomplete)];
        assert_eq!(next(&versions), Some(TransitionStep::Load(3)));
    }

    #[test]
    fn the_old_version_stays_until_the_new_one_serves() {
        let loading = [(1, false, Phase::Ready), (2, true, Phase::Loading)];
        assert_eq!(next(&loading), None);
        let loadable = [(1, false, Phase::Ready), (2, true, Phase::Loadable)];
        assert_eq!(next(&loadable), Some(TransitionStep::Load(2)));
        let ready = [(1, false, Phase::Ready), (2, true, Phase::Ready)];
        assert_eq!(next(&ready), Some(TransitionStep::Drain(1)));
    }

    #[test]
    fn a_held_version_keeps_the_old_one_and_goes_when_it_is_not_wanted() {
        let held = [(1, false, Phase::Ready), (2, true, Phase::Held)];
        assert_eq!(next(&held), None);
        let removed = [(1, true, Phase::Ready), (2, false, Phase::Held)];
        assert_eq!(next(&removed), Some(TransitionStep::Drain(2)));
        let newer = [(1, false, Phase::Ready), (2, false, Phase::Held), (3, true, Phase::Loadable)];
        assert_eq!(next(&newer), Some(TransitionStep::Drain(2)));
    }

    #[test]
    fn the_old_version_stays_while_the_new_one_is_watched() {
        let version = |version, aspired, is_watched| VersionSnapshot {
            version,
            aspired,
            phase: Phase::Ready,
            is_watched,
            bytes: 0,
        };
        let next = |versions: &[VersionSnapshot]| {
            next_transition_step(versions, VersionTransition::AvailabilityPreserving)
        };
        assert_eq!(next(&[version(1, false, false), version(2, true, true)]), None);
        let over = [version(1, false, false), version(2, true, false)];
        assert_eq!(next(&over), Some(TransitionStep::Drain(1)));
        // Another version that stays could take its place.
        let three = [version(1, false, false), version(2, true, false), version(3, true, true)];
        assert_eq!(next(&three), Some(TransitionStep::Drain(1)));
    }

    #[test]
    fn the_lowest_old_version_goes_first() {
        let versions =
            [(2, false, Phase::Ready), (1, false, Phase::Ready), (3, true, Phase::Ready)];
        assert_eq!(next(&versions), Some(TransitionStep::Drain(1)));
    }

    #[test]
    fn a_failing_new_version_leaves_the_old_one_alone() {
        assert_eq!(next(&[(1, false, Phase::Ready), (2, true, Phase::Failed)]), None);
    }

    #[test]
    fn without_any_aspired_version_all_go() {
        assert_eq!(next(&[(1, false, Phase::Ready)]), Some(TransitionStep::Drain(1)));
    }

    #[test]
    fn unloading_comes_before_loading() {
        let versions =
            [(1, false, Phase::Ready), (2, true, Phase::Ready), (3, true, Phase::Loadable)];
        assert_eq!(next(&versions), Some(TransitionStep::Drain(1)));
    }

    #[test]
    fn to_save_memory_the_old_version_goes_first() {
        let loadable = [(1, false, Phase::Ready), (2, true, Phase::Loadable)];
        assert_eq!(frugal(&loadable), Some(TransitionStep::Drain(1)));
        for phase in [Phase::Draining, Phase::Drained, Phase::Unloading] {
            assert_eq!(frugal(&[(1, false, phase), (2, true, Phase::Loadable)]), None, "{phase:?}");
        }
        let gone = [(1, false, Phase::Unloaded), (2, true, Phase::Loadable)];
        assert_eq!(frugal(&gone), Some(TransitionStep::Load(2)));
        assert_eq!(frugal(&[(1, false, Phase::Unloaded), (2, true, Phase::Loading)]), None);
    }

    #[test]
    fn to_save_memory_all_that_should_go_go_before_anything_comes() {
        let two = [(1, false, Phase::Ready), (2, false, Phase::Ready), (3, true, Phase::Loadable)];
        assert_eq!(frugal(&two), Some(TransitionStep::Drain(1)));
        let one =
            [(1, false, Phase::Draining), (2, false, Phase::Ready), (3, true, Phase::Loadable)];
        assert_eq!(frugal(&one), Some(TransitionStep::Drain(2)));
        // A rollback during a load waits for the load to end.
        let back = [(1, true, Phase::Loadable), (2, false, Phase::Loading)];
        assert_eq!(frugal(&back), None);
    }

    #[test]
    fn to_save_memory_nothing_goes_for_what_cannot_be_loaded() {
        assert_eq!(frugal(&[(1, false, Phase::Ready), (2, true, Phase::Incomplete)]), None);
        assert_eq!(frugal(&[(1, false, Phase::Ready), (2, true, Phase::Failed)]), None);
        assert_eq!(frugal(&[(1, false, Phase::Ready)]), Some(TransitionStep::Drain(1)));
    }

    #[test]
    fn to_save_memory_what_stays_does_not_wait() {
        let more = [(1, true, Phase::Ready), (2, true, Phase::Loadable)];
        assert_eq!(frugal(&more), Some(TransitionStep::Load(2)));
    }

    #[test]
    fn the_delay_between_attempts_doubles_up_to_a_minute() {
        let delays = |first| {
            let delay = |attempts| retry_delay(attempts, Duration::from_secs(first)).as_secs();
            [1, 2, 3, 4, 5, 100, u32::MAX].map(delay)
        };
        assert_eq!(delays(5), [5, 10, 20, 40, 60, 60, 60]);
        assert_eq!(delays(100), [100; 7], "the first delay is longer than the maximum");
        assert_eq!(retry_delay(0, Duration::from_secs(5)).as_secs(), 5);
    }
}
