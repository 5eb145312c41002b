//! XGBoost models, natively: no library is needed.
//!
//! * [`json`], [`ubjson`] and [`document`] read the notations of files, [`learner`] finds the model
//!   in them; [`binary`] reads the first format, and [`pickle`] finds any of them in a pickle;
//! * [`forest`], [`objective`] and [`model`] are a model as it is run;
//! * this file finds out what a file is, and ties them together as a [`Platform`].

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::document::Value;
use self::model::Model;
use tensorserve_platform::{
    Completeness, Executable, Inspection, LoadOptions, Loaded, Place, Platform, RunOptions, files,
};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, Shape, Signature, Tensor, TensorSpec, aligned_vec};

mod binary;
mod document;
mod forest;
mod json;
mod learner;
mod model;
mod objective;
mod pickle;
mod scan;
#[cfg(test)]
mod tests;
mod ubjson;

/// Endings of files that can be nothing else.
const CERTAIN: [&str; 4] = [".ubj", ".bst", ".xgb", ".xgboost"];

/// Endings that others use, too: what is in the file decides.
const COMMON: [&str; 4] = [".json", ".bin", ".model", ".deprecated"];

/// Endings of files that another platform recognises, and that are ours when we are named.
const PICKLES: [&str; 3] = [".pkl", ".pickle", ".joblib"];

/// The largest file that is read. Larger models are not known, and while one is read it takes
/// several times its size in memory.
const LARGEST_FILE: u64 = 1 << 30;

/// Bytes at the start of a file that show what it is: an object's first name, or what stands before
/// the objective's in the first format.
const START: usize = 512;

const INPUT: &str = "data";
const OUTPUT: &str = "result";

/// The `xgboost` platform.
pub struct XGBoost;

/// Which rounds of training take part in a prediction, where the file tells which was the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounds {
    /// What the one who wrote the file would do: the wrappers for scikit-learn stop at the best,
    /// the library itself does not.
    OfLibrary,
    /// Up to the best: a wrapper's pickle.
    Best,
    /// All: a booster's pickle.
    All,
}

impl Platform for XGBoost {
    fn name(&self) -> &'static str {
        "xgboost"
    }

    fn title(&self) -> &'static str {
        "XGBoost"
    }

    fn describe(&self) -> Result<String> {
        Ok("XGBoost natively".to_owned())
    }

    fn recognises(&self, place: &Place) -> bool {
        place.has_file(&CERTAIN) || !look_alikes(place).is_empty()
    }

    fn takes_threads(&self) -> bool {
        false
    }

    fn check(&self, folder: &Path) -> Completeness {
        match files::check(folder, &CERTAIN) {
            Completeness::Missing(what) => match find(folder) {
                Ok(_) => Completeness::Complete,
                Err(error) if error.code() == Code::NotFound => Completeness::Missing(what),
                Err(error) => Completeness::Broken(error),
            },
            found @ (Completeness::Complete | Completeness::Broken(_)) => found,
        }
    }

    fn inspect(&self, folder: &Path, _options: &LoadOptions) -> Result<Inspection> {
        let (model, bytes) = read(folder)?;
        Ok(Inspection { signatures: vec![signature(&model)], written_by: model.written_by, bytes })
    }

    fn load(&self, folder: &Path, _options: &LoadOptions) -> Result<Loaded> {
        let (model, bytes) = read(folder)?;
        Ok(Loaded {
            signatures: vec![signature(&model)],
            executable: Arc::new(model),
            bytes,
            marshalled_hooks: false,
        })
    }
}

/// The model's file: `path` itself, or the one in the folder `path`.
fn find(path: &Path) -> Result<PathBuf> {
    match files::find(path, &CERTAIN) {
        Err(error) if error.code() == Code::NotFound => {}
        found => return found,
    }
    let shown = path.display();
    match &*look_alikes(&Place::new(path)) {
        [] => files::find(path, &PICKLES).map_err(|error| {
            if error.code() != Code::NotFound {
                return error;
            }
            Error::not_found(format!(
                "{shown} holds no XGBoost model: no file *{} or *{}, and none in a file *{}",
                CERTAIN.join(" or *"),
                PICKLES.join(" or *"),
                COMMON.join(" or *")
            ))
        }),
        [file] => Ok(file.clone()),
        [one, other, ..] => Err(Error::precondition(format!(
            "{shown} holds several models, {} and {}: give each a folder of its own, or name the \
             file",
            one.display(),
            other.display()
        ))),
    }
}

/// Files with endings that others use too, and a model of ours in them.
fn look_alikes(place: &Place) -> Vec<PathBuf> {
    /// A folder with more such files is one of something else.
    const MOST_LOOKED_AT: usize = 16;
    let common = place.files(&COMMON).take(MOST_LOOKED_AT);
    common.filter(|file| looks_like_one(file)).cloned().collect()
}

fn looks_like_one(file: &Path) -> bool {
    let mut start = Vec::new();
    let limit = u64::try_from(START).unwrap_or(u64::MAX);
    let read = File::open(file).and_then(|file| file.take(limit).read_to_end(&mut start));
    let names_learner = || memchr::memmem::find(&start, b"learner\"").is_some();
    read.is_ok()
        && match Format::of(&start) {
            Some(Format::Json) => names_learner(),
            Some(Format::Ubjson) => memchr::memmem::find(&start, b"learner").is_some(),
            Some(Format::Binary) => true,
            Some(Format::Snapshot) | None => false,
        }
}

/// How a model is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Ubjson,
    Binary,
    Snapshot,
}

impl Format {
    /// That of a file that starts so.
    fn of(start: &[u8]) -> Option<Self> {
        if start.starts_with(binary::SNAPSHOT) {
            return Some(Format::Snapshot);
        }
        // A byte order mark, as some editors leave.
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        match text.split_first() {
            Some((b'{', rest)) if rest.trim_ascii_start().first() == Some(&b'"') => {
                Some(Format::Json)
            }
            Some((b'{', [b'i' | b'U' | b'I' | b'l' | b'L', ..])) => Some(Format::Ubjson),
            _ if binary::is_one(start) => Some(Format::Binary),
            _ => None,
        }
    }
}

/// Reads the model at `path`; also how many bytes its file has.
fn read(path: &Path) -> Result<(Model, u64)> {
    let file = find(path)?;
    let bytes = files::read(&file, LARGEST_FILE)?;
    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let model = read_any(bytes).map_err(|error| error.context(file.display().to_string()))?;
    Ok((model, len))
}

/// Reads the model in a file of any kind.
fn read_any(bytes: Vec<u8>) -> Result<Model> {
    match is_pickle(&bytes) {
        true => pickle::read(bytes),
        false => read_bytes(&bytes, Rounds::OfLibrary),
    }
}

/// Whether a file that starts so is a pickle, or one that is compressed.
fn is_pickle(start: &[u8]) -> bool {
    const STARTS: [&[u8]; 4] = [b"\x80", b"c", b"\x78", b"\x1f\x8b"];
    Format::of(start).is_none() && STARTS.iter().any(|known| start.starts_with(known))
}

fn read_bytes(bytes: &[u8], rounds: Rounds) -> Result<Model> {
    match Format::of(bytes) {
        Some(Format::Json) => learner::read(&Value::from_json(bytes)?, rounds),
        Some(Format::Ubjson) => learner::read(&Value::from_ubjson(bytes)?, rounds),
        Some(Format::Binary) => binary::read(bytes, rounds),
        Some(Format::Snapshot) => binary::read_snapshot(bytes, rounds),
        None if bytes.starts_with(b"bs64") => Err(unsupported(
            "it is base64 text, which the library itself reads no more; save it as JSON".to_owned(),
        )),
        None => Err(broken("it is no XGBoost model: no JSON, no UBJSON, no binary".to_owned())),
    }
}

fn signature(model: &Model) -> Signature {
    let outputs: &[i64] = match model.width() {
        1 => &[-1],
        width => &[-1, size(width)],
    };
    Signature::only(
        vec![TensorSpec::new(INPUT, DType::Float, &[-1, size(model.features)])],
        vec![TensorSpec::new(OUTPUT, DType::Float, outputs)],
    )
}

impl Executable for Model {
    fn run(&self, _signature: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let input = inputs.first().ok_or_else(|| Error::internal("no input"))?;
        let rows = self.rows_of(input)?;
        let values = input.values::<f32>().ok_or_else(|| {
            let dtype = input.dtype();
            Error::invalid(format!("input {INPUT:?} is of type {dtype}, and must be float"))
        })?;
        let width = self.width();
        let mut result = aligned_vec(rows.saturating_mul(width));
        self.predict(values, |predictions| result.extend_from_slice(predictions));
        let shape = match width {
            1 => Shape::vector(rows),
            _ => Shape::new(&[size(rows), size(width)])?,
        };
        Ok(vec![Tensor::from_vec(shape, result)?])
    }
}

impl Model {
    /// How many rows `input` has, if it is of the right shape.
    fn rows_of(&self, input: &Tensor) -> Result<usize> {
        let features = self.features;
        match *input.shape().dims() {
            [rows, columns] if usize::try_from(columns) == Ok(features) => {
                usize::try_from(rows).map_err(|_| Error::invalid("a negative number of rows"))
            }
            [_, columns] => Err(Error::invalid(format!(
                "input {INPUT:?} has {columns} values in a row, and the model takes {features}{}",
                self.shown_names()
            ))),
            _ => Err(Error::invalid(format!(
                "input {INPUT:?} has the shape {:?}, and must have [rows, {features}]",
                input.shape()
            ))),
        }
    }

    /// What the features are called, for a message, if they are few.
    fn shown_names(&self) -> String {
        const MOST_SHOWN: usize = 32;
        match self.names.len() {
            1..=MOST_SHOWN => format!(": {}", self.names.join(", ")),
            _ => String::new(),
        }
    }
}

fn size(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// What is said of a file that is damaged.
fn broken(message: String) -> Error {
    Error::new(Code::DataLoss, message)
}

/// What is said of a model that is whole, and can not be run here.
fn unsupported(message: String) -> Error {
    Error::new(Code::Unimplemented, message)
}
