//! Frames between the server and a worker process; `python/worker.py` is the other side.
//!
//! A frame is a prefix of 16 bytes (kind, where its body is, number of fields, size of the head,
//! size of the body), a head (the fields' lengths, -1 for none, then the fields, which are text)
//! and a body. A large body is not in the frame but in a file in memory that both sides have.

use bytes::Bytes;

use tensorserve_tensor::error::{Error, Result};

pub(super) const PREFIX: usize = 16;

/// Larger bodies go through the file in memory: copying them twice costs less than handing them
/// through the socket in pieces, with a change of process for each.
pub(super) const LARGEST_IN_FRAME: usize = 64 << 10;

/// More than any honest head.
const LARGEST_HEAD: usize = 16 << 20;

/// More than any honest answer.
const LARGEST_BODY: u64 = 4 << 30;

const IN_FRAME: u8 = 0;
const IN_MEMORY: u8 = 1;

/// A frame in either direction.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) fields: Vec<Option<String>>,
    pub(super) body: Bytes,
}

/// The bytes of a frame with this body, and whether the body belongs in the file in memory.
pub(super) fn encode(kind: u8, fields: &[Option<&str>], body: &[u8]) -> (Vec<u8>, bool) {
    let in_memory = body.len() > LARGEST_IN_FRAME;
    let text: usize = fields.iter().flatten().map(|field| field.len()).sum();
    let head = fields.len() * 4 + text;
    let inside = if in_memory { &[][..] } else { body };
    let mut frame = Vec::with_capacity(PREFIX + head + inside.len());
    // Fields come from headers, whose size is bounded.
    let count = u16::try_from(fields.len()).unwrap_or(u16::MAX);
    frame.extend_from_slice(&[kind, if in_memory { IN_MEMORY } else { IN_FRAME }]);
    frame.extend_from_slice(&count.to_le_bytes());
    frame.extend_from_slice(&u32::try_from(head).unwrap_or(u32::MAX).to_le_bytes());
    frame.extend_from_slice(&(body.len() as u64).to_le_bytes());
    for field in fields {
        let length = field.map_or(-1, |field| i32::try_from(field.len()).unwrap_or(i32::MAX));
        frame.extend_from_slice(&length.to_le_bytes());
    }
    for field in fields.iter().flatten() {
        frame.extend_from_slice(field.as_bytes());
    }
    frame.extend_from_slice(inside);
    (frame, in_memory)
}

/// The start of a frame, checked.
#[derive(Debug)]
pub(super) struct Prefix {
    kind: u8,
    in_memory: bool,
    count: usize,
    head: usize,
    body: usize,
}

impl Prefix {
    /// Reads the start of a frame; `None` if not all of it is there.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(&[kind, place, c0, c1, h0, h1, h2, h3, ref body @ ..]) =
            bytes.first_chunk::<PREFIX>()
        else {
            return Ok(None);
        };
        let count = usize::from(u16::from_le_bytes([c0, c1]));
        let head = u32::from_le_bytes([h0, h1, h2, h3]) as usize;
        let body = u64::from_le_bytes(*body);
        let in_memory = place == IN_MEMORY;
        let is_sane = place <= IN_MEMORY
            && head <= LARGEST_HEAD
            && count * 4 <= head
            && body <= if in_memory { LARGEST_BODY } else { LARGEST_IN_FRAME as u64 };
        let body = usize::try_from(body).ok().filter(|_| is_sane).ok_or_else(broken)?;
        Ok(Some(Prefix { kind, in_memory, count, head, body }))
    }

    /// The size of the whole frame in bytes.
    pub(super) fn frame(&self) -> usize {
        PREFIX + self.head + if self.in_memory { 0 } else { self.body }
    }

    /// The size of the body, if that is in the file in memory.
    pub(super) fn in_memory(&self) -> Option<usize> {
        self.in_memory.then_some(self.body)
    }

    /// The frame in `bytes`, which are all of it; `body` is what the file in memory holds.
    pub(super) fn finish(&self, bytes: Vec<u8>, body: Option<Vec<u8>>) -> Result<Frame> {
        let (mut lengths, mut text) = bytes
            .get(PREFIX..PREFIX + self.head)
            .and_then(|head| head.split_at_checked(self.count * 4))
            .ok_or_else(broken)?;
        let mut fields = Vec::with_capacity(self.count);
        while let Some((length, rest)) = lengths.split_first_chunk::<4>() {
            lengths = rest;
            let Ok(length) = usize::try_from(i32::from_le_bytes(*length)) else {
                fields.push(None);
                continue;
            };
            let (field, rest) = text.split_at_checked(length).ok_or_else(broken)?;
            text = rest;
            fields.push(Some(String::from_utf8_lossy(field).into_owned()));
        }
        let body = match body {
            Some(body) => body.into(),
            None if bytes.len() == self.frame() => Bytes::from(bytes).slice(PREFIX + self.head..),
            None => return Err(broken()),
        };
        Ok(Frame { kind: self.kind, fields, body })
    }
}

fn broken() -> Error {
    Error::internal("a Python process sent what is no answer: did something write to its socket?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the other side would read.
    fn decode(bytes: &[u8], memory: Option<&[u8]>) -> Result<Option<Frame>> {
        let Some(prefix) = Prefix::read(bytes)? else {
            return Ok(None);
        };
        prefix.finish(bytes.to_vec(), memory.map(<[u8]>::to_vec)).map(Some)
    }

    #[test]
    fn large_bodies_stay_out_of_the_frame() {
        let body = vec![7; LARGEST_IN_FRAME + 1];
        let (frame, in_memory) = encode(2, &[Some("a"), None], &body);
        assert!(in_memory && frame.len() == PREFIX + 9);
        let prefix = Prefix::read(&frame).expect("sane").expect("whole");
        assert_eq!((prefix.frame(), prefix.in_memory()), (frame.len(), Some(body.len())));
        let read = decode(&frame, Some(&body)).expect("sane").expect("whole");
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
            let (frame, in_memory) = encode(kind, &borrowed, &body);
            prop_assert!(!in_memory);
            let body = Bytes::from(body);
            prop_assert_eq!(decode(&frame, None).expect("sane"), Some(Frame { kind, fields, body }));
        }

        #[test]
        fn nonsense_is_refused_or_read_within_bounds(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            small: bool,
        ) {
            // Mostly zeros in the sizes, so that some get past the first check.
            if small && bytes.len() >= PREFIX {
                for at in [1, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15] {
                    bytes[at] = 0;
                }
            }
            let _ = decode(&bytes, None);
        }
    }
}
