//! The model of a job: loaded as the server loads it, and asked as clients of `/invocations` ask it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use ring::digest::{Context, SHA256};
use tokio::runtime::{Builder, Runtime};

use crate::Server;
use crate::cli::{archives, sagemaker};
use crate::config::environment::Environment;
use crate::config::{Config, Settings};
use crate::stores;
use tensorserve_archive as archive;
use tensorserve_codec::formats::{CsvForm, PayloadFormat, RecordFormat};
use tensorserve_codec::row_text::OutputText;
use tensorserve_codec::table::Header;
use tensorserve_core::config::{BatchMode, is_store_url, model_path};
use tensorserve_core::engine::Engine;
use tensorserve_platform::Platforms;
use tensorserve_protocols::sagemaker::{
    Compatibility, CsvLines, Invoker, PayloadType, SagemakerConfig,
};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_transform::job::CsvHeader;
use tensorserve_transform::model::{Model, Payload};

/// Larger files are hashed at their start and end only.
const HASHED: u64 = 16 << 20;
const HASHED_PART: u64 = 1 << 20;

/// A loaded model.
pub(super) struct TransformModel {
    /// Stops with it: handlers may call its ports.
    server: Option<Server>,
    rows: Invoker,
    exact: Invoker,
    has_handlers: bool,
    csv: CsvLines,
    runtime: Runtime,
    content_type: String,
    accept: Option<String>,
}

/// How a model is loaded.
pub(super) struct ModelOptions<'o> {
    /// The platforms that are built in, with their probe.
    pub(super) platforms: &'o Platforms,
    pub(super) platform: Option<&'o str>,
    pub(super) threads: usize,
    pub(super) timeout: Duration,
    /// The signature of records that name none.
    pub(super) signature: Option<&'o str>,
    /// Environment variables of the model's handlers.
    pub(super) variables: &'o [(String, String)],
    /// As SageMaker's container, with the variables of that.
    pub(super) as_container: bool,
}

/// The local files of a model.
pub(super) struct LocalModelFiles {
    pub(super) root: PathBuf,
    /// The model in them, which may be deeper in an archive.
    model: PathBuf,
    /// A hash of all of them.
    pub(super) fingerprint: String,
}

impl LocalModelFiles {
    /// Downloads and unpacks a model where necessary.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn find(path: &Path, config: &Config) -> Result<Self> {
        let place = model_path(path);
        let root = match is_store_url(&place) {
            true => stores::download(config, &place)?,
            false => place,
        };
        // Other files are models: `iris.onnx`.
        let name = root.file_name().unwrap_or_default().to_string_lossy();
        let is_archive = root.is_file() && archive::ending(&name).is_some();
        let root = match is_archive {
            true => archive::unpacked(&root, &archive::ExtractionLimits::default())?.to_path_buf(),
            false => root,
        };
        let places = if is_archive { archives::places(&root) } else { Vec::new() };
        let model = match places.as_slice() {
            [(_, only)] => only.clone(),
            _ => root.clone(),
        };
        let fingerprint = fingerprint(&root)?;
        Ok(LocalModelFiles { root, model, fingerprint })
    }
}

impl TransformModel {
    /// Loads the model.
    ///
    /// # Errors
    /// If it cannot be loaded, or there are several.
    pub(super) fn load(
        files: &LocalModelFiles,
        options: &ModelOptions,
        mut settings: Settings,
        environment: &Environment,
    ) -> Result<Self> {
        settings.each.platform = options.platform.map(str::to_owned);
        let code = crate::config::sagemaker::code_folder(&files.root);
        let mut config = match options.as_container || code.is_some() {
            true => sagemaker::config_of(settings, &files.root, environment)?,
            false => {
                settings.paths = vec![files.model.clone()];
                Config::new(settings, environment)?
            }
        };
        // Batches are made here, and each runs at once on the thread that has made it.
        config.repository.common.batching.mode = BatchMode::Off;
        for source in &mut config.repository.sources {
            source.model.batching.mode = BatchMode::Off;
        }
        config.batching.inline_budget = Duration::from_secs(86_400);
        config.batching.threads = options.threads;
        config.http.request_timeout = options.timeout;
        config.workers.variables = options.variables.to_vec();
        // A model that is replaced while it is in use must not change the outputs.
        config.repository.poll_interval = None;
        config.grpc.port = None;
        config.grpc.socket_path = None;
        config.http.more_ports.clear();
        // Handlers may call the model themselves.
        config.http.port = code.is_some().then_some(0);
        let server = Server::start(&config, options.platforms.clone())?;
        server.engine().wait_until_started(|_| ());
        server.engine().readiness()?;
        only_model(server.engine())?;
        let exact = config.protocols.sagemaker.clone();
        let rows = SagemakerConfig { compatibility: Compatibility::Extended, ..exact.clone() };
        let invoker = |config| {
            Invoker::new(server.engine(), config)
                .with_signature(options.signature.map(str::to_owned))
        };
        let (rows, exact) = (invoker(rows), invoker(exact));
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|e| Error::internal("a runtime could not be started").with_source(e))?;
        let (has_handlers, csv) = (rows.has_handlers(), rows.csv_lines());
        Ok(TransformModel {
            server: Some(server),
            rows,
            exact,
            has_handlers,
            csv,
            runtime,
            content_type: String::new(),
            accept: None,
        })
    }

    /// With the media types of the job.
    pub(super) fn for_job(mut self, content_type: String, accept: Option<String>) -> Self {
        self.content_type = content_type;
        self.accept = accept;
        self
    }

    /// Checks that the model can take records of CSV without names of columns.
    ///
    /// # Errors
    /// If it takes the first line of each request for the names.
    pub(super) fn check_header(&self, header: CsvHeader) -> Result<()> {
        if self.csv == CsvLines::Named && header == CsvHeader::Absent {
            return Err(Error::invalid(
                "--header absent: a model of MLflow takes the first line of CSV for the names of its columns; \
                 add them as the first line of each object",
            ));
        }
        Ok(())
    }

    /// The engine.
    pub(super) fn engine(&self) -> Option<&Engine> {
        self.server.as_ref().map(Server::engine)
    }

    /// The tensors that records become, as text.
    ///
    /// # Errors
    /// What the model reports.
    pub(super) fn tensors(&self, payload: Payload) -> Result<Vec<String>> {
        let (payload, body) = self.body_of(payload);
        self.runtime.block_on(self.rows.tensors(payload, body))
    }

    /// The type and the body of the request for a payload; of images, that for the first one.
    fn body_of(&self, payload: Payload) -> (PayloadType<'_>, Bytes) {
        let of_job = PayloadType::Named(&self.content_type);
        match payload {
            Payload::Records { body, format } => (PayloadType::Known(self.told(format)), body),
            Payload::Document(body) => (of_job, body),
            Payload::Images(files) => (of_job, files.into_iter().next().unwrap_or_default()),
        }
    }

    /// What the model is told of a format: handlers and MLflow read the first line of CSV as they always do.
    fn told(&self, format: PayloadFormat) -> PayloadFormat {
        match (format, self.csv) {
            (PayloadFormat::Csv(form), CsvLines::Handlers | CsvLines::Named) => {
                PayloadFormat::Csv(CsvForm { header: Header::Auto, ..form })
            }
            _ => format,
        }
    }
}

impl Model for TransformModel {
    fn rows(&self, payload: Payload, format: RecordFormat) -> Result<OutputText> {
        if let Payload::Images(files) = payload {
            let rows = self.runtime.block_on(self.rows.rows_of_images(files, format))?;
            return Ok(OutputText::Rows(rows));
        }
        let (payload, body) = self.body_of(payload);
        self.runtime.block_on(self.rows.rows(payload, format, body))
    }

    fn document(&self, payload: Payload) -> Result<Bytes> {
        let (payload, body) = self.body_of(payload);
        self.runtime.block_on(self.rows.infer(payload, self.accept.as_deref(), body))
    }

    fn respond(&self, body: Bytes) -> Bytes {
        let (payload, accept) = (PayloadType::Named(&self.content_type), self.accept.as_deref());
        self.runtime.block_on(self.exact.respond(payload, accept, body)).body
    }

    fn has_header(&self, first: &[u8]) -> Result<bool> {
        match self.csv {
            CsvLines::Handlers => Ok(false),
            CsvLines::Named => Ok(true),
            CsvLines::Auto => self.rows.has_header(first),
        }
    }

    fn has_handlers(&self) -> bool {
        self.has_handlers
    }
}

impl Drop for TransformModel {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

fn only_model(engine: &Engine) -> Result<()> {
    let models = engine.repository().all_models();
    match models.as_slice() {
        [_] => Ok(()),
        [] => Err(Error::invalid("there is no model at this path")),
        several => Err(Error::invalid(format!(
            "there are {} models at this path ({}): name one of their directories",
            several.len(),
            several.join(", ")
        ))),
    }
}

/// A hash of the names, sizes and contents of all files of a model.
fn fingerprint(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let mut hash = Context::new(&SHA256);
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file);
        hash.update(name.as_os_str().as_encoded_bytes());
        hash.update(&[0]);
        let failed = |e: std::io::Error| {
            Error::unavailable(format!("{}: {e}", file.display())).with_source(e)
        };
        let mut content = File::open(&file).map_err(failed)?;
        let size = content.metadata().map_err(failed)?.len();
        hash.update(&size.to_le_bytes());
        let mut part = Vec::new();
        let most = if size <= HASHED { size } else { HASHED_PART };
        content.by_ref().take(most).read_to_end(&mut part).map_err(failed)?;
        hash.update(&part);
        if size > HASHED {
            use std::io::Seek;
            part.clear();
            let start = std::io::SeekFrom::Start(size - HASHED_PART);
            content.seek(start).map_err(failed)?;
            content.take(HASHED_PART).read_to_end(&mut part).map_err(failed)?;
            hash.update(&part);
        }
    }
    let digest = hash.finish();
    Ok(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |e: std::io::Error| {
        Error::new(Code::of_io(&e), format!("the model {}: {e}", path.display()))
    };
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        // What Python leaves beside handlers is no part of the model.
        if entry.file_name() != "__pycache__" {
            collect(&entry.path(), files)?;
        }
    }
    Ok(())
}
