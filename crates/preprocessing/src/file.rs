//! Reads `tensorserve.toml` beside a model. Every error names the line.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use tensorserve_os::files::{self, is_of_version, open_within};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::names::nearest;

/// The name of the file, in the directory of a version or of its model.
pub const FILE_NAME: &str = "tensorserve.toml";

/// The largest size of the file, and of each file that it names, in bytes.
const MAX_FILE_SIZE: u64 = 64 << 20;

/// The largest count or size that a step may have.
const MAX_COUNT: i64 = (1 << 31) - 1;

/// The file of the version at `path`: its own, or else that of its model, which is in the parent
/// directory if the name of the version's directory is a number. The file of a model that is a
/// single file is next to it.
pub(super) fn find(path: &Path) -> Option<PathBuf> {
    let folder = if path.is_dir() { path } else { path.parent()? };
    let own = folder.join(FILE_NAME);
    if is_there(&own) {
        return Some(own);
    }
    let of_model = folder.parent()?.join(FILE_NAME);
    (is_of_version(folder) && is_there(&of_model)).then_some(of_model)
}

/// Whether there is something of this name, also if it cannot be read: a model is not served without the steps that
/// were meant for it.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir())
}

/// The parsed file.
#[derive(Default)]
pub(super) struct StepsFile {
    /// The tables `[[preprocess]]`, in order.
    pub(super) preprocess: Vec<StepTable>,
    /// The tables `[[postprocess]]`, in order.
    pub(super) postprocess: Vec<StepTable>,
    /// The tables `[[signature.inputs]]`, in order.
    pub(super) inputs: Vec<StepTable>,
    /// The tables `[[signature.outputs]]`, in order.
    pub(super) outputs: Vec<StepTable>,
}

/// The table of one step. Its entries are taken one by one; any that is left is a mistake.
pub(super) struct StepTable {
    location: FileLine,
    /// The kind of step: the value of `step`.
    pub(super) kind: String,
    /// The entries that have not been taken.
    entries: Vec<StepTableEntry>,
    /// The keys that a step of this kind may have.
    known_keys: Vec<&'static str>,
}

struct StepTableEntry {
    key: String,
    value: TomlValue,
    location: FileLine,
}

/// A line of the file, for error messages.
#[derive(Clone)]
pub(super) struct FileLine {
    path: PathBuf,
    line: usize,
}

/// A value of a table.
#[derive(Clone, Debug, PartialEq)]
enum TomlValue {
    String(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Array(Vec<TomlValue>),
    /// A value that no step uses, described in words.
    Unused(&'static str),
}

impl FileLine {
    fn new(path: &Path, text: &str, offset: usize) -> Self {
        let before = text.as_bytes().get(..offset).unwrap_or_default();
        FileLine { path: path.to_owned(), line: memchr::memchr_iter(b'\n', before).count() + 1 }
    }

    /// An error at this line.
    pub(super) fn error(&self, text: impl std::fmt::Display) -> Error {
        let FileLine { path, line } = self;
        Error::invalid(format!("{} line {line}: {text}", path.display()))
    }
}

impl StepsFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, is not valid TOML, or has other keys than `preprocess`, `postprocess`
    /// and `signature`, with the line.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = read_text(path.parent().unwrap_or(Path::new("")), path)?;
        let at = |offset: usize| FileLine::new(path, &text, offset);
        let table = DeTable::parse(&text).map_err(|e| {
            let start = e.span().map_or(0, |span| span.start);
            at(start).error(e.message().to_owned())
        })?;
        let mut file = StepsFile::default();
        for (key, value) in table.get_ref() {
            let location = at(key.span().start);
            match &**key.get_ref() {
                "preprocess" => file.preprocess = tables("preprocess", value, &location, at)?,
                "postprocess" => file.postprocess = tables("postprocess", value, &location, at)?,
                "signature" => file.read_signature(value.get_ref(), &location, at)?,
                other => {
                    return Err(location.error(format_args!(
                        "unknown key {other:?}; this file may have [[preprocess]], [[postprocess]] \
                         and [[signature.inputs]] (settings of the server belong in the file that \
                         --config names)"
                    )));
                }
            }
        }
        Ok(file)
    }

    fn read_signature(
        &mut self,
        value: &DeValue<'_>,
        location: &FileLine,
        at: impl Fn(usize) -> FileLine + Copy,
    ) -> Result<()> {
        let no_table = || location.error("write [[signature.inputs]], one table for each input");
        for (key, value) in value.as_table().ok_or_else(no_table)? {
            let location = at(key.span().start);
            match &**key.get_ref() {
                "inputs" => self.inputs = tables("signature.inputs", value, &location, at)?,
                "outputs" => self.outputs = tables("signature.outputs", value, &location, at)?,
                other => {
                    return Err(location.error(format_args!(
                        "unknown key {other:?}; a signature has [[signature.inputs]] and \
                         [[signature.outputs]]"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The tables in the list `key`.
fn tables(
    key: &str,
    value: &Spanned<DeValue<'_>>,
    location: &FileLine,
    at: impl Fn(usize) -> FileLine + Copy,
) -> Result<Vec<StepTable>> {
    let not_tables = || location.error(format_args!("write [[{key}]], one table for each"));
    let list = value.get_ref().as_array().ok_or_else(not_tables)?;
    let mut tables = Vec::with_capacity(list.len());
    for each in list {
        let table = each.get_ref().as_table().ok_or_else(not_tables)?;
        tables.push(StepTable::read(key, table, at(each.span().start), at)?);
    }
    Ok(tables)
}

impl StepTable {
    /// Reads a table in the list `list`.
    fn read(
        list: &str,
        table: &DeTable<'_>,
        location: FileLine,
        at: impl Fn(usize) -> FileLine,
    ) -> Result<Self> {
        let mut entries = Vec::with_capacity(table.len());
        for (key, value) in table.iter() {
            entries.push(StepTableEntry {
                key: key.get_ref().to_string(),
                value: TomlValue::of(value.get_ref()),
                location: at(key.span().start),
            });
        }
        let kind = list.to_owned();
        let mut step = StepTable { location, kind, entries, known_keys: Vec::new() };
        if !list.starts_with("signature") {
            step.kind = step.text("step")?.unwrap_or_default();
        }
        Ok(step)
    }

    /// An error about the whole step.
    pub(super) fn error(&self, text: impl std::fmt::Display) -> Error {
        self.location.error(text)
    }

    /// The line at which the step starts.
    pub(super) fn location(&self) -> &FileLine {
        &self.location
    }

    fn take(&mut self, key: &'static str) -> Option<StepTableEntry> {
        self.known_keys.push(key);
        let index = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.swap_remove(index))
    }

    /// The string `key`.
    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<String>> {
        match self.take(key) {
            None => Ok(None),
            Some(StepTableEntry { value: TomlValue::String(text), .. }) => Ok(Some(text)),
            Some(entry) => Err(entry.type_error("a string in quotes")),
        }
    }

    /// The boolean `key`.
    pub(super) fn flag(&mut self, key: &'static str) -> Result<Option<bool>> {
        match self.take(key) {
            None => Ok(None),
            Some(StepTableEntry { value: TomlValue::Boolean(flag), .. }) => Ok(Some(flag)),
            Some(entry) => Err(entry.type_error("true or false")),
        }
    }

    /// The integer `key`.
    pub(super) fn integer(&mut self, key: &'static str) -> Result<Option<i64>> {
        match self.take(key) {
            None => Ok(None),
            Some(StepTableEntry { value: TomlValue::Integer(number), .. }) => Ok(Some(number)),
            Some(entry) => Err(entry.type_error("an integer")),
        }
    }

    /// The integer (`Ok`) or the string (`Err`) `key`.
    pub(super) fn integer_or_text(
        &mut self,
        key: &'static str,
    ) -> Result<Option<Result<i64, String>>> {
        match self.take(key) {
            None => Ok(None),
            Some(StepTableEntry { value: TomlValue::Integer(number), .. }) => Ok(Some(Ok(number))),
            Some(StepTableEntry { value: TomlValue::String(text), .. }) => Ok(Some(Err(text))),
            Some(entry) => Err(entry.type_error("an integer or a string in quotes")),
        }
    }

    /// The integer `key`, which must be at least 1.
    pub(super) fn count(&mut self, key: &'static str) -> Result<Option<usize>> {
        let Some(number) = self.integer(key)? else {
            return Ok(None);
        };
        match usize::try_from(number) {
            Ok(count) if (1..=MAX_COUNT).contains(&number) => Ok(Some(count)),
            _ => Err(self.error(format_args!(
                "{key} = {number}: it must be at least 1 and at most {MAX_COUNT}"
            ))),
        }
    }

    /// The number `key`, or its list of numbers; empty if the key is missing.
    pub(super) fn numbers(&mut self, key: &'static str) -> Result<Vec<f32>> {
        let Some(StepTableEntry { value, location, .. }) = self.take(key) else {
            return Ok(Vec::new());
        };
        let list = if let TomlValue::Array(list) = value { list } else { vec![value] };
        if list.is_empty() {
            return Err(location.error(format_args!("{key} is an empty list")));
        }
        let mut numbers = Vec::with_capacity(list.len());
        for value in &list {
            let number = value.as_f32();
            numbers.push(number.ok_or_else(|| type_error(&location, key, "a number", value))?);
        }
        Ok(numbers)
    }

    /// The sizes of a shape in the list `key`: integers from -1 on.
    pub(super) fn sizes(&mut self, key: &'static str) -> Result<Option<Vec<i64>>> {
        let Some(StepTableEntry { value, location, .. }) = self.take(key) else {
            return Ok(None);
        };
        let wrong = || {
            location.error(format_args!(
                "{key} must be a list of sizes, with -1 for one that varies; for example [-1, 4]"
            ))
        };
        let TomlValue::Array(list) = value else {
            return Err(wrong());
        };
        let size = |value: &TomlValue| {
            let TomlValue::Integer(size) = value else { return None };
            (-1..=MAX_COUNT).contains(size).then_some(*size)
        };
        let sizes: Option<Vec<i64>> = list.iter().map(size).collect();
        sizes.map(Some).ok_or_else(wrong)
    }

    /// The choice that the string `key` names.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>> {
        let Some(text) = self.text(key)? else {
            return Ok(None);
        };
        if let Some((_, choice)) = choices.iter().find(|(word, _)| *word == text) {
            return Ok(Some(*choice));
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        Err(self.error(format_args!("{key} = {text:?}: it must be one of {}", words.join(", "))))
    }

    /// The lines of the file that `key` names, which must be in this file's directory or below.
    pub(super) fn lines(&mut self, key: &'static str) -> Result<Option<Vec<String>>> {
        let Some(file) = self.text(key)? else {
            return Ok(None);
        };
        let relative = Path::new(&file);
        let is_below = relative.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_below || file.is_empty() {
            return Err(self.error(format_args!(
                "{key} = {file:?}: the path must be relative to the folder of this file, and not \
                 lead out of it"
            )));
        }
        let folder = self.location.path.parent().unwrap_or(Path::new(""));
        let text = read_text(folder, &folder.join(relative)).map_err(|error| {
            let code = error.code();
            let message = self.error(format_args!("{key}: {error}")).message().to_owned();
            Error::new(code, message).with_source(error)
        })?;
        let lines: Vec<String> =
            text.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect();
        if lines.is_empty() {
            return Err(self.error(format_args!("{key}: {file} is empty")));
        }
        Ok(Some(lines))
    }

    /// Refuses keys that were not taken.
    pub(super) fn finish(&self) -> Result<()> {
        let Some(StepTableEntry { key, location, .. }) = self.entries.first() else {
            return Ok(());
        };
        let kind = &self.kind;
        let hint = match nearest(key, self.known_keys.iter().copied()) {
            Some((known, _)) => format!("; did you mean {known:?}?"),
            None => format!("; it may have {}", self.known_keys.join(", ")),
        };
        let what = match kind.starts_with("signature.") {
            true => format!("[[{kind}]]"),
            false => format!("a step {kind:?}"),
        };
        Err(location.error(format_args!("{what} has no key {key:?}{hint}")))
    }
}

impl StepTableEntry {
    fn type_error(&self, expected: &str) -> Error {
        type_error(&self.location, &self.key, expected, &self.value)
    }
}

fn type_error(location: &FileLine, key: &str, expected: &str, actual: &TomlValue) -> Error {
    location.error(format_args!("{key} must be {expected}, but is {}", actual.description()))
}

impl TomlValue {
    fn of(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => TomlValue::String(text.to_string()),
            DeValue::Integer(number) => {
                let digits = number.as_str().replace('_', "");
                match i64::from_str_radix(&digits, number.radix()) {
                    Ok(number) => TomlValue::Integer(number),
                    Err(_) => TomlValue::Unused("an integer that is too large"),
                }
            }
            DeValue::Float(number) => match number.as_str().replace('_', "").parse() {
                Ok(number) => TomlValue::Float(number),
                Err(_) => TomlValue::Unused("not a number"),
            },
            DeValue::Boolean(flag) => TomlValue::Boolean(*flag),
            DeValue::Array(list) => {
                TomlValue::Array(list.iter().map(|value| TomlValue::of(value.get_ref())).collect())
            }
            DeValue::Datetime(_) => TomlValue::Unused("a date"),
            DeValue::Table(_) => TomlValue::Unused("a table"),
        }
    }

    /// A finite number as a float32.
    #[allow(clippy::wildcard_enum_match_arm)] // Everything else is not a number.
    fn as_f32(&self) -> Option<f32> {
        let number = match self {
            TomlValue::Integer(number) => *number as f32,
            TomlValue::Float(number) => *number as f32,
            _ => return None,
        };
        number.is_finite().then_some(number)
    }

    fn description(&self) -> String {
        match self {
            TomlValue::String(text) => format!("the string {text:?}"),
            TomlValue::Integer(number) => number.to_string(),
            TomlValue::Float(number) => number.to_string(),
            TomlValue::Boolean(flag) => flag.to_string(),
            TomlValue::Array(_) => "a list".to_owned(),
            TomlValue::Unused(description) => (*description).to_owned(),
        }
    }
}

/// Reads a UTF-8 file of at most [`MAX_FILE_SIZE`], in `folder` or, if that is a version's, in its model's.
fn read_text(folder: &Path, path: &Path) -> Result<String> {
    let read = open_within(folder, path).and_then(|file| files::read(&file, MAX_FILE_SIZE));
    let bytes = read.map_err(|e| {
        let path = path.display();
        if e.kind() == ErrorKind::FileTooLarge {
            return Error::invalid(format!("{path}: {e}")).with_source(e);
        }
        Error::new(Code::of_io(&e), format!("{path} cannot be read: {e}")).with_source(e)
    })?;
    String::from_utf8(bytes).map_err(|e| {
        Error::invalid(format!("{} is not valid UTF-8", path.display())).with_source(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn read(text: &str) -> Result<StepsFile> {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join(FILE_NAME);
        fs::write(&path, text).expect("written");
        StepsFile::read(&path)
    }

    fn refused(text: &str) -> String {
        match read(text) {
            Ok(_) => panic!("accepted: {text}"),
            Err(error) => error.message().to_owned(),
        }
    }

    #[test]
    fn tables_keep_their_order_and_their_lines() {
        let mut file = read(
            "# a comment\n[[preprocess]]\nstep = \"scale\"\nscale = [1, 0.5]\n\n\
             [[preprocess]]\nstep = \"image\"\nflatten = true\n[[postprocess]]\nk = 0x10\n",
        )
        .expect("TOML");
        assert_eq!(file.preprocess.len(), 2);
        let [first, second] = &mut file.preprocess[..] else { panic!("two") };
        assert_eq!((first.kind.as_str(), first.location.line), ("scale", 2));
        assert_eq!(first.numbers("scale").expect("numbers"), [1.0, 0.5]);
        assert!(first.finish().is_ok());
        assert_eq!(second.flag("flatten").expect("a flag"), Some(true));
        assert_eq!(second.count("height").expect("none"), None);
        assert_eq!(file.postprocess[0].count("k").expect("a number"), Some(16));
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, line, part) in [
            ("\n\n[[preprocess]\n", 3, ""),
            ("\nhttp_port = 8500\n", 2, "--config"),
            ("[preprocess]\nstep = \"scale\"\n", 1, "[[preprocess]]"),
            ("preprocess = [1]\n", 1, "[[preprocess]]"),
            ("[[preprocess]]\nstep = 1\n", 2, "step must be a string in quotes, but is 1"),
        ] {
            let error = refused(text);
            assert!(error.contains(&format!("tensorserve.toml line {line}: ")), "{error}");
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn values_are_what_they_should_be() {
        let step = |text: &str| {
            let file = read(&format!("[[preprocess]]\nstep = \"s\"\n{text}\n")).expect("TOML");
            file.preprocess.into_iter().next().expect("one")
        };
        let message = |outcome: Result<()>| outcome.expect_err("wrong").message().to_owned();
        let wrong = message(step("k = \"1\"").count("k").map(drop));
        assert!(
            wrong.ends_with("line 3: k must be an integer, but is the string \"1\""),
            "{wrong}"
        );
        for bad in ["k = 0", "k = -3", "k = 9_999_999_999"] {
            assert!(step(bad).count("k").is_err(), "{bad}");
        }
        for bad in ["v = []", "v = [\"1\"]", "v = nan", "v = [1, inf]", "v = true", "v = [[1]]"] {
            assert!(step(bad).numbers("v").is_err(), "{bad}");
        }
        let mut choice = step("c = \"x\"");
        let wrong = message(choice.choice("c", &[("a", 1), ("b", 2)]).map(drop));
        assert!(wrong.ends_with("c = \"x\": it must be one of a, b"), "{wrong}");
        let mut left = step("lenght = 1");
        left.count("length").expect("not there");
        assert!(message(left.finish()).ends_with("did you mean \"length\"?"));
        for outside in ["../x", "/etc/passwd", "", "a/../../b", "."] {
            let wrong = message(step(&format!("f = {outside:?}")).lines("f").map(drop));
            assert!(wrong.contains("not lead out of it"), "{wrong}");
        }
        let wrong = message(step("f = \"none.txt\"").lines("f").map(drop));
        assert!(
            wrong.contains("line 1: f: ") && wrong.contains("none.txt cannot be read"),
            "{wrong}"
        );
    }
}
