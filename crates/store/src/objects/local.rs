//! Folders of this machine as places with objects.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::drafts::{self, DraftFile};
use super::{DRAFTS, Listing, MOST_OBJECTS, ObjectInfo, UnusableName, changed, key};
use tensorserve_tensor::error::{Code, Error, Result};

/// From this many files on, all of the file system is flushed once instead of each file.
const FLUSHED_TOGETHER: usize = 4;

/// Linux's number for links that form a cycle, for which the standard library has no stable name.
const ELOOP: i32 = 40;

/// A folder, which need not exist before something is written.
pub(super) struct Folder {
    pub(super) root: PathBuf,
}

impl Folder {
    pub(super) fn open(root: &Path) -> Result<Self> {
        let root = std::path::absolute(root).map_err(|e| failed(root, "it is no path", &e))?;
        let root: PathBuf = root.components().collect();
        if fs::metadata(&root).is_ok_and(|meta| !meta.is_dir()) {
            return Err(Error::invalid(format!("{}: it is not a directory", root.display())));
        }
        Ok(Folder { root })
    }

    fn path(&self, key: &str) -> Result<PathBuf> {
        key::check(key)?;
        Ok(self.root.join(key))
    }

    /// The files whose keys begin with `prefix`, sorted by key.
    pub(super) fn survey(&self, prefix: &str) -> Result<Listing> {
        key::check_prefix(prefix)?;
        let mut found = Listing::default();
        // Directories that are still to be read, with `/` at the end.
        let start = prefix.rfind('/').and_then(|at| prefix.get(..=at)).unwrap_or_default();
        let mut folders = vec![start.to_owned()];
        while let Some(folder) = folders.pop() {
            let path = self.root.join(&folder);
            let entries = match fs::read_dir(&path) {
                // Removed meanwhile, or nothing was written yet.
                Err(e) if is_absent(&e) => continue,
                entries => entries.map_err(|e| failed(&path, "it cannot be listed", &e))?,
            };
            for entry in entries {
                let entry = entry.map_err(|e| failed(&path, "it cannot be listed", &e))?;
                let kind = entry.file_type().map_err(|e| failed(&path, "it cannot be read", &e))?;
                let file_name = entry.file_name();
                let key = format!("{folder}{}", file_name.to_string_lossy());
                let is_text = file_name.to_str().is_some();
                if kind.is_dir() && is_text {
                    let inner = format!("{key}/");
                    if inner.starts_with(prefix) && key != DRAFTS {
                        folders.push(inner);
                    }
                    continue;
                }
                // What does not matter may have any name.
                if !key.starts_with(prefix) {
                    continue;
                }
                if !is_text && (kind.is_dir() || is_file(&entry.path())) {
                    found.unusable.push(unusable(key, &entry.path(), "its name is not UTF-8"));
                    continue;
                }
                if !(kind.is_file() || kind.is_symlink()) {
                    continue;
                }
                let Some(object) = self.head_path(&entry.path(), &key)? else {
                    continue;
                };
                if key::check(&key).is_err() {
                    let why = "its path is longer than the 1024 bytes that a key may have";
                    found.unusable.push(unusable(key, &entry.path(), why));
                    continue;
                }
                if found.objects.len() >= MOST_OBJECTS {
                    return Err(super::too_many(&self.root.display().to_string()));
                }
                found.objects.push(object);
            }
        }
        found.objects.sort_by(|a, b| a.key.cmp(&b.key));
        found.unusable.sort_by(|a, b| a.shown.cmp(&b.shown));
        Ok(found)
    }

    pub(super) fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        self.head_path(&self.path(key)?, key)
    }

    fn head_path(&self, path: &Path, key: &str) -> Result<Option<ObjectInfo>> {
        match fs::metadata(path) {
            Ok(meta) if meta.is_file() => Ok(Some(info(key, &meta))),
            Ok(_) => Ok(None),
            // Also a link to nothing, or one of a cycle.
            Err(e) if is_absent(&e) || e.raw_os_error() == Some(ELOOP) => Ok(None),
            Err(e) => Err(failed(path, "it cannot be read", &e)),
        }
    }

    pub(super) fn read(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        tag: Option<&str>,
    ) -> Result<LocalReader> {
        let path = self.path(key)?;
        // Only what is known to be a file is opened: to open a named pipe can take for ever.
        if self.head(key)?.is_none() {
            return Err(Error::not_found(format!("{}: there is no such file", path.display())));
        }
        let mut file = File::open(&path).map_err(|e| failed(&path, "it cannot be opened", &e))?;
        let meta = file.metadata().map_err(|e| failed(&path, "it cannot be read", &e))?;
        let opened = info(key, &meta);
        if tag.is_some_and(|tag| tag != opened.tag) {
            return Err(changed(&path.display().to_string()));
        }
        let range = super::within(&path.display().to_string(), opened.size, range)?;
        if range.start > 0 {
            let sought = file.seek(SeekFrom::Start(range.start));
            sought.map_err(|e| failed(&path, "it cannot be read", &e))?;
        }
        Ok(LocalReader { path, file, tag: opened.tag, left: range.end - range.start })
    }

    pub(super) fn put(&self, key: &str, bytes: &[u8]) -> Result<ObjectInfo> {
        let path = self.path(key)?;
        let mut draft = self.draft()?;
        let written = draft.file.write_all(bytes);
        written.map_err(|e| failed(&path, "it cannot be written", &e))?;
        self.publish(key, draft)
    }

    pub(super) fn put_new(&self, key: &str, bytes: &[u8]) -> Result<bool> {
        let path = self.path(key)?;
        if path.symlink_metadata().is_ok() {
            return Ok(false);
        }
        let mut draft = self.draft()?;
        let unwritten = |e: io::Error| failed(&path, "it cannot be written", &e);
        draft.file.write_all(bytes).and_then(|()| draft.file.sync_all()).map_err(unwritten)?;
        let folder = path.parent().unwrap_or(&self.root);
        create_folders(folder).map_err(unwritten)?;
        if !draft.link(&path).map_err(unwritten)? {
            return Ok(false);
        }
        sync_folder(folder).map_err(unwritten)?;
        Ok(true)
    }

    pub(super) fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key)?;
        match fs::remove_file(&path) {
            Err(e) if !is_absent(&e) => Err(failed(&path, "it cannot be removed", &e)),
            _ => Ok(()),
        }
    }

    /// An empty file on the file system of this folder.
    pub(super) fn draft(&self) -> Result<DraftFile> {
        let folder = self.root.join(DRAFTS);
        let created = match DraftFile::create(&folder) {
            Err(e) if is_absent(&e) => {
                create_folders(&folder).and_then(|()| DraftFile::create(&folder))
            }
            created => created,
        };
        created.map_err(|e| failed(&folder, "no file can be created in it", &e))
    }

    /// Gives a draft its name when it is on the disk.
    pub(super) fn publish(&self, key: &str, draft: DraftFile) -> Result<ObjectInfo> {
        let path = self.path(key)?;
        let folder = path.parent().unwrap_or(&self.root);
        let publish = || {
            draft.file.sync_all()?;
            create_folders(folder)?;
            let meta = draft.rename(&path)?;
            sync_folder(folder)?;
            Ok(meta)
        };
        let meta = publish().map_err(|e| failed(&path, "it cannot be written", &e))?;
        Ok(info(key, &meta))
    }

    /// Gives drafts their names when all are on the disk. Linux reports what could not be written by
    /// `syncfs` since version 5.8.
    pub(super) fn publish_all(&self, drafts: Vec<(String, DraftFile)>) -> Vec<Result<ObjectInfo>> {
        let first = drafts.first().filter(|_| drafts.len() >= FLUSHED_TOGETHER);
        let is_flushed = first.is_some_and(|(_, draft)| rustix::fs::syncfs(&draft.file).is_ok());
        if !is_flushed {
            return drafts.into_iter().map(|(key, draft)| self.publish(&key, draft)).collect();
        }
        let mut folders = BTreeSet::new();
        let named = |(key, draft): (String, DraftFile)| self.rename(&key, draft, &mut folders);
        let renamed: Vec<Result<ObjectInfo>> = drafts.into_iter().map(named).collect();
        for folder in &folders {
            if let Err(error) = sync_folder(folder) {
                let unwritten = |_| Err(failed(folder, "it cannot be written", &error));
                return renamed.iter().map(unwritten).collect();
            }
        }
        renamed
    }

    /// Renames a draft that is on the disk; `folders` gets its directory, which is to be flushed.
    fn rename(
        &self,
        key: &str,
        draft: DraftFile,
        folders: &mut BTreeSet<PathBuf>,
    ) -> Result<ObjectInfo> {
        let path = self.path(key)?;
        let folder = path.parent().unwrap_or(&self.root);
        let rename = || {
            if !folders.contains(folder) {
                create_folders(folder)?;
                folders.insert(folder.to_path_buf());
            }
            draft.rename(&path)
        };
        let meta = rename().map_err(|e| failed(&path, "it cannot be written", &e))?;
        Ok(info(key, &meta))
    }

    pub(super) fn clean_drafts(&self) -> Result<usize> {
        let folder = self.root.join(DRAFTS);
        drafts::clean(&folder).map_err(|e| failed(&folder, "it cannot be cleaned", &e))
    }
}

/// The content of a file, or a part of it.
pub(super) struct LocalReader {
    path: PathBuf,
    file: File,
    tag: String,
    left: u64,
}

impl Read for LocalReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(buffer.get_mut(..most).unwrap_or_default())?;
        let left = self.left - u64::try_from(read).unwrap_or(self.left);
        // Before the last bytes are passed on, and where the file has become shorter.
        let is_end = left == 0 || read == 0;
        if is_end && (read == 0 || info("", &self.file.metadata()?).tag != self.tag) {
            return Err(io::Error::other(changed(&self.path.display().to_string())));
        }
        self.left = left;
        Ok(read)
    }
}

/// A file as an object: size, time and inode change when it is written or replaced.
fn info(key: &str, meta: &Metadata) -> ObjectInfo {
    let tag = format!("{}-{}.{:09}-{}", meta.size(), meta.mtime(), meta.mtime_nsec(), meta.ino());
    ObjectInfo { key: key.to_owned(), size: meta.size(), tag }
}

/// Creates a directory and those around it, so that they are there after a power failure.
fn create_folders(folder: &Path) -> io::Result<()> {
    let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
    let missing: Vec<&Path> = folder.ancestors().take_while(missing).collect();
    fs::create_dir_all(folder)?;
    for created in missing.iter().rev() {
        sync_folder(created.parent().unwrap_or(Path::new("/")))?;
    }
    Ok(())
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn unusable(name: String, path: &Path, why: &'static str) -> UnusableName {
    UnusableName { name, shown: format!("{path:?}"), why }
}

/// Whether it is a file, or a link to one.
fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file())
}

pub(super) fn failed(path: &Path, what: &str, error: &io::Error) -> Error {
    let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let code = if is_full { Code::ResourceExhausted } else { Code::of_io(error) };
    Error::new(code, format!("{}: {what}: {error}", path.display()))
}
