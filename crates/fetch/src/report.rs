//! What a download tells of itself, and its errors.

use std::io;
use std::path::Path;

use tensorserve_tensor::error::{Code, Error};

/// Hears what happens.
pub trait Report {
    /// A remark for the user. It may contain names that come from elsewhere.
    fn say(&self, remark: &str);

    /// Displays a download of `size` bytes that begins, until the display is dropped. Remarks about it
    /// start with `label`.
    fn begin(&self, label: &str, size: u64) -> Box<dyn DownloadDisplay>;
}

/// The display of a download.
pub trait DownloadDisplay {
    /// The first `bytes` are here.
    fn is_at(&self, bytes: u64);
}

/// A size for messages.
#[must_use]
pub fn megabytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes >= 1e9 { format!("{:.1} GB", bytes / 1e9) } else { format!("{:.0} MB", bytes / 1e6) }
}

/// The error of an operation on `path`.
pub(crate) fn failed_at(path: &Path, error: &io::Error) -> Error {
    Error::new(Code::of_io(error), format!("{}: {error}", path.display()))
}
