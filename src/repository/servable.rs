//! One version of a model in memory: its signatures, and a batch queue for each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::{Batcher, How, Queue, Run, Traits};
use crate::config::{Images, ModelConfig};
use crate::error::{Code, Error, Result};
use crate::metrics::{Metrics, SignatureMetrics, VersionMetrics};
use crate::platform::{Executable, LoadOptions, Platform, RunOptions};
use crate::tensor::{
    DType, DeclaredShape, ImageEncoding, Shape, Signature, StringsBuilder, Tensor, TensorSpec,
    aligned_vec,
};

/// A loaded version.
pub struct Servable {
    model: Arc<str>,
    version: i64,
    platform: &'static str,
    signatures: Vec<Signature>,
    queues: Vec<Queue>,
    metrics: VersionMetrics,
    bytes: u64,
    load_time: Duration,
}

/// Runs one signature of an executable, for its queue.
struct SignatureRun {
    executable: Arc<dyn Executable>,
    index: usize,
}

impl Run for SignatureRun {
    fn run(&self, inputs: &[Tensor], how: How) -> Result<Vec<Tensor>> {
        let options = RunOptions {
            threads: how.threads,
            timeout: how.timeout,
        };
        self.executable.run(self.index, inputs, options)
    }
}

/// How often a signature is run to warm it; the first builds the runtime's plan, the others show
/// what it costs.
const WARM_RUNS: usize = 4;

/// A signature that takes longer than this to warm is left to its first request.
const WARM_LIMIT: Duration = Duration::from_secs(10);

impl Servable {
    /// Loads the version in `folder`. Blocks for as long as that takes.
    pub(super) fn load(
        model: &Arc<str>,
        version: i64,
        folder: &std::path::Path,
        platform: &dyn Platform,
        config: &ModelConfig,
        (batcher, metrics): (&Batcher, &Metrics),
    ) -> Result<Self> {
        let options = load_options(config);
        let loaded = platform.load(folder, &options)?;
        let names: Vec<&str> = loaded.signatures.iter().map(|s| s.name.as_str()).collect();
        let metrics = metrics.version(model, version, &names);
        let queue = |(index, signature): (usize, &Signature)| {
            let traits = Traits {
                batchable: signature.is_batchable(),
                read_only: signature.read_only,
            };
            let executable = Arc::clone(&loaded.executable);
            let run = Arc::new(SignatureRun { executable, index });
            let queue_metrics = metrics.signature(index)?.queue();
            Some(batcher.queue(config.batching.clone(), traits, queue_metrics, run))
        };
        Ok(Servable {
            model: Arc::clone(model),
            version,
            platform: platform.name(),
            queues: loaded.signatures.iter().enumerate().filter_map(queue).collect(),
            signatures: loaded.signatures,
            metrics,
            bytes: loaded.bytes,
            load_time: Duration::ZERO,
        })
    }

    /// Runs read-only signatures on made-up inputs, so that the first real request meets a plan
    /// that is built, and the batcher knows what a run costs.
    pub(super) fn warm(&self) {
        for (signature, queue) in self.signatures.iter().zip(&self.queues) {
            if !signature.read_only || signature.inputs.is_empty() {
                continue;
            }
            let inputs: Option<Vec<Tensor>> = signature.inputs.iter().map(made_up).collect();
            let Some(inputs) = inputs else {
                continue;
            };
            // Made-up inputs need not make sense to the model (an empty string is no image); the
            // plan is built all the same.
            if let Err(error) = queue.warm(&inputs, WARM_RUNS, WARM_LIMIT) {
                let (model, version, name) = (&self.model, self.version, &signature.name);
                log::debug!("{model} version {version}, {name}: warming stopped: {error}");
            }
        }
    }

    /// Notes how long it took until it could serve.
    pub(super) fn loaded_in(&mut self, time: Duration) {
        self.load_time = time;
        self.metrics.loaded(self.bytes, time);
    }

    /// How long it took to load and warm.
    #[must_use]
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// The model's name.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The version's number.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The name of the platform that runs it.
    #[must_use]
    pub fn platform(&self) -> &'static str {
        self.platform
    }

    /// Signatures, sorted by name.
    #[must_use]
    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// The metrics of signature number `index`.
    #[must_use]
    pub fn metrics(&self, index: usize) -> Option<&SignatureMetrics> {
        self.metrics.signature(index)
    }

    /// Runs signature number `index` on `inputs`, one for each of its inputs in order.
    pub(super) async fn infer(
        &self,
        index: usize,
        inputs: Vec<Tensor>,
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>> {
        let (Some(signature), Some(queue)) = (self.signatures.get(index), self.queues.get(index))
        else {
            return Err(Error::internal("no such signature number"));
        };
        check(signature, &inputs)?;
        queue.submit(inputs, deadline).await
    }
}

/// The platform's part of a model's settings.
pub(super) fn load_options(config: &ModelConfig) -> LoadOptions {
    LoadOptions {
        tags: config.tags.clone(),
        images: match config.images {
            Images::Auto => None,
            Images::Raw => Some(ImageEncoding::Raw),
            Images::Base64 => Some(ImageEncoding::Base64Url),
        },
    }
}

/// Checks number and types of the inputs. Shapes are left to the runtime: models in the wild
/// declare wrong ones.
fn check(signature: &Signature, inputs: &[Tensor]) -> Result<()> {
    if inputs.len() != signature.inputs.len() {
        let (want, got) = (signature.inputs.len(), inputs.len());
        let name = &signature.name;
        return Err(Error::invalid(format!("signature {name:?} takes {want} inputs, not {got}")));
    }
    for (spec, input) in signature.inputs.iter().zip(inputs) {
        if spec.dtype() == Some(input.dtype()) {
            continue;
        }
        let alias = &spec.alias;
        let Some(want) = spec.dtype() else {
            let number = spec.dtype_number;
            let message = format!("input {alias:?} is of type number {number}, which no client can send");
            return Err(Error::new(Code::Unimplemented, message));
        };
        let got = input.dtype();
        return Err(Error::invalid(format!("input {alias:?} must be {want}, not {got}")));
    }
    Ok(())
}

/// One row of zeros (or empty strings) of the declared shape, with 1 for what is left open;
/// `None` if that would be large.
fn made_up(spec: &TensorSpec) -> Option<Tensor> {
    const LARGEST: usize = 64 << 20;
    let dims = match &spec.shape {
        DeclaredShape::Dims(dims) => dims.iter().map(|(size, _)| (*size).max(1)).collect(),
        DeclaredShape::UnknownRank | DeclaredShape::Missing => vec![1],
    };
    let shape = Shape::new(&dims).ok()?;
    let count = shape.elements().ok().filter(|&count| count <= LARGEST)?;
    let dtype = spec.dtype()?;
    if dtype == DType::String {
        let mut strings = StringsBuilder::default();
        (0..count).for_each(|_| strings.push(b""));
        return Tensor::from_strings(shape, strings).ok();
    }
    let mut zeros = aligned_vec::<u8>(0);
    zeros.resize(count * dtype.size()?, 0);
    Tensor::numeric(dtype, shape, crate::tensor::Buffer::new(Arc::new(zeros))).ok()
}
