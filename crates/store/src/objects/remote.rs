//! Prefixes of object stores as places with objects.

use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, GetResult, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutResult,
};

use super::runtime::wait_for;
use super::{MOST_OBJECTS, ObjectInfo, PlaceOptions, changed, key};
use crate::client::StoreClient;
use crate::config::StoreConfig;
use crate::connect::Backend;
use crate::errors::of_writing;
use crate::location::{Location, StoreKind};
use crate::transport::{remarks_so_far, with_remarks};
use tensorserve_tensor::error::{Code, Error, Result};

/// The first time between attempts; it doubles up to the longest.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Requests at a time that ask whether empty objects mark directories.
const PARALLEL_HEADS: usize = 16;

type StoreResult<T> = object_store::Result<T>;

/// A prefix of a bucket.
pub(super) struct Remote {
    pub(super) location: Location,
    config: StoreConfig,
    pub(super) attempts: u32,
    /// Replaced when the store says that the bucket is in another region.
    client: RwLock<Arc<StoreClient>>,
}

/// A response to a request for a part of an object.
pub(super) enum RangeResponse {
    /// What the store sends.
    Sent(GetResult),
    /// The object has no such bytes.
    Outside,
}

impl Remote {
    pub(super) fn open(location: &Location, options: &PlaceOptions) -> Result<Self> {
        let client = RwLock::new(Arc::new(StoreClient::new(location, &options.stores, None)?));
        let attempts = options.attempts.max(1);
        Ok(Remote { location: location.clone(), config: options.stores.clone(), attempts, client })
    }

    /// How the object `key` is shown to the user.
    pub(super) fn shown(&self, key: &str) -> String {
        format!("{}/{key}", self.location)
    }

    /// The whole key of an object in the bucket.
    pub(super) fn path(&self, key: &str) -> Result<Path> {
        key::check(key)?;
        let unusable = |_| Error::invalid(format!("{key:?} cannot be the key of an object"));
        Path::parse(format!("{}{key}", self.base())).map_err(unusable)
    }

    /// What every key of this place begins with.
    fn base(&self) -> String {
        match self.location.key() {
            "" => String::new(),
            key => format!("{key}/"),
        }
    }

    /// Sends a request, again while the store is unavailable. `request` gets the number of the
    /// attempt, from 1.
    pub(super) async fn call<T, F>(&self, request: impl Fn(Arc<dyn Backend>, u32) -> F) -> Result<T>
    where
        F: Future<Output = StoreResult<T>>,
    {
        let mut attempt = 1;
        let mut has_moved = false;
        loop {
            let client = Arc::clone(&self.client.read().unwrap_or_else(PoisonError::into_inner));
            let Some(store) = client.store() else {
                return Err(Error::internal("the location is not in an object store"));
            };
            let (outcome, remarks) = with_remarks(request(Arc::clone(store), attempt)).await;
            let failure = match outcome {
                Ok(value) => return Ok(value),
                Err(error) => client.failure(error, remarks),
            };
            if let Some(region) = failure.region.as_deref().filter(|_| !has_moved) {
                has_moved = true;
                let client =
                    Arc::new(StoreClient::new(&self.location, &self.config, Some(region))?);
                *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
                continue;
            }
            if failure.error.code() != Code::Unavailable || attempt >= self.attempts {
                return Err(failure.error);
            }
            log::debug!("{}; attempt {attempt} of {}", failure.error, self.attempts);
            pause(attempt).await;
            attempt += 1;
        }
    }

    /// As [`Remote::call`], for requests that write the object `key`.
    pub(super) async fn write<T, F>(
        &self,
        key: &str,
        request: impl Fn(Arc<dyn Backend>, u32) -> F,
    ) -> Result<T>
    where
        F: Future<Output = StoreResult<T>>,
    {
        self.call(request).await.map_err(|error| self.of_object(key, of_writing(error)))
    }

    pub(super) fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        key::check_prefix(prefix)?;
        wait_for(self.list_all(prefix))?
    }

    async fn list_all(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let base = self.base();
        let whole = format!("{base}{prefix}");
        let mut objects = Vec::new();
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions { page_token, ..PaginatedListOptions::default() };
            let page = self.call(|store, _| {
                let (options, whole) = (options.clone(), whole.clone());
                async move {
                    let asked = Some(whole.as_str()).filter(|whole| !whole.is_empty());
                    store.list_paginated(asked, options).await
                }
            });
            let page = page.await?;
            for meta in page.result.objects {
                // The mark of the directory `in/` comes as `in`, and then is not below it.
                let whole = meta.location.as_ref();
                if let Some(key) = whole.strip_prefix(&base).filter(|key| key.starts_with(prefix)) {
                    key::check(key).map_err(|e| e.context(&self.location))?;
                    objects.push(info(key, &meta));
                }
            }
            if objects.len() > MOST_OBJECTS {
                return Err(super::too_many(&self.location.to_string()));
            }
            page_token = page.page_token;
            if page_token.is_none() {
                break;
            }
        }
        // Azure's listings lack the object whose name is the prefix.
        if self.location.kind() == StoreKind::Azure && key::check(prefix).is_ok() {
            objects.extend(self.head_one(prefix).await?);
        }
        let mut objects = self.without_marks(objects).await?;
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        objects.dedup_by(|a, b| a.key == b.key);
        Ok(objects)
    }

    /// Leaves out the empty objects whose keys end in `/`, by which tools mark directories. The
    /// library lists them without the `/`; there is no object of that name.
    async fn without_marks(&self, objects: Vec<ObjectInfo>) -> Result<Vec<ObjectInfo>> {
        let (empty, mut kept): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|object| object.size == 0);
        let asked = empty.into_iter().map(|object| async move { self.head_one(&object.key).await });
        // As a list: the compiler does not accept a lazy one that borrows here.
        let asked: Vec<_> = asked.collect();
        let asked = stream::iter(asked).buffer_unordered(PARALLEL_HEADS);
        let found: Vec<Option<ObjectInfo>> = asked.try_collect().await?;
        kept.extend(found.into_iter().flatten());
        Ok(kept)
    }

    pub(super) fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        wait_for(self.head_one(key))?
    }

    pub(super) async fn head_one(&self, key: &str) -> Result<Option<ObjectInfo>> {
        let path = self.path(key)?;
        let found = self.call(|store, _| {
            let path = path.clone();
            async move {
                match store.head(&path).await {
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    outcome => outcome.map(Some),
                }
            }
        });
        let found = found.await.map_err(|error| self.of_object(key, error))?;
        Ok(found.map(|meta| info(key, &meta)))
    }

    /// Asks for a part of an object, which must have this tag.
    pub(super) async fn part(
        &self,
        key: &str,
        range: std::ops::Range<u64>,
        tag: Option<&str>,
    ) -> Result<RangeResponse> {
        let path = self.path(key)?;
        // Only what came from the store is sent back to it.
        let if_match = tag.filter(|tag| tag.ends_with('"')).map(str::to_owned);
        let options =
            GetOptions { if_match, range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let part = self.call(|store, _| {
            let (path, options) = (path.clone(), options.clone());
            async move {
                match store.get_opts(&path, options).await {
                    Err(_) if remarks_so_far().status == Some(416) => Ok(RangeResponse::Outside),
                    outcome => outcome.map(RangeResponse::Sent),
                }
            }
        });
        let part = part.await.map_err(|error| self.changed_if_aborted(key, error))?;
        if let (RangeResponse::Sent(sent), Some(tag)) = (&part, tag)
            && tag_of(&sent.meta) != tag
        {
            return Err(changed(&self.shown(key)));
        }
        Ok(part)
    }

    fn changed_if_aborted(&self, key: &str, error: Error) -> Error {
        if error.code() == Code::Aborted {
            return changed(&self.shown(key));
        }
        self.of_object(key, error)
    }

    /// The error of a request about an object, with its name.
    fn of_object(&self, key: &str, error: Error) -> Error {
        let place = format!("{}: ", self.location);
        match error.message().strip_prefix(&place) {
            Some(why) => Error::new(error.code(), format!("{}: {why}", self.shown(key))),
            None => error,
        }
    }

    pub(super) fn put(&self, key: &str, bytes: &[u8]) -> Result<ObjectInfo> {
        let path = self.path(key)?;
        let content = Bytes::copy_from_slice(bytes);
        let put = self.write(key, |store, _| {
            let (path, content) = (path.clone(), content.clone());
            async move { store.put(&path, content.into()).await }
        });
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        wait_for(async { self.written(key, size, put.await?).await })?
    }

    /// An object that was written.
    pub(super) async fn written(
        &self,
        key: &str,
        size: u64,
        result: PutResult,
    ) -> Result<ObjectInfo> {
        if let Some(etag) = result.e_tag {
            return Ok(ObjectInfo { key: key.to_owned(), size, tag: quoted(etag) });
        }
        let gone = || Error::unavailable(format!("{}: it vanished", self.shown(key)));
        self.head_one(key).await?.ok_or_else(gone)
    }

    pub(super) fn put_new(&self, key: &str, bytes: &[u8]) -> Result<bool> {
        let path = self.path(key)?;
        let content = Bytes::copy_from_slice(bytes);
        let put = self.write(key, |store, attempt| {
            let (path, content) = (path.clone(), content.clone());
            async move {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                match store.put_opts(&path, content.clone().into(), options).await {
                    Ok(_) => Ok(Created::Yes),
                    Err(object_store::Error::AlreadyExists { .. }) => {
                        let is_repeated = is_repeated(attempt);
                        let there = match store.get(&path).await {
                            // Two writers at the same time, of which none has won yet.
                            Err(object_store::Error::NotFound { .. }) => {
                                return Ok(Created::Unclear);
                            }
                            there => there?,
                        };
                        // It may be of an earlier attempt, whose response was lost.
                        let may_be_ours = is_repeated && there.meta.size == size_of(&content);
                        let is_ours = may_be_ours && there.bytes().await? == content;
                        Ok(if is_ours { Created::Yes } else { Created::No })
                    }
                    Err(error) => Err(error),
                }
            }
        });
        let created = async {
            match put.await? {
                Created::Yes => Ok(true),
                Created::No => Ok(false),
                Created::Unclear => Err(Error::unavailable(format!(
                    "{}: others write it at the same time; try again",
                    self.shown(key)
                ))),
            }
        };
        wait_for(created)?
    }

    pub(super) fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key)?;
        let deleted = self.write(key, |store, _| {
            let path = path.clone();
            async move {
                match store.delete(&path).await {
                    Err(object_store::Error::NotFound { .. }) => Ok(()),
                    outcome => outcome,
                }
            }
        });
        wait_for(deleted)?
    }
}

/// Whether an object was created.
enum Created {
    Yes,
    No,
    Unclear,
}

fn size_of(content: &Bytes) -> u64 {
    u64::try_from(content.len()).unwrap_or(u64::MAX)
}

/// Whether the request that has failed was sent before, by this module or by the library. Then the
/// reason may be that the first one was successful, and its response was lost.
pub(super) fn is_repeated(attempt: u32) -> bool {
    attempt > 1 || remarks_so_far().requests > 1
}

/// Waits after the failure of an attempt.
pub(super) async fn pause(attempt: u32) {
    let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1).min(10));
    tokio::time::sleep((FIRST_DELAY * doubled).min(LONGEST_DELAY)).await;
}

pub(super) fn info(key: &str, meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo { key: key.to_owned(), size: meta.size, tag: tag_of(meta) }
}

/// The ETag; from a store that has none, size and time.
pub(super) fn tag_of(meta: &ObjectMeta) -> String {
    match &meta.e_tag {
        Some(etag) => quoted(etag.clone()),
        None => format!("{}-{}", meta.size, meta.last_modified.timestamp()),
    }
}

/// Azure's listings show ETags without the quotes that its responses have.
fn quoted(etag: String) -> String {
    if etag.ends_with('"') { etag } else { format!("\"{etag}\"") }
}
