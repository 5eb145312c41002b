//! gRPC connections over a UNIX socket, where the authority of a call may be a path.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use tokio::net::UnixStream;

use super::authority::AuthorityFilter;
use super::flow::FlowWindows;
use super::frames::FrameSplitter;
use super::incoming::{ConnectedClient, KnownClient};
use super::observed::{ObservedStream, StreamObserver};
use super::timed_writes::TimedWrites;

/// Replaces what no authority has in those of calls, and closes a connection whose client blocks
/// responses.
pub(super) struct LocalGuard {
    frames: FrameSplitter,
    authorities: AuthorityFilter,
    windows: FlowWindows,
}

impl LocalGuard {
    pub(super) fn new(windows: FlowWindows) -> Self {
        let authorities = AuthorityFilter::default();
        LocalGuard { frames: FrameSplitter::of_client(), authorities, windows }
    }
}

/// A connection with this replacement.
pub(super) type LocalConnection = ObservedStream<TimedWrites<UnixStream>, LocalGuard>;

impl KnownClient for LocalGuard {
    fn client(&self) -> ConnectedClient {
        ConnectedClient { address: None, refused: self.windows.refused_calls() }
    }
}

impl StreamObserver for LocalGuard {
    fn after_read(
        &mut self,
        read: Poll<io::Result<()>>,
        new: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.windows.received(new);
        self.windows.check()?;
        let mut at = 0;
        while let Some(part) = self.frames.next(new, &mut at) {
            self.authorities.overwrite(&part, new);
        }
        if read.is_pending() && self.windows.are_blocked(context) {
            // As if the client had closed it.
            return Poll::Ready(Ok(()));
        }
        read
    }

    fn after_write(&mut self, slices: &[IoSlice<'_>], count: usize) {
        self.windows.sent(slices, count);
    }

    fn own_bytes(&mut self) -> &[u8] {
        self.windows.own_bytes()
    }

    fn wrote_own(&mut self, count: usize) {
        self.windows.wrote_own(count);
    }
}
