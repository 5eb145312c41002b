//! The load probe: a version is loaded and run in a child process before the server loads it, so that
//! a version that crashes, hangs or exhausts the memory ends that process and not the server.
//!
//! * [`probed`] forks the *probe host* from a server that has no other threads yet. The host stays a
//!   copy of that moment, with the runtimes' libraries open and configured (`host`);
//! * for each probe the host forks a monitor, which forks the child and watches it (`monitor`);
//! * the child loads the version and runs its signatures, also on shapes that they do not declare
//!   (`trial`);
//! * in the server, `link` sends requests to the host, and `platform` probes before each load;
//! * what has passed is remembered by the content of its files (`verdicts`).
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tensorserve_platform::{Platform, Platforms};

use self::link::HostLink;
use self::platform::ProbedPlatform;
use self::verdicts::Verdicts;

mod host;
mod link;
mod messages;
mod monitor;
mod platform;
mod trial;
mod verdicts;

/// How versions are probed.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeConfig {
    /// The private memory that a probe may allocate, in bytes; `None` for what is free.
    pub memory_limit: Option<u64>,
    /// Time limit for loading and running a version in the probe.
    pub timeout: Duration,
    /// Directory that remembers which versions have passed.
    pub cache: PathBuf,
    /// Whether a probe uses the GPUs.
    pub gpu: bool,
}

/// The same platforms, which probe each version before they load it. Call it before the process
/// starts threads, and after the libraries that are needed soon are open. Where a process cannot be
/// forked, versions are loaded without a probe; the log has the reason.
#[must_use]
pub fn probed(platforms: Platforms, config: &ProbeConfig) -> Platforms {
    let link = match HostLink::start(&platforms, config) {
        Ok(link) => Arc::new(link),
        Err(error) => {
            log::warn!("versions are loaded without a probe: its process cannot start: {error}");
            return platforms;
        }
    };
    let verdicts = Arc::new(Verdicts::new(config));
    let probed = |platform: &Arc<dyn Platform>| {
        let (inner, link, verdicts) =
            (Arc::clone(platform), Arc::clone(&link), Arc::clone(&verdicts));
        Arc::new(ProbedPlatform::new(inner, link, verdicts)) as Arc<dyn Platform>
    };
    Platforms::new(platforms.iter().map(probed).collect())
}
