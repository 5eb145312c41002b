//! Models that H2O has exported as MOJOs, evaluated without Java.
//!
//! A MOJO is a zip archive: `model.ini` describes the model, and other files hold what is too large
//! for it.
//!
//! * [`files`] and [`info`] read the archive and `model.ini`; [`inputs`] and [`model`] assemble a model;
//! * [`trees`] (of nodes that [`compressed`] reads into a [`forest`]), [`extended`], [`glm`], [`xgboost`],
//!   [`network`], [`kmeans`] and [`ensemble`] are its kinds; [`classes`] and [`calibration`] are what
//!   follows;
//! * [`executable`] converts between tensors and rows; this file is the [`FilePlatform`].
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::mem;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use self::files::MojoArchive;
use self::model::MojoModel;
use tensorserve_platform::{Completeness, InputStyle, ModelPath, files as model_files};
use tensorserve_tabular::ComparedVersions;
use tensorserve_tabular::Evaluated;
use tensorserve_tabular::FilePlatform;
use tensorserve_tensor::error::{Code, Error, Result};

mod calibration;
mod classes;
mod compressed;
mod ensemble;
mod executable;
mod extended;
mod files;
mod forest;
mod glm;
mod head;
mod info;
mod inputs;
mod kmeans;
mod link;
mod model;
mod network;
mod numeric;
mod trees;
mod xgboost;

/// The ending of files that are MOJOs.
const ENDINGS: [&str; 1] = [".mojo"];

/// The ending of files that are archives: those with `model.ini` are MOJOs.
const ARCHIVE_ENDINGS: [&str; 1] = [".zip"];

/// The largest file. Reading takes a few times its size in memory.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// How many bytes at the end of an archive are searched for its directory: that of 50 000 trees.
const MAX_SNIFFED_BYTES: u64 = 8 << 20;

/// An entry of the directory of a MOJO.
const DESCRIPTION: &[u8] = b"model.ini";

/// The way on for other models of H2O.
const EXPORT: &str = "save the model with model.download_mojo(\"model.zip\"); binary models of H2O \
                      (h2o.save_model) and POJOs run in H2O only";

/// With which archives start.
const ARCHIVE_START: &[u8] = b"PK";

/// The `h2o` platform.
pub const H2O: FilePlatform = FilePlatform {
    name: "h2o",
    title: "H2O",
    description: "H2O MOJO (built-in evaluator)",
    input_style: InputStyle::Records,
    has_folders: false,
    compared: Some(ComparedVersions {
        library: "H2O",
        oldest: (3, 11),
        newest: (3, 46),
        recorded: true,
    }),
    recognises: |place| place.has_file(&ENDINGS) || mojo_archives(place).next().is_some(),
    check,
    read: open,
};

fn check(path: &Path) -> Completeness {
    match find(path) {
        Ok(_) => Completeness::Complete,
        Err(error) if error.code() == Code::NotFound => {
            Completeness::Missing("a file *.mojo, or *.zip with model.ini".to_owned())
        }
        Err(error) => Completeness::Broken(error),
    }
}

/// The file of the model: `path` itself, or the one in the folder `path`.
fn find(path: &Path) -> Result<PathBuf> {
    let place = ModelPath::new(path);
    if place.is_file() {
        return Ok(path.to_owned());
    }
    let found = place.files(&ENDINGS).chain(mojo_archives(&place));
    match model_files::only(path, found)? {
        Some(file) => Ok(file),
        None => Err(Error::not_found(format!(
            "{} contains no file *.mojo, and no file *.zip with model.ini: {EXPORT}",
            path.display()
        ))),
    }
}

fn mojo_archives<'a>(place: &'a ModelPath) -> impl Iterator<Item = &'a PathBuf> {
    place.files(&ARCHIVE_ENDINGS).filter(|file| looks_like_mojo(file))
}

/// Whether a file is an archive whose directory, at its end, names `model.ini`.
fn looks_like_mojo(path: &Path) -> bool {
    let sniffed = || -> std::io::Result<bool> {
        let file = model_files::open(path)?;
        let length = file.metadata()?.len();
        let mut start = [0; ARCHIVE_START.len()];
        file.read_exact_at(&mut start, 0)?;
        if start != ARCHIVE_START {
            return Ok(false);
        }
        let size = length.min(MAX_SNIFFED_BYTES);
        let mut end = vec![0; usize::try_from(size).unwrap_or(0)];
        file.read_exact_at(&mut end, length - size)?;
        Ok(memchr::memmem::find(&end, DESCRIPTION).is_some())
    };
    sniffed().unwrap_or(false)
}

/// Reads the model at `path`.
fn open(path: &Path) -> Result<Evaluated> {
    Evaluated::read(&find(path)?, MAX_FILE_BYTES, |content| {
        let mut model = read(content)?;
        let written_by = mem::take(&mut model.written_by);
        Ok(Evaluated::new(model.signature()?, model, written_by))
    })
}

fn read(bytes: Vec<u8>) -> Result<MojoModel> {
    if !bytes.starts_with(ARCHIVE_START) {
        return Err(Error::damaged(format!("not a MOJO, which is a zip file: {EXPORT}")));
    }
    MojoModel::read(&MojoArchive::open(bytes)?.root())
}

#[cfg(test)]
mod tests;
