//! Files that are written before they get their name, and what killed processes have left of them.
//!
//! A process holds a lock on its drafts. The lock ends with the process, however it ends, so a draft
//! that can be locked is abandoned. The name says on which machine it was written: locks may be
//! invisible to other machines that share the folder, which therefore also wait for a day.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// How the names of drafts begin.
const NAME: &str = "draft-";

/// How long a draft of another machine must have been left alone to be removed.
const FOREIGN_AGE: Duration = Duration::from_secs(24 * 3600);

/// A file without its final name. It is removed on drop, unless it was renamed.
pub(super) struct DraftFile {
    path: PathBuf,
    pub(super) file: File,
    has_name: bool,
}

impl DraftFile {
    /// Creates an empty one in `folder`, which exists.
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        loop {
            let (pid, number) = (std::process::id(), DRAFTS.fetch_add(1, Relaxed));
            let path = folder.join(format!("{NAME}{}-{pid}-{number}", machine()));
            let opened = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
            let file = match opened {
                // Of a process with the same number in another container, or before a restart.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            // Until it is locked, another process may take it for abandoned, and remove it. Without
            // support for locks it stays, and others remove it by its age only.
            let is_taken = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
            if !is_taken && file.metadata()?.nlink() > 0 {
                return Ok(DraftFile { path, file, has_name: false });
            }
        }
    }

    /// Gives it the name `target`, in place of what has that name. Returns what it is then.
    pub(super) fn rename(mut self, target: &Path) -> io::Result<Metadata> {
        fs::rename(&self.path, target)?;
        self.has_name = true;
        self.file.metadata()
    }

    /// Gives it the name `target` unless something has that name. Returns whether it has.
    pub(super) fn link(&self, target: &Path) -> io::Result<bool> {
        match fs::hard_link(&self.path, target) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for DraftFile {
    fn drop(&mut self) {
        if !self.has_name {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the drafts in `folder` whose processes have ended. Returns how many.
pub(super) fn clean(folder: &Path) -> io::Result<usize> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(NAME)) else {
            continue;
        };
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let is_here = rest.split('-').next() == Some(machine());
        if is_file && is_abandoned(&entry.path(), is_here) && fs::remove_file(entry.path()).is_ok()
        {
            removed += 1;
        }
    }
    Ok(removed)
}

fn is_abandoned(path: &Path, is_here: bool) -> bool {
    // Locks on some network file systems need the right to write.
    let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else {
        return false;
    };
    let modified = file.metadata().and_then(|meta| meta.modified());
    let age = modified.map(|time| SystemTime::now().duration_since(time).unwrap_or_default());
    let is_old = age.is_ok_and(|age| age > FOREIGN_AGE);
    match file.try_lock() {
        Ok(()) => is_here || is_old,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => is_old,
    }
}

/// What tells this machine, since it was started, from others.
fn machine() -> &'static str {
    static MACHINE: OnceLock<String> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let id: String = id.chars().filter(char::is_ascii_hexdigit).take(12).collect();
        if id.is_empty() { "unknown".to_owned() } else { id }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_abandoned_drafts_are_removed() {
        let folder = tempfile::tempdir().expect("a directory");
        let folder = folder.path();
        assert_eq!(clean(&folder.join("none")).expect("cleaned"), 0);
        let living = DraftFile::create(folder).expect("created");
        // What a killed process leaves: nobody holds its lock.
        let dead = folder.join(format!("{NAME}{}-1-0", machine()));
        fs::write(&dead, "x").expect("written");
        let foreign = folder.join(format!("{NAME}0123-1-0"));
        fs::write(&foreign, "x").expect("written");
        fs::write(folder.join("other"), "x").expect("written");
        assert_eq!(clean(folder).expect("cleaned"), 1);
        assert!(living.path.exists() && foreign.exists() && !dead.exists());
        let long_ago = SystemTime::now() - 2 * FOREIGN_AGE;
        let file = File::options().write(true).open(&foreign).expect("opened");
        file.set_modified(long_ago).expect("set");
        drop(file);
        assert_eq!(clean(folder).expect("cleaned"), 1);
        let path = living.path.clone();
        drop(living);
        assert!(!path.exists() && folder.join("other").exists());
    }
}
