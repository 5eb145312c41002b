//! Linear models that Spark has saved, evaluated without Spark.
//!
//! A model is a folder: `metadata/part-…` describes it in JSON, `data/part-….parquet` has its
//! parameters. A pipeline has such a folder for each stage, in `stages`.
//!
//! * [`parquet`] reads columns of numbers, [`vector`] vectors and matrices in them, and [`classes`] the
//!   parameters of each class of Spark's models;
//! * [`linear`] evaluates a model; this file is the [`Platform`].

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use self::linear::SparkLinearModel;
use self::parquet::ParquetColumns;
use tensorserve_platform::{
    Completeness, Executable, Inspection, LoadOptions, Loaded, Place, Platform, files,
};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::{Code, Error, Result};

mod classes;
mod linear;
mod parquet;
mod vector;

/// The largest metadata of a model, in bytes.
const MAX_METADATA_BYTES: u64 = 16 << 20;

/// The largest size of the data files: 64 million numbers of 8 bytes, and what surrounds them.
const MAX_DATA_BYTES: u64 = 1 << 30;

/// The folders of a model.
const METADATA: &str = "metadata";
const DATA: &str = "data";

/// The folder of a pipeline's stages.
const STAGES: &str = "stages";

/// With which the names of files in these folders start.
const PART: &str = "part-";

/// With which the names of data files end.
const DATA_ENDING: &str = ".parquet";

/// The `spark` platform.
pub struct Spark;

impl Platform for Spark {
    fn name(&self) -> &'static str {
        "spark"
    }

    fn title(&self) -> &'static str {
        "Spark"
    }

    fn describe(&self) -> Result<String> {
        Ok("Spark, built-in evaluator".to_owned())
    }

    fn has_folders(&self, _: &Place) -> bool {
        true
    }

    fn recognises(&self, place: &Place) -> bool {
        let folder = place.path();
        let has_values = folder.join(DATA).is_dir() || folder.join(STAGES).is_dir();
        has_values && !part_files(&folder.join(METADATA), "").is_empty()
    }

    fn takes_threads(&self) -> bool {
        false
    }

    fn check(&self, folder: &Path) -> Completeness {
        let folder = match stage_of(folder) {
            Ok(stage) => stage,
            Err(error) => return Completeness::Broken(error),
        };
        for (inner, ending) in [(METADATA, ""), (DATA, DATA_ENDING)] {
            if part_files(&folder.join(inner), ending).is_empty() {
                return Completeness::Missing(format!("a file {inner}/{PART}*{ending}"));
            }
        }
        Completeness::Complete
    }

    fn inspect(&self, folder: &Path, _: &LoadOptions) -> Result<Inspection> {
        let SparkModelFolder { signature, written_by, bytes, .. } = SparkModelFolder::open(folder)?;
        Ok(Inspection { signatures: vec![signature], written_by, bytes, external_ops: Vec::new() })
    }

    fn load(&self, folder: &Path, _: &LoadOptions) -> Result<Loaded> {
        let SparkModelFolder { signature, model, bytes, .. } = SparkModelFolder::open(folder)?;
        let executable: Arc<dyn Executable> = Arc::new(model);
        Ok(Loaded {
            signatures: vec![signature],
            executable,
            bytes,
            marshalled_hooks: false,
            external_ops: Vec::new(),
        })
    }
}

/// The folder of the model: that of the only stage of a pipeline, or else `folder` itself.
fn stage_of(folder: &Path) -> Result<PathBuf> {
    let Ok(entries) = fs::read_dir(folder.join(STAGES)) else {
        return Ok(folder.to_owned());
    };
    let stages = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    let mut stages: Vec<PathBuf> = stages.collect();
    stages.sort();
    if let [only] = &stages[..] {
        return Ok(only.clone());
    }
    let names = stages.iter().filter_map(|stage| stage.file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    let message = format!(
        "{} is a pipeline of {} stages ({}), and only pipelines of one stage are supported: save the \
         model of its last stage, and send the features that the other stages compute",
        folder.display(),
        names.len(),
        names.join(", ")
    );
    Err(Error::new(Code::Unimplemented, message))
}

/// The files `part-…` of a folder with this ending, sorted.
fn part_files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut found: Vec<PathBuf> = paths.filter(|path| is_part(path, ending)).collect();
    found.sort();
    found
}

fn is_part(path: &Path, ending: &str) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy());
    name.is_some_and(|name| name.starts_with(PART) && name.ends_with(ending))
}

/// The folder of a model that is read.
struct SparkModelFolder {
    signature: Signature,
    model: SparkLinearModel,
    /// The version of Spark that wrote it; empty if not recorded.
    written_by: String,
    /// The size of its data files.
    bytes: u64,
}

impl SparkModelFolder {
    fn open(folder: &Path) -> Result<Self> {
        let stage = stage_of(folder)?;
        SparkModelFolder::read(&stage).map_err(|error| error.context(folder.display()))
    }

    fn read(folder: &Path) -> Result<Self> {
        let metadata = read_metadata(&folder.join(METADATA))?;
        let (columns, bytes) = read_data(&folder.join(DATA))?;
        let parameters = classes::read_parameters(&metadata, &columns)?;
        let (signature, model) = SparkLinearModel::new(parameters)?;
        let version = metadata.get("sparkVersion").and_then(Value::as_str);
        let written_by = version.map_or(String::new(), |version| format!("Spark {version}"));
        Ok(SparkModelFolder { signature, model, written_by, bytes })
    }
}

/// Reads the first line that is not blank of the files in `folder`.
fn read_metadata(folder: &Path) -> Result<Value> {
    for file in part_files(folder, "") {
        let bytes = files::read(&file, MAX_METADATA_BYTES)?;
        let line = bytes.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty());
        if let Some(line) = line {
            return serde_json::from_slice(line).map_err(|error| {
                let message = format!("{} is not valid JSON: {error}", file.display());
                damaged(message).with_source(error)
            });
        }
    }
    Err(Error::not_found(format!("{METADATA} has no file {PART}* that is not empty")))
}

/// Reads the columns of the files in `folder`; also returns the size of the files in bytes.
fn read_data(folder: &Path) -> Result<(ParquetColumns, u64)> {
    let mut all = ParquetColumns::default();
    let mut size = 0u64;
    let files = part_files(folder, DATA_ENDING);
    if files.is_empty() {
        return Err(Error::not_found(format!("{DATA} has no file {PART}*{DATA_ENDING}")));
    }
    for file in files {
        let bytes = files::read(&file, MAX_DATA_BYTES.saturating_sub(size))?;
        size = size.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let columns = ParquetColumns::read(&bytes);
        all.append(columns.map_err(|error| error.context(file.display()))?);
    }
    match all.rows {
        1 => Ok((all, size)),
        rows => Err(damaged(format!("its table has {rows} rows instead of 1"))),
    }
}

/// The error for a damaged model.
fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Code::DataLoss, format!("the model is damaged: {what}"))
}

#[cfg(test)]
mod tests;
