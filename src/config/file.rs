//! Reads the configuration file.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::{ModelSettings, Settings};
use super::units::CommaSeparated;
use super::value::SettingValue;
use super::written::{SettingOrigin, WrittenValue, integer, unknown_name};

impl Settings {
    /// These settings, below them those of the configuration file.
    #[must_use]
    pub fn or_file(mut self) -> Self {
        match self.config.take() {
            Some(path) => self.or(&read(&path)),
            None => self,
        }
    }
}

/// The settings in the TOML file `path`, with all mistakes in it.
fn read(path: &Path) -> Settings {
    let mut settings = Settings::default();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let why = if path.exists() { error.to_string() } else { "no such file".to_owned() };
            settings.reading.mistakes.add(format!("configuration file {}: {why}", path.display()));
            settings.reading.is_incomplete = true;
            return settings;
        }
    };
    let breaks = text.match_indices('\n').map(|(at, _)| at).collect();
    let mut reader = Reader { path, text: &text, breaks, settings };
    reader.read();
    reader.settings
}

struct Reader<'f> {
    path: &'f Path,
    text: &'f str,
    /// Where the lines end: a file can have as many mistakes as it has lines.
    breaks: Vec<usize>,
    settings: Settings,
}

impl Reader<'_> {
    fn read(&mut self) {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        for error in &errors {
            self.mistake(error.span().unwrap_or_default(), error.message());
        }
        if !errors.is_empty() {
            // What follows a syntax error may be read wrong.
            self.settings.reading.is_incomplete = true;
            return;
        }
        let known = Settings::names();
        for (key, value) in table.get_ref() {
            let name = key.get_ref().as_ref();
            match known.iter().find(|known| **known == name) {
                Some(&"models") => self.models(value),
                Some(known) => self.setting(known, value),
                None => self.mistake(key.span(), unknown_name(name, &known, "a setting")),
            }
        }
        self.resolve_paths();
    }

    fn setting(&mut self, name: &'static str, value: &Spanned<DeValue<'_>>) {
        let origin = self.origin(value.span());
        match WrittenValue::of_toml(value.get_ref()) {
            Ok(written) => self.settings.read(name, &written, origin),
            Err(why) => self.mistake(value.span(), format!("{name}: {why}")),
        }
    }

    fn models(&mut self, value: &Spanned<DeValue<'_>>) {
        let DeValue::Array(models) = value.get_ref() else {
            let why = "models: write each model as a [[models]] table";
            return self.mistake(value.span(), why);
        };
        for model in models {
            let DeValue::Table(table) = model.get_ref() else {
                self.mistake(model.span(), "models: this is not a table");
                continue;
            };
            self.model(table, model.span());
        }
    }

    fn model(&mut self, table: &DeTable<'_>, span: Range<usize>) {
        let mut model = ModelSettings::default();
        model.origins.insert("models", self.origin(span));
        let known = ModelSettings::names();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let Some(known) = known.iter().find(|known| **known == name) else {
                self.mistake(key.span(), unknown_name(name, &known, "a setting of a model"));
                continue;
            };
            model.origins.insert(known, self.origin(value.span()));
            match *known {
                "labels" => {
                    model.labels = self.numbers(known, "the version", value);
                    continue;
                }
                "split" => {
                    model.split = self.numbers(known, "the weight", value);
                    continue;
                }
                _ => {}
            }
            let written = WrittenValue::of_toml(value.get_ref());
            if let Err(why) = written.and_then(|written| set(&mut model, known, &written)) {
                self.mistake(value.span(), format!("{known}: {why}"));
            }
        }
        self.settings.models.push(model);
    }

    /// A table that gives each label a number, which `what` names.
    fn numbers(
        &mut self,
        setting: &str,
        what: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> BTreeMap<String, i64> {
        let mut numbers = BTreeMap::new();
        let DeValue::Table(table) = value.get_ref() else {
            let why = format!("{setting}: write a table, such as {{ stable = 3 }}");
            self.mistake(value.span(), why);
            return numbers;
        };
        for (label, number) in table {
            if let Ok(number) = integer(number.get_ref()) {
                numbers.insert(label.get_ref().to_string(), number);
                continue;
            }
            let why = format!("{setting}: {what} of {:?} is not an integer", label.get_ref());
            self.mistake(number.span(), why);
        }
        numbers
    }

    /// Paths of models and their files are relative to the file.
    fn resolve_paths(&mut self) {
        let directory = self.path.parent().unwrap_or(Path::new(""));
        let settings = &mut self.settings;
        resolve(directory, &mut settings.each.request_log);
        resolve(directory, &mut settings.each.code);
        if let Some(CommaSeparated(paths)) = &mut settings.server.custom_op_paths {
            paths.iter_mut().for_each(|path| *path = directory.join(&path));
        }
        for model in &mut settings.models {
            resolve(directory, &mut model.path);
            resolve(directory, &mut model.each.request_log);
            resolve(directory, &mut model.each.code);
        }
    }

    fn mistake(&mut self, span: Range<usize>, why: impl std::fmt::Display) {
        let (path, line) = (self.path.display(), self.line(span));
        self.settings.reading.mistakes.add(format!("{path}:{line}: {why}"));
    }

    fn origin(&self, span: Range<usize>) -> SettingOrigin {
        SettingOrigin::line(self.path, self.line(span))
    }

    /// The line in which `span` starts, from 1.
    fn line(&self, span: Range<usize>) -> usize {
        self.breaks.partition_point(|at| *at < span.start) + 1
    }
}

/// Sets a setting of a model.
fn set(model: &mut ModelSettings, name: &str, value: &WrittenValue) -> Result<(), String> {
    match name {
        "name" => String::read(value).map(|name| model.name = Some(name)),
        "path" => PathBuf::read(value).map(|path| model.path = Some(path)),
        "shadow" => String::read(value).map(|label| model.shadow = Some(label)),
        _ => {
            let outcome = model.each.set(name, value);
            outcome.or_else(|| model.batching.set(name, value)).unwrap_or(Ok(()))
        }
    }
}

fn resolve(directory: &Path, path: &mut Option<PathBuf>) {
    let is_local = |path: &PathBuf| !path.to_string_lossy().contains("://");
    *path = path.take().map(|path| match is_local(&path) {
        true => directory.join(path),
        false => path,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::units::{HumanDuration, Port};
    use std::time::Duration;
    use tensorserve_tensor::error::Result;

    fn read_text(text: &str) -> Result<Settings> {
        let folder = tempfile::tempdir().expect("temporary directory");
        let path = folder.path().join("tensorserve.toml");
        std::fs::write(&path, text).expect("written");
        let settings = read(&path);
        settings.reading.mistakes.clone().result(settings)
    }

    #[test]
    fn a_whole_file() {
        let settings = read_text(
            "host = \"0.0.0.0\"\nhttp_port = 80\nrequest_timeout = \"5s\"\nkeep_alive = 10\n\
             max_batch_size = 32\nallowed_batch_sizes = [8, 32]\n\
             [[models]]\nname = \"m\"\npath = \"m\"\nmax_batch_size = 8\nlabels = { canary = 2 }\n",
        )
        .expect("valid");
        assert_eq!(settings.server.http_port, Some(Port::Number(80)));
        assert_eq!(settings.server.request_timeout, Some(HumanDuration(Duration::from_secs(5))));
        assert_eq!(settings.server.keep_alive, Some(HumanDuration(Duration::from_secs(10))));
        assert_eq!(settings.batching.max_batch_size, Some(32));
        assert_eq!(settings.batching.allowed_batch_sizes, Some(CommaSeparated(vec![8, 32])));
        let model = &settings.models[0];
        assert_eq!(model.batching.max_batch_size, Some(8));
        assert_eq!(model.labels["canary"], 2);
        assert!(model.path.as_ref().expect("path").is_absolute());
    }

    #[test]
    fn unknown_keys_are_named_with_the_nearest_known_one() {
        let error = read_text("http_prot = 80\n[[models]]\npth = \"x\"\n").expect_err("wrong");
        for part in [
            "tensorserve.toml:1: http_prot is not a setting; did you mean http_port?",
            "tensorserve.toml:3: pth is not a setting of a model; did you mean path?",
        ] {
            assert!(error.message().contains(part), "{part:?} is not in: {error}");
        }
    }

    #[test]
    fn every_value_of_the_wrong_type_is_named_with_its_line() {
        let error = read_text("http_port = \"many\"").expect_err("wrong");
        assert!(error.message().contains("many"), "{error}");
        let error = read_text("http_port = ").expect_err("no TOML");
        assert!(error.message().contains("tensorserve.toml:1: "), "{error}");
        let error = read_text(
            "http_threads = -1\nhost = [\"::\"]\nconsole = { a = 1 }\n\n[[models]]\n\
             labels = { a = \"b\" }\nwarm_up = 3\nmax_batch_size = \"x\"\n",
        )
        .expect_err("wrong");
        for part in [
            "6 configuration mistakes",
            "toml:1: http_threads: \"-1\"",
            "toml:2: host: a list",
            "toml:3: console: a table",
            "toml:6: labels: the version of \"a\"",
            "toml:7: warm_up: \"3\" is not true or false",
            "toml:8: max_batch_size: \"x\"",
        ] {
            assert!(error.message().contains(part), "{part:?} is not in: {error}");
        }
    }

    #[test]
    fn every_syntax_error_has_its_line() {
        let error = read_text("a = \nhost = \"::\"\nb = [1,\n").expect_err("no TOML");
        for part in ["tensorserve.toml:1: ", "tensorserve.toml:3: "] {
            assert!(error.message().contains(part), "{part:?} is not in: {error}");
        }
    }
}
