//! Models in archives on this machine, as SageMaker keeps them: `model.tar.gz`, with or without a `code/`.

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::config::sagemaker::code_folder;
use crate::platforms;
use tensorserve_archive as archive;
use tensorserve_core::config::{SourceConfig, is_store_url};
use tensorserve_platform::FOREIGN;
use tensorserve_protocols::sagemaker::layout;
use tensorserve_tensor::error::Result;

/// The ending of a file that is named as an archive.
fn ending(source: &SourceConfig) -> Option<&'static str> {
    let path = &source.path;
    let is_local = !is_store_url(path) && path.is_file();
    archive::ending(&path.file_name()?.to_string_lossy()).filter(|_| is_local)
}

/// Unpacks the sources of a configuration that are archives. The model of `ranker.tar.gz` is `ranker`, unless it
/// has another name in the configuration; of several models in one archive, each has the name of its directory.
/// `written_at` says where each source was written, and does so for those that take the place of an archive.
///
/// # Errors
/// If one cannot be unpacked.
pub(super) fn unpack(config: &mut Config, written_at: &mut Vec<Option<String>>) -> Result<()> {
    if config.repository.sources.iter().all(|source| ending(source).is_none()) {
        return Ok(());
    }
    let platforms = platforms::built_in(config);
    // A platform may read such a file itself.
    let is_model = |source: &SourceConfig| {
        let platform = platforms.of_folder(&source.path);
        platform.is_some_and(|platform| platform.info.name != FOREIGN)
    };
    let mut sources = Vec::with_capacity(config.repository.sources.len());
    let mut written = std::mem::take(written_at).into_iter();
    for source in std::mem::take(&mut config.repository.sources) {
        let place = written.next().flatten();
        let Some(ending) = ending(&source).filter(|_| !is_model(&source)) else {
            sources.push(source);
            written_at.push(place);
            continue;
        };
        let root = archive::unpacked(&source.path, &archive::ExtractionLimits::default())?;
        let file = source.path.file_name().unwrap_or_default().to_string_lossy();
        let stem = file.get(..file.len() - ending.len()).unwrap_or("model");
        let code = code_folder(&root);
        let found = places(&root);
        let is_one = found.len() == 1;
        for (name, path) in found {
            let named = if is_one { stem.to_owned() } else { name };
            let name = source.name.clone().filter(|_| is_one).unwrap_or(named);
            let mut model = source.model.clone();
            model.code = model.code.or_else(|| code.clone());
            sources.push(SourceConfig { path, name: Some(name), model });
            written_at.push(place.clone());
        }
    }
    config.repository.sources = sources;
    Ok(())
}

/// The models in an unpacked archive, with the names of their directories: those of TensorFlow at any depth, as
/// SageMaker's container finds them, or what is at its root.
pub(super) fn places(root: &Path) -> Vec<(String, PathBuf)> {
    match layout::find(root) {
        Ok(found) => found.bundles.into_iter().map(|bundle| (bundle.name, bundle.base)).collect(),
        Err(_) => vec![("model".to_owned(), root.to_owned())],
    }
}
