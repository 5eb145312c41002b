//! Finds the file of a model, and reads it: `.cbm` or JSON.

use std::path::{Path, PathBuf};

use super::model::CatboostModel;
use super::{cbm, damaged, json};
use tensorserve_platform::{Place, files};
use tensorserve_tensor::error::{Code, Error, Result};

/// The largest file. Reading takes several times its size in memory.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// File endings that only CatBoost uses.
pub(super) const CATBOOST_ENDINGS: [&str; 3] = [".cbm", ".cb", ".catboost"];

/// File endings that other programs use, too: the first bytes of the file decide.
const SHARED_ENDINGS: [&str; 3] = [".json", ".bin", ".model"];

/// How many bytes at the start of a file are searched.
const SNIFFED_BYTES: usize = 64;

/// A folder with more files of [`SHARED_ENDINGS`] than this is not searched further.
const MAX_SNIFFED_FILES: usize = 16;

/// The file of the model: `path` itself, or the one in the folder `path`.
pub(super) fn find(path: &Path) -> Result<PathBuf> {
    match files::find(path, &CATBOOST_ENDINGS) {
        Err(error) if error.code() == Code::NotFound => {}
        found => return found,
    }
    let shown = path.display();
    match &*find_by_content(&Place::new(path)) {
        [] => Err(Error::not_found(format!(
            "{shown} has no CatBoost model: no file *{}, and no file *{} with a model",
            CATBOOST_ENDINGS.join(" or *"),
            SHARED_ENDINGS.join(" or *")
        ))),
        [file] => Ok(file.clone()),
        [one, other, ..] => Err(Error::precondition(format!(
            "{shown} holds several models, {} and {}: give each a folder of its own, or name the \
             file",
            one.display(),
            other.display()
        ))),
    }
}

/// Files with [`SHARED_ENDINGS`] whose content is a CatBoost model.
pub(super) fn find_by_content(place: &Place) -> Vec<PathBuf> {
    let candidates = place.files(&SHARED_ENDINGS).take(MAX_SNIFFED_FILES);
    candidates.filter(|file| looks_like_model(file)).cloned().collect()
}

fn looks_like_model(file: &Path) -> bool {
    let start = files::head(file, SNIFFED_BYTES);
    start.is_ok_and(|start| start.starts_with(cbm::MAGIC) || json::is_model(&start))
}

/// Reads the model at `path`; also returns the size of its file in bytes.
pub(super) fn read(path: &Path) -> Result<(CatboostModel, u64)> {
    let file = find(path)?;
    let bytes = files::read(&file, MAX_FILE_BYTES)?;
    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let model = read_file(&bytes).map_err(|error| error.context(file.display().to_string()))?;
    Ok((model, len))
}

/// Reads a model file of either format.
pub(super) fn read_file(bytes: &[u8]) -> Result<CatboostModel> {
    if bytes.starts_with(cbm::MAGIC) {
        return cbm::read(bytes).and_then(CatboostModel::new);
    }
    if bytes.trim_ascii_start().starts_with(b"{") {
        return json::read(bytes).and_then(CatboostModel::new);
    }
    Err(damaged("not a CatBoost model: neither CBM1 nor JSON"))
}
