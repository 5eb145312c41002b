//! Downloads the libraries of the runtimes from package indexes, and unpacks them, for machines without
//! Python.
//!
//! A [`Pin`] is a runtime for this machine: wheels whose SHA-256 is built in, and what is unpacked from them. A
//! [`Fetcher`] downloads it with the [`PipSettings`] of the user, and continues where an earlier run was
//! interrupted. An [`Installation`] is what is there. A [`Report`] hears of the progress.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod client;
mod download;
mod fetcher;
mod index;
mod install;
mod pins;
mod pip;
mod report;
#[cfg(test)]
mod tests;

pub use self::client::Trust;
pub use self::fetcher::Fetcher;
pub use self::install::Installation;
pub use self::pins::{Pin, names};
pub use self::pip::PipSettings;
pub use self::report::{DownloadDisplay, Report, megabytes};
