//! Unpacks `model.tar.gz` archives, which may come from untrusted clients.
//!
//! Only files and directories are extracted, only below the target directory, and no more than the
//! limits allow. Nothing remains of an archive that is refused.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::cell::Cell;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::process;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use flate2::bufread::GzDecoder;
use tar::{Archive, Entry, EntryType};

use tensorserve_os as os;
use tensorserve_tensor::error::{Code, Error, Result};

/// Bounds on what is extracted from an archive.
#[derive(Clone, Copy, Debug)]
pub struct ExtractionLimits {
    /// Unpacked bytes in total, headers included.
    pub bytes: u64,
    /// Files and directories.
    pub entries: usize,
    /// How many times larger than the packed archive the unpacked bytes may be…
    pub ratio: u64,
    /// …beyond this many bytes.
    pub free: u64,
}

impl Default for ExtractionLimits {
    /// Enough for every real model, and too little for a decompression bomb.
    fn default() -> Self {
        ExtractionLimits { bytes: 64 << 30, entries: 100_000, ratio: 200, free: 256 << 20 }
    }
}

/// The most bytes of metadata between two entries: long names and extended headers.
const MAX_METADATA_BYTES: u64 = 1 << 20;

/// Size of a tar block, to which the content of an entry is padded, twice: for the padding and the
/// next header.
const BLOCKS_AFTER_ENTRY: u64 = 2 * 512;

/// Longest path of an entry, in bytes.
const MAX_PATH_BYTES: usize = 4096;

/// Deepest path of an entry, in components.
const MAX_PATH_DEPTH: usize = 64;

/// The first bytes of a gzip file (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Longest path that an error message shows, in characters.
const MAX_SHOWN_PATH: usize = 200;

/// Endings of the names of archives, in lower case.
const ENDINGS: [&str; 3] = [".tar.gz", ".tgz", ".tar"];

/// The ending of the name of an archive; `None` for other names.
#[must_use]
pub fn ending(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    ENDINGS.into_iter().find(|ending| lower.ends_with(ending))
}

/// Whether `path` is an archive to unpack where every file is one: not a directory.
#[must_use]
pub fn is_archive(path: &Path) -> bool {
    path.is_file()
}

/// The directory with the content of `archive`, which is unpacked if it has not been yet.
///
/// The directory is among this user's temporary files. An archive that has changed since is
/// unpacked into another one.
///
/// # Errors
/// Those of [`unpack`], and if the directory for temporary files is missing or belongs to another
/// user.
pub fn unpacked(archive: &Path, limits: &ExtractionLimits) -> Result<PathBuf> {
    let cache = cache_folder()?;
    let folder = cache.join(fingerprint(archive)?);
    if folder.is_dir() {
        return Ok(folder);
    }
    static ATTEMPTS: AtomicU64 = AtomicU64::new(0);
    let attempt = ATTEMPTS.fetch_add(1, Relaxed);
    let partial = cache.join(format!("partial-{}-{attempt}", process::id()));
    let outcome = unpack(archive, &partial, limits).and_then(|()| publish(&partial, &folder));
    if outcome.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    outcome.map(|()| folder)
}

/// Moves a completely unpacked directory to its final name.
fn publish(partial: &Path, folder: &Path) -> Result<()> {
    let renamed = match fs::rename(partial, folder) {
        // Another process has unpacked the same archive.
        Err(_) if folder.is_dir() => fs::remove_dir_all(partial),
        other => other,
    };
    renamed.map_err(|e| cache_error(folder, e))
}

/// Unpacks `archive`, a tar file or a gzipped one, into the new directory `into`.
///
/// # Errors
/// [`Code::InvalidArgument`] if it is not an archive, is truncated, exceeds the limits, or holds
/// anything but files and directories with paths below `into`. What was extracted before the error
/// stays in `into`.
pub fn unpack(archive: &Path, into: &Path, limits: &ExtractionLimits) -> Result<()> {
    let file = File::open(archive).map_err(|e| unreadable_archive(archive, e))?;
    fs::create_dir_all(into).map_err(|e| cache_error(into, e))?;
    let meter = UnpackMeter::new(*limits);
    let packed = Metered { inner: BufReader::new(file), meter: meter.clone(), is_packed: true };
    let mut packed = BufReader::new(packed);
    let head = packed.fill_buf().map_err(|e| unreadable_archive(archive, e))?;
    let outcome = if head.starts_with(&GZIP_MAGIC) {
        let mut members = GzipMembers { member: Some(GzDecoder::new(packed)) };
        unpack_entries(&mut members, into, &meter)
    } else {
        unpack_entries(&mut packed, into, &meter)
    };
    outcome.map_err(|e| e.context(archive.display()))
}

/// The unpacked content of a gzip file: of one member after the other. As for `gzip`, zeros may
/// follow a member.
struct GzipMembers<R> {
    /// The member that is read; `None` at the end of the file.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(member) = self.member.take() else { break };
            let mut rest = member.into_inner();
            if skip_zeros(&mut rest)? {
                self.member = Some(GzDecoder::new(rest));
            }
        }
        Ok(0)
    }
}

/// Skips zeros. Returns whether anything else follows.
fn skip_zeros(reader: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let buffer = reader.fill_buf()?;
        let length = buffer.len();
        let zeros = buffer.iter().take_while(|byte| **byte == 0).count();
        reader.consume(zeros);
        if zeros < length || length == 0 {
            return Ok(length > 0);
        }
    }
}

/// Extracts every entry of an uncompressed tar stream, and reads what follows them: the checksum of
/// a gzip file is at its end.
fn unpack_entries(tar: &mut dyn Read, into: &Path, meter: &UnpackMeter) -> Result<()> {
    let mut reader = Metered { inner: tar, meter: meter.clone(), is_packed: false };
    let mut archive = Archive::new(&mut reader);
    let limit = meter.0.limits.entries;
    let mut count = 0;
    meter.allow(MAX_METADATA_BYTES);
    for entry in archive.entries().map_err(invalid_archive)? {
        let mut entry = entry.map_err(invalid_archive)?;
        count += 1;
        if count > limit {
            return Err(Error::invalid(format!(
                "it contains more than {limit} files and directories"
            )));
        }
        meter.allow(entry.size().saturating_add(BLOCKS_AFTER_ENTRY));
        unpack_entry(&mut entry, into)?;
        meter.allow(MAX_METADATA_BYTES);
    }
    if count == 0 {
        return Err(Error::invalid("not an archive, or an empty one; expected a model.tar.gz"));
    }
    meter.allow(u64::MAX);
    io::copy(&mut reader, &mut io::sink()).map_err(invalid_archive)?;
    Ok(())
}

fn unpack_entry<R: Read>(entry: &mut Entry<'_, R>, into: &Path) -> Result<()> {
    let path = entry.path().map_err(invalid_archive)?.into_owned();
    let kind = entry.header().entry_type();
    let shown = shown(&path);
    if kind == EntryType::XGlobalHeader {
        return Ok(());
    }
    let Some(target) = target(&path, into) else {
        return Err(Error::invalid(format!("the path of {shown:?} leads out of the archive")));
    };
    if let Some(name) = refused_kind(kind) {
        return Err(Error::invalid(format!(
            "{shown:?} is {name}; a model's archive may contain only files and directories"
        )));
    }
    let unwritable = |e: io::Error| unwritable_entry(&shown, e);
    if kind == EntryType::Directory {
        return fs::create_dir_all(&target).map_err(unwritable);
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(unwritable)?;
    }
    let mut file = File::create(&target).map_err(unwritable)?;
    let copied = io::copy(entry, &mut file).map_err(invalid_archive)?;
    if copied != entry.size() {
        return Err(Error::invalid(format!("it is truncated within {shown:?}")));
    }
    Ok(())
}

/// The name of a kind of entry that is not extracted; `None` for files and directories.
fn refused_kind(kind: EntryType) -> Option<&'static str> {
    if matches!(kind, EntryType::Directory | EntryType::Regular | EntryType::Continuous) {
        None
    } else if matches!(kind, EntryType::Symlink | EntryType::Link) {
        Some("a link")
    } else if matches!(kind, EntryType::Char | EntryType::Block | EntryType::Fifo) {
        Some("a device")
    } else {
        Some("neither a file nor a directory")
    }
}

/// The file that an entry is extracted to; `None` if it would be outside `into`.
fn target(path: &Path, into: &Path) -> Option<PathBuf> {
    if path.as_os_str().len() > MAX_PATH_BYTES || path.components().count() > MAX_PATH_DEPTH {
        return None;
    }
    let mut target = into.to_owned();
    for component in path.components() {
        match component {
            Component::Normal(part) => target.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(target)
}

/// A path for error messages, truncated.
fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().take(MAX_SHOWN_PATH).collect()
}

/// Counts packed and unpacked bytes, and enforces the limits. Shared by both readers.
#[derive(Clone)]
struct UnpackMeter(Rc<Counts>);

struct Counts {
    limits: ExtractionLimits,
    packed: Cell<u64>,
    unpacked: Cell<u64>,
    /// Unpacked bytes that may be read before [`UnpackMeter::allow`] is called again.
    allowed: Cell<u64>,
}

impl UnpackMeter {
    fn new(limits: ExtractionLimits) -> Self {
        let (packed, unpacked, allowed) = (Cell::new(0), Cell::new(0), Cell::new(0));
        UnpackMeter(Rc::new(Counts { limits, packed, unpacked, allowed }))
    }

    fn allow(&self, bytes: u64) {
        self.0.allowed.set(bytes);
    }

    fn count_packed(&self, bytes: u64) {
        self.0.packed.set(self.0.packed.get().saturating_add(bytes));
    }

    fn count_unpacked(&self, bytes: u64) -> io::Result<()> {
        let Counts { limits, packed, unpacked, allowed } = &*self.0;
        let total = unpacked.get().saturating_add(bytes);
        unpacked.set(total);
        if total > limits.bytes {
            return Err(over_limit(format!("it unpacks to more than {} bytes", limits.bytes)));
        }
        if total > packed.get().saturating_mul(limits.ratio).saturating_add(limits.free) {
            let message = format!("it unpacks to more than {} times its size", limits.ratio);
            return Err(over_limit(message));
        }
        let Some(left) = allowed.get().checked_sub(bytes) else {
            return Err(over_limit("the name or metadata of an entry is too long"));
        };
        allowed.set(left);
        Ok(())
    }
}

fn over_limit(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// A reader whose bytes are counted.
struct Metered<R> {
    inner: R,
    meter: UnpackMeter,
    is_packed: bool,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let bytes = u64::try_from(read).unwrap_or(u64::MAX);
        if self.is_packed {
            self.meter.count_packed(bytes);
        } else {
            self.meter.count_unpacked(bytes)?;
        }
        Ok(read)
    }
}

/// The directory of this user's unpacked archives, which is created if necessary.
fn cache_folder() -> Result<PathBuf> {
    let user = os::effective_user_id();
    let folder = std::env::temp_dir().join(format!("tensorserve-{user}"));
    match fs::DirBuilder::new().recursive(false).mode(0o700).create(&folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(cache_error(&folder, e));
        }
        _ => {}
    }
    // Every user can create directories there; only this user may be able to write to this one.
    let meta = fs::symlink_metadata(&folder).map_err(|e| cache_error(&folder, e))?;
    if !meta.is_dir() || meta.uid() != user || meta.mode() & 0o022 != 0 {
        let reason = "it is not a directory that only this user can write to; remove it";
        return Err(cache_error(&folder, io::Error::new(io::ErrorKind::PermissionDenied, reason)));
    }
    Ok(folder)
}

/// A name that changes with the archive's path, inode, size and times.
fn fingerprint(archive: &Path) -> Result<String> {
    let unreadable = |e| unreadable_archive(archive, e);
    let path = archive.canonicalize().map_err(unreadable)?;
    let meta = fs::metadata(&path).map_err(unreadable)?;
    let mut hasher = DefaultHasher::new();
    (&path, meta.dev(), meta.ino(), meta.len()).hash(&mut hasher);
    (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()).hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

fn invalid_archive(error: io::Error) -> Error {
    Error::invalid(format!("cannot unpack it: {error}")).with_source(error)
}

/// The error of an entry that cannot be written. It does not name the file below the target
/// directory: clients see the message.
fn unwritable_entry(shown: &str, error: io::Error) -> Error {
    use io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory};
    let is_archives_fault = matches!(error.kind(), AlreadyExists | IsADirectory | NotADirectory);
    let code = if is_archives_fault { Code::InvalidArgument } else { Code::of_io(&error) };
    Error::new(code, format!("{shown:?} cannot be written: {error}")).with_source(error)
}

/// The error of the directory of unpacked archives. Its path is only in the cause, which goes to the
/// log: clients see the message.
fn cache_error(folder: &Path, error: io::Error) -> Error {
    let message = format!("the directory for unpacked archives cannot be used: {}", error.kind());
    let cause = io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    Error::new(Code::of_io(&error), message).with_source(cause)
}

/// The error of an archive that cannot be read.
fn unreadable_archive(path: &Path, error: io::Error) -> Error {
    let message = format!("{} cannot be read: {error}", path.display());
    Error::new(Code::of_io(&error), message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;
    use tar::{Builder, Header};

    fn header(path: &str, kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        // Bypasses the library's own checks.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o777);
        header.set_cksum();
        header
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).expect("written");
        encoder.finish().expect("finished")
    }

    fn packed(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = header(path, *kind, content.len() as u64);
            if matches!(kind, EntryType::Symlink | EntryType::Link) {
                header.set_size(0);
                header.set_link_name("/etc/passwd").expect("fits");
                header.set_cksum();
                builder.append(&header, io::empty()).expect("written");
                continue;
            }
            builder.append(&header, *content).expect("written");
        }
        gzip(&builder.into_inner().expect("finished"))
    }

    /// Unpacks these bytes into `in/here` of the returned directory, so that a test can check
    /// whether anything escaped from there.
    fn unpack_bytes(bytes: &[u8], limits: &ExtractionLimits) -> (tempfile::TempDir, Result<()>) {
        let root = tempfile::tempdir().expect("temporary directory");
        let archive = root.path().join("model.tar.gz");
        fs::write(&archive, bytes).expect("written");
        let outcome = unpack(&archive, &root.path().join("in/here"), limits);
        (root, outcome)
    }

    const FILE: EntryType = EntryType::Regular;

    #[test]
    fn files_and_folders_come_out() {
        let long = "d/".repeat(60) + "file";
        let mut builder = Builder::new(Vec::new());
        let content: &[u8] = b"x";
        let mut header = Header::new_gnu();
        header.set_size(1);
        builder.append_data(&mut header, &long, content).expect("a long name");
        builder.append(&self::header("./1/a", FILE, 1), content).expect("written");
        builder.append(&self::header("code/", EntryType::Directory, 0), io::empty()).expect("ok");
        let tar = builder.into_inner().expect("finished");
        for bytes in [gzip(&tar), tar] {
            let (root, outcome) = unpack_bytes(&bytes, &ExtractionLimits::default());
            outcome.expect("unpacked");
            let into = root.path().join("in/here");
            assert_eq!(fs::read(into.join("1/a")).expect("read"), b"x");
            assert_eq!(fs::read(into.join(&long)).expect("read"), b"x");
            assert!(into.join("code").is_dir());
        }
    }

    #[test]
    fn nothing_gets_out_of_the_folder() {
        for path in ["../out", "/out", "a/../../out", "a/../out", "..", "./../../out"] {
            let (root, outcome) =
                unpack_bytes(&packed(&[(path, FILE, b"x")]), &ExtractionLimits::default());
            let error = outcome.expect_err(path);
            assert!(error.message().contains("leads out of the archive"), "{error}");
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(!root.path().join("in/out").exists() && !root.path().join("out").exists());
        }
    }

    #[test]
    fn links_and_devices_are_refused() {
        let kinds = [
            (EntryType::Symlink, "a link"),
            (EntryType::Link, "a link"),
            (EntryType::Char, "a device"),
            (EntryType::Block, "a device"),
            (EntryType::Fifo, "a device"),
            (EntryType::new(b'Z'), "neither"),
        ];
        for (kind, what) in kinds {
            let bytes = packed(&[("1/a", FILE, b"x"), ("1/b", kind, b"")]);
            let (root, outcome) = unpack_bytes(&bytes, &ExtractionLimits::default());
            let error = outcome.expect_err(what);
            assert!(error.message().contains(what), "{kind:?}: {error}");
            assert!(fs::symlink_metadata(root.path().join("in/here/1/b")).is_err());
        }
    }

    #[test]
    fn limits_hold() {
        let zeros = vec![0; 1 << 20];
        let bytes = packed(&[("a", FILE, &zeros), ("b", FILE, &zeros), ("c", FILE, b"")]);
        let limits = ExtractionLimits { bytes: 4 << 20, entries: 3, ratio: 10_000, free: 0 };
        unpack_bytes(&bytes, &limits).1.expect("within the limits");
        let refused =
            |limits: ExtractionLimits| unpack_bytes(&bytes, &limits).1.expect_err("too much");
        let error = refused(ExtractionLimits { bytes: 1 << 20, ..limits });
        assert!(error.message().contains("more than 1048576 bytes"), "{error}");
        let error = refused(ExtractionLimits { entries: 2, ..limits });
        assert!(error.message().contains("more than 2 files and directories"), "{error}");
        let error = refused(ExtractionLimits { ratio: 10, ..limits });
        assert!(error.message().contains("more than 10 times its size"), "{error}");
    }

    #[test]
    fn remarks_do_not_fill_the_memory() {
        // A name of 2 MiB, for an entry that does not follow.
        let name = vec![b'a'; 2 << 20];
        let bytes = packed(&[("././@LongLink", EntryType::GNULongName, &name)]);
        let error = unpack_bytes(&bytes, &ExtractionLimits::default()).1.expect_err("too long");
        assert!(error.message().contains("too long"), "{error}");
    }

    #[test]
    fn damage_is_told() {
        let whole = packed(&[("1/saved_model.pb", FILE, &[7; 5000])]);
        for bytes in [&whole[..whole.len() / 2], b"", b"no archive at all", &gzip(b"nor is this")] {
            let error = unpack_bytes(bytes, &ExtractionLimits::default()).1.expect_err("damaged");
            assert!(error.message().contains("model.tar.gz: "), "{error}");
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        }
    }

    /// What is lost or changed is only the gzip checksum, which is after the last entry.
    #[test]
    fn an_archive_is_checked_to_its_end() {
        let whole = packed(&[("1/saved_model.pb", FILE, &[7; 5000])]);
        let mut changed = whole.clone();
        changed[whole.len() - 6] ^= 0xff;
        for bytes in [&whole[..whole.len() - 6], &changed] {
            let error = unpack_bytes(bytes, &ExtractionLimits::default()).1.expect_err("damaged");
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        }
        // What may follow: zeros, and another member.
        let padded = [&*whole, &[0; 1000], &gzip(&[0; 10_240]), &[0; 10]].concat();
        unpack_bytes(&padded, &ExtractionLimits::default()).1.expect("unpacked");
        let followed = [&*whole, b"garbage"].concat();
        unpack_bytes(&followed, &ExtractionLimits::default()).1.expect_err("garbage");
    }

    #[test]
    fn what_follows_the_entries_counts_for_the_limits() {
        let whole = packed(&[("a", FILE, b"x")]);
        let bomb = [&*whole, &gzip(&vec![0; 1 << 20])].concat();
        let limits = ExtractionLimits { ratio: 10, free: 20_000, ..ExtractionLimits::default() };
        unpack_bytes(&whole, &limits).1.expect("within the limits");
        let error = unpack_bytes(&bomb, &limits).1.expect_err("too much");
        assert!(error.message().contains("more than 10 times its size"), "{error}");
    }

    #[test]
    fn an_error_does_not_name_the_target_directory() {
        let bytes = packed(&[("a", FILE, b"x"), ("a/b", FILE, b"x")]);
        let (root, outcome) = unpack_bytes(&bytes, &ExtractionLimits::default());
        let error = outcome.expect_err("a file that is a directory");
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains("\"a/b\" cannot be written"), "{error}");
        let target = root.path().join("in");
        assert!(!error.message().contains(&*target.to_string_lossy()), "{error}");
    }

    #[test]
    fn an_archive_is_unpacked_once() {
        let root = tempfile::tempdir().expect("temporary directory");
        let archive = root.path().join("model.tar.gz");
        fs::write(&archive, packed(&[("1/a", FILE, b"one")])).expect("written");
        let first = unpacked(&archive, &ExtractionLimits::default()).expect("unpacked");
        fs::write(first.join("mark"), b"").expect("written");
        let again = unpacked(&archive, &ExtractionLimits::default()).expect("unpacked");
        assert!(first == again && again.join("mark").exists());
        fs::write(&archive, packed(&[("1/a", FILE, b"two!")])).expect("written");
        let changed = unpacked(&archive, &ExtractionLimits::default()).expect("unpacked");
        assert_ne!(changed, first);
        assert_eq!(fs::read(changed.join("1/a")).expect("read"), b"two!");
        for folder in [first, changed] {
            fs::remove_dir_all(folder).expect("removed");
        }
    }
}
