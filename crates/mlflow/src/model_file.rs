//! The file `MLmodel` of a model folder.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::flavor::Flavor;
use super::schema::ModelSignature;
use super::yaml;
use tensorserve_platform::{ModelPath, files, names_version};
use tensorserve_tensor::error::{Code, Error, Result};

/// The name of the file.
pub(crate) const FILE_NAME: &str = "MLmodel";

/// The largest file in bytes: the signature of a table with 50 000 columns.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// What an `MLmodel` file says.
#[derive(Clone, Debug, PartialEq)]
pub struct MlflowModel {
    /// The version of MLflow that wrote it; empty if not recorded.
    pub mlflow_version: String,
    /// The class of an XGBoost model, such as `xgboost.sklearn.XGBClassifier`; empty if not recorded.
    pub model_class: String,
    /// The method of the model that MLflow's scoring server calls: `predict` unless it was logged with
    /// another one.
    pub predict_fn: String,
    /// The flavor that is served.
    pub flavor: Flavor,
    /// The declared inputs and parameters.
    pub signature: ModelSignature,
    /// The model's data, relative to the folder.
    pub(crate) data: PathBuf,
}

/// Whether `place` is a model folder of MLflow.
pub(crate) fn is_model_folder(place: &ModelPath<'_>) -> bool {
    !place.is_file() && place.files(&["mlmodel"]).any(|file| file.ends_with(FILE_NAME))
}

/// Whether `path` is a model folder of MLflow, or a directory of versions of one.
#[must_use]
pub fn is_served(path: &Path) -> bool {
    let place = ModelPath::new(path);
    is_model_folder(&place)
        || place
            .folders()
            .any(|folder| is_version(folder) && is_model_folder(&ModelPath::new(folder)))
}

fn is_version(folder: &Path) -> bool {
    folder.file_name().and_then(|name| name.to_str()).is_some_and(names_version)
}

impl MlflowModel {
    /// Reads the file of the model in `folder`.
    ///
    /// # Errors
    /// [`Code::DataLoss`] for a file that is not an `MLmodel`, [`Code::Unimplemented`] for a model
    /// without a flavor that can be served.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let bytes = files::read_within(folder, &path, MAX_FILE_BYTES)?;
        MlflowModel::parse(&bytes).map_err(|error| error.context(path.display()))
    }

    /// Reads the content of a file.
    ///
    /// # Errors
    /// As [`MlflowModel::read`].
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not UTF-8"))?;
        let value = yaml::read(text).map_err(|why| damaged(format!("it is not YAML: {why}")))?;
        let flavors = match value.get("flavors") {
            Some(Value::Object(flavors)) if !flavors.is_empty() => flavors,
            _ => return Err(damaged("it has no flavors")),
        };
        let Some((flavor, options)) = Flavor::served(flavors) else {
            return Err(no_flavor(flavors));
        };
        let data = inside(&flavor.data_path(options).map_err(damaged)?)?;
        let signature = value.get("signature").unwrap_or(&Value::Null);
        let signature = ModelSignature::read(signature).map_err(damaged)?;
        let python = flavors.get("python_function").unwrap_or(&Value::Null);
        let predict_fn = match text_of(python, "predict_fn") {
            "" => "predict",
            name => name,
        };
        Ok(MlflowModel {
            mlflow_version: text_of(&value, "mlflow_version").to_owned(),
            model_class: text_of(options, "model_class").to_owned(),
            predict_fn: predict_fn.to_owned(),
            flavor,
            signature,
            data,
        })
    }

    /// The path of the model's data, which is in `folder` also if links are followed.
    ///
    /// # Errors
    /// [`Code::NotFound`] if it does not exist; [`Code::DataLoss`] if it is elsewhere.
    pub(crate) fn data_in(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(&self.data);
        if let Some(error) = self.flavor.keras_error(&path) {
            return Err(error);
        }
        let (outer, inner) = (real_path(folder)?, real_path(&path)?);
        if !inner.starts_with(&outer) {
            let message = format!(
                "{} is a link out of its folder: copy the file into the folder",
                path.display()
            );
            return Err(Error::new(Code::DataLoss, message));
        }
        Ok(path)
    }
}

/// The member `name` of `value` as text; empty if it has none.
fn text_of<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// `path` without links.
fn real_path(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|e| {
        let shown = path.display();
        Error::new(Code::of_io(&e), format!("{shown}: {e}")).with_source(e)
    })
}

/// `path` as a relative path without `..`.
fn inside(path: &str) -> Result<PathBuf> {
    let mut parts = Path::new(path).components();
    let leaves = parts.any(|part| !matches!(part, Component::Normal(_) | Component::CurDir));
    match !path.is_empty() && !path.contains('\0') && !leaves {
        true => Ok(PathBuf::from(path)),
        false => Err(damaged(format!("the path {path:?} leaves the model's folder"))),
    }
}

/// The error for a model whose flavors cannot be served.
fn no_flavor(flavors: &Map<String, Value>) -> Error {
    let names: Vec<&str> = flavors.keys().map(String::as_str).collect();
    let known = Flavor::NAMES.join(", ");
    let loader =
        flavors.get("python_function").map_or("", |python| text_of(python, "loader_module"));
    let message = match (&*names, loader) {
        (["python_function"], "mlflow.pyfunc.model") => format!(
            "it is Python code (flavor python_function), which only MLflow can run; log the model \
             inside it with one of the flavors {known}, and put its Python steps into inference.py or \
             the client"
        ),
        _ => format!(
            "its flavors are {}, and the flavors that can be served are {known}; log the model with \
             one of these, for example converted to ONNX with mlflow.onnx.log_model",
            names.join(", ")
        ),
    };
    Error::new(Code::Unimplemented, message)
}

fn damaged(reason: impl std::fmt::Display) -> Error {
    Error::new(Code::DataLoss, format!("the file is not a valid {FILE_NAME}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKLEARN: &str = "artifact_path: model\nflavors:\n  python_function:\n    \
        loader_module: mlflow.sklearn\n    model_path: model.pkl\n    predict_fn: predict\n  sklearn:\n    \
        code: null\n    pickled_model: model.pkl\n    serialization_format: cloudpickle\n    \
        sklearn_version: 1.9.1\nmlflow_version: 3.6.0\nsignature:\n  \
        inputs: '[{\"type\": \"double\", \"name\": \"x\", \"required\": true}]'\n  outputs: null\n  \
        params: null\n";

    fn error_of(text: &str) -> String {
        MlflowModel::parse(text.as_bytes()).expect_err(text).to_string()
    }

    #[test]
    fn a_model_file_is_read() {
        let model = MlflowModel::parse(SKLEARN.as_bytes()).expect("valid");
        assert_eq!((model.flavor, model.data.to_str()), (Flavor::Sklearn, Some("model.pkl")));
        assert_eq!((&*model.mlflow_version, &*model.predict_fn), ("3.6.0", "predict"));
        let columns = model.signature.inputs.expect("inputs");
        assert_eq!(columns.columns().map(<[_]>::len), Some(1));
    }

    #[test]
    fn paths_stay_in_the_folder() {
        for bad in ["../../etc/passwd", "/etc/passwd", "a/../../b", "\"a\\0b\""] {
            let text =
                SKLEARN.replace("pickled_model: model.pkl", &format!("pickled_model: {bad}"));
            assert!(error_of(&text).contains("leaves the model's folder"), "{bad}");
        }
        let folder = tempfile::tempdir().expect("temporary directory");
        let outside = tempfile::tempdir().expect("temporary directory");
        let target = outside.path().join("model.pkl");
        std::fs::write(&target, "x").expect("written");
        std::os::unix::fs::symlink(&target, folder.path().join("model.pkl")).expect("a link");
        let model = MlflowModel::parse(SKLEARN.as_bytes()).expect("valid");
        let error = model.data_in(folder.path()).expect_err("outside").to_string();
        assert!(error.contains("is a link out of its folder"), "{error}");
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        let code = "flavors:\n  python_function:\n    loader_module: mlflow.pyfunc.model\n";
        assert!(error_of(code).contains("it is Python code"), "{}", error_of(code));
        let other =
            "flavors:\n  lightgbm: {data: model.lgb}\n  python_function: {data: model.lgb}\n";
        let error = error_of(other);
        assert!(error.contains("its flavors are lightgbm, python_function, and"), "{error}");
        assert!(error.contains("tensorflow, keras, onnx, sklearn, xgboost, spark;"), "{error}");
    }

    #[test]
    fn damaged_files_are_refused() {
        let bad = [
            ("", "it has no flavors"),
            ("flavors: {}", "it has no flavors"),
            ("flavors: [sklearn]", "it has no flavors"),
            ("flavors:\n\t- a", "it is not YAML"),
            ("flavors: {sklearn: {}}", "no pickled_model"),
            ("flavors: {onnx: {data: m.onnx}}\nsignature: {inputs: '{'}", "not a JSON list"),
        ];
        for (text, want) in bad {
            assert!(error_of(text).contains(want), "{text}: {}", error_of(text));
        }
        assert!(MlflowModel::parse(b"\xff").is_err());
        let folder = tempfile::tempdir().expect("temporary directory");
        let file = std::fs::File::create(folder.path().join(FILE_NAME)).expect("created");
        file.set_len(100 << 20).expect("long");
        let error = MlflowModel::read(folder.path()).expect_err("large").to_string();
        assert!(error.contains("has more than 4194304 bytes"), "{error}");
    }
}
