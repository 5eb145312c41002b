//! Package `onnx`: the generated types of ONNX models.
#![allow(missing_docs, unreachable_pub, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/onnx.rs"));
