//! Uploads: small objects at once, large ones in parts that become visible together.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use object_store::multipart::PartId;
use object_store::path::Path;
use tokio::task::{AbortHandle, JoinHandle};

use super::reader::RemoteReader;
use super::remote::{Remote, is_repeated};
use super::runtime::{spawn, wait_for};
use super::{ObjectInfo, error_of};
use tensorserve_tensor::error::{Code, Error, Result};

/// The least size of a part, and the most parts: stores take 10,000.
const PART_BYTES: u64 = 8 << 20;
const MOST_PARTS: u64 = 10_000;

/// Parts that are uploaded at a time, as far as they fit into the memory for them.
const PARALLEL: u64 = 4;
const MEMORY: u64 = 64 << 20;

/// How long a failed upload waits for its parts under way.
const PATIENCE: Duration = Duration::from_secs(20);

/// Uploads the `length` bytes of `source` as the object `key`.
pub(super) fn upload(
    remote: &Arc<Remote>,
    key: &str,
    length: u64,
    source: &mut dyn Read,
) -> Result<ObjectInfo> {
    if length <= PART_BYTES {
        let content = take(source, length)?;
        return remote.put(key, &content);
    }
    let path = remote.path(key)?;
    let create = remote.write(key, |store, _| {
        let path = path.clone();
        async move { store.create_multipart(&path).await }
    });
    let id = wait_for(create)??;
    let upload = Upload { remote, key, path, id };
    let outcome = upload.run(length, source);
    if outcome.is_err() {
        upload.abort();
    }
    outcome
}

/// Joins the objects `parts` to one.
pub(super) fn join(remote: &Arc<Remote>, key: &str, parts: &[String]) -> Result<ObjectInfo> {
    let mut objects = Vec::new();
    let mut length = 0_u64;
    for part in parts {
        let missing = || Error::not_found(format!("{}: it is missing", remote.shown(part)));
        let object = remote.head(part)?.ok_or_else(missing)?;
        length = length.saturating_add(object.size);
        objects.push(object);
    }
    let mut joined = ConcatenatedObjects { remote, objects: objects.into_iter(), current: None };
    upload(remote, key, length, &mut joined)
}

/// Objects one after the other.
struct ConcatenatedObjects<'r> {
    remote: &'r Arc<Remote>,
    objects: std::vec::IntoIter<ObjectInfo>,
    current: Option<RemoteReader>,
}

impl Read for ConcatenatedObjects<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if let Some(reader) = &mut self.current {
                let read = reader.read(buffer)?;
                if read > 0 || buffer.is_empty() {
                    return Ok(read);
                }
            }
            let Some(next) = self.objects.next() else {
                return Ok(0);
            };
            let reader = RemoteReader::open(self.remote, &next.key, None, Some(&next.tag));
            self.current = Some(reader.map_err(std::io::Error::other)?);
        }
    }
}

/// An upload in parts that was begun.
struct Upload<'u> {
    remote: &'u Arc<Remote>,
    key: &'u str,
    path: Path,
    id: String,
}

impl Upload<'_> {
    fn run(&self, length: u64, source: &mut dyn Read) -> Result<ObjectInfo> {
        let step = part_bytes(length);
        let parallel = (MEMORY / step).clamp(1, PARALLEL);
        let parallel = usize::try_from(parallel).unwrap_or(1);
        let mut running = Running(VecDeque::new());
        let mut done: Vec<PartId> = Vec::new();
        let mut left = length;
        while left > 0 {
            let size = left.min(step);
            let content = Bytes::from(take(source, size)?);
            left -= size;
            if running.0.len() >= parallel {
                done.extend(running.next()?);
            }
            let index = done.len() + running.0.len();
            running.0.push_back(self.send(index, content)?);
        }
        while let Some(part) = running.next()? {
            done.push(part);
        }
        self.complete(length, done)
    }

    /// Sends one part in the background.
    fn send(&self, index: usize, content: Bytes) -> Result<JoinHandle<Result<PartId>>> {
        let (remote, path, id) = (Arc::clone(self.remote), self.path.clone(), self.id.clone());
        let key = self.key.to_owned();
        spawn(async move {
            let put = remote.write(&key, |store, _| {
                let (path, id, content) = (path.clone(), id.clone(), content.clone());
                async move { store.put_part(&path, &id, index, content.into()).await }
            });
            put.await
        })
    }

    fn complete(&self, length: u64, parts: Vec<PartId>) -> Result<ObjectInfo> {
        let (path, id) = (&self.path, &self.id);
        let complete = self.remote.write(self.key, |store, attempt| {
            let parts = parts.clone();
            async move {
                match store.complete_multipart(path, id, parts).await {
                    // An earlier attempt was successful, and its response was lost.
                    Err(object_store::Error::NotFound { .. }) if is_repeated(attempt) => Ok(None),
                    outcome => outcome.map(Some),
                }
            }
        });
        let finish = async {
            if let Some(result) = complete.await? {
                return self.remote.written(self.key, length, result).await;
            }
            let found = self.remote.head_one(self.key).await?;
            let found = found.filter(|found| found.size == length);
            let shown = self.remote.shown(self.key);
            found.ok_or_else(|| Error::unavailable(format!("{shown}: the upload was lost")))
        };
        wait_for(finish)?
    }

    /// Frees the storage of the parts.
    fn abort(&self) {
        let abort = self.remote.write(self.key, |store, _| {
            let (path, id) = (&self.path, &self.id);
            async move { store.abort_multipart(path, id).await }
        });
        if let Err(error) = wait_for(abort).and_then(|outcome| outcome)
            && error.code() != Code::NotFound
        {
            let shown = self.remote.shown(self.key);
            log::warn!("{shown}: the parts of a failed upload could not be removed: {error}");
        }
    }
}

/// Parts under way, in order.
struct Running(VecDeque<JoinHandle<Result<PartId>>>);

impl Running {
    /// Waits for the first one.
    fn next(&mut self) -> Result<Option<PartId>> {
        let Some(first) = self.0.pop_front() else {
            return Ok(None);
        };
        let part = wait_for(first)?;
        part.map_err(|e| Error::internal("an upload has failed").with_source(e))?.map(Some)
    }
}

impl Drop for Running {
    /// Waits for the end of those that are not needed any more: a part that arrives after the
    /// upload was aborted would stay in the store. But not for ever.
    fn drop(&mut self) {
        let parts = std::mem::take(&mut self.0);
        let stops: Vec<AbortHandle> = parts.iter().map(JoinHandle::abort_handle).collect();
        let ended = async { tokio::time::timeout(PATIENCE, join_all(parts)).await };
        if !matches!(wait_for(ended), Ok(Ok(_))) {
            stops.iter().for_each(AbortHandle::abort);
        }
    }
}

/// The next `size` bytes of `source`.
fn take(source: &mut dyn Read, size: u64) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    source.take(size).read_to_end(&mut content).map_err(error_of)?;
    if u64::try_from(content.len()).ok() != Some(size) {
        return Err(Error::internal(format!(
            "the content became shorter while it was uploaded: {} of {size} bytes of a part were left",
            content.len()
        )));
    }
    Ok(content)
}

/// The size of the parts of an object, in whole MiB.
fn part_bytes(length: u64) -> u64 {
    length.div_ceil(MOST_PARTS).next_multiple_of(1 << 20).max(PART_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_neither_too_small_nor_too_many() {
        assert_eq!(part_bytes(9 << 20), 8 << 20);
        assert_eq!(part_bytes(PART_BYTES * MOST_PARTS), PART_BYTES);
        for length in [PART_BYTES * MOST_PARTS + 1, 5 << 40] {
            let size = part_bytes(length);
            assert!(size > PART_BYTES && length.div_ceil(size) <= MOST_PARTS, "{length}");
            assert_eq!(size % (1 << 20), 0);
        }
    }
}
