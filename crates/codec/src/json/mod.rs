//! JSON, read straight into tensors and written straight from them; no document tree between.
//!
//! * [`scan`] walks text: tokens, syntax errors, skipping whole values of any depth;
//! * [`number`] reads numbers;
//! * [`read`] turns nested arrays into the typed, aligned buffer that the runtime reads;
//! * [`dump`] prints a piece of a document for an error message;
//! * [`mod@write`] and [`float`] print tensors.
//!
//! Which documents are accepted is what RapidJSON accepts with the flags that TensorFlow Serving
//! sets (iterative, NaN and Infinity, stop after the first value), error kinds and offsets
//! included. That is a superset of RFC 8259, so other protocols use the same reader.

pub mod dump;
pub mod float;
pub mod number;
pub mod read;
pub mod scan;
mod sink;
mod walk;
pub mod write;

pub(super) use self::sink::{Brain, Half, Scalar};
