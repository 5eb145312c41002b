//! The protocols. Each decodes requests and encodes responses; the engine does everything between.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod console;
mod images;
pub mod mlflow;
pub mod open_inference;
pub mod sagemaker;
pub mod sample;
pub mod simple;
pub mod tfs;
pub mod vertex;
