//! Bytes to tensors and back, with no protocol in it.
//!
//! Every decoder here takes hostile bytes: bounded depth, bounded memory, typed errors, no panic.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod base64;
pub mod cast;
pub mod csv;
pub mod event_stream;
pub mod json;
pub mod npy;
pub mod places;
pub mod tfrecord;
