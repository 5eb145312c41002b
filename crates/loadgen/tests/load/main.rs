//! Runs against servers whose delays are known.
#![allow(missing_docs, clippy::expect_used, clippy::panic)]

mod failures;
mod known_delays;
mod server;
