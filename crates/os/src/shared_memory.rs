//! POSIX shared memory objects, as files. They are read and written, not mapped: a mapping of an object
//! that another process shrinks ends the process that touches it.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Where Linux has the objects.
const OBJECTS: &str = "/dev/shm";

/// The most bytes of a name, without its slash (`NAME_MAX`).
const LONGEST_NAME: usize = 255;

/// Opens the object `key`: a name after at most one slash, as `shm_open` takes it.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for anything but a plain name; what the system reports.
pub fn open(key: &str) -> Result<File> {
    let name = key.strip_prefix('/').unwrap_or(key);
    let is_plain = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    if !is_plain || name.len() > LONGEST_NAME {
        return Err(Error::from(ErrorKind::InvalidInput));
    }
    // Neither a link to another file nor a pipe that never ends.
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).custom_flags(flags).open(Path::new(OBJECTS).join(name))?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Error::from(ErrorKind::InvalidInput)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_opened() {
        for key in ["", "/", ".", "..", "/..", "a/b", "//a", "/a/", "../etc/passwd", "a\0b"] {
            assert_eq!(open(key).expect_err(key).kind(), ErrorKind::InvalidInput, "{key:?}");
        }
        assert_eq!(open(&"a".repeat(256)).expect_err("long").kind(), ErrorKind::InvalidInput);
        let missing = open("/tensorserve-test-of-nothing").expect_err("missing");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
