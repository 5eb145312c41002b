//! Protobuf types of TensorFlow, TensorFlow Serving and the Open Inference Protocol, generated at build time, with a decoder that
//! bounds memory ([`bounded`]) and conversions between `TensorProto` and tensors.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use prost::Message;

/// Package `tensorflow`: the parts of SavedModels and session settings that tensorserve reads.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod tensorflow {
    include!(concat!(env!("OUT_DIR"), "/tensorflow.rs"));

    /// Package `tensorflow.serving`.
    pub mod serving {
        include!(concat!(env!("OUT_DIR"), "/tensorflow.serving.rs"));
    }
}

/// Package `inference`: the Open Inference Protocol.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod inference {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

pub mod bounded;
mod tensors;

pub use self::tensorflow::serving;
pub use self::tensors::*;

/// The descriptors of TensorFlow's and TensorFlow Serving's files, as an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The descriptors of the Open Inference Protocol's files, as an encoded `FileDescriptorSet`.
pub const OPEN_INFERENCE_DESCRIPTORS: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/open_inference.bin"));

/// The paths of all methods of services in an encoded `FileDescriptorSet`, as `/package.Service/Method`,
/// sorted.
///
/// # Errors
/// If the descriptors are damaged.
pub fn method_paths(descriptors: &[u8]) -> Result<Vec<String>, prost::DecodeError> {
    let mut paths = Vec::new();
    for file in prost_types::FileDescriptorSet::decode(descriptors)?.file {
        for service in &file.service {
            let name = format!("/{}.{}/", file.package(), service.name());
            paths.extend(service.method.iter().map(|method| format!("{name}{}", method.name())));
        }
    }
    paths.sort();
    Ok(paths)
}
