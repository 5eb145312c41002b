//! The load probe: a version is loaded and run in a child process before the server loads it, so that
//! a version that crashes, hangs or exhausts the memory ends that process and not the server.
//!
//! * [`probed`] forks the *probe host* from a server that has no other threads yet. The host stays a
//!   copy of that moment, with the runtimes' libraries open and configured (`host`);
//! * for each probe the host forks a monitor, which forks the child and watches it (`monitor`);
//! * the child loads the version and runs its signatures, also on shapes that they do not declare
//!   (`trial`);
//! * in the server, `link` sends requests to the host, `restart` starts it again when it ends, and `platform` probes
//!   before each load;
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

use serde::{Deserialize, Serialize};
use tensorserve_platform::{Platform, Platforms};
use tensorserve_tensor::error::Result;

use self::link::HostLink;
use self::platform::ProbedLoader;
use self::verdicts::Verdicts;

mod descriptors;
mod host;
mod isolated;
mod isolation;
mod link;
mod memory;
mod messages;
mod monitor;
mod platform;
mod restart;
mod state;
mod trial;
mod verdicts;

/// The argument of this program with which it is the process of load probes.
pub const HOST_COMMAND: &str = "probe-host";

/// Is the process of load probes, whose socket is stdin, until the server ends. `build` creates the platforms from the
/// settings that [`probed`] got. Returns the exit status.
pub fn run_host(build: impl FnOnce(&str) -> Result<Platforms>) -> i32 {
    restart::run(build)
}

/// How versions are probed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// The platforms `inner`, which probe each version before they load it, and run isolated models in processes of their
/// own. Call it before the process starts threads, and after the libraries that are needed soon are open. Where a
/// process cannot be forked, versions are loaded without a probe, isolated models are not loaded, and the log has the
/// reason.
///
/// If the forked process ends, this program is started anew with the argument [`HOST_COMMAND`], for which it has to call
/// [`run_host`]; that creates the platforms from `settings`.
#[must_use]
pub fn probed(platforms: Platforms, config: &ProbeConfig, settings: String) -> Platforms {
    let is_needed = config.probes || config.isolates;
    let started = is_needed.then(|| HostLink::start(&platforms, config, settings));
    let link = started.and_then(|started| {
        let report = |error: &std::io::Error| {
            log::warn!(
                "versions are loaded without a probe, and isolated models are not loaded: the \
                 process of the load probe cannot start: {error}"
            );
        };
        started.inspect_err(report).ok().map(Arc::new)
    });
    let verdicts = config.probes.then(|| Arc::new(Verdicts::new(config)));
    let probed = |platform: &Platform| {
        if platform.info.must_be_named {
            return platform.clone();
        }
        platform.with_loader(ProbedLoader::new(platform.clone(), link.clone(), verdicts.clone()))
    };
    Platforms::new(platforms.iter().map(probed).collect())
}
