//! Settings of libtorch and libexecutorch.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensorserve_platform::library::SearchFolder;

/// Where the library is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TorchConfig {
    /// The library's file or folder, if the user names one.
    pub library: Option<PathBuf>,
    /// Folders to search for the library, in order.
    pub search: Vec<SearchFolder>,
}
