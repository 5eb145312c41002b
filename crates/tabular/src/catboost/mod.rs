//! CatBoost models, evaluated without the library.
//!
//! * [`mod@format`] finds the file of a model and detects its format;
//! * [`cbm`] reads the binary format with [`flatbuffer`](tensorserve_codec::flatbuffer), [`json`] the other; both make a [`document`];
//! * [`inputs`] reads requests, [`features`] compares their values with borders, with [`ctr`] and
//!   [`mod@hash`] for categories; [`trees`], [`output`] and [`model`] evaluate a model.

use std::mem;
use std::path::Path;
use std::sync::Arc;

use crate::compared::ComparedVersions;
use crate::evaluated::{self, Evaluated};
use crate::refusal::{damaged, unsupported};
use tensorserve_platform::{Completeness, Inspection, LoadOptions, Loaded, Place, Platform};
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
pub struct CatBoost;

impl Platform for CatBoost {
    fn name(&self) -> &'static str {
        "catboost"
    }

    fn title(&self) -> &'static str {
        "CatBoost"
    }

    fn describe(&self) -> Result<String> {
        Ok("CatBoost, built-in evaluator".to_owned())
    }

    fn recognises(&self, place: &Place) -> bool {
        place.has_file(&format::CATBOOST_ENDINGS) || !format::find_by_content(place).is_empty()
    }

    fn takes_threads(&self) -> bool {
        false
    }

    fn check(&self, folder: &Path) -> Completeness {
        evaluated::check(folder, &format::CATBOOST_ENDINGS, format::find)
    }

    fn inspect(&self, folder: &Path, _options: &LoadOptions) -> Result<Inspection> {
        Ok(read(folder)?.inspection())
    }

    fn load(&self, folder: &Path, _options: &LoadOptions) -> Result<Loaded> {
        Ok(read(folder)?.loaded_from(folder, &COMPARED))
    }
}

/// The CatBoost whose predictions were compared with those of this evaluator.
const COMPARED: ComparedVersions =
    ComparedVersions { library: "CatBoost", oldest: (1, 2), newest: (1, 2) };

fn read(folder: &Path) -> Result<Evaluated> {
    let (mut model, bytes) = format::read(folder)?;
    Ok(Evaluated {
        signatures: vec![model.signature()?],
        written_by: mem::take(&mut model.written_by),
        executable: Arc::new(model),
        bytes,
    })
}

#[cfg(test)]
mod tests;
