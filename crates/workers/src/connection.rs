//! A connection to a worker process: a socket and a memory file on which one thread of the process serves
//! one call at a time.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::Ready;
use tokio::io::unix::AsyncFd;

use super::wire::{self, FramePrefix, WireFrame};
use tensorserve_os as os;
use tensorserve_tensor::error::Error;

/// The size above which the memory file is truncated after a call, in bytes.
const MAX_IDLE_MEMORY: u64 = 4 << 20;

/// Size of the buffer that a reply is first read into, in bytes.
const FIRST_READ: usize = 8 << 10;

/// The wait before another attempt to write to a full socket.
const FULL_SOCKET_WAIT: Duration = Duration::from_millis(1);

/// The message that announces the descriptors of a connection. Without a byte, a message would carry none.
const CONNECTION: &[u8] = b"L";

/// Why the exchange with a process failed.
pub(super) enum ExchangeError {
    /// The call did not reach the process.
    NotSent,
    /// The process closed its socket.
    Closed,
    /// The process sent an invalid reply.
    Invalid(Error),
}

/// The server's ends of a connection.
pub(super) struct WorkerConnection {
    pub(super) socket: Arc<UnixStream>,
    memory: File,
    /// Whether the call in progress has written to the memory file.
    uses_memory: AtomicBool,
    /// The number of replies of the process.
    replies: Arc<AtomicU64>,
}

impl WorkerConnection {
    /// Opens a connection, and sends its other ends through `control` to the process, which starts a
    /// thread for it. Counts its replies in `replies`.
    pub(super) fn open(control: &UnixStream, replies: &Arc<AtomicU64>) -> io::Result<Self> {
        let (socket, child_socket) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let memory = os::memory_file()?;
        let descriptors = [child_socket.as_fd(), memory.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(control, &[IoSlice::new(CONNECTION)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(WorkerConnection {
            socket: Arc::new(socket),
            memory,
            uses_memory: AtomicBool::new(false),
            replies: Arc::clone(replies),
        })
    }

    /// Registers the socket with the caller's runtime for one call, so that the reply wakes no other
    /// thread.
    pub(super) fn watched(&self) -> io::Result<WatchedConnection<'_>> {
        Ok(WatchedConnection { connection: self, socket: os::await_readable(&self.socket)? })
    }

    /// Sends a call and waits for the reply on this thread; `None` if there is none by `until`.
    pub(super) fn exchange(
        &self,
        kind: u8,
        fields: &[Option<&str>],
        parts: &[&[u8]],
        until: Instant,
    ) -> Option<Result<WireFrame, ExchangeError>> {
        let left = || until.saturating_duration_since(Instant::now());
        let exchanged = || {
            let frame = self.prepare(kind, fields, parts)?;
            let mut rest = &frame[..];
            while !rest.is_empty() {
                match self.write(rest)? {
                    Some(count) => rest = rest.get(count..).unwrap_or_default(),
                    None if left().is_zero() => return Ok(None),
                    None => thread::sleep(FULL_SOCKET_WAIT),
                }
            }
            let mut reply = ReplyBuffer::default();
            while !reply.is_whole()? {
                if !self.is_readable_within(left())? {
                    return Ok(None);
                }
                reply.received += self.read(reply.room())?.unwrap_or(0);
            }
            self.finish(reply).map(Some)
        };
        exchanged().transpose()
    }

    /// Blocks until there are bytes to read or the socket is closed; whether that is so within `time`.
    fn is_readable_within(&self, time: Duration) -> Result<bool, ExchangeError> {
        let mut watched = [PollFd::new(&*self.socket, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        match poll(&mut watched, time.as_ref()) {
            Ok(count) => Ok(count > 0),
            // The caller asks again.
            Err(Errno::INTR) => Ok(true),
            Err(_) => Err(ExchangeError::Closed),
        }
    }

    /// The frame of a call; writes its body to the memory file if it is large.
    fn prepare(
        &self,
        kind: u8,
        fields: &[Option<&str>],
        parts: &[&[u8]],
    ) -> Result<Vec<u8>, ExchangeError> {
        let (frame, in_memory) = wire::encode(kind, fields, parts);
        if in_memory {
            let mut at = 0;
            for part in parts {
                self.memory.write_all_at(part, at).map_err(|_| ExchangeError::NotSent)?;
                at += part.len() as u64;
            }
            self.uses_memory.store(true, Relaxed);
        }
        Ok(frame)
    }

    /// Writes bytes of a frame; `None` if the socket is full.
    fn write(&self, bytes: &[u8]) -> Result<Option<usize>, ExchangeError> {
        loop {
            match (&*self.socket).write(bytes) {
                Ok(count) => return Ok(Some(count)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // An incomplete call has no effect on the process.
                Err(_) => return Err(ExchangeError::NotSent),
            }
        }
    }

    /// Reads available bytes; `None` if there are none.
    fn read(&self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        loop {
            match (&*self.socket).read(into) {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(count) => return Ok(Some(count)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ExchangeError::Closed),
            }
        }
    }

    /// Decodes a whole reply, which ends the call.
    fn finish(&self, reply: ReplyBuffer) -> Result<WireFrame, ExchangeError> {
        let prefix = reply.prefix.ok_or(ExchangeError::Closed)?;
        let body = prefix.body_in_memory().map(|size| self.read_memory(size)).transpose()?;
        if body.is_some() || self.uses_memory.swap(false, Relaxed) {
            self.shrink_memory();
        }
        self.replies.fetch_add(1, Relaxed);
        prefix.decode(reply.bytes, body).map_err(ExchangeError::Invalid)
    }

    /// Reads a body of `size` bytes from the memory file.
    fn read_memory(&self, size: usize) -> Result<Vec<u8>, ExchangeError> {
        // The size comes from the process, which may be wrong; the file's length does not.
        let length = self.memory.metadata().map_or(0, |metadata| metadata.len());
        let mut body = vec![0; size.min(usize::try_from(length).unwrap_or(0))];
        match self.memory.read_exact_at(&mut body, 0) {
            Ok(()) if body.len() == size => Ok(body),
            _ => Err(ExchangeError::Invalid(Error::internal("the reply is incomplete"))),
        }
    }

    fn shrink_memory(&self) {
        if self.memory.metadata().is_ok_and(|metadata| metadata.len() > MAX_IDLE_MEMORY) {
            let _ = self.memory.set_len(0);
        }
    }
}

/// A reply, as far as it has been received.
struct ReplyBuffer {
    bytes: Vec<u8>,
    received: usize,
    prefix: Option<FramePrefix>,
}

impl Default for ReplyBuffer {
    fn default() -> Self {
        ReplyBuffer { bytes: vec![0; FIRST_READ], received: 0, prefix: None }
    }
}

impl ReplyBuffer {
    /// Where the next bytes belong.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.received..).unwrap_or_default()
    }

    /// Whether the frame is there; its body may be in the memory file.
    fn is_whole(&mut self) -> Result<bool, ExchangeError> {
        if self.prefix.is_none() {
            let start = self.bytes.get(..self.received).unwrap_or_default();
            self.prefix = FramePrefix::read(start).map_err(ExchangeError::Invalid)?;
            let Some(prefix) = &self.prefix else {
                return Ok(false);
            };
            let size = prefix.frame_size();
            if self.received > size {
                let error = Error::internal("data follows the reply");
                return Err(ExchangeError::Invalid(error));
            }
            self.bytes.resize(size, 0);
        }
        Ok(self.received == self.bytes.len())
    }
}

/// A connection for one call.
pub(super) struct WatchedConnection<'l> {
    connection: &'l WorkerConnection,
    socket: AsyncFd<Arc<UnixStream>>,
}

impl WatchedConnection<'_> {
    /// Sends a call of the function `kind`. `parts` are its body, one after the other.
    pub(super) async fn send(
        &self,
        kind: u8,
        fields: &[Option<&str>],
        parts: &[&[u8]],
    ) -> Result<(), ExchangeError> {
        let frame = self.connection.prepare(kind, fields, parts)?;
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match self.connection.write(rest)? {
                Some(count) => rest = rest.get(count..).unwrap_or_default(),
                // Only an extremely large header does not fit into the socket at once. That alone is
                // no reason to watch for writability.
                None => tokio::time::sleep(FULL_SOCKET_WAIT).await,
            }
        }
        Ok(())
    }

    /// Waits for the reply. It may be cancelled, but then not be called again.
    pub(super) async fn receive(&self) -> Result<WireFrame, ExchangeError> {
        let mut reply = ReplyBuffer::default();
        while !reply.is_whole()? {
            let count = self.read(reply.room()).await?;
            reply.received += count;
        }
        self.connection.finish(reply)
    }

    /// Reads available bytes, at least one.
    async fn read(&self, into: &mut [u8]) -> Result<usize, ExchangeError> {
        loop {
            // A read before this would mostly find nothing.
            let mut ready = self.socket.readable().await.map_err(|_| ExchangeError::Closed)?;
            match self.connection.read(into)? {
                Some(count) => return Ok(count),
                None => ready.clear_ready_matching(Ready::READABLE),
            }
        }
    }
}
