//! `convert`: makes a SavedModel of a Keras model, with Keras in the user's Python. No other program can read
//! these files completely: a model may have any of Keras's layers.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use clap::Args;

use super::print_line;
use crate::config::environment::Environment;
use tensorserve_platform::ForeignFormats;
use tensorserve_tensor::error::{Code, Error, Result};

pub(super) const HELP: &str = "\
With --python, only that interpreter is tried. Otherwise, Keras runs in the first of these that has \
TensorFlow: the active virtual environment, python3 on the PATH. OUT must not exist; it appears when it \
is complete.

Examples:
  tensorserve convert --with-python model.keras
  tensorserve convert --with-python --python ~/venv/bin/python model.h5 models/mine/1";

/// What is converted.
#[derive(Args)]
pub(super) struct Arguments {
    /// The Keras model: a .keras, .h5 or .hdf5 file
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The directory of the SavedModel to write [default: PATH without its ending]
    #[arg(value_name = "OUT")]
    out: Option<PathBuf>,
    /// Run Python, which reads the file and so may run code that it contains
    #[arg(long, required = true)]
    with_python: bool,
    /// The Python interpreter with TensorFlow
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
}

/// The endings of the files that are converted.
const ENDINGS: [&str; 3] = ["keras", "h5", "hdf5"];

/// The program that Python runs.
const PROGRAM: &str = include_str!("keras_export.py");

/// The exit status of [`PROGRAM`] without TensorFlow.
const NO_TENSORFLOW: i32 = 3;

/// The lines of Python's messages that an error repeats.
const MESSAGE_LINES: usize = 6;

pub(super) fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode> {
    let source = &arguments.path;
    check_source(source)?;
    let out = arguments.out.clone().unwrap_or_else(|| source.with_extension(""));
    if out.symlink_metadata().is_ok() {
        let out = out.display();
        return Err(Error::precondition(format!("{out} exists: name another directory")));
    }
    let draft = PartialDirectory::beside(&out)?;
    let target = draft.path.join("model");
    let versions = export(arguments, environment, source, &target)?;
    if !target.join("saved_model.pb").is_file() {
        return Err(Error::internal("Python has written no saved_model.pb"));
    }
    fs::rename(&target, &out).map_err(|error| failed("cannot be renamed to", &out, error))?;
    drop(draft);
    let out = out.display();
    print_line(&format!("{out} is a SavedModel now, written with {versions}. Try it:"));
    print_line(&format!("  tensorserve serve {out}"));
    Ok(ExitCode::SUCCESS)
}

/// Refuses what is not a Keras model, with how to get a model that is served.
fn check_source(source: &Path) -> Result<()> {
    if !source.is_file() {
        return Err(Error::not_found(format!("{} is not a file", source.display())));
    }
    let ending = source.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    if ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) {
        return Ok(());
    }
    let explanation = ForeignFormats::explain(source);
    let message = explanation.unwrap_or_else(|| {
        let path = source.display();
        format!("{path}: Keras models are converted, whose names end in .keras, .h5 or .hdf5")
    });
    Err(Error::new(Code::Unimplemented, message))
}

/// Lets Python write the SavedModel `target`; returns the versions of what wrote it.
fn export(
    arguments: &Arguments,
    environment: &Environment,
    source: &Path,
    target: &Path,
) -> Result<String> {
    // Absolute: a relative one could begin with a hyphen.
    let source =
        std::path::absolute(source).map_err(|error| failed("has no path", source, error))?;
    let target =
        std::path::absolute(target).map_err(|error| failed("has no path", target, error))?;
    let mut tried = Vec::new();
    for python in interpreters(arguments, environment) {
        let mut command = Command::new(&python);
        command.arg("-c").arg(PROGRAM).arg(&source).arg(&target);
        let name = PathBuf::from(&python).display().to_string();
        match command.stdin(Stdio::null()).output() {
            Ok(output) if output.status.code() == Some(NO_TENSORFLOW) => {
                tried.push(format!("{name} has no TensorFlow"));
            }
            Ok(output) => return outcome(&name, &source, &output),
            Err(error) => tried.push(format!("{name}: {error}")),
        }
    }
    Err(Error::precondition(format!(
        "there is no Python with TensorFlow ({}). Install it, and convert the model with it:\n  {}",
        tried.join(", "),
        installation(&arguments.path)
    )))
}

/// The line that installs TensorFlow and converts `source`.
fn installation(source: &Path) -> String {
    let package = if cfg!(target_arch = "x86_64") { "tensorflow-cpu" } else { "tensorflow" };
    let source = source.display();
    format!(
        "python3 -m venv keras-env && keras-env/bin/pip install {package} && tensorserve convert \
         --with-python --python keras-env/bin/python {source}"
    )
}

/// The Python interpreters to try, in order.
fn interpreters(arguments: &Arguments, environment: &Environment) -> Vec<OsString> {
    if let Some(python) = &arguments.python {
        return vec![python.clone().into()];
    }
    let active = environment.get("VIRTUAL_ENV").filter(|active| !active.is_empty());
    let active = active.map(|active| Path::new(active).join("bin/python").into_os_string());
    active.into_iter().chain(["python3".into()]).collect()
}

/// The versions that Python has printed last, or its error.
fn outcome(python: &str, source: &Path, output: &Output) -> Result<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if output.status.success() {
        return Ok(lines.last().copied().unwrap_or("an unknown version").to_owned());
    }
    let last = lines.get(lines.len().saturating_sub(MESSAGE_LINES)..).unwrap_or_default();
    let source = source.display();
    Err(Error::new(
        Code::Unknown,
        format!("{python} cannot convert {source} ({}):\n{}", output.status, last.join("\n")),
    ))
}

/// A directory that is removed at the end.
struct PartialDirectory {
    path: PathBuf,
}

impl PartialDirectory {
    /// A new directory beside `out`: a rename does not leave the file system.
    fn beside(out: &Path) -> Result<Self> {
        let name = out.file_name().ok_or_else(|| {
            Error::invalid(format!("{} is not the name of a directory", out.display()))
        })?;
        let path = out.with_file_name(format!(".{}.part", name.to_string_lossy()));
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent)
                .map_err(|error| failed("cannot be created", parent, error))?;
        }
        fs::create_dir(&path).map_err(|error| {
            if error.kind() != std::io::ErrorKind::AlreadyExists {
                return failed("cannot be created", &path, error);
            }
            Error::precondition(format!(
                "{} exists: another conversion writes to it, or one was interrupted. If none is running, \
                 remove it",
                path.display()
            ))
        })?;
        Ok(PartialDirectory { path })
    }
}

impl Drop for PartialDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn failed(what: &str, path: &Path, error: std::io::Error) -> Error {
    let message = format!("{} {what}: {error}", path.display());
    Error::new(Code::of_io(&error), message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Only {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// The error of a conversion with a Python that `python` is, a shell script.
    fn converted(folder: &Path, python: &str, more: &[&str]) -> Result<ExitCode> {
        use std::os::unix::fs::PermissionsExt;
        let interpreter = folder.join("python");
        fs::write(&interpreter, format!("#!/bin/sh\n{python}\n")).expect("written");
        fs::set_permissions(&interpreter, fs::Permissions::from_mode(0o755)).expect("executable");
        let interpreter = interpreter.to_str().expect("UTF-8");
        let words = ["convert", "--with-python", "--python", interpreter];
        let words = words.iter().chain(more);
        let only = Only::try_parse_from(words).expect("valid");
        run(&only.arguments, &Environment::default())
    }

    fn entries(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name != "python").collect();
        names.sort();
        names
    }

    #[test]
    fn a_conversion_leaves_all_or_nothing() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let model = folder.path().join("my model.keras");
        fs::write(&model, "PK").expect("written");
        let model = model.to_str().expect("UTF-8");

        let none = converted(folder.path(), "exit 3", &[model]).expect_err("no TensorFlow");
        for part in ["has no TensorFlow", "pip install tensorflow", "my model.keras"] {
            assert!(none.message().contains(part), "{none}");
        }
        let wrong = "echo first >&2; echo 'ValueError: wrong' >&2; exit 1";
        let wrong = converted(folder.path(), wrong, &[model]).expect_err("an error of Keras");
        assert!(wrong.message().contains("ValueError: wrong"), "{wrong}");
        let empty = converted(folder.path(), "exit 0", &[model]).expect_err("nothing written");
        assert!(empty.message().contains("no saved_model.pb"), "{empty}");
        assert_eq!(entries(folder.path()), ["my model.keras"]);

        // The third argument is the model, the fourth the directory.
        let good = "test -f \"$3\" && mkdir \"$4\" && touch \"$4/saved_model.pb\"; echo TF 2 >&2";
        converted(folder.path(), good, &[model]).expect("converted");
        assert_eq!(entries(folder.path()), ["my model", "my model.keras"]);
        let again = converted(folder.path(), good, &[model]).expect_err("it exists");
        assert!(again.message().contains("exists: name another"), "{again}");
        let other = folder.path().join("a/b/1");
        converted(folder.path(), good, &[model, other.to_str().expect("UTF-8")])
            .expect("converted");
        assert!(other.join("saved_model.pb").is_file());
        assert_eq!(entries(&folder.path().join("a/b")), ["1"]);
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let file = folder.path().join("model.onnx");
        fs::write(&file, "").expect("written");
        let file = file.to_str().expect("UTF-8");
        let error = converted(folder.path(), "exit 9", &[file]).expect_err("not Keras");
        assert!(error.message().contains("end in .keras"), "{error}");
        let error = converted(folder.path(), "exit 9", &["/nowhere.h5"]).expect_err("no file");
        assert_eq!(error.code(), Code::NotFound);
        assert!(Only::try_parse_from(["convert", "model.keras"]).is_err());
    }
}
