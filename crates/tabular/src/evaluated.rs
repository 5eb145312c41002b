//! A model of this crate: it is read whole, and then needs no library.

use std::path::Path;
use std::sync::Arc;

use crate::spread::SpreadRows;
use tensorserve_platform::{Executable, Inspection, Loaded, files};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::{Error, Result};

/// The error of a run with `found` inputs of a model whose signature has `expected`.
pub fn wrong_input_count(expected: usize, found: usize) -> Error {
    Error::internal(format!("the model has {expected} inputs, and was run with {found}"))
}

/// A model that was read.
pub struct Evaluated {
    /// Sorted by name.
    pub signatures: Vec<Signature>,
    /// What runs it.
    pub executable: Arc<dyn Executable>,
    /// The program that wrote it, if it says so.
    pub written_by: String,
    /// Size of its files in bytes.
    pub bytes: u64,
    /// What the operator should know before the model is used, a line of the log each.
    pub warnings: Vec<String>,
}

impl Evaluated {
    /// The model in `file`, which has at most `max_bytes`: what `read` makes of its bytes.
    pub fn read(
        file: &Path,
        max_bytes: u64,
        read: impl FnOnce(Vec<u8>) -> Result<Evaluated>,
    ) -> Result<Evaluated> {
        let content = files::read(file, max_bytes)?;
        let bytes = u64::try_from(content.len()).unwrap_or(u64::MAX);
        let model = read(content).map_err(|error| error.context(file.display()))?;
        Ok(Evaluated { bytes, ..model })
    }

    /// A model with one signature. The caller sets `bytes`.
    pub fn new(
        signature: Signature,
        executable: impl Executable + 'static,
        written_by: String,
    ) -> Evaluated {
        Evaluated {
            signatures: vec![signature],
            executable: Arc::new(executable),
            written_by,
            bytes: 0,
            warnings: Vec::new(),
        }
    }

    /// What `tensorserve inspect` shows.
    pub fn inspection(self) -> Inspection {
        let Evaluated { signatures, written_by, bytes, .. } = self;
        Inspection { signatures, written_by, bytes, external_ops: Vec::new() }
    }

    /// What is served.
    pub fn loaded(self) -> Loaded {
        let Evaluated { signatures, executable, bytes, .. } = self;
        let executable = Arc::new(SpreadRows::new(executable, &signatures));
        Loaded { signatures, executable, bytes, marshalled_hooks: false, external_ops: Vec::new() }
    }
}
