//! TensorFlow Serving's configuration files: protobuf in its text format.
//!
//! [`text`] parses them, [`models`] converts the list of models into sources, and [`batching`] converts
//! batching parameters. The command line reads the other files.

use tensorserve_proto::Form;
use tensorserve_proto::serving::PredictRequest;
use tensorserve_proto::tensorflow::TensorProto;

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
    /// Whether output tensors of numbers are sent over gRPC as raw bytes.
    pub tensor_content: TensorContent,
    /// The state of a model is also as KServe's protocol v1 has it.
    pub kserve: bool,
}

/// When output tensors of numbers are raw bytes (`tensor_content`), which not every client reads, and when
/// lists of values (`float_val` and similar).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorContent {
    /// Never, as the reference.
    Never,
    /// Always, as the reference with `--enable_serialization_as_tensor_content`.
    Always,
    /// In the response to a request with raw bytes: whoever writes them reads them.
    IfSent,
}

impl TensorContent {
    /// The encoding of the outputs of a request.
    pub(crate) fn form(self, request: &PredictRequest) -> Form {
        let has_content = |tensor: &TensorProto| !tensor.tensor_content.is_empty();
        match self {
            TensorContent::Never => Form::Values,
            TensorContent::Always => Form::Content,
            TensorContent::IfSent if request.inputs.values().any(has_content) => Form::Content,
            TensorContent::IfSent => Form::Values,
        }
    }
}

/// The default path of the reference's metrics.
pub const METRICS_PATH: &str = "/monitoring/prometheus/metrics";
