//! Parses the command line so that all mistakes in the options of `serve` are reported together:
//! clap alone stops at the first one.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};

use crate::config::{Reading, unknown_name};

/// Parses `arguments`. For `serve`, leaves out unknown options and options without a value, and
/// records these mistakes.
pub(super) fn parse(
    command: &Command,
    mut arguments: Vec<OsString>,
) -> (Result<ArgMatches, clap::Error>, Reading) {
    let mut reading = Reading::default();
    let mut first = None;
    loop {
        let error = match command.clone().try_get_matches_from(&arguments) {
            Ok(matches) => return (Ok(matches), reading),
            Err(error) => error,
        };
        let Some(at) = removable(&error, &arguments) else {
            return (Err(first.unwrap_or(error)), reading);
        };
        let argument = arguments.remove(at);
        let name = option_name(&argument);
        if error.kind() == ErrorKind::UnknownArgument {
            reading.mistakes.add(unknown_option(command, &name));
            // The next word may be the value of the unknown option.
            let is_value = |next: &OsString| !next.as_encoded_bytes().starts_with(b"-");
            if !has_value(&argument) && arguments.get(at).is_some_and(is_value) {
                arguments.remove(at);
                reading.is_incomplete = true;
            }
        } else {
            reading.mistakes.add(format!("{name}: the value is missing"));
        }
        first.get_or_insert(error);
    }
}

/// The position of the option of `serve` that `error` is about, if the rest can be parsed without
/// it.
fn removable(error: &clap::Error, arguments: &[OsString]) -> Option<usize> {
    if arguments.get(1).is_none_or(|command| command != "serve") {
        return None;
    }
    let is_missing_value = error.kind() == ErrorKind::InvalidValue
        && matches!(error.get(ContextKind::InvalidValue), Some(ContextValue::String(value)) if value.is_empty());
    if error.kind() != ErrorKind::UnknownArgument && !is_missing_value {
        return None;
    }
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    // As in "--host <ADDRESS>".
    let option = shown.split_whitespace().next().filter(|option| option.starts_with('-'))?;
    let is_meant = |argument: &OsString| option_name(argument) == option;
    let short = |argument: &OsString| {
        !option.starts_with("--") && argument.to_string_lossy().starts_with(option)
    };
    let options = &arguments[2..];
    let at = options.iter().position(is_meant).or_else(|| options.iter().position(short))?;
    Some(at + 2)
}

/// `--name` of `--name=value`.
fn option_name(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    text.split_once('=').map_or(text.as_ref(), |(name, _)| name).to_owned()
}

fn has_value(argument: &OsStr) -> bool {
    argument.as_encoded_bytes().contains(&b'=')
}

fn unknown_option(command: &Command, name: &str) -> String {
    let serve = command.find_subcommand("serve").into_iter();
    let options = serve.flat_map(Command::get_arguments).filter_map(|option| option.get_long());
    let known: Vec<String> = options.map(|long| format!("--{long}")).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    unknown_name(name, &known, "an option of `tensorserve serve`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parsed(words: &[&str]) -> (Result<ArgMatches, clap::Error>, Reading) {
        let words = ["tensorserve", "serve"].iter().chain(words).map(OsString::from).collect();
        parse(&super::super::Cli::command(), words)
    }

    #[test]
    fn unknown_options_do_not_hide_the_rest() {
        let (matches, reading) = parsed(&["--http-prot", "1", "-x", "--a=b", "m", "--host"]);
        let matches = matches.expect("the rest is valid");
        let serve = matches.subcommand_matches("serve").expect("serve");
        let paths: Vec<&OsStr> = serve.get_raw("paths").expect("paths").collect();
        assert_eq!(paths, ["m"]);
        assert!(reading.is_incomplete);
        let error = reading.mistakes.result(()).expect_err("mistakes");
        for part in [
            "--http-prot is not an option of `tensorserve serve`; did you mean --http-port?",
            "-x is not",
            "--a is not",
            "--host: the value is missing",
        ] {
            assert!(error.message().contains(part), "{part:?} is not in: {error}");
        }
    }

    #[test]
    fn help_does_not_hide_a_mistake() {
        let error = parsed(&["--bogus", "--help"]).0.expect_err("no matches");
        assert_eq!(error.kind(), ErrorKind::UnknownArgument);
        assert_eq!(parsed(&["--help"]).0.expect_err("help").kind(), ErrorKind::DisplayHelp);
    }
}
