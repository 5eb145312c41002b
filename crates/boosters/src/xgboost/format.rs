//! Finds the file of a model, and reads it: a pickle, or one of the library's own formats.

use std::path::Path;

use super::encoding::{XgboostFormat, read_bytes};
use super::model::XgboostModel;
use super::{RoundSelection, pickle};
use tensorserve_platform::files;
use tensorserve_tabular::ModelFiles;
use tensorserve_tensor::error::Result;

/// The endings `.pkl`, … are scikit-learn's; of the other shared ones, the first bytes of the file decide. A file
/// `xgboost-model`, without an extension, is what training in SageMaker's container of XGBoost leaves.
pub(super) const FILES: ModelFiles = ModelFiles {
    title: "XGBoost",
    own: &[".ubj", ".bst", ".xgb", ".xgboost", "xgboost-model"],
    shared: &[".json", ".bin", ".model", ".deprecated"],
    named: &[".pkl", ".pickle", ".joblib"],
    looks_like_model,
};

/// How many bytes at the start of a file are searched for the name of a JSON document's first
/// member, or the objective of a binary file.
const SNIFFED_BYTES: usize = 512;

/// The first bytes of pickles (of protocol 2 and later, of protocol 0), and of zlib and gzip streams,
/// with which joblib compresses them.
const PICKLE_STARTS: [&[u8]; 4] = [b"\x80", b"c", b"\x78", b"\x1f\x8b"];

fn looks_like_model(file: &Path) -> bool {
    let Ok(start) = files::head(file, SNIFFED_BYTES) else {
        return false;
    };
    match XgboostFormat::detect(&start) {
        Some(XgboostFormat::Json) => memchr::memmem::find(&start, b"learner\"").is_some(),
        Some(XgboostFormat::Ubjson) => memchr::memmem::find(&start, b"learner").is_some(),
        Some(XgboostFormat::Binary) => true,
        Some(XgboostFormat::Snapshot) | None => false,
    }
}

/// Reads a model file of any format, pickles included.
pub(super) fn read_file(bytes: Vec<u8>) -> Result<XgboostModel> {
    match is_pickle(&bytes) {
        true => pickle::read(bytes),
        false => read_bytes(&bytes, RoundSelection::AsWritten),
    }
}

/// Whether a file with these first bytes is a pickle, compressed or not.
fn is_pickle(start: &[u8]) -> bool {
    XgboostFormat::detect(start).is_none()
        && PICKLE_STARTS.iter().any(|known| start.starts_with(known))
}
