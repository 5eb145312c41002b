//! The state of a job, below `_transform/` of its output: the job, its plan, and what is done.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::job::FrozenJob;
use crate::plan::{Entry, Plan};
use tensorserve_store::objects::{ObjectInfo, Place};
use tensorserve_tensor::error::{Code, Error, Result};

/// The directory of the state in the output.
pub const DIRECTORY: &str = "_transform/";

const JOB: &str = "_transform/job.json";
const DONE: &str = "_transform/done/";
const FAILED: &str = "_transform/failed/";
const DEAD: &str = "_transform/dead/";

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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Marker {
    /// The number of the entry.
    pub entry: usize,
    /// Its objects.
    pub objects: Vec<ObjectOutcome>,
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
    /// Those without an output.
    pub bad: u64,
    /// The bytes of its output.
    pub out_bytes: u64,
    /// The CRC-32C of its output; of a range, that of its part.
    pub crc32c: u32,
    /// Why it failed; absent if it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The state of a job.
#[derive(Clone)]
pub struct State {
    output: Place,
}

impl State {
    /// The state in an output.
    #[must_use]
    pub fn new(output: Place) -> Self {
        State { output }
    }

    /// Whether there is a job in the state, which may be damaged.
    ///
    /// # Errors
    /// If the place does not tell.
    pub fn has_begun(&self) -> Result<bool> {
        Ok(self.output.head(JOB)?.is_some())
    }

    fn job_file(&self) -> Result<Option<JobFile>> {
        let Some(text) = self.output.get(JOB, MAX_MARKER)? else {
            return Ok(None);
        };
        parse(JOB, &text).map(Some)
    }

    /// Writes down a job and its plan, or returns those of another process that was first; and whether
    /// this one was.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn freeze(&self, job: &FrozenJob, plan: Plan) -> Result<(FrozenJob, Plan, bool)> {
        let text = plan.to_lines()?;
        // Of the content, so that processes that start together do not overwrite each other's.
        let key = format!("{DIRECTORY}plan-{:08x}-{}.jsonl", crc32c::crc32c(&text), text.len());
        self.output.put(&key, &text)?;
        let file = JobFile { job: job.clone(), plan: key };
        if self.output.put_new(JOB, &json(&file)?)? {
            return Ok((file.job, plan, true));
        }
        let missing = || Error::unavailable("the state of the job has disappeared");
        self.load()?.map(|(job, plan)| (job, plan, false)).ok_or_else(missing)
    }

    /// The job in the state and its plan, if there is one.
    ///
    /// # Errors
    /// If they cannot be read, or are damaged.
    pub fn load(&self) -> Result<Option<(FrozenJob, Plan)>> {
        let Some(JobFile { job, plan }) = self.job_file()? else {
            return Ok(None);
        };
        let text = self.output.get(&plan, MAX_PLAN)?;
        let text = text.ok_or_else(|| {
            Error::new(Code::DataLoss, format!("{plan} is missing: start again with --overwrite"))
        })?;
        Ok(Some((job, Plan::of_lines(&text)?)))
    }

    /// Forgets everything: what is published stays until it is published again.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn clear(&self) -> Result<()> {
        // First, so that what is left of an interrupted removal is not taken for a job.
        self.output.delete(JOB)?;
        for object in self.output.list(DIRECTORY)? {
            self.output.delete(&object.key)?;
        }
        Ok(())
    }

    /// The numbers of the entries that are done.
    ///
    /// # Errors
    /// If the markers cannot be listed.
    pub fn done(&self) -> Result<Vec<usize>> {
        self.numbers(DONE)
    }

    fn numbers(&self, directory: &str) -> Result<Vec<usize>> {
        let objects = self.output.list(directory)?;
        let number = |object: &ObjectInfo| {
            object.key.strip_prefix(directory)?.strip_suffix(".json")?.parse().ok()
        };
        Ok(objects.iter().filter_map(number).collect())
    }

    /// Whether an entry is done.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub fn is_done(&self, entry: usize) -> Result<bool> {
        Ok(self.output.head(&marker(DONE, entry))?.is_some())
    }

    /// The marker of an entry that is done.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn marker(&self, entry: usize) -> Result<Option<Marker>> {
        let key = marker(DONE, entry);
        let text = self.output.get(&key, MAX_MARKER)?;
        text.map(|text| parse(&key, &text)).transpose()
    }

    /// Marks an entry as done.
    ///
    /// # Errors
    /// If the marker cannot be written.
    pub fn mark_done(&self, done: &Marker) -> Result<()> {
        self.output.put(&marker(DONE, done.entry), &json(done)?)?;
        Ok(())
    }

    /// Notes that objects of an entry have failed. The next run tries it again.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub fn mark_failed(&self, failed: &Marker) -> Result<()> {
        self.output.put(&marker(FAILED, failed.entry), &json(failed)?)?;
        Ok(())
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
    serde_json::from_slice(text).map_err(|e| {
        Error::new(
            Code::DataLoss,
            format!(
                "{key} is damaged ({e}): it was changed, or written by another version; start \
                     again with --overwrite"
            ),
        )
    })
}
