//! Libraries of custom operations, which the user names: finds the files, loads each once and
//! before any model, and says plainly why one can not be loaded.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;

use super::ffi::Api;
use tensorserve_platform::CustomOps;
use tensorserve_proto::tensorflow::OpList;
use tensorserve_tensor::error::{Error, Result};

/// Loads the libraries at `paths`: files, and folders with any number of files `*.so`.
///
/// # Errors
/// One error with all that can not be loaded: an operation that is missing would only show when
/// a model asks for it.
pub(super) fn load(api: &Api, paths: &[PathBuf]) -> Result<Vec<CustomOps>> {
    let mut mistakes = Vec::new();
    let mut loaded: Vec<CustomOps> = Vec::new();
    for path in paths {
        let files = match files(path) {
            Ok(files) => files,
            Err(error) => {
                mistakes.push(error.to_string());
                continue;
            }
        };
        for file in files {
            if loaded.iter().any(|library| library.path == file) {
                continue;
            }
            match load_one(api, &file) {
                Ok(ops) => loaded.push(CustomOps { path: file, ops }),
                Err(error) => mistakes.push(error.to_string()),
            }
        }
    }
    if !mistakes.is_empty() {
        return Err(Error::invalid(mistakes.join("\n")));
    }
    for CustomOps { path, ops } in &loaded {
        log::info!("custom ops of {}: {}", path.display(), ops.join(", "));
    }
    Ok(loaded)
}

/// The libraries at `path`, sorted, under the names they have without links.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let shown = path.display();
    let unreadable =
        |e: std::io::Error| Error::invalid(format!("custom_op_paths: {shown}: {e}")).with_source(e);
    let real = path.canonicalize().map_err(unreadable)?;
    if !real.is_dir() {
        return Ok(vec![real]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(&real).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        if file.extension().is_some_and(|extension| extension == "so") {
            files.push(file.canonicalize().map_err(unreadable)?);
        }
    }
    if files.is_empty() {
        log::warn!("custom_op_paths: {shown}: there is no file *.so in this folder");
    }
    files.sort();
    Ok(files)
}

/// The names of the operations in the library `file`, sorted.
fn load_one(api: &Api, file: &Path) -> Result<Vec<String>> {
    let failed = |why: String| {
        Error::invalid(format!("custom ops of {} can not be loaded: {why}", file.display()))
    };
    if let Some(why) = stranger(file) {
        return Err(failed(why));
    }
    let list = api.load_library(file).map_err(|e| {
        failed(in_words(e.message(), &file.display().to_string(), &api.version())).with_source(e)
    })?;
    let list = OpList::decode(list.as_slice())
        .map_err(|e| failed("its list of operations is damaged".to_owned()).with_source(e))?;
    let mut ops: Vec<String> = list.op.into_iter().map(|op| op.name).collect();
    ops.sort();
    Ok(ops)
}

/// What is wrong with `file`, if it can be no whole library for this machine. The loader has no
/// such words, and one that is cut short can end the process.
fn stranger(file: &Path) -> Option<String> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(e) => return Some(format!("it can not be read: {e}")),
    };
    // 64 bits, and the low byte of each number first, as on every machine that we run on.
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return Some("it is no shared library (ELF of 64 bits)".to_owned());
    }
    let theirs = number(&bytes, 18, 2).map_or("an unknown machine", machine);
    let ours = match std::env::consts::ARCH {
        "x86_64" => machine(62),
        "aarch64" => machine(183),
        _ => theirs,
    };
    if theirs != ours {
        return Some(format!("it is a library for {theirs}, and this is {ours}"));
    }
    let whole = loaded_size(&bytes).is_some_and(|size| size <= bytes.len() as u64);
    (!whole).then(|| format!("it is cut short: {} bytes are not all of it", bytes.len()))
}

/// The machine with this number in an ELF file.
fn machine(number: u64) -> &'static str {
    match number {
        62 => "x86_64",
        183 => "aarch64",
        _ => "another machine",
    }
}

/// How many bytes of an ELF file the loader maps, by its program headers; `None` if they are not
/// all there.
fn loaded_size(bytes: &[u8]) -> Option<u64> {
    let (start, size, count) =
        (number(bytes, 32, 8)?, number(bytes, 54, 2)?, number(bytes, 56, 2)?);
    let mut end = 0;
    for index in 0..count {
        let header = usize::try_from(start.checked_add(index * size)?).ok()?;
        let (offset, length) =
            (number(bytes, header.checked_add(8)?, 8)?, number(bytes, header.checked_add(32)?, 8)?);
        end = end.max(offset.checked_add(length)?);
    }
    Some(end)
}

/// The number in `length` bytes from `at` on.
fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// The loader's complaint about `file` in words that say what to do.
fn in_words(complaint: &str, file: &str, version: &str) -> String {
    let complaint = complaint.strip_prefix(file).unwrap_or(complaint);
    let complaint = complaint.trim_start_matches([':', ' ']);
    if let Some((_, symbol)) = complaint.split_once("undefined symbol: ") {
        return format!(
            "libtensorflow {version} has no symbol {symbol}, which it needs; build it against \
             TensorFlow {version}, with the flags of tf.sysconfig"
        );
    }
    if complaint.contains("version `") && complaint.contains("not found") {
        return format!("it was built for a newer system: {complaint}");
    }
    if let Some((library, _)) = complaint.split_once(": cannot open shared object file") {
        return format!(
            "it needs the library {library}, which is not found; put it on LD_LIBRARY_PATH"
        );
    }
    complaint.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_say_what_to_do() {
        let words = |complaint| in_words(complaint, "/ops/a.so", "2.21.0");
        let text = words("/ops/a.so: undefined symbol: _ZN10tensorflow3FooE");
        assert!(text.starts_with("libtensorflow 2.21.0 has no symbol _ZN10tensorflow3FooE,"));
        assert!(text.contains("build it against TensorFlow 2.21.0"), "{text}");
        let text = words("libx.so.1: cannot open shared object file: No such file or directory");
        assert!(text.contains("needs the library libx.so.1"), "{text}");
        let text = words("/lib/libc.so.6: version `GLIBC_2.99' not found (required by /ops/a.so)");
        assert!(text.contains("newer system") && text.contains("GLIBC_2.99"), "{text}");
        assert_eq!(words("/ops/a.so: something else"), "something else");
    }

    #[test]
    fn strangers_are_known_by_their_head() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("a.so");
        let stranger_of = |bytes: &[u8]| {
            fs::write(&file, bytes).expect("written");
            stranger(&file)
        };
        let text = "it is no shared library (ELF of 64 bits)";
        assert_eq!(stranger_of(b"int main() { return 0; }").as_deref(), Some(text));
        assert_eq!(stranger_of(b"").as_deref(), Some(text));
        let (ours, theirs) = if cfg!(target_arch = "x86_64") { (62, 183) } else { (183, 62) };
        // One program header behind the head, which maps 200 bytes.
        let mut elf = vec![0; 200];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[18], elf[32], elf[54], elf[56]) = (theirs, 64, 56, 1);
        elf[64 + 32] = 200;
        let why = stranger_of(&elf).expect("another machine's");
        assert!(why.contains("x86_64") && why.contains("aarch64"), "{why}");
        elf[18] = ours;
        assert_eq!(stranger_of(&elf), None);
        for length in [20, 60, 100, 199] {
            let why = stranger_of(&elf[..length]).expect("cut short");
            assert!(why.contains("cut short"), "{length}: {why}");
        }
        elf[32..40].fill(0xff);
        assert!(stranger_of(&elf).expect("headers nowhere").contains("cut short"));
    }

    #[test]
    fn a_folder_gives_its_libraries_and_a_missing_one_is_a_mistake() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for name in ["b.so", "a.so", "a.so.1", "readme.txt"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let found = files(folder.path()).expect("a folder");
        let names: Vec<_> = found.iter().filter_map(|f| f.file_name()?.to_str()).collect();
        assert_eq!(names, ["a.so", "b.so"]);
        let error = files(Path::new("/no/such/ops")).expect_err("missing");
        assert!(error.message().contains("/no/such/ops"), "{error}");
    }
}
