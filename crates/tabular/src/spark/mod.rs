//! Models that Spark has saved, linear ones, run by this process itself.
//!
//! Such a model is a folder: `metadata/part-…` says in JSON what it is, `data/part-….parquet`
//! holds its numbers.
//!
//! * [`parquet`] reads these, with [`thrift`]; [`linear`] runs models;
//! * this file knows the classes of Spark, and ties them together as a [`Platform`].

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use self::linear::{Answer, Binary, Linear, Parts, damaged};
use self::parquet::Columns;
use tensorserve_platform::{
    Completeness, Executable, Inspection, LoadOptions, Loaded, Place, Platform, files,
};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::{Code, Error, Result};

mod linear;
mod parquet;
mod thrift;

/// The largest description of a model.
const MAX_METADATA: u64 = 16 << 20;

/// The largest file of numbers: 64 million, of 8 bytes each, and what is around them.
const MAX_DATA: u64 = 1 << 30;

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
        Ok("Spark natively".to_owned())
    }

    fn has_folders(&self) -> bool {
        true
    }

    fn recognises(&self, place: &Place) -> bool {
        let folder = place.path();
        folder.join("data").is_dir() && !parts(&folder.join("metadata"), "").is_empty()
    }

    fn takes_threads(&self) -> bool {
        false
    }

    fn check(&self, folder: &Path) -> Completeness {
        for (inner, ending) in [("metadata", ""), ("data", ".parquet")] {
            if parts(&folder.join(inner), ending).is_empty() {
                return Completeness::Missing(format!("a file {inner}/part-*{ending}"));
            }
        }
        Completeness::Complete
    }

    fn inspect(&self, folder: &Path, _: &LoadOptions) -> Result<Inspection> {
        let read = read(folder)?;
        let signatures = vec![read.signature];
        Ok(Inspection { signatures, written_by: read.written_by, bytes: read.bytes })
    }

    fn load(&self, folder: &Path, _: &LoadOptions) -> Result<Loaded> {
        let read = read(folder)?;
        let executable: Arc<dyn Executable> = Arc::new(read.model);
        let signatures = vec![read.signature];
        Ok(Loaded { signatures, executable, bytes: read.bytes, marshalled_hooks: false })
    }
}

/// The files `part-…` in a folder, sorted.
fn parts(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_part = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("part-") && name.ends_with(ending))
    };
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_part).collect();
    found.sort();
    found
}

/// A model, read.
struct Read {
    signature: Signature,
    model: Linear,
    written_by: String,
    bytes: u64,
}

fn read(folder: &Path) -> Result<Read> {
    let in_folder = |error: Error| error.context(folder.display());
    let metadata = metadata(&folder.join("metadata")).map_err(in_folder)?;
    let (columns, bytes) = columns(&folder.join("data")).map_err(in_folder)?;
    let parts = model(&metadata, &columns).map_err(in_folder)?;
    let (signature, model) = Linear::new(parts).map_err(in_folder)?;
    let version = metadata.get("sparkVersion").and_then(Value::as_str);
    let written_by = version.map_or(String::new(), |version| format!("Spark {version}"));
    Ok(Read { signature, model, written_by, bytes })
}

/// The first line of the files in `folder` that says something.
fn metadata(folder: &Path) -> Result<Value> {
    for file in parts(folder, "") {
        let bytes = files::read(&file, MAX_METADATA)?;
        let line = bytes.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty());
        if let Some(line) = line {
            let failed = |e: serde_json::Error| {
                damaged(format!("{} is not JSON: {e}", file.display())).with_source(e)
            };
            return serde_json::from_slice(line).map_err(failed);
        }
    }
    Err(Error::not_found("metadata holds no file part-* with something in it"))
}

/// The numbers in `folder`, and how many bytes its files have.
fn columns(folder: &Path) -> Result<(Columns, u64)> {
    let mut all = Columns::default();
    let mut size = 0u64;
    let files = parts(folder, ".parquet");
    if files.is_empty() {
        return Err(Error::not_found("data holds no file part-*.parquet"));
    }
    for file in files {
        let bytes = files::read(&file, MAX_DATA.saturating_sub(size))?;
        size = size.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let columns = Columns::read(&bytes);
        all.append(columns.map_err(|error| error.context(file.display()))?);
    }
    match all.rows {
        1 => Ok((all, size)),
        rows => Err(damaged(format!("its table has {rows} rows instead of 1"))),
    }
}

/// The model of a class that we know.
fn model(metadata: &Value, columns: &Columns) -> Result<Parts> {
    let class = metadata.get("class").and_then(Value::as_str);
    let class = class.ok_or_else(|| damaged("its metadata names no class"))?;
    match class {
        "org.apache.spark.ml.classification.LogisticRegressionModel" => {
            ml_logistic(metadata, columns)
        }
        "org.apache.spark.ml.classification.LinearSVCModel" => {
            let threshold = parameter(metadata, "threshold").and_then(Value::as_f64);
            one_sum(columns, "coefficients", Answer::Above(threshold.unwrap_or(0.0)))
        }
        "org.apache.spark.ml.regression.LinearRegressionModel" => {
            one_sum(columns, "coefficients", Answer::Number)
        }
        "org.apache.spark.mllib.classification.LogisticRegressionModel" => {
            mllib_logistic(metadata, columns)
        }
        "org.apache.spark.mllib.classification.SVMModel" => {
            let answer = columns.number("threshold").map_or(Answer::Number, Answer::Above);
            one_sum(columns, "weights", answer)
        }
        "org.apache.spark.mllib.regression.LinearRegressionModel"
        | "org.apache.spark.mllib.regression.LassoModel"
        | "org.apache.spark.mllib.regression.RidgeRegressionModel" => {
            one_sum(columns, "weights", Answer::Number)
        }
        _ => Err(Error::new(
            Code::Unimplemented,
            format!(
                "models of the class {class} are not supported, only logistic and linear \
                 regression and linear support vector machines: export it to ONNX or PMML"
            ),
        )),
    }
}

/// A parameter of a model of Spark ML: as it was set, or else its default.
fn parameter<'m>(metadata: &'m Value, name: &str) -> Option<&'m Value> {
    let of = |map: &str| metadata.get(map)?.get(name);
    of("paramMap").or_else(|| of("defaultParamMap"))
}

fn one_sum(columns: &Columns, path: &str, answer: Answer) -> Result<Parts> {
    let coefficients = linear::vector(columns, path)?;
    let intercept = columns.number("intercept");
    let intercept = intercept.ok_or_else(|| damaged("it has no intercept"))?;
    let features = coefficients.len();
    Ok(Parts { features, coefficients, intercepts: vec![intercept], answer })
}

fn ml_logistic(metadata: &Value, columns: &Columns) -> Result<Parts> {
    // Before Spark 2.1 there were two classes only.
    let is_old = columns.has("coefficients") && !columns.has("coefficientMatrix");
    if is_old {
        let above = Binary::Sum(ml_threshold(metadata)?);
        return one_sum(columns, "coefficients", Answer::Binary { above });
    }
    let (coefficients, rows, features) = linear::matrix(columns, "coefficientMatrix")?;
    let intercepts = linear::vector(columns, "interceptVector")?;
    if intercepts.len() != rows {
        return Err(damaged("it has not as many intercepts as sums"));
    }
    let answer = match columns.number("isMultinomial") == Some(1.0) {
        true => Answer::Softmax { thresholds: thresholds(metadata)?.unwrap_or_default() },
        false => Answer::Binary { above: Binary::Sum(ml_threshold(metadata)?) },
    };
    Ok(Parts { features, coefficients, intercepts, answer })
}

fn thresholds(metadata: &Value) -> Result<Option<Vec<f64>>> {
    let Some(values) = parameter(metadata, "thresholds").filter(|values| !values.is_null()) else {
        return Ok(None);
    };
    let numbers = values.as_array().map(|all| all.iter().map(Value::as_f64).collect());
    let numbers: Option<Vec<f64>> = numbers.flatten();
    let numbers = numbers.filter(|all| !all.is_empty() && all.iter().all(|t| *t >= 0.0));
    numbers.map(Some).ok_or_else(|| damaged("its thresholds are no numbers"))
}

/// Above which sum Spark ML predicts the second of two classes.
fn ml_threshold(metadata: &Value) -> Result<f64> {
    let threshold = match thresholds(metadata)?.as_deref() {
        Some([first, second]) => 1.0 / (1.0 + first / second),
        Some(_) => return Err(damaged("it has not 2 thresholds")),
        None => parameter(metadata, "threshold").and_then(Value::as_f64).unwrap_or(0.5),
    };
    if !(0.0..=1.0).contains(&threshold) {
        return Err(damaged("its threshold is not between 0 and 1"));
    }
    // Infinite at both ends, as it should be.
    Ok((threshold / (1.0 - threshold)).ln())
}

fn mllib_logistic(metadata: &Value, columns: &Columns) -> Result<Parts> {
    let number = |name: &str| {
        let number = metadata.get(name).and_then(Value::as_u64);
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| damaged(format!("its metadata has no {name}")))
    };
    let (features, classes) = (number("numFeatures")?, number("numClasses")?);
    let threshold = columns.number("threshold");
    if classes == 2 {
        let above = threshold.map_or(Binary::Never, Binary::Probability);
        let parts = one_sum(columns, "weights", Answer::Binary { above })?;
        return match parts.features == features {
            true => Ok(parts),
            false => Err(damaged("it has not as many weights as features")),
        };
    }
    let weights = linear::vector(columns, "weights")?;
    let sums = classes.checked_sub(1).filter(|sums| *sums > 0);
    let sums = sums.ok_or_else(|| damaged("it has fewer than 2 classes"))?;
    // Each sum has its intercept behind its weights, or none has.
    let width = weights.len() / sums;
    let is_right = width.checked_mul(sums) == Some(weights.len())
        && (width == features || Some(width) == features.checked_add(1));
    if !is_right || features == 0 {
        return Err(damaged("it has not as many weights as features and classes"));
    }
    let lines = || weights.chunks_exact(width);
    let coefficients = lines().flat_map(|line| line.iter().take(features).copied()).collect();
    let intercepts = lines().map(|line| line.get(features).copied().unwrap_or(0.0)).collect();
    Ok(Parts { features, coefficients, intercepts, answer: Answer::Pivot })
}

#[cfg(test)]
mod tests;
