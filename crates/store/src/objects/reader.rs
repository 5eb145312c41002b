//! Reads objects of stores as streams, a little ahead.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use futures_util::stream::StreamExt;
use tokio::task::JoinHandle;

use super::remote::{RangeResponse, Remote, info, pause};
use super::runtime::{spawn, wait_for};
use super::{ObjectInfo, changed, within};
use tensorserve_tensor::error::{Code, Error, Result};

/// The size of a part, and how many are read ahead.
const PART_BYTES: u64 = 8 << 20;
const AHEAD: usize = 2;

/// The content of an object, or a part of it.
pub(super) struct RemoteReader {
    remote: Arc<Remote>,
    /// The object as it was when it was opened; every part must be of that state.
    object: Arc<ObjectInfo>,
    /// The part that is being passed on.
    current: Vec<u8>,
    at: usize,
    /// The parts after it, in order.
    ahead: VecDeque<JoinHandle<Result<Vec<u8>>>>,
    /// What has not been asked for.
    rest: Range<u64>,
    error: Option<Error>,
}

impl RemoteReader {
    /// Opens an object. Reads its first part, so that what is wrong from the start is said here.
    pub(super) fn open(
        remote: &Arc<Remote>,
        key: &str,
        range: Option<Range<u64>>,
        tag: Option<&str>,
    ) -> Result<Self> {
        let start = range.as_ref().map_or(0, |range| range.start);
        let end = range.as_ref().map_or(u64::MAX, |range| range.end);
        let first = start..end.min(start.saturating_add(PART_BYTES));
        let (object, current) = wait_for(first_part(remote, key, first, tag))??;
        let range = within(&remote.shown(key), object.size, range)?;
        let read = u64::try_from(current.len()).unwrap_or(u64::MAX);
        let mut reader = RemoteReader {
            remote: Arc::clone(remote),
            object: Arc::new(object),
            current,
            at: 0,
            ahead: VecDeque::new(),
            rest: range.start.saturating_add(read)..range.end,
            error: None,
        };
        reader.ask()?;
        Ok(reader)
    }

    /// Asks for parts until enough are under way.
    fn ask(&mut self) -> Result<()> {
        while self.ahead.len() < AHEAD && self.rest.start < self.rest.end {
            let end = self.rest.end.min(self.rest.start.saturating_add(PART_BYTES));
            let range = self.rest.start..end;
            let (remote, object) = (Arc::clone(&self.remote), Arc::clone(&self.object));
            let part = async move {
                let mut part = Vec::new();
                let tag = Some(object.tag.as_str());
                match read_part(&remote, &object.key, tag, range, &mut part).await? {
                    Some(_) => Ok(part),
                    // It was larger before.
                    None => Err(changed(&remote.shown(&object.key))),
                }
            };
            self.ahead.push_back(spawn(part)?);
            self.rest.start = end;
        }
        Ok(())
    }

    /// Takes the next part; an empty one at the end.
    fn next_part(&mut self) -> Result<()> {
        self.current = Vec::new();
        self.at = 0;
        let Some(next) = self.ahead.pop_front() else {
            return Ok(());
        };
        let part = wait_for(next)?;
        self.current =
            part.map_err(|e| Error::internal("a transfer has failed").with_source(e))??;
        self.ask()
    }
}

impl Read for RemoteReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.current.len() && self.error.is_none() {
            self.error = self.next_part().err();
        }
        if let Some(error) = &self.error {
            return Err(io::Error::other(error.duplicate()));
        }
        let here = self.current.get(self.at..).unwrap_or_default();
        let length = here.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..length), here.get(..length)) {
            to.copy_from_slice(from);
        }
        self.at += length;
        Ok(length)
    }
}

impl Drop for RemoteReader {
    fn drop(&mut self) {
        self.ahead.iter().for_each(JoinHandle::abort);
    }
}

/// The object, and its bytes in `range`, which may end after it.
async fn first_part(
    remote: &Remote,
    key: &str,
    range: Range<u64>,
    tag: Option<&str>,
) -> Result<(ObjectInfo, Vec<u8>)> {
    let mut bytes = Vec::new();
    // An empty range cannot be asked for.
    if range.start < range.end
        && let Some(object) = read_part(remote, key, tag, range, &mut bytes).await?
    {
        return Ok((object, bytes));
    }
    let missing = || Error::not_found(format!("{}: there is no such object", remote.shown(key)));
    let object = remote.head_one(key).await?.ok_or_else(missing)?;
    if tag.is_some_and(|tag| tag != object.tag) {
        return Err(changed(&remote.shown(key)));
    }
    Ok((object, bytes))
}

/// Reads the bytes in `range`, or up to the end of the object, with repetitions from where it was
/// interrupted. Returns the object; `None` if it has no such bytes.
async fn read_part(
    remote: &Remote,
    key: &str,
    tag: Option<&str>,
    range: Range<u64>,
    bytes: &mut Vec<u8>,
) -> Result<Option<ObjectInfo>> {
    let mut tag = tag.map(str::to_owned);
    let mut end = range.end;
    let mut failures = 0;
    loop {
        let before = bytes.len();
        let at = range.start.saturating_add(u64::try_from(before).unwrap_or(u64::MAX));
        let RangeResponse::Sent(sent) = remote.part(key, at..end, tag.as_deref()).await? else {
            return Ok(None);
        };
        let object = info(key, &sent.meta);
        end = end.min(object.size);
        let wanted = usize::try_from(end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        bytes.reserve_exact(wanted.saturating_sub(before));
        let mut stream = sent.into_stream();
        while let Some(Ok(chunk)) = stream.next().await {
            if chunk.len() > wanted.saturating_sub(bytes.len()) {
                let shown = remote.shown(key);
                let message = format!("{shown}: the store sends more bytes than were asked for");
                return Err(Error::new(Code::DataLoss, message));
            }
            bytes.extend_from_slice(&chunk);
        }
        if bytes.len() == wanted {
            return Ok(Some(object));
        }
        // Progress counts as success: a slow or broken connection gets the rest in pieces.
        failures = if bytes.len() > before { 1 } else { failures + 1 };
        if failures >= remote.attempts.max(2) {
            let shown = remote.shown(key);
            return Err(Error::unavailable(format!("{shown}: the transfer was interrupted")));
        }
        log::debug!("{}: interrupted after {} bytes of a part", remote.shown(key), bytes.len());
        tag = Some(object.tag);
        pause(failures).await;
    }
}
