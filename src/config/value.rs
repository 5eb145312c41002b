//! How the text of a setting becomes its value.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::ValueHint;

use super::units::{Amount, ByteSize, CommaSeparated, HumanDuration, Port};
use super::written::WrittenValue;

/// The type of a setting's value.
pub(super) trait SettingValue: Sized {
    /// What shells complete.
    const HINT: ValueHint = ValueHint::Unknown;
    /// All values, where they are few.
    const POSSIBLE: &'static [&'static str] = &[];

    /// The value of `text`.
    ///
    /// # Errors
    /// Why it has none.
    fn parse(text: &str) -> Result<Self, String>;

    /// The value of what was written.
    ///
    /// # Errors
    /// Why it has none.
    fn read(written: &WrittenValue) -> Result<Self, String> {
        match written {
            WrittenValue::Text(text) => Self::parse(utf8(text)?),
            WrittenValue::List(_) => Err("a list is not allowed here".to_owned()),
        }
    }
}

fn utf8(text: &OsStr) -> Result<&str, String> {
    text.to_str().ok_or_else(|| format!("{text:?} is not UTF-8"))
}

impl SettingValue for String {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl SettingValue for bool {
    const POSSIBLE: &'static [&'static str] = &["true", "false"];

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{text:?} is not true or false"))
    }
}

impl SettingValue for PathBuf {
    const HINT: ValueHint = ValueHint::AnyPath;

    fn parse(text: &str) -> Result<Self, String> {
        Self::read(&WrittenValue::Text(text.into()))
    }

    /// A path need not be UTF-8.
    fn read(written: &WrittenValue) -> Result<Self, String> {
        match written {
            WrittenValue::Text(path) if path.is_empty() => Err("the path is empty".to_owned()),
            WrittenValue::Text(path) => Ok(path.into()),
            WrittenValue::List(_) => Err("a list is not allowed here".to_owned()),
        }
    }
}

impl<T: SettingValue> SettingValue for CommaSeparated<T> {
    fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(T::parse).collect::<Result<_, _>>().map(CommaSeparated)
    }

    fn read(written: &WrittenValue) -> Result<Self, String> {
        match written {
            WrittenValue::Text(text) => Self::parse(utf8(text)?),
            WrittenValue::List(items) => items
                .iter()
                .map(|item| T::parse(item))
                .collect::<Result<_, _>>()
                .map(CommaSeparated),
        }
    }
}

/// Numbers, with what the text must be.
macro_rules! numbers {
    ($($number:ty: $what:literal,)*) => { $(
        impl SettingValue for $number {
            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!(concat!("{:?} is not ", $what), text))
            }
        }
    )* };
}

numbers! {
    usize: "a non-negative integer",
    u64: "a non-negative integer",
    u32: "an integer from 0 to 4294967295",
    i32: "an integer from -2147483648 to 2147483647",
    f64: "a number",
}

/// Values with units, whose errors explain the format.
macro_rules! units {
    ($($unit:ty,)*) => { $(
        impl SettingValue for $unit {
            fn parse(text: &str) -> Result<Self, String> {
                text.parse()
            }
        }
    )* };
}

units! { Amount, ByteSize, Port, HumanDuration, }
