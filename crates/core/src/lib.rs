//! The core: which models there are, how a request reaches one, and what is counted on the way.
//!
//! It must not know of HTTP, of any protocol, or of any platform by name.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod batch;
pub mod config;
pub mod engine;
pub mod entry;
pub mod metrics;
pub mod repository;
pub mod request_log;
