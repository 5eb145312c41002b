//! The state of a job, below `_transform/` of its output: the job, its plan, and what is done.
//!
//! Every file of it is sealed, and names the job that it belongs to: one that is damaged, or is left of another
//! job, says nothing about this one.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::job::FrozenJob;
use crate::plan::{Entry, Plan};
use crate::seal;
use tensorserve_store::objects::{ObjectInfo, Place};
use tensorserve_tensor::error::{Code, Error, Result};

/// The directory of the state in the output.
pub const DIRECTORY: &str = "_transform/";

const JOB: &str = "_transform/job.json";
const DONE: &str = "_transform/done/";
const JOINED: &str = "_transform/joined/";
const FAILED: &str = "_transform/failed/";
const DEAD: &str = "_transform/dead/";
const LEASES: &str = "_transform/leases/";

/// The most bytes of a plan and of a marker.
const MAX_PLAN: u64 = 4 << 30;
const MAX_MARKER: u64 = 64 << 20;

/// The file that names everything else. It is written last.
#[derive(Serialize, Deserialize)]
struct JobFile {
    job: FrozenJob,
    /// The key of the plan.
    plan: String,
}

/// What an entry has become. Its existence says that all its objects are published.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Marker {
    /// The number of the entry.
    pub entry: usize,
    /// Its objects.
    pub objects: Vec<ObjectOutcome>,
    /// The output that its objects share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combined: Option<ObjectOutcome>,
}

/// What is said of one job.
#[derive(Serialize, Deserialize)]
struct OfJob<T> {
    job: String,
    of: T,
}

/// What an object has become.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ObjectOutcome {
    /// Its key.
    pub key: String,
    /// The version that was read.
    pub tag: String,
    /// Its records.
    pub records: u64,
    /// Its records without an output.
    pub bad: u64,
    /// The bytes of its output.
    pub out_bytes: u64,
    /// The CRC-32C of its output; of a range, that of its part.
    pub crc32c: u32,
    /// The version of its output that was published; absent if it has none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_tag: Option<String>,
    /// It is not what the job takes, and has no output.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// Why it failed; absent if it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The state of a job.
#[derive(Clone)]
pub struct State {
    output: Place,
    /// What the job's file holds, in short: that of a job, once it is known.
    job: String,
}

impl State {
    /// The state in an output.
    #[must_use]
    pub fn new(output: Place) -> Self {
        State { output, job: String::new() }
    }

    /// Whether there is a job in the state, which may be damaged.
    ///
    /// # Errors
    /// If the place does not tell.
    pub fn has_begun(&self) -> Result<bool> {
        Ok(self.output.head(JOB)?.is_some())
    }

    /// Writes down a job and its plan, or returns those of another process that was first; and whether
    /// this one was.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn freeze(&mut self, job: &FrozenJob, plan: Plan) -> Result<(FrozenJob, Plan, bool)> {
        let text = plan.to_lines()?;
        // Of the content, so that processes that start together do not overwrite each other's.
        let key = plan_key(&text);
        self.output.put(&key, &text)?;
        let file = JobFile { job: job.clone(), plan: key };
        let text = json(&file)?;
        if self.output.put_new(JOB, &seal::sealed(text.clone()))? {
            self.job = seal::summary(&text);
            return Ok((file.job, plan, true));
        }
        let missing = || Error::unavailable("the state of the job has disappeared");
        self.load()?.map(|(job, plan)| (job, plan, false)).ok_or_else(missing)
    }

    /// The job in the state and its plan, if there is one.
    ///
    /// # Errors
    /// If they cannot be read, or are damaged.
    pub fn load(&mut self) -> Result<Option<(FrozenJob, Plan)>> {
        let Some(sealed) = self.output.get(JOB, MAX_MARKER)? else {
            return Ok(None);
        };
        let text = seal::opened(&sealed).ok_or_else(|| not_sealed(JOB, &sealed))?;
        let JobFile { job, plan } = parse(JOB, text)?;
        self.job = seal::summary(text);
        let lines = self.output.get(&plan, MAX_PLAN)?;
        let lines = lines.ok_or_else(|| damaged(&plan, "it is missing"))?;
        if plan_key(&lines) != plan {
            return Err(damaged(&plan, "its content is not the one that its name says"));
        }
        Ok(Some((job, Plan::of_lines(&lines)?)))
    }

    /// Forgets everything but who works here now: what is published stays until it is published again.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn clear(&self) -> Result<()> {
        // First, so that what is left of an interrupted removal is not taken for a job.
        self.output.delete(JOB)?;
        for object in self.output.list(DIRECTORY)? {
            if !object.key.starts_with(LEASES) {
                self.output.delete(&object.key)?;
            }
        }
        Ok(())
    }

    /// The numbers of the entries that have a marker, which may be damaged.
    ///
    /// # Errors
    /// If the markers cannot be listed.
    pub fn marked(&self) -> Result<Vec<usize>> {
        self.numbers(DONE)
    }

    fn numbers(&self, directory: &str) -> Result<Vec<usize>> {
        let objects = self.output.list(directory)?;
        let number = |object: &ObjectInfo| {
            object.key.strip_prefix(directory)?.strip_suffix(".json")?.parse().ok()
        };
        Ok(objects.iter().filter_map(number).collect())
    }

    /// Whether an entry has a marker.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub(crate) fn is_marked(&self, entry: usize) -> Result<bool> {
        Ok(self.output.head(&marker(DONE, entry))?.is_some())
    }

    /// The marker of an entry of this job that is done.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if it is damaged, or of another job; if it cannot be read.
    pub(crate) fn marker(&self, entry: usize) -> Result<Option<Marker>> {
        let key = marker(DONE, entry);
        let found: Option<Marker> = self.get(&key)?;
        match found {
            Some(found) if found.entry != entry => {
                Err(damaged(&key, "it is that of another entry"))
            }
            found => Ok(found),
        }
    }

    /// Marks an entry as done.
    ///
    /// # Errors
    /// If the marker cannot be written.
    pub(crate) fn mark_done(&self, done: &Marker) -> Result<()> {
        self.put(&marker(DONE, done.entry), done)
    }

    /// Forgets that an entry was done.
    ///
    /// # Errors
    /// If its marker cannot be removed.
    pub(crate) fn forget(&self, entry: usize) -> Result<()> {
        self.output.delete(&marker(DONE, entry))
    }

    /// The output that the parts of an object were joined to, whose first one entry `first` has made.
    ///
    /// # Errors
    /// As [`State::marker`].
    pub(crate) fn joined(&self, first: usize) -> Result<Option<ObjectOutcome>> {
        self.get(&marker(JOINED, first))
    }

    /// Notes an output that parts were joined to.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub(crate) fn mark_joined(&self, first: usize, output: &ObjectOutcome) -> Result<()> {
        self.put(&marker(JOINED, first), output)
    }

    fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let Some(sealed) = self.output.get(key, MAX_MARKER)? else {
            return Ok(None);
        };
        let text = seal::opened(&sealed).ok_or_else(|| damaged(key, "its checksum is wrong"))?;
        let OfJob { job, of } = parse(key, text)?;
        match job == self.job {
            true => Ok(Some(of)),
            false => Err(damaged(key, "it is that of another job")),
        }
    }

    fn put(&self, key: &str, of: &impl Serialize) -> Result<()> {
        let text = json(&OfJob { job: self.job.clone(), of })?;
        self.output.put(key, &seal::sealed(text)).map(drop)
    }

    /// Notes that objects of an entry have failed. The next run tries it again.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub(crate) fn mark_failed(&self, failed: &Marker) -> Result<()> {
        self.put(&marker(FAILED, failed.entry), failed)
    }

    /// Removes the notes of failures: a new run begins.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn forget_failures(&self, entries: &[&Entry]) -> Result<()> {
        let wanted: BTreeMap<usize, ()> = entries.iter().map(|entry| (entry.entry, ())).collect();
        for number in self.numbers(FAILED)? {
            if wanted.contains_key(&number) {
                self.output.delete(&marker(FAILED, number))?;
            }
        }
        Ok(())
    }

    /// Writes the dead letters of an entry.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn put_dead_letters(&self, place: Option<&Place>, entry: usize, text: &[u8]) -> Result<()> {
        let name = format!("{entry:09}.jsonl");
        match place {
            Some(place) => place.put(&name, text)?,
            None => self.output.put(&format!("{DEAD}{name}"), text)?,
        };
        Ok(())
    }
}

fn marker(directory: &str, entry: usize) -> String {
    format!("{directory}{entry:09}.json")
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|e| Error::internal("the state cannot be written").with_source(e))
}

fn parse<T: DeserializeOwned>(key: &str, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|e| damaged(key, &e.to_string()))
}

/// The key of a plan with this text: a plan with another text is damaged.
fn plan_key(text: &[u8]) -> String {
    format!("{DIRECTORY}plan-{}.jsonl", seal::summary(text))
}

fn damaged(key: &str, why: &str) -> Error {
    let message = format!(
        "{key} is damaged: {why}. It was changed after the job had begun; start again with --overwrite"
    );
    Error::new(Code::DataLoss, message)
}

/// What is wrong with a job's file without a seal: other versions of this program have written files of
/// another format.
fn not_sealed(key: &str, text: &[u8]) -> Error {
    let found: Option<Value> = serde_json::from_slice(text).ok();
    let version = found.as_ref().and_then(|file| file.get("job")?.get("state_version")?.as_u64());
    match version {
        Some(version) if version != u64::from(FrozenJob::version()) => {
            Error::precondition(format!(
                "{key} was written by another version of tensorserve (format {version}; this one has {}): go on \
             with that version, or start again with --overwrite",
                FrozenJob::version()
            ))
        }
        _ => damaged(key, "its checksum is wrong"),
    }
}
