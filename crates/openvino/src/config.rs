//! Configuration of OpenVINO.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensorserve_platform::library::SearchFolder;

/// OpenVINO: where the library is, and how many threads a run uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenVinoConfig {
    /// The library file or its directory, if configured.
    pub library: Option<PathBuf>,
    /// Directories to search, in order.
    pub search: Vec<SearchFolder>,
    /// Threads within one operation; 0 for the number that a load requests.
    pub intra_op_threads: i32,
}
