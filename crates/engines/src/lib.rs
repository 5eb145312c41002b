//! SavedModels on OpenVINO, with libtensorflow beside it: OpenVINO runs in a process of its own what it is known to
//! compute alike ([`SavedModelPlan`]), and libtensorflow all else, and what fails there ([`GuardedExecutable`]).
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::Path;
use std::sync::Arc;

use self::guarded::{EngineRuns, GuardedExecutable};
use tensorserve_openvino::saved_model::SavedModelPlan;
use tensorserve_platform::{
    Completeness, Executable, Inspection, LoadOptions, Loaded, ModelLoader, ModelPath,
    Optimization, OptimizedModel, Packaging, Platform, Platforms,
};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::{Code, Error, Result};

mod guarded;

/// The platform whose models have another engine, and that engine's.
const OF_MODELS: &str = "tensorflow";
const ENGINE: &str = "openvino";

/// `platforms`, of which TensorFlow's can run its models on OpenVINO, too. Both load models as they do in `platforms`.
#[must_use]
pub fn with_engines(platforms: Platforms) -> Platforms {
    let engine = platforms.iter().find(|platform| platform.info.name == ENGINE).cloned();
    let Some(engine) = engine else {
        return platforms;
    };
    let wrapped = |platform: &Platform| match platform.info.name {
        OF_MODELS => platform.with_loader(EngineLoader {
            inner: Arc::clone(&platform.loader),
            engine: Arc::clone(&engine.loader),
        }),
        _ => platform.clone(),
    };
    Platforms::new(platforms.iter().map(wrapped).collect())
}

/// Whether the model in `folder`, of a platform of this name, may run in another engine, in words. `None` for other platforms,
/// and if its files cannot be read.
#[must_use]
pub fn other_engine(platform: &str, folder: &Path, tags: &[String]) -> Option<String> {
    if platform != OF_MODELS {
        return None;
    }
    Some(match plan(folder, tags).ok()? {
        Ok(plan) => {
            let name = plan.signature.name;
            format!("engine = \"auto\": OpenVINO may run signature {name:?}, if it is quicker")
        }
        Err(why) => format!("engine = \"auto\": runs on libtensorflow, since {why}"),
    })
}

/// What OpenVINO may run of a SavedModel, or why it may run nothing.
fn plan(folder: &Path, tags: &[String]) -> Result<Result<SavedModelPlan, String>> {
    match SavedModelPlan::read(folder, tags) {
        Ok(plan) => Ok(Ok(plan)),
        Err(error) if error.code() == Code::Unimplemented => Ok(Err(error.message().to_owned())),
        Err(error) => Err(error),
    }
}

/// The loader of a platform, with another engine for its models.
struct EngineLoader {
    inner: Arc<dyn ModelLoader>,
    engine: Arc<dyn ModelLoader>,
}

impl ModelLoader for EngineLoader {
    fn recognises(&self, place: &ModelPath) -> bool {
        self.inner.recognises(place)
    }

    fn has_folders(&self, place: &ModelPath) -> bool {
        self.inner.has_folders(place)
    }

    fn check(&self, folder: &Path) -> Completeness {
        self.inner.check(folder)
    }

    fn inspect(&self, folder: &Path, options: &LoadOptions) -> Result<Inspection> {
        self.inner.inspect(folder, options)
    }

    fn load(&self, folder: &Path, options: &LoadOptions) -> Result<Loaded> {
        self.inner.load(folder, options)
    }

    fn optimized(
        &self,
        folder: &Path,
        options: &LoadOptions,
        executable: &dyn Executable,
        number: usize,
    ) -> Result<Optimization> {
        self.inner.optimized(folder, options, executable, number)
    }

    fn recall(&self, folder: &Path, options: &LoadOptions, topic: &str) -> Option<String> {
        self.inner.recall(folder, options, topic)
    }

    fn remember(&self, folder: &Path, options: &LoadOptions, topic: &str, text: &str) {
        self.inner.remember(folder, options, topic, text);
    }

    fn in_other_engine(
        &self,
        folder: &Path,
        options: &LoadOptions,
        signatures: &[Signature],
        present: &Arc<dyn Executable>,
    ) -> Result<Optimization> {
        let plan = match plan(folder, &options.tags)? {
            Ok(plan) => plan,
            Err(why) => return Ok(Optimization::None(why)),
        };
        let name = plan.signature.name.clone();
        let Some(number) = signatures.iter().position(|signature| signature.name == name) else {
            return Ok(Optimization::None(format!("it has no signature {name:?}")));
        };
        // A name for messages is what makes it a process of its own.
        let model = options.isolated_as.clone().unwrap_or_else(|| folder.display().to_string());
        let options = LoadOptions {
            as_other_engine: true,
            isolated_as: Some(format!("{model} on OpenVINO")),
            form: None,
            ..options.clone()
        };
        let loaded = self.engine.load(folder, &options)?;
        check_order(&plan.signature, &loaded.signatures)?;
        let runs = EngineRuns { signature: number, plan, executable: loaded.executable };
        let executable = Arc::new(GuardedExecutable::new(runs, Arc::clone(present), model));
        let what = format!("OpenVINO runs signature {name:?}");
        Ok(Optimization::Made(OptimizedModel {
            // The engine has it.
            needs_original: false,
            executable,
            what,
            only: Some(number),
            ends_group: true,
            is_last: true,
        }))
    }

    fn packaging(&self, folder: &Path) -> Result<Option<Packaging>> {
        self.inner.packaging(folder)
    }
}

/// Tensors have no names in a run: both engines must have them in one order.
fn check_order(plan: &Signature, loaded: &[Signature]) -> Result<()> {
    let names = |signature: &Signature| -> Vec<String> {
        let all = signature.inputs.iter().chain(&signature.outputs);
        all.map(|spec| spec.alias.clone()).collect()
    };
    match loaded {
        [only] if names(only) == names(plan) => Ok(()),
        _ => Err(Error::internal("the engine has other inputs and outputs than the model")),
    }
}
