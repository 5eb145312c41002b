//! `tensorserve.toml` beside a model: its tables, value by value, with the line of what is wrong.

use std::fs;
use std::path::{Component, Path, PathBuf};

use toml::de::{DeTable, DeValue};

use tensorserve_tensor::error::{Code, Error, Result};

/// The name of the file, in a version's folder or in that of its model.
pub const FILE_NAME: &str = "tensorserve.toml";

/// The most bytes of it, and of each file that it names.
const LARGEST: u64 = 64 << 20;

/// The file of the version at `path`: its own, or else that of its model, which is the folder
/// above where a version's is named by a number. That of a model that is no folder lies beside it.
pub(super) fn of_version(path: &Path) -> Option<PathBuf> {
    let folder = if path.is_dir() { path } else { path.parent()? };
    let own = folder.join(FILE_NAME);
    if own.is_file() {
        return Some(own);
    }
    let name = folder.file_name()?.to_str()?;
    let is_version = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let of_model = folder.parent()?.join(FILE_NAME);
    (is_version && of_model.is_file()).then_some(of_model)
}

/// The file, read and parsed.
pub(super) struct File {
    /// `[[preprocess]]`, in order.
    pub(super) before: Vec<Step>,
    /// `[[postprocess]]`, in order.
    pub(super) after: Vec<Step>,
}

/// One table: its values are taken one by one, and what is left over is a mistake.
pub(super) struct Step {
    place: Place,
    /// What to do, by the value of `step`.
    pub(super) kind: String,
    /// Name, value and place of what nobody has taken yet.
    left: Vec<(String, Value, Place)>,
    /// Names that were asked for.
    known: Vec<&'static str>,
}

/// Where something stands.
#[derive(Clone)]
pub(super) struct Place {
    path: PathBuf,
    line: usize,
}

/// A value of a table.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Whole(i64),
    Real(f64),
    Flag(bool),
    List(Vec<Value>),
    /// A table, a date.
    Other(&'static str),
}

impl Place {
    /// A mistake in this place.
    pub(super) fn error(&self, text: impl std::fmt::Display) -> Error {
        let Place { path, line } = self;
        Error::invalid(format!("{} line {line}: {text}", path.display()))
    }
}

impl File {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it can not be read, is no TOML, or has other keys than `preprocess` and `postprocess`,
    /// with the line.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let at = |offset: usize| {
            let before = text.as_bytes().get(..offset).unwrap_or_default();
            Place { path: path.to_owned(), line: memchr::memchr_iter(b'\n', before).count() + 1 }
        };
        let table = DeTable::parse(&text).map_err(|e| {
            let start = e.span().map_or(0, |span| span.start);
            at(start).error(e.message().to_owned())
        })?;
        let mut file = File { before: Vec::new(), after: Vec::new() };
        for (key, value) in table.get_ref() {
            let place = at(key.span().start);
            let steps = match &**key.get_ref() {
                "preprocess" => &mut file.before,
                "postprocess" => &mut file.after,
                other => {
                    return Err(place.error(format_args!(
                        "{other:?} is nothing that the file beside a model has; it has \
                         [[preprocess]] and [[postprocess]] (settings of the server are for the \
                         file that --config names)"
                    )));
                }
            };
            let key = key.get_ref();
            let wrong = || place.error(format_args!("write [[{key}]], a table for each step"));
            for step in value.get_ref().as_array().ok_or_else(wrong)? {
                let line = at(step.span().start);
                let table = step.get_ref().as_table().ok_or_else(wrong)?;
                steps.push(Step::of(table, line, at)?);
            }
        }
        Ok(file)
    }
}

impl Step {
    fn of(table: &DeTable<'_>, place: Place, at: impl Fn(usize) -> Place) -> Result<Self> {
        let entry = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
            let name: &std::borrow::Cow<'_, str> = key.get_ref();
            (name.to_string(), Value::of(value.get_ref()), at(key.span().start))
        };
        let left = table.iter().map(entry).collect();
        let mut step = Step { place, kind: String::new(), left, known: Vec::new() };
        step.kind = step.text("step")?.unwrap_or_default();
        Ok(step)
    }

    /// A mistake that is that of the whole step.
    pub(super) fn error(&self, text: impl std::fmt::Display) -> Error {
        self.place.error(text)
    }

    /// Where it stands.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    fn take(&mut self, name: &'static str) -> Option<(Value, Place)> {
        self.known.push(name);
        let at = self.left.iter().position(|(key, ..)| key == name)?;
        let (_, value, place) = self.left.swap_remove(at);
        Some((value, place))
    }

    /// The text `name`.
    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some((Value::Text(text), _)) => Ok(Some(text)),
            Some((other, place)) => Err(wrong(&place, name, "a text in quotes", &other)),
        }
    }

    /// The flag `name`.
    pub(super) fn flag(&mut self, name: &'static str) -> Result<Option<bool>> {
        match self.take(name) {
            None => Ok(None),
            Some((Value::Flag(flag), _)) => Ok(Some(flag)),
            Some((other, place)) => Err(wrong(&place, name, "true or false", &other)),
        }
    }

    /// The whole number `name`.
    pub(super) fn whole(&mut self, name: &'static str) -> Result<Option<i64>> {
        match self.take(name) {
            None => Ok(None),
            Some((Value::Whole(number), _)) => Ok(Some(number)),
            Some((other, place)) => Err(wrong(&place, name, "a whole number", &other)),
        }
    }

    /// The whole number or the text `name`.
    pub(super) fn text_or_whole(
        &mut self,
        name: &'static str,
    ) -> Result<Option<Result<i64, String>>> {
        match self.take(name) {
            None => Ok(None),
            Some((Value::Whole(number), _)) => Ok(Some(Ok(number))),
            Some((Value::Text(text), _)) => Ok(Some(Err(text))),
            Some((other, place)) => {
                Err(wrong(&place, name, "a whole number or a text in quotes", &other))
            }
        }
    }

    /// The whole number `name`, which is at least 1.
    pub(super) fn count(&mut self, name: &'static str) -> Result<Option<usize>> {
        let Some(number) = self.whole(name)? else {
            return Ok(None);
        };
        let count = usize::try_from(number).ok().filter(|&count| count > 0 && number < 1 << 31);
        let mistake = || self.error(format_args!("{name} = {number}: it must be at least 1"));
        count.map(Some).ok_or_else(mistake)
    }

    /// The number `name`, or the list of numbers; empty if it is not there.
    pub(super) fn numbers(&mut self, name: &'static str) -> Result<Vec<f32>> {
        let Some((value, place)) = self.take(name) else {
            return Ok(Vec::new());
        };
        let list = if let Value::List(list) = value { list } else { vec![value] };
        if list.is_empty() {
            return Err(place.error(format_args!("{name} is an empty list")));
        }
        let number = |value: &Value| {
            #[allow(clippy::wildcard_enum_match_arm)] // No number.
            let number = match value {
                Value::Whole(number) => *number as f32,
                Value::Real(number) => *number as f32,
                _ => f32::NAN,
            };
            let is_number = number.is_finite();
            is_number.then_some(number).ok_or_else(|| wrong(&place, name, "a number", value))
        };
        list.iter().map(number).collect()
    }

    /// Which of these texts `name` is; the first if it is not there.
    pub(super) fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        if let Some((_, choice)) = choices.iter().find(|(word, _)| *word == text) {
            return Ok(Some(*choice));
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        Err(self.error(format_args!("{name} = {text:?}: it can be {}", words.join(", "))))
    }

    /// The file `name`, which is beside this one or below its folder: its path and its lines.
    pub(super) fn lines(&mut self, name: &'static str) -> Result<Option<Vec<String>>> {
        let Some(file) = self.text(name)? else {
            return Ok(None);
        };
        let relative = Path::new(&file);
        let is_below = relative.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_below || file.is_empty() {
            return Err(self.error(format_args!(
                "{name} = {file:?}: give a path from the folder of this file to one below it"
            )));
        }
        let folder = self.place.path.parent().unwrap_or(Path::new(""));
        let text = read_text(&folder.join(relative)).map_err(|error| {
            let code = error.code();
            let message = self.error(format_args!("{name}: {error}")).message().to_owned();
            Error::new(code, message).with_source(error)
        })?;
        let lines: Vec<String> =
            text.lines().map(|line| line.trim_end_matches('\r').to_owned()).collect();
        if lines.is_empty() {
            return Err(self.error(format_args!("{name}: {file} is empty")));
        }
        Ok(Some(lines))
    }

    /// Asserts that everything was taken.
    pub(super) fn finish(&self) -> Result<()> {
        let Some((key, _, place)) = self.left.first() else {
            return Ok(());
        };
        let kind = &self.kind;
        let distance = |name: &&&str| strsim::damerau_levenshtein(key, name);
        let nearest = self.known.iter().min_by_key(distance);
        let hint = match nearest.filter(|name| distance(name) <= 1 + key.len() / 3) {
            Some(name) => format!("; did you mean {name:?}?"),
            None => format!("; it has {}", self.known.join(", ")),
        };
        Err(place.error(format_args!("a step {kind:?} has no {key:?}{hint}")))
    }
}

impl Value {
    fn of(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) => {
                let digits = number.as_str().replace('_', "");
                match i64::from_str_radix(&digits, number.radix()) {
                    Ok(number) => Value::Whole(number),
                    Err(_) => Value::Other("a number that is too large"),
                }
            }
            DeValue::Float(number) => match number.as_str().replace('_', "").parse() {
                Ok(number) => Value::Real(number),
                Err(_) => Value::Other("no number"),
            },
            DeValue::Boolean(flag) => Value::Flag(*flag),
            DeValue::Array(list) => {
                Value::List(list.iter().map(|value| Value::of(value.get_ref())).collect())
            }
            DeValue::Datetime(_) => Value::Other("a date"),
            DeValue::Table(_) => Value::Other("a table"),
        }
    }

    fn shown(&self) -> String {
        match self {
            Value::Text(text) => format!("the text {text:?}"),
            Value::Whole(number) => number.to_string(),
            Value::Real(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
            Value::List(_) => "a list".to_owned(),
            Value::Other(what) => (*what).to_owned(),
        }
    }
}

fn wrong(place: &Place, name: &str, want: &str, got: &Value) -> Error {
    place.error(format_args!("{name} must be {want}, and is {}", got.shown()))
}

/// The text of a file that is not too large.
fn read_text(path: &Path) -> Result<String> {
    let failed = |e: std::io::Error| {
        let message = format!("{} can not be read: {e}", path.display());
        Error::new(Code::of_io(&e), message).with_source(e)
    };
    let size = fs::metadata(path).map_err(failed)?.len();
    if size > LARGEST {
        let (path, most) = (path.display(), LARGEST >> 20);
        return Err(Error::invalid(format!("{path} has {size} bytes, more than {most} MiB")));
    }
    let bytes = fs::read(path).map_err(failed)?;
    String::from_utf8(bytes)
        .map_err(|e| Error::invalid(format!("{} is not UTF-8", path.display())).with_source(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<File> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE_NAME);
        fs::write(&path, text).expect("written");
        File::read(&path)
    }

    fn refused(text: &str) -> String {
        match read(text) {
            Ok(_) => panic!("it can be read: {text}"),
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
        assert_eq!(file.before.len(), 2);
        let [first, second] = &mut file.before[..] else { panic!("two") };
        assert_eq!((first.kind.as_str(), first.place.line), ("scale", 2));
        assert_eq!(first.numbers("scale").expect("numbers"), [1.0, 0.5]);
        assert!(first.finish().is_ok());
        assert_eq!(second.flag("flatten").expect("a flag"), Some(true));
        assert_eq!(second.count("height").expect("none"), None);
        assert_eq!(file.after[0].count("k").expect("a number"), Some(16));
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, line, part) in [
            ("\n\n[[preprocess]\n", 3, ""),
            ("\nhttp_port = 8500\n", 2, "--config"),
            ("[preprocess]\nstep = \"scale\"\n", 1, "[[preprocess]]"),
            ("preprocess = [1]\n", 1, "[[preprocess]]"),
            ("[[preprocess]]\nstep = 1\n", 2, "step must be a text in quotes, and is 1"),
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
            file.before.into_iter().next().expect("one")
        };
        let message = |outcome: Result<()>| outcome.expect_err("wrong").message().to_owned();
        let wrong = message(step("k = \"1\"").count("k").map(drop));
        assert!(
            wrong.ends_with("line 3: k must be a whole number, and is the text \"1\""),
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
        assert!(wrong.ends_with("c = \"x\": it can be a, b"), "{wrong}");
        let mut left = step("lenght = 1");
        left.count("length").expect("not there");
        assert!(message(left.finish()).ends_with("did you mean \"length\"?"));
        for outside in ["../x", "/etc/passwd", "", "a/../../b", "."] {
            let wrong = message(step(&format!("f = {outside:?}")).lines("f").map(drop));
            assert!(wrong.contains("below it"), "{wrong}");
        }
        let wrong = message(step("f = \"none.txt\"").lines("f").map(drop));
        assert!(
            wrong.contains("line 1: f: ") && wrong.contains("none.txt can not be read"),
            "{wrong}"
        );
    }
}
