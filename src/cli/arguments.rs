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

/// Options of other servers, and what they are here.
const ELSEWHERE: [(&[&str], &str); 6] = [
    (&["--port", "--rest-port", "--rest-api-port", "--http"], "--http-port"),
    (&["--grpc"], "--grpc-port"),
    (&["--address", "--bind", "--ip"], "--host"),
    (&["--name"], "--model-name"),
    (&["--model-config-file", "--config-file"], "--config"),
    (
        &["--model", "--model-path", "--model-base-path", "--model-repository"],
        "PATH without an option",
    ),
];

/// What an option of another server is here.
fn known_elsewhere(name: &str) -> Option<&'static str> {
    let name = name.replace('_', "-");
    let found = ELSEWHERE.iter().find(|(names, _)| names.contains(&name.as_str()));
    found.map(|(_, here)| *here)
}

fn unknown_option(command: &Command, name: &str) -> String {
    if let Some(here) = known_elsewhere(name) {
        return format!("{name} is not an option of `tensorserve serve`; did you mean {here}?");
    }
    let serve = command.find_subcommand("serve").into_iter();
    let options = serve.flat_map(Command::get_arguments).filter_map(|option| option.get_long());
    let known: Vec<String> = options.map(|long| format!("--{long}")).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    unknown_name(name, &known, "an option of `tensorserve serve`")
}

/// Whether the short help of `serve` is asked for.
pub(super) fn ask_for_a_summary(arguments: &[OsString]) -> bool {
    let mut options = arguments.iter().skip(2).take_while(|argument| *argument != "--");
    arguments.get(1).is_some_and(|command| command == "serve")
        && options.any(|option| option == "-h")
}

/// The options that `serve -h` shows, each with a help that fits beside it on 80 columns.
const COMMON: [(&str, &str); 21] = [
    ("paths", "Models to serve, or directories of models"),
    ("config", "Configuration file, TOML"),
    ("host", "Address [default: 127.0.0.1]"),
    ("http_port", "HTTP port, or off [default: 8500]"),
    ("grpc_port", "gRPC port, or off [default: 8501]"),
    ("model_name", "Name of the only model"),
    ("platform", "Platform, if it is not detected"),
    ("version_policy", "latest, latest:N, all, specific:1,2"),
    ("batching", "auto, on or off [default: auto]"),
    ("max_batch_size", "Rows of a batch [default: 64]"),
    ("num_batch_threads", "Threads for batches"),
    ("request_timeout", "Limit of a request [default: 30s]"),
    ("memory_limit", "Limit of all models, 8GiB or 80%"),
    ("tls_certificate", "TLS certificate, PEM"),
    ("tls_key", "Private key of the certificate, PEM"),
    ("auth_file", "Users and API keys, TOML"),
    ("log_level", "error, warn, info, debug or trace"),
    ("log_format", "text or json [default: text]"),
    ("access_log", "Share of logged requests, 0 to 1"),
    ("sagemaker", "Run as SageMaker's container"),
    ("model_dir", "The same, with the models in PATH"),
];

/// The commands, with a short help of `serve`, which fits a screen.
pub(super) fn summarized(commands: Command) -> Command {
    commands.mut_subcommand("serve", |serve| {
        let all = serve.get_arguments().count();
        let serve = serve.mut_args(|argument| {
            let id = argument.get_id().to_string();
            let Some((_, help)) = COMMON.iter().find(|(common, _)| *common == id) else {
                return argument.hide(true);
            };
            let argument = argument.help_heading(None);
            let argument = match argument.get_action().takes_values() {
                true => argument.hide_env(true).hide_possible_values(true),
                false => argument,
            };
            argument.help(*help)
        });
        serve.after_help(format!(
            "`tensorserve serve --help` has all {all} options, each with its variable and its default.\n\n\
             Examples:\n  tensorserve serve models/\n  tensorserve serve --config tensorserve.toml"
        ))
    })
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
    fn options_of_other_servers_are_known() {
        for (given, here) in [
            ("--port", "--http-port?"),
            ("--port=1", "--http-port?"),
            ("--rest_api_port=1", "--http-port?"),
            ("--model_base_path=/m", "PATH without an option?"),
            ("--bind=::", "--host?"),
            ("--htpp-port=1", "--http-port?"),
        ] {
            let error = parsed(&[given, "m"]).1.mistakes.result(()).expect_err("a mistake");
            assert!(error.message().ends_with(&format!("did you mean {here}")), "{error}");
        }
    }

    #[test]
    fn the_common_options_are_options() {
        let commands = super::super::Cli::command();
        let serve = commands.find_subcommand("serve").expect("serve");
        for (id, short) in COMMON {
            let option = serve.get_arguments().find(|argument| argument.get_id() == id);
            let help = option.and_then(|option| option.get_help()).expect(id).to_string();
            if let Some((_, default)) = short.split_once("[default: ") {
                assert!(help.contains(&format!("[default: {default}")), "{id}: {help}");
            }
        }
    }

    #[test]
    fn help_does_not_hide_a_mistake() {
        let error = parsed(&["--bogus", "--help"]).0.expect_err("no matches");
        assert_eq!(error.kind(), ErrorKind::UnknownArgument);
        assert_eq!(parsed(&["--help"]).0.expect_err("help").kind(), ErrorKind::DisplayHelp);
    }
}
