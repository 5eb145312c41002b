use std::time::Duration;

use super::*;

use Action::{
    CompleteLoad, CompleteReturn, CompleteUnloads, Discard, Drain, DrainPredecessors, Load,
    Publish, Refuse, Unload, UnloadFormer,
};
use Phase::{
    Drained, Draining, Failed, Incomplete, Loadable, Loading, Ready, Unchecked, Unloaded, Unloading,
};

/// Versions that should be served, and versions that should not, by number and phase.
type Versions<'a> = &'a [(i64, Phase)];

/// The estimate of every version.
const BYTES: u64 = 100;

fn snapshots(versions: Versions, aspired: bool) -> impl Iterator<Item = VersionSnapshot> {
    let snapshot = move |&(version, phase)| VersionSnapshot {
        version,
        aspired,
        phase,
        is_watched: false,
        bytes: BYTES,
    };
    versions.iter().map(snapshot)
}

fn model(aspired: Versions, others: Versions) -> ModelSnapshot {
    ModelSnapshot {
        transition: VersionTransition::AvailabilityPreserving,
        versions: snapshots(aspired, true).chain(snapshots(others, false)).collect(),
        former: Vec::new(),
        must_publish: false,
        load_deadline: None,
        return_deadline: None,
        unload_is_done: false,
    }
}

fn frugal(aspired: Versions, others: Versions) -> ModelSnapshot {
    let transition = VersionTransition::ResourcePreserving;
    ModelSnapshot { transition, ..model(aspired, others) }
}

/// `model` with versions of earlier incarnations.
fn after(former: Versions, model: ModelSnapshot) -> ModelSnapshot {
    ModelSnapshot { former: snapshots(former, false).collect(), ..model }
}

fn limits() -> PlanLimits {
    PlanLimits { now: Instant::now(), has_free_thread: true, memory: None }
}

/// The next action without limits.
fn next(model: &ModelSnapshot) -> Option<Action> {
    next_action(model, &limits())
}

/// Checks the next action of each model.
fn check(cases: &[(&str, ModelSnapshot, Option<Action>)]) {
    for (name, model, want) in cases {
        assert_eq!(next(model), *want, "{name}: {model:?}");
    }
}

#[test]
fn a_new_version_replaces_the_old_one() {
    let published = ModelSnapshot { must_publish: true, ..model(&[(2, Ready)], &[(1, Ready)]) };
    check(&[
        ("files not checked yet", model(&[(2, Unchecked)], &[(1, Ready)]), None),
        ("files missing", model(&[(2, Incomplete)], &[(1, Ready)]), None),
        ("complete", model(&[(2, Loadable)], &[(1, Ready)]), Some(Load(2))),
        ("loading", model(&[(2, Loading)], &[(1, Ready)]), None),
        ("failed", model(&[(2, Failed)], &[(1, Ready)]), None),
        ("loaded: publish it first", published, Some(Publish)),
        ("then drain the old version", model(&[(2, Ready)], &[(1, Ready)]), Some(Drain(1))),
        ("requests hold it", model(&[(2, Ready)], &[(1, Draining)]), None),
        ("no request holds it", model(&[(2, Ready)], &[(1, Drained)]), Some(Unload(1))),
        ("its memory is being released", model(&[(2, Ready)], &[(1, Unloading)]), None),
        ("done", model(&[(2, Ready)], &[(1, Unloaded)]), None),
    ]);
}

#[test]
fn a_rollback_during_a_load_keeps_what_serves() {
    check(&[
        ("the old version stays, the load continues", model(&[(1, Ready)], &[(2, Loading)]), None),
        ("the loaded version is drained", model(&[(1, Ready)], &[(2, Ready)]), Some(Drain(2))),
        ("a version that never served", model(&[(1, Ready)], &[(2, Loadable)]), Some(Discard(2))),
        ("or failed", model(&[(1, Ready)], &[(2, Failed)]), Some(Discard(2))),
        ("or waits for files", model(&[(1, Ready)], &[(2, Incomplete)]), Some(Discard(2))),
        ("or was just found", model(&[(1, Ready)], &[(2, Unchecked)]), Some(Discard(2))),
        ("the old version is draining already", model(&[(1, Draining)], &[(2, Ready)]), None),
        ("and is loaded again", model(&[(1, Loadable)], &[(2, Ready)]), Some(Load(1))),
    ]);
}

#[test]
fn a_model_that_is_not_there_any_more_is_unloaded() {
    check(&[
        ("all versions are drained", model(&[], &[(1, Ready), (2, Ready)]), Some(Drain(1))),
        ("even while others drain", model(&[], &[(1, Drained), (2, Draining)]), Some(Unload(1))),
        ("a load continues until it ends", model(&[], &[(1, Loading)]), None),
        ("all unloaded", model(&[], &[(1, Unloaded)]), None),
        ("a failed version is discarded", model(&[], &[(1, Failed)]), Some(Discard(1))),
    ]);
}

#[test]
fn predecessors_serve_until_the_new_source_does() {
    let old = &[(1, Ready)];
    let gone = ModelSnapshot { must_publish: true, ..after(&[(1, Draining)], model(&[], &[])) };
    check(&[
        ("no version found yet", after(old, model(&[], &[])), None),
        ("files are missing", after(old, model(&[(1, Incomplete)], &[])), None),
        ("complete", after(old, model(&[(1, Loadable)], &[])), Some(Load(1))),
        ("loading", after(old, model(&[(1, Loading)], &[])), None),
        ("failed", after(old, model(&[(1, Failed)], &[])), None),
        ("ready", after(old, model(&[(1, Ready)], &[])), Some(DrainPredecessors)),
        ("requests hold them", after(&[(1, Draining)], model(&[(1, Ready)], &[])), None),
        (
            "no request holds one",
            after(&[(1, Draining), (2, Drained)], model(&[(1, Ready)], &[])),
            Some(UnloadFormer(1)),
        ),
        ("released", after(&[(1, Unloading)], model(&[(1, Ready)], &[])), None),
        (
            "a load from the old source continues until it ends",
            after(&[(2, Loading)], model(&[(1, Loadable)], &[])),
            Some(Load(1)),
        ),
        ("the new source is withdrawn", gone, Some(Publish)),
    ]);
}

#[test]
fn to_save_memory_old_and_new_are_never_in_memory_together() {
    let old = &[(1, Ready)];
    check(&[
        ("not for an incomplete version", frugal(&[(2, Incomplete)], &[(1, Ready)]), None),
        (
            "the old version is drained first",
            frugal(&[(2, Loadable)], &[(1, Ready)]),
            Some(Drain(1)),
        ),
        ("requests hold it", frugal(&[(2, Loadable)], &[(1, Draining)]), None),
        ("no request holds it", frugal(&[(2, Loadable)], &[(1, Drained)]), Some(Unload(1))),
        ("its memory is being released", frugal(&[(2, Loadable)], &[(1, Unloading)]), None),
        ("then the new version loads", frugal(&[(2, Loadable)], &[(1, Unloaded)]), Some(Load(2))),
        ("predecessors stay", after(old, frugal(&[(1, Incomplete)], &[])), None),
        (
            "until a load can begin",
            after(old, frugal(&[(1, Loadable)], &[])),
            Some(DrainPredecessors),
        ),
        ("requests hold them", after(&[(1, Draining)], frugal(&[(1, Loadable)], &[])), None),
        ("a load from the old source", after(&[(1, Loading)], frugal(&[(1, Loadable)], &[])), None),
        ("released", after(&[(1, Unloading)], frugal(&[(1, Loadable)], &[])), None),
        ("gone", frugal(&[(1, Loadable)], &[]), Some(Load(1))),
    ]);
}

#[test]
fn no_load_begins_without_a_free_thread() {
    let busy = PlanLimits { has_free_thread: false, ..limits() };
    let cases = [
        (model(&[(1, Loadable)], &[]), None),
        // Predecessors stay until the load can begin.
        (after(&[(1, Ready)], frugal(&[(1, Loadable)], &[])), None),
        // Other actions continue.
        (model(&[(2, Ready)], &[(1, Ready)]), Some(Drain(1))),
        (model(&[(2, Loadable)], &[(1, Drained)]), Some(Unload(1))),
        (model(&[(2, Loadable)], &[(1, Failed)]), Some(Discard(1))),
    ];
    for (model, want) in cases {
        assert_eq!(next_action(&model, &busy), want, "{model:?}");
    }
}

#[test]
fn a_load_waits_for_room_or_is_refused() {
    let refuse = |staying, fits_alone| {
        Some(Refuse(2, NoRoom { needed: BYTES, staying, limit: 250, fits_alone }))
    };
    let new = || model(&[(2, Loadable)], &[]);
    let beside_own = || model(&[(2, Loadable)], &[(1, Ready)]);
    let beside_predecessor = || after(&[(1, Ready)], model(&[(2, Loadable)], &[]));
    let cases = [
        ("an empty server", new(), 0, 0, Some(Load(2))),
        ("just enough room", new(), 150, 0, Some(Load(2))),
        ("others take too much", new(), 151, 0, refuse(151, false)),
        ("enough of it is leaving", new(), 250, 100, None),
        ("not enough of it is leaving", new(), 250, 99, refuse(151, false)),
        ("all of it is leaving, and the room suffices", new(), 150, 150, Some(Load(2))),
        ("its own old version is in the way", beside_own(), 200, 0, refuse(200, true)),
        ("its old version and others", beside_own(), 300, 0, refuse(300, false)),
        ("its predecessor is in the way", beside_predecessor(), 200, 0, refuse(200, true)),
        ("more than all memory", new(), u64::MAX, 0, refuse(u64::MAX, false)),
    ];
    for (name, model, used, leaving, want) in cases {
        let memory = Some(ModelMemory { limit: 250, used, leaving });
        assert_eq!(next_action(&model, &PlanLimits { memory, ..limits() }), want, "{name}");
    }
    // A version that waits for memory does not delay other actions.
    let memory = Some(ModelMemory { limit: 250, used: 250, leaving: 250 });
    let model = model(&[(2, Loadable)], &[(1, Failed)]);
    assert_eq!(next_action(&model, &PlanLimits { memory, ..limits() }), Some(Discard(1)));
}

#[test]
fn a_requested_model_is_ready_as_a_whole_or_nothing_of_it_stays() {
    let now = Instant::now();
    let requested = |versions: Versions| {
        let load_deadline = Some(now + Duration::from_secs(1));
        ModelSnapshot { load_deadline, ..model(versions, &[]) }
    };
    let late = Some(CompleteLoad(LoadOutcome::Late));
    let (ready, failed) = (LoadOutcome::Ready, LoadOutcome::Failed(1));
    let cases = [
        ("both load", requested(&[(1, Loading), (2, Loading)]), None, late),
        ("one of two", requested(&[(1, Loading), (2, Ready)]), None, late),
        (
            "both",
            requested(&[(1, Ready), (2, Ready)]),
            Some(CompleteLoad(ready)),
            Some(CompleteLoad(ready)),
        ),
        (
            "one fails while the other loads",
            requested(&[(1, Failed), (2, Loading)]),
            Some(CompleteLoad(failed)),
            Some(CompleteLoad(failed)),
        ),
        (
            "one fails, the other serves",
            requested(&[(1, Failed), (2, Ready)]),
            Some(CompleteLoad(failed)),
            Some(CompleteLoad(failed)),
        ),
    ];
    for (name, model, in_time, too_late) in cases {
        let at = |now| next_action(&model, &PlanLimits { now, ..limits() });
        assert_eq!(at(now), in_time, "{name}");
        assert_eq!(at(now + Duration::from_secs(1)), too_late, "{name}, too late");
    }
    // The request is answered when other requests can use the model.
    let ready = ModelSnapshot { must_publish: true, ..requested(&[(1, Ready)]) };
    assert_eq!(next(&ready), Some(Publish));
    // Without a waiting request, no action is left.
    assert_eq!(next(&model(&[(1, Ready)], &[])), None);
}

#[test]
fn an_unloaded_model_is_done_when_nothing_of_it_is_in_memory() {
    let unloaded = |former: Versions, unload_is_done| ModelSnapshot {
        unload_is_done,
        ..after(former, model(&[], &[]))
    };
    check(&[
        ("still loading", unloaded(&[(1, Loading)], false), None),
        ("requests hold it", unloaded(&[(1, Draining)], false), None),
        ("no request holds it", unloaded(&[(1, Drained)], false), Some(UnloadFormer(0))),
        ("its memory is being released", unloaded(&[(1, Unloading)], false), None),
        ("released", unloaded(&[], true), Some(CompleteUnloads)),
        (
            "another load of the name continues",
            unloaded(&[(1, Loading)], true),
            Some(CompleteUnloads),
        ),
    ]);
}

#[test]
fn a_model_out_of_service_is_unloaded_and_comes_back() {
    let now = Instant::now();
    let returning = |aspired: Versions, others: Versions| {
        let return_deadline = Some(now + Duration::from_secs(1));
        ModelSnapshot { return_deadline, ..model(aspired, others) }
    };
    let out = model(&[], &[(1, Ready), (2, Unloaded)]);
    assert_eq!(next(&out), Some(Drain(1)));
    let done = |outcome| Some(CompleteReturn(outcome));
    let late = done(ReturnOutcome::Late);
    let cases = [
        ("still draining", returning(&[(1, Draining)], &[]), None, late),
        ("not discovered yet", returning(&[(1, Unloaded)], &[]), None, late),
        ("not checked yet", returning(&[(1, Unchecked)], &[]), None, late),
        ("loading", returning(&[(1, Loading)], &[(2, Unloaded)]), None, late),
        ("one is ready, another loads", returning(&[(1, Ready), (2, Loading)], &[]), None, late),
    ];
    for (name, model, in_time, too_late) in cases {
        let at = |now| next_action(&model, &PlanLimits { now, ..limits() });
        assert_eq!(at(now), in_time, "{name}");
        assert_eq!(at(now + Duration::from_secs(1)), too_late, "{name}, too late");
    }
    check(&[
        ("ready", returning(&[(1, Ready)], &[(2, Unloaded)]), done(ReturnOutcome::Ready)),
        (
            "one is ready, another has failed",
            returning(&[(1, Failed), (2, Ready)], &[]),
            done(ReturnOutcome::Ready),
        ),
        (
            "none is ready",
            returning(&[(1, Incomplete), (2, Failed)], &[]),
            done(ReturnOutcome::Failed(2)),
        ),
        (
            "files are missing",
            returning(&[(1, Incomplete)], &[]),
            done(ReturnOutcome::Incomplete(1)),
        ),
        ("no version", returning(&[], &[(1, Unloaded)]), done(ReturnOutcome::NoVersion)),
    ]);
}

/// Applies actions to a snapshot, as the lifecycle manager applies them to an entry.
struct World {
    model: ModelSnapshot,
    /// Whether requests find a ready version.
    serves: bool,
}

impl World {
    fn phase(&mut self, version: i64) -> &mut Phase {
        let found = self.model.versions.iter_mut().find(|v| v.version == version);
        &mut found.expect("a version of the model").phase
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Publish => {
                let mut all = self.model.versions.iter().chain(&self.model.former);
                self.serves = all.any(|v| v.phase == Ready);
                self.model.must_publish = false;
            }
            Load(version) => *self.phase(version) = Loading,
            Refuse(version, _) => *self.phase(version) = Failed,
            Drain(version) => {
                *self.phase(version) = Draining;
                self.model.must_publish = true;
            }
            DrainPredecessors => {
                let predecessors = self.model.former.iter_mut().filter(|v| v.phase == Ready);
                predecessors.for_each(|v| v.phase = Draining);
                self.model.must_publish = true;
            }
            Unload(version) => *self.phase(version) = Unloading,
            UnloadFormer(index) => self.model.former[index].phase = Unloading,
            Discard(version) => *self.phase(version) = Unloaded,
            CompleteLoad(_) | CompleteReturn(_) | CompleteUnloads => panic!("no request waits"),
        }
    }

    /// Ends the `choice`-th operation in progress. False if there is none.
    fn end_something(&mut self, choice: usize) -> bool {
        let all = || self.model.versions.iter().chain(&self.model.former);
        let is_under_way = |phase| matches!(phase, Loading | Draining | Unloading);
        let count = all().filter(|v| is_under_way(v.phase)).count();
        if count == 0 {
            return false;
        }
        let all = self.model.versions.iter_mut().chain(&mut self.model.former);
        let chosen =
            all.filter(|v| is_under_way(v.phase)).nth(choice % count).expect("in progress");
        let fails = (choice / count).is_multiple_of(4);
        chosen.phase = if chosen.phase == Loading {
            if fails { Failed } else { Ready }
        } else if chosen.phase == Draining {
            Drained
        } else {
            Unloaded
        };
        self.model.must_publish |= chosen.phase == Ready;
        self.model.former.retain(|v| !matches!(v.phase, Failed | Unloaded));
        true
    }
}

proptest::proptest! {
    /// For any versions, any aspired versions, and any order in which loads and unloads end: the
    /// actions end, the aspired versions serve, and no other version is in memory.
    #[test]
    fn from_any_versions_to_any_others(
        is_frugal: bool,
        old in 0i64..3,
        kept in 0i64..2,
        new in 0i64..3,
        predecessors in 0i64..3,
        choices in proptest::collection::vec(0usize..1000, 40),
    ) {
        let ready = |count: i64| (1..=count).map(|version| (version, Ready)).collect::<Vec<_>>();
        let mut aspired = vec![(10, Ready); usize::try_from(kept).expect("few")];
        aspired.extend((20..20 + new).map(|version| (version, Loadable)));
        // Predecessors exist only while no version of the current incarnation serves.
        let predecessors = if kept + old == 0 { predecessors } else { 0 };
        let mut model = after(&ready(predecessors), model(&aspired, &ready(old)));
        if is_frugal {
            model.transition = VersionTransition::ResourcePreserving;
        }
        let serves = kept + old + predecessors > 0;
        let mut world = World { model, serves };
        for choice in choices {
            for step in 0.. {
                let Some(action) = next(&world.model) else {
                    break;
                };
                proptest::prop_assert!(step < 30, "{action:?} repeats endlessly");
                let served = world.serves;
                world.carry_out(action);
                let wanted = kept + new > 0;
                let gap = served && !world.serves && wanted && !is_frugal;
                proptest::prop_assert!(!gap, "{action:?} leaves requests without a version");
                let new_in_memory = |v: &&VersionSnapshot| v.version >= 20 && v.phase.is_in_memory();
                let old_in_memory = |v: &&VersionSnapshot| v.version < 10 && v.phase.is_in_memory();
                let versions = || world.model.versions.iter().chain(&world.model.former);
                let together = versions().any(|v| new_in_memory(&v)) && versions().any(|v| old_in_memory(&v));
                proptest::prop_assert!(!(together && is_frugal), "{action:?} takes memory twice");
            }
            if !world.end_something(choice) {
                break;
            }
        }
        let has_ready = world.model.versions.iter().any(|v| v.aspired && v.phase == Ready);
        for v in &world.model.versions {
            match v.aspired {
                true => proptest::prop_assert!(matches!(v.phase, Ready | Failed), "{v:?}"),
                false if has_ready || kept + new == 0 => proptest::prop_assert_eq!(v.phase, Unloaded),
                // All new versions have failed: the old ones stay.
                false => proptest::prop_assert!(is_frugal || v.phase == Ready, "{v:?}"),
            }
        }
        proptest::prop_assert!(!has_ready || world.model.former.is_empty());
    }
}
