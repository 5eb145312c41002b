//! Downloads a unit: in parallel parts, verified, and renamed into place as a whole.
//!
//! A file is written under a temporary name and gets its own when it is complete and on the disk. So
//! everything under its own name in the directory of a download can be kept after a crash.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use md5::{Digest, Md5};
use tensorserve_archive as archive;
use tensorserve_tensor::error::{Code, Error, Result};

use crate::cache::{Cache, MANIFEST, disk_bytes, files_of, in_mb};
use crate::client::{RemoteObject, StoreClient};
use crate::listing::{DownloadUnit, ListedObject, Manifest};

/// Parts that are downloaded at a time, of one unit.
const PARALLEL: usize = 8;

/// The size of a part.
const PART_BYTES: u64 = 16 << 20;

/// How often a part is tried.
const ATTEMPTS: u32 = 5;

/// How often a process that waits for the download of another one looks.
const LOCK_INTERVAL: Duration = Duration::from_millis(300);

/// How often a long download is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The directory of incomplete files, in that of a download.
const INCOMPLETE: &str = "incomplete";

/// How far a download is.
#[derive(Debug)]
pub(crate) struct DownloadProgress {
    pub(crate) total: u64,
    done: AtomicU64,
    /// What it waits for, if it does not download.
    waiting: Mutex<&'static str>,
    began: Instant,
    logged: Mutex<Instant>,
    /// The download was tried before, and its log says so already.
    is_repeated: bool,
}

impl DownloadProgress {
    pub(crate) fn new(total: u64, is_repeated: bool) -> Self {
        let now = Instant::now();
        DownloadProgress {
            total,
            done: AtomicU64::new(0),
            waiting: Mutex::default(),
            began: now,
            logged: Mutex::new(now),
            is_repeated,
        }
    }

    /// The bytes that are here.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    /// Says what it waits for; an empty text if it downloads.
    pub(crate) fn wait_for(&self, what: &'static str) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// The state in words.
    pub(crate) fn text(&self) -> String {
        match *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            "" => format!("downloading, {} of {} MB", in_mb(self.done()), in_mb(self.total)),
            waiting => waiting.to_owned(),
        }
    }

    fn add(&self, bytes: u64, shown: &str) {
        let done = self.done.fetch_add(bytes, Relaxed) + bytes;
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.elapsed() >= LOG_INTERVAL && done < self.total {
            *logged = Instant::now();
            log::info!("{shown}: downloaded {} of {} MB", in_mb(done), in_mb(self.total));
        }
    }

    fn take_back(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Relaxed);
    }
}

/// Downloads a unit into the cache, unless it is there.
///
/// # Errors
/// [`Code::Aborted`] if an object has changed since it was listed; [`Code::ResourceExhausted`] if
/// the cache or the disk is full; else what the store reports.
pub(crate) async fn download(
    client: &StoreClient,
    cache: &Cache,
    unit: &DownloadUnit,
    progress: &DownloadProgress,
) -> Result<()> {
    let _lock = loop {
        if cache.is_whole(&unit.id) {
            return Ok(());
        }
        if let Some(lock) = cache.write_lock(&unit.id) {
            break lock;
        }
        progress.wait_for("another process downloads it");
        tokio::time::sleep(LOCK_INTERVAL).await;
    };
    // The one that had the lock may have completed it.
    if cache.is_whole(&unit.id) {
        return Ok(());
    }
    progress.wait_for("");
    let part = cache.part(&unit.id);
    let download = Download { client, unit, progress, part: &part };
    let outcome = download.run(cache).await;
    let keep = outcome.as_ref().is_err_and(|e| e.code() == Code::Unavailable);
    if outcome.is_err() && !keep {
        let _ = fs::remove_dir_all(&part);
    }
    outcome
}

struct Download<'d> {
    client: &'d StoreClient,
    unit: &'d DownloadUnit,
    progress: &'d DownloadProgress,
    /// The directory that is renamed in the end.
    part: &'d Path,
}

/// A file that is being downloaded.
struct PartFile {
    remote: RemoteObject,
    file: File,
    /// Its temporary name, and its own.
    temporary: PathBuf,
    target: PathBuf,
    /// Parts that are not here yet.
    missing: AtomicUsize,
    md5: Mutex<Option<Vec<u8>>>,
}

impl Download<'_> {
    async fn run(&self, cache: &Cache) -> Result<()> {
        let DownloadUnit { shown, manifest, .. } = self.unit;
        let bytes = self.unit.bytes();
        let content = files_of(self.part).join(&self.unit.name);
        let incomplete = self.part.join(INCOMPLETE);
        fs::create_dir_all(self.part).map_err(|e| self.unwritable(&e))?;
        let _ = fs::remove_dir_all(&incomplete);
        let known = self.take_over(cache, &content)?;
        cache.make_room(&self.unit.id, bytes).map_err(|e| e.context(shown))?;
        fs::create_dir_all(&incomplete).map_err(|e| self.unwritable(&e))?;
        self.progress.add(known, shown);
        let count = manifest.objects.len();
        if !self.progress.is_repeated {
            log::info!("{shown}: downloading {} MB in {count} files", in_mb(bytes - known));
        }
        let files = self.open_files(&content, &incomplete)?;
        let mut parts = Vec::new();
        for file in &files {
            parts.extend(self.ranges(file).into_iter().map(|range| (Arc::clone(file), range)));
        }
        let parts = parts.into_iter().map(|(file, range)| async move {
            self.part_of(&file, range).await?;
            match file.missing.fetch_sub(1, Relaxed) {
                1 => self.complete(file).await,
                _ => Ok(()),
            }
        });
        stream::iter(parts.collect::<Vec<_>>())
            .buffer_unordered(PARALLEL)
            .try_collect::<()>()
            .await?;
        self.publish(cache, &content)?;
        let seconds = self.progress.began.elapsed().as_secs_f64();
        log::info!("{shown}: downloaded {} MB in {seconds:.1} s", in_mb(bytes));
        Ok(())
    }

    /// Keeps the files of an earlier attempt, and takes over those that another state of the same
    /// unit has. Returns their bytes.
    fn take_over(&self, cache: &Cache, content: &Path) -> Result<u64> {
        if self.unit.is_archive {
            return Ok(0);
        }
        let place = self.unit.id.split('-').next().unwrap_or_default();
        let mut there: HashMap<(&str, &str, u64), PathBuf> = HashMap::new();
        let others: Vec<(String, Manifest)> = cache
            .whole_units()
            .into_iter()
            .filter(|(_, id)| id.split('-').next() == Some(place))
            .filter_map(|(_, id)| cache.manifest(&id).map(|manifest| (id, manifest)))
            .collect();
        for (id, manifest) in &others {
            for ListedObject { path, bytes, etag, .. } in &manifest.objects {
                if let Some(etag) = etag {
                    let file = target(&files_of(&cache.unit(id)).join(&self.unit.name), path);
                    there.insert((path, etag, *bytes), file);
                }
            }
        }
        let mut known = 0;
        for ListedObject { path, bytes, etag, .. } in &self.unit.manifest.objects {
            let target = target(content, path);
            if !target.exists()
                && let Some(file) = there.get(&(path, etag.as_deref().unwrap_or_default(), *bytes))
            {
                create_parent(&target).map_err(|e| self.unwritable(&e))?;
                let _ = fs::hard_link(file, &target);
            }
            if fs::metadata(&target).is_ok_and(|meta| meta.len() == *bytes) {
                known += bytes;
            }
        }
        Ok(known)
    }

    /// Creates the files that are not here yet. Those without content are complete at once.
    fn open_files(&self, content: &Path, incomplete: &Path) -> Result<Vec<Arc<PartFile>>> {
        let location = &self.client.location;
        let mut files = Vec::new();
        for (index, object) in self.unit.manifest.objects.iter().enumerate() {
            let target = match self.unit.is_archive {
                true => self.part.join("archive"),
                false => target(content, &object.path),
            };
            if target.exists() && !self.unit.is_archive {
                continue;
            }
            create_parent(&target).map_err(|e| self.unwritable(&e))?;
            let temporary = incomplete.join(index.to_string());
            let mut options = OpenOptions::new();
            let file = options.write(true).read(true).create(true).truncate(true).mode(0o600);
            let file = file.open(&temporary).map_err(|e| self.unwritable(&e))?;
            if object.bytes == 0 {
                fs::rename(&temporary, &target).map_err(|e| self.unwritable(&e))?;
                continue;
            }
            let inside = [location.key(), &self.unit.manifest.within, &object.path];
            let key: Vec<&str> = inside.into_iter().filter(|part| !part.is_empty()).collect();
            let remote = RemoteObject {
                key: key.join("/"),
                bytes: object.bytes,
                etag: object.etag.clone(),
                modified: std::time::UNIX_EPOCH + Duration::from_secs(object.modified),
            };
            let (missing, md5) = (AtomicUsize::new(0), Mutex::default());
            let file = PartFile { remote, file, temporary, target, missing, md5 };
            file.missing.store(self.ranges(&file).len(), Relaxed);
            files.push(Arc::new(file));
        }
        Ok(files)
    }

    /// The parts of a file.
    fn ranges(&self, file: &PartFile) -> Vec<std::ops::Range<u64>> {
        let bytes = file.remote.bytes;
        let step = if self.client.reads_ranges() { PART_BYTES } else { bytes.max(1) };
        let starts = (0..bytes).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        starts.map(|start| start..bytes.min(start.saturating_add(step))).collect()
    }

    /// Downloads one part, with repetitions from where it was interrupted.
    async fn part_of(&self, file: &PartFile, range: std::ops::Range<u64>) -> Result<()> {
        let mut at = range.start;
        let mut attempt = 1;
        loop {
            let before = at;
            let Err(error) = self.read_part(file, &mut at, range.end).await else {
                return Ok(());
            };
            if error.code() != Code::Unavailable {
                return Err(error);
            }
            // Progress counts as success: a slow or broken connection gets the rest in pieces.
            attempt = if at > before { 1 } else { attempt + 1 };
            if attempt > ATTEMPTS {
                return Err(error);
            }
            log::debug!("{}: {error}; repeated from byte {at}", self.unit.shown);
            tokio::time::sleep(Duration::from_millis(250) * 2_u32.pow(attempt)).await;
        }
    }

    /// Reads from `at`, which it advances, to `end`.
    async fn read_part(&self, file: &PartFile, at: &mut u64, end: u64) -> Result<()> {
        if !self.client.reads_ranges() {
            self.progress.take_back(*at);
            *at = 0;
        }
        let part =
            self.client.read(&file.remote, *at..end).await.map_err(|failure| failure.error)?;
        if let Some(md5) = part.md5 {
            *file.md5.lock().unwrap_or_else(PoisonError::into_inner) = Some(md5);
        }
        let mut bytes = part.bytes;
        while let Some(chunk) = bytes.next().await {
            let chunk = chunk?;
            let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            if length > end.saturating_sub(*at) {
                let shown = &self.unit.shown;
                return Err(Error::new(
                    Code::DataLoss,
                    format!("{shown}: the store sends more bytes than it has listed"),
                ));
            }
            file.file.write_all_at(&chunk, *at).map_err(|e| self.unwritable(&e))?;
            *at += length;
            self.progress.add(length, &self.unit.shown);
        }
        match *at == end {
            true => Ok(()),
            false => {
                Err(Error::unavailable(format!("{}: the transfer was cut off", self.unit.shown)))
            }
        }
    }

    /// Verifies a file whose parts are all here, and gives it its name.
    async fn complete(&self, file: Arc<PartFile>) -> Result<()> {
        let shown = self.unit.shown.clone();
        let checked = tokio::task::spawn_blocking(move || {
            let expected = file.md5.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(expected) = expected
                && md5_of(&file.file)? != expected
            {
                let message = format!(
                    "{shown}: {} does not have the checksum that the store gives",
                    file.remote.key
                );
                return Ok(Err(Error::new(Code::DataLoss, message)));
            }
            file.file.sync_all()?;
            fs::rename(&file.temporary, &file.target).map(Ok)
        });
        let checked = checked.await.map_err(|e| {
            Error::internal("a thread that verifies downloads failed").with_source(e)
        })?;
        checked.map_err(|e| self.unwritable(&e))?
    }

    /// Gives the whole unit its name.
    fn publish(&self, cache: &Cache, content: &Path) -> Result<()> {
        if self.unit.is_archive {
            let packed = self.part.join("archive");
            let _ = fs::remove_dir_all(content);
            let bytes = cache.limit().min(archive::ExtractionLimits::default().bytes);
            let limits =
                archive::ExtractionLimits { bytes, ..archive::ExtractionLimits::default() };
            let unpacked = archive::unpack(&packed, content, &limits);
            // The error names the file of the cache, which tells the user nothing.
            unpacked.map_err(|e| {
                let shown = packed.display().to_string();
                let message = e.message().replace(&shown, &self.unit.shown);
                Error::new(e.code(), message)
            })?;
            fs::remove_file(&packed).map_err(|e| self.unwritable(&e))?;
            let unpacked = disk_bytes(content);
            cache.make_room(&self.unit.id, unpacked).map_err(|e| e.context(&self.unit.shown))?;
        }
        let _ = fs::remove_dir_all(self.part.join(INCOMPLETE));
        let manifest = serde_json::to_vec(&self.unit.manifest).unwrap_or_default();
        fs::write(self.part.join(MANIFEST), manifest).map_err(|e| self.unwritable(&e))?;
        sync(self.part).map_err(|e| self.unwritable(&e))?;
        let whole = cache.unit(&self.unit.id);
        fs::rename(self.part, &whole).map_err(|e| self.unwritable(&e))?;
        let folder = whole.parent().unwrap_or(&whole);
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| self.unwritable(&e))
    }

    fn unwritable(&self, error: &io::Error) -> Error {
        let shown = &self.unit.shown;
        if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            let message = format!(
                "{shown}: the disk of the model cache is full; {} MB are needed: free some, or set \
                 model_cache_dir",
                in_mb(self.unit.bytes())
            );
            return Error::new(Code::ResourceExhausted, message);
        }
        Error::new(
            Code::Internal,
            format!("{shown}: the cache of models cannot be written: {error}"),
        )
    }
}

/// The file of an object: `content` itself if the unit is one file.
fn target(content: &Path, path: &str) -> PathBuf {
    if path.is_empty() { content.to_owned() } else { content.join(path) }
}

fn create_parent(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), fs::create_dir_all)
}

fn md5_of(file: &File) -> io::Result<Vec<u8>> {
    let mut md5 = Md5::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut buffer, at)?;
        if read == 0 {
            return Ok(md5.finalize().to_vec());
        }
        md5.update(buffer.get(..read).unwrap_or_default());
        at += u64::try_from(read).unwrap_or(0);
    }
}

/// Writes a directory, and everything below, to the disk.
fn sync(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => sync(&path)?,
            false => File::open(&path)?.sync_all()?,
        }
    }
    File::open(folder)?.sync_all()
}
