//! scikit-learn models, evaluated without Python, from pickles (`.pkl`, `.pickle`) and joblib files
//! (`.joblib`) of scikit-learn 0.17 and later.
//!
//! Nothing in a pickle is executed: it is read as data (`tensorserve_pickle`), and the fitted parameters
//! are compiled into flat arrays. So a model does not depend on the versions of Python, scikit-learn
//! and NumPy that wrote it, and a hostile file cannot run code.
//!
//! * `estimator` reads the attributes of a pickled estimator, `compile` makes a model of them;
//! * `model` is a compiled model: transformers over whole matrices, and a predictor; `accepted`
//!   refuses NaN and infinity where scikit-learn does;
//! * `scaler`, `polynomial`, `projection`, `imputer`, `select`, `encoder` and `column_transformer` are
//!   the transformers, which `transform` dispatches to; `linear`, `bayes`, `tree`, … are the
//!   predictors;
//! * `known_rows` compares rows with those of the training that a model keeps, for support vectors,
//!   neighbours (`distance`) and kernels; `boosters` are the estimators of XGBoost and LightGBM;
//! * `text` has the vectorizers of text; `columns` turns texts into numbers, which is all that transformers take; `sparse` has the rows of
//!   text vectorizers;
//! * `served` takes the inputs of a request, `executable` makes tensors of predictions, and this file is
//!   the [`FilePlatform`].
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::Path;
use std::sync::Arc;

use self::estimator::{Estimator, ReadBudget};
use self::served::ServedEstimator;
use tensorserve_pickle as pickle;
use tensorserve_platform::{InputStyle, files};
use tensorserve_tabular::ComparedVersions;
use tensorserve_tabular::Evaluated;
use tensorserve_tabular::FilePlatform;
use tensorserve_tensor::error::Result;

mod accepted;
mod bayes;
mod boosters;
mod boosting;
mod calibrated;
mod categories;
mod centroid;
mod clusters;
mod column_transformer;
mod columns;
mod compile;
mod covariance;
mod dictionary;
mod distance;
mod distribution;
mod dummy;
mod encoder;
mod ensemble;
mod estimator;
mod executable;
mod forest;
mod function;
mod gaussian_process;
mod histogram;
mod imputer;
mod isolation;
mod iterative_imputer;
mod kernel;
mod kernel_map;
mod known_rows;
mod least_squares;
mod legacy_one_hot;
mod linear;
mod mixture;
mod model;
mod multi;
mod neighbor_imputer;
mod neighbors;
mod network;
mod normal;
mod numeric;
mod one_against;
mod outliers;
mod passthrough;
mod polynomial;
mod projection;
mod propagation;
mod response;
mod rows;
mod scaler;
mod scipy;
mod select;
mod served;
mod sparse;
mod spline;
mod stacking;
mod svm;
mod target_encoder;
mod text;
mod transform;
mod tree;
mod wrapper;

/// The endings of model files.
const ENDINGS: [&str; 4] = [".pkl", ".pickle", ".joblib", ".skops"];

/// The largest file. A forest of thousands of deep trees has some hundred megabytes, and reading a
/// file takes several times its size in memory.
const MAX_FILE_BYTES: u64 = 2 << 30;

/// The largest size of a pickle when it is decompressed.
const MAX_PICKLE_BYTES: usize = 2 << 30;

/// The `scikitlearn` platform.
pub const SCIKIT_LEARN: FilePlatform = FilePlatform {
    name: "scikitlearn",
    title: "Scikit-learn",
    description: "scikit-learn (built-in evaluator)",
    input_style: InputStyle::Rows,
    has_folders: false,
    compared: Some(ComparedVersions {
        library: "scikit-learn",
        oldest: (0, 19),
        newest: (1, 9),
        recorded: true,
    }),
    recognises: |place| place.has_file(&ENDINGS),
    check: |path| files::check(path, &ENDINGS),
    read: open,
};

/// Reads the model at `path`.
fn open(path: &Path) -> Result<Evaluated> {
    Evaluated::read(&files::find(path, &ENDINGS)?, MAX_FILE_BYTES, |content| {
        let (model, version) = read_model(content, MAX_PICKLE_BYTES)?;
        Ok(Evaluated {
            signatures: model.signatures(),
            executable: Arc::new(model),
            written_by: version.map_or(String::new(), |text| format!("scikit-learn {text}")),
            bytes: 0,
            warnings: Vec::new(),
        })
    })
}

/// Reads and compiles the model in a pickle. Also returns the version of scikit-learn that wrote it, if it is
/// recorded: it is since 0.18.
fn read_model(bytes: Vec<u8>, max_bytes: usize) -> Result<(ServedEstimator, Option<String>)> {
    let pickle = pickle::read(bytes, max_bytes)?;
    let budget = ReadBudget::new(&pickle);
    let root = Estimator::root(pickle.root(), &budget).unfrozen()?;
    let version = root.find(&["_sklearn_version"]).and_then(|version| version.text());
    let model = compile::compile(&root)?;
    let served = ServedEstimator::new(&root, model)?;
    let version = version.map(str::to_owned);
    Ok((served.with_texts(budget.into_texts()), version))
}

#[cfg(test)]
#[path = "speed/tests.rs"]
mod speed;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
