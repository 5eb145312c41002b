//! The records of files: what batch transform does with them before and after the model. Spark's models are
//! in Parquet files, too, and are read through [`parquet_read`].
//!
//! * [`compression`], [`split`] and [`range`] read files as sequences of records, [`parquet_read`] and
//!   [`npy_read`] those that are no sequences of bytes;
//! * [`filter`] selects parts of a record, and [`join`] puts predictions beside records;
//! * [`mod@write`] writes outputs as lines, TFRecord, npy arrays and Parquet tables;
//! * [`job`] and [`manifest`] read the documents that describe a job of SageMaker.
//!
//! Every reader here accepts hostile bytes: it bounds memory, returns typed errors that name the
//! place, and neither recurses as deep as its input nor panics.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod compression;
pub mod filter;
pub mod job;
pub mod join;
pub mod manifest;
pub mod npy_read;
pub mod parquet_read;
pub mod range;
pub mod split;
mod text;
pub mod write;
