//! Finds the file of a model, and reads it: text, JSON or a pickle.

use std::path::Path;

use super::model::LightgbmModel;
use super::{json, pickle, text};
use tensorserve_platform::files;
use tensorserve_tabular::ModelFiles;
use tensorserve_tensor::error::{Error, Result};

/// The first bytes of a file with a shared ending decide. A compressed pickle is recognised where this platform is
/// named.
pub(super) const FILES: ModelFiles = ModelFiles {
    title: "LightGBM",
    own: &[".lgb", ".lightgbm"],
    shared: &[".txt", ".model", ".json", ".pkl", ".pickle", ".joblib"],
    named: &[".pkl", ".pickle", ".joblib"],
    looks_like_model,
};

/// How many bytes at the start of a file are searched.
const SNIFFED_BYTES: usize = 512;

/// How many bytes at the start of a pickle have the class of its value, unless it is compressed.
const CLASS_BYTES: usize = 64;

/// The modules of LightGBM's classes.
const MODULES: [&[u8]; 2] = [b"lightgbm.sklearn", b"lightgbm.basic"];

/// The first bytes of pickles (of protocol 2 and later, of protocol 0), and of zlib and gzip streams,
/// with which joblib compresses them.
const PICKLE_STARTS: [&[u8]; 4] = [b"\x80", b"c", b"\x78", b"\x1f\x8b"];

/// The byte order mark of UTF-8, which some editors put before the text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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
    Err(Error::damaged(
        "not a LightGBM model: neither text (\"tree\", \"version=…\"), JSON nor a pickle",
    ))
}

/// Whether a file with these first bytes is a pickle, compressed or not.
fn is_pickle(start: &[u8]) -> bool {
    PICKLE_STARTS.iter().any(|known| start.starts_with(known))
}

fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)
}
