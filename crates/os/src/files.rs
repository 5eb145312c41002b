//! Opens files that others put where the server finds them: those of a model's folder.
//!
//! A name in such a folder may be a pipe that nobody writes to, a device without an end, or a link to a file that
//! is none of the model's. Only regular files are opened, no call waits, and no read is longer than its caller
//! allows.

use std::fs::{File, Metadata, OpenOptions, metadata, read_link};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens the regular file at `path` to read it. Never waits.
///
/// # Errors
/// If it cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> Result<File> {
    // Before it is opened, which does something of its own on some devices.
    check_regular(&metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// [`open`], where links may lead to any place in `folder`, or, if that is a version's (its name is a number), in
/// the folder that it is in, which is the model's. Folders may be links themselves.
///
/// # Errors
/// As [`open`]; [`ErrorKind::PermissionDenied`] if the file is in another place.
pub fn open_within(folder: &Path, path: &Path) -> Result<File> {
    let file = open(path)?;
    // What was opened and not what the path names now.
    let real = read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let is_in = |folder: &Path| folder.canonicalize().is_ok_and(|folder| real.starts_with(folder));
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if is_in(folder) || (is_of_version(folder) && folder.parent().is_some_and(is_in)) {
        return Ok(file);
    }
    let why = "it is a link to a file outside of the model's folder; put a copy of that file into the folder";
    Err(Error::new(ErrorKind::PermissionDenied, why))
}

/// Whether a folder has the name of a model's version.
#[must_use]
pub fn is_of_version(folder: &Path) -> bool {
    folder.file_name().and_then(|name| name.to_str()).is_some_and(names_version)
}

/// Whether a directory of this name is a version: only digits.
#[must_use]
pub fn names_version(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// The whole content of a file.
///
/// # Errors
/// If it cannot be read; [`ErrorKind::FileTooLarge`] if it has more than `most` bytes.
pub fn read(file: &File, most: u64) -> Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let Some(length) = usize::try_from(length).ok().filter(|_| length <= most) else {
        let why = format!("it has {length} bytes; at most {most} are allowed");
        return Err(Error::new(ErrorKind::FileTooLarge, why));
    };
    let mut bytes = vec![0; length];
    // A positioned read: it is done in pieces, so that other threads can run in between.
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// What a name is that is neither a file nor a directory, if to open it can take for ever or never end.
#[must_use]
pub fn endless_kind(found: &Metadata) -> Option<&'static str> {
    let kind = found.file_type();
    match () {
        () if kind.is_fifo() => Some("a named pipe"),
        () if kind.is_char_device() || kind.is_block_device() => Some("a device"),
        () => None,
    }
}

fn check_regular(found: &Metadata) -> Result<()> {
    if found.is_file() {
        return Ok(());
    }
    if found.is_dir() {
        return Err(Error::from_raw_os_error(libc::EISDIR));
    }
    let kind = endless_kind(found).unwrap_or("a socket");
    Err(Error::new(ErrorKind::InvalidInput, format!("it is {kind}, and not a regular file")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    fn refused(opened: Result<File>) -> String {
        opened.expect_err("refused").to_string()
    }

    #[test]
    fn only_regular_files_are_opened_and_none_is_waited_for() {
        let folder = tempfile::tempdir().expect("a directory");
        let at = |name: &str| folder.path().join(name);
        assert!(Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo").success());
        symlink(at("pipe"), at("link")).expect("a link");
        symlink("/dev/zero", at("zero")).expect("a link");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
        for (name, kind) in [
            ("pipe", "pipe"),
            ("link", "pipe"),
            ("zero", "device"),
            ("socket", "socket"),
            (".", "directory"),
        ] {
            let why = refused(open(&at(name)));
            assert!(why.contains(kind), "{name}: {why}");
        }
        fs::write(at("file"), "1234").expect("written");
        let file = open(&at("file")).expect("regular");
        assert_eq!(read(&file, 4).expect("as long as allowed"), b"1234");
        assert_eq!(read(&file, 3).expect_err("longer").kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn links_lead_to_no_place_outside_of_the_models_folder() {
        let place = tempfile::tempdir().expect("a directory");
        let at = |name: &str| place.path().join(name);
        fs::create_dir_all(at("m/1")).expect("directories");
        fs::create_dir_all(at("m/..data")).expect("directories");
        for file in ["m/labels", "m/1/own", "m/..data/words", "secret", "m2"] {
            fs::write(at(file), file).expect("written");
        }
        // Kubernetes links files through a link to a directory; a link may name the model's other files.
        symlink("..data/words", at("m/words")).expect("a link");
        symlink("../labels", at("m/1/labels")).expect("a link");
        symlink(at("secret"), at("m/1/secret")).expect("a link");
        symlink("../../m2", at("m/1/beside")).expect("a link");
        symlink(at("m"), at("linked")).expect("a link");
        let within = |folder: &str, name: &str| open_within(&at(folder), &at(folder).join(name));
        for (folder, name) in [
            ("m", "words"),
            ("m/1", "own"),
            ("m/1", "labels"),
            ("linked", "words"),
            ("linked/1", "labels"),
        ] {
            assert!(within(folder, name).is_ok(), "{folder} {name}");
        }
        for (folder, name) in
            [("m/1", "secret"), ("m/1", "beside"), ("m", "1/secret"), ("linked", "1/beside")]
        {
            let why = refused(within(folder, name));
            assert!(why.contains("outside of the model's folder"), "{folder} {name}: {why}");
        }
    }
}
