//! Splits the bytes of an HTTP/2 connection into frames.

use std::ops::Range;

/// A client's first bytes on every HTTP/2 connection, before the first frame.
pub(super) const PREFACE: usize = 24;

/// The head of a frame: three bytes of length, its type, its flags, four bytes of stream.
const FRAME_HEAD: usize = 9;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RESET: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

/// The flag of the last frame of a stream.
pub(super) const END_STREAM: u8 = 1;

/// The flag of the last frame with fields of a head.
const END_HEADERS: u8 = 4;

/// The head of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// The length of the payload in bytes.
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// 0 for the connection itself.
    pub(super) stream: u32,
}

/// A part of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FramePart {
    pub(super) frame: FrameHead,
    /// The frame starts here.
    pub(super) is_first: bool,
    /// The place of its payload in the bytes that were split.
    pub(super) payload: Range<usize>,
}

/// One direction of a connection.
pub(super) struct FrameSplitter {
    /// Bytes of the preface, or of a frame's payload, still to come.
    left: usize,
    /// The head of the next frame, as far as it has arrived.
    head: [u8; FRAME_HEAD],
    filled: usize,
    frame: Option<FrameHead>,
}

impl FrameSplitter {
    /// What a client sends.
    pub(super) fn of_client() -> Self {
        FrameSplitter { left: PREFACE, head: [0; FRAME_HEAD], filled: 0, frame: None }
    }

    /// What a server sends.
    pub(super) fn of_server() -> Self {
        FrameSplitter { left: 0, ..FrameSplitter::of_client() }
    }

    /// Whether another frame may be put here. The frames of one head belong together.
    pub(super) fn is_between_frames(&self) -> bool {
        let is_within_head = |frame: FrameHead| {
            matches!(frame.kind, HEADERS | CONTINUATION) && frame.flags & END_HEADERS == 0
        };
        self.left == 0 && self.filled == 0 && self.frame.is_some_and(|frame| !is_within_head(frame))
    }

    /// The first part of a frame in `bytes` from `at` on, which moves behind it; `None` at the end.
    pub(super) fn next(&mut self, bytes: &[u8], at: &mut usize) -> Option<FramePart> {
        loop {
            let rest = bytes.get(*at..).filter(|rest| !rest.is_empty())?;
            if self.left > 0 {
                let length = self.left.min(rest.len());
                let payload = *at..*at + length;
                (self.left, *at) = (self.left - length, payload.end);
                let Some(frame) = self.frame else {
                    continue; // The preface.
                };
                return Some(FramePart { frame, is_first: false, payload });
            }
            let length = (FRAME_HEAD - self.filled).min(rest.len());
            let (new, _) = rest.split_at(length);
            self.head.get_mut(self.filled..self.filled + length)?.copy_from_slice(new);
            self.filled += length;
            *at += length;
            if self.filled < FRAME_HEAD {
                continue;
            }
            self.filled = 0;
            let [a, b, c, kind, flags, stream @ ..] = self.head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
            let frame = FrameHead { length, kind, flags, stream };
            (self.left, self.frame) = (length, Some(frame));
            return Some(FramePart { frame, is_first: true, payload: *at..*at });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_wherever_the_bytes_are_cut() {
        let mut bytes = vec![b'P'; PREFACE];
        bytes.extend_from_slice(b"\x00\x00\x03\x00\x01\x00\x00\x00\x05abc");
        bytes.extend_from_slice(b"\x00\x00\x00\x04\x00\x80\x00\x00\x00");
        bytes.extend_from_slice(b"\x00\x00\x02\x01\x04\x00\x00\x00\x07de");
        for cut in 0..bytes.len() {
            let mut splitter = FrameSplitter::of_client();
            let mut found: Vec<(FrameHead, Vec<u8>)> = Vec::new();
            let (first, second) = bytes.split_at(cut);
            for piece in [first, second] {
                let mut at = 0;
                while let Some(part) = splitter.next(piece, &mut at) {
                    if part.is_first {
                        found.push((part.frame, Vec::new()));
                    }
                    found.last_mut().unwrap().1.extend_from_slice(&piece[part.payload]);
                }
            }
            let head = |length, kind, flags, stream| FrameHead { length, kind, flags, stream };
            let expected = [
                (head(3, DATA, END_STREAM, 5), b"abc".to_vec()),
                (head(0, SETTINGS, 0, 0), Vec::new()),
                (head(2, HEADERS, 4, 7), b"de".to_vec()),
            ];
            assert_eq!(found, expected, "cut at {cut}");
        }
    }
}
