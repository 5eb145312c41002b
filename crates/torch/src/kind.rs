//! What a file of PyTorch is, judging by the names of the files in it, and the refusal of those that hold no
//! program that libtorch runs.

use std::path::Path;

use super::archive::{self, Archive};
use tensorserve_platform::{ModelPath, files};
use tensorserve_tensor::error::{Code, Error, Result};

/// Endings of files that are found in a directory.
pub(crate) const ENDINGS: [&str; 5] = [".pt", ".pth", ".pt2", ".ts", ".torchscript"];

/// Endings of files that other programs write, too: such a file is recognised by its content, and only if its
/// path is given.
const SHARED_ENDINGS: [&str; 3] = [".bin", ".ckpt", ".ptl"];

/// The first bytes of what `torch.save` wrote before version 1.6: a pickled number.
const LEGACY: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

/// Where the packages of AOTInductor are in an archive.
const PACKAGES: &str = "data/aotinductor/";

/// What a file is.
#[derive(Debug)]
pub(crate) enum TorchFile {
    /// A TorchScript module.
    Script(Archive),
    /// A package of AOTInductor, of which the model `name` is called.
    Package { archive: Archive, name: String },
}

/// Whether `place` is or contains a file of PyTorch, served or not.
pub(crate) fn recognises(place: &ModelPath) -> bool {
    if place.is_file() {
        return is_torch(place.path(), &ENDINGS) || is_torch(place.path(), &SHARED_ENDINGS);
    }
    place.files(&ENDINGS).any(|file| is_torch(file, &ENDINGS))
}

/// Whether the file has one of these endings, and begins as PyTorch's do.
fn is_torch(file: &Path, endings: &[&str]) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if !endings.iter().any(|ending| name.ends_with(ending)) {
        return false;
    }
    let head = files::head(file, 64).unwrap_or_default();
    if head.starts_with(archive::MAGIC) {
        let names = |archive: Archive| archive.names().any(is_of_torch);
        // A damaged archive of such a name is recognised, so that its error is seen.
        return match Archive::open(file) {
            Ok(archive) => names(archive),
            Err(_) => endings == ENDINGS,
        };
    }
    is_legacy(&head)
}

fn is_of_torch(name: &str) -> bool {
    name == "data.pkl"
        || name.starts_with(PACKAGES)
        || is_exported(name)
        || name.starts_with("code/")
}

fn is_exported(name: &str) -> bool {
    let is_model = name.starts_with("models/") && name.ends_with(".json");
    is_model || name == "serialized_exported_program.json"
}

fn is_legacy(head: &[u8]) -> bool {
    head.starts_with(&[0x80]) && head.windows(LEGACY.len()).any(|window| window == LEGACY)
}

impl TorchFile {
    /// Reads what the file at `path` is.
    ///
    /// # Errors
    /// If it cannot be read or is damaged; [`Code::Unimplemented`] with the way on, if it is no program
    /// that is served.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let head = files::head(path, 64)
            .map_err(|e| at(path, Error::new(Code::of_io(&e), e.to_string())))?;
        if is_legacy(&head) {
            return Err(weights(path));
        }
        if !head.starts_with(archive::MAGIC) {
            let what = "it is no archive that PyTorch writes";
            return Err(at(path, Error::new(Code::DataLoss, what)));
        }
        let archive = Archive::open(path).map_err(|error| at(path, error))?;
        let has = |name: &str| archive.names().any(|known| known == name);
        if let Some(name) = package(&archive) {
            return Ok(TorchFile::Package { archive, name });
        }
        if archive.names().any(is_exported) {
            return Err(exported(path));
        }
        let has_code = archive.names().any(|name| name.starts_with("code/"));
        if has_code && has("data.pkl") {
            return Ok(TorchFile::Script(archive));
        }
        if has("data.pkl") {
            return Err(weights(path));
        }
        let what = "it is a zip file without a module of PyTorch: it has neither data.pkl nor \
                    data/aotinductor/";
        Err(at(path, Error::new(Code::DataLoss, what)))
    }
}

/// The name of the model in a package of AOTInductor that is called: `model`, or else the only one.
fn package(archive: &Archive) -> Option<String> {
    let libraries = archive.names().filter(|name| name.ends_with(".so"));
    let models = libraries.filter_map(|name| name.strip_prefix(PACKAGES)?.split_once('/'));
    let mut names: Vec<&str> = models.map(|(model, _)| model).collect();
    names.sort_unstable();
    names.dedup();
    match names[..] {
        [] => None,
        [only] => Some(only.to_owned()),
        _ => Some("model".to_owned()),
    }
}

/// The error, with the file that it is about.
pub(crate) fn at(path: &Path, error: Error) -> Error {
    let message = format!("{}: {}", path.display(), error.message());
    Error::new(error.code(), message).with_source(error)
}

/// The refusal of what `torch.save` writes.
fn weights(path: &Path) -> Error {
    let (text, stem) = (path.display(), path.with_extension(""));
    let target = python_text(&format!("{}.torchscript", stem.display()));
    Error::new(
        Code::Unimplemented,
        format!(
            "{text} is what torch.save wrote: the weights, or a pickled object, without the program that \
             uses them. Export the model with these lines, where Model is its class, and serve the file \
             that they write:\n\
             \x20   import torch; saved = torch.load({path}, map_location=\"cpu\")\n\
             \x20   model = Model(); model.load_state_dict(saved)    # a pickled model: weights_only=False above, and model = saved\n\
             \x20   torch.jit.script(model.eval()).save({target})",
            path = python_text(&text.to_string()),
        ),
    )
}

/// The refusal of what `torch.export.save` writes.
fn exported(path: &Path) -> Error {
    let (text, stem) = (path.display(), path.with_extension(""));
    let target = python_text(&format!("{}-aoti.pt2", stem.display()));
    Error::new(
        Code::Unimplemented,
        format!(
            "{text} is a program of torch.export, which only PyTorch in Python runs. Compile it with \
             AOTInductor, on the kind of machine that serves it, and serve the package that these lines \
             write:\n\
             \x20   import torch\n\
             \x20   program = torch.export.load({path})\n\
             \x20   torch._inductor.aoti_compile_and_package(program, package_path={target})",
            path = python_text(&text.to_string()),
        ),
    )
}

/// A text as Python writes it.
fn python_text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests;
