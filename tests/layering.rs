//! What Cargo cannot hold: which crate may ever depend on which, that modules of a crate form no
//! circle, and a few conventions that no lint knows. Reads whole source files, and fails with the
//! file and line of what breaks them. The map is in `docs/architecture.md`.
#![allow(missing_docs, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every crate, from the ground up, and the crates of ours that it may depend on. Cargo refuses an
/// import without a dependency; this refuses the dependency.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("os", &[]),
    ("archive", &["os", "tensor"]),
    ("proto", &["tensor"]),
    ("codec", &["tensor"]),
    ("preprocessing", &["codec", "tensor"]),
    ("auth", &["os", "tensor"]),
    ("workers", &["os", "tensor"]),
    ("platform", &["tensor"]),
    ("tensorflow", &["os", "platform", "proto", "tensor"]),
    ("onnx", &["platform", "tensor"]),
    ("tabular", &["codec", "platform", "tensor"]),
    ("core", &["codec", "os", "platform", "preprocessing", "tensor", "workers"]),
    ("protocol", &["auth", "core", "tensor"]),
    ("protocols", &["archive", "auth", "codec", "core", "proto", "protocol", "tensor"]),
    ("server", &["auth", "core", "protocol", "tensor"]),
];

/// Crates that bind C libraries. Every other crate forbids unsafe code.
const UNSAFE_CRATES: &[&str] = &["os", "onnx", "tensorflow"];

/// Their files with `unsafe` code.
const FFI: &[&str] = &[
    "crates/onnx/src/ffi.rs",
    "crates/os/src/ffi.rs",
    "crates/os/src/reads.rs",
    "crates/tensorflow/src/ffi.rs",
];

/// Lines a file may have without giving the reason for more in its header.
const LONGEST_FILE: usize = 600;

struct Source {
    /// From the root of the project.
    path: String,
    text: String,
}

impl Source {
    /// Lines of code with their numbers: no comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        lines.filter(|(_, line)| !line.starts_with("//"))
    }

    /// The crate that it belongs to; that of the root has no name.
    fn member(&self) -> &str {
        let inside = self.path.strip_prefix("crates/");
        inside.and_then(|rest| rest.split('/').next()).unwrap_or_default()
    }

    /// How many modules it is below the root of its crate.
    fn depth(&self) -> usize {
        let inside = self.path.split_once("src/").map_or("", |(_, inside)| inside);
        inside.trim_end_matches("/mod.rs").split('/').count()
    }

    /// The module at the top of its crate that it belongs to; `lib` for the crate's root.
    fn module(&self) -> String {
        let inside = self.path.split_once("src/").map_or("", |(_, inside)| inside);
        inside.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned()
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

fn sources(folders: &[&str]) -> Vec<Source> {
    let mut files = Vec::new();
    folders.iter().for_each(|folder| rust_files(&root().join(folder), &mut files));
    let source = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("readable file");
        let path = path.strip_prefix(root()).expect("in the project").display().to_string();
        Source { path, text }
    };
    let sources: Vec<Source> = files.into_iter().map(source).collect();
    assert!(!sources.is_empty(), "no source in {folders:?}");
    sources
}

/// The program's own code: that of its crates and of the root.
fn program() -> Vec<Source> {
    let mut all = sources(&["crates", "src"]);
    all.retain(|source| !source.path.ends_with("/build.rs"));
    all
}

/// The crates of ours that a manifest names as dependencies, also those for tests.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let names = manifest.lines().filter_map(|line| line.strip_prefix("tensorserve-"));
    names.map(|rest| rest.chars().take_while(char::is_ascii_alphabetic).collect()).collect()
}

#[test]
fn crates_depend_one_way() {
    let folder = fs::read_dir(root().join("crates")).expect("readable folder");
    let mut members: BTreeSet<String> = folder
        .map(|entry| entry.expect("entry").file_name().into_string().expect("a name"))
        .collect();
    let mut below: BTreeSet<&str> = BTreeSet::new();
    for (member, allowed) in MAY_DEPEND_ON {
        assert!(members.remove(*member), "crates/{member} is not there");
        let manifest = root().join("crates").join(member).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).expect("a manifest");
        for dependency in dependencies(&manifest) {
            let dependency = dependency.as_str();
            assert!(allowed.contains(&dependency), "{member} must not depend on {dependency}");
            assert!(below.contains(dependency), "{dependency} is not below {member}");
        }
        below.insert(member);
    }
    assert!(members.is_empty(), "not on the map in tests/layering.rs: {members:?}");
}

/// The code of a source without comments and without its inline modules of unit tests.
fn tested_code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            if !line.trim_start().starts_with("//") {
                code.push_str(line);
                code.push('\n');
            }
            continue;
        }
        while lines.next_if(|next| next.trim_start().starts_with("#[")).is_some() {}
        if lines.next_if(|next| next.starts_with("mod ") && next.ends_with('{')).is_some() {
            // rustfmt puts the end of the module at the beginning of a line.
            lines.by_ref().take_while(|inside| *inside != "}").for_each(drop);
        }
    }
    code
}

fn leading_word(text: &str) -> String {
    text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

/// The first words of the items of a `{…}` list of imports; `text` begins after its brace.
fn listed_words(text: &str) -> Vec<String> {
    let (mut words, mut depth, mut is_first) = (Vec::new(), 0, true);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_first = true,
            _ if is_first && !c.is_whitespace() => {
                words.push(leading_word(text.get(at..).unwrap_or_default()));
                is_first = false;
            }
            _ => {}
        }
    }
    words
}

/// The modules at the top of its own crate that a source names after `crate::`, or after as many
/// `super::` as there are levels (`depth`) between it and the root of the crate.
fn named_modules(code: &str, depth: usize) -> Vec<String> {
    let mut names = Vec::new();
    for root in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&root) {
            let before = code.get(..at).and_then(|text| text.chars().next_back());
            if before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let rest = code.get(at + root.len()..).unwrap_or_default();
            match rest.strip_prefix('{') {
                Some(list) => names.extend(listed_words(list)),
                None => names.push(leading_word(rest)),
            }
        }
    }
    names
}

#[test]
fn modules_of_a_crate_form_no_circle() {
    // For each crate, its modules and those that each names.
    let mut crates: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    let all = program();
    for source in all.iter().filter(|source| !source.path.ends_with("/tests.rs")) {
        let modules = crates.entry(source.member().to_owned()).or_default();
        let named = modules.entry(source.module()).or_default();
        named.extend(named_modules(&tested_code(&source.text), source.depth()));
    }
    for (member, modules) in &crates {
        for start in modules.keys().filter(|name| *name != "lib") {
            let mut path = vec![start.clone()];
            assert!(
                !reaches(modules, start, start, &mut path, &mut BTreeSet::new()),
                "crate {member:?}: modules in a circle: {}",
                path.join(" -> ")
            );
        }
    }
}

/// Whether a way of at least one step leads from `from` to `to`; `path` is it then.
fn reaches(
    modules: &BTreeMap<String, BTreeSet<String>>,
    from: &str,
    to: &str,
    path: &mut Vec<String>,
    seen: &mut BTreeSet<String>,
) -> bool {
    for next in modules.get(from).into_iter().flatten() {
        if next == from || !modules.contains_key(next) || next == "lib" {
            continue;
        }
        path.push(next.clone());
        if next == to {
            return true;
        }
        if seen.insert(next.clone()) && reaches(modules, next, to, path, seen) {
            return true;
        }
        path.pop();
    }
    false
}

#[test]
fn the_test_sees_what_breaks_the_rules() {
    let list = "use crate::{\n    batch::{BatchQueue, Lane},\n    metrics,\n};";
    assert_eq!(named_modules(list, 1), ["batch", "metrics"]);
    let path = "let x = crate::engine::f(tensorserve_crate::y);";
    assert_eq!(named_modules(path, 1), ["engine"]);
    assert_eq!(named_modules("use super::file::{self, Step};", 1), ["file"]);
    assert_eq!(named_modules("use super::file; use super::super::batch;", 2), ["batch"]);
    let tests = "use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\nuse crate::c;\n";
    assert_eq!(named_modules(&tested_code(tests), 1), ["a", "c"]);
    let circle = |pairs: &[(&str, &[&str])]| {
        let modules = pairs.iter().map(|(name, named)| {
            ((*name).to_owned(), named.iter().map(|name| (*name).to_owned()).collect())
        });
        let modules: BTreeMap<String, BTreeSet<String>> = modules.collect();
        reaches(&modules, "a", "a", &mut Vec::new(), &mut BTreeSet::new())
    };
    assert!(circle(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"])]));
    assert!(!circle(&[("a", &["a", "b"]), ("b", &["c", "x"]), ("c", &[])]));
    let manifest = "tensorserve-core.workspace = true\ntensorserve-tabular = { optional = true }";
    assert_eq!(dependencies(manifest), ["core", "tabular"].map(str::to_owned).into());
}

#[test]
fn unsafe_code_lives_in_ffi_files() {
    for source in program() {
        let path = source.path.as_str();
        let allows = source.code().any(|(_, line)| line.contains("allow(unsafe_code)"));
        assert_eq!(allows, FFI.contains(&path), "{path}: unsafe code lives in FFI files");
        if !path.ends_with("src/lib.rs") {
            continue;
        }
        let rule = match UNSAFE_CRATES.contains(&source.member()) {
            true => "#![deny(unsafe_code)]",
            false => "#![forbid(unsafe_code)]",
        };
        assert!(source.code().any(|(_, line)| line == rule), "{path} must say {rule}");
    }
}

#[test]
fn the_environment_is_read_in_config_only() {
    // Tests may be told where libraries are.
    let outside = |source: &Source| {
        !source.path.starts_with("src/config/") && !source.path.ends_with("/tests.rs")
    };
    for source in program().iter().filter(|source| outside(source)) {
        for (number, line) in source.code() {
            let reads = ["env::var", "env::vars", "var_os("].iter().any(|call| line.contains(call));
            assert!(!reads, "{}:{number}: reads the environment", source.path);
        }
    }
}

#[test]
fn long_files_say_why() {
    for source in sources(&["benches", "crates", "src", "tests"]) {
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
