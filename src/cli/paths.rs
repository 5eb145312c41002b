//! The paths in the settings of `serve` that must exist when it starts. They are mistakes like others: reported
//! together, each with where it was written.

use std::path::Path;

use crate::config::{self, Config, EachModelSettings, Mistakes, Origins, Settings, SourceConfig};
use crate::{platforms, stores};
use tensorserve_core::config::is_store_url;
use tensorserve_platform::{FOREIGN, ForeignFormats, Platforms};

/// Where the paths of models were written, in the order of the sources that become of them. That of the command line
/// stands for itself.
pub(super) fn places_of_models(settings: &Settings) -> Vec<Option<String>> {
    let of_paths = settings.paths.iter().map(|_| None);
    let of_tables = settings.models.iter().filter(|model| model.path.is_some());
    let of_tables = of_tables.map(|model| Some(model.origins.get("path")?.of("path")));
    of_paths.chain(of_tables).collect()
}

/// Records the paths of settings that do not exist, but for those of models, and for libraries of custom
/// operations: what opens them tells of all that cannot be loaded.
pub(super) fn check(settings: &Settings, mistakes: &mut Mistakes) {
    let Settings { server, reading, .. } = settings;
    let mut found = MissingPaths { origins: &reading.origins, mistakes };
    for (name, library) in [
        ("libtensorflow", &server.libtensorflow),
        ("libonnxruntime", &server.libonnxruntime),
        ("liblitert", &server.liblitert),
        ("libopenvino", &server.libopenvino),
        ("libtorch", &server.libtorch),
        ("libexecutorch", &server.libexecutorch),
    ] {
        if let Some(path) = library.as_deref().filter(|path| !path.exists()) {
            found.add(name, format_args!("no {name} at {}", path.display()));
        }
    }
    if let Some(folder) = server.grpc_socket_path.as_deref().and_then(Path::parent) {
        found.look_for("grpc_socket_path", folder);
    }
    found.look_for_program("python", server.python.as_deref());
    found.of_model(&settings.each);
    for model in &settings.models {
        let mut found = MissingPaths { origins: &model.origins, mistakes: found.mistakes };
        found.of_model(&model.each);
    }
}

struct MissingPaths<'s> {
    origins: &'s Origins,
    mistakes: &'s mut Mistakes,
}

impl MissingPaths<'_> {
    fn add(&mut self, setting: &str, why: impl std::fmt::Display) {
        match self.origins.get(setting) {
            Some(origin) => self.mistakes.add(format!("{}: {why}", origin.of(setting))),
            None => self.mistakes.add(format!("{setting}: {why}")),
        }
    }

    fn look_for(&mut self, setting: &str, path: &Path) {
        // The directory of a name without one is this one.
        if !path.exists() && !path.as_os_str().is_empty() && !is_store_url(path) {
            self.add(setting, format_args!("{}: {NOTHING}", path.display()));
        }
    }

    /// A name without a directory is looked for on the PATH, by others.
    fn look_for_program(&mut self, setting: &str, program: Option<&Path>) {
        if let Some(program) = program.filter(|program| program.components().count() > 1) {
            self.look_for(setting, program);
        }
    }

    fn of_model(&mut self, each: &EachModelSettings) {
        if let Some(code) = &each.code {
            self.look_for("code", code);
        }
        self.look_for_program("runner_python", each.runner_python.as_deref());
    }
}

const NOTHING: &str = "there is no such file or directory";

/// Records each path that cannot be served; `places` are where they were written.
pub(super) fn check_sources(
    config: &Config,
    places: &[Option<String>],
    names_platform: bool,
    mistakes: &mut Mistakes,
) {
    let platforms = platforms::built_in(config);
    let mut places = places.iter();
    for source in &config.repository.sources {
        let place = places.next().and_then(Option::as_ref);
        if let Some(wrong) = wrong_source(source, &platforms, names_platform) {
            match place {
                Some(place) => mistakes.add(format!("{place}: {wrong}")),
                None => mistakes.add(wrong),
            }
        }
    }
}

/// What is wrong with the path of a model.
fn wrong_source(
    source: &SourceConfig,
    platforms: &Platforms,
    names_platform: bool,
) -> Option<String> {
    let path = source.path.display();
    if is_store_url(&source.path) {
        return stores::check(&source.path).err().map(|error| error.message().to_owned());
    }
    // A model of several files is named by the prefix of their names.
    if !source.path.exists() && !platforms.is_model(&source.path, source.model.platform) {
        return Some(format!("{path}: {NOTHING}"));
    }
    // A platform that is named and unknown is a mistake already.
    if names_platform {
        return None;
    }
    unknown_platform(source, platforms)
}

/// The mistake that `source` is a model in a format that is not served, or a file of an unknown platform.
pub(super) fn unknown_platform(source: &SourceConfig, platforms: &Platforms) -> Option<String> {
    let SourceConfig { path, model, .. } = source;
    let platform = platforms.of_version(path, model.platform);
    if platform.is_some_and(|platform| platform.info.name == FOREIGN) {
        return ForeignFormats::explain(path);
    }
    if !path.is_file() || platforms.is_model(path, model.platform) {
        return None;
    }
    if let Some(why) = ForeignFormats::explain(path) {
        return Some(why);
    }
    let (path, known) = (path.display(), config::PLATFORMS.join(", "));
    let left_out = config::left_out();
    Some(format!(
        "{path}: the platform of this file cannot be detected from its name; name it with \
         --platform ({known}){left_out}"
    ))
}
