//! Finds the file of a model, and reads it: `.cbm` or JSON.

use std::path::Path;

use super::model::CatboostModel;
use super::{cbm, json};
use tensorserve_platform::files;
use tensorserve_tabular::ModelFiles;
use tensorserve_tensor::error::{Error, Result};

/// The largest file. Reading takes several times its size in memory.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;

/// The first bytes of a file with a shared ending decide.
pub(super) const FILES: ModelFiles = ModelFiles {
    title: "CatBoost",
    own: &[".cbm", ".cb", ".catboost"],
    shared: &[".json", ".bin", ".model"],
    named: &[],
    looks_like_model,
};

/// How many bytes at the start of a file are searched.
const SNIFFED_BYTES: usize = 64;

fn looks_like_model(file: &Path) -> bool {
    let start = files::head(file, SNIFFED_BYTES);
    start.is_ok_and(|start| start.starts_with(cbm::MAGIC) || json::is_model(&start))
}

/// Reads a model file of either format.
pub(super) fn read_file(bytes: &[u8]) -> Result<CatboostModel> {
    if bytes.starts_with(cbm::MAGIC) {
        return cbm::read(bytes).and_then(CatboostModel::new);
    }
    if bytes.trim_ascii_start().starts_with(b"{") {
        return json::read(bytes).and_then(CatboostModel::new);
    }
    Err(Error::damaged("not a CatBoost model: neither CBM1 nor JSON"))
}
