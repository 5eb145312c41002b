//! MXNet checkpoints, run by ONNX Runtime.
//!
//! MXNet is retired, and the holes of its library stay. So the library is not used: a checkpoint
//! is turned into an ONNX model when it is loaded, which the `onnx` platform runs.
//!
//! * [`symbol`], [`params`] and [`signature`] read the files of a checkpoint;
//! * [`convert`] makes an ONNX model of them, with what [`ops`], [`layers`] and [`shapes`] know of each
//!   operation;
//! * this file finds the files, and ties all together as a [`Platform`].

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Onnx;
use crate::proto::ModelProto;
use tensorserve_platform::{Completeness, Inspection, LoadOptions, Loaded, Place, Platform, files};
use tensorserve_tensor::error::{Code, Error, Result};

mod convert;
mod layers;
mod ops;
mod params;
mod shapes;
mod signature;
mod symbol;

/// How the names of a checkpoint's files end.
const SYMBOL: &str = "-symbol.json";
const PARAMS: &str = ".params";
const SIGNATURE: &str = "-signature.json";

/// More than any graph takes: that of a network of a thousand layers has less than a megabyte.
const LARGEST_JSON: u64 = 64 << 20;
/// What ONNX Runtime takes in one piece, which is protobuf's limit, less a place for the graph.
const LARGEST_PARAMS: u64 = (i32::MAX as u64) - (64 << 20);

/// The `mxnet` platform.
pub struct MxNet {
    onnx: Arc<Onnx>,
}

impl MxNet {
    /// The platform, on the runtime of `onnx`.
    #[must_use]
    pub fn new(onnx: Arc<Onnx>) -> Self {
        MxNet { onnx }
    }
}

impl Platform for MxNet {
    fn name(&self) -> &'static str {
        "mxnet"
    }

    fn title(&self) -> &'static str {
        "MXNet"
    }

    fn describe(&self) -> Result<String> {
        Ok(format!("MXNet by {}", self.onnx.describe()?))
    }

    fn recognises(&self, place: &Place) -> bool {
        place.has_file(&[SYMBOL]) || with_ending(place.path(), SYMBOL).is_file()
    }

    fn takes_threads(&self) -> bool {
        self.onnx.takes_threads()
    }

    fn check(&self, path: &Path) -> Completeness {
        match Checkpoint::at(path).and_then(|checkpoint| checkpoint.convert()) {
            Ok(_) => Completeness::Complete,
            Err(error) if error.code() == Code::NotFound => {
                Completeness::Missing(error.message().to_owned())
            }
            Err(error) => Completeness::Broken(error),
        }
    }

    fn inspect(&self, path: &Path, _: &LoadOptions) -> Result<Inspection> {
        let checkpoint = Checkpoint::at(path)?;
        Ok(Inspection {
            signatures: vec![crate::signature(&checkpoint.convert()?)?],
            written_by: String::new(),
            bytes: checkpoint.size(),
        })
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Loaded> {
        let checkpoint = Checkpoint::at(path)?;
        let mut model = checkpoint.convert()?;
        let signature = crate::signature(&model)?;
        // MXNet never looked at them, so they may be wrong.
        convert::open_outputs(&mut model);
        let (size, folder) = (checkpoint.size(), checkpoint.folder());
        self.onnx.load_made(&model, signature, size, folder, options)
    }
}

/// The files of a checkpoint.
struct Checkpoint {
    symbol: PathBuf,
    params: PathBuf,
    /// Which may be missing.
    signature: PathBuf,
}

impl Checkpoint {
    /// The checkpoint with the prefix `path`, with the symbol `path`, or in the folder `path`; of
    /// several epochs the last.
    fn at(path: &Path) -> Result<Self> {
        let by_prefix = with_ending(path, SYMBOL);
        let symbol = if by_prefix.is_file() { by_prefix } else { files::find(path, &[SYMBOL])? };
        let name = symbol.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(prefix) = name.strip_suffix(SYMBOL) else {
            let message = format!("{name} is no symbol of MXNet (such files end with {SYMBOL})");
            return Err(Error::new(Code::InvalidArgument, message));
        };
        let params = last_epoch(&symbol, prefix).ok_or_else(|| {
            Error::not_found(format!("{prefix}-NNNN{PARAMS} is not there, beside {name}"))
        })?;
        let signature = symbol.with_file_name(format!("{prefix}{SIGNATURE}"));
        Ok(Checkpoint { symbol, params, signature })
    }

    fn folder(&self) -> &Path {
        match self.symbol.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    fn size(&self) -> u64 {
        let size = |file: &PathBuf| fs::metadata(file).map_or(0, |meta| meta.len());
        [&self.symbol, &self.params, &self.signature].into_iter().map(size).sum()
    }

    fn convert(&self) -> Result<ModelProto> {
        let symbol = symbol::read(&files::read(&self.symbol, LARGEST_JSON)?)?;
        let declared = match self.signature.is_file() {
            true => Some(signature::read(&files::read(&self.signature, LARGEST_JSON)?)?),
            false => None,
        };
        let params = params::read(files::read(&self.params, LARGEST_PARAMS)?.into())?;
        convert::convert(&symbol, &params, declared.as_ref())
    }
}

/// `path` with more at the end of its name.
fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The file of parameters of the highest epoch.
fn last_epoch(symbol: &Path, prefix: &str) -> Option<PathBuf> {
    let folder = match symbol.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let epoch_of = |path: &Path| -> Option<u32> {
        let name = path.file_name()?.to_str()?.strip_prefix(prefix)?.strip_prefix('-')?;
        let number = name.strip_suffix(PARAMS)?;
        number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())?
    };
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let epochs = files.filter_map(|path| Some((epoch_of(&path)?, path)));
    epochs.max().map(|(_, path)| path)
}

#[cfg(test)]
mod tests;
