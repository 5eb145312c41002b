//! The platform of a library whose models this crate evaluates: what differs between them is data.

use std::path::Path;

use tensorserve_platform::{
    Completeness, InputStyle, Inspection, LoadOptions, Loaded, Place, Platform,
};
use tensorserve_tensor::error::Result;

use crate::compared::ComparedVersions;
use crate::evaluated::Evaluated;

/// A platform whose models are read from their files and evaluated here, on one thread.
pub struct FilePlatform {
    /// What [`Platform::name`] says.
    pub name: &'static str,
    /// What [`Platform::title`] says.
    pub title: &'static str,
    /// What [`Platform::describe`] says.
    pub description: &'static str,
    /// What [`Platform::input_style`] says.
    pub input_style: InputStyle,
    /// Whether a model is a folder with subfolders.
    pub has_folders: bool,
    /// A model of another version is served, and named in the log; `None` if a file can be of any program.
    pub compared: Option<ComparedVersions>,
    /// What [`Platform::recognises`] does.
    pub recognises: fn(&Place) -> bool,
    /// What [`Platform::check`] does.
    pub check: fn(&Path) -> Completeness,
    /// Reads the model at a path.
    pub read: fn(&Path) -> Result<Evaluated>,
}

impl Platform for FilePlatform {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn input_style(&self) -> InputStyle {
        self.input_style
    }

    fn describe(&self) -> Result<String> {
        Ok(self.description.to_owned())
    }

    fn recognises(&self, place: &Place) -> bool {
        (self.recognises)(place)
    }

    fn has_folders(&self, _place: &Place) -> bool {
        self.has_folders
    }

    fn takes_threads(&self) -> bool {
        false
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
