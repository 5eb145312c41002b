//! Finds the file of a model, and reads it: text, JSON or a pickle.

use std::path::{Path, PathBuf};

use super::model::LightgbmModel;
use super::pickle::MAX_FILE_BYTES;
use super::{damaged, json, pickle, text};
use tensorserve_platform::{Place, files};
use tensorserve_tensor::error::{Code, Error, Result};

/// File endings that only LightGBM uses.
pub(super) const LIGHTGBM_ENDINGS: [&str; 2] = [".lgb", ".lightgbm"];

/// File endings that other programs use, too: the first bytes of the file decide.
const SHARED_ENDINGS: [&str; 6] = [".txt", ".model", ".json", ".pkl", ".pickle", ".joblib"];

/// How many bytes at the start of a file are searched.
const SNIFFED_BYTES: usize = 512;

/// A folder with more files of [`SHARED_ENDINGS`] than this is not searched further.
const MAX_SNIFFED_FILES: usize = 16;

/// How many bytes at the start of a pickle have the class of its value, unless it is compressed.
const CLASS_BYTES: usize = 64;

/// The modules of LightGBM's classes.
const MODULES: [&[u8]; 2] = [b"lightgbm.sklearn", b"lightgbm.basic"];

/// The first bytes of pickles (of protocol 2 and later, of protocol 0), and of zlib and gzip streams,
/// with which joblib compresses them.
const PICKLE_STARTS: [&[u8]; 4] = [b"\x80", b"c", b"\x78", b"\x1f\x8b"];

/// The byte order mark of UTF-8, which some editors put before the text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The file of the model: `path` itself, or the one in the folder `path`.
pub(super) fn find(path: &Path) -> Result<PathBuf> {
    match files::find(path, &LIGHTGBM_ENDINGS) {
        Err(error) if error.code() == Code::NotFound => {}
        found => return found,
    }
    let place = Place::new(path);
    let mut found = find_by_content(&place);
    if found.is_empty() {
        // A compressed pickle, where the platform is named.
        found = place.files(&[".pkl", ".pickle", ".joblib"]).cloned().collect();
    }
    let shown = path.display();
    match &*found {
        [] => Err(Error::not_found(format!(
            "{shown} has no LightGBM model: no file *{}, and no file *{} with a model",
            LIGHTGBM_ENDINGS.join(" or *"),
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

/// Files with [`SHARED_ENDINGS`] whose content is a LightGBM model.
pub(super) fn find_by_content(place: &Place) -> Vec<PathBuf> {
    let candidates = place.files(&SHARED_ENDINGS).take(MAX_SNIFFED_FILES);
    candidates.filter(|file| looks_like_model(file)).cloned().collect()
}

fn looks_like_model(file: &Path) -> bool {
    let Ok(start) = files::head(file, SNIFFED_BYTES) else {
        return false;
    };
    let class = start.get(..CLASS_BYTES).unwrap_or(&start);
    text::is_model(without_mark(&start))
        || json::is_model(&start)
        || (is_pickle(&start)
            && MODULES.iter().any(|module| memchr::memmem::find(class, module).is_some()))
}

/// Reads the model at `path`; also returns the size of its file in bytes.
pub(super) fn read(path: &Path) -> Result<(LightgbmModel, u64)> {
    let file = find(path)?;
    let bytes = files::read(&file, MAX_FILE_BYTES)?;
    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let model = read_file(bytes).map_err(|error| error.context(file.display().to_string()))?;
    Ok((model, len))
}

/// Reads a model file of any format.
pub(super) fn read_file(bytes: Vec<u8>) -> Result<LightgbmModel> {
    let content = without_mark(&bytes);
    if text::is_model(content) {
        return text::read(content);
    }
    if content.trim_ascii_start().starts_with(b"{") {
        return json::read(content);
    }
    if is_pickle(&bytes) {
        return pickle::read(bytes);
    }
    Err(damaged("not a LightGBM model: neither text (\"tree\", \"version=…\"), JSON nor a pickle"))
}

/// Whether a file with these first bytes is a pickle, compressed or not.
fn is_pickle(start: &[u8]) -> bool {
    PICKLE_STARTS.iter().any(|known| start.starts_with(known))
}

fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)
}
