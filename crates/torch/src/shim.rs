//! The C++ code through which libtorch is called, and its compilation.
//!
//! libtorch has a C++ interface only, which changes with each version: the code is compiled on the machine
//! where it runs, against the headers of that libtorch, by `tensorserve fetch torch`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tensorserve_tensor::error::{Code, Error, Result};

/// The name of the compiled file, beside `libtorch_cpu.so`.
pub const FILE: &str = "libtensorserve_torch.so";

/// The source.
const SOURCE: &str = include_str!("shim.cpp");

/// The compilers that are tried, after the one that the user names.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];

/// What to install where there is no compiler.
const NO_COMPILER: &str = "no C++ compiler was found, which compiles the connection to libtorch once: on Debian \
                           and Ubuntu `apt-get install g++`, on RHEL and Amazon Linux `dnf install gcc-c++`, \
                           or name one in CXX; it is not needed afterwards";

/// What is wrong with the shim of the libraries in `folder`, with the command that mends it.
pub(crate) fn with_remedy(why: &str, folder: &Path) -> String {
    let package = folder.parent().filter(|package| package.join("include/torch").is_dir());
    match package {
        Some(package) => {
            format!("{why}: run `tensorserve fetch torch --from {}`", package.display())
        }
        None => format!("{why}: run `tensorserve fetch torch`"),
    }
}

/// Compiles the shim against the Python package, or the tree of one, at `package`, whose headers are in
/// `include` and whose libraries are in `lib`. Puts it beside the libraries, and returns its path. `compiler` is the
/// user's choice.
///
/// # Errors
/// If there is no compiler, no such package, or the compilation fails.
pub fn compile(package: &Path, compiler: Option<&str>) -> Result<Vec<PathBuf>> {
    let (headers, libraries) = (package.join("include"), package.join("lib"));
    let library = libraries.join("libtorch_cpu.so");
    for needed in [&headers.join("torch/script.h"), &library] {
        if !needed.is_file() {
            return Err(Error::not_found(format!(
                "{} is no Python package `torch`: {} is missing",
                package.display(),
                needed.display()
            )));
        }
    }
    let named = compiler.filter(|name| !name.trim().is_empty());
    let mut candidates: Vec<&str> = named.into_iter().collect();
    if candidates.is_empty() {
        candidates.extend(COMPILERS);
    }
    let shim = libraries.join(FILE);
    let mut arguments: Vec<String> =
        ["-std=c++20", "-O2", "-w", "-fvisibility=hidden"].map(str::to_owned).to_vec();
    for folder in [&headers, &headers.join("torch/csrc/api/include")] {
        arguments.push(format!("-I{}", folder.display()));
    }
    let mut linked = vec![library.clone(), libraries.join("libc10.so")];
    linked.extend(openmp(&libraries));
    build(&candidates, SOURCE, &arguments, &linked, &shim)?;
    let mut made = vec![shim];
    // The machine code of packages is linked with libtorch.so, which holds nothing itself. That of a
    // CUDA build needs all of CUDA; the fetched libraries have none.
    let whole = libraries.join("libtorch.so");
    if !whole.is_file() {
        let arguments = ["-Wl,-soname,libtorch.so".to_owned()];
        build(&candidates, "", &arguments, &[library], &whole)?;
        made.push(whole);
    }
    Ok(made)
}

/// The library of OpenMP among these, whose name may have a hash.
fn openmp(libraries: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(libraries).ok()?.flatten().map(|entry| entry.path());
    entries.into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libgomp") && name.contains(".so")
    })
}

/// Compiles `source` into the shared library `target`, which appears complete or not at all, with the first
/// of the compilers that exists.
fn build(
    compilers: &[&str],
    source: &str,
    arguments: &[String],
    linked: &[PathBuf],
    target: &Path,
) -> Result<()> {
    let part = target.with_extension("part");
    for compiler in compilers {
        let mut words = compiler.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or(compiler));
        command.args(words).args(["-x", "c++", "-", "-shared", "-fPIC", "-o"]).arg(&part);
        command.args(arguments).args(["-x", "none", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"]);
        command.args(linked);
        let output = match output_of(&mut command, source) {
            Ok(output) => output,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(failed(&format!("{compiler} cannot be run: {e}"))),
        };
        if !output.status.success() {
            let _ = fs::remove_file(&part);
            let text = String::from_utf8_lossy(&output.stderr);
            let is_error = |line: &&str| line.contains("error") || line.contains("undefined");
            let first = text.lines().find(is_error).or_else(|| text.lines().next());
            return Err(failed(&format!(
                "{compiler} failed to compile the connection to libtorch ({}): {}",
                output.status,
                first.unwrap_or("it gave no reason").trim()
            )));
        }
        return fs::rename(&part, target).map_err(|e| {
            failed(&format!("{} cannot be written: {e}", target.display())).with_source(e)
        });
    }
    Err(failed(NO_COMPILER))
}

fn output_of(command: &mut Command, source: &str) -> io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A compiler that ends early says why.
        let _ = stdin.write_all(source.as_bytes());
    }
    child.wait_with_output()
}

fn failed(why: &str) -> Error {
    Error::new(Code::FailedPrecondition, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory like a Python package `torch`, without content.
    fn package() -> tempfile::TempDir {
        let package = tempfile::tempdir().expect("a directory");
        for file in ["include/torch/script.h", "lib/libtorch_cpu.so"] {
            let file = package.path().join(file);
            fs::create_dir_all(file.parent().expect("a folder")).expect("directories");
            fs::write(file, "").expect("written");
        }
        package
    }

    #[test]
    fn a_missing_compiler_is_an_error_that_names_the_package() {
        let error = build(&["no-such-compiler"], "", &[], &[], Path::new("/nowhere/x.so"));
        let error = error.expect_err("none");
        assert!(error.message().contains("apt-get install g++"), "{error}");
    }

    #[test]
    fn a_folder_without_headers_is_no_package() {
        let package = tempfile::tempdir().expect("a directory");
        let error = compile(package.path(), None).expect_err("empty");
        assert!(error.message().contains("is no Python package `torch`"), "{error}");
    }

    #[test]
    fn a_compiler_that_fails_is_named_and_nothing_is_left() {
        let package = package();
        let error = compile(package.path(), Some("false")).expect_err("fails");
        assert!(error.message().starts_with("false failed to compile"), "{error}");
        assert!(!package.path().join("lib").join(FILE).exists());
    }

    #[test]
    fn the_remedy_is_the_command_for_the_place() {
        let package = package();
        let remedy = with_remedy("old", &package.path().join("lib"));
        let expected =
            format!("old: run `tensorserve fetch torch --from {}`", package.path().display());
        assert_eq!(remedy, expected);
        assert_eq!(with_remedy("old", Path::new("/opt/lib")), "old: run `tensorserve fetch torch`");
    }
}
