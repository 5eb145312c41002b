//! Loads the libraries of custom operations that the user names, each once and before any model,
//! and explains why one cannot be loaded.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use prost::Message;

use super::ffi::TensorFlowApi;
use tensorserve_platform::CustomOps;
use tensorserve_proto::tensorflow::OpList;
use tensorserve_tensor::error::{Error, Result};

/// Loads the libraries at `paths`: files, and folders with files `*.so`.
///
/// # Errors
/// One error with all libraries that cannot be loaded. Otherwise a missing operation would only
/// show when a model needs it.
pub(super) fn load(api: &TensorFlowApi, paths: &[PathBuf]) -> Result<Vec<CustomOps>> {
    let mut errors = Vec::new();
    let mut loaded: Vec<CustomOps> = Vec::new();
    for path in paths {
        let files = match files(path) {
            Ok(files) => files,
            Err(error) => {
                errors.push(error.to_string());
                continue;
            }
        };
        for file in files {
            if loaded.iter().any(|library| library.path == file) {
                continue;
            }
            match load_one(api, &file) {
                Ok(ops) => loaded.push(CustomOps { path: file, ops }),
                Err(error) => errors.push(error.to_string()),
            }
        }
    }
    if !errors.is_empty() {
        return Err(Error::invalid(errors.join("\n")));
    }
    for CustomOps { path, ops } in &loaded {
        log::info!("custom ops of {}: {}", path.display(), ops.join(", "));
    }
    Ok(loaded)
}

/// The libraries at `path` by their canonical paths, sorted.
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
        log::warn!("custom_op_paths: {shown}: this folder has no files *.so");
    }
    files.sort();
    Ok(files)
}

/// Loads the library `file` and returns the names of its operations, sorted.
fn load_one(api: &TensorFlowApi, file: &Path) -> Result<Vec<String>> {
    let failed = |reason: String| {
        Error::invalid(format!("custom ops of {} cannot be loaded: {reason}", file.display()))
    };
    if let Some(reason) = incompatibility(file) {
        return Err(failed(reason));
    }
    let list = api.load_library(file).map_err(|e| {
        failed(explain(e.message(), &file.display().to_string(), &api.version())).with_source(e)
    })?;
    let list = OpList::decode(list.as_slice())
        .map_err(|e| failed("its list of operations is invalid".to_owned()).with_source(e))?;
    let mut ops: Vec<String> = list.op.into_iter().map(|op| op.name).collect();
    ops.sort();
    Ok(ops)
}

/// The parts of an ELF file (64 bits, little-endian) that are checked, as offset and size in bytes.
mod elf {
    use std::ops::Range;

    /// The first bytes: the magic number, 64 bits, little-endian.
    pub(super) const MAGIC: &[u8] = b"\x7fELF\x02\x01";
    /// The machine, and the numbers of those that we run on.
    pub(super) const MACHINE: Range<usize> = 18..20;
    pub(super) const X86_64: u64 = 62;
    pub(super) const AARCH64: u64 = 183;
    /// Offset, size and number of the program headers.
    pub(super) const HEADERS_OFFSET: Range<usize> = 32..40;
    pub(super) const HEADER_SIZE: Range<usize> = 54..56;
    pub(super) const HEADER_COUNT: Range<usize> = 56..58;
    /// Within a program header, the offset and the size of its segment in the file.
    pub(super) const SEGMENT_OFFSET: Range<usize> = 8..16;
    pub(super) const SEGMENT_SIZE: Range<usize> = 32..40;
}

/// Why `file` cannot be a complete library for this machine. The loader reports none of this, and a
/// truncated library can crash the process.
fn incompatibility(file: &Path) -> Option<String> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(e) => return Some(format!("it cannot be read: {e}")),
    };
    if !bytes.starts_with(elf::MAGIC) {
        return Some("it is not a shared library (64-bit ELF)".to_owned());
    }
    let library_machine = number(&bytes, elf::MACHINE).map_or("an unknown machine", machine);
    let this_machine = match std::env::consts::ARCH {
        "x86_64" => machine(elf::X86_64),
        "aarch64" => machine(elf::AARCH64),
        _ => library_machine,
    };
    if library_machine != this_machine {
        return Some(format!(
            "it is a library for {library_machine}, but this machine is {this_machine}"
        ));
    }
    let is_complete = mapped_size(&bytes).is_some_and(|size| size <= bytes.len() as u64);
    (!is_complete).then(|| format!("it is truncated: it has only {} bytes", bytes.len()))
}

/// The machine with this number in an ELF file.
fn machine(number: u64) -> &'static str {
    match number {
        elf::X86_64 => "x86_64",
        elf::AARCH64 => "aarch64",
        _ => "another machine",
    }
}

/// The size of the part of an ELF file that the loader maps, by its program headers; `None` if one
/// of these is missing.
fn mapped_size(bytes: &[u8]) -> Option<u64> {
    let start = number(bytes, elf::HEADERS_OFFSET)?;
    let (size, count) = (number(bytes, elf::HEADER_SIZE)?, number(bytes, elf::HEADER_COUNT)?);
    let mut end = 0;
    for index in 0..count {
        let header = bytes.get(usize::try_from(start.checked_add(index * size)?).ok()?..)?;
        let offset = number(header, elf::SEGMENT_OFFSET)?;
        end = end.max(offset.checked_add(number(header, elf::SEGMENT_SIZE)?)?);
    }
    Some(end)
}

/// The little-endian number in these bytes.
fn number(bytes: &[u8], range: Range<usize>) -> Option<u64> {
    let bytes = bytes.get(range)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// Explains the loader's message about `file`, and what to do.
fn explain(message: &str, file: &str, version: &str) -> String {
    let message = message.strip_prefix(file).unwrap_or(message);
    let message = message.trim_start_matches([':', ' ']);
    if let Some((_, symbol)) = message.split_once("undefined symbol: ") {
        return format!(
            "libtensorflow {version} has no symbol {symbol}, which it needs; build it against \
             TensorFlow {version}, with the flags of tf.sysconfig"
        );
    }
    if message.contains("version `") && message.contains("not found") {
        return format!("it was built for a newer system: {message}");
    }
    if let Some((library, _)) = message.split_once(": cannot open shared object file") {
        return format!(
            "it needs the library {library}, which was not found; add its folder to \
             LD_LIBRARY_PATH"
        );
    }
    message.to_owned()
}

/// Operations that TensorFlow Serving has built in: how their names begin, the Python package that has them,
/// and their libraries in it.
const BUILT_IN_THERE: [(&[&str], &str, &str); 2] = [
    (
        &[
            "TFText>",
            "CaseFoldUTF8",
            "ConstrainedSequence",
            "FastBertNormalize",
            "FastWordpieceTokenize",
            "FindSourceOffsets",
            "MaxSpanningTree",
            "NormalizeUTF8",
            "PhraseTokenize",
            "RegexSplitWithOffsets",
            "SentenceFragments",
            "Sentencepiece",
            "SplitMergeTokenize",
            "TokenizerFromLogits",
            "UnicodeScriptTokenize",
            "WhitespaceTokenize",
            "WordpieceTokenize",
        ],
        "tensorflow-text",
        "tensorflow_text/python/ops",
    ),
    (&["SimpleML"], "ydf-tf", "ydf_tf/inference.so"),
];

/// What to do about the operation that is missing according to TensorFlow's message.
pub(crate) fn hint_for(message: &str) -> String {
    let op = message.split('\'').nth(1).unwrap_or_default();
    let is_of = |starts: &[&str]| starts.iter().any(|start| op.starts_with(start));
    match BUILT_IN_THERE.iter().find(|(starts, ..)| is_of(starts)) {
        Some((_, package, path)) => format!(
            "install the Python package {package} for this version of TensorFlow, and add its {path} to \
             custom_op_paths"
        ),
        None => "if it is a custom op, add its library to custom_op_paths".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_loader_are_explained() {
        let explained = |message| explain(message, "/ops/a.so", "2.21.0");
        let text = explained("/ops/a.so: undefined symbol: _ZN10tensorflow3FooE");
        assert!(text.starts_with("libtensorflow 2.21.0 has no symbol _ZN10tensorflow3FooE,"));
        assert!(text.contains("build it against TensorFlow 2.21.0"), "{text}");
        let text =
            explained("libx.so.1: cannot open shared object file: No such file or directory");
        assert!(text.contains("needs the library libx.so.1"), "{text}");
        let text =
            explained("/lib/libc.so.6: version `GLIBC_2.99' not found (required by /ops/a.so)");
        assert!(text.contains("newer system") && text.contains("GLIBC_2.99"), "{text}");
        assert_eq!(explained("/ops/a.so: something else"), "something else");
    }

    #[test]
    fn incompatible_files_are_recognised_by_their_header() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let file = folder.path().join("a.so");
        let reason = |bytes: &[u8]| {
            fs::write(&file, bytes).expect("written");
            incompatibility(&file)
        };
        let text = "it is not a shared library (64-bit ELF)";
        assert_eq!(reason(b"int main() { return 0; }").as_deref(), Some(text));
        assert_eq!(reason(b"").as_deref(), Some(text));
        let (ours, theirs) = if cfg!(target_arch = "x86_64") { (62, 183) } else { (183, 62) };
        // One program header after the file header, which maps 200 bytes.
        let mut elf = vec![0; 200];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[18], elf[32], elf[54], elf[56]) = (theirs, 64, 56, 1);
        elf[64 + 32] = 200;
        let why = reason(&elf).expect("a foreign architecture");
        assert!(why.contains("x86_64") && why.contains("aarch64"), "{why}");
        elf[18] = ours;
        assert_eq!(reason(&elf), None);
        for length in [20, 60, 100, 199] {
            let why = reason(&elf[..length]).expect("truncated");
            assert!(why.contains("truncated"), "{length}: {why}");
        }
        elf[32..40].fill(0xff);
        assert!(reason(&elf).expect("invalid header offset").contains("truncated"));
    }

    #[test]
    fn a_folder_gives_its_libraries_and_a_missing_one_is_a_mistake() {
        let folder = tempfile::tempdir().expect("temporary directory");
        for name in ["b.so", "a.so", "a.so.1", "readme.txt"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let found = files(folder.path()).expect("a directory");
        let names: Vec<_> = found.iter().filter_map(|f| f.file_name()?.to_str()).collect();
        assert_eq!(names, ["a.so", "b.so"]);
        let error = files(Path::new("/no/such/ops")).expect_err("missing");
        assert!(error.message().contains("/no/such/ops"), "{error}");
    }

    #[test]
    fn the_package_of_an_operation_is_named() {
        let hint = |op: &str| hint_for(&format!("Op type not registered '{op}' in binary running"));
        assert!(hint("TFText>WhitespaceTokenizeWithOffsetsV2").contains("tensorflow-text"));
        assert!(hint("SentencepieceTokenizeOp").contains("tensorflow_text/python/ops"));
        assert!(hint("SimpleMLCreateModelResource").contains("ydf_tf/inference.so"));
        assert_eq!(hint("ZeroOut"), "if it is a custom op, add its library to custom_op_paths");
    }
}
