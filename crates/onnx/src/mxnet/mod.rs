//! MXNet checkpoints, run by ONNX Runtime.
//!
//! MXNet is retired, and vulnerabilities of its library are no longer fixed. The library is
//! therefore not used: loading a checkpoint converts it into an ONNX model, which the `onnx`
//! platform runs.
//!
//! * [`symbol`], [`params`] and [`signature`] read the files of a checkpoint;
//! * [`convert`] makes an ONNX model of them with [`converter`]; [`ops`], [`layers`] and [`shapes`] convert the
//!   operations;
//! * this file finds the files and loads the models ([`ModelLoader`]).

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Onnx;
use crate::proto::ModelProto;
use tensorserve_platform::{
    Completeness, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader, ModelPath, Platform,
    PlatformInfo, RuntimeLibrary, files,
};
use tensorserve_tensor::error::{Code, Error, Result};

mod convert;
mod converter;
mod layers;
mod ops;
mod params;
mod shapes;
mod signature;
mod symbol;

/// Suffixes of the names of a checkpoint's files.
const SYMBOL_SUFFIX: &str = "-symbol.json";
const PARAMS_SUFFIX: &str = ".params";
const SIGNATURE_SUFFIX: &str = "-signature.json";

/// The largest symbol or signature file in bytes. The symbol of a network of a thousand layers has
/// less than a megabyte.
const MAX_JSON_SIZE: u64 = 64 << 20;
/// The largest parameter file in bytes: Protobuf's limit on a message, which also applies to the
/// converted model, less room for its graph.
const MAX_PARAMS_SIZE: u64 = (i32::MAX as u64) - MAX_JSON_SIZE;

/// The `mxnet` platform.
pub struct MxNet {
    onnx: Arc<Onnx>,
}

impl MxNet {
    /// The platform, which runs its models on the runtime of `onnx`.
    #[must_use]
    pub fn new(onnx: Arc<Onnx>) -> Self {
        MxNet { onnx }
    }
}

impl MxNet {
    /// The platform whose models this runtime runs.
    #[must_use]
    pub fn platform(self: Arc<Self>) -> Platform {
        let info = PlatformInfo {
            name: "mxnet",
            title: "MXNet",
            input_style: InputStyle::Rows,
            takes_threads: self.onnx.takes_threads(),
            must_be_named: false,
            is_isolated: false,
        };
        Platform::new(info, self)
    }
}

impl RuntimeLibrary for MxNet {
    fn describe(&self) -> Result<String> {
        Ok(format!("MXNet checkpoints on {}", self.onnx.describe()?))
    }

    fn library(&self) -> Option<PathBuf> {
        self.onnx.library()
    }
}

impl ModelLoader for MxNet {
    fn recognises(&self, place: &ModelPath) -> bool {
        place.has_file(&[SYMBOL_SUFFIX]) || with_suffix(place.path(), SYMBOL_SUFFIX).is_file()
    }

    fn check(&self, path: &Path) -> Completeness {
        match Checkpoint::find(path).and_then(|checkpoint| checkpoint.convert()) {
            Ok(_) => Completeness::Complete,
            Err(error) if error.code() == Code::NotFound => {
                Completeness::Missing(error.message().to_owned())
            }
            Err(error) => Completeness::Broken(error),
        }
    }

    fn inspect(&self, path: &Path, _: &LoadOptions) -> Result<Inspection> {
        let checkpoint = Checkpoint::find(path)?;
        Ok(Inspection {
            signatures: vec![crate::signature(&checkpoint.convert()?)?],
            written_by: String::new(),
            bytes: checkpoint.size(),
            external_ops: Vec::new(),
        })
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Loaded> {
        let checkpoint = Checkpoint::find(path)?;
        let mut model = checkpoint.convert()?;
        let signature = crate::signature(&model)?;
        // MXNet does not check the output shapes of a signature file, so they may be wrong.
        convert::clear_output_shapes(&mut model);
        let (size, folder) = (checkpoint.size(), checkpoint.folder());
        self.onnx.load_converted(&model, signature, size, folder, options)
    }
}

/// The files of a checkpoint.
struct Checkpoint {
    symbol: PathBuf,
    params: PathBuf,
    /// This file is optional.
    signature: PathBuf,
}

impl Checkpoint {
    /// The checkpoint with the prefix `path`, with the symbol file `path`, or in the directory
    /// `path`. Of several epochs it is the last.
    fn find(path: &Path) -> Result<Self> {
        let by_prefix = with_suffix(path, SYMBOL_SUFFIX);
        let symbol =
            if by_prefix.is_file() { by_prefix } else { files::find(path, &[SYMBOL_SUFFIX])? };
        let name = symbol.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(prefix) = name.strip_suffix(SYMBOL_SUFFIX) else {
            let message = format!(
                "{name} is not an MXNet symbol file, whose name must end with {SYMBOL_SUFFIX}"
            );
            return Err(Error::new(Code::InvalidArgument, message));
        };
        let params = params_of_last_epoch(parent(&symbol), prefix).ok_or_else(|| {
            let message = format!("{prefix}-NNNN{PARAMS_SUFFIX} was not found beside {name}");
            Error::not_found(message)
        })?;
        let signature = symbol.with_file_name(format!("{prefix}{SIGNATURE_SUFFIX}"));
        Ok(Checkpoint { symbol, params, signature })
    }

    /// The directory of the files.
    fn folder(&self) -> &Path {
        parent(&self.symbol)
    }

    /// The size of the files together, in bytes.
    fn size(&self) -> u64 {
        let files = [&self.symbol, &self.params, &self.signature];
        files.into_iter().map(|file| fs::metadata(file).map_or(0, |metadata| metadata.len())).sum()
    }

    /// Reads the files and converts them.
    fn convert(&self) -> Result<ModelProto> {
        let symbol = symbol::read(&files::read(&self.symbol, MAX_JSON_SIZE)?)?;
        let declared = match self.signature.is_file() {
            true => Some(signature::read(&files::read(&self.signature, MAX_JSON_SIZE)?)?),
            false => None,
        };
        let params = params::read(files::read(&self.params, MAX_PARAMS_SIZE)?.into())?;
        convert::convert(&symbol, &params, declared.as_ref())
    }
}

/// `path` with `suffix` appended to its name.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The directory of a file.
fn parent(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The parameter file of the highest epoch in `folder`.
fn params_of_last_epoch(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let epochs = files.filter_map(|path| Some((epoch(&path, prefix)?, path)));
    epochs.max().map(|(_, path)| path)
}

/// The epoch in the name of a parameter file: `PREFIX-NNNN.params`.
fn epoch(path: &Path, prefix: &str) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_prefix(prefix)?.strip_prefix('-')?;
    let digits = name.strip_suffix(PARAMS_SUFFIX)?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests;
