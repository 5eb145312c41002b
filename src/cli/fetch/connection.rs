//! The connections to libtorch and libexecutorch, which are compiled against their headers.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{print_line, print_note};
use tensorserve_tensor::error::{Error, Result};

/// The runtimes that a connection is compiled for.
const CONNECTED: [&str; 2] = ["torch", "executorch"];

/// Compiles the connection of `runtime` in a tree that its wheels were unpacked into, if it needs one. Returns
/// the names of the files that it has made there.
///
/// # Errors
/// If there is no compiler, or it fails.
pub(super) fn compile(runtime: &str, tree: &Path, compiler: Option<&str>) -> Result<Vec<String>> {
    if !CONNECTED.contains(&runtime) {
        return Ok(Vec::new());
    }
    let (_, made) = compiled(runtime, &tree.join(runtime), compiler)?;
    let names = made.iter().filter_map(|path| path.strip_prefix(tree).ok());
    Ok(names.map(|name| name.display().to_string()).collect())
}

/// Compiles the connection of `runtime` in its Python package that `package` is or contains.
///
/// # Errors
/// If there is no such package or compiler, or it fails.
pub(super) fn use_package(
    runtime: &str,
    package: &Path,
    compiler: Option<&str>,
) -> Result<ExitCode> {
    if !CONNECTED.contains(&runtime) {
        return Err(Error::invalid("--from is for torch and executorch only"));
    }
    let inner = package.join(runtime);
    let package = if inner.join("lib").is_dir() { &inner } else { package };
    let (library, _) = compiled(runtime, package, compiler)?;
    let library = library.display();
    print_line(&format!("lib{runtime} in {library} can be used"));
    let variable = format!("TENSORSERVE_LIB{}", runtime.to_uppercase());
    print_note(&format!("where it is not found by itself, name it: {variable}={library}"));
    Ok(ExitCode::SUCCESS)
}

/// Compiles the connection in a package. Returns the library, and the files that it has made.
#[cfg(any(feature = "pytorch", feature = "executorch"))]
fn compiled(
    runtime: &str,
    package: &Path,
    compiler: Option<&str>,
) -> Result<(PathBuf, Vec<PathBuf>)> {
    use tensorserve_torch::connection::{EXECUTORCH, TORCH};
    let connection = if runtime == TORCH.runtime { &TORCH } else { &EXECUTORCH };
    print_note(&format!("Compiling the shim for {}.", connection.title));
    let made = connection.compile(package, compiler)?;
    Ok((connection.library_of(package), made))
}

#[cfg(not(any(feature = "pytorch", feature = "executorch")))]
fn compiled(
    _runtime: &str,
    _package: &Path,
    _compiler: Option<&str>,
) -> Result<(PathBuf, Vec<PathBuf>)> {
    use tensorserve_tensor::error::Code;
    Err(Error::new(Code::Unimplemented, "this build of tensorserve has no PyTorch"))
}
