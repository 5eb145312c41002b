//! Finds the file of a model, and reads it: a pickle, or one of the library's own formats.

use std::path::{Path, PathBuf};

use super::encoding::{MAX_FILE_BYTES, XgboostFormat, read_bytes};
use super::model::XgboostModel;
use super::{RoundSelection, pickle};
use tensorserve_platform::{Place, files};
use tensorserve_tensor::error::{Code, Error, Result};

/// File endings that only XGBoost uses.
pub(super) const XGBOOST_ENDINGS: [&str; 4] = [".ubj", ".bst", ".xgb", ".xgboost"];

/// File endings that other programs use, too: the first bytes of the file decide.
const SHARED_ENDINGS: [&str; 4] = [".json", ".bin", ".model", ".deprecated"];

/// File endings that scikit-learn's platform recognises: they are looked for where this platform is
/// named explicitly.
const PICKLE_ENDINGS: [&str; 3] = [".pkl", ".pickle", ".joblib"];

/// How many bytes at the start of a file are searched for the name of a JSON document's first
/// member, or the objective of a binary file.
const SNIFFED_BYTES: usize = 512;

/// A folder with more files of [`SHARED_ENDINGS`] than this is not searched further.
const MAX_SNIFFED_FILES: usize = 16;

/// The first bytes of pickles (of protocol 2 and later, of protocol 0), and of zlib and gzip streams,
/// with which joblib compresses them.
const PICKLE_STARTS: [&[u8]; 4] = [b"\x80", b"c", b"\x78", b"\x1f\x8b"];

/// The file of the model: `path` itself, or the one in the folder `path`.
pub(super) fn find(path: &Path) -> Result<PathBuf> {
    match files::find(path, &XGBOOST_ENDINGS) {
        Err(error) if error.code() == Code::NotFound => {}
        found => return found,
    }
    let shown = path.display();
    match &*find_by_content(&Place::new(path)) {
        [] => files::find(path, &PICKLE_ENDINGS).map_err(|error| {
            if error.code() != Code::NotFound {
                return error;
            }
            Error::not_found(format!(
                "{shown} has no XGBoost model: no file *{} or *{}, and no file *{} with a model",
                XGBOOST_ENDINGS.join(" or *"),
                PICKLE_ENDINGS.join(" or *"),
                SHARED_ENDINGS.join(" or *")
            ))
        }),
        [file] => Ok(file.clone()),
        [one, other, ..] => Err(Error::precondition(format!(
            "{shown} holds several models, {} and {}: give each a folder of its own, or name the \
             file",
            one.display(),
            other.display()
        ))),
    }
}

/// Files with [`SHARED_ENDINGS`] whose content is an XGBoost model.
pub(super) fn find_by_content(place: &Place) -> Vec<PathBuf> {
    let candidates = place.files(&SHARED_ENDINGS).take(MAX_SNIFFED_FILES);
    candidates.filter(|file| looks_like_model(file)).cloned().collect()
}

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

/// Reads the model at `path`; also returns the size of its file in bytes.
pub(super) fn read(path: &Path) -> Result<(XgboostModel, u64)> {
    let file = find(path)?;
    let bytes = files::read(&file, MAX_FILE_BYTES)?;
    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let model = read_file(bytes).map_err(|error| error.context(file.display().to_string()))?;
    Ok((model, len))
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
