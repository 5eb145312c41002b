//! The configuration file with the settings that were found.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use super::outcome::TuneOutcome;
use crate::config::Settings;
use crate::config::environment::Environment;
use tensorserve_loadgen::report::{three_digits, time};
use tensorserve_preprocessing::FILE_NAME;
use tensorserve_tensor::error::{Code, Error, Result};

/// Checks that the file can be written, before anything is measured.
///
/// # Errors
/// If it exists already, or is in a place where the server would read it as something else.
pub(super) fn check_place(output: &Path, model: &str, force: bool) -> Result<()> {
    let shown = output.display();
    if output.exists() && !force {
        return Err(exists(output));
    }
    let folder = match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let folder = folder.canonicalize().map_err(|e| {
        Error::new(Code::of_io(&e), format!("--output: {shown}: its directory: {e}"))
    })?;
    // A path that does not exist is the server's to tell of.
    let Ok(model) = Path::new(model).canonicalize() else { return Ok(()) };
    let is_version =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let is_part =
        model.is_file() || model.file_name().and_then(|name| name.to_str()).is_some_and(is_version);
    let is_beside = is_part && model.parent() == Some(folder.as_path());
    if output.file_name() == Some(FILE_NAME.as_ref()) && (folder.starts_with(&model) || is_beside) {
        return Err(Error::invalid(format!(
            "--output: {shown}: {FILE_NAME} beside a model declares its pre- and post-processing steps: name a file \
             elsewhere"
        )));
    }
    Ok(())
}

fn exists(output: &Path) -> Error {
    Error::new(
        Code::AlreadyExists,
        format!(
            "{} exists already: --force overwrites it, --output names another file",
            output.display()
        ),
    )
}

/// Writes the file.
///
/// # Errors
/// If it exists already, or cannot be written.
pub(super) fn write(output: &Path, text: &str, force: bool) -> Result<()> {
    let failed = |e: std::io::Error| {
        Error::new(Code::of_io(&e), format!("{} cannot be written: {e}", output.display()))
    };
    if force {
        return fs::write(output, text).map_err(failed);
    }
    let opened = OpenOptions::new().write(true).create_new(true).open(output);
    let mut file = opened.map_err(|e| match e.kind() == ErrorKind::AlreadyExists {
        true => exists(output),
        false => failed(e),
    })?;
    file.write_all(text.as_bytes()).map_err(failed)
}

/// The text of the file: the settings, and comments that say what was measured.
pub(super) fn text(outcome: &TuneOutcome, environment: &Environment) -> String {
    let mut lines = Vec::new();
    head(&mut lines, outcome);
    capacity(&mut lines, outcome);
    tried(&mut lines, outcome);
    let names = of_environment(environment);
    if !names.is_empty() {
        lines.push(String::new());
        lines.push(format!(
            "These variables applied in all trials, and are not in this file: {}.",
            names.join(", ")
        ));
    }
    let mut text = String::new();
    for line in lines {
        // A comment ends with its line, whatever names hold.
        let line: String = line.chars().filter(|letter| !letter.is_control()).collect();
        text.push_str(format!("# {line}").trim_end());
        text.push('\n');
    }
    text.push('\n');
    text.push_str(&settings(outcome));
    text
}

fn head(lines: &mut Vec<String>, outcome: &TuneOutcome) {
    let rate = outcome.rate.map_or(String::new(), |rate| format!(" --rate {rate}"));
    lines.push(format!(
        "Settings for {}, found by tensorserve {}:",
        outcome.path,
        env!("CARGO_PKG_VERSION")
    ));
    lines.push(format!("  tensorserve tune {} --slo {}{rate}", outcome.path, outcome.slo));
    lines.push("To serve with them:".to_owned());
    lines.push(format!("  tensorserve serve {} --config {}", outcome.path, outcome.file));
    lines.push(String::new());
    lines.push(format!(
        "Measured in {:.0} s on {} cores, which the load used, too: {}, {}.",
        outcome.seconds, outcome.cores, outcome.target, outcome.requests
    ));
}

fn capacity(lines: &mut Vec<String>, outcome: &TuneOutcome) {
    lines.push(format!("Capacity of a replica: {}.", outcome.capacity_words()));
    if let (false, Some(default)) = (outcome.is_default_best, outcome.default_capacity) {
        lines.push(format!("With the default settings: {} requests/s.", three_digits(default)));
    }
    lines.push(format!("Replicas: {}.", outcome.replica_words()));
    if let Some(planned) = &outcome.planned {
        lines.push(format!(
            "At {} requests/s, p50 is {} and p99 {}. Values of the Helm chart for this rate:",
            three_digits(planned.rate),
            time(planned.p50_ms),
            time(planned.p99_ms)
        ));
    }
    let targets = outcome.autoscaling.iter();
    lines.extend(targets.map(|one| format!("  {}: {}    ({})", one.value, one.target, one.metric)));
    lines.extend(outcome.notes.iter().map(|note| format!("Note: {note}.")));
}

fn tried(lines: &mut Vec<String>, outcome: &TuneOutcome) {
    if outcome.candidates.is_empty() {
        return;
    }
    lines.push(String::new());
    lines.push("Tried, with the ratio to the default settings:".to_owned());
    for one in &outcome.candidates {
        let result = match (&one.out, one.ratio) {
            (Some(why), _) => format!("out: {why}"),
            (None, Some(ratio)) => format!("{ratio:.3} in {} of the trials", one.trials),
            (None, None) => "no trial".to_owned(),
        };
        lines.push(format!("  {}: {result}", one.settings.words()));
    }
}

/// Variables of settings.
fn of_environment(environment: &Environment) -> Vec<String> {
    let arguments = Settings::arguments();
    let variables = arguments.iter().filter_map(|argument| argument.get_env()?.to_str());
    variables.filter(|name| environment.is_set(name)).map(str::to_owned).collect()
}

/// The settings; the default ones as comments, if they are best.
fn settings(outcome: &TuneOutcome) -> String {
    if !outcome.is_default_best {
        let pairs = outcome.settings.0.iter();
        return pairs.map(|(name, value)| format!("{name} = {}\n", toml(value))).collect();
    }
    let mut pairs: Vec<(String, String)> = Vec::new();
    for name in ["batching", "max_batch_size", "batch_timeout_micros"] {
        if let Some(value) = outcome.facts.batching.get(name) {
            pairs.push((name.to_owned(), value.to_string()));
        }
    }
    for name in ["num_batch_threads", "http_threads", "intra_op_threads", "inter_op_threads"] {
        let value = outcome.facts.default_threads(name);
        pairs.extend(value.map(|value| (name.to_owned(), value)));
    }
    let what = match outcome.trials.is_empty() {
        true => "# No other settings were tried. The default ones are:\n",
        false => "# The default settings are best:\n",
    };
    let lines = pairs.into_iter().map(|(name, value)| format!("# {name} = {value}\n"));
    [what.to_owned()].into_iter().chain(lines).collect()
}

/// A value, which is a number, true, false or a word.
fn toml(value: &str) -> String {
    let is_bare = value.parse::<i64>().is_ok() || matches!(value, "true" | "false");
    if is_bare { value.to_owned() } else { format!("\"{value}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_not_overwritten_without_being_asked() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let file = folder.path().join("tensorserve.toml");
        let model = folder.path().join("model");
        fs::create_dir_all(model.join("1")).expect("a directory");
        let model = model.display().to_string();
        check_place(&file, &model, false).expect("a new file");
        write(&file, "a = 1\n", false).expect("written");
        for outcome in [check_place(&file, &model, false), write(&file, "b", false)] {
            assert!(outcome.expect_err("exists").to_string().contains("--force"));
        }
        check_place(&file, &model, true).expect("forced");
        write(&file, "c", true).expect("written");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "c");
        let error = check_place(&folder.path().join("no/x.toml"), &model, false);
        assert!(error.expect_err("no directory").to_string().contains("its directory"));
    }

    #[test]
    fn a_file_is_not_put_where_it_means_something_else() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let model = folder.path().join("model");
        fs::create_dir_all(model.join("1")).expect("a directory");
        fs::write(folder.path().join("m.onnx"), "").expect("written");
        for (file, served) in [
            ("model/tensorserve.toml", "model"),
            ("model/1/tensorserve.toml", "model"),
            ("model/tensorserve.toml", "model/1"),
            ("tensorserve.toml", "m.onnx"),
        ] {
            let served = folder.path().join(served).display().to_string();
            let error = check_place(&folder.path().join(file), &served, false).expect_err(file);
            assert!(error.to_string().contains("pre- and post-processing"), "{error}");
        }
        let served = model.display().to_string();
        check_place(&folder.path().join("tensorserve.toml"), &served, false).expect("beside it");
        check_place(&model.join("tuned.toml"), &served, false).expect("another name");
    }

    #[test]
    fn values_are_words_or_numbers() {
        assert_eq!((toml("on").as_str(), toml("16").as_str()), ("\"on\"", "16"));
    }
}
