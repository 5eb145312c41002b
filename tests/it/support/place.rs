//! A server of fake models, and ways to ask it.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use serde_json::Value;
use tempfile::TempDir;
use tensorserve::config::{Config, Settings};
use tensorserve_core::engine::{
    EntryPoint, InferRequest, InferResponse, InferenceCall, Method, ModelSpec, SignatureRun,
    VersionSelector,
};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::Result;

use super::client::Answer;
use super::fake::{Fake, Model, tensor};
use super::server::{TestServer, config, settings};

/// A request that was made but not answered.
pub type Pending = Pin<Box<dyn Future<Output = Result<Vec<Tensor>>>>>;

/// A server of the fake models in a folder of its own.
pub struct Place {
    // Dropped in this order: the server before its models.
    pub server: TestServer,
    pub fake: Fake,
    root: TempDir,
}

impl Place {
    /// A server whose one source is an empty folder of models, `models`, unless `configure` adds
    /// others below the root it is given.
    pub fn empty(configure: impl FnOnce(&mut Settings, &Path)) -> Self {
        let root = tempfile::tempdir().expect("temporary folder");
        Place::in_folder(root, configure)
    }

    /// The same with a model for each of these paths below the root.
    pub fn with(models: &[(&str, Model)], configure: impl FnOnce(&mut Settings, &Path)) -> Self {
        Place::in_folder(folder_of(models), configure)
    }

    /// A server of one model, `m`, that is loaded.
    pub fn of(model: &Model, configure: impl FnOnce(&mut Settings)) -> Self {
        let place =
            Place::with(&[("models/m/1", model.clone())], |settings, _| configure(settings));
        place.server.wait_until_started();
        place
    }

    /// The same with what no setting says of our own, and with everything there.
    pub fn configured(
        models: &[(&str, Model)],
        configure: impl FnOnce(&mut Settings, &Path),
        adjust: impl FnOnce(&mut Config),
    ) -> Self {
        let place = Place::adjusted(folder_of(models), configure, adjust);
        place.server.wait_until_started();
        place
    }

    fn in_folder(root: TempDir, configure: impl FnOnce(&mut Settings, &Path)) -> Self {
        Place::adjusted(root, configure, |_| ())
    }

    fn adjusted(
        root: TempDir,
        configure: impl FnOnce(&mut Settings, &Path),
        adjust: impl FnOnce(&mut Config),
    ) -> Self {
        let mut settings = settings();
        settings.server.poll_interval = Some("20ms".parse().expect("a time"));
        configure(&mut settings, root.path());
        if settings.paths.is_empty() && settings.models.is_empty() {
            let models = root.path().join("models");
            std::fs::create_dir_all(&models).expect("folder");
            settings.paths.push(models);
        }
        let mut config = config(settings);
        adjust(&mut config);
        let fake = Fake::default();
        let server = TestServer::start_with(&config, vec![Arc::new(fake.clone())]);
        Place { server, fake, root }
    }

    /// A path below the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// Writes a model as a careful publisher does.
    pub fn write(&self, path: &str, model: &Model) {
        model.write(&self.path(path));
    }

    /// Waits until the source at `path` has been looked at a few times more, and what was seen
    /// there acted on.
    pub fn wait_for_looks(&self, path: &str) {
        let path = self.path(path);
        // The first may have begun before this call.
        let enough = self.fake.looks(&path) + 4;
        self.server.wait_until("looks", |_| self.fake.looks(&path) >= enough);
    }

    /// Waits until so many runs stand before the gate.
    pub fn wait_for_runs_at_gate(&self, count: usize) {
        self.server.wait_until("runs begin", |_| self.fake.runs_gate().waiting() == count);
    }

    /// Waits until a load stands before the gate.
    pub fn wait_for_load_at_gate(&self) {
        self.server.wait_until("a load begins", |_| self.fake.loads_gate().waiting() > 0);
    }

    /// Asks `model` over HTTP.
    pub fn predict(&self, model: &str, instances: &str) -> Answer {
        let path = format!("/v1/models/{model}:predict");
        self.server.post(&path, format!("{{\"instances\": {instances}}}"))
    }

    /// The number that a model that answers with one answers with now; `None` while it does not.
    pub fn constant(&self, model: &str) -> Option<f64> {
        let answer = self.predict(model, "[[0]]");
        if answer.status != 200 {
            return None;
        }
        answer.json()["predictions"][0].as_f64()
    }

    /// State and error message of a version, as TensorFlow Serving's API tells; `None` if it does
    /// not know it.
    pub fn state(&self, model: &str, version: u32) -> Option<(String, String)> {
        let answer = self.server.get(&format!("/v1/models/{model}"));
        let json = answer.json();
        let all = json["model_version_status"].as_array()?.clone();
        let version = version.to_string();
        let status = all.into_iter().find(|s| s["version"].as_str() == Some(&version))?;
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        Some((text(&status["state"]), text(&status["status"]["error_message"])))
    }

    pub fn wait_for_state(&self, model: &str, version: u32, state: &str) {
        self.server.wait_until(&format!("{model} version {version}: {state}"), |_| {
            self.state(model, version).is_some_and(|(is, _)| is == state)
        });
    }

    /// The value of a series of `/metrics`, written as there; `None` if there is no such series.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let text = self.server.get("/metrics").text();
        let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        text.lines().find_map(value)
    }

    /// Asks the model `m` directly. The request has reached its queue, and waits there, when this
    /// returns: what no client of HTTP can know.
    pub fn enqueue(&self, rows: &[&[f32]]) -> Pending {
        self.enqueue_until(rows, Instant::now() + Duration::from_secs(30))
    }

    pub fn enqueue_until(&self, rows: &[&[f32]], deadline: Instant) -> Pending {
        let mut pending = self.ask(matrix(rows), deadline);
        assert!((&mut pending).now_or_never().is_none(), "it was answered before it was queued");
        pending
    }

    /// A request for the model `m` that has not been sent yet.
    pub fn ask(&self, input: Tensor, deadline: Instant) -> Pending {
        let engine = self.server.engine.clone();
        let spec = ModelSpec { name: "m", choice: VersionSelector::Latest };
        let handle = engine.repository().resolve(&spec).expect("the model is ready");
        let (signature, _) = handle.signature("serving_default").expect("a signature");
        let request = InferRequest::new(handle, SignatureRun::predict(signature, vec![input]));
        let entry = EntryPoint { protocol: "test", method: Method::Predict };
        let call = InferenceCall { deadline, ..engine.call(entry, Instant::now()) };
        Box::pin(async move {
            let encode = |(), response: InferResponse| Ok(response.into_single().outputs);
            // A request that is forgotten fails its test, and does not hang it.
            let inferring = engine.infer(call, |_| Ok((request, ())), encode);
            let inferred = tokio::time::timeout(Duration::from_secs(60), inferring).await;
            inferred.expect("an answer in time").answer
        })
    }
}

/// A folder with a model for each of these paths.
fn folder_of(models: &[(&str, Model)]) -> TempDir {
    let root = tempfile::tempdir().expect("temporary folder");
    for (path, model) in models {
        let folder = root.path().join(path);
        std::fs::create_dir_all(folder.parent().expect("parent")).expect("folder");
        model.write(&folder);
    }
    root
}

/// A matrix with these rows.
pub fn matrix(rows: &[&[f32]]) -> Tensor {
    let columns = rows.first().map_or(0, |row| row.len());
    tensor(&[rows.len(), columns], rows.concat()).expect("equal rows")
}

/// The elements of an answer of one tensor.
pub fn values(answer: Result<Vec<Tensor>>) -> Vec<f32> {
    let outputs = answer.expect("an answer");
    outputs[0].values::<f32>().expect("floats").to_vec()
}
