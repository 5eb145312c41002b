//! What a user can set: exactly what was written, nothing filled in.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, ValueHint};

use super::environment::Environment;
use super::groups::{AsWritten, BatchSettings, EachModelSettings, ServerSettings, option};
use super::value::SettingValue;
use super::written::{Origins, Reading, SettingOrigin, WrittenValue};

/// A `[[models]]` table of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSettings {
    /// The model's name; by default that of its directory.
    pub name: Option<String>,
    /// Its directory, relative to the file's.
    pub path: Option<PathBuf>,
    /// Names for versions.
    pub labels: BTreeMap<String, i64>,
    /// The weights of labels in requests that name no version.
    pub split: BTreeMap<String, i64>,
    /// The label of its shadow version.
    pub shadow: Option<String>,
    /// Settings of its own.
    pub each: EachModelSettings,
    /// Batching of its own.
    pub batching: BatchSettings,
    /// Where these settings were written; `models` stands for the table.
    pub origins: Origins,
}

impl ModelSettings {
    /// The names of the settings that only the table of a model can have.
    pub(super) const OWN: &'static [&'static str] = &["name", "path", "labels", "split", "shadow"];

    /// The names of all settings of a model.
    pub(super) fn names() -> Vec<&'static str> {
        [ModelSettings::OWN, EachModelSettings::NAMES, BatchSettings::NAMES].concat()
    }
}

/// All settings, from the command line and the environment, or from a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Models to serve.
    pub paths: Vec<PathBuf>,
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Models of the file.
    pub models: Vec<ModelSettings>,
    /// The server.
    pub server: ServerSettings,
    /// What models have in common.
    pub each: EachModelSettings,
    /// Batching that models have in common.
    pub batching: BatchSettings,
    /// Where all these were written, and mistakes in them.
    pub reading: Reading,
}

impl Settings {
    /// The names of all settings that options and variables can set.
    pub(super) fn option_names() -> Vec<&'static str> {
        [ServerSettings::NAMES, EachModelSettings::NAMES, BatchSettings::NAMES].concat()
    }

    /// The names of all settings a file can have.
    pub(super) fn names() -> Vec<&'static str> {
        [vec!["models"], Settings::option_names()].concat()
    }

    /// The arguments of `serve`.
    #[must_use]
    pub fn arguments() -> Vec<Arg> {
        let paths = Arg::new("paths")
            .value_name("PATH")
            .help(
                "Models to serve. Each PATH is a SavedModel, a model file, a directory of numbered \
                 versions, or a directory of such models",
            )
            .action(ArgAction::Append)
            .num_args(0..)
            .value_parser(AsWritten(&[]))
            .value_hint(ValueHint::AnyPath);
        let config = option(
            "config",
            "Configuration file (TOML). Its keys are the long options, with _ instead of -",
            None,
        )
        .value_name("FILE")
        .value_parser(AsWritten(&[]))
        .value_hint(ValueHint::FilePath);
        let groups = [
            vec![paths, config],
            ServerSettings::options(),
            EachModelSettings::options(),
            BatchSettings::options(),
        ];
        groups.concat()
    }

    /// The settings of the command line.
    #[must_use]
    pub fn of_options(matches: &ArgMatches) -> Self {
        let mut settings = Settings::default();
        for path in given(matches, "paths") {
            match PathBuf::read(&WrittenValue::Text(path.to_owned())) {
                Ok(path) => settings.paths.push(path),
                Err(why) => settings.reading.mistakes.add(format!("PATH: {why}")),
            }
        }
        for name in [vec!["config"], Settings::option_names()].concat() {
            let values = given(matches, name);
            if let [_, _, ..] = values.as_slice() {
                let option = SettingOrigin::Option.of(name);
                settings.reading.mistakes.add(format!("{option}: given more than once"));
            }
            if let Some(value) = values.first() {
                settings.read(
                    name,
                    &WrittenValue::Text((*value).to_owned()),
                    SettingOrigin::Option,
                );
            }
        }
        settings
    }

    /// The settings of the environment.
    #[must_use]
    pub fn of_environment(environment: &Environment) -> Self {
        let mut settings = Settings::default();
        for name in Settings::option_names() {
            if let Some(value) = environment.setting(name) {
                settings.read(name, &WrittenValue::Text(value.to_owned()), SettingOrigin::Variable);
            }
        }
        settings
    }

    /// These settings of the command line, below them those of the environment, which can also
    /// name the configuration file.
    #[must_use]
    pub fn or_environment(self, environment: &Environment) -> Self {
        let mut lower = Settings::of_environment(environment);
        if let Some(path) = environment.setting("config") {
            lower.read("config", &WrittenValue::Text(path.to_owned()), SettingOrigin::Variable);
        }
        let config = self.config.clone().or_else(|| lower.config.clone());
        Settings { config, ..self.or(&lower) }
    }

    /// Sets a setting to what was written, or records what is wrong with it.
    pub(super) fn read(&mut self, name: &'static str, value: &WrittenValue, origin: SettingOrigin) {
        let outcome = match name {
            "config" => PathBuf::read(value).map(|path| self.config = Some(path)),
            _ => self.set(name, value),
        };
        if let Err(why) = outcome {
            self.reading.mistakes.add(format!("{}: {why}", origin.of(name)));
        }
        self.reading.origins.insert(name, origin);
    }

    fn set(&mut self, name: &str, value: &WrittenValue) -> Result<(), String> {
        let outcome = self.server.set(name, value);
        let outcome = outcome.or_else(|| self.each.set(name, value));
        outcome.or_else(|| self.batching.set(name, value)).unwrap_or(Ok(()))
    }

    fn is_set(&self, name: &str) -> bool {
        self.server.is_set(name) || self.each.is_set(name) || self.batching.is_set(name)
    }

    /// These settings, and where there is none, those of `lower`. Models are those of `lower`.
    #[must_use]
    pub fn or(mut self, lower: &Self) -> Self {
        for (name, origin) in &lower.reading.origins {
            if !self.is_set(name) {
                self.reading.origins.insert(name, origin.clone());
            }
        }
        self.reading.mistakes.extend(&lower.reading.mistakes);
        self.reading.is_incomplete |= lower.reading.is_incomplete;
        Settings {
            paths: self.paths,
            config: self.config,
            models: lower.models.clone(),
            server: self.server.or(&lower.server),
            each: self.each.or(&lower.each),
            batching: self.batching.or(&lower.batching),
            reading: self.reading,
        }
    }
}

/// The values of an option that the command line has; clap adds those of the environment.
fn given<'m>(matches: &'m ArgMatches, name: &str) -> Vec<&'m OsStr> {
    if matches.value_source(name) != Some(ValueSource::CommandLine) {
        return Vec::new();
    }
    matches.get_raw(name).into_iter().flatten().collect()
}
