//! Batch transform: whole datasets through a model, from files and stores to files and stores.
//!
//! A [`Job`](job::Job) is frozen into a [`Plan`](plan::Plan), whose entries are objects, groups of small
//! objects, or ranges of large ones. [`Run`](run::Run) takes each entry through
//!
//! ```text
//! read -> decompress -> split -> [ filter, infer, join ] -> write -> publish -> mark as done
//! ```
//!
//! where the part in brackets runs on a pool of threads, a batch of records at a time. The thread that reads
//! an entry, an *entry thread*, also writes it: it keeps the batches that are under way in a queue and writes
//! the results in its order, so that no other reordering is needed and memory is bounded by the length of that
//! queue. Batches depend on the plan alone, never on timing: a job that is resumed computes the same bits.
//!
//! This crate knows neither platforms nor protocols: [`Model`](model::Model) runs payloads.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod batch;
mod content;
mod dead_letters;
mod entry;
mod files;
pub mod images;
pub mod job;
pub mod lease;
pub mod model;
mod output;
mod parts;
pub mod plan;
mod pool;
pub mod progress;
pub mod report;
mod rows;
pub mod run;
mod sdk;
mod seal;
mod shared;
mod source;
pub mod state;
pub mod sweep;
pub mod verify;
