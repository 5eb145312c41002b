//! The core: the model repository, the inference pipeline, batching, metrics and the request log.
//!
//! The core does not depend on HTTP, on any protocol, or on any platform by name.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod batch;
mod cache;
pub mod comparison;
pub mod config;
pub mod engine;
pub mod entry;
pub mod metrics;
mod receipt;
pub mod repository;
pub mod request_log;
