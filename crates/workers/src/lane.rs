//! A lane to a worker process: a socket and a memory file on which one thread of the process serves
//! one call at a time.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::Ready;
use tokio::io::unix::AsyncFd;

use super::wire::{self, Frame, FramePrefix};
use tensorserve_os as os;
use tensorserve_tensor::error::Error;

/// The size above which the memory file is truncated after a call, in bytes.
const MAX_IDLE_MEMORY: u64 = 4 << 20;

/// Size of the buffer that a reply is first read into, in bytes.
const FIRST_READ: usize = 8 << 10;

/// The wait before another attempt to write to a full socket.
const FULL_SOCKET_WAIT: Duration = Duration::from_millis(1);

/// The message that announces the descriptors of a lane. Without a byte, a message would carry none.
const LANE: &[u8] = b"L";

/// Why the exchange with a process failed.
pub(super) enum ExchangeError {
    /// The call did not reach the process.
    NotSent,
    /// The process closed its socket.
    Closed,
    /// The process sent an invalid reply.
    Invalid(Error),
}

/// The server's ends of a lane.
pub(super) struct Lane {
    pub(super) socket: Arc<UnixStream>,
    memory: File,
    /// Whether the call in progress has written to the memory file.
    uses_memory: AtomicBool,
    /// The number of replies of the process.
    replies: Arc<AtomicU64>,
}

impl Lane {
    /// Opens a lane, and sends its other ends through `control` to the process, which starts a
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
        sendmsg(control, &[IoSlice::new(LANE)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(Lane {
            socket: Arc::new(socket),
            memory,
            uses_memory: AtomicBool::new(false),
            replies: Arc::clone(replies),
        })
    }

    /// Registers the socket with the caller's runtime for one call, so that the reply wakes no other
    /// thread.
    pub(super) fn channel(&self) -> io::Result<LaneChannel<'_>> {
        Ok(LaneChannel { lane: self, socket: os::await_readable(&self.socket)? })
    }
}

/// A lane for one call.
pub(super) struct LaneChannel<'l> {
    lane: &'l Lane,
    socket: AsyncFd<Arc<UnixStream>>,
}

impl LaneChannel<'_> {
    /// Sends a call of the function `kind`.
    pub(super) async fn send(
        &self,
        kind: u8,
        fields: &[Option<&str>],
        body: &[u8],
    ) -> Result<(), ExchangeError> {
        let lane = self.lane;
        let (frame, in_memory) = wire::encode(kind, fields, body);
        if in_memory {
            lane.memory.write_all_at(body, 0).map_err(|_| ExchangeError::NotSent)?;
            lane.uses_memory.store(true, Relaxed);
        }
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match (&*lane.socket).write(rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                // Only an extremely large header does not fit into the socket at once. That alone is
                // no reason to watch for writability.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(FULL_SOCKET_WAIT).await;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // An incomplete call has no effect on the process.
                Err(_) => return Err(ExchangeError::NotSent),
            }
        }
        Ok(())
    }

    /// Waits for the reply. It may be cancelled, but then not be called again.
    pub(super) async fn receive(&self) -> Result<Frame, ExchangeError> {
        let mut bytes = vec![0; FIRST_READ];
        let mut received = 0;
        let prefix = loop {
            received += self.read(bytes.get_mut(received..).unwrap_or_default()).await?;
            let start = bytes.get(..received).unwrap_or_default();
            let Some(prefix) = FramePrefix::read(start).map_err(ExchangeError::Invalid)? else {
                continue;
            };
            let size = prefix.frame_size();
            if received > size {
                let error = Error::internal("data follows the reply");
                return Err(ExchangeError::Invalid(error));
            }
            bytes.resize(size, 0);
            while received < size {
                received += self.read(bytes.get_mut(received..).unwrap_or_default()).await?;
            }
            break prefix;
        };
        let body = prefix.body_in_memory().map(|size| self.read_memory(size)).transpose()?;
        if body.is_some() || self.lane.uses_memory.swap(false, Relaxed) {
            self.shrink_memory();
        }
        self.lane.replies.fetch_add(1, Relaxed);
        prefix.decode(bytes, body).map_err(ExchangeError::Invalid)
    }

    /// Reads a body of `size` bytes from the memory file.
    fn read_memory(&self, size: usize) -> Result<Vec<u8>, ExchangeError> {
        let memory = &self.lane.memory;
        // The size comes from the process, which may be wrong; the file's length does not.
        let length = memory.metadata().map_or(0, |metadata| metadata.len());
        let mut body = vec![0; size.min(usize::try_from(length).unwrap_or(0))];
        match memory.read_exact_at(&mut body, 0) {
            Ok(()) if body.len() == size => Ok(body),
            _ => Err(ExchangeError::Invalid(Error::internal("the reply is incomplete"))),
        }
    }

    fn shrink_memory(&self) {
        let memory = &self.lane.memory;
        if memory.metadata().is_ok_and(|metadata| metadata.len() > MAX_IDLE_MEMORY) {
            let _ = memory.set_len(0);
        }
    }

    /// Reads available bytes, at least one.
    async fn read(&self, into: &mut [u8]) -> Result<usize, ExchangeError> {
        loop {
            // A read before this would mostly find nothing.
            let mut ready = self.socket.readable().await.map_err(|_| ExchangeError::Closed)?;
            match (&*self.lane.socket).read(into) {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(count) => return Ok(count),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready_matching(Ready::READABLE);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ExchangeError::Closed),
            }
        }
    }
}
