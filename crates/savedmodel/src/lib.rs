//! SavedModels, read without libtensorflow: files, graphs, and what they declare. Damaged files are refused here, with
//! typed errors, before a runtime reads them.
//!
//! * [`find`] finds a SavedModel, [`check()`] tells whether it is complete, and [`read`] reads its graph;
//! * [`declared_signature`] is a signature as it is declared;
//! * [`Graph`] finds what computes an output, and [`integers`] reads constants.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub use self::alike::alike;
pub use self::check::check;
pub use self::constants::integers;
pub use self::declared::{declared_signature, has_marshalled_hooks, tensor_names};
pub use self::files::{
    FILE, MAX_FILE_SIZE, TEXT_FILE, find, is_text, main_file, numbered_graph, read, read_main_file,
    size_of_files,
};
pub use self::graph::{Graph, PlacedNode, called_functions};

mod alike;
mod bundle;
mod check;
mod constants;
mod declared;
mod files;
mod graph;
