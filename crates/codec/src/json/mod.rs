//! JSON, read directly into tensors and written directly from them, without a document tree.
//!
//! * [`scan`] tokenizes text: strings, literals, syntax errors, skipping of whole values;
//! * [`number`] reads numbers;
//! * [`read`] reads nested arrays into typed, aligned tensor buffers, whose memory [`buffer`] reserves;
//! * [`mod@write`] and [`float`] write tensors;
//! * [`dump`] prints a part of a document for an error message.
//! * [`members`] lists the names of an object.
//!
//! The reader accepts what RapidJSON accepts with the flags that TensorFlow Serving sets (iterative,
//! NaN and Infinity, stop after the first value), and reports the same kinds and offsets of errors.
//! That is a superset of RFC 8259, so the other protocols use the same reader. The differences from
//! a strict reader are listed in `docs/decisions/0007-own-json-reader-and-writer.md` and tested in
//! `tests/json_properties.rs`.

mod buffer;
mod containers;
mod decimal;
pub mod dump;
pub mod float;
mod float_text;
mod integer;
pub mod java;
mod layout;
pub mod members;
pub mod number;
pub mod read;
pub mod scan;
mod sink;
mod walk;
pub mod write;

pub(super) use self::buffer::NumberBuffer;
pub(super) use self::sink::{Bf16, Half, Scalar};
