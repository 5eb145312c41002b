//! Finds the file of a model, and detects the format that it is written in.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::document::DocumentValue;
use super::model::XgboostModel;
use super::{RoundSelection, binary, damaged, learner, pickle, unsupported};
use tensorserve_platform::{Place, files};
use tensorserve_tensor::error::{Code, Error, Result};

/// File endings that only XGBoost uses.
pub(super) const XGBOOST_ENDINGS: [&str; 4] = [".ubj", ".bst", ".xgb", ".xgboost"];

/// File endings that other programs use, too: the first bytes of the file decide.
const SHARED_ENDINGS: [&str; 4] = [".json", ".bin", ".model", ".deprecated"];

/// File endings that scikit-learn's platform recognises: they are looked for where this platform is
/// named explicitly.
const PICKLE_ENDINGS: [&str; 3] = [".pkl", ".pickle", ".joblib"];

/// The largest file. Reading takes several times its size in memory.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;

/// How many bytes at the start of a file are searched for the name of a JSON document's first
/// member, or the objective of a binary file.
const SNIFFED_BYTES: u64 = 512;

/// A folder with more files of [`SHARED_ENDINGS`] than this is not searched further.
const MAX_SNIFFED_FILES: usize = 16;

/// The byte order mark of UTF-8, which some editors put before the text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The magic number of base64-encoded models, which the library no longer reads.
const BASE64_MAGIC: &[u8] = b"bs64";

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
    let mut start = Vec::new();
    let read = File::open(file).and_then(|file| file.take(SNIFFED_BYTES).read_to_end(&mut start));
    if read.is_err() {
        return false;
    }
    match XgboostFormat::detect(&start) {
        Some(XgboostFormat::Json) => memchr::memmem::find(&start, b"learner\"").is_some(),
        Some(XgboostFormat::Ubjson) => memchr::memmem::find(&start, b"learner").is_some(),
        Some(XgboostFormat::Binary) => true,
        Some(XgboostFormat::Snapshot) | None => false,
    }
}

/// The formats of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum XgboostFormat {
    Json,
    Ubjson,
    Binary,
    /// A binary model with its configuration, as it stands in pickles.
    Snapshot,
}

impl XgboostFormat {
    /// The format of a file with these first bytes.
    fn detect(start: &[u8]) -> Option<Self> {
        if start.starts_with(binary::SNAPSHOT_MAGIC) {
            return Some(XgboostFormat::Snapshot);
        }
        let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start).trim_ascii_start();
        match text.split_first() {
            Some((b'{', rest)) if rest.trim_ascii_start().first() == Some(&b'"') => {
                Some(XgboostFormat::Json)
            }
            // The type of the length of the first member's name.
            Some((b'{', [b'i' | b'U' | b'I' | b'l' | b'L', ..])) => Some(XgboostFormat::Ubjson),
            _ if binary::is_binary_model(start) => Some(XgboostFormat::Binary),
            _ => None,
        }
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

/// Reads a model in one of the library's own formats.
pub(super) fn read_bytes(bytes: &[u8], rounds: RoundSelection) -> Result<XgboostModel> {
    match XgboostFormat::detect(bytes) {
        Some(XgboostFormat::Json) => learner::read(&DocumentValue::from_json(bytes)?, rounds),
        Some(XgboostFormat::Ubjson) => learner::read(&DocumentValue::from_ubjson(bytes)?, rounds),
        Some(XgboostFormat::Binary) => binary::read(bytes, rounds),
        Some(XgboostFormat::Snapshot) => binary::read_snapshot(bytes, rounds),
        None if bytes.starts_with(BASE64_MAGIC) => Err(unsupported(
            "base64 models (bs64) are not supported, and the library no longer reads them; save \
             the model as JSON",
        )),
        None => Err(damaged("not a valid XGBoost model: neither JSON, UBJSON nor binary")),
    }
}
