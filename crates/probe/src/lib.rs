//! The load probe: a version is loaded and run in a child process before the server loads it, so that
//! a version that crashes, hangs or exhausts the memory ends that process and not the server.
//!
//! * [`probed`] forks the *probe host* from a server that has no other threads yet. The host stays a
//!   copy of that moment, with the runtimes' libraries open and configured (`host`);
//! * for each probe the host forks a monitor, which forks the child and watches it (`monitor`);
//! * the child loads the version and runs its signatures, also on shapes that they do not declare
//!   (`trial`);
//! * in the server, `link` sends requests to the host, and `platform` probes before each load;
//! * what has passed is remembered by the content of its files (`verdicts`);
//! * a model can also stay in such a child for good (`isolation`,
//!   and in the server `isolated`).
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

mod descriptors;
mod host;
mod isolated;
mod isolation;
mod link;
mod messages;
mod monitor;
mod platform;
mod trial;
mod verdicts;

/// How versions are probed.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeConfig {
    /// Whether versions are probed.
    pub probes: bool,
    /// Whether a model is isolated at the start. One that is isolated later needs this or `probes`.
    pub isolates: bool,
    /// The private memory that a probe may allocate, in bytes; `None` for what is free.
    pub memory_limit: Option<u64>,
    /// Time limit for loading and running a version in the probe.
    pub timeout: Duration,
    /// Directory that remembers which versions have passed.
    pub cache: PathBuf,
    /// Whether a probe uses the GPUs.
    pub gpu: bool,
}

/// The same platforms, which probe each version before they load it, and run isolated models in
/// processes of their own. Call it before the process starts threads, and after the libraries that are
/// needed soon are open. Where a process cannot be forked, versions are loaded without a probe, isolated
/// models are not loaded, and the log has the reason.
#[must_use]
pub fn probed(platforms: Platforms, config: &ProbeConfig) -> Platforms {
    let is_needed = config.probes || config.isolates;
    let link = is_needed.then(|| HostLink::start(&platforms, config)).and_then(|started| {
        let report = |error: &std::io::Error| {
            log::warn!(
                "versions are loaded without a probe, and isolated models are not loaded: the \
                 process of the load probe cannot start: {error}"
            );
        };
        started.inspect_err(report).ok().map(Arc::new)
    });
    let verdicts = config.probes.then(|| Arc::new(Verdicts::new(config)));
    let probed = |platform: &Arc<dyn Platform>| {
        if platform.must_be_named() {
            return Arc::clone(platform);
        }
        let inner = Arc::clone(platform);
        Arc::new(ProbedPlatform::new(inner, link.clone(), verdicts.clone())) as Arc<dyn Platform>
    };
    Platforms::new(platforms.iter().map(probed).collect())
}
