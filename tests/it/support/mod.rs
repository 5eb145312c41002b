//! What tests share.

pub mod client;
pub mod fake;
pub mod place;
pub mod server;

use std::path::{Path, PathBuf};

/// A file or folder of the project.
pub fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A file or folder of the test data.
pub fn data(path: &str) -> PathBuf {
    project("tests/data").join(path)
}
