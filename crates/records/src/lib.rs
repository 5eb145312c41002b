//! Files as sequences of records, for batch transform.
//!
//! Every reader here accepts hostile bytes: it bounds memory, returns typed errors that name the
//! place, and neither recurses as deep as its input nor panics.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod compression;
pub mod npy_read;
pub mod parquet_read;
pub mod range;
pub mod split;
