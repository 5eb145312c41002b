//! Formats of models that no platform serves as they are: what a file is, and the command that makes a
//! model of it that is served.
//!
//! [`ForeignFormats`] is the last of all [`Platforms`](super::Platforms). It recognises such models, so that
//! they are found, named and reported like others, and it refuses to load them.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::formats::FORMATS;
use super::files::{self, ModelPath};
use super::{
    Completeness, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader, PartOfProgram,
    Platform, PlatformInfo,
};
use tensorserve_tensor::error::{Code, Error, Result};

mod formats;

/// The name of [`ForeignFormats`]: none that a user can give.
pub const FOREIGN: &str = "not served";

/// The first bytes of a file that formats are recognised by.
const HEAD: usize = 4 << 10;

/// The last bytes of an archive that are searched for the names of the files in it.
const TAIL: u64 = 64 << 10;

/// In a folder with more files of such names than this, no further ones are read.
const MAX_READ_FILES: usize = 64;

/// How a ZIP archive begins.
const ZIP: &[u8] = b"PK\x03\x04";

/// A format that is not served as it is.
struct ForeignFormat {
    /// What a model in it is: "a Keras model".
    what: &'static str,
    /// How it is recognised.
    by: RecognisedBy,
    /// How to get a model that is served. `{path}` is the path, `{stem}` that without the ending, `{folder}` the
    /// folder of the file, `{name}` the name of the file, `{name_stem}` that without the ending, each quoted for a
    /// shell, and `{task}` the task of a model of Hugging Face.
    way_on: &'static str,
}

/// What a format is recognised by. Endings of names are in lower case.
enum RecognisedBy {
    /// A file of one of these endings with this content; or any file with this content whose path is given.
    Content(&'static [&'static str], fn(&Candidate) -> bool),
    /// A file of one of these endings, whose content does not contradict it.
    Ending(&'static [&'static str], fn(&Candidate) -> bool),
    /// A folder with such files.
    Folder(fn(&Candidate) -> bool),
}

impl RecognisedBy {
    /// Whether a file or folder of this name can be one; `any_name` if its path was given.
    fn may_be(&self, name: &str, is_folder: bool, any_name: bool) -> bool {
        let has = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        match self {
            RecognisedBy::Content(endings, _) => !is_folder && (any_name || has(endings)),
            RecognisedBy::Ending(endings, _) => !is_folder && has(endings),
            RecognisedBy::Folder(_) => is_folder,
        }
    }

    fn is(&self, candidate: &Candidate) -> bool {
        match self {
            RecognisedBy::Content(_, is)
            | RecognisedBy::Ending(_, is)
            | RecognisedBy::Folder(is) => is(candidate),
        }
    }
}

/// A file or folder that may be a model.
struct Candidate<'a> {
    path: &'a Path,
    /// The beginning of the file; empty for a folder.
    head: Vec<u8>,
}

impl<'a> Candidate<'a> {
    fn new(path: &'a Path) -> Self {
        let head = if path.is_file() { files::head(path, HEAD) } else { Ok(Vec::new()) };
        Candidate { path, head: head.unwrap_or_default() }
    }

    /// Whether the file contains `bytes` from the offset `at` on.
    fn has(&self, at: usize, bytes: &[u8]) -> bool {
        self.head.get(at..).is_some_and(|rest| rest.starts_with(bytes))
    }

    /// Whether the beginning of the file contains `text` anywhere.
    fn mentions(&self, text: &str) -> bool {
        self.head.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// Whether the folder has a file `name`.
    fn holds(&self, name: &str) -> bool {
        self.path.join(name).is_file()
    }

    /// Whether the file `name` in the folder contains `text` in its beginning.
    fn file_mentions(&self, name: &str, text: &str) -> bool {
        Candidate::new(&self.path.join(name)).mentions(text)
    }

    /// Whether there is a file of this ending beside the file, with the same name otherwise. `*` at the end
    /// stands for anything.
    fn is_beside(&self, ending: &str) -> bool {
        let Some(start) = ending.strip_suffix('*') else {
            return self.path.with_extension(ending).is_file();
        };
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let start = format!("{stem}.{start}");
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let entries =
            fs::read_dir(folder.unwrap_or(Path::new("."))).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().starts_with(&start))
    }

    /// Whether it is a ZIP archive with a file whose path ends in `name`. The names are at the end of an archive.
    fn is_archive_of(&self, name: &str) -> bool {
        let holds = |bytes: &[u8]| bytes.windows(name.len()).any(|at| at == name.as_bytes());
        self.has(0, ZIP) && (holds(&self.head) || tail(self.path).is_ok_and(|tail| holds(&tail)))
    }

    /// Whether it begins as Vowpal Wabbit's models: with the length of the text of a version, and the text.
    fn is_vowpal_wabbit(&self) -> bool {
        let Some((&[length, 0, 0, 0], rest)) = self.head.split_first_chunk() else {
            return false;
        };
        let Some((0, version)) =
            rest.get(..length.into()).and_then(|text| Some((*text.last()?, text)))
        else {
            return false;
        };
        let text = version.get(..version.len() - 1).unwrap_or_default();
        let is_version = text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
        is_version && text.iter().filter(|byte| **byte == b'.').count() == 2
    }
}

/// The task of the model of Hugging Face that `path` is the folder or a file of, as `optimum-cli` calls it: by
/// the class that `config.json` names.
fn hugging_face_task(path: &Path) -> &'static str {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let config = folder.join("config.json");
    let config = Candidate::new(&config);
    let mut tasks = TASKS.iter().filter(|(class, _)| config.mentions(class));
    tasks.next().map_or("feature-extraction", |(_, task)| task)
}

/// The ends of the names of classes of models, and their tasks.
const TASKS: [(&str, &str); 9] = [
    ("ForSequenceClassification\"", "text-classification"),
    ("ForTokenClassification\"", "token-classification"),
    ("ForQuestionAnswering\"", "question-answering"),
    ("ForMaskedLM\"", "fill-mask"),
    ("ForCausalLM\"", "text-generation"),
    ("LMHeadModel\"", "text-generation"),
    ("ForConditionalGeneration\"", "text2text-generation"),
    ("ForImageClassification\"", "image-classification"),
    ("ForObjectDetection\"", "object-detection"),
];

/// The last bytes of a file.
fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let file = files::open(path)?;
    let length = file.metadata()?.len();
    let mut tail = vec![0; usize::try_from(length.min(TAIL)).unwrap_or(0)];
    file.read_exact_at(&mut tail, length.saturating_sub(TAIL))?;
    Ok(tail)
}

/// The platform of models that are not served as they are.
pub struct ForeignFormats;

impl ForeignFormats {
    /// What the file or folder at `path` is, and how to get a model of it that is served; `None` if that is
    /// unknown.
    #[must_use]
    pub fn explain(path: &Path) -> Option<String> {
        let place = ModelPath::new(path);
        let found = identify(&place, true)?;
        Some(found.explanation())
    }
}

/// A model in a format that is not served.
struct ForeignModel<'a> {
    format: &'static ForeignFormat,
    path: Cow<'a, Path>,
}

impl ForeignModel<'_> {
    fn explanation(&self) -> String {
        // Without a slash at the end.
        let path = self.path.components().as_path();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let stem = without_ending(path);
        let name = |path: &Path| PathBuf::from(path.file_name().unwrap_or_default());
        let words = [
            ("{path}", path.to_owned()),
            ("{folder}", folder.unwrap_or(Path::new(".")).to_owned()),
            ("{name}", name(path)),
            ("{name_stem}", name(&stem)),
            ("{stem}", stem),
            ("{task}", hugging_face_task(path).into()),
        ];
        // One replacement after the other would also replace what paths contain.
        let mut way_on = String::new();
        let mut rest = self.format.way_on;
        while let Some(at) = rest.find('{') {
            let (before, from) = rest.split_at(at);
            way_on.push_str(before);
            let word = words.iter().find(|(word, _)| from.starts_with(word));
            let length = word.map_or(1, |(word, _)| word.len());
            match word {
                Some((_, path)) => way_on.push_str(&quoted(path)),
                None => way_on.push('{'),
            }
            rest = from.get(length..).unwrap_or_default();
        }
        way_on.push_str(rest);
        format!("{} is {}. {way_on}", path.display(), self.format.what)
    }

    fn error(&self) -> Error {
        Error::new(Code::Unimplemented, self.explanation())
    }
}

/// The model that `place` is or contains. A file must have one of the endings of its format, unless
/// `any_name`.
fn identify<'a>(place: &ModelPath<'a>, any_name: bool) -> Option<ForeignModel<'a>> {
    if let Some(found) = format_of(place.path(), any_name) {
        return Some(ForeignModel { format: found, path: place.path().into() });
    }
    if place.is_file() {
        return None;
    }
    let candidates =
        place.files(&[""]).filter(|file| possible_formats(file, false).next().is_some());
    candidates.take(MAX_READ_FILES).find_map(|file| {
        let format = format_of(file, false)?;
        Some(ForeignModel { format, path: file.clone().into() })
    })
}

/// The path without the ending of its name, of which `.tar.gz` is one.
fn without_ending(path: &Path) -> PathBuf {
    let stem = path.with_extension("");
    if stem.extension().is_some_and(|ending| ending == "tar") {
        stem.with_extension("")
    } else {
        stem
    }
}

/// The formats that a file or folder of this name can have.
fn possible_formats(path: &Path, any_name: bool) -> impl Iterator<Item = &'static ForeignFormat> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let is_folder = path.is_dir();
    FORMATS.iter().filter(move |format| format.by.may_be(&name, is_folder, any_name))
}

/// The format of the file or folder at `path`.
fn format_of(path: &Path, any_name: bool) -> Option<&'static ForeignFormat> {
    let mut formats = possible_formats(path, any_name);
    // Most files are not read.
    let first = formats.next()?;
    let candidate = Candidate::new(path);
    std::iter::once(first).chain(formats).find(|format| format.by.is(&candidate))
}

/// The path as one word of a POSIX shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@%".contains(&byte);
    match text.bytes().all(is_plain) && !text.is_empty() {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

impl ForeignFormats {
    /// The platform of models in these formats.
    #[must_use]
    pub fn platform() -> Platform {
        let info = PlatformInfo {
            name: FOREIGN,
            title: FOREIGN,
            input_style: InputStyle::Rows,
            takes_threads: false,
            must_be_named: false,
            is_isolated: false,
        };
        Platform { info, loader: Arc::new(ForeignFormats), runtime: Arc::new(PartOfProgram("")) }
    }
}

impl ModelLoader for ForeignFormats {
    fn recognises(&self, place: &ModelPath) -> bool {
        identify(place, false).is_some()
    }

    fn check(&self, folder: &Path) -> Completeness {
        match identify(&ModelPath::new(folder), true) {
            Some(found) => Completeness::Broken(found.error()),
            None => Completeness::Missing("a model".to_owned()),
        }
    }

    fn inspect(&self, folder: &Path, _options: &LoadOptions) -> Result<Inspection> {
        Err(refusal(folder))
    }

    fn load(&self, folder: &Path, _options: &LoadOptions) -> Result<Loaded> {
        Err(refusal(folder))
    }
}

fn refusal(folder: &Path) -> Error {
    match identify(&ModelPath::new(folder), true) {
        Some(found) => found.error(),
        None => Error::not_found(format!("{} contains no model", folder.display())),
    }
}

#[cfg(test)]
mod tests;
