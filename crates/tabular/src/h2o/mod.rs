//! Models that H2O has exported as MOJOs, evaluated without Java.
//!
//! A MOJO is a zip archive: `model.ini` describes the model, and other files hold what is too large
//! for it.
//!
//! * [`files`] and [`info`] read the archive and `model.ini`; [`inputs`] and [`model`] assemble a model;
//! * [`trees`] (of nodes that [`compressed`] reads into a [`forest`]), [`extended`], [`glm`], [`xgboost`],
//!   [`network`], [`kmeans`] and [`ensemble`] are its kinds; [`classes`] and [`calibration`] are what
//!   follows;
//! * [`executable`] converts between tensors and rows; this file is the [`Platform`].

use std::mem;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::files::MojoArchive;
use self::model::MojoModel;
use crate::compared::ComparedVersions;
use crate::evaluated::Evaluated;
use crate::refusal::{damaged, unsupported};
use tensorserve_platform::{
    Completeness, InputStyle, Inspection, LoadOptions, Loaded, Place, Platform,
    files as model_files,
};
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
mod model;
mod network;
mod numeric;
mod trees;
mod xgboost;

/// The oldest and the newest H2O whose predictions were compared with those of this evaluator.
const COMPARED: ComparedVersions =
    ComparedVersions { library: "H2O", oldest: (3, 11), newest: (3, 46) };

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
pub struct H2o;

impl Platform for H2o {
    fn name(&self) -> &'static str {
        "h2o"
    }

    fn title(&self) -> &'static str {
        "H2O"
    }

    fn input_style(&self) -> InputStyle {
        InputStyle::Records
    }

    fn describe(&self) -> Result<String> {
        Ok("H2O MOJO, built-in evaluator".to_owned())
    }

    fn recognises(&self, place: &Place) -> bool {
        place.has_file(&ENDINGS) || place.files(&ARCHIVE_ENDINGS).any(|file| looks_like_mojo(file))
    }

    fn takes_threads(&self) -> bool {
        false
    }

    fn check(&self, path: &Path) -> Completeness {
        match find(path) {
            Ok(_) => Completeness::Complete,
            Err(error) if error.code() == Code::NotFound => {
                Completeness::Missing("a file *.mojo, or *.zip with model.ini".to_owned())
            }
            Err(error) => Completeness::Broken(error),
        }
    }

    fn inspect(&self, path: &Path, _: &LoadOptions) -> Result<Inspection> {
        Ok(open(path)?.inspection())
    }

    fn load(&self, path: &Path, _: &LoadOptions) -> Result<Loaded> {
        Ok(open(path)?.loaded_from(path, &COMPARED))
    }
}

/// The file of the model: `path` itself, or the one in the folder `path`.
fn find(path: &Path) -> Result<PathBuf> {
    let place = Place::new(path);
    if place.is_file() {
        return Ok(path.to_owned());
    }
    let archives = place.files(&ARCHIVE_ENDINGS).filter(|file| looks_like_mojo(file));
    let found: Vec<&PathBuf> = place.files(&ENDINGS).chain(archives).collect();
    match found[..] {
        [file] => Ok(file.clone()),
        [one, other, ..] => Err(Error::precondition(format!(
            "{} contains several models, {} and {}: put each into its own directory, or configure \
             the path of one file",
            path.display(),
            one.display(),
            other.display()
        ))),
        [] => Err(Error::not_found(format!(
            "{} contains no file *.mojo, and no file *.zip with model.ini: {EXPORT}",
            path.display()
        ))),
    }
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

/// Reads the model at `path`; also returns the size of its file in bytes.
fn open(path: &Path) -> Result<Evaluated> {
    let file = find(path)?;
    let content = model_files::read(&file, MAX_FILE_BYTES)?;
    let bytes = u64::try_from(content.len()).unwrap_or(u64::MAX);
    let mut model = read(content).map_err(|error| error.context(file.display()))?;
    Ok(Evaluated {
        signatures: vec![model.signature()?],
        written_by: mem::take(&mut model.written_by),
        executable: Arc::new(model),
        bytes,
    })
}

fn read(bytes: Vec<u8>) -> Result<MojoModel> {
    if !bytes.starts_with(ARCHIVE_START) {
        return Err(damaged(format!("not a MOJO, which is a zip file: {EXPORT}")));
    }
    MojoModel::read(&MojoArchive::open(bytes)?.root())
}

#[cfg(test)]
mod tests;
