use std::path::Path;
use std::time::Duration;

use super::*;
use crate::config::ReleaseConfig;
use crate::repository::policy::Phase;

/// A model of the source `a` without versions.
fn configured() -> ModelEntry {
    let mut entry = ModelEntry::new("m".into());
    entry.adopt("a".into(), ModelConfig::default());
    entry
}

fn folders(versions: &[i64]) -> BTreeMap<i64, PathBuf> {
    versions.iter().map(|&number| (number, format!("a/{number}").into())).collect()
}

/// Takes over versions where none is remembered as held.
fn adopt(entry: &mut ModelEntry, found: BTreeMap<i64, PathBuf>) {
    entry.adopt_versions(found, &HeldVersions::new(None));
}

/// Puts a version through these states.
fn set_states(entry: &mut ModelEntry, number: i64, states: Vec<VersionState>) {
    let version = entry.versions.get_mut(&number).expect("a version");
    states.into_iter().for_each(|state| version.set_state(state));
}

fn aspired(entry: &ModelEntry) -> Vec<i64> {
    let aspired = entry.versions.iter().filter(|(_, version)| version.aspired);
    aspired.map(|(&number, _)| number).collect()
}

fn phases(entry: &ModelEntry) -> Vec<(i64, Phase)> {
    entry.snapshot().versions.iter().map(|v| (v.version, v.phase)).collect()
}

#[test]
fn aspired_versions_follow_what_is_there() {
    let mut entry = configured();
    adopt(&mut entry, folders(&[1, 2]));
    assert_eq!((phases(&entry), aspired(&entry)), (vec![(2, Phase::Unchecked)], vec![2]));
    set_states(&mut entry, 2, vec![VersionState::Loading]);
    adopt(&mut entry, folders(&[1, 2, 3]));
    assert_eq!(phases(&entry), [(2, Phase::Loading), (3, Phase::Unchecked)]);
    assert_eq!(aspired(&entry), [3]);
    // The new version is deleted: the version that is loading will serve.
    adopt(&mut entry, folders(&[1, 2]));
    assert_eq!(aspired(&entry), [2]);
    entry.discard(3);
    assert_eq!(phases(&entry), [(2, Phase::Loading), (3, Phase::Unloaded)]);
    // The version reappears: its files are checked like those of a new version.
    adopt(&mut entry, folders(&[3]));
    assert_eq!(phases(&entry), [(2, Phase::Loading), (3, Phase::Unchecked)]);
}

#[test]
fn what_was_held_before_the_start_leaves_its_place_to_another_version() {
    let root = tempfile::tempdir().expect("temporary directory");
    let held = HeldVersions::new(Some(root.path().to_owned()));
    held.remember(Path::new("a/3"), "it is worse");
    let release = ReleaseConfig { is_gated: true, ..ReleaseConfig::default() };
    let mut entry = ModelEntry::new("m".into());
    entry.adopt("a".into(), ModelConfig { release, ..ModelConfig::default() });
    entry.adopt_versions(folders(&[1, 2, 3]), &held);
    assert_eq!(phases(&entry), [(2, Phase::Unchecked), (3, Phase::Incomplete)]);
    let state = entry.versions[&3].state.to_string();
    assert_eq!(state, "waiting (held before the server was started: it is worse)");
    // Neither is forgotten by the next scan, and a newer version comes first.
    entry.adopt_versions(folders(&[1, 2, 3, 4]), &held);
    assert_eq!(aspired(&entry), [3, 4]);
    // When it is gone, its number is free.
    entry.adopt_versions(folders(&[1, 2, 4]), &held);
    assert_eq!((held.reason(Path::new("a/3")), aspired(&entry)), (None, vec![4]));
    // Without gated releases nothing is held, and what is held serves.
    held.remember(Path::new("a/6"), "it is worse");
    entry.adopt_versions(folders(&[1, 2, 4, 5, 6]), &held);
    let why = || VersionState::Held("it is worse".to_owned());
    let states = [VersionState::Loading, VersionState::Warming, VersionState::Trial, why()];
    set_states(&mut entry, 5, states.into());
    entry.adopt("a".into(), ModelConfig::default());
    let policy = VersionPolicy::All;
    entry.adopt("a".into(), ModelConfig { policy, ..ModelConfig::default() });
    entry.adopt_versions(folders(&[1, 2, 4, 5, 6]), &held);
    assert_eq!(aspired(&entry), [1, 2, 4, 5, 6]);
    assert!(entry.versions[&5].is_ready());
    assert_eq!(held.reason(Path::new("a/6")), None, "no later start of the server holds it");
    held.remember(Path::new("a/3"), "it is worse");
    let mut open = configured();
    open.adopt_versions(folders(&[1, 2, 3]), &held);
    assert_eq!(aspired(&open), [3]);
}

#[test]
fn versions_that_the_policy_names_and_that_are_not_there_are_known() {
    let mut entry = ModelEntry::new("m".into());
    let policy = VersionPolicy::Specific(vec![1, 7]);
    entry.adopt("a".into(), ModelConfig { policy, ..ModelConfig::default() });
    adopt(&mut entry, folders(&[1, 2]));
    assert_eq!((aspired(&entry), entry.missing_versions()), (vec![1], vec![7]));
    entry.adopt("a".into(), ModelConfig::default());
    assert_eq!(entry.missing_versions(), [0; 0]);
}

#[test]
fn another_source_is_another_incarnation() {
    let mut entry = configured();
    adopt(&mut entry, folders(&[1]));
    set_states(&mut entry, 1, vec![VersionState::Loading]);
    let old = entry.key(1);
    entry.adopt("a".into(), ModelConfig::default());
    assert_eq!(entry.key(1), old, "the same source");
    entry.adopt("b".into(), ModelConfig::default());
    adopt(&mut entry, folders(&[1]));
    assert_ne!(entry.key(1), old);
    assert_eq!(phases(&entry), [(1, Phase::Unchecked)]);
    let former = entry.snapshot().former;
    assert_eq!((former[0].version, former[0].phase), (1, Phase::Loading));
    assert!(entry.version_mut(&old).is_none(), "the loading version is not the new one");
    entry.version_released(&old);
    assert!(entry.snapshot().former.is_empty());
}

#[test]
fn settings_that_requests_see_are_published() {
    let mut entry = configured();
    entry.adopt("a".into(), ModelConfig { warm_up: false, ..ModelConfig::default() });
    assert!(!entry.snapshot().must_publish);
    let labels = BTreeMap::from([("stable".to_owned(), 1)]);
    entry.adopt("a".into(), ModelConfig { labels, ..ModelConfig::default() });
    assert!(entry.snapshot().must_publish);
    assert!(entry.publish().is_empty());
    assert!(!entry.snapshot().must_publish);
}

#[test]
fn an_unload_waits_for_the_versions_that_were_in_memory() {
    let mut entry = ModelEntry::new("m".into());
    entry.begin_incarnation(Origin::Request, "a".into(), ModelConfig::default());
    for (number, folder) in folders(&[1, 2, 3]) {
        entry.versions.insert(number, Version::new(folder));
    }
    set_states(&mut entry, 1, vec![VersionState::Loading]);
    set_states(&mut entry, 2, vec![VersionState::Loading, VersionState::Warming]);
    let (completion, mut outcome) = Completion::channel();
    entry.wait_for_unload(completion);
    let keys = [entry.key(1), entry.key(2)];
    entry.remove();
    assert!(entry.is_removed() && !entry.is_in_use() && !entry.is_dormant());
    // The name is free: the unload does not wait for another load of it.
    entry.begin_incarnation(Origin::Request, "b".into(), ModelConfig::default());
    entry.versions.insert(1, Version::new("b/1".into()));
    set_states(&mut entry, 1, vec![VersionState::Loading]);
    entry.version_released(&keys[0]);
    assert!(!entry.snapshot().unload_is_done);
    entry.version_released(&keys[1]);
    assert!(entry.snapshot().unload_is_done);
    entry.waiters.take_done_unloads().into_iter().for_each(|completion| completion.finish(Ok(())));
    assert!(outcome.try_recv().expect("an outcome").is_ok());
    assert_eq!(phases(&entry), [(1, Phase::Loading)]);
    assert!(!entry.snapshot().unload_is_done);
}

#[test]
fn a_withdrawn_model_keeps_nothing_that_operators_changed() {
    let mut entry = configured();
    adopt(&mut entry, folders(&[1]));
    entry.overrides.set_label(&entry.config, "stable", Some(1));
    entry.is_out_of_service = true;
    entry.discard(1);
    assert!(entry.is_in_use(), "an operator may return it to service");
    entry.withdraw();
    assert!(!entry.is_in_use() && entry.overrides.is_empty() && aspired(&entry).is_empty());
    entry.remove();
    assert!(entry.is_dormant() && !entry.is_remembered(true));
}

#[test]
fn thread_counts_are_remembered_by_source() {
    let mut entry = configured();
    entry.remember_threads(1);
    entry.adopt("b".into(), ModelConfig::default());
    assert_eq!(entry.thread_hint(), None);
    entry.remember_threads(2);
    entry.remove();
    assert!(entry.is_dormant() && entry.is_remembered(true) && !entry.is_remembered(false));
    entry.adopt("a".into(), ModelConfig::default());
    assert_eq!(entry.thread_hint(), Some(1));
    for number in 0..MOST_HINTS {
        entry.adopt(format!("{number}").into(), ModelConfig::default());
        entry.remember_threads(number);
    }
    assert!(entry.thread_hints.len() <= MOST_HINTS);
}

#[test]
fn readers_see_the_last_unloaded_versions() {
    let mut entry = configured();
    for number in 0..40 {
        adopt(&mut entry, folders(&[number]));
        set_states(&mut entry, number, vec![VersionState::Unloaded]);
    }
    entry.versions.values_mut().for_each(|version| version.aspired = false);
    entry.forget_unloaded();
    let shown = entry.status().expect("a known model").versions;
    assert_eq!(shown.into_keys().collect::<Vec<_>>(), (24..40).collect::<Vec<_>>());
    entry.remove();
    assert!(entry.status().is_none());
}

#[test]
fn the_history_is_in_order_and_outlives_versions() {
    let mut entry = configured();
    adopt(&mut entry, folders(&[1]));
    set_states(&mut entry, 1, vec![VersionState::Loading]);
    std::thread::sleep(Duration::from_millis(2));
    entry.add_event("unload", None, &"somebody".into());
    std::thread::sleep(Duration::from_millis(2));
    set_states(&mut entry, 1, vec![VersionState::Warming]);
    entry.remove();
    let whats: Vec<_> =
        entry.take_events().iter().map(|event| (event.what, event.version)).collect();
    assert_eq!(whats, [("loading", Some(1)), ("unload", None), ("warming", Some(1))]);
    assert!(entry.take_events().is_empty());
}
