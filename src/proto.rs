//! Generated protobuf types, and the descriptors that the text format is read with.
//!
//! Nothing of ours is imported here, so that the configuration can read TensorFlow Serving's
//! files and protocols its messages with the same types.

/// Package `tensorflow`: what we read of SavedModels, and session settings.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod tensorflow {
    include!(concat!(env!("OUT_DIR"), "/tensorflow.rs"));

    /// Package `tensorflow.serving`.
    pub mod serving {
        include!(concat!(env!("OUT_DIR"), "/tensorflow.serving.rs"));
    }
}

/// Package `onnx`: models of that format.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod onnx {
    include!(concat!(env!("OUT_DIR"), "/onnx.rs"));
}

pub mod bounded;

pub use self::tensorflow::serving;

/// All of them as an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
