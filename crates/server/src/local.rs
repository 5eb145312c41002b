//! gRPC connections over a UNIX socket.
//!
//! gRPC's C core (under Python, C++, Ruby and others) makes the socket's path the authority of its
//! calls, percent-encoded: `tmp%2Fgrpc.sock`. The HTTP/2 library does not allow `%` in an authority
//! and refuses such calls. The server does not use authorities, so the `%` is replaced in HEADERS
//! frames before the library parses them; the length stays the same, and so does the state of the
//! header compression. The frames are parsed, so that payloads are never changed.

use std::io;
use std::task::{Context, Poll};

use tokio::net::UnixStream;
use tonic::transport::server::Connected;

use super::observed::{ObservedStream, ReadObserver};

/// A client's first bytes on every HTTP/2 connection, before the first frame.
const PREFACE: usize = 24;

/// The head of a frame: three bytes of length, then its type.
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;

/// The parser's state in a client's stream of frames.
pub(super) struct FrameParser {
    /// Bytes of the preface, or of a frame, still to come.
    left: usize,
    in_headers: bool,
    head: [u8; FRAME_HEAD],
    filled: usize,
}

impl FrameParser {
    pub(super) fn new() -> Self {
        FrameParser { left: PREFACE, in_headers: false, head: [0; FRAME_HEAD], filled: 0 }
    }

    /// Parses the frames in `bytes`, and replaces `%` in the authorities of HEADERS frames.
    fn mend(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let (part, rest) = bytes.split_at_mut(self.left.min(bytes.len()));
                if self.in_headers {
                    mend_authority(part);
                }
                self.left -= part.len();
                bytes = rest;
                continue;
            }
            let (part, rest) = bytes.split_at_mut((FRAME_HEAD - self.filled).min(bytes.len()));
            if let Some(room) = self.head.get_mut(self.filled..self.filled + part.len()) {
                room.copy_from_slice(part);
            }
            self.filled += part.len();
            bytes = rest;
            if self.filled == FRAME_HEAD {
                let [a, b, c, kind, ..] = self.head;
                self.left = u32::from_be_bytes([0, a, b, c]) as usize;
                self.in_headers = kind == HEADERS;
                self.filled = 0;
            }
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
pub(super) type LocalConnection = ObservedStream<UnixStream, FrameParser>;

impl Connected for LocalConnection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl ReadObserver for FrameParser {
    fn after_read(
        &mut self,
        read: Poll<io::Result<()>>,
        new: &mut [u8],
        _: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.mend(new);
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let head = [length[1], length[2], length[3], kind, 0, 0, 0, 0, 1];
        [&head[..], payload].concat()
    }

    /// A connection with an authority in a HEADERS frame and the same bytes in a DATA frame.
    fn connection(authority: &[u8]) -> (Vec<u8>, usize, usize) {
        let length = [u8::try_from(authority.len()).expect("short")];
        let block = [b"@\x0a:authority", &length[..], authority, b"\x83"].concat();
        let bytes = [vec![b'P'; PREFACE], frame(4, b""), frame(HEADERS, &block), frame(0, &block)];
        let at = PREFACE + 2 * FRAME_HEAD + 13;
        (bytes.concat(), at, at + block.len() + FRAME_HEAD)
    }

    #[test]
    fn heads_are_mended_and_nothing_else() {
        let authority = b"tmp%2Fgrpc%2Fa.sock";
        let (bytes, head, body) = connection(authority);
        // The bytes arrive in two parts, the authority in the second.
        for first in 0..head - 12 {
            let mut mended = bytes.clone();
            let mut frames = FrameParser::new();
            let (a, b) = mended.split_at_mut(first);
            frames.mend(a);
            frames.mend(b);
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
