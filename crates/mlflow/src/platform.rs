//! Platforms that also load model folders of MLflow.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::model_file::{self, MlflowModel};
use tensorserve_platform::{
    Completeness, CustomOps, Gpus, InputStyle, Inspection, LoadOptions, Loaded, Packaging, Place,
    Platform, Platforms,
};
use tensorserve_tensor::error::{Code, Error, Result};

/// The platforms `inner`, which also load model folders of MLflow whose flavor they run. One more platform reports why
/// other model folders cannot be served.
#[must_use]
pub fn platforms(inner: Vec<Arc<dyn Platform>>) -> Platforms {
    let wrapped =
        |inner: Arc<dyn Platform>| Arc::new(FlavorPlatform { inner }) as Arc<dyn Platform>;
    let mut all: Vec<_> = inner.into_iter().map(wrapped).collect();
    all.push(Arc::new(NoFlavor));
    Platforms::new(all)
}

/// A platform that also loads model folders of its flavor.
struct FlavorPlatform {
    inner: Arc<dyn Platform>,
}

/// The data of the model at `path`: in a model folder of MLflow, what `MLmodel` names; elsewhere `path`
/// itself.
fn data_of(path: &Path) -> Result<PathBuf> {
    if !model_file::is_model_folder(&Place::new(path)) {
        return Ok(path.to_owned());
    }
    MlflowModel::read(path)?.data_in(path)
}

impl Platform for FlavorPlatform {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn title(&self) -> &'static str {
        self.inner.title()
    }

    fn input_style(&self) -> InputStyle {
        self.inner.input_style()
    }

    fn describe(&self) -> Result<String> {
        self.inner.describe()
    }

    fn library(&self) -> Option<PathBuf> {
        self.inner.library()
    }

    fn remarks(&self) -> Vec<String> {
        self.inner.remarks()
    }

    fn gpus(&self) -> Option<Gpus> {
        self.inner.gpus()
    }

    fn find_gpus(&self) -> Result<Option<Gpus>> {
        self.inner.find_gpus()
    }

    fn custom_ops(&self) -> Vec<CustomOps> {
        self.inner.custom_ops()
    }

    fn recognises(&self, place: &Place) -> bool {
        if !model_file::is_model_folder(place) {
            return self.inner.recognises(place);
        }
        MlflowModel::read(place.path()).is_ok_and(|model| {
            let is_chosen = self.inner.must_be_named();
            let data = || model.data_in(place.path());
            model.flavor.platform() == self.inner.name()
                || (is_chosen && data().is_ok_and(|data| self.inner.recognises(&Place::new(&data))))
        })
    }

    fn must_be_named(&self) -> bool {
        self.inner.must_be_named()
    }

    fn stop(&self, timeout: Duration) {
        self.inner.stop(timeout);
    }

    fn has_folders(&self, place: &Place) -> bool {
        model_file::is_model_folder(place) || self.inner.has_folders(place)
    }

    fn takes_threads(&self) -> bool {
        self.inner.takes_threads()
    }

    fn check(&self, path: &Path) -> Completeness {
        match data_of(path) {
            Ok(data) => self.inner.check(&data),
            Err(error) if error.code() == Code::NotFound => {
                Completeness::Missing(error.message().to_owned())
            }
            Err(error) => Completeness::Broken(error),
        }
    }

    fn inspect(&self, path: &Path, options: &LoadOptions) -> Result<Inspection> {
        self.inner.inspect(&data_of(path)?, options)
    }

    fn load(&self, path: &Path, options: &LoadOptions) -> Result<Loaded> {
        self.inner.load(&data_of(path)?, options)
    }

    fn packaging(&self, path: &Path) -> Result<Option<Packaging>> {
        if !model_file::is_model_folder(&Place::new(path)) {
            return self.inner.packaging(path);
        }
        Ok(Some(Arc::new(MlflowModel::read(path)?)))
    }
}

/// Stands for the platforms that do not exist: recognises every model folder, and reports why it cannot
/// be served. It is tried last.
struct NoFlavor;

impl NoFlavor {
    fn error(path: &Path) -> Error {
        match MlflowModel::read(path) {
            Err(error) => error,
            Ok(model) => Error::new(
                Code::Unimplemented,
                format!(
                    "{}: this build does not have the platform {}",
                    path.display(),
                    model.flavor.platform()
                ),
            ),
        }
    }
}

impl Platform for NoFlavor {
    fn name(&self) -> &'static str {
        "mlflow"
    }

    fn title(&self) -> &'static str {
        "MLflow"
    }

    fn describe(&self) -> Result<String> {
        Ok("MLflow's model folders".to_owned())
    }

    fn recognises(&self, place: &Place) -> bool {
        model_file::is_model_folder(place)
    }

    fn has_folders(&self, _place: &Place) -> bool {
        true
    }

    fn takes_threads(&self) -> bool {
        false
    }

    fn check(&self, path: &Path) -> Completeness {
        Completeness::Broken(NoFlavor::error(path))
    }

    fn inspect(&self, path: &Path, _: &LoadOptions) -> Result<Inspection> {
        Err(NoFlavor::error(path))
    }

    fn load(&self, path: &Path, _: &LoadOptions) -> Result<Loaded> {
        Err(NoFlavor::error(path))
    }
}
