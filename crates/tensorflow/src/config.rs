//! What libtensorflow is told.

use std::path::PathBuf;

/// libtensorflow: where it is and how its sessions are set up.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorFlowConfig {
    /// File or folder given by the user.
    pub library: Option<PathBuf>,
    /// Folders to search, in order.
    pub search: Vec<PathBuf>,
    /// Libraries of custom operations, and folders with such.
    pub custom_ops: Vec<PathBuf>,
    /// What the library itself may write to stderr, 0 (all) to 3 (nothing); `None` leaves the
    /// environment's setting.
    pub log_level: Option<u8>,
    /// Threads within an operation; 0 for one per core.
    pub intra_op_threads: i32,
    /// Threads between operations, used by runs that can be cancelled; 0 for one per core.
    pub inter_op_threads: i32,
    /// GPUs.
    pub gpu: GpuConfig,
}

/// What of the GPUs may be used.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuConfig {
    /// Part of a GPU's memory to take at most; 0 for all.
    pub memory_fraction: f64,
    /// Take memory as it is needed and not all at the start.
    pub allow_growth: bool,
    /// Which GPUs, for example `0,1`; empty for all.
    pub visible_devices: String,
}
