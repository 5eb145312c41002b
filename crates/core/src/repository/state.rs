//! The life of a version.

use std::fmt;
use std::time::SystemTime;

use tensorserve_tensor::error::Error;

/// Where a version is in its life.
///
/// ```text
/// Found -> Loading -> Warming -> Ready -> Draining -> Gone
///   ^         |          |
///   +----- Failed <------+
/// ```
/// A failed version goes back to `Found` when its files change or it is tried again (and may fail
/// again right there), a gone one when it is wanted again. `Found` and `Failed` versions that are
/// no longer wanted are `Gone`.
#[derive(Debug)]
pub enum State {
    /// It is there; the text says what its load waits for.
    Found(String),
    /// Its files are being read.
    Loading,
    /// It is loaded and runs for the first times.
    Warming,
    /// It serves requests.
    Ready,
    /// It gets no new requests; those under way finish.
    Draining,
    /// It is no longer in memory.
    Gone,
    /// It could not be loaded.
    Failed(Error),
}

impl State {
    /// Whether a version in this state may come to be in state `next`.
    #[must_use]
    pub fn may_become(&self, next: &State) -> bool {
        match next {
            State::Found(_) => matches!(self, State::Found(_) | State::Failed(_) | State::Gone),
            State::Loading => matches!(self, State::Found(_)),
            State::Warming => matches!(self, State::Loading),
            State::Ready => matches!(self, State::Warming),
            State::Draining => matches!(self, State::Ready),
            State::Gone => {
                matches!(self, State::Draining | State::Found(_) | State::Failed(_))
            }
            State::Failed(_) => {
                matches!(self, State::Found(_) | State::Loading | State::Warming | State::Failed(_))
            }
        }
    }
}

impl Clone for State {
    fn clone(&self) -> Self {
        match self {
            State::Found(reason) => State::Found(reason.clone()),
            State::Loading => State::Loading,
            State::Warming => State::Warming,
            State::Ready => State::Ready,
            State::Draining => State::Draining,
            State::Gone => State::Gone,
            State::Failed(error) => State::Failed(error.duplicate()),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Found(reason) => write!(f, "waiting ({reason})"),
            State::Loading => f.write_str("loading"),
            State::Warming => f.write_str("warming up"),
            State::Ready => f.write_str("ready"),
            State::Draining => f.write_str("draining"),
            State::Gone => f.write_str("unloaded"),
            State::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// A version and where it is in its life.
#[derive(Clone, Debug)]
pub struct VersionStatus {
    /// Its number.
    pub version: i64,
    /// Its state.
    pub state: State,
    /// Since when it is in that state.
    pub since: SystemTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drawn_steps_are_legal() {
        let found = || State::Found(String::new());
        let failed = || State::Failed(Error::internal(""));
        let legal = [
            (found(), State::Loading),
            (State::Loading, State::Warming),
            (State::Warming, State::Ready),
            (State::Ready, State::Draining),
            (State::Draining, State::Gone),
            (State::Loading, failed()),
            (State::Warming, failed()),
            (failed(), found()),
            (State::Gone, found()),
            (found(), State::Gone),
        ];
        for (from, to) in legal {
            assert!(from.may_become(&to), "{from} to {to}");
        }
        let illegal = [
            (found(), State::Ready),
            (State::Ready, State::Gone),
            (State::Ready, State::Loading),
            (State::Draining, State::Ready),
            (State::Loading, State::Gone),
            (State::Gone, State::Ready),
        ];
        for (from, to) in illegal {
            assert!(!from.may_become(&to), "{from} to {to}");
        }
    }
}
