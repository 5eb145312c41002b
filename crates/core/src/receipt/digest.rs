//! The digest of a version: SHA-256 over the list that `sha256sum` prints of its files, so that anyone can compute it
//! with the tools of a shell.

use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use ring::digest::{Context, SHA256, digest};

use super::hash::{hash_text, hexadecimal};
use tensorserve_os::files;
use tensorserve_platform::states::FileStates;
use tensorserve_tensor::error::{Code, Error, Result};

/// Python keeps what it compiles in directories of this name, beside what it reads.
const PYTHON_CACHE: &str = "__pycache__";

/// How much of a file is read at once.
const PART: usize = 1 << 20;

/// The digest of the version at `path`: a directory, a file, or the files whose names begin with its last part.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn of_version(path: &Path) -> Result<String> {
    let root = match path.is_dir() {
        true => path,
        false => path.parent().unwrap_or(path),
    };
    let states = FileStates::of(path);
    let mut named: Vec<(Vec<u8>, PathBuf)> = states
        .files()
        .filter_map(|file| Some((name_of(file.strip_prefix(root).ok()?)?, file.to_owned())))
        .collect();
    named.sort();
    let mut list = Vec::new();
    for (name, file) in named {
        let hash = of_file(&file).map_err(|e| {
            let message = format!("{}: it cannot be read for the digest: {e}", file.display());
            Error::new(Code::of_io(&e), message).with_source(e)
        })?;
        append(&hash, &name, &mut list);
    }
    Ok(hash_text(digest(&SHA256, &list)))
}

/// The name of a file in the list: its path in the version. `None` for what Python keeps.
fn name_of(relative: &Path) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    for part in relative.components() {
        let Component::Normal(part) = part else { continue };
        if part == PYTHON_CACHE {
            return None;
        }
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(part.as_encoded_bytes());
    }
    Some(name)
}

/// Adds a line as `sha256sum` writes it.
fn append(hash: &str, name: &[u8], list: &mut Vec<u8>) {
    let escaped = |byte: &u8| matches!(byte, b'\\' | b'\n' | b'\r');
    if name.iter().any(escaped) {
        list.push(b'\\');
    }
    list.extend_from_slice(hash.as_bytes());
    list.extend_from_slice(b"  ");
    for byte in name {
        match byte {
            b'\\' => list.extend_from_slice(b"\\\\"),
            b'\n' => list.extend_from_slice(b"\\n"),
            b'\r' => list.extend_from_slice(b"\\r"),
            other => list.push(*other),
        }
    }
    list.push(b'\n');
}

/// The SHA-256 of a file, in hexadecimal digits.
fn of_file(path: &Path) -> io::Result<String> {
    let mut file = files::open(path)?;
    let (mut context, mut part) = (Context::new(&SHA256), vec![0; PART]);
    loop {
        let read = file.read(&mut part)?;
        match part.get(..read) {
            Some([]) | None => return Ok(hexadecimal(context.finish())),
            Some(bytes) => context.update(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::{Duration, SystemTime};

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn it_is_the_hash_of_what_sha256sum_prints() {
        let place = tempfile::tempdir().expect("temporary directory");
        let version = place.path().join("1");
        write(&version.join("b.pb"), "two");
        write(&version.join("b/data"), "one");
        write(&version.join("a\\\n"), "");
        write(&version.join("code/__pycache__/x.pyc"), "changes");
        let of = |text: &str| hexadecimal(digest(&SHA256, text.as_bytes()));
        // By bytes: '.' comes before '/'.
        let list = format!("\\{}  a\\\\\\n\n{}  b.pb\n{}  b/data\n", of(""), of("two"), of("one"));
        assert_eq!(of_version(&version).expect("a digest"), format!("sha256:{}", of(&list)));
    }

    #[test]
    fn contents_and_names_count_and_times_do_not() {
        let place = tempfile::tempdir().expect("temporary directory");
        let version = place.path().join("1");
        let file = version.join("model.onnx");
        write(&file, "weights");
        let first = of_version(&version).expect("a digest");
        let earlier = SystemTime::now() - Duration::from_secs(3600);
        let opened = fs::File::options().write(true).open(&file).expect("a file");
        opened.set_modified(earlier).expect("set");
        assert_eq!(of_version(&version).expect("a digest"), first);
        // The same file as a model of its own, and in another place.
        assert_eq!(of_version(&file).expect("a digest"), first);
        let copy = place.path().join("other/2/model.onnx");
        write(&copy, "weights");
        assert_eq!(of_version(copy.parent().expect("a directory")).expect("a digest"), first);
        write(&copy, "weightz");
        assert_ne!(of_version(&copy).expect("a digest"), first);
        fs::rename(&file, version.join("m.onnx")).expect("renamed");
        assert_ne!(of_version(&version).expect("a digest"), first);
    }

    #[test]
    fn the_files_of_a_prefix_are_one_version() {
        let place = tempfile::tempdir().expect("temporary directory");
        write(&place.path().join("m-symbol.json"), "{}");
        write(&place.path().join("m-0000.params"), "1");
        write(&place.path().join("other"), "x");
        let first = of_version(&place.path().join("m")).expect("a digest");
        write(&place.path().join("other"), "y");
        assert_eq!(of_version(&place.path().join("m")).expect("a digest"), first);
        write(&place.path().join("m-0000.params"), "2");
        assert_ne!(of_version(&place.path().join("m")).expect("a digest"), first);
    }
}
