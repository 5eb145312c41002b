//! The lifecycle of a version.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use super::trial::TrialReport;
use crate::batch::Runaways;
use tensorserve_platform::Executable;
use tensorserve_tensor::error::Error;

/// Where a version is in its lifecycle.
///
/// ```text
/// Found -> Loading -> Warming -> Ready -> Draining -> Unloaded
///   ^         |          | |       ^         ^
///   +----- Failed <------+ +-> Trial -> Held +
/// ```
/// A version is tried only if its model's releases are gated and another version serves. A held version
/// becomes ready if an operator releases it, and a ready one is held if it fails while it is watched.
///
/// A failed version goes back to `Found` when its files change or its load is tried again (and may
/// fail again right there), an unloaded one when it becomes aspired again. `Found` and `Failed`
/// versions that are no longer aspired are `Unloaded`.
#[derive(Debug)]
pub enum VersionState {
    /// The version exists; the text says what its load waits for.
    Found(String),
    /// Its files are being read.
    Loading,
    /// The version is loaded, and its warm-up runs.
    Warming,
    /// The version is loaded, and recorded requests run on it and on the one that serves.
    Trial,
    /// The version is loaded and gets no request; the text says what is against it.
    Held(String),
    /// The version serves requests.
    Ready,
    /// The version gets no new requests; those in flight finish.
    Draining,
    /// The version is no longer in memory.
    Unloaded,
    /// The version could not be loaded.
    Failed(Error),
}

impl VersionState {
    /// Whether a version may change from this state to `next`.
    #[must_use]
    pub fn may_become(&self, next: &Self) -> bool {
        match next {
            Self::Found(_) => matches!(self, Self::Found(_) | Self::Failed(_) | Self::Unloaded),
            Self::Loading => matches!(self, Self::Found(_)),
            Self::Warming => matches!(self, Self::Loading),
            Self::Trial => matches!(self, Self::Warming),
            Self::Held(_) => matches!(self, Self::Trial | Self::Ready),
            Self::Ready => matches!(self, Self::Warming | Self::Trial | Self::Held(_)),
            Self::Draining => matches!(self, Self::Ready | Self::Held(_)),
            Self::Unloaded => {
                matches!(self, Self::Draining | Self::Found(_) | Self::Failed(_))
            }
            Self::Failed(_) => {
                matches!(self, Self::Found(_) | Self::Loading | Self::Warming | Self::Failed(_))
            }
        }
    }
}

impl VersionState {
    /// The names of all states in which a version counts in the metrics.
    pub(crate) const NAMES: [&'static str; 8] =
        ["waiting", "loading", "warming", "trial", "held", "ready", "draining", "failed"];

    /// Its name in the metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Found(_) => "waiting",
            Self::Loading => "loading",
            Self::Warming => "warming",
            Self::Trial => "trial",
            Self::Held(_) => "held",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Unloaded => "unloaded",
            Self::Failed(_) => "failed",
        }
    }

    /// Whether it serves requests.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready)
    }

    /// The state in words, without the further lines of an error, such as a traceback.
    #[must_use]
    pub fn on_one_line(&self) -> String {
        let text = self.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    }
}

impl Clone for VersionState {
    fn clone(&self) -> Self {
        match self {
            Self::Found(reason) => Self::Found(reason.clone()),
            Self::Loading => Self::Loading,
            Self::Warming => Self::Warming,
            Self::Trial => Self::Trial,
            Self::Held(why) => Self::Held(why.clone()),
            Self::Ready => Self::Ready,
            Self::Draining => Self::Draining,
            Self::Unloaded => Self::Unloaded,
            Self::Failed(error) => Self::Failed(error.duplicate()),
        }
    }
}

impl fmt::Display for VersionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found(reason) => write!(f, "waiting ({reason})"),
            Self::Loading => f.write_str("loading"),
            Self::Warming => f.write_str("warming up"),
            Self::Trial => f.write_str("on trial"),
            Self::Held(why) => write!(f, "held: {why}"),
            Self::Ready => f.write_str("ready"),
            Self::Draining => f.write_str("draining"),
            Self::Unloaded => f.write_str("unloaded"),
            Self::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// A version and its state.
#[derive(Clone, Debug)]
pub struct VersionStatus {
    /// Its number.
    pub version: i64,
    /// Its state.
    pub state: VersionState,
    /// Since when it is in that state.
    pub since: SystemTime,
    /// Its runs that do not end, if it is in memory.
    pub(crate) runaways: Option<Arc<Runaways>>,
    /// It is not loaded, because it was held before the server was started.
    pub is_held_before: bool,
    /// What its trial has shown, if it had one.
    pub trial: Option<Arc<TrialReport>>,
    /// What runs it, if it is in memory.
    pub(crate) executable: Option<Weak<dyn Executable>>,
}

impl VersionStatus {
    /// Why it refuses requests although it is ready: runs of it do not end, or none is possible now.
    #[must_use]
    pub fn refusal(&self) -> Option<Error> {
        let is_ready = matches!(self.state, VersionState::Ready);
        let runaways = self.runaways.as_ref().filter(|_| is_ready);
        runaways.and_then(|runaways| runaways.refusal()).or_else(|| self.obstacle())
    }

    /// Why no run of it is possible now although it is ready.
    pub(super) fn obstacle(&self) -> Option<Error> {
        let is_ready = matches!(self.state, VersionState::Ready);
        self.executable.as_ref().filter(|_| is_ready)?.upgrade()?.obstacle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drawn_steps_are_legal() {
        let found = || VersionState::Found(String::new());
        let failed = || VersionState::Failed(Error::internal(""));
        let held = || VersionState::Held(String::new());
        let legal = [
            (found(), VersionState::Loading),
            (VersionState::Loading, VersionState::Warming),
            (VersionState::Warming, VersionState::Ready),
            (VersionState::Warming, VersionState::Trial),
            (VersionState::Trial, VersionState::Ready),
            (VersionState::Trial, held()),
            (held(), VersionState::Ready),
            (held(), VersionState::Draining),
            (VersionState::Ready, held()),
            (VersionState::Ready, VersionState::Draining),
            (VersionState::Draining, VersionState::Unloaded),
            (VersionState::Loading, failed()),
            (VersionState::Warming, failed()),
            (failed(), found()),
            (VersionState::Unloaded, found()),
            (found(), VersionState::Unloaded),
        ];
        for (from, to) in legal {
            assert!(from.may_become(&to), "{from} to {to}");
        }
        let illegal = [
            (found(), VersionState::Ready),
            (VersionState::Ready, VersionState::Unloaded),
            (VersionState::Ready, VersionState::Loading),
            (VersionState::Draining, VersionState::Ready),
            (VersionState::Loading, VersionState::Unloaded),
            (VersionState::Unloaded, VersionState::Ready),
            (VersionState::Warming, held()),
            (VersionState::Trial, VersionState::Draining),
            (held(), VersionState::Trial),
        ];
        for (from, to) in illegal {
            assert!(!from.may_become(&to), "{from} to {to}");
        }
    }
}
