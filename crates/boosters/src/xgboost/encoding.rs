//! The library's own formats: JSON, UBJSON and binary.

use super::model::XgboostModel;
use super::{RoundSelection, binary, json, learner, ubjson};
use tensorserve_tensor::error::{Error, Result};

/// The largest file. Reading takes several times its size in memory.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;

/// The byte order mark of UTF-8, which some editors put before the text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The magic number of base64-encoded models, which the library no longer reads.
const BASE64_MAGIC: &[u8] = b"bs64";

/// The formats of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum XgboostFormat {
    Json,
    Ubjson,
    Binary,
    /// A binary model with its configuration, as it stands in pickles.
    Snapshot,
}

impl XgboostFormat {
    /// The format of a file with these first bytes.
    pub(super) fn detect(start: &[u8]) -> Option<Self> {
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

/// Reads a model in one of the library's own formats.
pub(super) fn read_bytes(bytes: &[u8], rounds: RoundSelection) -> Result<XgboostModel> {
    match XgboostFormat::detect(bytes) {
        Some(XgboostFormat::Json) => learner::read(&json::read(bytes)?, rounds),
        Some(XgboostFormat::Ubjson) => learner::read(&ubjson::read(bytes)?, rounds),
        Some(XgboostFormat::Binary) => binary::read(bytes, rounds),
        Some(XgboostFormat::Snapshot) => binary::read_snapshot(bytes, rounds),
        None if bytes.starts_with(BASE64_MAGIC) => Err(Error::unsupported(
            "base64 models (bs64) are not supported, and the library no longer reads them; save \
             the model as JSON",
        )),
        None => Err(Error::damaged("not a valid XGBoost model: neither JSON, UBJSON nor binary")),
    }
}
