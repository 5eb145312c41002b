//! Conversions between bytes and tensors that do not depend on a protocol.
//!
//! Every decoder here accepts hostile bytes: it bounds memory, returns typed errors, and neither
//! recurses as deep as its input nor panics.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod base64;
pub mod cast;
pub mod csv;
pub mod event_stream;
pub mod flatbuffer;
pub mod formats;
pub mod json;
pub mod npy;
pub mod places;
pub mod row_text;
pub mod table;
pub mod tfrecord;
#[cfg(feature = "xml")]
pub mod xml;
pub mod zip;
