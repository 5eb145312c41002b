//! TensorFlow Serving's configuration files: protobuf in its text format.
//!
//! [`text`] parses them, [`models`] converts the list of models into sources, and [`batching`] converts
//! batching parameters. The command line reads the other files.

pub mod batching;
pub mod models;
pub mod text;

/// The configuration of TensorFlow Serving's protocols.
#[derive(Clone, Debug, PartialEq)]
pub struct TfsConfig {
    /// The REST API behaves exactly as the reference, without additions.
    pub exact: bool,
    /// The path of the reference's metrics; they are off if this is `None`.
    pub metrics_path: Option<String>,
    /// gRPC clients may change the list of models, and with it name directories of this machine, as in
    /// the reference.
    pub reload: bool,
    /// Tensors are sent over gRPC as raw bytes (`tensor_content`) and not as lists of numbers.
    pub tensor_content: bool,
    /// The state of a model is also as KServe's protocol v1 has it.
    pub kserve: bool,
}

/// The default path of the reference's metrics.
pub const METRICS_PATH: &str = "/monitoring/prometheus/metrics";
