//! Platforms that also load model folders of MLflow.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::model_file::{self, MlflowModel};
use tensorserve_platform::{
    Completeness, Executable, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader, ModelPath,
    Optimization, Packaging, PartOfProgram, Platform, PlatformInfo, Platforms,
};
use tensorserve_tensor::error::{Code, Error, Result};

/// The platforms `inner`, which also load model folders of MLflow whose flavor they run. One more platform reports why
/// other model folders cannot be served.
#[must_use]
pub fn platforms(inner: Vec<Platform>) -> Platforms {
    let wrapped = |inner: Platform| {
        inner.with_loader(FlavorLoader { info: inner.info, inner: Arc::clone(&inner.loader) })
    };
    let mut all: Vec<_> = inner.into_iter().map(wrapped).collect();
    all.push(NoFlavor::platform());
    Platforms::new(all)
}

/// The loader of a platform, which also loads model folders of its flavor.
struct FlavorLoader {
    info: PlatformInfo,
    inner: Arc<dyn ModelLoader>,
}

/// The data of the model at `path`: in a model folder of MLflow, what `MLmodel` names; elsewhere `path`
/// itself.
fn data_of(path: &Path) -> Result<PathBuf> {
    if !model_file::is_model_folder(&ModelPath::new(path)) {
        return Ok(path.to_owned());
    }
    MlflowModel::read(path)?.data_in(path)
}

impl ModelLoader for FlavorLoader {
    fn recognises(&self, place: &ModelPath) -> bool {
        if !model_file::is_model_folder(place) {
            return self.inner.recognises(place);
        }
        MlflowModel::read(place.path()).is_ok_and(|model| {
            let is_chosen = self.info.must_be_named;
            let data = || model.data_in(place.path());
            model.flavor.platform() == self.info.name
                || (is_chosen
                    && data().is_ok_and(|data| self.inner.recognises(&ModelPath::new(&data))))
        })
    }

    fn has_folders(&self, place: &ModelPath) -> bool {
        model_file::is_model_folder(place) || self.inner.has_folders(place)
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

    fn optimized(
        &self,
        path: &Path,
        options: &LoadOptions,
        executable: &dyn Executable,
        number: usize,
    ) -> Result<Optimization> {
        self.inner.optimized(&data_of(path)?, options, executable, number)
    }

    fn recall(&self, path: &Path, options: &LoadOptions, topic: &str) -> Option<String> {
        self.inner.recall(&data_of(path).ok()?, options, topic)
    }

    fn remember(&self, path: &Path, options: &LoadOptions, topic: &str, text: &str) {
        if let Ok(data) = data_of(path) {
            self.inner.remember(&data, options, topic, text);
        }
    }

    fn packaging(&self, path: &Path) -> Result<Option<Packaging>> {
        if !model_file::is_model_folder(&ModelPath::new(path)) {
            return self.inner.packaging(path);
        }
        Ok(Some(Arc::new(MlflowModel::read(path)?)))
    }
}

/// Stands for the platforms that do not exist: recognises every model folder, and reports why it cannot
/// be served. It is tried last.
struct NoFlavor;

impl NoFlavor {
    fn platform() -> Platform {
        let info = PlatformInfo {
            name: "mlflow",
            title: "MLflow",
            input_style: InputStyle::Rows,
            takes_threads: false,
            must_be_named: false,
            is_isolated: false,
        };
        let runtime = Arc::new(PartOfProgram("MLflow's model folders"));
        Platform { info, loader: Arc::new(NoFlavor), runtime }
    }

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

impl ModelLoader for NoFlavor {
    fn recognises(&self, place: &ModelPath) -> bool {
        model_file::is_model_folder(place)
    }

    fn has_folders(&self, _place: &ModelPath) -> bool {
        true
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
