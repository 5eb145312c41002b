//! Where the libraries of the runtimes are searched: a library that is opened runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::client::{get, post};
use crate::support::process::{Process, ended, tensorserve};
use crate::support::{data, fetched, link};

/// `tensorserve --version` in `folder`, without what names a directory of libraries.
fn version_in(folder: &Path) -> Command {
    let mut command = tensorserve(&["--version"]);
    command.current_dir(folder);
    let variables =
        ["TENSORSERVE_LIB_DIR", "TENSORSERVE_LIBTENSORFLOW", "VIRTUAL_ENV", "CONDA_PREFIX"];
    variables.iter().for_each(|name| _ = command.env_remove(name));
    command
}

/// Writes files in `folder` that the loader would refuse with an error, if it were to open them.
fn write_libraries(folder: &Path) {
    fs::create_dir_all(folder).expect("directory");
    for name in [
        "libtensorflow.so.2",
        "libtensorflow_cc.so.2",
        "libonnxruntime.so.1.31.1",
        "libLiteRt.so",
        "libopenvino_c.so.2641",
    ] {
        fs::write(folder.join(name), "not ours").expect("written");
    }
}

/// The binary under test at `path`.
fn install_binary(path: &Path) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
    let binary = Path::new(env!("CARGO_BIN_EXE_tensorserve"));
    if fs::hard_link(binary, path).is_err() {
        fs::copy(binary, path).expect("copied");
    }
}

#[test]
fn libraries_in_the_working_directory_are_not_opened() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let packages = "lib/python3.12/site-packages";
    for place in ["", "lib", "tensorflow", "tensorserve/lib", ".local/share/tensorserve/lib"] {
        write_libraries(&folder.path().join(place));
    }
    write_libraries(&folder.path().join(packages).join("tensorflow"));
    write_libraries(&folder.path().join(packages).join("onnxruntime/capi"));
    let ended_without = ended(&mut version_in(folder.path()));
    assert!(!ended_without.stdout.contains("cannot be loaded"), "{}", ended_without.stdout);
    for here in ["", "."] {
        let mut command = version_in(folder.path());
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "XDG_DATA_HOME"] {
            command.env(name, here);
        }
        let ended = ended(&mut command);
        assert!(!ended.stdout.contains("cannot be loaded"), "{here:?}: {}", ended.stdout);
    }
    let relative = ended(version_in(folder.path()).env("TENSORSERVE_LIB_DIR", "lib"));
    let mistake = "TENSORSERVE_LIB_DIR: \"lib\" is not an absolute path";
    assert!(relative.stderr.contains(mistake), "{}", relative.stderr);
    // That the files are opened where they are found, so that the checks above can fail.
    let named = ended(version_in(folder.path()).env("TENSORSERVE_LIB_DIR", folder.path()));
    let built = [
        cfg!(feature = "onnx"),
        cfg!(feature = "mxnet"),
        cfg!(feature = "tflite"),
        cfg!(feature = "openvino"),
    ];
    let platforms = 1 + built.into_iter().map(usize::from).sum::<usize>();
    assert_eq!(named.stdout.matches("cannot be loaded").count(), platforms, "{}", named.stdout);
}

#[test]
fn libraries_that_other_users_can_replace_are_not_opened() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let prefix = folder.path().join("prefix");
    let lib = prefix.join("lib");
    write_libraries(&lib);
    install_binary(&prefix.join("bin/tensorserve"));
    let mut command = Command::new(prefix.join("bin/tensorserve"));
    command.arg("--version").env_clear();
    let opened = ended(&mut command);
    let refusal = format!("{} cannot be loaded", lib.join("libtensorflow_cc.so.2").display());
    assert!(opened.stdout.contains(&refusal), "{}", opened.stdout);
    fs::set_permissions(&lib, fs::Permissions::from_mode(0o777)).expect("permissions");
    let skipped = ended(&mut command);
    assert!(!skipped.stdout.contains("cannot be loaded"), "{}", skipped.stdout);
    let reason = format!("other users can change or replace {}", lib.display());
    assert!(skipped.stdout.contains(&reason), "{}", skipped.stdout);
}

#[test]
fn the_packages_of_the_environment_of_the_binary_are_found() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let prefix = folder.path().join("environment");
    install_binary(&prefix.join("bin/tensorserve"));
    let site = prefix.join("lib/python3.12/site-packages");
    link(&fetched("tensorflow"), &site.join("tensorflow"));
    // Started by a link elsewhere, as pipx makes one.
    let started = folder.path().join("bin/tensorserve");
    link(&prefix.join("bin/tensorserve"), &started);
    // Another environment is active.
    write_libraries(&folder.path().join("other/lib/python3.12/site-packages/tensorflow"));
    let mut command = Command::new(&started);
    command.arg("--version").env_clear().env("VIRTUAL_ENV", folder.path().join("other"));
    let version = ended(&mut command).stdout;
    let library = site.join("tensorflow/libtensorflow_cc.so.2");
    let line = format!(" ({})", library.display());
    let found = version.lines().any(|l| l.starts_with("libtensorflow 2.") && l.ends_with(&line));
    assert!(found, "{version}");
}

#[test]
fn a_missing_library_is_told_with_each_way_to_install_it() {
    let folder = tempfile::tempdir().expect("temporary directory");
    install_binary(&folder.path().join("tensorserve"));
    let mut command = Command::new(folder.path().join("tensorserve"));
    let version = ended(command.arg("--version").env_clear()).stdout;
    let ways = [
        ["`tensorserve fetch tensorflow`", "pip install 'tensorserve[tensorflow]'"],
        ["`tensorserve fetch onnxruntime`", "pip install 'tensorserve[onnx]'"],
        ["`tensorserve fetch litert`", "pip install 'tensorserve[tflite]'"],
        ["`tensorserve fetch openvino`", "pip install 'tensorserve[openvino]'"],
        ["`tensorserve fetch torch`", "--libtorch PATH"],
        ["`tensorserve fetch executorch`", "--libexecutorch PATH"],
    ];
    let libraries = [
        "libtensorflow",
        "libonnxruntime",
        "liblitert",
        "libopenvino",
        "libtorch",
        "libexecutorch",
    ];
    let built = [
        true,
        cfg!(feature = "onnx"),
        cfg!(feature = "tflite"),
        cfg!(feature = "openvino"),
        cfg!(feature = "pytorch"),
        cfg!(feature = "executorch"),
    ];
    let built = libraries.iter().zip(ways).zip(built).filter(|(_, built)| *built);
    for ((library, ways), _) in built {
        let missing = format!("{library} was not found");
        let Some(line) = version.lines().find(|line| line.contains(&missing)) else {
            assert!(version.contains(" (/usr/"), "the system has no {library}: {version}");
            continue;
        };
        // First the command that works without a release on an index.
        let option = format!("--{library} PATH");
        let places = ways.map(|way| line.find(way)).into_iter().chain([line.find(&option)]);
        let places: Option<Vec<usize>> = places.collect();
        assert!(places.is_some_and(|places| places.is_sorted()), "{ways:?} in this order: {line}");
    }
}

/// The system has no libtorch.
#[test]
#[cfg(all(feature = "lightgbm", feature = "pytorch"))]
fn without_the_library_of_one_model_the_others_are_served() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let models = folder.path().join("models");
    for (model, file) in
        [("iris", "lightgbm/others/iris_multiclass.txt"), ("torch", "pytorch/iris_mlp_script.pt")]
    {
        let file = data(&format!("platforms/{file}"));
        let version = models.join(model).join("1");
        fs::create_dir_all(&version).expect("directories");
        fs::copy(&file, version.join(file.file_name().expect("a name"))).expect("copied");
    }
    install_binary(&folder.path().join("tensorserve"));
    let serve = |path: &Path| {
        let mut command = Command::new(folder.path().join("tensorserve"));
        command.env_clear().args(["serve", "--http-port", "0", "--grpc-port", "0"]).arg(path);
        command
    };

    let server = Process::start(serve(&models));
    let body = r#"{"instances": [[5.1, 3.5, 1.4, 0.2]]}"#;
    let answer = post(server.address, "/v1/models/iris:predict", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let state = get(server.address, "/v1/models/torch").text();
    assert!(state.contains("tensorserve fetch torch"), "{state}");

    // Alone it could only fail.
    let ended = ended(&mut serve(&models.join("torch")));
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("libtorch was not found"), "{}", ended.stderr);
}

#[test]
fn what_is_named_must_load_even_while_there_are_no_models() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let (models, file) = (folder.path().join("models"), folder.path().join("ops.so"));
    fs::create_dir(&models).expect("directory");
    fs::write(&file, "not a library").expect("written");
    for setting in ["--custom-op-paths", "--libtensorflow"] {
        let mut command = tensorserve(&["serve", "--http-port", "0", "--grpc-port", "0", setting]);
        let ended = ended(command.arg(&file).arg(&models));
        assert_eq!(ended.status.code(), Some(1), "{setting}: {}", ended.stderr);
        let mistake = format!("{} cannot be loaded", file.display());
        assert!(ended.stderr.contains(&mistake), "{setting}: {}", ended.stderr);
    }
}
