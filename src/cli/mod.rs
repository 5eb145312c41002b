//! The command line: from arguments to a running server or a printed answer, and to an exit
//! code.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::environment::Environment;
use crate::config::{Config, Reading, Settings};
use crate::platforms;
use tensorserve_tensor::error::{Error, Result};

mod arguments;
mod auth;
mod example;
mod health;
mod inspect;
mod model_server;
mod sagemaker;
mod serve;
mod simple;
mod table;
mod warmup;

use self::sagemaker::docker;

/// Serves machine-learning models in its own process
#[derive(Parser)]
#[command(name = "tensorserve", disable_version_flag = true, arg_required_else_help = true)]
struct Cli {
    /// Print the version, and that of the libtensorflow that is found
    #[arg(short = 'V', long)]
    version: bool,
    #[command(subcommand)]
    command: Option<Commands>,
}

#[derive(Subcommand)]
enum Commands {
    /// Serve models over HTTP and gRPC
    #[command(after_help = SERVE_HELP)]
    Serve(Box<ServeArgs>),
    /// Show a model's signatures, and a request for each that works
    Inspect(InspectArgs),
    /// Ask a running server whether it is ready; exit code 0 means yes
    Health(health::Arguments),
    /// Make users and keys, for servers that ask who their clients are
    #[command(subcommand, after_help = AUTH_HELP)]
    Auth(auth::Commands),
    /// Make or check the recorded requests that warm a version up
    #[command(subcommand)]
    Warmup(warmup::Commands),
    /// Print a script that completes commands and options in a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Serve with TensorFlow Serving's flags; so does this program under that name
    #[command(name = model_server::NAME, disable_help_flag = true)]
    ModelServer {
        /// TensorFlow Serving's; --help lists them
        #[arg(value_name = "--flag=value", trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Serve with Simple TensorFlow Serving's flags; so does this program under that name
    #[command(name = simple::NAMES[0], alias = simple::NAMES[1], disable_help_flag = true)]
    Simple {
        /// Simple TensorFlow Serving's; --help lists them
        #[arg(value_name = "--flag=value", trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Stand in for docker in SageMaker's local mode; so does this program under that name
    #[command(disable_help_flag = true)]
    DockerShim {
        /// docker's
        #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

const SERVE_HELP: &str = "\
Every option can also be set in the environment (--http-port as TENSORSERVE_HTTP_PORT) or in the
file named by --config (http_port = 8500). An option wins over the environment, the environment
over the file. Times are written as 250ms or 30s, sizes as 64MiB.

Examples:
  tensorserve serve models/
  tensorserve serve models/half_plus_two --http-port 9000
  tensorserve serve --config tensorserve.toml
  tensorserve serve --sagemaker --model-dir model.tar.gz";

const AUTH_HELP: &str = "\
Examples:
  tensorserve auth add-user ana --role admin
  tensorserve auth add-key ci --role infer > ci.key
  tensorserve serve models/ --auth-file auth.toml
  curl -H \"Authorization: Bearer $(cat ci.key)\" http://127.0.0.1:8500/v1/models";

/// The arguments of `serve`. Settings are kept as text by clap, so that all mistakes in them are
/// reported together.
struct ServeArgs {
    settings: Settings,
    sagemaker: sagemaker::Arguments,
}

impl Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        sagemaker::Arguments::augment_args(command.args(Settings::arguments()))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(ServeArgs {
            settings: Settings::of_options(matches),
            sagemaker: sagemaker::Arguments::from_arg_matches(matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[derive(Args)]
struct InspectArgs {
    /// A SavedModel, a folder of versions, a folder of models, or the address of a model on a
    /// server (http://127.0.0.1:8500/v1/models/NAME)
    #[arg(value_name = "PATH|URL")]
    target: String,
    /// Tags of the graph to show
    #[arg(long, value_name = "LIST", default_value = "serve")]
    tags: String,
    /// What kind of model it is [default: seen from its files]
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let environment = Environment::of_process();
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let program = arguments.first().cloned().unwrap_or_default();
    if is_called(&program, model_server::NAME) {
        return model_server::run(arguments.into_iter().skip(1), &environment);
    }
    if let Some(name) = simple::NAMES.into_iter().find(|name| is_called(&program, name)) {
        return simple::run(name, arguments.into_iter().skip(1), &environment);
    }
    if let Some(at) = docker::NAMES.iter().position(|name| is_called(&program, name)) {
        return docker::run(at == 1, arguments.into_iter().skip(1), &environment);
    }
    if is_called(&program, sagemaker::NAME) {
        let words = ["tensorserve", "serve", "--sagemaker"].map(OsString::from);
        arguments.splice(..1, words);
    }
    exit_code(run(arguments, &environment))
}

/// The exit status for arguments that cannot be parsed.
const WRONG_USAGE: u8 = 2;

/// The exit code of `outcome`, whose error is printed.
fn exit_code(outcome: Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        complain(&error);
        ExitCode::FAILURE
    })
}

/// Prints help, or what clap found wrong with the arguments, and returns the exit code.
fn print_clap(found: &clap::Error) -> ExitCode {
    let _ = found.print();
    if found.use_stderr() { ExitCode::from(WRONG_USAGE) } else { ExitCode::SUCCESS }
}

fn run(arguments: Vec<OsString>, environment: &Environment) -> Result<ExitCode> {
    let (matches, unknown) = arguments::parse(&Cli::command(), arguments);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match cli {
        Ok(cli) => cli,
        Err(found) => return Ok(print_clap(&found)),
    };
    if cli.version {
        return version(environment);
    }
    match cli.command {
        Some(Commands::Serve(arguments)) => run_serve(*arguments, unknown, environment),
        Some(Commands::Inspect(arguments)) => {
            inspect::run(&arguments.target, &arguments.tags, arguments.platform.as_deref())
        }
        Some(Commands::Health(arguments)) => health::run(&arguments, environment),
        Some(Commands::Auth(command)) => auth::run(&command, environment),
        Some(Commands::Warmup(command)) => warmup::run(&command, environment),
        Some(Commands::ModelServer { flags }) => Ok(model_server::run(flags, environment)),
        Some(Commands::Simple { flags }) => Ok(simple::run(simple::NAMES[0], flags, environment)),
        Some(Commands::DockerShim { arguments }) => Ok(docker::run(false, arguments, environment)),
        Some(Commands::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tensorserve", &mut script);
            say(String::from_utf8_lossy(&script).trim_end());
            Ok(ExitCode::SUCCESS)
        }
        None => Ok(ExitCode::from(WRONG_USAGE)),
    }
}

/// `serve`, after options that are not known.
fn run_serve(
    arguments: ServeArgs,
    unknown: Reading,
    environment: &Environment,
) -> Result<ExitCode> {
    let ServeArgs { settings, sagemaker } = arguments;
    let unknown = Settings { reading: unknown, ..Settings::default() };
    let settings = settings.or(&unknown).or_environment(environment);
    let is_usage_wrong = !settings.reading.mistakes.is_empty();
    let outcome = if sagemaker.are_meant(&settings, environment) {
        sagemaker::run(settings, &sagemaker, environment)
    } else {
        serve::run(settings, environment)
    };
    match outcome {
        Err(error) if is_usage_wrong => {
            complain(&error);
            Ok(ExitCode::from(WRONG_USAGE))
        }
        outcome => outcome,
    }
}

/// Whether the program was started under `name`, such as by a link to it.
fn is_called(program: &OsStr, name: &str) -> bool {
    Path::new(program).file_name() == Some(OsStr::new(name))
}

fn version(environment: &Environment) -> Result<ExitCode> {
    say(concat!("tensorserve ", env!("CARGO_PKG_VERSION")));
    let mut settings = Settings::default();
    name_libraries(&mut settings, environment);
    let config = Config::new(settings, environment)?;
    for platform in platforms::built_in(&config).iter() {
        match platform.describe() {
            Ok(description) => say(&description),
            Err(error) => say(&format!("{}: {error}", platform.name())),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes from the environment where the runtimes' libraries are, for a command that takes nothing
/// else from there.
fn name_libraries(settings: &mut Settings, environment: &Environment) {
    let path = |name| environment.get(name).map(PathBuf::from);
    settings.server.libtensorflow = path("TENSORSERVE_LIBTENSORFLOW");
    settings.server.libonnxruntime = path("TENSORSERVE_LIBONNXRUNTIME");
}

/// Prints a line. A reader that has gone away is no failure.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints an error, with its causes, on stderr.
fn complain(error: &Error) {
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "error: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let _ = writeln!(stderr, "  because: {error}");
        cause = error.source();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_setting_has_a_flag_and_a_variable() {
        let arguments = Settings::arguments();
        for argument in arguments.iter().filter(|argument| !argument.is_positional()) {
            let id = argument.get_id().as_str();
            assert_eq!(argument.get_long().map(str::to_owned), Some(id.replace('_', "-")), "{id}");
            let variable = argument.get_env().expect(id).to_str().expect("text");
            assert_eq!(variable, format!("TENSORSERVE_{}", id.to_uppercase()));
        }
    }
}
