//! Settings of libtensorflow.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensorserve_platform::library::SearchFolder;

/// Where libtensorflow is, and how its sessions are configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorFlowConfig {
    /// The library's file or folder, if the user names one.
    pub library: Option<PathBuf>,
    /// Folders to search for the library, in order.
    pub search: Vec<SearchFolder>,
    /// Libraries of custom operations, and folders of such libraries.
    pub custom_ops: Vec<PathBuf>,
    /// The library's own log level on stderr, from 0 (everything) to 3 (nothing); `None` leaves it
    /// to the environment.
    pub log_level: Option<u8>,
    /// Whether nothing else writes to stderr while the library is opened, as in commands that have nothing to say until
    /// then. What is written meanwhile is the library's, and goes to the log.
    pub is_alone_on_stderr: bool,
    /// Threads within an operation; 0 for one per core.
    pub intra_op_threads: i32,
    /// Threads between operations, used by runs with a timeout; 0 for one per core.
    pub inter_op_threads: i32,
    /// The address of the server of TensorFlow that runs the models, `grpc://HOST:PORT`; empty for this process.
    pub session_target: String,
    /// GPUs.
    pub gpu: GpuConfig,
}

/// The use of GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuConfig {
    /// The largest fraction of a GPU's memory to allocate; 0 for all of it.
    pub memory_fraction: f64,
    /// Whether memory is allocated as needed instead of at the start.
    pub allow_growth: bool,
    /// The GPUs to use, for example `0,1`; empty for all.
    pub visible_devices: String,
    /// `CUDA_VISIBLE_DEVICES`, which the driver reads.
    pub cuda_visible_devices: Option<String>,
}
