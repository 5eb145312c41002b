//! Watches files that the server uses (users and keys, certificates), and reloads them when they
//! change.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tensorserve_tensor::error::{Error, Result};

/// The state of each file, to detect changes: device, inode, size and times. `None` if it is
/// missing.
type FileStates = Vec<Option<[i64; 6]>>;

/// Files that belong together, and the function that reloads them.
pub(super) struct WatchedFiles {
    paths: Vec<PathBuf>,
    seen: FileStates,
    read: Box<dyn FnMut() -> Result<String> + Send>,
}

impl WatchedFiles {
    /// These files, in their present state. `read` reloads them, and returns a line for the log.
    pub(super) fn new(
        paths: Vec<PathBuf>,
        read: impl FnMut() -> Result<String> + Send + 'static,
    ) -> Self {
        let seen = fingerprint(&paths);
        WatchedFiles { paths, seen, read: Box::new(read) }
    }

    /// Reloads them if they have changed since the last reload, but not since the last check: files
    /// that belong together are rarely written at the same time.
    fn look(&mut self, before: &mut FileStates) {
        let now = fingerprint(&self.paths);
        let is_settled = now == *before;
        before.clone_from(&now);
        if !is_settled || now == self.seen {
            return;
        }
        self.seen = now;
        match (self.read)() {
            Ok(what) => log::info!("{what}"),
            Err(error) => log::error!("{error}; the previous content stays in use"),
        }
    }
}

fn fingerprint(paths: &[PathBuf]) -> FileStates {
    let of = |path: &PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let (device, inode) = (number(file.dev()), number(file.ino()));
        let (written, changed) = (file.mtime_nsec(), file.ctime_nsec());
        Some([device, inode, number(file.len()), file.mtime(), written, changed])
    };
    paths.iter().map(of).collect()
}

/// The watcher thread. It ends when this is dropped.
pub struct FileWatcher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FileWatcher {
    /// Checks `files` at this interval; never if it is `None`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(every: Option<Duration>, mut files: Vec<WatchedFiles>) -> Result<Self> {
        let Some(every) = every.filter(|_| !files.is_empty()) else {
            return Ok(FileWatcher { stop: None, thread: None });
        };
        let (stop, stopped) = channel();
        let watch = move || {
            let mut before: Vec<FileStates> = files.iter().map(|f| f.seen.clone()).collect();
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                for (files, before) in files.iter_mut().zip(&mut before) {
                    files.look(before);
                }
            }
        };
        let thread = thread::Builder::new().name("files".to_owned()).spawn(watch);
        let thread = thread.map_err(|e| {
            Error::internal("the file watcher thread could not be started").with_source(e)
        })?;
        Ok(FileWatcher { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn files_are_read_again_when_they_have_changed_and_settled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "1").unwrap();
        let (sender, reads) = mpsc::channel();
        let read = move || {
            sender.send(()).unwrap();
            Err(Error::invalid("broken"))
        };
        let mut files = WatchedFiles::new(vec![path.clone()], read);
        let mut before = files.seen.clone();
        let mut count = |files: &mut WatchedFiles| {
            files.look(&mut before);
            reads.try_iter().count()
        };
        assert_eq!(count(&mut files), 0);
        std::fs::write(&path, "22").unwrap();
        assert_eq!(count(&mut files), 0, "read while it may still change");
        assert_eq!(count(&mut files), 1, "not read after it has settled");
        assert_eq!(count(&mut files), 0, "read again without a change");
        std::fs::remove_file(&path).unwrap();
        assert_eq!((count(&mut files), count(&mut files)), (0, 1));
        std::fs::write(&path, "1").unwrap();
        assert_eq!((count(&mut files), count(&mut files)), (0, 1));
    }
}
