//! TensorFlow Serving's configuration files: protobuf in its text format.
//!
//! [`text`] reads any of them; [`models`] turns the list of models into sources, [`batching`] the
//! parameters of batching into ours. Which file is named by which flag is the command line's
//! business, as are the files that say nothing of models.

pub mod batching;
pub mod models;
pub mod text;

/// How TensorFlow Serving's protocols are set up.
#[derive(Clone, Debug, PartialEq)]
pub struct TfsConfig {
    /// Answer the REST API exactly as the reference does, without our additions.
    pub exact: bool,
    /// Where the reference's own metrics are; nowhere without it.
    pub metrics_path: Option<String>,
    /// Let gRPC clients change the list of models, and with it name folders of this machine, as the
    /// reference does.
    pub reload: bool,
    /// Send tensors over gRPC as raw bytes (`tensor_content`) and not as lists of numbers.
    pub tensor_content: bool,
}

/// Where the reference has its metrics, unless it is told otherwise.
pub const METRICS_PATH: &str = "/monitoring/prometheus/metrics";
