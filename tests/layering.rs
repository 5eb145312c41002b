//! Holds who may import whom (the map is in `docs/architecture.md`), and a few conventions that
//! no lint knows: reads the source tree, and fails with the file and line of what breaks them.
#![allow(missing_docs, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

/// Each module of the crate, and the modules of ours that it may name. A module may always name
/// itself. From the bottom of the house to its top: no module is listed before one it imports.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("os", &[]),
    ("machine", &[]),
    ("archive", &["error", "os"]),
    ("proto", &[]),
    ("tensor", &["error"]),
    ("pb", &["proto", "tensor", "error"]),
    ("codec", &["tensor", "error"]),
    ("steps", &["codec", "tensor", "error"]),
    ("config", &["archive", "machine", "proto", "error"]),
    ("auth", &["error", "config", "os"]),
    ("metrics", &["machine", "error"]),
    ("worker", &["error", "config", "machine", "os"]),
    ("platform", &["codec", "tensor", "pb", "error", "config", "metrics", "os"]),
    ("batch", &["tensor", "error", "config", "metrics"]),
    ("request_log", &["codec", "error", "config", "metrics"]),
    (
        "repository",
        &[
            "platform",
            "batch",
            "worker",
            "request_log",
            "steps",
            "tensor",
            "config",
            "metrics",
            "error",
            "os",
        ],
    ),
    (
        "engine",
        &["repository", "worker", "request_log", "tensor", "config", "metrics", "error", "machine"],
    ),
    ("protocol", &["engine", "auth", "codec", "tensor", "pb", "config", "error"]),
    ("server", &["protocol", "engine", "auth", "pb", "config", "metrics", "error", "os"]),
];

/// The top of the house, which puts the rest together.
const TOP: &[&str] = &["cli", "lib", "main"];

/// Files with `unsafe` code: bindings of C libraries.
const FFI: &[&str] =
    &["src/os.rs", "src/os/reads.rs", "src/platform/onnx/ffi.rs", "src/platform/tensorflow/ffi.rs"];

/// Lines a file may have without giving the reason for more in its header.
const LONGEST_FILE: usize = 600;

struct Source {
    /// From the root of the project.
    path: String,
    /// The top-level module it belongs to.
    module: String,
    text: String,
}

impl Source {
    /// Lines of code with their numbers: no comments, and nothing from the unit tests on.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate();
        let code = lines.take_while(|(_, line)| *line != "#[cfg(test)]");
        code.map(|(index, line)| (index + 1, line.trim_start()))
            .filter(|(_, line)| !line.starts_with("//"))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).expect("readable folder");
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("entry").path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn sources(folder: &str) -> Vec<Source> {
    let mut files = Vec::new();
    rust_files(&root().join(folder), &mut files);
    let source = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("readable file");
        let path = path.strip_prefix(root()).expect("in the project").display().to_string();
        let module = path.split('/').nth(1).unwrap_or_default().trim_end_matches(".rs").to_owned();
        Source { path, module, text }
    };
    let sources: Vec<Source> = files.into_iter().map(source).collect();
    assert!(!sources.is_empty(), "no source in {folder}");
    sources
}

/// The modules of ours that a line of code names: `crate::NAME` and `crate::{NAME, …}`.
fn named_modules(line: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let mut names = Vec::new();
    for rest in line.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => names.extend(list.split(',').map(|item| word(item.trim_start()))),
            None => names.push(word(rest)),
        }
    }
    names
}

/// Where `line` of `module` names a module that it must not.
fn forbidden(module: &str, line: &str) -> Option<String> {
    if TOP.contains(&module) {
        return None;
    }
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == module) else {
        return Some(format!("module {module} is not on the map in tests/layering.rs"));
    };
    let strangers = named_modules(line).into_iter().find(|name| {
        let known = MAY_IMPORT.iter().any(|(module, _)| module == name);
        let on_top = TOP.contains(&name.as_str());
        (known || on_top) && name != module && !allowed.contains(&name.as_str())
    });
    strangers.map(|name| format!("{module} must not import {name}"))
}

#[test]
fn imports_point_one_way() {
    let mut faults = Vec::new();
    for source in sources("src") {
        for (number, line) in source.code() {
            if let Some(fault) = forbidden(&source.module, line) {
                faults.push(format!("{}:{number}: {fault}: {line}", source.path));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn the_map_has_no_circle() {
    let mut below: Vec<&str> = Vec::new();
    for (module, imports) in MAY_IMPORT {
        for import in *imports {
            assert!(below.contains(import), "{module} imports {import}, which is not below it");
        }
        below.push(module);
    }
}

#[test]
fn the_test_sees_what_breaks_the_rules() {
    assert!(forbidden("batch", "use crate::platform::Platform;").is_some());
    assert!(forbidden("protocol", "use crate::{error::Error, repository::State};").is_some());
    assert!(forbidden("tensor", "    let x = crate::codec::base64::decode(y);").is_some());
    assert!(forbidden("engine", "use crate::cli::serve;").is_some());
    assert!(forbidden("unheard_of", "use std::fmt;").is_some());
    assert!(forbidden("engine", "use crate::{error::Error, repository::State};").is_none());
}

#[test]
fn unsafe_code_lives_in_ffi_files() {
    for source in sources("src") {
        let keyword = ["unsafe ", "unsafe_code"];
        let Some((number, _)) =
            source.code().find(|(_, line)| keyword.iter().any(|word| line.contains(word)))
        else {
            continue;
        };
        let path = &source.path;
        assert!(FFI.contains(&path.as_str()), "{path}:{number}: unsafe code outside FFI files");
    }
}

#[test]
fn the_environment_is_read_in_config_only() {
    for source in sources("src").iter().filter(|source| source.module != "config") {
        for (number, line) in source.code() {
            let reads = ["env::var", "env::vars", "var_os("].iter().any(|call| line.contains(call));
            assert!(!reads, "{}:{number}: reads the environment", source.path);
        }
    }
}

#[test]
fn long_files_say_why() {
    let all = ["src", "tests", "benches"].iter().flat_map(|folder| sources(folder));
    for source in all {
        let lines = source.text.lines().count();
        let header = source.text.lines().take_while(|line| line.starts_with("//!"));
        let says_why = header.into_iter().any(|line| line.contains("long for"));
        assert!(
            lines <= LONGEST_FILE || says_why,
            "{} has {lines} lines and no reason for that (\"long for …\") in its header",
            source.path
        );
    }
}
