//! scikit-learn's models, evaluated natively from their pickles (`.pkl`, `.pickle`) and joblib's
//! files (`.joblib`), of any scikit-learn since 0.17.
//!
//! Nothing of a pickle is executed: it is read as data (`codec::pickle`), and the fitted numbers
//! are compiled into flat arrays. So a model does not depend on the version of Python,
//! scikit-learn or NumPy that wrote it, and a hostile file can not run anything.
//!
//! * `estimator` reads attributes of a pickled estimator, `compile` makes a model of them;
//! * `model` is that: steps over whole matrices, and what predicts at the end;
//! * `transform`, `linear`, `tree`, … are the estimators;
//! * this file ties them together as a [`Platform`], and makes tensors of what a model says.

use std::path::Path;
use std::sync::Arc;

use self::estimator::{Estimator, Labels, Source};
use self::model::{Classifier, Gives, Model, Outcome, Predictor, Rows};
use crate::pickle;
use tensorserve_platform::{
    Completeness, Executable, Inspection, LoadOptions, Loaded, Place, Platform, RunOptions, files,
};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{
    AlignedVec, DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

mod columns;
mod compile;
mod ensemble;
mod estimator;
mod forest;
mod histogram;
mod linear;
mod model;
mod neighbors;
mod network;
mod select;
mod svm;
mod transform;
mod tree;

const ENDINGS: [&str; 3] = [".pkl", ".pickle", ".joblib"];

/// The largest file: a forest of thousands of deep trees has some hundred megabytes, and reading
/// one takes several times its size of memory.
const LARGEST_FILE: u64 = 2 << 30;

/// The most that a compressed file may become.
const LARGEST_PICKLE: usize = 2 << 30;

/// What the input is called.
const INPUT: &str = "data";

/// The `scikitlearn` platform.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScikitLearn;

/// A model with what it says of itself.
struct Opened {
    model: Model,
    signature: Signature,
    written_by: String,
    bytes: u64,
}

fn open(path: &Path) -> Result<Opened> {
    let file = files::find(path, &ENDINGS)?;
    let bytes = files::read(&file, LARGEST_FILE)?;
    let size = bytes.len() as u64;
    let read = || {
        let pickle = pickle::read(bytes, LARGEST_PICKLE)?;
        let source = Source::new(&pickle);
        let root = Estimator::root(pickle.root(), &source);
        let version = root.find(&["_sklearn_version"]).and_then(|version| version.text());
        let written_by = version.map_or(String::new(), |version| format!("scikit-learn {version}"));
        Ok((compile::model(&root)?, written_by))
    };
    let (model, written_by) = read().map_err(|e: Error| e.context(file.display()))?;
    let signature = signature(&model);
    Ok(Opened { model, signature, written_by, bytes: size })
}

impl Platform for ScikitLearn {
    fn name(&self) -> &'static str {
        "scikitlearn"
    }

    fn title(&self) -> &'static str {
        "Scikit-learn"
    }

    fn describe(&self) -> Result<String> {
        Ok("scikit-learn natively".to_owned())
    }

    fn recognises(&self, place: &Place) -> bool {
        place.has_file(&ENDINGS)
    }

    fn takes_threads(&self) -> bool {
        false
    }

    fn check(&self, folder: &Path) -> Completeness {
        files::check(folder, &ENDINGS)
    }

    fn inspect(&self, folder: &Path, _options: &LoadOptions) -> Result<Inspection> {
        let Opened { signature, written_by, bytes, .. } = open(folder)?;
        Ok(Inspection { signatures: vec![signature], written_by, bytes })
    }

    fn load(&self, folder: &Path, _options: &LoadOptions) -> Result<Loaded> {
        let Opened { model, signature, bytes, .. } = open(folder)?;
        Ok(Loaded {
            signatures: vec![signature],
            executable: Arc::new(Scikit { model }),
            bytes,
            marshalled_hooks: false,
        })
    }
}

fn signature(model: &Model) -> Signature {
    let columns = |count: usize| i64::try_from(count).unwrap_or(-1);
    let inputs = vec![TensorSpec::new(INPUT, DType::Double, &[-1, columns(model.features())])];
    let outputs = match &model.predictor {
        Predictor::Regressor(regressor) => match regressor.outputs() {
            None => vec![TensorSpec::new("predict", DType::Double, &[-1])],
            Some(count) => vec![TensorSpec::new("predict", DType::Double, &[-1, columns(count)])],
        },
        Predictor::Classifier(Classifier { labels, gives, .. }) => {
            let dtype = match labels {
                Labels::Ints(_) => DType::Int64,
                Labels::Floats(_) => DType::Double,
                Labels::Texts(_) => DType::String,
                Labels::Bools(_) => DType::Bool,
            };
            let shares =
                |name: &str| TensorSpec::new(name, DType::Double, &[-1, columns(labels.len())]);
            let mut outputs = vec![TensorSpec::new("predict", dtype, &[-1])];
            if *gives != Gives::Classes {
                outputs.push(shares("predict_proba"));
            }
            if gives.logs() {
                outputs.push(shares("predict_log_proba"));
            }
            outputs
        }
    };
    Signature::only(inputs, outputs)
}

/// A loaded model.
struct Scikit {
    model: Model,
}

impl Executable for Scikit {
    fn run(&self, _signature: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let features = self.model.features();
        let [data] = inputs else {
            return Err(Error::invalid(format!("one input is expected: {INPUT}")));
        };
        let Some(values) = data.values::<f64>() else {
            let dtype = data.dtype();
            return Err(Error::invalid(format!("input {INPUT} is of type {dtype}, not double")));
        };
        if data.shape().rank() != 2 || data.shape().row_dims() != [features as i64] {
            return Err(Error::invalid(format!(
                "input {INPUT} has shape {:?}; rows of {features} numbers are expected: \
                 [-1,{features}]",
                data.shape()
            )));
        }
        let rows = Rows { values, columns: features, first: 0 };
        let outcome = self.model.run(rows)?;
        tensors(&self.model.predictor, rows.len(), outcome)
    }
}

/// The outputs of a signature, in its order.
fn tensors(predictor: &Predictor, rows: usize, outcome: Outcome) -> Result<Vec<Tensor>> {
    match (predictor, outcome) {
        (Predictor::Regressor(regressor), Outcome::Numbers(numbers)) => {
            Ok(vec![match regressor.outputs() {
                None => Tensor::from_vec(Shape::vector(rows), aligned(&numbers))?,
                Some(count) => matrix(rows, count, aligned(&numbers))?,
            }])
        }
        (Predictor::Classifier(classifier), Outcome::Classes { classes, scores }) => {
            let mut outputs = vec![predicted(&classifier.labels, &classes)?];
            outputs.extend(shares(classifier, rows, &scores)?);
            Ok(outputs)
        }
        _ => Err(Error::new(Code::Internal, "a model has made something else than it is for")),
    }
}

fn aligned(values: &[f64]) -> AlignedVec<f64> {
    let mut out = aligned_vec(values.len());
    out.extend_from_slice(values);
    out
}

fn matrix(rows: usize, columns: usize, values: AlignedVec<f64>) -> Result<Tensor> {
    let size = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    Tensor::from_vec(Shape::new(&[size(rows), size(columns)])?, values)
}

/// What the classes are called.
fn predicted(labels: &Labels, classes: &[usize]) -> Result<Tensor> {
    let shape = Shape::vector(classes.len());
    match labels {
        Labels::Ints(labels) => {
            let mut out = aligned_vec::<i64>(classes.len());
            classes.iter().for_each(|class| out.push(labels.get(*class).copied().unwrap_or(0)));
            Tensor::from_vec(shape, out)
        }
        Labels::Floats(labels) => {
            let mut out = aligned_vec::<f64>(classes.len());
            classes.iter().for_each(|class| out.push(labels.get(*class).copied().unwrap_or(0.0)));
            Tensor::from_vec(shape, out)
        }
        Labels::Bools(labels) => {
            let mut out = aligned_vec::<u8>(classes.len());
            classes.iter().for_each(|class| out.push(u8::from(labels.get(*class) == Some(&1))));
            Tensor::from_bools(shape, out)
        }
        Labels::Texts(labels) => {
            let mut out = StringsBuilder::with_capacity(classes.len(), classes.len() * 8);
            for class in classes {
                out.push(labels.get(*class).map_or(&[], |label| label.as_bytes()));
            }
            Tensor::from_strings(shape, out)
        }
    }
}

/// Logarithms of probabilities, and probabilities, as far as the model has them.
fn shares(classifier: &Classifier, rows: usize, scores: &[f64]) -> Result<Vec<Tensor>> {
    let mapped = |of: fn(f64) -> f64| {
        let mut out = aligned_vec(scores.len());
        scores.iter().for_each(|score| out.push(of(*score)));
        matrix(rows, classifier.labels.len(), out)
    };
    let floored = |share: f64| if share == 0.0 { f64::MIN_POSITIVE.ln() } else { share.ln() };
    Ok(match classifier.gives {
        Gives::Classes => Vec::new(),
        Gives::Probabilities => vec![mapped(|share| share)?],
        Gives::ProbabilitiesAndLogs => vec![mapped(f64::ln)?, mapped(|share| share)?],
        Gives::ProbabilitiesAndFlooredLogs => vec![mapped(floored)?, mapped(|share| share)?],
        Gives::Logs => vec![mapped(|log| log)?, mapped(f64::exp)?],
    })
}

#[cfg(test)]
mod tests;
