//! CatBoost models, evaluated without the library.
//!
//! * [`mod@format`] finds the file of a model and detects its format;
//! * [`cbm`] reads the binary format with [`flatbuffer`](tensorserve_codec::flatbuffer), [`json`] the other; both make a [`document`];
//! * [`inputs`] reads requests, [`features`] compares their values with borders, with [`ctr`] and
//!   [`mod@hash`] for categories; [`trees`], [`output`] and [`model`] evaluate a model.

use std::mem;
use std::path::Path;

use tensorserve_platform::InputStyle;
use tensorserve_tabular::ComparedVersions;
use tensorserve_tabular::Evaluated;
use tensorserve_tabular::FilePlatform;
use tensorserve_tensor::error::Result;

mod cbm;
mod ctr;
mod document;
mod features;
mod format;
mod hash;
mod inputs;
mod json;
mod model;
mod output;
mod rows;
mod trees;

/// The `catboost` platform.
pub const CATBOOST: FilePlatform = FilePlatform {
    name: "catboost",
    title: "CatBoost",
    description: "CatBoost (built-in evaluator)",
    input_style: InputStyle::Rows,
    has_folders: false,
    compared: Some(ComparedVersions {
        library: "CatBoost",
        oldest: (1, 2),
        newest: (1, 2),
        recorded: true,
    }),
    recognises: |place| format::FILES.recognises(place),
    check: |folder| format::FILES.check(folder),
    read,
};

fn read(path: &Path) -> Result<Evaluated> {
    Evaluated::read(&format::FILES.find(path)?, format::MAX_FILE_BYTES, |bytes| {
        let mut model = format::read_file(&bytes)?;
        let written_by = mem::take(&mut model.written_by);
        Ok(Evaluated::new(model.signature()?, model, written_by))
    })
}

#[cfg(test)]
mod tests;
