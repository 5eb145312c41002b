//! Compiles the `.proto` files in `proto/` with a pure-Rust compiler, so that building needs
//! no `protoc`.

use std::io::{Error, Result};
use std::path::PathBuf;
use std::{env, fs};

/// The files of TensorFlow and TensorFlow Serving.
const TENSORFLOW: [&str; 7] = [
    "tensorflow/saved_model.proto",
    "tensorflow/config.proto",
    "tensorflow/step_stats.proto",
    "tensorflow_serving/apis.proto",
    "tensorflow_serving/model_server_config.proto",
    "tensorflow_serving/prediction_log.proto",
    "tensorflow_serving/server_files.proto",
];

const OPEN_INFERENCE: [&str; 1] = ["open_inference/grpc_service.proto"];

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=proto");
    compile(&TENSORFLOW, "descriptors.bin")?;
    compile(&OPEN_INFERENCE, "open_inference.bin")
}

/// Generates the types of `files`, and writes their descriptors to the file `descriptors`.
fn compile(files: &[&str], descriptors: &str) -> Result<()> {
    let mut compiler = protox::Compiler::new(["proto"]).map_err(compile_error)?;
    compiler.include_imports(true).include_source_info(false);
    compiler.open_files(files).map_err(compile_error)?;
    let folder = env::var_os("OUT_DIR").ok_or_else(|| Error::other("OUT_DIR is not set"))?;
    // For reading configuration files in the text format, and for gRPC reflection.
    fs::write(PathBuf::from(folder).join(descriptors), compiler.encode_file_descriptor_set())?;
    let mut prost = prost_build::Config::new();
    prost.btree_map(["."]).bytes(["."]);
    let tonic = tonic_prost_build::configure().build_client(false).build_transport(false);
    // Refuses requests whose decoded form would be far larger than their bytes.
    let tonic = tonic.codec_path("crate::bounded::BoundedCodec");
    tonic.compile_fds_with_config(compiler.file_descriptor_set(), prost)
}

fn compile_error(error: protox::Error) -> Error {
    Error::other(format!("{error:?}"))
}
