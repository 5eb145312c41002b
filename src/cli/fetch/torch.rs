//! The connection to libtorch, which is compiled against its headers.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::print_line;
use super::report::say;
use tensorserve_tensor::error::Result;

/// Compiles the connection in a tree that the wheels were unpacked into. Returns the names of the files that it
/// has made there.
///
/// # Errors
/// If there is no compiler, or it fails.
pub(super) fn compile(tree: &Path, compiler: Option<&str>) -> Result<Vec<String>> {
    let made = compiled(&tree.join("torch"), compiler)?;
    let names = made.iter().filter_map(|path| path.strip_prefix(tree).ok());
    Ok(names.map(|name| name.display().to_string()).collect())
}

/// Compiles the connection in the Python package `torch` that `package` is or contains.
///
/// # Errors
/// If there is no such package or compiler, or it fails.
pub(super) fn use_package(package: &Path, compiler: Option<&str>) -> Result<ExitCode> {
    let inner = package.join("torch");
    let package = if inner.join("lib").is_dir() { &inner } else { package };
    compiled(package, compiler)?;
    let library = package.join("lib/libtorch_cpu.so");
    print_line(&format!("libtorch in {} can be used", library.display()));
    say(&format!(
        "where it is not found by itself, name it: TENSORSERVE_LIBTORCH={}",
        library.display()
    ));
    Ok(ExitCode::SUCCESS)
}

#[cfg(feature = "pytorch")]
fn compiled(package: &Path, compiler: Option<&str>) -> Result<Vec<PathBuf>> {
    say("Compiling the connection to libtorch: about half a minute.");
    tensorserve_torch::shim::compile(package, compiler)
}

#[cfg(not(feature = "pytorch"))]
fn compiled(_package: &Path, _compiler: Option<&str>) -> Result<Vec<PathBuf>> {
    use tensorserve_tensor::error::{Code, Error};
    Err(Error::new(Code::Unimplemented, "this build of tensorserve has no PyTorch"))
}
