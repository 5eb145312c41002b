//! `tensorserve serve`: starts the server, prints what it serves, and stops on a signal.

use std::future;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::ProgressBar;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::inspect::models_at;
use super::interrupt::{INTERRUPTED, StopSignals, no_signals};
use super::listeners::OpenPorts;
use super::logging::{LibraryLines, say, says_events};
use super::paths::{self, unknown_platform};
use super::printable::on_one_line;
use super::reload::{ReadAgain, Reloader};
use super::table::columns;
use super::{archives, example, logging, native_log, print_line, print_text, probe_host};
use crate::Server;
use crate::config::environment::Environment;
use crate::config::{AuthConfig, Config, Mistakes, Settings, SourceConfig, vertex};
use crate::platforms;
use crate::progress::DownloadBar;
use tensorserve_auth as auth;
use tensorserve_core::config::is_store_url;
use tensorserve_core::engine::{Engine, ModelSpec, VersionSelector, VersionState};
use tensorserve_os as os;
use tensorserve_platform::library::install_commands;
use tensorserve_platform::{Gpus, Platform, Platforms};
use tensorserve_probe::probed;
use tensorserve_tensor::error::{Code, Error, Result};

pub(super) fn run(
    settings: Settings,
    vertex: Option<vertex::VertexVariables>,
    environment: &Environment,
) -> Result<ExitCode> {
    let start = Instant::now();
    let all = with_file(settings.clone(), vertex.as_ref());
    logging::start(&all, environment, LibraryLines::InLog);
    let routes = vertex.as_ref().map(|vertex| &vertex.routes);
    if let Some(routes) = routes {
        let (predict, health) = (&routes.predict_route, &routes.health_route);
        log::info!("as a container of Vertex AI: predictions at {predict}, health at {health}");
    }
    let config = checked(all, vertex.as_ref(), environment)?;
    let of_process = environment.clone();
    let read_again = move || {
        let config =
            checked(with_file(settings.clone(), vertex.as_ref()), vertex.as_ref(), &of_process)?;
        tensorserve_server::check_certificates(&config.server())?;
        Ok(config)
    };
    serve(&config, environment, start, Some(Box::new(read_again)), |_| Ok(()))
}

/// The settings of the command line and the environment, and below them those of the file and of Vertex AI.
fn with_file(settings: Settings, vertex: Option<&vertex::VertexVariables>) -> Settings {
    let mut settings = settings.or_file();
    if let Some(vertex) = vertex {
        // The file's models stay; only missing settings are added.
        let models = std::mem::take(&mut settings.models);
        settings = Settings { models, ..settings.or(&vertex.settings) };
        if settings.paths.is_empty() && settings.models.is_empty() {
            settings.paths.extend(vertex.storage.clone());
        }
    }
    settings
}

/// The configuration, or all mistakes.
fn checked(
    settings: Settings,
    vertex: Option<&vertex::VertexVariables>,
    environment: &Environment,
) -> Result<Config> {
    // Do not report missing models when the part that names them could not be read.
    let may_name_models = settings.reading.is_incomplete || !settings.models.is_empty();
    let names_platform = settings.reading.origins.contains_key("platform");
    let mut places = paths::places_of_models(&settings);
    let mut missing = Mistakes::default();
    paths::check(&settings, &mut missing);
    let (mut config, mut mistakes) = Config::with_mistakes(settings, environment);
    config.protocols.vertex = vertex.map(|vertex| vertex.routes.clone());
    if config.repository.sources.is_empty() && !may_name_models {
        mistakes.add(
            "nothing to serve: name a model or a directory of models, as in `tensorserve serve \
             models/`, or a file with --config",
        );
    }
    mistakes.extend(&missing);
    if let Err(error) = archives::unpack(&mut config, &mut places) {
        mistakes.add(error.message());
    }
    paths::check_sources(&config, &places, names_platform, &mut mistakes);
    check_auth_file(&config, &mut mistakes);
    mistakes.result(config)
}

/// Serves until SIGTERM or SIGINT. SIGHUP calls `read_again`. `then` is called when the server has started.
pub(super) fn serve(
    config: &Config,
    environment: &Environment,
    start: Instant,
    read_again: Option<ReadAgain>,
    then: impl FnOnce(&Server) -> Result<()>,
) -> Result<ExitCode> {
    os::limit_malloc_arenas(os::server_arenas());
    os::keep_freed_memory(os::KEPT_BY_SERVER);
    let platforms = platforms::built_in(config);
    let runtimes = runtimes(&platforms, &config.repository.sources)?;
    let platforms = probed(platforms, &config.probe, probe_host::settings(config));
    let platforms = platforms::with_engines(platforms);
    if config.require_gpu {
        check_gpu(&platforms)?;
    }
    native_log::start()?;
    let (signals, hangups) = outlive_hangups().map_err(no_signals)?;
    let server = Server::start(config, platforms)?;
    then(&server)?;
    let reloader = Reloader {
        engine: server.engine().clone(),
        files: server.file_checks(),
        current: config.clone(),
        read: read_again,
    };
    let hangups = signals.spawn(pass_hangups(hangups, reloader.start()?));
    let report = StartupReport {
        engine: server.engine().clone(),
        address: server.address(),
        scheme: if config.http.tls.is_some() { "https" } else { "http" },
        auth: config.auth.clone(),
        grpc_address: server.grpc_address(),
        listeners: OpenPorts {
            http: server.http_addresses(),
            grpc: server.grpc_address(),
            grpc_socket: config.grpc.socket_path.clone(),
        },
        runtimes,
        start,
        called_at: environment.called_at(),
    };
    thread::Builder::new()
        .name("report".to_owned())
        .spawn(move || report.print())
        .map_err(|e| Error::internal("a thread could not be started").with_source(e))?;
    wait_for_stop(signals, config.stop_with_stdin)?;
    let stopped = Instant::now();
    // The thread that reads settings ends with it, and lets go of the engine.
    hangups.abort();
    server.stop();
    log::info!("stopped after {} ms", stopped.elapsed().as_millis());
    native_log::finish();
    // Without the clean-up of the runtimes, which can hang or crash while a load is in progress.
    os::exit_now(0)
}

/// Descriptions of the runtimes that the models at `sources` need. If all are missing, that is an error:
/// every load would fail. While there are no models, TensorFlow is assumed; if it is not
/// installed, models of other platforms may come.
fn runtimes(platforms: &Platforms, sources: &[SourceConfig]) -> Result<Vec<String>> {
    let mut names: Vec<&str> = Vec::new();
    for source in sources {
        let named = source.model.platform;
        if let Some(unknown) = unknown_platform(source, platforms) {
            return Err(Error::invalid(unknown));
        }
        let models = models_at(&source.path, platforms, named).unwrap_or_default();
        let found = models.iter().filter_map(|(_, path)| platforms.of_folder(path));
        names.extend(found.map(|platform| platform.info.name));
        names.extend(named);
    }
    if names.is_empty() && sources.iter().any(|source| is_store_url(&source.path)) {
        // The platforms of models in stores are known only when these are listed.
        // Their libraries are opened now: the process that load probes are forked from has them.
        let described = platforms.iter().map(|platform| (platform, platform.runtime.describe()));
        let bound = described.filter(|(platform, _)| platform.runtime.library().is_some());
        return Ok(bound.filter_map(|(_, described)| described.ok()).collect());
    }
    if names.is_empty() {
        let tensorflow = platforms.iter().find(|platform| platform.info.name == "tensorflow");
        return Ok(match tensorflow.map(|platform| platform.runtime.describe()) {
            Some(Ok(description)) => vec![description],
            Some(Err(error)) if error.code() != Code::Unavailable => return Err(error),
            Some(Err(error)) => {
                log::warn!("TensorFlow models cannot be loaded: {error}");
                vec!["without libtensorflow".to_owned()]
            }
            None => Vec::new(),
        });
    }
    let needed = platforms.iter().filter(|platform| names.contains(&platform.info.name));
    described(needed)
}

/// The descriptions of the runtimes of `needed`. One that is not installed is an error only if no other is: the
/// models of the others are served.
fn described<'p>(needed: impl Iterator<Item = &'p Platform>) -> Result<Vec<String>> {
    let (mut descriptions, mut missing) = (Vec::new(), Vec::new());
    for platform in needed {
        match platform.runtime.describe() {
            Ok(description) => descriptions.push(description),
            Err(error) if error.code() == Code::Unavailable => missing.push((platform, error)),
            Err(error) => return Err(error),
        }
    }
    if descriptions.is_empty() && !missing.is_empty() {
        return Err(missing.swap_remove(0).1);
    }
    for (platform, error) in missing {
        log::error!("{} models cannot be loaded: {error}", platform.info.title);
    }
    Ok(descriptions)
}

/// The error that `require_gpu` is set and no platform can use a GPU.
fn check_gpu(platforms: &Platforms) -> Result<()> {
    let mut why = "this build of tensorserve has no platform that uses GPUs".to_owned();
    for platform in platforms.iter() {
        match platform.runtime.find_gpus()? {
            Some(Gpus::Available(_)) => return Ok(()),
            Some(Gpus::Unavailable(reason)) => why = reason,
            Some(Gpus::NotSupported) => {
                why = format!(
                    "this libtensorflow is built for CPUs only; install the one with CUDA with {}",
                    install_commands("tensorflow-gpu", "gpu")
                );
            }
            None => {}
        }
    }
    Err(Error::precondition(format!("no GPU, and require_gpu is set: {why}")))
}

/// Records what is wrong with the file of users and keys.
fn check_auth_file(config: &Config, mistakes: &mut Mistakes) {
    let Some(AuthConfig::File(path)) = &config.auth else {
        return;
    };
    if let Err(error) = auth::file::list(path) {
        mistakes.add(error.context("auth_file"));
    }
}

/// Receives SIGHUP from now on, so that it ends the server at no time. Returns what runs the wait for other signals.
fn outlive_hangups() -> io::Result<(Runtime, Signal)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let hangups = runtime.block_on(async { signal(SignalKind::hangup()) })?;
    Ok((runtime, hangups))
}

/// Waits for SIGTERM or SIGINT, or for the end of stdin. A further signal ends the process at once.
fn wait_for_stop(runtime: Runtime, with_stdin: bool) -> Result<()> {
    let mut signals = runtime
        .block_on(async {
            let mut signals = StopSignals::new()?;
            tokio::select! {
                name = signals.next() => {
                    log::info!("{name}: shutting down; send it again to exit immediately");
                }
                () = end_of_stdin(with_stdin) => log::info!("standard input ended: shutting down"),
            }
            Ok(signals)
        })
        .map_err(no_signals)?;
    let second = move || {
        runtime.block_on(signals.next());
        os::exit_now(INTERRUPTED.into())
    };
    let _ = thread::Builder::new().name("signals".to_owned()).spawn(second);
    Ok(())
}

/// Has the settings read again at each SIGHUP; those that come before that has begun count as one.
async fn pass_hangups(mut hangups: Signal, reload: SyncSender<()>) {
    while hangups.recv().await.is_some() {
        let _ = reload.try_send(());
    }
}

/// Completes at the end of stdin, or never.
async fn end_of_stdin(awaited: bool) {
    let (ended, end) = oneshot::channel();
    let read = move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = ended.send(());
    };
    if awaited && thread::Builder::new().name("stdin".to_owned()).spawn(read).is_ok() {
        let _ = end.await;
    } else {
        future::pending().await
    }
}

/// What the server prints at startup.
struct StartupReport {
    engine: Engine,
    /// The address of the HTTP listener.
    address: Option<SocketAddr>,
    scheme: &'static str,
    auth: Option<AuthConfig>,
    grpc_address: Option<SocketAddr>,
    listeners: OpenPorts,
    runtimes: Vec<String>,
    start: Instant,
    called_at: Option<u128>,
}

/// Loads that take longer than this get a spinner.
const SPINNER_DELAY: Duration = Duration::from_millis(700);

impl StartupReport {
    fn print(&self) {
        let version = env!("CARGO_PKG_VERSION");
        say(&format!("tensorserve {version}, {}", self.runtimes.join(", ")), &[]);
        if let Some(url) = self.url() {
            say(&format!("listening on {url}"), &[("url", &url)]);
        }
        if let Some(address) = self.grpc_address {
            let url = format!("grpc://{address}");
            say(&format!("listening on {url}"), &[("url", &url)]);
        }
        match &self.auth {
            None => {}
            Some(AuthConfig::File(path)) => {
                say(&format!("authentication: users and keys of {}", path.display()), &[]);
            }
            Some(AuthConfig::OneUser { name, .. }) => {
                say(&format!("authentication: user {name}"), &[]);
            }
        }
        if let Some(places) = self.listeners.more_than_urls() {
            say(&places, &[]);
        }
        self.wait();
        let for_people = !says_events();
        if for_people {
            print_line("");
            print_text(&columns(&self.rows()));
        }
        let mut ready = format!("ready after {:.2} s", self.start.elapsed().as_secs_f64());
        if let Some(since_make) = self.since_called() {
            ready.push_str(&format!(", {since_make:.2} s after `make run`"));
        }
        if let Err(obstacles) = self.engine.readiness() {
            ready = format!("not ready: {obstacles}");
        }
        if for_people {
            print_line("");
        }
        say(&ready, &[]);
        if let Some(command) = self.example().filter(|_| for_people) {
            print_text(&format!("\ntry:\n  {command}"));
        }
    }

    fn url(&self) -> Option<String> {
        let mut address = self.address?;
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        Some(format!("{}://{address}", self.scheme))
    }

    /// Waits for the models, with a spinner on a terminal if that takes long.
    fn wait(&self) {
        let spinner = ProgressBar::new_spinner();
        let shown = std::io::stderr().is_terminal();
        let bar = DownloadBar::new();
        self.engine.wait_until_started(|engine| {
            let stores = engine.repository().stores().reports();
            let total: u64 = stores.iter().map(|store| store.download_bytes).sum();
            if bar.show(stores.iter().map(|store| store.downloaded_bytes).sum(), total) {
                return;
            }
            if !shown || self.start.elapsed() < SPINNER_DELAY {
                return;
            }
            let loading = engine.repository().all_models().into_iter().filter(|model| {
                let versions = engine.repository().status(model);
                versions.iter().any(|v| {
                    matches!(
                        v.state,
                        VersionState::Loading | VersionState::Warming | VersionState::Trial
                    )
                })
            });
            let loading: Vec<String> = loading.collect();
            let names = loading.join(", ");
            spinner.set_message(format!("loading {}", on_one_line(&names)));
            spinner.tick();
        });
        bar.clear();
        spinner.finish_and_clear();
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let head = ["MODEL", "VERSION", "PLATFORM", "SIGNATURES", "LOAD", "URL"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for model in self.engine.repository().all_models() {
            for status in self.engine.repository().status(&model) {
                let choice = VersionSelector::Version(status.version);
                let handle = self.engine.repository().resolve(&ModelSpec { name: &model, choice });
                let version = status.version.to_string();
                let Ok(handle) = handle else {
                    if !matches!(status.state, VersionState::Unloaded) {
                        let state = status.state.on_one_line();
                        rows.push(vec![model.clone(), version, String::new(), state]);
                    }
                    continue;
                };
                let names = handle.signatures().iter().filter(|s| !s.name.starts_with("__"));
                let names: Vec<&str> = names.map(|s| s.name.as_str()).collect();
                let load = format!("{} ms", handle.load_time().as_millis());
                let url =
                    self.url().map_or("".to_owned(), |url| format!("{url}/v1/models/{model}"));
                let platform = handle.platform().name.to_owned();
                rows.push(vec![model.clone(), version, platform, names.join(", "), load, url]);
            }
        }
        rows
    }

    /// The shortest example request.
    fn example(&self) -> Option<String> {
        let url = self.url()?;
        let mut examples = Vec::new();
        for model in self.engine.repository().ready_models() {
            let choice = VersionSelector::Latest;
            let Ok(handle) = self.engine.repository().resolve(&ModelSpec { name: &model, choice })
            else {
                continue;
            };
            let signatures = handle.signatures().iter();
            examples.extend(signatures.filter_map(|s| example::of(&url, &model, s)));
        }
        let shortest = examples.into_iter().min_by_key(|e| e.length)?.command;
        Some(match &self.auth {
            None => shortest,
            Some(AuthConfig::File(_)) => {
                shortest.replacen("curl ", "curl -H \"Authorization: Bearer $KEY\" ", 1)
            }
            Some(AuthConfig::OneUser { name, .. }) => shortest.replacen(
                "curl ",
                &format!("curl -u '{}' ", name.replace('\'', "'\\''")),
                1,
            ),
        })
    }

    fn since_called(&self) -> Option<f64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos();
        let nanos = now.checked_sub(self.called_at?)?;
        Some(Duration::from_nanos(u64::try_from(nanos).ok()?).as_secs_f64())
    }
}
