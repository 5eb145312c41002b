//! The C++ code through which a library of PyTorch is called, and its compilation.
//!
//! libtorch and libexecutorch have C++ interfaces only, which change with their versions: the code is compiled
//! on the machine where it runs, against the headers of that library, by `tensorserve fetch`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tensorserve_tensor::error::{Code, Error, Result};

/// The connection to one library.
pub struct LibraryConnection {
    /// The name of the library in messages.
    pub title: &'static str,
    /// The name of the library for `tensorserve fetch`, which is that of its Python package, too.
    pub runtime: &'static str,
    /// The name of the compiled file, beside the library.
    pub(crate) file: &'static str,
    source: &'static str,
    /// The library in the folder `lib` of the package, which others may be linked with.
    library: &'static str,
    linked: &'static [&'static str],
    /// A header that shows that the package has headers, and the folders to search for them.
    header: &'static str,
    includes: &'static [&'static str],
    flags: &'static [&'static str],
    /// A library without content that is made where the package has none of this name, for what is linked with it.
    empty: Option<&'static str>,
}

/// The connection to libtorch.
pub const TORCH: LibraryConnection = LibraryConnection {
    title: "libtorch",
    runtime: "torch",
    file: "libtensorserve_torch.so",
    source: include_str!("shim.cpp"),
    library: "libtorch_cpu.so",
    linked: &["libc10.so"],
    header: "include/torch/script.h",
    includes: &["include", "include/torch/csrc/api/include"],
    flags: &[],
    // The machine code of packages is linked with it. That of a CUDA build needs all of CUDA; the fetched
    // libraries have none.
    empty: Some("libtorch.so"),
};

/// The connection to libexecutorch, and to its kernels, which register themselves when they are loaded.
pub const EXECUTORCH: LibraryConnection = LibraryConnection {
    title: "libexecutorch",
    runtime: "executorch",
    file: "libtensorserve_executorch.so",
    source: include_str!("executorch/shim.cpp"),
    library: "libexecutorch.so",
    linked: &[
        "libexecutorch_threadpool.so",
        "libexecutorch_kernels_optimized.so",
        "libexecutorch_kernels_quantized.so",
        "libexecutorch_backend_xnnpack.so",
    ],
    header: "include/executorch/runtime/executor/program.h",
    includes: &["include", "include/executorch/runtime/core/portable_type/c10"],
    // Its copies of PyTorch's headers are used without PyTorch's build.
    flags: &["-DC10_USING_CUSTOM_GENERATED_MACROS"],
    empty: None,
};

/// The compilers that are tried, after the one that the user names.
const COMPILERS: [&str; 3] = ["c++", "g++", "clang++"];

/// Why a library was not opened.
#[derive(Debug)]
pub(crate) enum TorchOpenError {
    /// The dynamic loader failed.
    Loader(libloading::Error),
    /// The library cannot be used, with the reason and the way on.
    Unsupported(String),
}

impl std::fmt::Display for TorchOpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TorchOpenError::Loader(error) => f.write_str(&reason(error)),
            TorchOpenError::Unsupported(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for TorchOpenError {}

/// What the dynamic loader says.
pub(crate) fn reason(error: &libloading::Error) -> String {
    let inner = std::error::Error::source(error);
    inner.map_or_else(|| error.to_string(), ToString::to_string)
}

/// The error code for a `Code` of a shim.
pub(crate) fn code_of(code: i32) -> Code {
    match code {
        1 => Code::InvalidArgument,
        2 => Code::ResourceExhausted,
        3 => Code::DataLoss,
        4 => Code::Unimplemented,
        6 => Code::DeadlineExceeded,
        _ => Code::Internal,
    }
}

impl LibraryConnection {
    /// The shim of the library at `path`.
    ///
    /// # Errors
    /// If there is none beside it.
    pub(crate) fn shim_of(&self, path: &Path) -> Result<PathBuf, TorchOpenError> {
        let shim = path.parent().unwrap_or(Path::new("")).join(self.file);
        if path.is_absolute() && !shim.is_file() {
            let why =
                format!("the shim through which it is called, {}, is not beside it", self.file);
            return Err(self.unsupported(&why, path));
        }
        Ok(shim)
    }

    /// The error that the shim of the library at `path` cannot be used, with the command that mends it.
    pub(crate) fn unsupported(&self, why: &str, path: &Path) -> TorchOpenError {
        TorchOpenError::Unsupported(self.with_remedy(why, path.parent().unwrap_or(Path::new(""))))
    }

    /// What is wrong with the shim where it is one of another interface.
    pub(crate) fn of_another_tensorserve(&self) -> String {
        format!("{} is of another version of tensorserve", self.file)
    }

    /// What is wrong with the shim of the libraries in `folder`, with the command that mends it.
    fn with_remedy(&self, why: &str, folder: &Path) -> String {
        let fetch = format!("{why}: run `tensorserve fetch {}", self.runtime);
        let package = folder.parent().filter(|package| package.join(self.header).is_file());
        match package {
            Some(package) => format!("{fetch} --from {}`", package.display()),
            None => format!("{fetch}`"),
        }
    }

    /// The library in the Python package, or the tree of one, at `package`.
    #[must_use]
    pub fn library_of(&self, package: &Path) -> PathBuf {
        package.join("lib").join(self.library)
    }

    /// Compiles the shim against the Python package, or the tree of one, at `package`, whose headers are in
    /// `include` and whose libraries are in `lib`. Puts it beside the libraries, and returns the files that it
    /// has made. `compiler` is the user's choice.
    ///
    /// # Errors
    /// If there is no compiler, no such package, or the compilation fails.
    pub fn compile(&self, package: &Path, compiler: Option<&str>) -> Result<Vec<PathBuf>> {
        let library = self.library_of(package);
        for needed in [&package.join(self.header), &library] {
            if !needed.is_file() {
                return Err(Error::not_found(format!(
                    "{} is not the Python package `{}`: {} is missing",
                    package.display(),
                    self.runtime,
                    needed.display()
                )));
            }
        }
        let libraries = package.join("lib");
        let size = fs::metadata(&library).map_or(0, |found| found.len());
        let mut arguments: Vec<String> =
            ["-std=c++20", "-O2", "-w", "-fvisibility=hidden"].map(str::to_owned).to_vec();
        arguments.push(format!("-DLIBRARY_SIZE={size}"));
        arguments.extend(self.flags.iter().map(|flag| (*flag).to_owned()));
        arguments
            .extend(self.includes.iter().map(|it| format!("-I{}", package.join(it).display())));
        let mut linked = vec![library.clone()];
        linked.extend(self.linked.iter().map(|name| libraries.join(name)));
        linked.extend(openmp(&libraries));
        let shim = libraries.join(self.file);
        let build = ShimCompilation { title: self.title, compilers: compilers(compiler) };
        build.run(self.source, &arguments, &linked, &shim)?;
        let mut made = vec![shim];
        let missing = self.empty.map(|name| (name, libraries.join(name)));
        if let Some((name, empty)) = missing.filter(|(_, empty)| !empty.is_file()) {
            build.run("", &[format!("-Wl,-soname,{name}")], &[library], &empty)?;
            made.push(empty);
        }
        Ok(made)
    }
}

fn compilers(named: Option<&str>) -> Vec<&str> {
    match named.filter(|name| !name.trim().is_empty()) {
        Some(named) => vec![named],
        None => COMPILERS.to_vec(),
    }
}

/// The library of OpenMP among these, whose name may have a hash.
fn openmp(libraries: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(libraries).ok()?.flatten().map(|entry| entry.path());
    entries.into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libgomp") && name.contains(".so")
    })
}

/// The compilation of shared libraries.
struct ShimCompilation<'a> {
    /// What the libraries connect to.
    title: &'static str,
    /// Of these, the first one that exists compiles.
    compilers: Vec<&'a str>,
}

impl ShimCompilation<'_> {
    /// Compiles `source` into the shared library `target`, which appears complete or not at all.
    fn run(
        &self,
        source: &str,
        arguments: &[String],
        linked: &[PathBuf],
        target: &Path,
    ) -> Result<()> {
        let title = self.title;
        let part = target.with_extension("part");
        for compiler in &self.compilers {
            let mut words = compiler.split_whitespace();
            let mut command = Command::new(words.next().unwrap_or(compiler));
            command.args(words).args(["-x", "c++", "-", "-shared", "-fPIC", "-o"]).arg(&part);
            command.args(arguments);
            command.args(["-x", "none", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"]).args(linked);
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
                    "{compiler} failed to compile the shim for {title} ({}): {}",
                    output.status,
                    first.unwrap_or("it gave no reason").trim()
                )));
            }
            return fs::rename(&part, target).map_err(|e| {
                failed(&format!("{} cannot be written: {e}", target.display())).with_source(e)
            });
        }
        Err(failed(&format!(
            "no C++ compiler was found; one is needed once, to compile the shim for {title}: on Debian and \
             Ubuntu run `apt-get install g++`, on RHEL and Amazon Linux `dnf install gcc-c++`, or name one \
             in CXX"
        )))
    }
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
        let build = ShimCompilation { title: "x", compilers: vec!["no-such-compiler"] };
        let error = build.run("", &[], &[], Path::new("/nowhere/x.so"));
        let error = error.expect_err("none");
        assert!(error.message().contains("apt-get install g++"), "{error}");
    }

    #[test]
    fn a_folder_without_headers_is_no_package() {
        let package = tempfile::tempdir().expect("a directory");
        let error = TORCH.compile(package.path(), None).expect_err("empty");
        assert!(error.message().contains("is not the Python package `torch`"), "{error}");
    }

    #[test]
    fn a_compiler_that_fails_is_named_and_nothing_is_left() {
        let package = package();
        let error = TORCH.compile(package.path(), Some("false")).expect_err("fails");
        assert!(error.message().starts_with("false failed to compile"), "{error}");
        assert!(!package.path().join("lib").join(TORCH.file).exists());
    }

    #[test]
    fn the_remedy_is_the_command_for_the_place() {
        let package = package();
        let remedy = TORCH.with_remedy("old", &package.path().join("lib"));
        let expected =
            format!("old: run `tensorserve fetch torch --from {}`", package.path().display());
        assert_eq!(remedy, expected);
        assert_eq!(
            TORCH.with_remedy("old", Path::new("/opt/lib")),
            "old: run `tensorserve fetch torch`"
        );
    }
}
