//! The entry point of an inference: its protocol and method.

/// What an inference does with the model's signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Tensors in, tensors out.
    Predict,
    /// Serialized `tf.Example`s in, labels with scores out.
    Classify,
    /// Serialized `tf.Example`s in, one number for each out.
    Regress,
    /// Several signatures on the same serialized `tf.Example`s.
    MultiInference,
}

impl Method {
    /// Its name in metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Predict => "predict",
            Method::Classify => "classify",
            Method::Regress => "regress",
            Method::MultiInference => "multi_inference",
        }
    }
}

/// A protocol together with a method. Every inference is counted under its entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryPoint {
    /// The protocol's name: `tfs_rest`, `tfs_grpc`, `simple`, `sagemaker`, …
    pub protocol: &'static str,
    /// The method of the request.
    pub method: Method,
}
