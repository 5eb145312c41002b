//! The protocols and the engine of a server in this thread, without listeners.

use std::fs;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use tempfile::TempDir;
use tensorserve::config::environment::Environment;
use tensorserve::config::{BatchMode, Config, SagemakerCompatibility, Settings};
use tensorserve::protocols;
use tensorserve_auth::Identity;
use tensorserve_core::engine::Engine;
use tensorserve_platform::{InputStyle, Platforms};
use tensorserve_protocol::{
    Body, Headers, Host, Listeners, Protocol, Reply, RequestHead, RouteMatch, RouteTable,
    RoutedRequest, Routes,
};
use tensorserve_server::body::head_memory;
use tensorserve_tensor::budget;
use tokio::runtime::{Builder, Runtime};

use super::echo::{self, Echo};
use super::memory::unwatched;

/// The largest body of a request in bytes.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// The compatibility modes: requests select one.
pub const MODES: usize = 4;

/// A server in one compatibility mode.
pub struct FuzzServer {
    /// The core.
    pub engine: Engine,
    table: RouteTable,
}

/// The headers of a request, names in lower case.
pub struct HeaderList(pub Vec<(String, String)>);

impl HeaderList {
    /// The bytes of all names and values.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl Headers for HeaderList {
    fn get(&self, name: &str) -> Option<&str> {
        let header = self.0.iter().find(|(key, _)| key == name);
        header.map(|(_, value)| value.as_str())
    }
}

/// The server in the compatibility mode `mode`, which is started at the first call.
pub fn server(mode: usize) -> &'static FuzzServer {
    static SERVERS: [OnceLock<FuzzServer>; MODES] = [const { OnceLock::new() }; MODES];
    let mode = mode % MODES;
    unwatched(|| SERVERS[mode].get_or_init(|| FuzzServer::start(mode)))
}

impl FuzzServer {
    fn start(mode: usize) -> Self {
        let config = config(mode);
        let protocols = protocols::built_in(&config);
        let styles = [InputStyle::Tensors, InputStyle::Rows, InputStyle::Records];
        let platforms = styles.map(|style| Echo(style).platform());
        // The models are read once.
        let folder = TempDir::new().expect("a temporary folder");
        let config = with_models(config, &folder);
        let platforms = Platforms::new(platforms.to_vec());
        let (engine, _) = protocols::engine(&config, platforms, &protocols).expect("an engine");
        engine.wait_until_started(|_| ());
        let ready = engine.repository().ready_models().len();
        assert_eq!(ready, echo::names().len(), "{:?}", engine.repository().obstacles());
        let table = table(&engine, &protocols);
        FuzzServer { engine, table }
    }

    /// The response to a request; `None` if no route matches.
    pub fn answer(&self, head: RequestHead<'_>, head_bytes: usize, body: Body) -> Option<Reply> {
        // As the server does when a request has arrived.
        let budget = budget::current().expect("a budget");
        budget.expect(head_memory(head_bytes)).ok()?;
        let (style, answer) = match self.table.find(&head) {
            RouteMatch::Route(route, params) => {
                let identity = Identity::unrestricted();
                let start = Instant::now();
                let request = RoutedRequest { head, params, body, start, identity, peer: None };
                (route.style(), wait(route.answer(request)))
            }
            RouteMatch::NoRoute(scope, missing) => (scope.style(), scope.answer(&head, &missing)),
            RouteMatch::Nothing => return None,
        };
        let mut reply = style.render(answer);
        style.finish(&mut reply);
        Some(reply)
    }

    /// The response to a request with a payload.
    pub fn post(&self, target: &str, headers: Vec<(String, String)>, body: &[u8]) -> Option<Reply> {
        let headers = HeaderList(headers);
        let bytes = target.len() + headers.bytes();
        let head = RequestHead { method: "POST", target, headers: &headers };
        self.answer(head, bytes, Body::Bytes(received(body)))
    }
}

/// A body that has arrived: the server has reserved its memory, and holds twice as much for what follows.
pub fn received(bytes: &[u8]) -> Bytes {
    if let Some(request) = budget::current() {
        let _ = request.reserve(bytes.len()).and_then(|()| request.expect(2 * bytes.len()));
    }
    Bytes::copy_from_slice(bytes)
}

/// A message that has arrived, for which the server has reserved a buffer that may be twice as large.
pub fn received_message(bytes: &[u8]) -> Bytes {
    let _ = budget::reserve(2 * bytes.len());
    Bytes::copy_from_slice(bytes)
}

/// Waits for a future of the server.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: Runtime =
            unwatched(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

fn config(mode: usize) -> Config {
    let mut config = Config::new(Settings::default(), &Environment::default()).expect("valid");
    config.http.max_body_bytes = MAX_BODY_BYTES;
    config.repository.poll_interval = None;
    config.repository.common.batching.mode = BatchMode::Off;
    config.repository.common.warm_up = false;
    let sagemaker = &mut config.protocols.sagemaker;
    sagemaker.default_model = Some("float".to_owned());
    match mode {
        0 => sagemaker.compatibility = SagemakerCompatibility::Extended,
        1 => sagemaker.compatibility = SagemakerCompatibility::Tf219,
        2 => sagemaker.compatibility = SagemakerCompatibility::Tf220,
        _ => config.protocols.replaces_simple = true,
    }
    if mode == 1 {
        config.answer_as_tfs();
    }
    config
}

/// Adds the models, each in a folder of its own.
fn with_models(mut config: Config, folder: &TempDir) -> Config {
    for name in echo::names() {
        let version = folder.path().join(name).join("1");
        fs::create_dir_all(&version).expect("created");
        fs::write(version.join("echo"), "").expect("written");
    }
    let source = tensorserve::config::SourceConfig {
        path: folder.path().to_owned(),
        name: None,
        model: config.repository.common.clone(),
    };
    config.repository.sources.push(source);
    config
}

fn table(engine: &Engine, protocols: &[Arc<dyn Protocol>]) -> RouteTable {
    let host = Host {
        engine: engine.clone(),
        listeners: Listeners::default(),
        connections: Arc::new(|| 0),
        operations: Arc::new(OnceLock::new()),
    };
    let mut routes = Routes::default();
    for protocol in protocols {
        protocol.routes(&host, &mut routes);
    }
    let table = RouteTable::new(routes).expect("a table");
    let _ = host.operations.set(table.operations().cloned().collect());
    table
}
