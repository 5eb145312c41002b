//! Compiles `proto/onnx.proto` with a pure-Rust compiler, so that building needs no `protoc`.

use std::io::{Error, Result};

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["onnx.proto"], ["proto"]);
    let files = files.map_err(|e| Error::other(format!("{e:?}")))?;
    // `Bytes` fields share the memory of the decoded file: weights are not copied.
    prost_build::Config::new().bytes(["."]).compile_fds(files)
}
