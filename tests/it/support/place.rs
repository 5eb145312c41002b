//! A server with fake models, and helpers that send requests to it.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
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
use tensorserve_tensor::priority::Priority;

use super::client::Answer;
use super::fake::{Fake, Model, tensor};
use super::server::{TestServer, config, settings};

/// An inference whose result is pending.
pub type Pending = Pin<Box<dyn Future<Output = Result<Vec<Tensor>>>>>;

/// A server with fake models in its own directory.
pub struct Place {
    // The fields are dropped in this order: the server before its models.
    pub server: TestServer,
    pub fake: Fake,
    root: TempDir,
}

impl Place {
    /// A server whose only source is the empty directory `models`, unless `configure` adds sources
    /// below the given root.
    pub fn empty(configure: impl FnOnce(&mut Settings, &Path)) -> Self {
        let root = tempfile::tempdir().expect("temporary directory");
        Place::in_folder(root, configure)
    }

    /// Like [`Place::empty`], with the loader `fake`.
    pub fn of_fake(fake: Fake) -> Self {
        let root = tempfile::tempdir().expect("temporary directory");
        Place::adjusted(root, fake, |_, _| (), |_| ())
    }

    /// Like [`Place::empty`], with a model at each of these paths below the root.
    pub fn with(models: &[(&str, Model)], configure: impl FnOnce(&mut Settings, &Path)) -> Self {
        Place::in_folder(folder_of(models), configure)
    }

    /// A server with the loaded model `m`.
    pub fn of(model: &Model, configure: impl FnOnce(&mut Settings)) -> Self {
        let place =
            Place::with(&[("models/m/1", model.clone())], |settings, _| configure(settings));
        place.server.wait_until_started();
        place
    }

    /// Like [`Place::with`], with changes to the configuration that no setting can make. Waits
    /// until all models are loaded.
    pub fn configured(
        models: &[(&str, Model)],
        configure: impl FnOnce(&mut Settings, &Path),
        adjust: impl FnOnce(&mut Config),
    ) -> Self {
        let place = Place::adjusted_with(models, configure, adjust);
        place.server.wait_until_started();
        place
    }

    /// Like [`Place::configured`], without waiting.
    pub fn adjusted_with(
        models: &[(&str, Model)],
        configure: impl FnOnce(&mut Settings, &Path),
        adjust: impl FnOnce(&mut Config),
    ) -> Self {
        Place::adjusted(folder_of(models), Fake::default(), configure, adjust)
    }

    fn in_folder(root: TempDir, configure: impl FnOnce(&mut Settings, &Path)) -> Self {
        Place::adjusted(root, Fake::default(), configure, |_| ())
    }

    fn adjusted(
        root: TempDir,
        fake: Fake,
        configure: impl FnOnce(&mut Settings, &Path),
        adjust: impl FnOnce(&mut Config),
    ) -> Self {
        let mut settings = settings();
        settings.server.poll_interval = Some("20ms".parse().expect("a duration"));
        configure(&mut settings, root.path());
        if settings.paths.is_empty() && settings.models.is_empty() {
            let models = root.path().join("models");
            std::fs::create_dir_all(&models).expect("directory");
            settings.paths.push(models);
        }
        let mut config = config(settings);
        adjust(&mut config);
        let server = TestServer::start_with(&config, vec![fake.platform()]);
        Place { server, fake, root }
    }

    /// A path below the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// Publishes a model atomically.
    pub fn write(&self, path: &str, model: &Model) {
        model.write(&self.path(path));
    }

    /// Waits for a few more polls of the source at `path`, so that the server has acted on its
    /// content.
    pub fn wait_for_looks(&self, path: &str) {
        let path = self.path(path);
        // The first of them may have started before this call.
        let enough = self.fake.looks(&path) + 4;
        self.server.wait_until("polls of the source", |_| self.fake.looks(&path) >= enough);
    }

    /// Waits until `count` runs wait at the gate.
    pub fn wait_for_runs_at_gate(&self, count: usize) {
        self.server.wait_until("runs begin", |_| self.fake.runs_gate().waiting() == count);
    }

    /// Waits until a load waits at the gate.
    pub fn wait_for_load_at_gate(&self) {
        self.server.wait_until("a load begins", |_| self.fake.loads_gate().waiting() > 0);
    }

    /// Sends a predict request to `model` over HTTP.
    pub fn predict(&self, model: &str, instances: &str) -> Answer {
        let path = format!("/v1/models/{model}:predict");
        self.server.post(&path, format!("{{\"instances\": {instances}}}"))
    }

    /// The current output of a constant model; `None` for an error.
    pub fn constant(&self, model: &str) -> Option<f64> {
        let answer = self.predict(model, "[[0]]");
        if answer.status != 200 {
            return None;
        }
        answer.json()["predictions"][0].as_f64()
    }

    /// The state and error message of a version in TensorFlow Serving's REST API; `None` for an
    /// unknown version.
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
            self.state(model, version).is_some_and(|(current, _)| current == state)
        });
    }

    /// The value of the `/metrics` line that starts with `series`; `None` if there is no such line.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let text = self.server.get("/metrics").text();
        let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        text.lines().find_map(value)
    }

    /// Requests an inference of the model `m` without HTTP. When this returns, the request is in
    /// the batch queue, which an HTTP client cannot observe.
    pub fn enqueue(&self, rows: &[&[f32]]) -> Pending {
        self.enqueue_until(rows, in_thirty_seconds())
    }

    pub fn enqueue_until(&self, rows: &[&[f32]], deadline: Instant) -> Pending {
        queued(self.ask(matrix(rows), deadline))
    }

    /// Like [`Place::enqueue`], with a priority.
    pub fn enqueue_as(&self, priority: Priority, rows: &[&[f32]]) -> Pending {
        queued(self.ask_as(Some(priority), "m", matrix(rows), in_thirty_seconds()))
    }

    /// An inference of the model `m`, which starts when the future is polled.
    pub fn ask(&self, input: Tensor, deadline: Instant) -> Pending {
        self.ask_as(None, "m", input, deadline)
    }

    /// An inference of any model with a priority, which starts when the future is polled.
    pub fn ask_as(
        &self,
        priority: Option<Priority>,
        model: &str,
        input: Tensor,
        deadline: Instant,
    ) -> Pending {
        let engine = self.server.engine.clone();
        let spec = ModelSpec { name: model, choice: VersionSelector::Latest };
        let handle = engine.repository().resolve(&spec).expect("the model is ready");
        let (signature, _) = handle.signature("serving_default").expect("a signature");
        let mut request = InferRequest::new(handle, SignatureRun::predict(signature, vec![input]));
        request.priority = priority;
        let entry = EntryPoint { protocol: "test", method: Method::Predict };
        let call = InferenceCall { deadline, ..engine.call(entry, Instant::now()) };
        Box::pin(async move {
            let encode = |(), response: InferResponse| Ok(response.into_single().1.outputs);
            // The timeout turns a lost request into a failure of the test instead of a hang.
            let inferring = engine.infer(call, |_| Ok((request, ())), encode);
            let inferred = tokio::time::timeout(Duration::from_secs(60), inferring).await;
            inferred.expect("an answer in time").answer
        })
    }
}

fn in_thirty_seconds() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// An inference that is in the batch queue now.
pub fn queued(mut pending: Pending) -> Pending {
    assert!((&mut pending).now_or_never().is_none(), "the request completed before it was queued");
    pending
}

/// A directory with a model at each of these paths.
fn folder_of(models: &[(&str, Model)]) -> TempDir {
    let root = tempfile::tempdir().expect("temporary directory");
    for (path, model) in models {
        let folder = root.path().join(path);
        std::fs::create_dir_all(folder.parent().expect("parent")).expect("directory");
        model.write(&folder);
    }
    root
}

/// A matrix with these rows.
pub fn matrix(rows: &[&[f32]]) -> Tensor {
    let columns = rows.first().map_or(0, |row| row.len());
    tensor(&[rows.len(), columns], rows.concat()).expect("rows of equal length")
}

/// The elements of the first output.
pub fn values(answer: Result<Vec<Tensor>>) -> Vec<f32> {
    let outputs = answer.expect("an answer");
    outputs[0].values::<f32>().expect("floats").to_vec()
}
