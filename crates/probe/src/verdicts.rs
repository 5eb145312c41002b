//! What probes have found, by the content of a version's files, so that a restart of the server does
//! not probe them again. Only versions that have passed are remembered.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::SystemTime;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use tensorserve_platform::{LoadOptions, Platform};

use crate::ProbeConfig;

/// What a probe has found out about a version that has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The process ended for an input whose shape is not declared.
    pub(crate) exact_shapes: bool,
}

/// A version as it was loaded, in hexadecimal digits: its files, the settings and versions of the
/// programs that load it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct VersionFingerprint(String);

/// Versions that are loaded again within one run of the server, such as with another number of
/// threads, are not read again.
#[derive(Default)]
struct Seen {
    /// By directory and settings.
    fingerprints: HashMap<(PathBuf, String), (Vec<FileStamp>, VersionFingerprint)>,
    verdicts: HashMap<VersionFingerprint, Verdict>,
}

/// The most bytes of a note that are read.
const LONGEST_NOTE: u64 = 64 << 10;

/// The most entries of [`Seen`]; then it is emptied.
const MOST_SEEN: usize = 10_000;

/// A file of a version: its path, size and time of change.
type FileStamp = (PathBuf, u64, Option<SystemTime>);

pub(crate) struct Verdicts {
    folder: PathBuf,
    gpu: bool,
    seen: Mutex<Seen>,
    unwritable: Once,
}

impl Verdicts {
    pub(crate) fn new(config: &ProbeConfig) -> Self {
        let (folder, gpu) = (config.cache.clone(), config.gpu);
        Verdicts { folder, gpu, seen: Mutex::default(), unwritable: Once::new() }
    }

    /// The fingerprint of the version in `folder`, which may be a file.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn fingerprint(
        &self,
        platform: &Platform,
        runtime: &str,
        folder: &Path,
        options: &LoadOptions,
    ) -> io::Result<VersionFingerprint> {
        let mut files = Vec::new();
        list_files(folder, &mut files)?;
        files.sort();
        let settings = self.settings(platform, runtime, options);
        let key = (folder.to_owned(), settings);
        if let Some((states, known)) = self.seen().fingerprints.get(&key)
            && *states == files
        {
            return Ok(known.clone());
        }
        let mut hash = Context::new(&SHA256);
        hash.update(key.1.as_bytes());
        for (path, size, _) in &files {
            let inside = path.strip_prefix(folder).unwrap_or(path);
            hash.update(format!("{inside:?} {size}\n").as_bytes());
            read_into(path, &mut hash)?;
        }
        let digits = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let fingerprint = VersionFingerprint(digits);
        let mut seen = self.seen();
        if seen.fingerprints.len() > MOST_SEEN {
            *seen = Seen::default();
        }
        seen.fingerprints.insert(key, (files, fingerprint.clone()));
        Ok(fingerprint)
    }

    /// The programs and settings that a load depends on. The number of threads is left out: it changes
    /// between two loads of a version.
    fn settings(&self, platform: &Platform, runtime: &str, options: &LoadOptions) -> String {
        let ops: Vec<_> =
            platform.runtime.custom_ops().into_iter().map(|library| library.path).collect();
        let (program, name, gpu) = (env!("CARGO_PKG_VERSION"), platform.info.name, self.gpu);
        // The load checks the operations itself, and models in Python are not probed.
        let LoadOptions {
            tags,
            threads: _,
            images,
            ops: _,
            form,
            as_other_engine: _,
            isolated_as: _,
            runner: _,
        } = options;
        let form = form.map_or(String::new(), |number| format!("form {number}\n"));
        format!("{program}\n{name}\n{runtime}\n{ops:?}\n{tags:?}\n{images:?}\n{gpu}\n{form}")
    }

    /// The verdict on a version that has passed before.
    pub(crate) fn known(&self, version: &VersionFingerprint) -> Option<Verdict> {
        if let Some(&verdict) = self.seen().verdicts.get(version) {
            return Some(verdict);
        }
        serde_json::from_slice(&fs::read(self.path(version)).ok()?).ok()
    }

    /// Remembers that a version has passed.
    pub(crate) fn remember(&self, version: &VersionFingerprint, verdict: Verdict) {
        self.seen().verdicts.insert(version.clone(), verdict);
        let text = serde_json::to_vec(&verdict).unwrap_or_default();
        self.write(self.path(version), &text);
    }

    /// What was noted of a version under this topic.
    pub(crate) fn recall(&self, version: &VersionFingerprint, topic: &str) -> Option<String> {
        let mut text = String::new();
        let file = File::open(self.note_path(version, topic)).ok()?;
        file.take(LONGEST_NOTE).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Notes something of a version.
    pub(crate) fn note(&self, version: &VersionFingerprint, topic: &str, text: &str) {
        self.write(self.note_path(version, topic), text.as_bytes());
    }

    /// Writes a file, whole or not at all.
    fn write(&self, path: PathBuf, content: &[u8]) {
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let write = || {
            fs::create_dir_all(&self.folder)?;
            fs::write(&partial, content)?;
            fs::rename(&partial, path)
        };
        if let Err(error) = write() {
            // A full disk leaves a part.
            let _ = fs::remove_file(&partial);
            self.unwritable.call_once(|| {
                log::info!(
                    "{}: the results of load probes cannot be kept for the next start: {error}",
                    self.folder.display()
                );
            });
        }
    }

    fn path(&self, version: &VersionFingerprint) -> PathBuf {
        self.folder.join(&version.0).with_extension("json")
    }

    fn note_path(&self, version: &VersionFingerprint, topic: &str) -> PathBuf {
        self.folder.join(format!("{}-{topic}.txt", version.0))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lists `path` itself if it is a file, or all files below it.
fn list_files(path: &Path, files: &mut Vec<FileStamp>) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_dir() {
        files.push((path.to_owned(), metadata.len(), metadata.modified().ok()));
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        list_files(&entry?.path(), files)?;
    }
    Ok(())
}

fn read_into(path: &Path, hash: &mut Context) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; 1 << 20];
    loop {
        let length = file.read(&mut piece)?;
        if length == 0 {
            return Ok(());
        }
        hash.update(piece.get(..length).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use tensorserve_platform::{ForeignFormats, PartOfProgram};

    /// A platform that loads nothing.
    fn nothing() -> Platform {
        Platform { runtime: Arc::new(PartOfProgram("nothing 1")), ..ForeignFormats::platform() }
    }

    fn verdicts(cache: &Path) -> Verdicts {
        let timeout = Duration::from_secs(1);
        let config = ProbeConfig {
            probes: true,
            isolates: false,
            memory_limit: None,
            timeout,
            cache: cache.to_owned(),
            gpu: false,
        };
        Verdicts::new(&config)
    }

    fn fingerprint(verdicts: &Verdicts, folder: &Path, options: &LoadOptions) -> String {
        verdicts.fingerprint(&nothing(), "nothing 1", folder, options).expect("readable").0
    }

    #[test]
    fn a_version_is_known_by_its_content_and_its_settings() {
        let place = tempfile::tempdir().expect("temporary directory");
        let (one, two) = (place.path().join("1"), place.path().join("2"));
        for folder in [&one, &two] {
            fs::create_dir_all(folder.join("variables")).expect("a directory");
            fs::write(folder.join("variables/data"), "content").expect("written");
        }
        let verdicts = verdicts(&place.path().join("cache"));
        let options = LoadOptions::default();
        let first = fingerprint(&verdicts, &one, &options);
        assert_eq!(fingerprint(&verdicts, &two, &options), first);
        let one_thread = LoadOptions { threads: 1, ..LoadOptions::default() };
        assert_eq!(fingerprint(&verdicts, &two, &one_thread), first);
        let other_tags = LoadOptions { tags: vec!["gpu".to_owned()], ..LoadOptions::default() };
        assert_ne!(fingerprint(&verdicts, &two, &other_tags), first);
        fs::write(two.join("variables/data"), "changed").expect("written");
        fs::write(two.join("more"), "").expect("written");
        assert_ne!(fingerprint(&verdicts, &two, &options), first);
        let single = one.join("variables/data");
        assert_ne!(fingerprint(&verdicts, &single, &options), first);
    }

    #[test]
    fn verdicts_outlive_the_server_where_they_can_be_written() {
        let place = tempfile::tempdir().expect("temporary directory");
        let cache = place.path().join("a/b");
        let version = VersionFingerprint("c0ffee".to_owned());
        let verdict = Verdict { exact_shapes: true };
        assert_eq!(verdicts(&cache).known(&version), None);
        verdicts(&cache).remember(&version, verdict);
        assert_eq!(verdicts(&cache).known(&version), Some(verdict));
        fs::write(cache.join("c0ffee.json"), "damaged").expect("written");
        assert_eq!(verdicts(&cache).known(&version), None);
        // A file in place of the directory.
        assert_eq!(verdicts(&cache).recall(&version, "threads"), None);
        verdicts(&cache).note(&version, "threads", "a processor\n1");
        assert_eq!(verdicts(&cache).recall(&version, "threads").as_deref(), Some("a processor\n1"));
        let unwritable = verdicts(&cache.join("c0ffee.json"));
        unwritable.remember(&version, verdict);
        assert_eq!(unwritable.known(&version), Some(verdict));
    }
}
