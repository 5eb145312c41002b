//! The command line: arguments, subcommands and exit codes.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::environment::Environment;
use crate::config::{self, Config, Reading, Settings};
use crate::platforms;
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

mod archives;
mod arguments;
mod auth;
mod bench;
mod compare;
mod comparison;
mod container;
mod convert;
mod example;
mod fetch;
mod forms;
mod health;
mod http_client;
mod inspect;
mod interrupt;
mod library_events;
mod listeners;
mod logging;
mod measured_forms;
mod model_server;
mod native_log;
mod paths;
mod printable;
mod probe_host;
mod reload;
mod replay;
mod sagemaker;
mod serve;
mod simple;
mod table;
#[cfg(feature = "transform")]
mod transform;
mod tune;
mod versions;
mod warmup;

use self::container::ContainerCommand;
use self::printable::{message, printable};
use self::sagemaker::docker;

/// Inference server for machine-learning models
#[derive(Parser)]
#[command(name = "tensorserve", disable_version_flag = true, arg_required_else_help = true)]
struct Cli {
    /// Print the version of tensorserve and of the libraries that its platforms use
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
    /// Show the signatures of models, with an example request for each
    Inspect(InspectArgs),
    /// Run a model on whole datasets: from files and stores to files and stores
    #[cfg(feature = "transform")]
    #[command(after_help = transform::HELP)]
    Transform(Box<transform::Arguments>),
    /// Measure a model of a server under load: latencies, rates, and what limits them
    #[command(after_help = bench::HELP)]
    Bench(Box<bench::Arguments>),
    /// Find the settings with which a model keeps a latency at the highest rate, and how many replicas a rate takes
    #[command(after_help = tune::HELP)]
    Tune(Box<tune::Arguments>),
    /// Run recorded requests on two versions of a model, and tell whether the new one may take the place of the old one
    #[command(after_help = compare::HELP)]
    Compare(compare::Arguments),
    /// Send the requests of a request log to a server again, and tell which answers are other ones now
    #[command(after_help = replay::HELP)]
    Replay(replay::Arguments),
    /// Check whether a running server is ready; the exit status is 0 if it is
    Health(health::Arguments),
    /// Manage the users and API keys of a server
    #[command(subcommand, after_help = AUTH_HELP)]
    Auth(auth::Commands),
    /// Create or check the recorded requests that warm up a version
    #[command(subcommand)]
    Warmup(warmup::Commands),
    /// Make a SavedModel of a Keras model, with Keras in your Python
    #[command(after_help = convert::HELP)]
    Convert(convert::Arguments),
    /// Download the libraries of the runtimes
    #[command(after_help = fetch::HELP)]
    Fetch(fetch::Arguments),
    /// The process of load probes, which the server starts
    #[command(name = tensorserve_probe::HOST_COMMAND, hide = true)]
    ProbeHost,
    /// Print a shell completion script
    Completions {
        /// Shell to generate the script for
        shell: Shell,
    },
    /// Serve with the flags of TensorFlow Serving, as when the program is called by this name
    #[command(name = model_server::NAME, disable_help_flag = true)]
    ModelServer {
        /// Flags of TensorFlow Serving; --help lists them
        #[arg(value_name = "--flag=value", trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Serve with the flags of Simple TensorFlow Serving, as when the program is called by this name
    #[command(name = simple::NAMES[0], alias = simple::NAMES[1], disable_help_flag = true)]
    Simple {
        /// Flags of Simple TensorFlow Serving; --help lists them
        #[arg(value_name = "--flag=value", trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Start as the entrypoint of a container image: as the server that the arguments and variables of
    /// the platform ask for
    #[command(name = container::NAME, disable_help_flag = true, after_help = container::HELP)]
    Container {
        /// A command of tensorserve, or flags of TensorFlow Serving
        #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Serve as the entrypoint of TensorFlow Serving's image, with MODEL_NAME and MODEL_BASE_PATH
    #[command(name = container::TFS_ENTRYPOINT, disable_help_flag = true)]
    TfServingEntrypoint {
        /// Flags of TensorFlow Serving, after those of the entrypoint
        #[arg(value_name = "--flag=value", trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Replace docker in SageMaker's local mode, as when the program is called docker
    #[command(name = docker::NAME, disable_help_flag = true, after_help = docker::HELP)]
    DockerShim {
        /// Arguments of docker
        #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

// Paragraphs are single lines, which clap wraps at the width of the terminal.
const SERVE_HELP: &str = "\
Each setting can be an option (--http-port), an environment variable (TENSORSERVE_HTTP_PORT) or a \
key of the configuration file (http_port = 8500). Options override variables, and variables \
override the file. DURATION is a number with a unit, such as 250ms, 30s or 2m; without a unit it is \
in seconds. SIZE is a number with a unit, such as 512KiB or 64MiB; without a unit it is in bytes. \
LIST is separated by commas.

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
    /// A SavedModel, a model file, a directory of versions, a directory of models, or the URL of a
    /// model on a server (http://127.0.0.1:8500/v1/models/NAME), which gets the credentials in
    /// TENSORSERVE_KEY, or in TENSORSERVE_USER and TENSORSERVE_PASSWORD; TENSORSERVE_CA is the file
    /// of its CA certificates
    #[arg(value_name = "PATH|URL")]
    target: String,
    /// Tags of the SavedModel graph to show, separated by commas
    #[arg(long, value_name = "LIST", default_value = "serve")]
    tags: String,
    /// Platform of the model [default: detected from its files]
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
    /// What runs the model: native for this program, python for your Python, where loading the model
    /// runs code that its file contains
    #[arg(long, value_name = "KIND", value_parser = ["native", "python"], default_value = "native",
          conflicts_with = "platform")]
    runner: String,
    /// Python interpreter of a model with --runner python [default: python3 on the PATH]
    #[arg(long, value_name = "PATH")]
    runner_python: Option<PathBuf>,
    /// Also load the models, and measure what optimize = "exact" and engine = "auto" would gain on this machine
    #[arg(long)]
    measure: bool,
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let status = dispatch();
    native_log::finish();
    status
}

fn dispatch() -> ExitCode {
    // ONNX Runtime from version 1.31 on would report its use to its maker, in our process and in those
    // that inherit the variable. No other thread exists yet.
    os::set_environment_variable("ORT_DISABLE_TELEMETRY", "1");
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
        print_error(&error);
        ExitCode::FAILURE
    })
}

/// Prints help, or what clap found wrong with the arguments, and returns the exit code.
fn print_clap(found: &clap::Error) -> ExitCode {
    let _ = found.print();
    if found.use_stderr() { ExitCode::from(WRONG_USAGE) } else { ExitCode::SUCCESS }
}

fn run(arguments: Vec<OsString>, environment: &Environment) -> Result<ExitCode> {
    let commands = match arguments::ask_for_a_summary(&arguments) {
        true => arguments::summarized(Cli::command()),
        false => Cli::command(),
    };
    let (matches, unknown) = arguments::parse(&commands, arguments);
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
            let status = inspect::run(&arguments, environment)?;
            if arguments.measure {
                measured_forms::run(&arguments.target)?;
            }
            Ok(status)
        }
        #[cfg(feature = "transform")]
        Some(Commands::Transform(arguments)) => Ok(transform::run(*arguments, environment)),
        Some(Commands::Bench(arguments)) => bench::run(&arguments, environment),
        Some(Commands::Tune(arguments)) => tune::run(&arguments, environment),
        Some(Commands::Compare(arguments)) => compare::run(&arguments, environment),
        Some(Commands::Replay(arguments)) => replay::run(&arguments, environment),
        Some(Commands::Health(arguments)) => health::run(&arguments, environment),
        Some(Commands::Auth(command)) => auth::run(&command, environment),
        Some(Commands::Warmup(command)) => warmup::run(&command, environment),
        Some(Commands::Convert(arguments)) => convert::run(&arguments, environment),
        Some(Commands::Fetch(arguments)) => fetch::run(&arguments, environment),
        Some(Commands::ModelServer { flags }) => Ok(model_server::run(flags, environment)),
        Some(Commands::Simple { flags }) => Ok(simple::run(simple::NAMES[0], flags, environment)),
        Some(Commands::Container { arguments }) => run_container(arguments, environment),
        Some(Commands::TfServingEntrypoint { flags }) => {
            container::run_tfs_entrypoint(flags, environment)
        }
        Some(Commands::DockerShim { arguments }) => Ok(docker::run(false, arguments, environment)),
        Some(Commands::ProbeHost) => probe_host::run(environment),
        Some(Commands::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tensorserve", &mut script);
            print_text(&String::from_utf8_lossy(&script));
            Ok(ExitCode::SUCCESS)
        }
        None => Ok(ExitCode::from(WRONG_USAGE)),
    }
}

/// Whether a word asks for help, where clap leaves all words to us.
fn is_help(word: impl AsRef<OsStr>) -> bool {
    ["--help", "-h"].iter().any(|help| word.as_ref() == *help)
}

/// Prints the help of a command that leaves all words to us.
fn print_help_of(name: &str) {
    let mut commands = Cli::command();
    commands.build();
    if let Some(command) = commands.find_subcommand_mut(name) {
        print_text(&command.render_long_help().to_string());
    }
}

/// The entrypoint of the images.
fn run_container(arguments: Vec<OsString>, environment: &Environment) -> Result<ExitCode> {
    if let [word] = arguments.as_slice()
        && is_help(word)
    {
        // The commands, and how the entrypoint chooses one.
        let mut commands = Cli::command();
        commands.build();
        print_text(&commands.render_long_help().to_string());
        print_line("");
        print_help_of(container::NAME);
        return Ok(ExitCode::SUCCESS);
    }
    match container::choose(arguments, environment, Path::new(container::MODELS))? {
        ContainerCommand::ModelServer(flags) => Ok(model_server::run(flags, environment)),
        ContainerCommand::Tensorserve(words, variables) => {
            let mut environment = environment.clone();
            for (name, value) in variables {
                environment = environment.with(name, value);
            }
            run([vec!["tensorserve".into()], words].concat(), &environment)
        }
    }
}

/// The settings in the arguments of a `serve` command, and whether they ask for SageMaker's container;
/// none for another command.
fn serve_settings(words: Vec<OsString>) -> (Settings, bool) {
    let words = [vec!["tensorserve".into()], words].concat();
    let (matches, _) = arguments::parse(&Cli::command(), words);
    let serve = matches.ok().and_then(|matches| matches.subcommand_matches("serve").cloned());
    match serve.and_then(|serve| ServeArgs::from_arg_matches(&serve).ok()) {
        Some(ServeArgs { settings, sagemaker }) => (settings, sagemaker.are_given()),
        None => (Settings::default(), false),
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
    let mut settings = settings.or(&unknown).or_environment(environment);
    if let Some(conflict) = sagemaker.conflict(&settings) {
        settings.reading.mistakes.add(conflict);
    }
    let is_usage_wrong = !settings.reading.mistakes.is_empty();
    let outcome = if sagemaker.are_requested(&settings, environment) {
        sagemaker::run(settings, &sagemaker, environment)
    } else {
        serve::run(settings, config::vertex::read(environment), environment)
    };
    match outcome {
        Err(error) if is_usage_wrong => {
            print_error(&error);
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
    print_line(concat!("tensorserve ", env!("CARGO_PKG_VERSION")));
    let mut settings = Settings::default();
    set_libraries(&mut settings, environment);
    let config = Config::new(settings, environment)?;
    for platform in platforms::built_in(&config).iter() {
        match platform.runtime.describe() {
            Ok(description) => match platform.runtime.library() {
                Some(file) => print_line(&format!("{description} ({})", file.display())),
                None => print_line(&description),
            },
            Err(error) => print_line(&format!("{}: {error}", platform.info.name)),
        }
        platform.runtime.remarks().iter().for_each(|remark| print_line(&format!("  {remark}")));
    }
    Ok(ExitCode::SUCCESS)
}

/// Sets the paths of the runtime libraries from the environment, for commands that read no other
/// setting from it.
fn set_libraries(settings: &mut Settings, environment: &Environment) {
    let path = |name| environment.get(name).map(PathBuf::from);
    settings.server.libtensorflow = path("TENSORSERVE_LIBTENSORFLOW");
    settings.server.libonnxruntime = path("TENSORSERVE_LIBONNXRUNTIME");
    settings.server.liblitert = path("TENSORSERVE_LIBLITERT");
    settings.server.libopenvino = path("TENSORSERVE_LIBOPENVINO");
    settings.server.libtorch = path("TENSORSERVE_LIBTORCH");
    settings.server.libexecutorch = path("TENSORSERVE_LIBEXECUTORCH");
}

/// Prints a line on stdout; further lines, such as of errors and names, are indented. A closed pipe is not an error.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{}", message(line));
}

/// Prints a text of several lines on stdout, in which names are on one line each.
fn print_text(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", printable(text.trim_end()));
}

/// Prints a remark on stderr, as [`print_line`].
fn print_note(note: &str) {
    let _ = writeln!(std::io::stderr(), "{}", message(note));
}

/// Prints an error, with its causes, on stderr; as one event, if the log there is JSON.
fn print_error(error: &Error) {
    let mut lines = lines_of(error);
    if logging::says_events() && log::log_enabled!(log::Level::Error) {
        return log::error!("{}", lines.join("\n"));
    }
    print_note(&format!("error: {}", lines.remove(0)));
    lines.iter().for_each(|line| print_note(line));
}

/// An error, and a line for each of its causes that the lines before do not repeat already.
fn lines_of(error: &Error) -> Vec<String> {
    let mut lines = vec![error.to_string()];
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !lines.iter().any(|line| line.contains(&text)) {
            lines.push(format!("  caused by: {text}"));
        }
        cause = error.source();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cause_is_printed_unless_the_error_says_it() {
        let refused = || std::io::Error::other("permission denied");
        let silent = Error::invalid("auth.toml cannot be read").with_source(refused());
        assert_eq!(
            lines_of(&silent),
            ["auth.toml cannot be read", "  caused by: permission denied"]
        );
        let said = Error::invalid("auth.toml: permission denied").with_source(refused());
        assert_eq!(lines_of(&said), ["auth.toml: permission denied"]);
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
