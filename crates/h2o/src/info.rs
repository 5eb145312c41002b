//! `model.ini` of a MOJO: values, the names of the columns, and the levels of categorical columns.

use std::collections::HashMap;
use std::str::FromStr;

use super::files::{MojoFiles, unescaped};
use tensorserve_tensor::error::{Error, Result};

/// The file.
const FILE: &str = "model.ini";

/// How H2O writes a value that is not set.
const NULL: &str = "null";

/// What a MOJO says of its model.
pub(super) struct MojoInfo {
    values: HashMap<String, String>,
    /// The names of the columns of the training data, features first, the response last.
    pub(super) columns: Vec<String>,
    /// For each column its levels; `None` for numbers.
    pub(super) domains: Vec<Option<Vec<String>>>,
}

impl MojoInfo {
    /// Reads the file and the files of levels.
    pub(super) fn read(files: &MojoFiles) -> Result<Self> {
        let (mut values, mut columns, mut domains) = (HashMap::new(), Vec::new(), Vec::new());
        let mut section = String::new();
        for line in files.lines(FILE)? {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match line {
                "[info]" | "[columns]" | "[domains]" => line.clone_into(&mut section),
                _ => match &*section {
                    "[info]" => {
                        let (key, value) = line.split_once('=').ok_or_else(|| {
                            Error::damaged(format!("{FILE}: {line:?} has no value"))
                        })?;
                        values.insert(key.trim_end().to_owned(), value.trim_start().to_owned());
                    }
                    "[columns]" => columns.push(line.to_owned()),
                    "[domains]" => domains.push(line.to_owned()),
                    _ => {}
                },
            }
        }
        let mut info = MojoInfo { values, domains: vec![None; columns.len()], columns };
        let (has, says) = (info.columns.len(), info.size("n_columns")?);
        if has != says {
            return Err(Error::damaged(format!(
                "{FILE} names {has} columns, and n_columns is {says}"
            )));
        }
        let is_escaped = info.flag_or("escape_domain_values", false)?;
        for line in domains {
            info.read_domain(files, &line, is_escaped)?;
        }
        Ok(info)
    }

    /// Reads the levels of the column that `line` (`4: 3 d000.txt`) is about.
    fn read_domain(&mut self, files: &MojoFiles, line: &str, is_escaped: bool) -> Result<()> {
        let wrong = || Error::damaged(format!("{FILE}: the domain {line:?} is not valid"));
        let (column, rest) = line.split_once(':').ok_or_else(wrong)?;
        let (count, file) = rest.trim_start().split_once(' ').ok_or_else(wrong)?;
        let column: usize = column.trim_end().parse().map_err(|_| wrong())?;
        let count: usize = count.parse().map_err(|_| wrong())?;
        // The levels of the response of some models that have none; H2O ignores them, too.
        let Some(domain) = self.domains.get_mut(column) else { return Ok(()) };
        let file = format!("domains/{file}");
        let mut levels = files.lines(&file)?;
        if levels.len() != count {
            let has = levels.len();
            return Err(Error::damaged(format!(
                "{file} has {has} levels, and {FILE} says {count}"
            )));
        }
        if is_escaped {
            levels.iter_mut().for_each(|level| *level = unescaped(level));
        }
        *domain = Some(levels);
        Ok(())
    }

    /// The value `key`; `None` if it is not set.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str).filter(|value| *value != NULL)
    }

    /// The value `key`, which must be set.
    pub(super) fn required(&self, key: &str) -> Result<&str> {
        self.text(key).ok_or_else(|| Error::damaged(format!("{FILE} has no {key}")))
    }

    fn parsed<T: FromStr>(&self, key: &str, what: &str) -> Result<Option<T>> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let wrong = |_| Error::damaged(format!("{FILE}: {key} = {} is not {what}", shown(text)));
        text.parse().map(Some).map_err(wrong)
    }

    /// The truth value `key`, or `default`.
    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.parsed(key, "true or false")?.unwrap_or(default))
    }

    /// The number `key`, or `default`.
    pub(super) fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.parsed(key, "a number")?.unwrap_or(default))
    }

    /// The number `key`.
    pub(super) fn number(&self, key: &str) -> Result<f64> {
        self.required(key)?;
        self.number_or(key, f64::NAN)
    }

    /// The size `key`, or `default`.
    pub(super) fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.parsed(key, "a size")?.unwrap_or(default))
    }

    /// The size `key`.
    pub(super) fn size(&self, key: &str) -> Result<usize> {
        self.required(key)?;
        self.size_or(key, 0)
    }

    /// The list `key`; `None` if it is not set.
    fn list<T: FromStr>(&self, key: &str, what: &str) -> Result<Option<Vec<T>>> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let wrong =
            || Error::damaged(format!("{FILE}: {key} = {} is not a list of {what}", shown(text)));
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let inner = inner.ok_or_else(wrong)?;
        if inner.trim().is_empty() {
            return Ok(Some(Vec::new()));
        }
        let parse = |item: &str| item.trim().parse().map_err(|_| wrong());
        inner.split(',').map(parse).collect::<Result<_>>().map(Some)
    }

    /// The numbers `key`; `None` if they are not set.
    pub(super) fn optional_numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.list(key, "numbers")
    }

    /// The numbers `key`; none if they are not set.
    pub(super) fn numbers(&self, key: &str) -> Result<Vec<f64>> {
        Ok(self.optional_numbers(key)?.unwrap_or_default())
    }

    /// The integers `key`; none if they are not set.
    pub(super) fn integers(&self, key: &str) -> Result<Vec<i32>> {
        Ok(self.list(key, "integers")?.unwrap_or_default())
    }

    /// For each column of levels where its coefficients, units or features start, and one more: their
    /// end. Checks that they ascend, and that columns of levels and of numbers are the `features`.
    /// Also returns the number of columns of numbers.
    pub(super) fn level_starts(&self, features: usize) -> Result<(Vec<usize>, usize)> {
        let (levels, numbers) = (self.size_or("cats", 0)?, self.size_or("nums", 0)?);
        let starts = self.sizes("cat_offsets")?;
        if starts.len().saturating_sub(1) != levels || !starts.is_sorted() {
            return Err(Error::damaged(format!(
                "{FILE}: cat_offsets is not valid for {levels} columns"
            )));
        }
        if levels.checked_add(numbers) != Some(features) {
            return Err(Error::damaged(format!(
                "{FILE}: cats = {levels} and nums = {numbers} are not the {features} features"
            )));
        }
        Ok((starts, numbers))
    }

    /// The sizes `key`; none if they are not set.
    pub(super) fn sizes(&self, key: &str) -> Result<Vec<usize>> {
        Ok(self.list(key, "sizes")?.unwrap_or_default())
    }
}

/// The start of a value, for an error message.
fn shown(value: &str) -> String {
    const MOST: usize = 40;
    match value.char_indices().nth(MOST) {
        None => format!("{value:?}"),
        Some((end, _)) => format!("{:?}…", value.get(..end).unwrap_or_default()),
    }
}
