//! What ONNX Runtime is told.

use std::path::PathBuf;

/// ONNX Runtime: where it is and how its sessions are set up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxConfig {
    /// File or folder given by the user.
    pub library: Option<PathBuf>,
    /// Folders to search, in order.
    pub search: Vec<PathBuf>,
    /// Threads within an operation; 0 for what a load asks for.
    pub intra_op_threads: i32,
}
