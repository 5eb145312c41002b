//! The files of one model's log. A file contains only complete records at any time. Each start of
//! the server begins a new file, and so does a full one.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tensorserve_codec::tfrecord;

/// How long after a failure writing is tried again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The files that records are written to, one after the other.
pub(super) struct LogFile {
    /// What the names of files start with.
    start: PathBuf,
    most_bytes: u64,
    sequence: u32,
    open: Option<OpenFile>,
    failed: Option<Instant>,
    frame: Vec<u8>,
}

struct OpenFile {
    file: File,
    path: PathBuf,
    bytes: u64,
}

/// What the names of the files of a model's log start with: if `prefix` is a directory (or ends in `/`), its files that
/// are named after the model, else those whose names start with it.
fn start_of(prefix: &Path, model: &str) -> PathBuf {
    let is_folder = prefix.as_os_str().as_bytes().ends_with(b"/") || prefix.is_dir();
    if is_folder { prefix.join(model) } else { prefix.to_owned() }
}

/// The files of a model's log, the newest first. Models with a common prefix have common files.
pub(super) fn files_of(prefix: &Path, model: &str) -> Vec<PathBuf> {
    let start = start_of(prefix, model);
    let (Some(folder), Some(name)) = (start.parent(), start.file_name()) else {
        return Vec::new();
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<((u64, u32), PathBuf)> = entries
        .filter_map(|entry| {
            let file = entry.file_name();
            let rest = file.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"-")?;
            let (time, sequence) =
                str::from_utf8(rest).ok()?.strip_suffix(".tfrecord")?.split_once('-')?;
            Some(((time.parse().ok()?, sequence.parse().ok()?), entry.path()))
        })
        .collect();
    files.sort_unstable_by(|a, b| b.cmp(a));
    files.into_iter().map(|(_, path)| path).collect()
}

impl LogFile {
    /// A log at `prefix`; see [`start_of`].
    pub(super) fn new(prefix: &Path, model: &str, most_bytes: u64) -> Self {
        let start = start_of(prefix, model);
        let (open, failed, frame) = (None, None, Vec::new());
        LogFile { start, most_bytes, sequence: 0, open, failed, frame }
    }

    /// Writes a record; true on success. The first of several failures in a row is written to the
    /// server's log.
    pub(super) fn write(&mut self, record: &[u8]) -> bool {
        if self.failed.is_some_and(|at| at.elapsed() < PATIENCE) {
            return false;
        }
        let written = self.try_write(record);
        match written {
            Ok(()) => self.failed = None,
            Err(error) => {
                let place = self.open.as_ref().map_or(&self.start, |open| &open.path);
                if self.failed.is_none() {
                    log::error!("requests cannot be logged to {}: {error}", place.display());
                }
                self.failed = Some(Instant::now());
                self.open = None;
            }
        }
        self.failed.is_none()
    }

    fn try_write(&mut self, record: &[u8]) -> std::io::Result<()> {
        self.frame.clear();
        tfrecord::append(record, &mut self.frame);
        let bytes = self.frame.len() as u64;
        let is_full =
            |open: &OpenFile| open.bytes > 0 && open.bytes.saturating_add(bytes) > self.most_bytes;
        if self.open.as_ref().is_some_and(is_full) {
            self.open = None;
        }
        let open = match self.open.take() {
            Some(open) => self.open.insert(open),
            None => {
                let open = self.create()?;
                self.open.insert(open)
            }
        };
        if let Err(error) = open.file.write_all(&self.frame) {
            // Remove the incomplete record.
            let _ = open.file.set_len(open.bytes);
            return Err(error);
        }
        open.bytes = open.bytes.saturating_add(bytes);
        Ok(())
    }

    /// A new file, which only the server's own user can read: requests may be private.
    fn create(&mut self) -> std::io::Result<OpenFile> {
        if let Some(folder) = self.start.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        loop {
            self.sequence = self.sequence.saturating_add(1);
            let mut name = self.start.clone().into_os_string();
            name.push(format!("-{now}-{:04}.tfrecord", self.sequence));
            let path = PathBuf::from(name);
            let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
            match file {
                Ok(file) => {
                    log::info!("requests are logged to {}", path.display());
                    return Ok(OpenFile { file, path, bytes: 0 });
                }
                // It belongs to another server, or to another model with the same prefix.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(path: &Path) -> Vec<Vec<u8>> {
        let file = std::fs::read(path).expect("readable");
        let mut reader = tfrecord::TfRecordReader::new(file.as_slice(), 1000);
        let (mut all, mut record) = (Vec::new(), Vec::new());
        while reader.next(&mut record).expect("whole") {
            all.push(record.clone());
        }
        all
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("a directory");
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("entry").path()).collect();
        files.sort();
        files
    }

    #[test]
    fn a_full_file_is_followed_by_another() {
        let root = tempfile::tempdir().expect("temporary directory");
        let folder = root.path().join("a/b/");
        let mut log = LogFile::new(&folder, "m", 60);
        // A framed record takes 20 bytes; a record above the limit has its own file.
        for record in [&b"1234"[..], b"2345", b"3456", b"4567", &[7; 100], b"5678"] {
            assert!(log.write(record));
        }
        let files = files(&folder);
        let read: Vec<usize> = files.iter().map(|file| records(file).len()).collect();
        assert_eq!(read, [3, 1, 1, 1]);
        let name = files[0].file_name().expect("a name").to_string_lossy().into_owned();
        assert!(name.starts_with("m-") && name.ends_with("-0001.tfrecord"), "{name}");
        assert_eq!(files_of(&folder, "m").len(), 4);
        // The newest first; of a model whose name begins alike, and of no log.
        std::fs::write(folder.join("m-99999999999-0001.tfrecord"), b"").expect("written");
        for other in ["m-x-1-0001.tfrecord", "m-1-1.other", "m-1.tfrecord", "mm-1-0001.tfrecord"] {
            std::fs::write(folder.join(other), b"").expect("written");
        }
        let found = files_of(&folder, "m");
        assert!(found.len() == 5 && found[0].ends_with("m-99999999999-0001.tfrecord"), "{found:?}");
        for other in ["m-x-1-0001.tfrecord", "m-1-1.other", "m-1.tfrecord", "mm-1-0001.tfrecord"] {
            std::fs::remove_file(folder.join(other)).expect("removed");
        }
        std::fs::remove_file(&found[0]).expect("removed");
        // Another log does not append to these files.
        let mut next = LogFile::new(&folder, "m", 60);
        assert!(next.write(b"6789"));
        assert_eq!(self::files(&folder).len(), 5);
    }

    #[test]
    fn a_prefix_that_is_no_folder_starts_the_name() {
        let root = tempfile::tempdir().expect("temporary directory");
        let mut log = LogFile::new(&root.path().join("requests"), "m", 60);
        assert!(log.write(b"1234"));
        let [file] = &files(root.path())[..] else { panic!("not one file") };
        assert!(file.file_name().expect("a name").to_string_lossy().starts_with("requests-"));
    }

    #[test]
    fn what_cannot_be_written_is_tried_again_later() {
        let root = tempfile::tempdir().expect("temporary directory");
        let blocked = root.path().join("file");
        std::fs::write(&blocked, "").expect("written");
        let mut log = LogFile::new(&blocked.join("m"), "m", 60);
        assert!(!log.write(b"1234"));
        std::fs::remove_file(&blocked).expect("removed");
        assert!(!log.write(b"1234"), "retried too early");
        log.failed = Instant::now().checked_sub(PATIENCE);
        assert!(log.write(b"1234"));
        assert_eq!(files(&blocked).len(), 1);
    }
}
