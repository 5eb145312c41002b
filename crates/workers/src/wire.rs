//! The frames between the server and a worker process; `python/worker.py` is the other side.
//!
//! A frame is a prefix of 16 bytes (its kind, the location of its body, the number of fields, the
//! size of the header, the size of the body), a header (the length of each field, -1 for `None`,
//! then the fields, which are text) and a body. A large body is not in the frame but in an anonymous
//! file in memory, which both sides have open.

use bytes::Bytes;

use tensorserve_tensor::error::{Error, Result};

/// Size of a frame's prefix in bytes.
pub(super) const PREFIX: usize = 16;

/// The largest body inside a frame, in bytes. Larger ones go through the memory file: copying them
/// twice costs less than sending them through the socket in pieces, with a context switch for each.
pub(super) const MAX_BODY_IN_FRAME: usize = 64 << 10;

/// The largest header of a reply, in bytes: beyond anything that a handler returns.
const MAX_HEADER: usize = 16 << 20;

/// The largest body of a reply, in bytes.
const MAX_BODY: u64 = 4 << 30;

/// The locations of a body.
const IN_FRAME: u8 = 0;
const IN_MEMORY: u8 = 1;

/// The kind of a reply that is an exception, as in `python/worker.py`.
pub(super) const RAISED: u8 = 4;

/// A frame in either direction.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WireFrame {
    /// The number of the function to call, or the kind of the reply.
    pub(super) kind: u8,
    pub(super) fields: Vec<Option<String>>,
    pub(super) body: Bytes,
}

/// The bytes of a frame, and whether the caller must write the body to the memory file. `parts` are
/// the body, one after the other.
pub(super) fn encode(kind: u8, fields: &[Option<&str>], parts: &[&[u8]]) -> (Vec<u8>, bool) {
    let size: usize = parts.iter().map(|part| part.len()).sum();
    let in_memory = size > MAX_BODY_IN_FRAME;
    let text: usize = fields.iter().flatten().map(|field| field.len()).sum();
    let header = fields.len() * 4 + text;
    let in_frame = if in_memory { &[][..] } else { parts };
    let mut frame = Vec::with_capacity(PREFIX + header + if in_memory { 0 } else { size });
    // The conversions succeed: fields come from HTTP headers or describe tensors, and are bounded.
    let count = u16::try_from(fields.len()).unwrap_or(u16::MAX);
    frame.extend_from_slice(&[kind, if in_memory { IN_MEMORY } else { IN_FRAME }]);
    frame.extend_from_slice(&count.to_le_bytes());
    frame.extend_from_slice(&u32::try_from(header).unwrap_or(u32::MAX).to_le_bytes());
    frame.extend_from_slice(&(size as u64).to_le_bytes());
    for field in fields {
        let length = field.map_or(-1, |field| i32::try_from(field.len()).unwrap_or(i32::MAX));
        frame.extend_from_slice(&length.to_le_bytes());
    }
    for field in fields.iter().flatten() {
        frame.extend_from_slice(field.as_bytes());
    }
    in_frame.iter().for_each(|part| frame.extend_from_slice(part));
    (frame, in_memory)
}

/// The validated prefix of a frame.
#[derive(Debug)]
pub(super) struct FramePrefix {
    kind: u8,
    in_memory: bool,
    count: usize,
    header: usize,
    body: usize,
}

impl FramePrefix {
    /// Reads the prefix of a frame; `None` if `bytes` is shorter.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(&[kind, location, c0, c1, h0, h1, h2, h3, ref body @ ..]) =
            bytes.first_chunk::<PREFIX>()
        else {
            return Ok(None);
        };
        let count = usize::from(u16::from_le_bytes([c0, c1]));
        let header = u32::from_le_bytes([h0, h1, h2, h3]) as usize;
        let body = u64::from_le_bytes(*body);
        let in_memory = location == IN_MEMORY;
        let max_body = if in_memory { MAX_BODY } else { MAX_BODY_IN_FRAME as u64 };
        let is_valid = location <= IN_MEMORY
            && header <= MAX_HEADER
            && count * 4 <= header
            && body <= max_body;
        let body = usize::try_from(body).ok().filter(|_| is_valid).ok_or_else(invalid_frame)?;
        Ok(Some(FramePrefix { kind, in_memory, count, header, body }))
    }

    /// The size of the whole frame in bytes.
    pub(super) fn frame_size(&self) -> usize {
        PREFIX + self.header + if self.in_memory { 0 } else { self.body }
    }

    /// The size of the body in bytes, if it is in the memory file.
    pub(super) fn body_in_memory(&self) -> Option<usize> {
        self.in_memory.then_some(self.body)
    }

    /// Decodes the frame in `bytes`; `body` is the body if it is in the memory file.
    pub(super) fn decode(&self, bytes: Vec<u8>, body: Option<Vec<u8>>) -> Result<WireFrame> {
        let (mut lengths, mut text) = bytes
            .get(PREFIX..PREFIX + self.header)
            .and_then(|header| header.split_at_checked(self.count * 4))
            .ok_or_else(invalid_frame)?;
        let mut fields = Vec::with_capacity(self.count);
        while let Some((length, rest)) = lengths.split_first_chunk::<4>() {
            lengths = rest;
            let Ok(length) = usize::try_from(i32::from_le_bytes(*length)) else {
                fields.push(None);
                continue;
            };
            let (field, rest) = text.split_at_checked(length).ok_or_else(invalid_frame)?;
            text = rest;
            fields.push(Some(String::from_utf8_lossy(field).into_owned()));
        }
        let body = match body {
            Some(body) => body.into(),
            None if bytes.len() == self.frame_size() => {
                Bytes::from(bytes).slice(PREFIX + self.header..)
            }
            None => return Err(invalid_frame()),
        };
        Ok(WireFrame { kind: self.kind, fields, body })
    }
}

fn invalid_frame() -> Error {
    Error::internal("a Python process sent an invalid reply: did something write to its socket?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The frame that the other side reads.
    fn decode(bytes: &[u8], memory: Option<&[u8]>) -> Result<Option<WireFrame>> {
        let Some(prefix) = FramePrefix::read(bytes)? else {
            return Ok(None);
        };
        prefix.decode(bytes.to_vec(), memory.map(<[u8]>::to_vec)).map(Some)
    }

    #[test]
    fn large_bodies_stay_out_of_the_frame() {
        let body = vec![7; MAX_BODY_IN_FRAME + 1];
        let (frame, in_memory) = encode(2, &[Some("a"), None], &[&body[..9], &body[9..]]);
        assert!(in_memory && frame.len() == PREFIX + 9);
        let prefix = FramePrefix::read(&frame).expect("valid").expect("whole");
        assert_eq!(prefix.frame_size(), frame.len());
        assert_eq!(prefix.body_in_memory(), Some(body.len()));
        let read = decode(&frame, Some(&body)).expect("valid").expect("whole");
        assert_eq!(read.fields, [Some("a".to_owned()), None]);
        assert_eq!(read.body, body);
    }

    proptest! {
        #[test]
        fn frames_are_read_as_they_were_written(
            kind: u8,
            fields in prop::collection::vec(prop::option::of(".{0,20}"), 0..20),
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let borrowed: Vec<Option<&str>> = fields.iter().map(Option::as_deref).collect();
            let (frame, in_memory) = encode(kind, &borrowed, &[&body]);
            prop_assert!(!in_memory);
            let body = Bytes::from(body);
            let read = decode(&frame, None).expect("valid");
            prop_assert_eq!(read, Some(WireFrame { kind, fields, body }));
        }

        #[test]
        fn nonsense_is_refused_or_read_within_bounds(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            small: bool,
        ) {
            // Mostly zeros in the sizes, so that some pass the first check.
            if small && bytes.len() >= PREFIX {
                for at in [1, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15] {
                    bytes[at] = 0;
                }
            }
            let _ = decode(&bytes, None);
        }
    }
}
