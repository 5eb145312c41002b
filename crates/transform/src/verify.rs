//! Which entries of a plan are done: those whose markers are whole and whose outputs are still what was
//! published. The others are run again.

use std::collections::{BTreeMap, BTreeSet};

use crate::content::{difference, is_version};
use crate::job::FrozenJob;
use crate::parts;
use crate::plan::{Entry, Plan};
use crate::state::{Marker, ObjectOutcome, State};
use tensorserve_store::objects::{ObjectInfo, Place};
use tensorserve_tensor::error::{Code, Result};

/// What of a plan is done.
#[derive(Debug, Default)]
pub struct Verified {
    /// The numbers of the entries.
    pub done: BTreeSet<usize>,
    /// What was found of entries that were done and are to be run again.
    pub damages: Vec<String>,
}

/// Verifies what `entries` of a plan have become, and forgets those that are not done any more.
///
/// # Errors
/// If the output cannot be read.
pub fn verify(
    state: &State,
    job: &FrozenJob,
    plan: &Plan,
    output: &Place,
    entries: &[usize],
) -> Result<Verified> {
    let checker = Checker { state, job, plan, output, listed: listed(output) };
    checker.verified(entries)
}

/// What is listed of a store in a few requests. Without it, each output is asked for, as those in a folder are.
fn listed(output: &Place) -> BTreeMap<String, ObjectInfo> {
    let objects = if output.is_local() { Vec::new() } else { output.list("").unwrap_or_default() };
    objects.into_iter().map(|object| (object.key.clone(), object)).collect()
}

struct Checker<'c> {
    state: &'c State,
    job: &'c FrozenJob,
    plan: &'c Plan,
    output: &'c Place,
    /// Older than the markers: what is missing or differs is asked for again, since other processes work.
    listed: BTreeMap<String, ObjectInfo>,
}

/// What is known of an entry.
enum Found {
    Done(usize),
    /// The entry is to be run again.
    Damaged(usize, String),
    /// A range, whose object tells.
    Range(Marker),
}

impl Checker<'_> {
    fn verified(&self, entries: &[usize]) -> Result<Verified> {
        let own = entries.iter().filter_map(|&number| self.plan.entries.get(number));
        // The other ranges of an object decide whether it is joined.
        let parts = own.flat_map(|entry| self.plan.parts_of(entry)).map(|part| part.entry);
        let wanted: BTreeSet<usize> = parts.collect();
        let marked: Vec<usize> =
            self.state.marked()?.into_iter().filter(|number| wanted.contains(number)).collect();
        let (mut ranges, mut found) = (BTreeMap::<usize, Vec<Marker>>::new(), Vec::new());
        for entry in self.output.map(marked, |number| self.entry(number)) {
            match entry? {
                Some(Found::Range(marker)) => {
                    ranges.entry(self.first_part(marker.entry)).or_default().push(marker);
                }
                other => found.extend(other),
            }
        }
        for object in self
            .output
            .map(ranges.into_iter().collect(), |(first, markers)| self.ranges(first, &markers))
        {
            found.extend(object?);
        }
        let mut verified = Verified::default();
        for entry in found {
            match entry {
                Found::Done(number) => drop(verified.done.insert(number)),
                Found::Damaged(number, why) => {
                    self.state.forget(number)?;
                    if !verified.damages.contains(&why) {
                        verified.damages.push(why);
                    }
                }
                Found::Range(_) => {}
            }
        }
        Ok(verified)
    }

    fn first_part(&self, number: usize) -> usize {
        let range = self.plan.entries.get(number).and_then(|entry| entry.range);
        number - range.map_or(0, |range| range.part)
    }

    /// An entry that has a marker.
    fn entry(&self, number: usize) -> Result<Option<Found>> {
        let marker = match self.state.marker(number) {
            Err(error) if error.code() == Code::DataLoss => {
                return Ok(Some(Found::Damaged(number, error.message().to_owned())));
            }
            marker => marker?,
        };
        let (Some(marker), Some(entry)) = (marker, self.plan.entries.get(number)) else {
            return Ok(None);
        };
        if entry.range.is_some() {
            return Ok(Some(Found::Range(marker)));
        }
        for outcome in marker.objects.iter().chain(&marker.combined) {
            if let Some(why) = self.difference(&self.out_key(entry, outcome), outcome)? {
                return Ok(Some(Found::Damaged(number, why)));
            }
        }
        Ok(Some(Found::Done(number)))
    }

    fn out_key(&self, entry: &Entry, outcome: &ObjectOutcome) -> String {
        let is_input = entry.objects.iter().any(|object| object.key == outcome.key);
        match is_input {
            true => format!("{}{}", outcome.key, self.job.output_suffix),
            false => outcome.key.clone(),
        }
    }

    /// The ranges of an object that have markers: done if it is joined, or with their parts.
    fn ranges(&self, first: usize, markers: &[Marker]) -> Result<Vec<Found>> {
        let Some((entry, range)) =
            self.plan.entries.get(first).and_then(|entry| Some((entry, entry.range?)))
        else {
            return Ok(Vec::new());
        };
        let object = entry.objects.first().map_or("", |object| object.key.as_str());
        let key = format!("{object}{}", self.job.output_suffix);
        let joined = match markers.len() == range.parts {
            true => self.joined(first, markers, &key)?,
            false => Some(format!("{key} is not complete")),
        };
        if joined.is_none() {
            return Ok(markers.iter().map(|marker| Found::Done(marker.entry)).collect());
        }
        let mut found = Vec::with_capacity(markers.len());
        let mut is_missing = false;
        for marker in markers {
            let Some(outcome) = marker.objects.first() else { continue };
            found.push(match self.difference(&parts::key(marker.entry), outcome)? {
                None => Found::Done(marker.entry),
                Some(part) => {
                    is_missing = true;
                    Found::Damaged(marker.entry, joined.clone().unwrap_or(part))
                }
            });
        }
        // Another process may have joined the parts meanwhile, and removed them.
        if is_missing
            && markers.len() == range.parts
            && self.joined(first, markers, &key)?.is_none()
        {
            return Ok(markers.iter().map(|marker| Found::Done(marker.entry)).collect());
        }
        Ok(found)
    }

    /// What is wrong with the output that all parts of an object were joined to.
    fn joined(&self, first: usize, markers: &[Marker], key: &str) -> Result<Option<String>> {
        let Some((out_bytes, crc32c)) = parts::whole(markers) else {
            return Ok(None);
        };
        // Without the note, or with a damaged one, the content tells.
        let note = self.state.joined(first).ok().flatten();
        let note = note.filter(|note| (note.out_bytes, note.crc32c) == (out_bytes, crc32c));
        let out_tag = Some(note.and_then(|note| note.out_tag).unwrap_or_default());
        let outcome = ObjectOutcome { out_bytes, crc32c, out_tag, ..ObjectOutcome::default() };
        self.difference(key, &outcome)
    }

    fn difference(&self, key: &str, outcome: &ObjectOutcome) -> Result<Option<String>> {
        let listed = self.listed.get(key);
        if listed.is_some_and(|listed| is_version(listed, outcome)) {
            return Ok(None);
        }
        difference(self.output, key, outcome)
    }
}
