//! Generated protobuf types, and the descriptors that the text format is read with.
//!
//! Nothing of ours is imported here, so that the configuration can read TensorFlow Serving's
//! files and protocols its messages with the same types.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

/// Package `tensorflow`: what we read of SavedModels, and session settings.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod tensorflow {
    include!(concat!(env!("OUT_DIR"), "/tensorflow.rs"));

    /// Package `tensorflow.serving`.
    pub mod serving {
        include!(concat!(env!("OUT_DIR"), "/tensorflow.serving.rs"));
    }
}

pub mod bounded;
mod tensors;

pub use self::tensorflow::serving;
pub use self::tensors::*;

/// All of them as an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
