//! Frames (RFC 9113, sections 4, 6 and 7).

/// What a client sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The length of the head of a frame.
pub const HEAD: usize = 9;

/// A part of a body.
pub const DATA: u8 = 0;
/// The head of a message, or its trailers.
pub const HEADERS: u8 = 1;
/// Ignored.
pub const PRIORITY: u8 = 2;
/// `RST_STREAM`: the end of a stream.
pub const RESET: u8 = 3;
/// Settings of a connection.
pub const SETTINGS: u8 = 4;
/// Not allowed to clients.
pub const PUSH_PROMISE: u8 = 5;
/// A frame that is sent back.
pub const PING: u8 = 6;
/// The end of a connection.
pub const GO_AWAY: u8 = 7;
/// So many bytes more may be sent.
pub const WINDOW_UPDATE: u8 = 8;
/// More of a head.
pub const CONTINUATION: u8 = 9;

/// Of SETTINGS and PING: they are responses.
pub const ACK: u8 = 1;
/// The last frame of a body.
pub const END_STREAM: u8 = 1;
/// The last frame of a head.
pub const END_HEADERS: u8 = 4;
/// The payload has padding.
pub const PADDED: u8 = 8;
/// A head begins with a priority.
pub const WITH_PRIORITY: u8 = 32;

/// Whether a server may push.
pub const ENABLE_PUSH: u16 = 2;
/// The most open streams.
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
/// The window of a new stream.
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// The largest frame.
pub const MAX_FRAME_SIZE: u16 = 5;
/// The largest head.
pub const MAX_HEADER_LIST_SIZE: u16 = 6;

/// The window of a connection, and of a stream unless a setting says otherwise.
pub const DEFAULT_WINDOW: u32 = 65_535;

/// The largest window.
pub const LARGEST_WINDOW: u32 = 0x7fff_ffff;

/// The largest frame, unless a setting says otherwise.
pub const DEFAULT_FRAME: u32 = 16_384;
/// The largest frame that a setting may allow.
pub const LARGEST_FRAME: u32 = 0xff_ffff;

/// Why a stream or a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    NoError = 0,
    Protocol = 1,
    Internal = 2,
    FlowControl = 3,
    StreamClosed = 5,
    FrameSize = 6,
    RefusedStream = 7,
    Compression = 9,
    EnhanceYourCalm = 11,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHead {
    /// Reads a head; `None` if it has not arrived.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, d, e, f, g] = bytes.first_chunk::<HEAD>()?;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let stream = u32::from_be_bytes([d, e, f, g]) & LARGEST_WINDOW;
        Some(FrameHead { length, kind, flags, stream })
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Writes the head of a frame with a payload of `length` bytes, at most [`LARGEST_FRAME`].
pub fn write_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let [.., a, b, c] = length.to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
}

/// Writes a small frame.
pub(crate) fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    write_head(out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
}

/// Writes a setting.
pub fn write_setting(payload: &mut Vec<u8>, setting: u16, value: u32) {
    payload.extend_from_slice(&setting.to_be_bytes());
    payload.extend_from_slice(&value.to_be_bytes());
}

/// The 32 bits at the start of a payload.
#[must_use]
pub fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_written_as_they_are_read() {
        let head =
            FrameHead { length: 0x01_0203, kind: DATA, flags: END_STREAM, stream: 0x7fff_fff1 };
        let mut bytes = Vec::new();
        write_head(&mut bytes, head.length, head.kind, head.flags, head.stream);
        assert_eq!(bytes, [1, 2, 3, 0, 1, 0x7f, 0xff, 0xff, 0xf1]);
        assert_eq!(FrameHead::read(&bytes), Some(head));
        assert_eq!(FrameHead::read(&bytes[..8]), None);
        // The first bit of a stream is reserved.
        let reserved = [0, 0, 0, 0, 0, 0x80, 0, 0, 1];
        assert_eq!(FrameHead::read(&reserved).map(|head| head.stream), Some(1));
    }
}
