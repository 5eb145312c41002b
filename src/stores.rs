//! The stores that models come from, as the core uses them.

use std::path::Path;
#[cfg(feature = "stores")]
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(feature = "stores")]
use std::time::Duration;

use crate::config::Config;
#[cfg(feature = "stores")]
use crate::progress::DownloadBar;
use tensorserve_core::repository::ModelStores;
#[cfg(feature = "stores")]
use tensorserve_core::repository::{FolderLease, StoreFetch, StoreListing, StoreReport, StoreTree};
#[cfg(feature = "stores")]
use tensorserve_store::{Fetch, Listed, Location, StoreMirror, Tree};
#[cfg(feature = "stores")]
use tensorserve_tensor::error::Error;
use tensorserve_tensor::error::Result;

/// How often a progress bar moves.
#[cfg(feature = "stores")]
const TICK: Duration = Duration::from_millis(100);

/// The stores of `config`. Nothing is connected before the first location is asked for.
#[cfg(feature = "stores")]
#[must_use]
pub fn built_in(config: &Config) -> Arc<dyn ModelStores> {
    Arc::new(MirroredStores(Arc::new(StoreMirror::new(config.stores.clone()))))
}

/// No stores: this build has none.
#[cfg(not(feature = "stores"))]
#[must_use]
pub fn built_in(_config: &Config) -> Arc<dyn ModelStores> {
    Arc::new(tensorserve_core::repository::NoStores)
}

/// Checks that `path` is a location in a store.
///
/// # Errors
/// If it is not, or this build has no stores.
#[cfg(feature = "stores")]
pub fn check(path: &Path) -> Result<()> {
    Location::parse(&path.to_string_lossy()).map(drop)
}

/// Refuses every location: this build has no stores.
///
/// # Errors
/// Always.
#[cfg(not(feature = "stores"))]
pub fn check(path: &Path) -> Result<()> {
    use tensorserve_core::repository::{NoStores, StoreListing};
    match NoStores.list(path) {
        StoreListing::Failed(error) => Err(error),
        StoreListing::Pending(_) | StoreListing::Tree(_) => Ok(()),
    }
}

/// Downloads everything at a location in a store, with a progress bar on a terminal, and returns
/// its local directory or file. Blocks.
///
/// # Errors
/// If it cannot be listed or downloaded.
#[cfg(feature = "stores")]
pub fn download(config: &Config, location: &Path) -> Result<PathBuf> {
    let mirror = StoreMirror::new(config.stores.clone());
    wait_for(mirror.whole(&location.to_string_lossy()), &mirror)
}

/// Downloads the newest version of each model at a location, and returns it with its name. Blocks.
///
/// # Errors
/// If the location cannot be listed, or a version cannot be downloaded.
#[cfg(feature = "stores")]
pub fn download_models(
    config: &Config,
    location: &Path,
    models_at: impl Fn(&Path) -> Result<Vec<(String, PathBuf)>>,
) -> Result<Vec<(String, PathBuf)>> {
    let mirror = StoreMirror::new(config.stores.clone());
    let asked = location.to_string_lossy();
    let tree = wait_for(mirror.tree(&asked), &mirror)?;
    let (root, shown) = (tree.root().display().to_string(), tree.location().to_string());
    let models = models_at(tree.root())
        .map_err(|e| Error::new(e.code(), e.message().replace(&root, &shown)))?;
    let mut local = Vec::new();
    for (name, place) in models {
        let Some(folder) = mirror.local(&tree, &asked, &place) else {
            continue;
        };
        wait_for(mirror.wait(&folder), &mirror)?;
        local.push((name, folder));
    }
    Ok(local)
}

/// Waits for `work` of the mirror, with a progress bar on a terminal.
#[cfg(feature = "stores")]
fn wait_for<T>(work: impl Future<Output = Result<T>>, mirror: &StoreMirror) -> Result<T> {
    let failed = |e: std::io::Error| Error::internal("no runtime for downloads").with_source(e);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let bar = DownloadBar::new();
    let outcome = runtime.map_err(failed)?.block_on(async {
        let mut work = std::pin::pin!(work);
        loop {
            if let Ok(outcome) = tokio::time::timeout(TICK, &mut work).await {
                return outcome;
            }
            let reports = mirror.reports();
            let total: u64 = reports.iter().map(|report| report.to_download).sum();
            bar.show(reports.iter().map(|report| report.downloaded).sum(), total);
        }
    });
    bar.clear();
    outcome
}

#[cfg(feature = "stores")]
struct MirroredStores(Arc<StoreMirror>);

/// A tree of a mirror.
#[cfg(feature = "stores")]
struct MirroredTree {
    mirror: Arc<StoreMirror>,
    tree: Arc<Tree>,
    /// The location, as it was asked for.
    asked: String,
}

#[cfg(feature = "stores")]
impl StoreTree for MirroredTree {
    fn root(&self) -> &Path {
        self.tree.root()
    }

    fn local(&self, place: &Path) -> Option<PathBuf> {
        self.mirror.local(&self.tree, &self.asked, place)
    }
}

#[cfg(feature = "stores")]
impl ModelStores for MirroredStores {
    fn on_change(&self, hook: Box<dyn Fn() + Send + Sync>) {
        self.0.on_change(hook);
    }

    fn list(&self, location: &Path) -> StoreListing {
        let asked = location.to_string_lossy().into_owned();
        match self.0.list(&asked) {
            Listed::Pending(what) => StoreListing::Pending(what),
            Listed::Failed(error) => StoreListing::Failed(error),
            Listed::Tree(tree) => {
                let mirror = Arc::clone(&self.0);
                StoreListing::Tree(Arc::new(MirroredTree { mirror, tree, asked }))
            }
        }
    }

    fn fetch(&self, folder: &Path) -> StoreFetch {
        match self.0.fetch(folder) {
            Fetch::Foreign => StoreFetch::Local,
            Fetch::Here => StoreFetch::Whole,
            Fetch::Pending(what) => StoreFetch::Pending(what),
            Fetch::Failed(error) => StoreFetch::Failed(error),
        }
    }

    fn lease(&self, folder: &Path) -> Option<FolderLease> {
        self.0.lease(folder).map(|lease| Arc::new(lease) as FolderLease)
    }

    fn is_within(&self, location: &Path, root: &Path) -> bool {
        let parse = |path: &Path| Location::parse(&path.to_string_lossy()).ok();
        let (location, root) = (parse(location), parse(root));
        location.is_some_and(|location| root.is_some_and(|root| location.is_within(&root)))
    }

    fn reports(&self) -> Vec<StoreReport> {
        let reports = self.0.reports().into_iter();
        reports
            .map(|report| StoreReport {
                location: report.location,
                listed_at: report.listed_at,
                error: report.error,
                is_offline: report.is_offline,
                objects: report.objects,
                downloads: report.downloads,
                downloaded_bytes: report.downloaded,
                download_bytes: report.to_download,
            })
            .collect()
    }

    fn cache_bytes(&self) -> Option<(u64, u64)> {
        self.0.cache_bytes()
    }
}

#[cfg(all(test, feature = "stores"))]
mod tests {
    use tensorserve_core::config::STORE_SCHEMES;
    use tensorserve_store::StoreKind;

    /// The core tells paths from locations also in a build without stores, and so has a list of its own.
    #[test]
    fn the_core_knows_the_schemes_of_all_stores() {
        let all = StoreKind::ALL.into_iter().flat_map(StoreKind::schemes).copied();
        assert_eq!(all.collect::<Vec<_>>(), STORE_SCHEMES);
    }
}
