//! Unpacks `model.tar.gz`: from anyone, onto a disk of ours.
//!
//! Only files and folders come out, only below the folder they are unpacked into, and no more of
//! them than the limits allow. Nothing of an archive that is refused stays.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::cell::Cell;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::process;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use flate2::read::MultiGzDecoder;
use tar::{Archive, Entry, EntryType};

use tensorserve_os as os;
use tensorserve_tensor::error::{Code, Error, Result};

/// Bounds on what comes out of an archive.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes, all together.
    pub bytes: u64,
    /// Files and folders.
    pub entries: usize,
    /// How many times larger than the archive it may be…
    pub ratio: u64,
    /// …beyond this many bytes.
    pub free: u64,
}

impl Default for Limits {
    /// Room for every model that has a use, and none for an archive that is a trap.
    fn default() -> Self {
        Limits { bytes: 64 << 30, entries: 100_000, ratio: 200, free: 256 << 20 }
    }
}

/// The most bytes between two entries: long names and other remarks on the next one.
const MOST_REMARKS: u64 = 1 << 20;

/// The longest path of an entry, in bytes and in folders.
const LONGEST_PATH: usize = 4096;
const DEEPEST_PATH: usize = 64;

/// Whether `path` is to be unpacked: a file, and not a folder.
#[must_use]
pub fn is_archive(path: &Path) -> bool {
    path.is_file()
}

/// The folder with what is in `archive`, which is unpacked if that was not done before.
///
/// It is kept among this user's temporary files; an archive that was changed is unpacked again,
/// beside what it was.
///
/// # Errors
/// As [`unpack`]; if there is no place for temporary files, or it is someone else's.
pub fn unpacked(archive: &Path, limits: &Limits) -> Result<PathBuf> {
    let home = home()?;
    let folder = home.join(identity(archive)?);
    if folder.is_dir() {
        return Ok(folder);
    }
    static ATTEMPTS: AtomicU64 = AtomicU64::new(0);
    let attempt = ATTEMPTS.fetch_add(1, Relaxed);
    let partial = home.join(format!("partial-{}-{attempt}", process::id()));
    let done = unpack(archive, &partial, limits).and_then(|()| {
        match fs::rename(&partial, &folder) {
            // Another process was faster.
            Err(_) if folder.is_dir() => fs::remove_dir_all(&partial),
            other => other,
        }
        .map_err(|e| failed(&folder, "can not be written", e))
    });
    if done.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    done.map(|()| folder)
}

/// Unpacks `archive`, a tar file or a gzipped one, into the new folder `into`.
///
/// # Errors
/// [`Code::InvalidArgument`] for what is no archive, is cut short, exceeds the limits, or holds
/// anything but files and folders with paths that stay below `into`. What came out of it before
/// is left there.
pub fn unpack(archive: &Path, into: &Path, limits: &Limits) -> Result<()> {
    let at = |e: Error| e.context(archive.display());
    let file = File::open(archive).map_err(|e| failed(archive, "can not be read", e))?;
    fs::create_dir_all(into).map_err(|e| failed(into, "can not be made", e))?;
    let meter = Meter::new(*limits);
    let packed = Metered { inner: BufReader::new(file), meter: meter.clone(), is_packed: true };
    let unpacking = |reader: &mut dyn Read| {
        let reader = Metered { inner: reader, meter: meter.clone(), is_packed: false };
        unpack_entries(&mut Archive::new(reader), into, &meter, limits)
    };
    let mut packed = BufReader::new(packed);
    let is_gzip = io::BufRead::fill_buf(&mut packed)
        .map_err(|e| failed(archive, "can not be read", e))?
        .starts_with(&[0x1f, 0x8b]);
    let unpacked =
        if is_gzip { unpacking(&mut MultiGzDecoder::new(packed)) } else { unpacking(&mut packed) };
    unpacked.map_err(at)
}

fn unpack_entries<R: Read>(
    archive: &mut Archive<R>,
    into: &Path,
    meter: &Meter,
    limits: &Limits,
) -> Result<()> {
    let mut count = 0;
    meter.allow(MOST_REMARKS);
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        count += 1;
        if count > limits.entries {
            let most = limits.entries;
            return Err(Error::invalid(format!("it holds more than {most} files and folders")));
        }
        // What fills the last block belongs to it.
        meter.allow(entry.size().saturating_add(1024));
        unpack_entry(&mut entry, into)?;
        meter.allow(MOST_REMARKS);
    }
    if count == 0 {
        return Err(Error::invalid("it is no archive, or an empty one; a model.tar.gz is wanted"));
    }
    Ok(())
}

fn unpack_entry<R: Read>(entry: &mut Entry<'_, R>, into: &Path) -> Result<()> {
    let path = entry.path().map_err(broken)?.into_owned();
    let kind = entry.header().entry_type();
    let shown = shown(&path);
    if matches!(kind, EntryType::XGlobalHeader) {
        return Ok(());
    }
    let Some(target) = target(&path, into) else {
        return Err(Error::invalid(format!("the path of {shown:?} leads out of the archive")));
    };
    let is_folder = kind == EntryType::Directory;
    if !is_folder && !matches!(kind, EntryType::Regular | EntryType::Continuous) {
        let what = if matches!(kind, EntryType::Symlink | EntryType::Link) {
            "a link"
        } else if matches!(kind, EntryType::Char | EntryType::Block | EntryType::Fifo) {
            "a device"
        } else {
            "neither a file nor a folder"
        };
        return Err(Error::invalid(format!(
            "{shown:?} is {what}; a model's archive may hold files and folders only"
        )));
    }
    let unwritten = |e: io::Error| failed(&target, "can not be written", e);
    if is_folder {
        return fs::create_dir_all(&target).map_err(unwritten);
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(unwritten)?;
    }
    let mut file = File::create(&target).map_err(unwritten)?;
    let copied = io::copy(entry, &mut file).map_err(broken)?;
    if copied != entry.size() {
        return Err(Error::invalid(format!("it is cut short, within {shown:?}")));
    }
    Ok(())
}

/// Where an entry goes; nothing if that would be outside.
fn target(path: &Path, into: &Path) -> Option<PathBuf> {
    if path.as_os_str().len() > LONGEST_PATH || path.components().count() > DEEPEST_PATH {
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

/// A path as it can be shown.
fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().take(200).collect()
}

/// What has been read, and what may be.
#[derive(Clone)]
struct Meter(Rc<Counts>);

struct Counts {
    limits: Limits,
    packed: Cell<u64>,
    unpacked: Cell<u64>,
    /// What may be read until the next step.
    allowed: Cell<u64>,
}

impl Meter {
    fn new(limits: Limits) -> Self {
        let (packed, unpacked, allowed) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Meter(Rc::new(Counts { limits, packed, unpacked, allowed }))
    }

    fn allow(&self, bytes: u64) {
        self.0.allowed.set(bytes);
    }

    fn count_unpacked(&self, bytes: u64) -> io::Result<()> {
        let Counts { limits, packed, unpacked, allowed } = &*self.0;
        let all = unpacked.get().saturating_add(bytes);
        unpacked.set(all);
        let refuse = |message: String| Err(io::Error::new(io::ErrorKind::InvalidData, message));
        if all > limits.bytes {
            return refuse(format!("more than {} bytes would come out of it", limits.bytes));
        }
        let largest = packed.get().saturating_mul(limits.ratio).saturating_add(limits.free);
        if all > largest {
            return refuse(format!(
                "more than {} times its size would come out of it",
                limits.ratio
            ));
        }
        match allowed.get().checked_sub(bytes) {
            Some(left) => allowed.set(left),
            None => return refuse("an entry's name or remarks are too long".to_owned()),
        }
        Ok(())
    }
}

/// A reader whose bytes are counted.
struct Metered<R> {
    inner: R,
    meter: Meter,
    is_packed: bool,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let bytes = u64::try_from(read).unwrap_or(u64::MAX);
        if self.is_packed {
            let packed = &self.meter.0.packed;
            packed.set(packed.get().saturating_add(bytes));
        } else {
            self.meter.count_unpacked(bytes)?;
        }
        Ok(read)
    }
}

/// The folder of this user's unpacked archives.
fn home() -> Result<PathBuf> {
    let user = os::effective_user_id();
    let home = std::env::temp_dir().join(format!("tensorserve-{user}"));
    let made = fs::DirBuilder::new().recursive(false).mode(0o700).create(&home);
    match made {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed(&home, "can not be made", e));
        }
        _ => {}
    }
    // Everyone can make folders there; nobody else may write into this one.
    let meta = fs::symlink_metadata(&home).map_err(|e| failed(&home, "can not be read", e))?;
    if !meta.is_dir() || meta.uid() != user || meta.mode() & 0o022 != 0 {
        let message = format!(
            "{} is not a folder that only this user can write to; remove it",
            home.display()
        );
        return Err(Error::new(Code::PermissionDenied, message));
    }
    Ok(home)
}

/// A name for the archive as it is now.
fn identity(archive: &Path) -> Result<String> {
    let unreadable = |e| failed(archive, "can not be read", e);
    let path = archive.canonicalize().map_err(unreadable)?;
    let meta = fs::metadata(&path).map_err(unreadable)?;
    let mut hasher = DefaultHasher::new();
    (&path, meta.dev(), meta.ino(), meta.len()).hash(&mut hasher);
    (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()).hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

fn broken(error: io::Error) -> Error {
    Error::invalid(format!("it can not be unpacked: {error}")).with_source(error)
}

fn failed(path: &Path, what: &str, error: io::Error) -> Error {
    let message = format!("{} {what}: {error}", path.display());
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
        // Not through the library's own checks.
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

    /// Unpacks these bytes; the second folder is there to see whether anything gets into it.
    fn unpack_bytes(bytes: &[u8], limits: &Limits) -> (tempfile::TempDir, Result<()>) {
        let root = tempfile::tempdir().expect("temporary folder");
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
            let (root, outcome) = unpack_bytes(&bytes, &Limits::default());
            outcome.expect("unpacked");
            let into = root.path().join("in/here");
            assert_eq!(fs::read(into.join("1/a")).expect("there"), b"x");
            assert_eq!(fs::read(into.join(&long)).expect("there"), b"x");
            assert!(into.join("code").is_dir());
        }
    }

    #[test]
    fn nothing_gets_out_of_the_folder() {
        for path in ["../out", "/out", "a/../../out", "a/../out", "..", "./../../out"] {
            let (root, outcome) = unpack_bytes(&packed(&[(path, FILE, b"x")]), &Limits::default());
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
            let (root, outcome) = unpack_bytes(&bytes, &Limits::default());
            let error = outcome.expect_err(what);
            assert!(error.message().contains(what), "{kind:?}: {error}");
            assert!(fs::symlink_metadata(root.path().join("in/here/1/b")).is_err());
        }
    }

    #[test]
    fn limits_hold() {
        let zeros = vec![0; 1 << 20];
        let bytes = packed(&[("a", FILE, &zeros), ("b", FILE, &zeros), ("c", FILE, b"")]);
        let limits = Limits { bytes: 4 << 20, entries: 3, ratio: 10_000, free: 0 };
        unpack_bytes(&bytes, &limits).1.expect("within the limits");
        let refused = |limits: Limits| unpack_bytes(&bytes, &limits).1.expect_err("too much");
        let error = refused(Limits { bytes: 1 << 20, ..limits });
        assert!(error.message().contains("more than 1048576 bytes"), "{error}");
        let error = refused(Limits { entries: 2, ..limits });
        assert!(error.message().contains("more than 2 files and folders"), "{error}");
        let error = refused(Limits { ratio: 10, ..limits });
        assert!(error.message().contains("more than 10 times its size"), "{error}");
    }

    #[test]
    fn remarks_do_not_fill_the_memory() {
        // A name of 2 MiB, for an entry that never comes.
        let name = vec![b'a'; 2 << 20];
        let bytes = packed(&[("././@LongLink", EntryType::GNULongName, &name)]);
        let error = unpack_bytes(&bytes, &Limits::default()).1.expect_err("too long");
        assert!(error.message().contains("too long"), "{error}");
    }

    #[test]
    fn damage_is_told() {
        let whole = packed(&[("1/saved_model.pb", FILE, &[7; 5000])]);
        for bytes in [&whole[..whole.len() / 2], b"", b"no archive at all", &gzip(b"nor is this")] {
            let error = unpack_bytes(bytes, &Limits::default()).1.expect_err("damaged");
            assert!(error.message().contains("model.tar.gz: "), "{error}");
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        }
    }

    #[test]
    fn an_archive_is_unpacked_once() {
        let root = tempfile::tempdir().expect("temporary folder");
        let archive = root.path().join("model.tar.gz");
        fs::write(&archive, packed(&[("1/a", FILE, b"one")])).expect("written");
        let first = unpacked(&archive, &Limits::default()).expect("unpacked");
        fs::write(first.join("mark"), b"").expect("written");
        let again = unpacked(&archive, &Limits::default()).expect("there");
        assert!(first == again && again.join("mark").exists());
        fs::write(&archive, packed(&[("1/a", FILE, b"two!")])).expect("written");
        let changed = unpacked(&archive, &Limits::default()).expect("unpacked");
        assert_ne!(changed, first);
        assert_eq!(fs::read(changed.join("1/a")).expect("there"), b"two!");
        for folder in [first, changed] {
            fs::remove_dir_all(folder).expect("removed");
        }
    }
}
