//! gRPC connections over a UNIX socket.
//!
//! gRPC's C core (under Python, C++, Ruby and others) makes the socket's path the authority of its
//! calls, percent-encoded: `tmp%2Fgrpc.sock`. The HTTP/2 library does not allow `%` in an authority
//! and refuses such calls. The server does not use authorities, so the `%` is replaced in HEADERS
//! frames before the library parses them; the length stays the same, and so does the state of the
//! header compression. The frames are parsed, so that payloads are never changed.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use tokio::net::UnixStream;

use super::flow::FlowWindows;
use super::frames::{FrameSplitter, HEADERS};
use super::incoming::{ClientAddress, KnownClient};
use super::observed::{ObservedStream, StreamObserver};
use super::timed_writes::TimedWrites;

/// Replaces `%` in the authorities of HEADERS frames, and closes a connection whose client blocks
/// responses.
pub(super) struct LocalGuard {
    frames: FrameSplitter,
    windows: FlowWindows,
}

impl LocalGuard {
    pub(super) fn new(windows: FlowWindows) -> Self {
        LocalGuard { frames: FrameSplitter::of_client(), windows }
    }
}

/// Replaces `%` in the authorities of the HEADERS frames in `bytes`.
fn mend(frames: &mut FrameSplitter, bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(part) = frames.next(bytes, &mut at) {
        if part.frame.kind == HEADERS {
            mend_authority(bytes.get_mut(part.payload).unwrap_or_default());
        }
    }
}

/// Replaces `%` in the value after the literal name `:authority` of a header block. The C core
/// sends both uncompressed in its first call; later calls refer to them.
fn mend_authority(block: &mut [u8]) {
    const NAME: &[u8] = b":authority";
    /// A length below this is one byte, without the bit for compression; otherwise the rest of it
    /// follows.
    const LONG: u8 = 0x7f;
    let Some(at) = memchr::memmem::find(block, NAME) else {
        return;
    };
    let Some([length, value @ ..]) = block.get_mut(at + NAME.len()..) else {
        return;
    };
    let value = match (*length, value) {
        (length @ ..LONG, value) => value.get_mut(..usize::from(length)),
        (LONG, [more @ ..0x80, value @ ..]) => {
            let length = usize::from(LONG) + usize::from(*more);
            value.get_mut(..length)
        }
        _ => None,
    };
    for byte in value.into_iter().flatten().filter(|byte| **byte == b'%') {
        *byte = b'-';
    }
}

/// A connection with this replacement.
pub(super) type LocalConnection = ObservedStream<TimedWrites<UnixStream>, LocalGuard>;

impl KnownClient for LocalGuard {
    fn client(&self) -> ClientAddress {
        ClientAddress(None)
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
        mend(&mut self.frames, new);
        if read.is_pending() && self.windows.are_blocked(context) {
            // As if the client had closed it.
            return Poll::Ready(Ok(()));
        }
        read
    }

    fn after_write(&mut self, slices: &[IoSlice<'_>], count: usize) {
        self.windows.sent(slices, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{DATA, PREFACE, SETTINGS};

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let head = [length[1], length[2], length[3], kind, 0, 0, 0, 0, 1];
        [&head[..], payload].concat()
    }

    /// A connection with an authority in a HEADERS frame and the same bytes in a DATA frame.
    fn connection(authority: &[u8]) -> (Vec<u8>, usize, usize) {
        let length = [u8::try_from(authority.len()).expect("short")];
        let block = [b"@\x0a:authority", &length[..], authority, b"\x83"].concat();
        let bytes = [
            vec![b'P'; PREFACE],
            frame(SETTINGS, b""),
            frame(HEADERS, &block),
            frame(DATA, &block),
        ];
        let at = PREFACE + 2 * 9 + 13;
        (bytes.concat(), at, at + block.len() + 9)
    }

    #[test]
    fn heads_are_mended_and_nothing_else() {
        let authority = b"tmp%2Fgrpc%2Fa.sock";
        let (bytes, head, body) = connection(authority);
        // The bytes arrive in two parts, the authority in the second.
        for first in 0..head - 12 {
            let mut mended = bytes.clone();
            let mut frames = FrameSplitter::of_client();
            let (a, b) = mended.split_at_mut(first);
            mend(&mut frames, a);
            mend(&mut frames, b);
            let end = head + authority.len();
            assert_eq!(mended.get(head..end), Some(&b"tmp-2Fgrpc-2Fa.sock"[..]), "{first}");
            assert_eq!(mended.get(body..body + authority.len()), Some(&authority[..]));
            assert_eq!(
                (mended.get(..head), mended.get(end..)),
                (bytes.get(..head), bytes.get(end..))
            );
        }
    }

    #[test]
    fn lengths_that_lie_change_nothing() {
        for block in
            [&b":authority"[..], b":authority\x20%", b":authority\x7f", b":authority\x85%%%%%"]
        {
            let mut mended = block.to_vec();
            mend_authority(&mut mended);
            assert_eq!(mended, block);
        }
        let mut long = [&b":authority\x7f\x05"[..], &[b'%'; 140]].concat();
        mend_authority(&mut long);
        assert_eq!(long.iter().filter(|byte| **byte == b'-').count(), 132);
    }
}
