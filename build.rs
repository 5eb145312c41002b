//! Compiles the `.proto` files in `proto/` with a pure-Rust compiler, so that building needs
//! no `protoc`.

use std::io::{Error, Result};

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        [
            "proto/tensorflow/config.proto",
            "proto/tensorflow/example.proto",
            "proto/tensorflow/saved_model.proto",
        ],
        ["proto"],
    )
    .map_err(|e| Error::other(format!("{e:?}")))?;
    prost_build::Config::new().btree_map(["."]).bytes(["."]).compile_fds(files)
}
