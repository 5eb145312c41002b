//! The platform of a library whose models this crate evaluates: what differs between them is data.

use std::path::Path;
use std::sync::Arc;

use tensorserve_platform::{
    Completeness, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader, ModelPath,
    PartOfProgram, Platform, PlatformInfo,
};
use tensorserve_tensor::error::Result;

use crate::compared::ComparedVersions;
use crate::evaluated::Evaluated;

/// A platform whose models are read from their files and evaluated here, on one thread.
pub struct FilePlatform {
    /// [`PlatformInfo::name`].
    pub name: &'static str,
    /// [`PlatformInfo::title`].
    pub title: &'static str,
    /// The description of what evaluates its models, with its version.
    pub description: &'static str,
    /// [`PlatformInfo::input_style`].
    pub input_style: InputStyle,
    /// Whether a model is a folder with subfolders.
    pub has_folders: bool,
    /// A model of another version is served, and named in the log; `None` if a file can be of any program.
    pub compared: Option<ComparedVersions>,
    /// What [`ModelLoader::recognises`] does.
    pub recognises: fn(&ModelPath) -> bool,
    /// What [`ModelLoader::check`] does.
    pub check: fn(&Path) -> Completeness,
    /// Reads the model at a path.
    pub read: fn(&Path) -> Result<Evaluated>,
}

impl FilePlatform {
    /// The platform whose models it reads.
    #[must_use]
    pub fn platform(self) -> Platform {
        let FilePlatform { name, title, input_style, description, .. } = self;
        let info = PlatformInfo {
            name,
            title,
            input_style,
            takes_threads: false,
            must_be_named: false,
            is_isolated: false,
        };
        Platform { info, loader: Arc::new(self), runtime: Arc::new(PartOfProgram(description)) }
    }
}

impl ModelLoader for FilePlatform {
    fn recognises(&self, place: &ModelPath) -> bool {
        (self.recognises)(place)
    }

    fn has_folders(&self, _place: &ModelPath) -> bool {
        self.has_folders
    }

    fn check(&self, path: &Path) -> Completeness {
        (self.check)(path)
    }

    fn inspect(&self, path: &Path, _options: &LoadOptions) -> Result<Inspection> {
        Ok((self.read)(path)?.inspection())
    }

    fn load(&self, path: &Path, _options: &LoadOptions) -> Result<Loaded> {
        let mut model = (self.read)(path)?;
        let version = self.compared.and_then(|compared| compared.warning(&model.written_by));
        model.warnings.extend(version);
        for warning in &model.warnings {
            log::warn!("{}: {warning}", path.display());
        }
        Ok(model.loaded())
    }
}
