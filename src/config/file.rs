//! Reads the settings file.

use std::path::{Path, PathBuf};

use config::{File, FileFormat, Value, ValueKind};

use super::settings::{ModelSettings, Settings};
use super::units::List;
use tensorserve_tensor::error::{Error, Result};

/// The settings in the TOML file `path`.
///
/// # Errors
/// If it can not be read, is no TOML, has a value of the wrong type, or a key that is none of
/// ours (with the nearest one that is).
pub(super) fn read(path: &Path) -> Result<Settings> {
    let wrong = |e: String| Error::invalid(format!("{}: {e}", path.display()));
    if !path.is_file() {
        return Err(Error::not_found(format!("{}: no such file", path.display())));
    }
    let source = File::from(path).format(FileFormat::Toml);
    let read = config::Config::builder().add_source(source).build();
    let read = read.map_err(|e| wrong(e.to_string()))?;
    let unknown = unknown_keys(&read.cache);
    if !unknown.is_empty() {
        return Err(wrong(unknown.join("; ")));
    }
    let mut settings: Settings = read.try_deserialize().map_err(|e| wrong(e.to_string()))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let in_folder = |path: &mut Option<PathBuf>| *path = path.take().map(|path| folder.join(path));
    in_folder(&mut settings.each.request_log);
    in_folder(&mut settings.each.code);
    if let Some(List(paths)) = &mut settings.server.custom_op_paths {
        paths.iter_mut().for_each(|path| *path = folder.join(&path));
    }
    for model in &mut settings.models {
        in_folder(&mut model.path);
        in_folder(&mut model.each.request_log);
        in_folder(&mut model.each.code);
    }
    Ok(settings)
}

fn unknown_keys(root: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    let ValueKind::Table(table) = &root.kind else {
        return unknown;
    };
    let known = Settings::names();
    for (key, value) in table {
        if !known.contains(&key.as_str()) {
            unknown.push(unknown_key(key, &known, "setting"));
        }
        if key != "models" {
            continue;
        }
        let known = ModelSettings::names();
        if let ValueKind::Array(models) = &value.kind {
            for model in models {
                if let ValueKind::Table(model) = &model.kind {
                    let keys = model.keys().filter(|key| !known.contains(&key.as_str()));
                    unknown.extend(keys.map(|key| unknown_key(key, &known, "setting of a model")));
                }
            }
        }
    }
    unknown.sort();
    unknown
}

/// "unknown …", with the nearest known name if there is a near one.
pub(super) fn unknown_key(key: &str, known: &[&str], what: &str) -> String {
    let distance = |name: &&&str| strsim::damerau_levenshtein(key, name);
    let nearest = known.iter().min_by_key(distance);
    let near = nearest.filter(|name| distance(name) <= 1 + key.len() / 3);
    match near {
        Some(name) => format!("{key:?} is no {what}; did you mean {name:?}?"),
        None => format!("{key:?} is no {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::units::{Port, Span};
    use std::time::Duration;

    fn read_text(text: &str) -> Result<Settings> {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("tensorserve.toml");
        std::fs::write(&path, text).expect("written");
        read(&path)
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
        assert_eq!(settings.server.request_timeout, Some(Span(Duration::from_secs(5))));
        assert_eq!(settings.server.keep_alive, Some(Span(Duration::from_secs(10))));
        assert_eq!(settings.batching.max_batch_size, Some(32));
        let model = &settings.models[0];
        assert_eq!(model.batching.max_batch_size, Some(8));
        assert_eq!(model.labels["canary"], 2);
        assert!(model.path.as_ref().expect("path").is_absolute());
    }

    #[test]
    fn unknown_keys_are_named_with_the_nearest_known_one() {
        let error = read_text("http_prot = 80\n[[models]]\npth = \"x\"\n").expect_err("wrong");
        assert!(
            error.message().contains("\"http_prot\" is no setting; did you mean \"http_port\"?")
        );
        assert!(
            error.message().contains("\"pth\" is no setting of a model; did you mean \"path\"?")
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_names_its_key() {
        let error = read_text("http_port = \"many\"").expect_err("wrong");
        assert!(error.message().contains("many"), "{error}");
        let error = read_text("http_port = ").expect_err("no TOML");
        assert!(error.message().contains("tensorserve.toml"), "{error}");
    }
}
