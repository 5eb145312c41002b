//! Models and pipelines that Spark has saved, evaluated without Spark.
//!
//! A model is a folder: `metadata/part-…` describes it in JSON, `data/part-….parquet` has its
//! parameters. A pipeline has such a folder for each stage, in `stages`.
//!
//! * [`parquet`] reads tables, [`vector`] vectors and matrices in them, and [`folder`] the folder of a stage;
//! * [`registry`] knows the classes of stages, which are in [`features`] and [`models`]. A [`stage`] adds
//!   columns to a [`table`]; [`schema`] finds the inputs, and [`pipeline`] puts stages together;
//! * [`executable`] runs them;
//! * [`classes`] and [`parameters`] read linear models, and [`mllib`] evaluates those of MLlib;
//! * this file is the [`FilePlatform`].
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::Path;

use self::folder::{DATA, METADATA, STAGES, StageFolder, part_files};
use self::mllib::SparkLinearModel;
use self::pipeline::SparkPipeline;
use tensorserve_platform::{Completeness, InputStyle, ModelPath};
use tensorserve_tabular::ComparedVersions;
use tensorserve_tabular::Evaluated;
use tensorserve_tabular::FilePlatform;
use tensorserve_tensor::error::{Code, Error, Result};

mod classes;
mod executable;
mod features;
mod folder;
mod mllib;
mod models;
mod numeric;
mod parameters;
mod parquet;
mod pipeline;
mod registry;
mod schema;
mod stage;
mod table;
mod vector;

/// The most classes of a model.
const MAX_CLASSES: usize = 4096;

/// The most elements of a vector.
const MAX_WIDTH: usize = 1 << 24;

/// With which the classes of Spark start.
const SPARK_CLASSES: &str = "org.apache.spark.";

/// With which the classes of MLlib start.
const MLLIB: &str = "org.apache.spark.mllib.";

/// The `spark` platform.
pub const SPARK: FilePlatform = FilePlatform {
    name: "spark",
    title: "Spark",
    description: "Spark (built-in evaluator)",
    input_style: InputStyle::Rows,
    has_folders: true,
    compared: Some(ComparedVersions {
        library: "Spark",
        oldest: (2, 4),
        newest: (4, 1),
        recorded: true,
    }),
    recognises,
    check,
    read: open,
};

fn recognises(place: &ModelPath) -> bool {
    let folder = place.path();
    let has_parts = !part_files(&folder.join(METADATA), "").is_empty();
    let has_values = folder.join(DATA).is_dir() || folder.join(STAGES).is_dir();
    // Some stages have parameters only.
    has_parts && (has_values || is_stage(folder))
}

fn check(folder: &Path) -> Completeness {
    match pipeline::check_files(folder) {
        Ok(()) => Completeness::Complete,
        Err(error) if error.code() == Code::NotFound => {
            Completeness::Missing(error.message().to_owned())
        }
        Err(error) => Completeness::Broken(error.context(folder.display())),
    }
}

/// Whether a folder has the metadata of a class of Spark ML.
fn is_stage(folder: &Path) -> bool {
    let stage = StageFolder::open(folder);
    stage.is_ok_and(|stage| stage.class().is_ok_and(|class| class.starts_with(SPARK_CLASSES)))
}

fn open(folder: &Path) -> Result<Evaluated> {
    read(folder).map_err(|error| error.context(folder.display()))
}

fn read(folder: &Path) -> Result<Evaluated> {
    let stage = StageFolder::open(folder)?;
    let bytes = size_of_files(folder, 0);
    if stage.class()?.starts_with(MLLIB) {
        let parameters = classes::read_mllib(stage.metadata(), &stage.data()?)?;
        let (signature, model) = SparkLinearModel::new(parameters)?;
        let written_by = match stage.version() {
            "" => String::new(),
            version => format!("Spark {version}"),
        };
        return Ok(Evaluated { bytes, ..Evaluated::new(signature, model, written_by) });
    }
    let pipeline = SparkPipeline::load(folder)?;
    let written_by = pipeline.written_by.clone();
    Ok(Evaluated { bytes, ..Evaluated::new(pipeline.signature()?, pipeline, written_by) })
}

/// The size of the files in a folder and those in it.
fn size_of_files(folder: &Path, depth: usize) -> u64 {
    const MAX_DEPTH: usize = 16;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() && depth < MAX_DEPTH => {
            size_of_files(&entry.path(), depth + 1)
        }
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => 0,
    });
    sizes.fold(0, u64::saturating_add)
}

/// A size as a number.
#[allow(clippy::cast_precision_loss)] // Sizes are far below 2^53.
fn float(size: usize) -> f64 {
    size as f64
}

/// An index or a size, which was an integer in a table; out of every range if it was negative or missing.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn index_of(number: f64) -> usize {
    if number >= 0.0 { number as usize } else { usize::MAX }
}

/// The error for a damaged model.
fn damaged(what: impl std::fmt::Display) -> Error {
    Error::damaged(format!("the model is damaged: {what}"))
}

/// The error for what a model has and is not supported.
fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::unsupported(format!("the model has {what}, which is not supported"))
}

#[cfg(test)]
mod tests;
