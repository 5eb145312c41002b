//! Zip archives that PyTorch writes. Only their directory and small files are read here: the weights are
//! read by libtorch.

use std::fs::File;
use std::path::Path;

use tensorserve_codec::zip::ZipArchive;
use tensorserve_platform::files;
use tensorserve_tensor::error::{Code, Error, Result};

pub(crate) use tensorserve_codec::zip::MAGIC;

/// An archive, whose directory has been read.
#[derive(Debug)]
pub(crate) struct Archive {
    zip: ZipArchive<File>,
    /// The directory that all files of the archive are in, with a slash at the end.
    root: String,
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Code::DataLoss, format!("the zip file is damaged: {what}"))
}

impl Archive {
    /// Reads the directory of the archive at `path`.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged, or a name in it leads out of a directory.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = files::open(path)
            .map_err(|e| Error::new(Code::of_io(&e), e.to_string()).with_source(e))?;
        let zip = ZipArchive::open(file)?;
        zip.names().try_for_each(check_name)?;
        let first = zip.names().next().ok_or_else(|| damaged("it has no files"))?;
        let root = first.split_once('/').map_or(String::new(), |(root, _)| format!("{root}/"));
        Ok(Archive { zip, root })
    }

    /// The names of all files, without the directory that they are in.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.zip.names().map(|name| name.strip_prefix(&self.root).unwrap_or(name))
    }

    /// The content of the file `name`, of at most `most` bytes. The name is one of [`Archive::names`].
    ///
    /// # Errors
    /// If the archive has no file of that name, or the file is damaged or has more than `most` bytes.
    pub(crate) fn read(&self, name: &str, most: usize) -> Result<Vec<u8>> {
        let whole = format!("{}{name}", self.root);
        let name = if self.zip.contains(&whole) { &whole } else { name };
        Ok(self.zip.read(name, most)?.into())
    }
}

/// Refuses names that lead out of the directory into which an archive is unpacked: libtorch unpacks
/// packages.
fn check_name(name: &str) -> Result<()> {
    let leads_out = name.starts_with('/')
        || name.contains(['\\', '\0'])
        || name.split('/').any(|part| part == "..");
    match leads_out {
        true => Err(damaged(format_args!("the name {name:?} leads out of it"))),
        false => Ok(()),
    }
}
