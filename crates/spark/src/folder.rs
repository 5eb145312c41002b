//! The folder of a stage: its metadata and parameters in JSON, and its tables.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::parquet::ParquetColumns;
use super::{damaged, unsupported};
use tensorserve_platform::files;
use tensorserve_tensor::error::{Error, Result};

/// The largest metadata of a stage, in bytes.
const MAX_METADATA_BYTES: u64 = 16 << 20;

/// The largest size of the files of a table: 64 million numbers of 8 bytes, and what surrounds them.
const MAX_DATA_BYTES: u64 = 1 << 30;

/// The folders of a stage.
pub(super) const METADATA: &str = "metadata";
pub(super) const DATA: &str = "data";

/// The folder of a pipeline's stages.
pub(super) const STAGES: &str = "stages";

/// With which the names of files in these folders start.
pub(super) const PART: &str = "part-";

/// With which the names of data files end.
pub(super) const DATA_ENDING: &str = ".parquet";

/// The files `part-…` of a folder with this ending, sorted.
pub(super) fn part_files(folder: &Path, ending: &str) -> Vec<PathBuf> {
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

/// A stage as it was saved.
pub(super) struct StageFolder {
    pub(super) path: PathBuf,
    metadata: Value,
}

impl StageFolder {
    /// Reads the metadata of the stage in the folder `path`: the first line that is not blank.
    pub(super) fn open(path: &Path) -> Result<Self> {
        for file in part_files(&path.join(METADATA), "") {
            let bytes = files::read(&file, MAX_METADATA_BYTES)?;
            let mut lines = bytes.split(|byte| *byte == b'\n');
            if let Some(line) = lines.find(|line| !line.trim_ascii().is_empty()) {
                let metadata = serde_json::from_slice(line).map_err(|error| {
                    let message = format!("{} is not valid JSON: {error}", file.display());
                    damaged(message).with_source(error)
                })?;
                return Ok(StageFolder { path: path.to_owned(), metadata });
            }
        }
        Err(Error::not_found(format!("{METADATA} has no file {PART}* that is not empty")))
    }

    /// The name of its class.
    pub(super) fn class(&self) -> Result<&str> {
        let class = self.metadata.get("class").and_then(Value::as_str);
        class.ok_or_else(|| damaged("its metadata has no class"))
    }

    /// The version of Spark that wrote it; empty if it is not recorded.
    pub(super) fn version(&self) -> &str {
        self.metadata.get("sparkVersion").and_then(Value::as_str).unwrap_or_default()
    }

    /// The version of Spark before the first dot.
    pub(super) fn major_version(&self) -> u32 {
        let major = self.version().split('.').next();
        major.and_then(|major| major.parse().ok()).unwrap_or(u32::MAX)
    }

    /// A value of the metadata itself.
    pub(super) fn field(&self, name: &str) -> Option<&Value> {
        self.metadata.get(name)
    }

    /// A size in the metadata itself.
    pub(super) fn size_field(&self, name: &str) -> Option<usize> {
        self.field(name).and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok())
    }

    /// The metadata.
    pub(super) fn metadata(&self) -> &Value {
        &self.metadata
    }

    /// A parameter: the value that was set, or else its default.
    pub(super) fn parameter(&self, name: &str) -> Option<&Value> {
        let set = self.metadata.get("paramMap").and_then(|map| map.get(name));
        let found = set.or_else(|| self.metadata.get("defaultParamMap")?.get(name));
        found.filter(|value| !value.is_null())
    }

    /// A text parameter; `default` if it is not set.
    pub(super) fn text<'s>(&'s self, name: &str, default: &'s str) -> Result<&'s str> {
        match self.parameter(name) {
            None => Ok(default),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(damaged(format!("its parameter {name} is not a text"))),
        }
    }

    /// The name of a column.
    pub(super) fn column(&self, name: &str) -> Result<&str> {
        match self.text(name, "")? {
            "" => Err(damaged(format!("its parameter {name} is missing"))),
            column => Ok(column),
        }
    }

    /// The name of a column that may be left out.
    pub(super) fn optional_column(&self, name: &str) -> Result<Option<&str>> {
        Ok(Some(self.text(name, "")?).filter(|name| !name.is_empty()))
    }

    /// The names of several columns, in the parameter `many`, or of one, in the parameter `one`.
    pub(super) fn columns(&self, one: &str, many: &str) -> Result<Vec<&str>> {
        match self.texts(many)? {
            Some(names) if !names.is_empty() => Ok(names),
            _ => Ok(vec![self.column(one)?]),
        }
    }

    /// A parameter that is a list of texts.
    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<&str>>> {
        let Some(value) = self.parameter(name) else { return Ok(None) };
        let texts = value.as_array().and_then(|all| all.iter().map(Value::as_str).collect());
        texts
            .map(Some)
            .ok_or_else(|| damaged(format!("its parameter {name} is not a list of texts")))
    }

    /// A parameter that is a number, `default` if it is not set.
    pub(super) fn number(&self, name: &str, default: f64) -> Result<f64> {
        match self.parameter(name) {
            None => Ok(default),
            Some(value) => number_of(value)
                .ok_or_else(|| damaged(format!("its parameter {name} is not a number"))),
        }
    }

    /// A parameter that is a size, `default` if it is not set.
    pub(super) fn size(&self, name: &str, default: usize) -> Result<usize> {
        match self.parameter(name) {
            None => Ok(default),
            Some(value) => value
                .as_u64()
                .and_then(|size| usize::try_from(size).ok())
                .ok_or_else(|| damaged(format!("its parameter {name} is not a size"))),
        }
    }

    /// A parameter that is true or false, `default` if it is not set.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.parameter(name) {
            None => Ok(default),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| damaged(format!("its parameter {name} is not true or false"))),
        }
    }

    /// A parameter that is a list of numbers.
    pub(super) fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>> {
        self.parameter(name).map(|value| numbers_of(value, name)).transpose()
    }

    /// A parameter that is a list of lists of numbers.
    pub(super) fn number_lists(&self, name: &str) -> Result<Option<Vec<Vec<f64>>>> {
        let Some(value) = self.parameter(name) else { return Ok(None) };
        let lists = value
            .as_array()
            .ok_or_else(|| damaged(format!("its parameter {name} is not a list")))?;
        lists.iter().map(|list| numbers_of(list, name)).collect::<Result<_>>().map(Some)
    }

    /// The value of `handleInvalid`, `default` if it is not set.
    pub(super) fn invalid(&self) -> Result<Invalid> {
        match self.text("handleInvalid", "error")? {
            "error" => Ok(Invalid::Error),
            "skip" => Ok(Invalid::Skip),
            "keep" | "optimistic" => Ok(Invalid::Keep),
            other => Err(unsupported(format!("handleInvalid={other:?}"))),
        }
    }

    /// The table in the folder `inner`.
    pub(super) fn table(&self, inner: &str) -> Result<ParquetColumns> {
        let mut all = ParquetColumns::default();
        let mut size = 0u64;
        let files = part_files(&self.path.join(inner), DATA_ENDING);
        if files.is_empty() {
            return Err(Error::not_found(format!("{inner} has no file {PART}*{DATA_ENDING}")));
        }
        for file in files {
            let bytes = files::read(&file, MAX_DATA_BYTES.saturating_sub(size))?;
            size = size.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            let columns = ParquetColumns::read(bytes);
            let added = columns.and_then(|columns| all.append(columns));
            added.map_err(|error| error.context(file.display()))?;
        }
        Ok(all)
    }

    /// The table in the folder `data`, which has one row.
    pub(super) fn data(&self) -> Result<ParquetColumns> {
        let table = self.table(DATA)?;
        match table.rows {
            1 => Ok(table),
            rows => Err(damaged(format!("its table has {rows} rows instead of 1"))),
        }
    }
}

/// What a stage does with a value that it cannot handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    Error,
    /// Drop the row.
    Skip,
    Keep,
}

/// A number, as Spark writes it: those that JSON does not have are texts.
fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Inf" | "Infinity" => Some(f64::INFINITY),
            "-Inf" | "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn numbers_of(value: &Value, name: &str) -> Result<Vec<f64>> {
    let numbers = value.as_array().and_then(|all| all.iter().map(number_of).collect());
    numbers.ok_or_else(|| damaged(format!("its parameter {name} is not a list of numbers")))
}
