//! What all platforms of this crate have in common: a model is read whole, and then needs no library.

use std::sync::Arc;

use tensorserve_platform::{Executable, Inspection, Loaded};
use tensorserve_tensor::Signature;

#[cfg(any(feature = "xgboost", feature = "lightgbm", feature = "catboost"))]
pub(crate) use self::by_content::check;

/// A model that was read.
pub(crate) struct Evaluated {
    /// Sorted by name.
    pub(crate) signatures: Vec<Signature>,
    pub(crate) executable: Arc<dyn Executable>,
    /// The program that wrote it, if it says so.
    pub(crate) written_by: String,
    /// Size of its files in bytes.
    pub(crate) bytes: u64,
}

impl Evaluated {
    /// What `tensorserve inspect` shows.
    pub(crate) fn inspection(self) -> Inspection {
        let Evaluated { signatures, written_by, bytes, .. } = self;
        Inspection { signatures, written_by, bytes, external_ops: Vec::new() }
    }

    /// What is served.
    pub(crate) fn loaded(self) -> Loaded {
        let Evaluated { signatures, executable, bytes, .. } = self;
        Loaded { signatures, executable, bytes, marshalled_hooks: false, external_ops: Vec::new() }
    }
}

#[cfg(any(feature = "xgboost", feature = "lightgbm", feature = "catboost"))]
mod by_content {
    use std::path::Path;

    use tensorserve_platform::{Completeness, files};
    use tensorserve_tensor::error::{Code, Result};

    /// Whether there is one model, by the ending of its file, or else as `find` finds it by its content.
    pub(crate) fn check<T>(
        folder: &Path,
        endings: &[&str],
        find: impl FnOnce(&Path) -> Result<T>,
    ) -> Completeness {
        match files::check(folder, endings) {
            Completeness::Missing(what) => match find(folder) {
                Ok(_) => Completeness::Complete,
                Err(error) if error.code() == Code::NotFound => Completeness::Missing(what),
                Err(error) => Completeness::Broken(error),
            },
            found @ (Completeness::Complete | Completeness::Broken(_)) => found,
        }
    }
}
