//! Watches files that the server uses (users and keys, certificates), and reloads them when they
//! change.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tensorserve_tensor::error::{Error, Result};

/// The state of each file, to detect changes: device, inode, size and times. `None` if it is
/// missing.
type WatchedFileStates = Vec<Option<[i64; 6]>>;

/// Files that belong together, and the function that reloads them.
pub(super) struct WatchedFiles {
    paths: Vec<PathBuf>,
    seen: WatchedFileStates,
    read: Box<dyn FnMut() -> Result<String> + Send>,
}

impl WatchedFiles {
    /// The files at `paths`, in their present state. `read` reloads them, and returns a line for the log.
    pub(super) fn new(
        paths: Vec<PathBuf>,
        read: impl FnMut() -> Result<String> + Send + 'static,
    ) -> Self {
        let seen = fingerprint(&paths);
        WatchedFiles { paths, seen, read: Box::new(read) }
    }

    /// Reloads them if they have changed since the last reload, but not since the last check: files
    /// that belong together are rarely written at the same time.
    fn look(&mut self, before: &mut WatchedFileStates) {
        let now = fingerprint(&self.paths);
        let is_settled = now == *before;
        before.clone_from(&now);
        if is_settled {
            self.read_if_changed(now);
        }
    }

    /// Reloads them if they have changed since the last reload.
    fn read_if_changed(&mut self, now: WatchedFileStates) {
        if now == self.seen {
            return;
        }
        self.seen = now;
        match (self.read)() {
            Ok(what) => log::info!("{what}"),
            Err(error) => log::error!("{error}; the previous content stays in use"),
        }
    }
}

fn fingerprint(paths: &[PathBuf]) -> WatchedFileStates {
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
    checks: FileChecks,
    thread: Option<JoinHandle<()>>,
}

/// Has the watcher check its files, if there are any. Cheap to clone.
#[derive(Clone)]
pub struct FileChecks(Option<Sender<WatcherMessage>>);

enum WatcherMessage {
    CheckNow,
    Stop,
}

impl FileChecks {
    /// Has files that have changed reloaded now, also those that may still change, and without a watch interval.
    pub fn check_now(&self) {
        self.send(WatcherMessage::CheckNow);
    }

    fn send(&self, message: WatcherMessage) {
        if let Some(sender) = &self.0 {
            let _ = sender.send(message);
        }
    }
}

/// The interval of a watcher that checks its files only when it is told to.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

impl FileWatcher {
    /// Checks `files` at this interval; only when it is told to if it is `None`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(every: Option<Duration>, files: Vec<WatchedFiles>) -> Result<Self> {
        if files.is_empty() {
            return Ok(FileWatcher { checks: FileChecks(None), thread: None });
        }
        let (sender, messages) = channel();
        let watch = move || watch(files, every.unwrap_or(NEVER), &messages);
        let thread = thread::Builder::new().name("files".to_owned()).spawn(watch);
        let thread = thread.map_err(|e| {
            Error::internal("the file watcher thread could not be started").with_source(e)
        })?;
        Ok(FileWatcher { checks: FileChecks(Some(sender)), thread: Some(thread) })
    }

    /// For checks out of turn.
    #[must_use]
    pub fn checks(&self) -> FileChecks {
        self.checks.clone()
    }
}

/// Checks the files at this interval, and when told to, until told to stop.
fn watch(mut files: Vec<WatchedFiles>, every: Duration, messages: &Receiver<WatcherMessage>) {
    let mut before: Vec<WatchedFileStates> = files.iter().map(|files| files.seen.clone()).collect();
    loop {
        match messages.recv_timeout(every) {
            Err(RecvTimeoutError::Timeout) => {
                for (files, before) in files.iter_mut().zip(&mut before) {
                    files.look(before);
                }
            }
            Ok(WatcherMessage::CheckNow) => {
                for files in &mut files {
                    files.read_if_changed(fingerprint(&files.paths));
                }
            }
            Ok(WatcherMessage::Stop) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        self.checks.send(WatcherMessage::Stop);
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
