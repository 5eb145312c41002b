//! The flavors of models that can be served: their platforms, and where their data is.
//!
//! Source: `save_model` of `mlflow.tensorflow`, `mlflow.keras`, `mlflow.onnx`, `mlflow.sklearn`,
//! `mlflow.xgboost` and `mlflow.spark`.

use std::path::Path;

use serde_json::{Map, Value};

use tensorserve_tensor::error::{Code, Error};

/// A flavor that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// A SavedModel of a `tf.Module`, a Keras model of TensorFlow 2 or an estimator.
    TensorFlow,
    /// A Keras model.
    Keras,
    /// An ONNX model.
    Onnx,
    /// A pickled estimator.
    Sklearn,
    /// A booster, or a model of XGBoost's scikit-learn interface.
    Xgboost,
    /// A pipeline of Spark ML.
    Spark,
}

impl Flavor {
    /// All flavors, in the order in which they are looked for.
    const ALL: [Flavor; 6] = [
        Flavor::TensorFlow,
        Flavor::Keras,
        Flavor::Onnx,
        Flavor::Sklearn,
        Flavor::Xgboost,
        Flavor::Spark,
    ];

    /// The names of all flavors.
    pub(crate) const NAMES: [&'static str; 6] =
        ["tensorflow", "keras", "onnx", "sklearn", "xgboost", "spark"];

    fn name(self) -> &'static str {
        match self {
            Flavor::TensorFlow => "tensorflow",
            Flavor::Keras => "keras",
            Flavor::Onnx => "onnx",
            Flavor::Sklearn => "sklearn",
            Flavor::Xgboost => "xgboost",
            Flavor::Spark => "spark",
        }
    }

    /// The name of the platform that runs it.
    pub(crate) fn platform(self) -> &'static str {
        match self {
            Flavor::TensorFlow | Flavor::Keras => "tensorflow",
            Flavor::Onnx => "onnx",
            Flavor::Sklearn => "scikitlearn",
            Flavor::Xgboost => "xgboost",
            Flavor::Spark => "spark",
        }
    }

    /// The first flavor among `flavors` that can be served, and its options.
    pub(crate) fn served(flavors: &Map<String, Value>) -> Option<(Self, &Value)> {
        Flavor::ALL.into_iter().find_map(|flavor| Some((flavor, flavors.get(flavor.name())?)))
    }

    /// The path of the model's data in its folder, by the options of the flavor.
    ///
    /// # Errors
    /// The option that is missing.
    pub(crate) fn data_path(self, options: &Value) -> Result<String, String> {
        let option = |name: &str| options.get(name).and_then(Value::as_str).map(str::to_owned);
        let found = match self {
            Flavor::TensorFlow | Flavor::Keras => {
                let keras = || Some(format!("{}/model", option("data")?));
                return Ok(option("saved_model_dir").or_else(keras).unwrap_or("data/model".into()));
            }
            Flavor::Onnx | Flavor::Xgboost => (option("data"), "data"),
            Flavor::Sklearn => (option("pickled_model"), "pickled_model"),
            Flavor::Spark => (option("model_data"), "model_data"),
        };
        found.0.ok_or_else(|| format!("flavor {} has no {}", self.name(), found.1))
    }

    /// The error for a model that was saved in a format of Keras in place of a SavedModel at `path`.
    pub(crate) fn keras_error(self, path: &Path) -> Option<Error> {
        if !matches!(self, Flavor::TensorFlow | Flavor::Keras) || path.is_dir() {
            return None;
        }
        let files = [path.with_extension("keras"), path.with_extension("h5")];
        let file = files.iter().find(|file| file.is_file())?;
        let message = format!(
            "{}: only Python can load a file of Keras; export the model as a SavedModel and log that: \
             model.export(DIRECTORY), then mlflow.tensorflow.log_model of \
             tf.saved_model.load(DIRECTORY), or mlflow.keras.log_model(…, save_exported_model=True)",
            file.display()
        );
        Some(Error::new(Code::Unimplemented, message))
    }
}
