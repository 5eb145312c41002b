//! The process of an isolated model: each version runs in one of its own for good, so that a crash of
//! a run ends that process and not the server.
//!
//! * The probe host forks a keeper, and the keeper the process (`process`); the module `isolated` is the
//!   server's side;
//! * both sides exchange frames over channels: a socket and a file in memory (`channel`). One channel is
//!   for control, the others, the run channels, each carry one run at a time.

pub(crate) use self::channel::{Channel, ChannelFrame};
pub(crate) use self::description::{OpRunDescription, VersionDescription};
pub(crate) use self::process::keep;

mod channel;
mod description;
mod process;

/// Kinds of frames that the server or, on the control channel, the process sends.
pub(crate) mod kind {
    /// Runs signature number `numbers[0]` with `numbers[1]` threads within `numbers[2]` ns (0: no limit).
    pub(crate) const RUN: u32 = 1;
    /// Profiles such a run.
    pub(crate) const PROFILE: u32 = 2;
    /// The version is loaded; the text is its description.
    pub(crate) const LOADED: u32 = 3;
    /// The process has ended; the text says how.
    pub(crate) const ENDED: u32 = 4;
}

/// Kinds of answers.
pub(crate) mod reply {
    /// The tensors are the outputs, and the text is the profile, if one was asked for. The numbers are the CPU time of
    /// the process meanwhile, in nanoseconds, also that of runs at the same time, and whether it prepares itself to run
    /// quicker.
    pub(crate) const DONE: u32 = 16;
    /// The number is the error's code, and the text its message.
    pub(crate) const FAILED: u32 = 17;
}
