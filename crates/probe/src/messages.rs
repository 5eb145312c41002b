//! What the server, the host, a monitor and a child tell each other: JSON, one message per datagram
//! or line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensorserve_platform::{LoadOptions, OpPolicy};
use tensorserve_tensor::ImageEncoding;

/// A request to probe a version, or to keep it in a child process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProbeRequest {
    /// Its number, for the report.
    pub(crate) id: u64,
    /// The name of the platform.
    pub(crate) platform: String,
    pub(crate) folder: PathBuf,
    pub(crate) tags: Vec<String>,
    pub(crate) threads: usize,
    /// Operations for which the child refuses the version, before it runs it.
    pub(crate) deny_ops: Vec<String>,
    pub(crate) allow_ops: Vec<String>,
    /// Whether images are passed as base64; `None` detects it.
    pub(crate) base64_images: Option<bool>,
    /// Whether the child stays and serves runs.
    pub(crate) isolated: bool,
    /// The other form of the version that is run; `None` for the version as it is loaded.
    pub(crate) form: Option<usize>,
    /// Whether it is loaded by another platform than its own.
    pub(crate) as_other_engine: bool,
}

impl ProbeRequest {
    pub(crate) fn options(&self) -> LoadOptions {
        let images = |base64| if base64 { ImageEncoding::Base64Url } else { ImageEncoding::Raw };
        LoadOptions {
            tags: self.tags.clone(),
            threads: self.threads,
            images: self.base64_images.map(images),
            ops: OpPolicy { deny: self.deny_ops.clone(), allow: self.allow_ops.clone() },
            as_other_engine: self.as_other_engine,
            ..LoadOptions::default()
        }
    }
}

/// The progress of a child, a line each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ProbeProgress {
    /// The child begins to load the version.
    Loading,
    /// The child begins to run this signature on synthetic inputs of the declared shapes.
    Running(String),
    /// All signatures have run.
    Ran,
    /// The child begins to run a signature on another shape: which one, in words.
    Trying(String),
    /// All trials are over, or the time for them is.
    Tried,
    /// The version cannot be loaded: the load itself will report it.
    Refused,
    /// The version needs more memory than there is; the runtime's message.
    OutOfMemory(String),
    /// The version cannot serve, because its files lack values; the reason.
    Unset(String),
}

impl ProbeProgress {
    /// Whether the child has nothing left to do.
    pub(crate) fn is_last(&self) -> bool {
        match self {
            ProbeProgress::Tried
            | ProbeProgress::Refused
            | ProbeProgress::OutOfMemory(_)
            | ProbeProgress::Unset(_) => true,
            ProbeProgress::Loading
            | ProbeProgress::Running(_)
            | ProbeProgress::Ran
            | ProbeProgress::Trying(_) => false,
        }
    }
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ProbeOutcome {
    /// The version can be loaded. The text describes the input for which its process ended, if there was one.
    Passed { ended_by: Option<String> },
    /// The version cannot be loaded, and says so itself.
    Refused,
    /// The version needs more memory than there is.
    OutOfMemory(String),
    /// The version cannot serve, because its files lack values.
    Unset(String),
    /// The version crashed or took too long.
    Failed(String),
}

/// The report of a monitor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProbeReport {
    pub(crate) id: u64,
    pub(crate) outcome: ProbeOutcome,
}
