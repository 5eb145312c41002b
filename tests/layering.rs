//! Rules that Cargo does not enforce: which crate may depend on which, no cycles of modules in a
//! crate, no type name in two crates, and a few conventions without a lint. The tests read the
//! source files as text. The map of the crates is in `docs/architecture.md`.
#![allow(missing_docs, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every crate, lowest first, and the workspace crates that it may depend on. Cargo refuses an
/// import without a dependency; this list restricts the dependencies.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("os", &[]),
    ("trace", &[]),
    ("archive", &["os", "tensor"]),
    ("proto", &["tensor"]),
    ("codec", &["tensor"]),
    ("records", &["codec", "tensor"]),
    ("preprocessing", &["codec", "os", "tensor"]),
    ("auth", &["os", "tensor"]),
    ("workers", &["os", "tensor"]),
    ("store", &["archive", "tensor"]),
    ("fetch", &["codec", "tensor"]),
    ("rows", &["tensor"]),
    ("platform", &["os", "tensor"]),
    ("probe", &["os", "platform", "tensor"]),
    ("savedmodel", &["platform", "proto", "tensor"]),
    ("tensorflow", &["os", "platform", "preprocessing", "proto", "rows", "savedmodel", "tensor"]),
    ("onnx", &["platform", "rows", "tensor"]),
    ("litert", &["codec", "platform", "rows", "tensor"]),
    ("openvino", &["codec", "platform", "proto", "savedmodel", "tensor"]),
    ("engines", &["openvino", "platform", "tensor"]),
    ("testing", &[]),
    ("pickle", &["codec", "tensor", "testing"]),
    ("tabular", &["os", "pickle", "platform", "tensor", "testing"]),
    ("boosters", &["codec", "pickle", "platform", "tabular", "tensor", "testing"]),
    ("sklearn", &["boosters", "codec", "pickle", "platform", "tabular", "tensor", "testing"]),
    ("pmml", &["codec", "platform", "tabular", "tensor", "testing"]),
    ("spark", &["codec", "platform", "records", "tabular", "tensor", "testing"]),
    ("h2o", &["boosters", "codec", "platform", "tabular", "tensor", "testing"]),
    ("torch", &["codec", "platform", "preprocessing", "tensor"]),
    ("mlflow", &["platform", "tensor"]),
    ("python", &["platform", "preprocessing", "tensor", "workers"]),
    ("core", &["codec", "os", "platform", "preprocessing", "tensor", "trace", "workers"]),
    ("protocol", &["auth", "core", "tensor"]),
    (
        "protocols",
        &[
            "archive", "auth", "codec", "core", "mlflow", "os", "proto", "protocol", "tensor",
            "trace",
        ],
    ),
    ("http2", &[]),
    ("server", &["auth", "core", "http2", "os", "protocol", "tensor", "trace"]),
    ("telemetry", &["tensor", "trace"]),
    ("report", &[]),
    ("transform", &["codec", "records", "report", "store", "tensor"]),
    ("loadgen", &["http2", "os", "report", "tensor"]),
];

/// Crates that bind C libraries. Every other crate forbids unsafe code.
const UNSAFE_CRATES: &[&str] = &["litert", "openvino", "os", "onnx", "tensorflow", "torch"];

/// Their files with `unsafe` code.
const FFI: &[&str] = &[
    "crates/litert/src/ffi.rs",
    "crates/onnx/src/ffi.rs",
    "crates/openvino/src/ffi.rs",
    "crates/os/src/ffi.rs",
    "crates/os/src/fork.rs",
    "crates/os/src/reads.rs",
    "crates/os/src/stderr.rs",
    "crates/tensorflow/src/ffi.rs",
    "crates/torch/src/executorch/ffi.rs",
    "crates/torch/src/ffi.rs",
];

/// Words of the glossary that stand for one thing, and the crate of that thing: no other crate has the word in the
/// name of a type or a module.
const ONE_THING: &[(&str, &str)] = &[
    ("lane", "core"),
    ("board", "core"),
    ("journal", "core"),
    ("former", "core"),
    ("chain", "sklearn"),
];

/// The maximum number of lines of a file whose header gives no reason for more.
const LONGEST_FILE: usize = 600;

struct Source {
    /// Relative to the root of the project.
    path: String,
    text: String,
}

impl Source {
    /// Lines without comment lines, with their numbers.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        lines.filter(|(_, line)| !line.starts_with("//"))
    }

    /// The name of its crate; empty for the root package.
    fn member(&self) -> &str {
        let inside = self.path.strip_prefix("crates/");
        inside.and_then(|rest| rest.split('/').next()).unwrap_or_default()
    }

    /// The names of its module and of those around it, from the root of the crate inwards.
    fn module(&self) -> Vec<String> {
        let inside = self.path.split_once("src/").map_or("", |(_, inside)| inside);
        let inside = inside.trim_end_matches(".rs").trim_end_matches("/mod");
        inside
            .split('/')
            .filter(|name| !matches!(*name, "lib" | "main"))
            .map(str::to_owned)
            .collect()
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).expect("readable directory");
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
        let path = path.strip_prefix(root()).expect("a path in the project").display().to_string();
        Source { path, text }
    };
    let sources: Vec<Source> = files.into_iter().map(source).collect();
    assert!(!sources.is_empty(), "no source files in {folders:?}");
    sources
}

/// The program's code: the crates and the root package, without build scripts.
fn program() -> Vec<Source> {
    let mut all = sources(&["crates", "src"]);
    all.retain(|source| !source.path.ends_with("/build.rs"));
    all
}

/// The workspace crates that a manifest names as dependencies, including dev-dependencies.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let names = manifest.lines().filter_map(|line| line.strip_prefix("tensorserve-"));
    names.map(|rest| rest.chars().take_while(char::is_ascii_alphanumeric).collect()).collect()
}

#[test]
fn crates_depend_one_way() {
    let folder = fs::read_dir(root().join("crates")).expect("readable directory");
    let mut members: BTreeSet<String> = folder
        .map(|entry| entry.expect("entry").file_name().into_string().expect("a name"))
        .collect();
    let mut below: BTreeSet<&str> = BTreeSet::new();
    for (member, allowed) in MAY_DEPEND_ON {
        assert!(members.remove(*member), "crates/{member} does not exist");
        let manifest = root().join("crates").join(member).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).expect("a manifest");
        for dependency in dependencies(&manifest) {
            let dependency = dependency.as_str();
            assert!(allowed.contains(&dependency), "{member} must not depend on {dependency}");
            assert!(below.contains(dependency), "{dependency} is not listed before {member}");
        }
        below.insert(member);
    }
    assert!(members.is_empty(), "not in MAY_DEPEND_ON of tests/layering.rs: {members:?}");
}

/// Whether a line is an attribute that compiles what follows for tests only.
fn is_for_tests(line: &str) -> bool {
    line.trim() == "#[cfg(test)]" || line.trim().starts_with("#[cfg(all(test,")
}

/// The code of a source file without comments and inline modules of unit tests.
fn tested_code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !is_for_tests(line) {
            if !line.trim_start().starts_with("//") {
                code.push_str(line);
                code.push('\n');
            }
            continue;
        }
        while lines.next_if(|next| next.trim_start().starts_with("#[")).is_some() {}
        if lines.next_if(|next| next.starts_with("mod ") && next.ends_with('{')).is_some() {
            // rustfmt puts the module's closing brace at the start of a line.
            lines.by_ref().take_while(|inside| *inside != "}").for_each(drop);
        }
    }
    code
}

fn leading_word(text: &str) -> String {
    text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

/// The paths that begin at the start of `text`, such as `a::b` or `a::{b, c::d}`, below `around`.
/// Returns the rest of the text.
fn read_paths<'t>(text: &'t str, around: &[String], paths: &mut Vec<Vec<String>>) -> &'t str {
    let mut path = around.to_vec();
    let mut rest = text.trim_start();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list.trim_start();
        while !rest.is_empty() && !rest.starts_with('}') {
            let after = read_paths(rest, around, paths).trim_start();
            let after = after.strip_prefix(',').unwrap_or(after).trim_start();
            if after.len() == rest.len() {
                break; // Not a list of imports.
            }
            rest = after;
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let word = leading_word(rest);
    rest = rest.get(word.len()..).unwrap_or_default();
    if word != "self" {
        path.push(word);
    }
    match rest.strip_prefix("::") {
        Some(inner) if inner.starts_with(|c: char| c.is_ascii_alphabetic() || c == '{') => {
            read_paths(inner, &path, paths)
        }
        _ => {
            paths.push(path);
            rest
        }
    }
}

/// The paths of its own crate that the code of `module` names with `crate::`, `super::` or
/// `self::`.
fn named_paths(code: &str, module: &[String]) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            let before = code.get(..at).and_then(|text| text.chars().next_back());
            if before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let mut rest = code.get(at..).unwrap_or_default();
            let mut around = module.to_vec();
            if let Some(after) = rest.strip_prefix("crate::") {
                (rest, around) = (after, Vec::new());
            }
            while let Some(after) = rest.strip_prefix("super::") {
                rest = after;
                around.pop();
            }
            rest = rest.strip_prefix("self::").unwrap_or(rest);
            read_paths(rest, &around, &mut paths);
        }
    }
    paths
}

/// Which module uses which, among the children of one module.
type Siblings = BTreeMap<String, BTreeSet<String>>;

/// Adds the use of `named` by `module` to the children of the innermost module around both.
fn add_use(levels: &mut BTreeMap<Vec<String>, Siblings>, module: &[String], named: &[String]) {
    let common = module.iter().zip(named).take_while(|(a, b)| a == b).count();
    if let (Some(user), Some(used)) = (module.get(common), named.get(common)) {
        let around = module.get(..common).unwrap_or_default().to_vec();
        let siblings = levels.entry(around).or_default();
        siblings.entry(user.clone()).or_default().insert(used.clone());
    }
}

/// Recursive structures: the parts of the first module's structure are again of any kind that the
/// second module reads.
const RECURSIVE: &[(&str, &str, &str)] = &[
    ("pmml", "mining", "model"),                  // Segments are models.
    ("pmml", "anomaly", "model"),                 // It is about a model.
    ("sklearn", "ensemble", "compile"),           // Members are estimators.
    ("sklearn", "column_transformer", "compile"), // Its parts are transformers.
    ("sklearn", "calibrated", "compile"),         // Members of these are estimators.
    ("sklearn", "gaussian_process", "compile"),
    ("sklearn", "iterative_imputer", "compile"),
    ("sklearn", "multi", "compile"),
    ("sklearn", "one_against", "compile"),
    ("sklearn", "stacking", "compile"),
    ("sklearn", "wrapper", "compile"),
    ("h2o", "ensemble", "model"), // Its members are models.
];

fn is_recursive(member: &str, module: &[String], named: &[String]) -> bool {
    let (module, named) = (module.join("::"), named.join("::"));
    let is_meant = |(of, user, used): &(&str, &str, &str)| {
        *of == member && *user == module && named.starts_with(used)
    };
    RECURSIVE.iter().any(is_meant)
}

/// A module and its children may use each other. Siblings may not.
#[test]
fn modules_form_no_circle() {
    let mut crates: BTreeMap<String, BTreeMap<Vec<String>, Siblings>> = BTreeMap::new();
    let all = program();
    for source in all.iter().filter(|source| !source.path.ends_with("/tests.rs")) {
        let levels = crates.entry(source.member().to_owned()).or_default();
        let module = source.module();
        for named in named_paths(&tested_code(&source.text), &module) {
            if !is_recursive(source.member(), &module, &named) {
                add_use(levels, &module, &named);
            }
        }
    }
    let mut circles = BTreeSet::new();
    for (member, levels) in &crates {
        for (around, siblings) in levels {
            for start in siblings.keys() {
                let mut path = vec![start.clone()];
                if reaches(siblings, start, start, &mut path, &mut BTreeSet::new()) {
                    let around = around.join("::");
                    circles.insert(format!("{member} {around}: {}", path.join(" -> ")));
                }
            }
        }
    }
    assert!(circles.is_empty(), "modules that depend on each other in a circle: {circles:#?}");
}

/// Whether a path of at least one step leads from `from` to `to`; if so, `path` contains it.
fn reaches(
    modules: &Siblings,
    from: &str,
    to: &str,
    path: &mut Vec<String>,
    seen: &mut BTreeSet<String>,
) -> bool {
    for next in modules.get(from).into_iter().flatten() {
        if next == from || !modules.contains_key(next) {
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

/// The modules in files of their own that a source declares for tests only.
fn test_modules(source: &Source) -> Vec<Vec<String>> {
    let mut modules = Vec::new();
    let mut lines = source.text.lines();
    while lines.by_ref().any(is_for_tests) {
        let declared = lines.by_ref().find(|line| !line.starts_with("#["));
        let declared = declared.and_then(|line| line.strip_suffix(';')?.rsplit_once("mod "));
        if let Some((_, name)) = declared {
            modules.push([source.module(), vec![name.to_owned()]].concat());
        }
    }
    modules
}

/// The sources without those of modules for tests only.
fn without_tests(all: &[Source]) -> impl Iterator<Item = &Source> {
    let mut for_tests: BTreeSet<(&str, Vec<String>)> = BTreeSet::new();
    for source in all {
        for_tests.extend(test_modules(source).into_iter().map(|module| (source.member(), module)));
    }
    all.iter().filter(move |source| {
        let module = source.module();
        let mut around = (1..=module.len()).filter_map(|depth| module.get(..depth));
        !around.any(|module| for_tests.contains(&(source.member(), module.to_vec())))
    })
}

/// The names of the structs, enums, unions, traits and free type aliases that code defines.
fn defined_types(code: &str) -> impl Iterator<Item = String> {
    code.lines().filter_map(|line| {
        let mut item = line.trim_start();
        if let Some(rest) = item.strip_prefix("pub") {
            let restricted = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
            item = restricted.map_or(rest, |(_, rest)| rest).trim_start();
        }
        let (keyword, rest) = item.strip_prefix("unsafe ").unwrap_or(item).split_once(' ')?;
        let defines = match keyword {
            "struct" | "enum" | "union" | "trait" => true,
            // One inside a trait or an implementation is an associated type.
            "type" => !line.starts_with(' '),
            _ => false,
        };
        let name = leading_word(rest);
        (defines && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
    })
}

/// The type names that several crates define, with these crates.
fn shared_names(all: &[Source]) -> BTreeMap<String, BTreeSet<&str>> {
    let mut names: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for source in without_tests(all) {
        for name in defined_types(&tested_code(&source.text)) {
            names.entry(name).or_default().insert(source.member());
        }
    }
    names.retain(|_, crates| crates.len() > 1);
    names
}

/// Whoever reads or searches for a name then knows which thing is meant. The standard term of a field stays with the
/// crate of that field; another crate says what its type is, or puts its subject before the noun.
#[test]
fn a_type_name_stands_in_one_crate() {
    let all = program();
    let shared = shared_names(&all);
    assert!(shared.is_empty(), "type names of several crates: {shared:#?}");
}

/// The words of a name such as `BatchLanes` or `batch_lanes`: in lower case, without the `s` of a plural.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c.is_ascii_uppercase() || c == '_' {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c != '_') {
            word.push(c.to_ascii_lowercase());
        }
    }
    words.iter().map(|word| word.trim_end_matches('s').to_owned()).collect()
}

#[test]
fn a_word_of_the_glossary_means_one_thing() {
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).expect("the glossary");
    let terms: Vec<&str> = glossary.split("**").skip(1).step_by(2).collect();
    for (word, _) in ONE_THING {
        let is_term = terms.iter().any(|term| term.split(' ').any(|its| its == *word));
        assert!(is_term, "the glossary does not explain {word}");
    }
    let all = program();
    for source in without_tests(&all) {
        let modules = source.module().into_iter();
        for name in modules.chain(defined_types(&tested_code(&source.text))) {
            let words = words_of(&name);
            for (word, home) in ONE_THING.iter().filter(|(_, home)| *home != source.member()) {
                let has_word = words.iter().any(|its| its == word);
                assert!(!has_word, "{}: {name}: a {word} is something of {home}", source.path);
            }
        }
    }
}

#[test]
fn the_test_sees_what_breaks_the_rules() {
    let paths = |code: &str, module: &str| -> Vec<String> {
        let module: Vec<String> = module.split("::").map(str::to_owned).collect();
        named_paths(code, &module).iter().map(|path| path.join("::")).collect()
    };
    let list = "use crate::{\n    batch::{BatchQueue, lane::Lane},\n    metrics,\n};";
    assert_eq!(paths(list, "a"), ["batch::BatchQueue", "batch::lane::Lane", "metrics"]);
    let path = "let x = crate::engine::f(tensorserve_crate::y);";
    assert_eq!(paths(path, "a"), ["engine::f"]);
    assert_eq!(paths("use super::file::{self, Step};", "a::b"), ["a::file", "a::file::Step"]);
    assert_eq!(paths("use super::file; use super::super::batch;", "a::b"), ["a::file", "batch"]);
    assert_eq!(paths("use self::c::D;", "a::b"), ["a::b::c::D"]);
    let tests = "use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\nuse crate::c;\n";
    assert_eq!(paths(&tested_code(tests), "x"), ["a", "c"]);
    let mut levels = BTreeMap::new();
    let words = |path: &str| -> Vec<String> { path.split("::").map(str::to_owned).collect() };
    add_use(&mut levels, &words("tfs::rest"), &words("tfs::binary::decode"));
    add_use(&mut levels, &words("tfs::rest"), &words("tfs::rest::x"));
    assert_eq!(levels.len(), 1, "{levels:?}");
    assert!(levels[&words("tfs")]["rest"].contains("binary"));
    let circle = |pairs: &[(&str, &[&str])]| {
        let modules = pairs.iter().map(|(name, named)| {
            ((*name).to_owned(), named.iter().map(|name| (*name).to_owned()).collect())
        });
        let modules: Siblings = modules.collect();
        reaches(&modules, "a", "a", &mut Vec::new(), &mut BTreeSet::new())
    };
    assert!(circle(&[("a", &["b"]), ("b", &["c"]), ("c", &["a"])]));
    assert!(!circle(&[("a", &["a", "b"]), ("b", &["c", "x"]), ("c", &[])]));
    let manifest = "tensorserve-core.workspace = true\ntensorserve-tabular = { optional = true }";
    assert_eq!(dependencies(manifest), ["core", "tabular"].map(str::to_owned).into());
}

#[test]
fn the_test_sees_a_name_of_two_crates() {
    let shared = |others: &[(&str, &str)]| -> Vec<String> {
        let first = [("crates/a/src/lib.rs", "pub struct Place<'a> {\n    path: &'a Path,\n}\n")];
        let sources = first
            .iter()
            .chain(others)
            .map(|(path, text)| Source { path: (*path).to_owned(), text: (*text).to_owned() });
        shared_names(&sources.collect::<Vec<_>>()).into_keys().collect()
    };
    let definitions = [
        "struct Place;",
        "pub(in super::super) enum Place {",
        "pub(crate) union Place {",
        "unsafe trait Place: Send {",
        "type Place = u8;",
        "macro_rules! m {\n    () => {\n        struct Place;\n    };\n}",
        "fn f() {\n    struct Place(Tensor);\n}",
        "#[cfg(test)]\nmod tests {\n    use super::*;\n}\nstruct Place;",
    ];
    for definition in definitions {
        assert_eq!(shared(&[("crates/b/src/x.rs", definition)]), ["Place"], "{definition}");
        assert_eq!(shared(&[("src/cli/x.rs", definition)]), ["Place"], "{definition}");
        assert!(shared(&[("crates/a/src/x.rs", definition)]).is_empty(), "{definition}");
    }
    let others = [
        "struct Places;",
        "/// The enum Place is elsewhere.\n// struct Place;",
        "pub use tensorserve_a::Place;",
        "impl Iterator for Files {\n    type Place = u8;\n}",
        "#[cfg(test)]\nmod tests {\n    struct Place;\n}",
        "#[cfg(all(test, feature = \"x\"))]\n#[allow(dead_code)]\nmod tests {\n    enum Place {}\n}",
    ];
    for other in others {
        assert!(shared(&[("crates/b/src/x.rs", other)]).is_empty(), "{other}");
    }
    let helper = ("crates/b/src/x/helper.rs", "struct Place;");
    let of_tests =
        ("crates/b/src/x/mod.rs", "#[cfg(test)]\n#[rustfmt::skip]\nmod helper;\nmod other;");
    assert!(shared(&[of_tests, helper]).is_empty());
    assert_eq!(shared(&[of_tests, ("crates/b/src/x/other.rs", "struct Place;")]), ["Place"]);
    assert_eq!(shared(&[("crates/b/src/x.rs", "mod helper;"), helper]), ["Place"]);
    assert_eq!(words_of("BatchLanes"), ["", "batch", "lane"]);
    assert_eq!(words_of("h2o_plane"), ["h2o", "plane"]);
}

#[test]
fn unsafe_code_lives_in_ffi_files() {
    for source in program() {
        let path = source.path.as_str();
        let allows = source.code().any(|(_, line)| line.contains("allow(unsafe_code)"));
        assert_eq!(allows, FFI.contains(&path), "{path}: only files in FFI may allow unsafe code");
        if !path.ends_with("src/lib.rs") {
            continue;
        }
        let rule = match UNSAFE_CRATES.contains(&source.member()) {
            true => "#![deny(unsafe_code)]",
            false => "#![forbid(unsafe_code)]",
        };
        assert!(source.code().any(|(_, line)| line == rule), "{path} must contain {rule}");
    }
}

#[test]
fn the_environment_is_read_in_config_only() {
    // Tests may read the paths of libraries from it.
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
    for source in sources(&["benches", "crates", "fuzz/fuzz_targets", "fuzz/src", "src", "tests"]) {
        let lines = source.text.lines().count();
        let header = source.text.lines().take_while(|line| line.starts_with("//!"));
        let says_why = header.into_iter().any(|line| line.contains("long for"));
        assert!(
            lines <= LONGEST_FILE || says_why,
            "{} has {lines} lines, and its header gives no reason (\"long for …\")",
            source.path
        );
    }
}
