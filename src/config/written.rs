//! What a user wrote: where, and what is wrong with it.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::DeValue;

use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::names::nearest;

/// The prefix of all environment variables of tensorserve.
pub(super) const PREFIX: &str = "TENSORSERVE_";

/// The environment variable of a setting.
#[must_use]
pub(crate) fn variable(setting: &str) -> String {
    format!("{PREFIX}{}", setting.replace('-', "_").to_ascii_uppercase())
}

/// The value of a setting as it was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WrittenValue {
    /// Of an option or a variable; or one value of the file.
    Text(OsString),
    /// A list of the file.
    List(Vec<String>),
}

impl WrittenValue {
    /// A value of the file.
    ///
    /// # Errors
    /// If it is a table, or a list of something else than values.
    pub(super) fn of_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let DeValue::Array(items) = value else {
            return scalar(value).map(|text| WrittenValue::Text(text.into()));
        };
        items
            .iter()
            .map(|item| scalar(item.get_ref()))
            .collect::<Result<_, _>>()
            .map(WrittenValue::List)
    }
}

fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(_) => integer(value).map(|number| number.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(value) => Ok(value.to_string()),
        DeValue::Datetime(_) => Err("a date is not allowed here".to_owned()),
        DeValue::Array(_) => Err("a list is not allowed here".to_owned()),
        DeValue::Table(_) => Err("a table is not allowed here".to_owned()),
    }
}

/// An integer of the file.
///
/// # Errors
/// If it is something else, or out of range.
pub(super) fn integer(value: &DeValue<'_>) -> Result<i64, String> {
    let DeValue::Integer(number) = value else {
        return Err("this is not an integer".to_owned());
    };
    i64::from_str_radix(number.as_str(), number.radix())
        .map_err(|_| format!("{} is out of range", number.as_str()))
}

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// On the command line.
    Option,
    /// In the environment.
    Variable,
    /// In the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

impl SettingOrigin {
    /// A line of the file at `path`.
    pub(super) fn line(path: &Path, line: usize) -> Self {
        SettingOrigin::File { path: path.to_owned(), line }
    }

    /// The place of `setting`: `--http-port`, `TENSORSERVE_HTTP_PORT` or `tensorserve.toml:3`.
    pub(super) fn place(&self, setting: &str) -> String {
        match self {
            SettingOrigin::Option => format!("--{}", setting.replace('_', "-")),
            SettingOrigin::Variable => variable(setting),
            SettingOrigin::File { path, line } => format!("{}:{line}", path.display()),
        }
    }

    /// The place of `setting` with its name.
    pub(crate) fn of(&self, setting: &str) -> String {
        match self {
            SettingOrigin::Option | SettingOrigin::Variable => self.place(setting),
            SettingOrigin::File { .. } => format!("{}: {setting}", self.place(setting)),
        }
    }
}

/// Where each setting was written. Settings that the program itself made have no origin.
pub type Origins = BTreeMap<&'static str, SettingOrigin>;

/// Everything that is wrong with a configuration, each mistake once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mistakes {
    /// In the order in which they were found.
    all: Vec<String>,
    /// The mistakes again, to find one quickly: a file can have as many as it has lines.
    known: HashSet<String>,
}

impl Mistakes {
    /// Records a mistake.
    pub fn add(&mut self, mistake: impl fmt::Display) {
        let mistake = mistake.to_string();
        if self.known.insert(mistake.clone()) {
            self.all.push(mistake);
        }
    }

    /// Records the mistakes of `others`.
    pub fn extend(&mut self, others: &Mistakes) {
        others.all.iter().for_each(|mistake| self.add(mistake));
    }

    /// Whether there is no mistake.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// `checked`, if there is no mistake.
    ///
    /// # Errors
    /// One error with all mistakes.
    pub fn result<T>(&self, checked: T) -> Result<T> {
        match self.all.as_slice() {
            [] => Ok(checked),
            [mistake] => Err(Error::invalid(mistake.clone())),
            all => {
                let count = all.len();
                let list = all.join("\n  ");
                Err(Error::invalid(format!("{count} configuration mistakes:\n  {list}")))
            }
        }
    }
}

/// What reading settings found, besides their values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Where the settings were written.
    pub origins: Origins,
    /// Unknown names and values that cannot be parsed.
    pub mistakes: Mistakes,
    /// Something that may name models could not be read: an unknown option, or the file.
    pub is_incomplete: bool,
}

/// "… is not a setting", with the nearest known name if there is a near one.
#[must_use]
pub fn unknown_name(name: &str, known: &[&str], what: &str) -> String {
    let shown = name.escape_debug();
    match nearest(name, known.iter().copied()) {
        Some((near, _)) => format!("{shown} is not {what}; did you mean {near}?"),
        None => format!("{shown} is not {what}"),
    }
}
