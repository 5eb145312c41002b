//! Fetches a runtime: locks its directory, downloads, unpacks, and puts it in place.

use std::path::Path;
use std::time::Instant;

use url::Url;

use crate::client::{IndexClient, Trust};
use crate::download::Downloads;
use crate::install::Installation;
use crate::pins::{Pin, Wheel};
use crate::pip::PipSettings;
use crate::report::{Report, megabytes};
use tensorserve_tensor::error::{Error, Result};

/// Fetches runtimes.
pub struct Fetcher<'r> {
    downloads: Downloads<'r>,
    report: &'r dyn Report,
}

impl<'r> Fetcher<'r> {
    /// Nothing is connected to yet.
    ///
    /// # Errors
    /// If an index of the settings is not a URL.
    pub fn new(pip: PipSettings, trust: Trust, report: &'r dyn Report) -> Result<Self> {
        let indexes: Vec<Url> =
            pip.indexes.iter().map(|url| index_url(url)).collect::<Result<_>>()?;
        let client = IndexClient::new(pip, trust, &indexes);
        Ok(Fetcher { downloads: Downloads { client, indexes, report }, report })
    }

    /// Installs `pin` below `folder`, unless it is there. `complete` may make more files in the tree that
    /// the wheels were unpacked into, and returns their names in it.
    ///
    /// # Errors
    /// If the directory was not made by an earlier run, the disk is too small, or a wheel cannot be
    /// downloaded or unpacked; those of `complete`. The next run continues where this one stopped.
    pub fn fetch(
        &self,
        pin: &Pin,
        folder: &Path,
        complete: impl Fn(&Path) -> Result<Vec<String>>,
    ) -> Result<()> {
        let start = Instant::now();
        let installation = Installation::new(pin, folder);
        if installation.shortcoming().is_none() {
            return Ok(());
        }
        let _lock = installation.lock(self.report)?;
        // Another run may have fetched the files while this one waited.
        let Some(problem) = installation.shortcoming() else {
            return Ok(());
        };
        self.report.say(&format!("{}: {problem}", pin.title));
        let count = pin.wheels.len();
        let (download, unpacked) = (megabytes(pin.download()), megabytes(pin.unpacked));
        let begun = match installation.begun() {
            0 => String::new(),
            bytes => format!(" An earlier run has left {} of it.", megabytes(bytes)),
        };
        let folder = folder.display();
        self.report
            .say(&format!("Downloading {download}, {unpacked} unpacked, into {folder}.{begun}"));
        let obtain = |wheel: &Wheel, number, file: &Path| {
            let label = format!("[{}/{count}] {}", number + 1, wheel.file);
            self.report.say(&format!("{label} ({})", megabytes(wheel.size)));
            self.downloads.obtain(wheel, file, &label)
        };
        installation.install(obtain, complete)?;
        self.report.say(&format!("Done in {:.0} s.", start.elapsed().as_secs_f64()));
        Ok(())
    }
}

/// A URL of an index. Its credentials are not shown.
fn index_url(text: &str) -> Result<Url> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    url.ok_or_else(|| {
        let last = text.rsplit('@').next().unwrap_or_default();
        Error::invalid(format!(
            "the package index {last:?} is not a URL; write, for example, https://pypi.org/simple \
             (--index-url, PIP_INDEX_URL or pip.conf)"
        ))
    })
}
