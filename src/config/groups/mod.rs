//! The declarations of all settings, in groups. A setting is one item: its help, its name and type, its default, its
//! values where they are few, and what else its value has to satisfy. The option, the variable, the key of the file,
//! the text of `--help`, the check of the value, and the method that returns the value or the default are made from
//! the item. A test compares `docs/configuration.md` with it.
//!
//! What stands above a setting, in this order:
//!
//! - `arg`: what the option needs besides;
//! - `default`: its value when it is not set; then the group has a method of the setting's name. Or
//! - `unset`: what applies when it is not set, in words, if that is no constant;
//! - `one_of`: the only texts that it can be, the default first, with what each means and, after `;`, what else is
//!   accepted. Then the method returns the meaning;
//! - `check`: a function of [`rules`] that says what is wrong with a value.

use std::ffi::{OsStr, OsString};

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, ArgAction, Command};

use super::written::variable;

/// Declares settings once for the command line, the environment and the file.
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        #[help_heading($heading:literal)]
        pub struct $name:ident {
            $(
                $(#[doc = $help:literal])*
                #[arg($($method:ident = $argument:expr),*)]
                $(#[default($default:expr)])?
                $(#[unset($unset:literal)])?
                $(#[one_of(
                    $told:ident, $meaning:ty:
                    $first:literal => $meant_first:expr
                    $(, $word:literal => $meant:expr)*
                    $(; $($other:literal => $meant_too:expr),+)?
                )])?
                $(#[check($check:expr)])?
                $field:ident: $type:ty,
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $( $(#[doc = $help])* pub $field: Option<$type>, )*
        }

        impl $name {
            /// The names of all settings here, as the file has them.
            pub(in crate::config) const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            $($(
                #[doc = concat!("`", stringify!($field), "`, or its default.")]
                #[must_use]
                pub fn $field(&self) -> $type {
                    match &self.$field {
                        Some(value) => value.clone(),
                        None => $default,
                    }
                }
            )?)*

            $($(
                #[doc = concat!("What `", stringify!($field), "` means, or its default.")]
                #[must_use]
                pub fn $field(&self) -> $meaning {
                    match self.$field.as_deref() {
                        $( Some($word) => $meant, )*
                        $($( Some($other) => $meant_too, )+)?
                        _ => $meant_first,
                    }
                }
            )?)*

            /// The options of the command line.
            pub(in crate::config) fn options() -> Vec<Arg> {
                vec![$({
                    let in_words: &[&str] = &[$($unset,)? $($first,)?];
                    let value: &[String] = &[$(shown::<$type>(&$default),)?];
                    let default = in_words.first().copied().or(value.first().map(String::as_str));
                    option(stringify!($field), concat!($($help, "\n"),*), default)
                        .value_parser(AsWritten(<$type>::POSSIBLE))
                        $(.value_parser(AsWritten(&[$first $(, $word)*])))?
                        .value_hint(<$type>::HINT)
                        .help_heading($heading)
                        $(.$method($argument))*
                }),*]
            }

            /// Sets the setting `name`; `None` if there is no such setting here.
            pub(in crate::config) fn set(
                &mut self,
                name: &str,
                value: &WrittenValue,
            ) -> Option<Result<(), String>> {
                match name {
                    $( stringify!($field) => {
                        Some(SettingValue::read(value).map(|value| self.$field = Some(value)))
                    } )*
                    _ => None,
                }
            }

            pub(in crate::config) fn is_set(&self, name: &str) -> bool {
                match name {
                    $( stringify!($field) => self.$field.is_some(), )*
                    _ => false,
                }
            }

            /// What is wrong with the values that are set, each by itself, with the names of the settings.
            pub(in crate::config) fn mistakes(&self) -> Vec<(&'static str, String)> {
                let mut mistakes = Vec::new();
                $($(
                    if let Some(value) = &self.$field {
                        let known = [$first $(, $word)* $($(, $other)+)?];
                        if !known.contains(&value.as_str()) {
                            let why = format!("{value:?} {}", $told(&[$first $(, $word)*]));
                            mistakes.push((stringify!($field), why));
                        }
                    }
                )?)*
                $($(
                    if let Some(value) = &self.$field {
                        mistakes.extend($check(value).into_iter().map(|why| (stringify!($field), why)));
                    }
                )?)*
                mistakes
            }

            /// The settings with a constant default, as it is shown.
            #[cfg(all(test, feature = "default"))]
            pub(in crate::config) fn defaults() -> Vec<(&'static str, String)> {
                let words: Vec<(&str, Option<&str>, Option<&str>)> = vec![$({
                    let unset: &[&str] = &[$($unset)?];
                    let first: &[&str] = &[$($first)?];
                    (stringify!($field), unset.first().copied(), first.first().copied())
                }),*];
                let words = words.into_iter().filter(|(_, unset, _)| unset.is_none());
                let words = words.filter_map(|(name, _, first)| Some((name, first?.to_owned())));
                let values = [$($( (stringify!($field), shown::<$type>(&$default)), )?)*];
                words.chain(values).collect()
            }

            /// These settings, and where there is none, those of `lower`.
            #[must_use]
            pub fn or(self, lower: &Self) -> Self {
                $name { $( $field: self.$field.or_else(|| lower.$field.clone()), )* }
            }
        }
    };
}

mod models;
mod rules;
mod server;

pub use self::models::{
    BatchSettings, EachModelSettings, Isolation, ReleaseKind, RowIndependence, Runner,
};
pub use self::server::{LogFormat, ServerSettings, TraceProtocol};

/// A default as `--help` and the documentation show it.
fn shown<T: ToString>(default: &T) -> String {
    default.to_string()
}

/// An option of the command line, which is also a variable of the environment.
pub(super) fn option(name: &'static str, help: &str, default: Option<&str>) -> Arg {
    let mut help = help.split_whitespace().collect::<Vec<&str>>().join(" ");
    if let Some(default) = default {
        help.push_str(&format!(" [default: {default}]"));
    }
    Arg::new(name)
        .long(name.replace('_', "-"))
        .env(variable(name))
        .hide_env_values(true)
        .help(help)
        // Options that are given twice are counted, and negative numbers parsed, in `read`.
        .action(ArgAction::Append)
        .allow_negative_numbers(true)
}

/// Accepts every text, so that one wrong value does not hide the next. The possible values are for
/// `--help` and shell completion.
#[derive(Clone)]
pub(super) struct AsWritten(pub(super) &'static [&'static str]);

impl TypedValueParser for AsWritten {
    type Value = OsString;

    fn parse_ref(
        &self,
        _: &Command,
        _: Option<&Arg>,
        text: &OsStr,
    ) -> Result<OsString, clap::Error> {
        Ok(text.to_owned())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        if self.0.is_empty() {
            return None;
        }
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}
