//! Downloads of wheels, which continue where they were interrupted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ring::digest::{Context, SHA256};
use url::Url;

use crate::client::{FailedRequest, IndexClient, SuccessResponse, shown};
use crate::index;
use crate::pins::Wheel;
use crate::report::{DownloadDisplay, Report, failed_at};
use tensorserve_tensor::error::{Error, Result};

const BLOCK: usize = 1 << 16;
/// The first wait before a retry; it doubles with each one in a row.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Where wheels come from, and what hears of it.
pub(crate) struct Downloads<'r> {
    pub(crate) client: IndexClient,
    pub(crate) indexes: Vec<Url>,
    pub(crate) report: &'r dyn Report,
}

impl Downloads<'_> {
    /// The file of `wheel`: in one of pip's directories, or else downloaded to `file`. Remarks start with
    /// `label`.
    ///
    /// # Errors
    /// Those of [`Downloads::wheel`].
    pub(crate) fn obtain(&self, wheel: &Wheel, file: &Path, label: &str) -> Result<PathBuf> {
        let directories = self.client.pip().directories.iter();
        for local in directories.map(|directory| directory.join(&wheel.file)) {
            if sha256(&local).is_ok_and(|hash| hash == wheel.sha256) {
                self.report.say(&format!("found in {}", local.display()));
                return Ok(local);
            }
        }
        self.wheel(wheel, file, label)?;
        Ok(file.to_owned())
    }

    /// Downloads `wheel` from the first index that has it into `file`, whose bytes of an earlier download
    /// are kept.
    ///
    /// # Errors
    /// If no index has the wheel, a request fails for good, the disk is full, or the file has another
    /// hash.
    fn wheel(&self, wheel: &Wheel, file: &Path, label: &str) -> Result<()> {
        let url = self.retried(|| self.locate(wheel))?;
        let mut transfer = Transfer { from: self, url, wheel, file, label };
        let resumed = length(file);
        transfer.complete()?;
        if sha256(file)? == wheel.sha256 {
            return Ok(());
        }
        fs::remove_file(file).map_err(|e| failed_at(file, &e))?;
        if resumed > 0 {
            let again = "the file in the index has changed; starting again";
            self.report.say(&format!("{}: {again}", wheel.file));
            transfer.complete()?;
            if sha256(file)? == wheel.sha256 {
                return Ok(());
            }
            fs::remove_file(file).map_err(|e| failed_at(file, &e))?;
        }
        Err(Error::unavailable(format!(
            "{} is not the file that this version of tensorserve expects; it was not unpacked (SHA-256 of \
             another file than {}). An index or a proxy on the way may have changed it",
            shown(&transfer.url),
            wheel.sha256
        )))
    }

    /// The URL of `wheel` in the first index that has it.
    fn locate(&self, wheel: &Wheel) -> Result<Url, FailedRequest> {
        for index in &self.indexes {
            if let Some(url) = index::find(&self.client, index, wheel)? {
                return Ok(url);
            }
        }
        let looked: Vec<String> = self.indexes.iter().map(shown).collect();
        let looked =
            if looked.is_empty() { "pip's settings (no-index)".into() } else { looked.join(", ") };
        Err(FailedRequest::permanent(format!(
            "{} is not in {looked}; name another index with --index-url, or put the file into a directory \
             and name that in PIP_FIND_LINKS",
            wheel.file
        )))
    }

    /// Calls `request` until it succeeds, fails for good, or has been retried often enough.
    fn retried<T>(&self, mut request: impl FnMut() -> Result<T, FailedRequest>) -> Result<T> {
        let mut retries = self.retries();
        loop {
            match request() {
                Ok(value) => return Ok(value),
                Err(failed) => retries.wait(failed)?,
            }
        }
    }

    fn retries(&self) -> Retries<'_> {
        Retries { done: 0, most: self.client.pip().retries, report: self.report }
    }
}

/// The retries in a row.
struct Retries<'r> {
    done: u32,
    most: u32,
    report: &'r dyn Report,
}

impl Retries<'_> {
    /// Waits before the next request.
    ///
    /// # Errors
    /// The failure, if there is to be no other request.
    fn wait(&mut self, failed: FailedRequest) -> Result<()> {
        if !failed.is_temporary || self.done >= self.most {
            return Err(failed.into());
        }
        let wait = FIRST_WAIT.saturating_mul(1 << self.done.min(10)).min(LONGEST_WAIT);
        let wait = failed.wait.unwrap_or(wait).min(LONGEST_WAIT * 10);
        self.done += 1;
        let (done, most) = (self.done, self.most);
        let seconds = wait.as_secs_f64();
        let remark = format!("{}; retry {done} of {most} in {seconds:.1} s", failed.message);
        self.report.say(&remark);
        thread::sleep(wait);
        Ok(())
    }
}

/// The download of one file.
struct Transfer<'a> {
    from: &'a Downloads<'a>,
    url: Url,
    wheel: &'a Wheel,
    file: &'a Path,
    label: &'a str,
}

impl Transfer<'_> {
    /// Downloads what the file lacks.
    fn complete(&mut self) -> Result<()> {
        let progress = self.from.report.begin(self.label, self.wheel.size);
        let mut retries = self.from.retries();
        loop {
            let before = length(self.file);
            if before == self.wheel.size {
                return Ok(());
            }
            if before > self.wheel.size {
                self.open(0)?;
                continue;
            }
            let outcome = self.receive(before, progress.as_ref());
            if length(self.file) > before {
                retries.done = 0;
            }
            if let Err(failed) = outcome {
                retries.wait(failed)?;
            }
        }
    }

    /// Sends one request for what follows the first `have` bytes, and appends the response.
    fn receive(&self, have: u64, progress: &dyn DownloadDisplay) -> Result<(), FailedRequest> {
        let size = self.wheel.size;
        let wanted = format!("bytes={have}-");
        let range: &[(&str, &str)] = if have > 0 { &[("Range", &wanted)] } else { &[] };
        let mut response = match self.from.client.get(&self.url, range) {
            // The file in the index is shorter than what is here.
            Err(failed) if failed.status == Some(416) => {
                self.open(0)?;
                return Ok(());
            }
            response => response?,
        };
        let start = if have > 0 && response.response.status() == 206 {
            let continues = format!("bytes {have}-{}/{size}", size - 1);
            if response.header("content-range") != Some(&continues) {
                self.open(0)?;
                return Ok(());
            }
            have
        } else {
            0
        };
        if let Some(length) = content_length(&response)
            && length != size - start
        {
            return Err(FailedRequest::permanent(format!(
                "{}: the file has {length} bytes, expected {size}: it is not the file that this \
                 version of tensorserve expects",
                shown(&self.url),
            )));
        }
        let mut file = self.open(start)?;
        self.copy(&mut response, &mut file, start, progress)
    }

    fn copy(
        &self,
        response: &mut SuccessResponse,
        file: &mut File,
        start: u64,
        progress: &dyn DownloadDisplay,
    ) -> Result<(), FailedRequest> {
        let size = self.wheel.size;
        let mut body = response.response.body_mut().as_reader();
        let mut block = vec![0; BLOCK];
        let mut have = start;
        progress.is_at(have);
        while have < size {
            let broke = |why: &str| {
                FailedRequest::temporary(format!(
                    "{}: {why} after {have} of {size} bytes",
                    shown(&self.url)
                ))
            };
            let read = match body.read(&mut block) {
                Ok(0) => return Err(broke("the connection was closed")),
                Ok(read) => read,
                Err(e) => return Err(broke(&e.to_string())),
            };
            have += read as u64;
            if have > size {
                let message = format!("{}: more than {size} bytes", shown(&self.url));
                return Err(FailedRequest::permanent(message));
            }
            let bytes = block.get(..read).unwrap_or_default();
            file.write_all(bytes).map_err(|e| self.cannot_write(&e))?;
            progress.is_at(have);
        }
        Ok(())
    }

    /// The file, cut to its first `length` bytes, which stay.
    fn open(&self, length: u64) -> Result<File, FailedRequest> {
        let opened = OpenOptions::new().create(true).append(true).open(self.file);
        let file = opened.map_err(|e| self.cannot_write(&e))?;
        file.set_len(length).map_err(|e| self.cannot_write(&e))?;
        Ok(file)
    }

    fn cannot_write(&self, error: &io::Error) -> FailedRequest {
        FailedRequest::permanent(format!(
            "{}: {error}; what was downloaded is kept, and the next run continues",
            self.file.display()
        ))
    }
}

fn content_length(response: &SuccessResponse) -> Option<u64> {
    response.header("content-length")?.parse().ok()
}

fn length(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |metadata| metadata.len())
}

/// The SHA-256 of a file, in hexadecimal digits.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(|e| failed_at(path, &e))?;
    let mut context = Context::new(&SHA256);
    let mut block = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut block).map_err(|e| failed_at(path, &e))?;
        if read == 0 {
            return Ok(hexadecimal(context));
        }
        context.update(block.get(..read).unwrap_or_default());
    }
}

/// The digest in hexadecimal digits.
pub(crate) fn hexadecimal(context: Context) -> String {
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
