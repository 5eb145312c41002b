//! Servers within the test process.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use tensorserve::Server;
use tensorserve::config::environment::Environment;
use tensorserve::config::units::Port;
use tensorserve::config::{Config, ModelSettings, Settings};
use tensorserve_core::engine::Engine;
use tensorserve_platform::{Platform, Platforms};
use tensorserve_server::ServedApi;

use super::{client, data};

/// A server on a free port. Stops when dropped.
pub struct TestServer {
    server: Option<Server>,
    pub address: SocketAddr,
    pub engine: Engine,
}

/// Settings with free ports and a short poll interval.
pub fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.server.http_port = Some(Port::Number(0));
    settings.server.grpc_port = Some("0".parse().expect("a port"));
    settings.server.poll_interval = Some("50ms".parse().expect("a duration"));
    settings.server.shutdown_timeout = Some("10s".parse().expect("a duration"));
    settings
}

pub fn config(settings: Settings) -> Config {
    Config::new(settings, &Environment::of_process()).expect("valid settings")
}

impl TestServer {
    /// A server with all built-in platforms.
    pub fn start(settings: Settings) -> Self {
        TestServer::start_configured(&config(settings))
    }

    /// Like [`TestServer::start`], for a configuration that settings cannot express.
    pub fn start_configured(config: &Config) -> Self {
        TestServer::start_on(config, tensorserve::platforms::built_in(config))
    }

    /// A server for the models at `path`, all loaded.
    pub fn of(path: &Path) -> Self {
        TestServer::with(path, |_| {})
    }

    /// A server for the models at `path`, all loaded, with settings that `change` changes.
    pub fn with(path: &Path, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings();
        settings.paths.push(path.to_owned());
        change(&mut settings);
        let server = TestServer::start(settings);
        server.wait_until_started();
        server
    }

    /// A server in SageMaker container mode with these models: names and paths in the test data.
    pub fn container(models: &[(&str, &str)], configure: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings();
        for (name, path) in models {
            let mut model = ModelSettings {
                path: Some(data(path)),
                name: Some((*name).to_owned()),
                ..ModelSettings::default()
            };
            model.each.version_policy = Some("all".to_owned());
            settings.models.push(model);
        }
        configure(&mut settings);
        let mut config = config(settings);
        config.protocols.sagemaker.is_container = true;
        let server = TestServer::start_configured(&config);
        server.wait_until_started();
        server
    }

    pub fn start_with(config: &Config, platforms: Vec<Platform>) -> Self {
        TestServer::start_on(config, Platforms::new(platforms))
    }

    fn start_on(config: &Config, platforms: Platforms) -> Self {
        let server = Server::start(config, platforms).expect("server starts");
        TestServer {
            address: server.address().expect("HTTP is on"),
            engine: server.engine().clone(),
            server: Some(server),
        }
    }

    /// All routes and gRPC methods.
    pub fn api(&self) -> &ServedApi {
        self.server.as_ref().map(Server::api).expect("running server")
    }

    pub fn grpc_address(&self) -> SocketAddr {
        self.server.as_ref().and_then(Server::grpc_address).expect("gRPC is on")
    }

    pub fn wait_until_started(&self) {
        let start = Instant::now();
        self.engine.wait_until_started(|_| {
            assert!(start.elapsed() < Duration::from_secs(600), "models not loaded within 600 s");
        });
        // Tests have no log. This is shown if the test fails.
        if let Err(error) = self.engine.readiness() {
            eprintln!("not all models are ready: {error}");
        }
    }

    /// Waits until `holds` returns true. Whatever takes longer than five minutes, on a busy machine too, does not happen.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(300), "not reached within 300 s: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn get(&self, path: &str) -> client::Answer {
        client::get(self.address, path)
    }

    pub fn post(&self, path: &str, body: impl AsRef<[u8]>) -> client::Answer {
        client::post(self.address, path, body)
    }

    /// Asserts that `/ping` reports a healthy server.
    pub fn assert_pings(&self) {
        let answer = self.get("/ping");
        assert_eq!((answer.status, answer.text().as_str()), (200, ""));
    }

    /// Asserts that `half_plus_two` returns a correct prediction.
    pub fn assert_serves(&self, after: &str) {
        let answer = self.post("/v1/models/half_plus_two:predict", r#"{"inputs": [1]}"#);
        assert_eq!(answer.status, 200, "after {after}: {}", answer.text());
        assert_eq!(answer.json(), serde_json::json!({"outputs": [2.5]}), "after {after}");
    }

    /// Stops the server as SIGTERM does.
    pub fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}
