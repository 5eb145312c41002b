//! Integration tests: whole servers on free ports, spoken to over sockets.
//!
//! * real models: what the reference servers answer, case by case.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

mod batch_faults;
mod batch_threads;
mod batching;
mod support;
mod tfs_cases;
