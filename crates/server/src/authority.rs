//! Authorities of gRPC calls over a UNIX socket, made valid before the HTTP/2 library reads them.
//!
//! Clients make the path of the socket the authority of their calls, as it is or percent-encoded. The library
//! parses it as the authority of a URI, which has neither `/` nor `%`, and resets such calls; gRPC's C core
//! takes whatever it is. The server does not use authorities. So the bytes that no authority has are replaced
//! where they are: the lengths of a literal, in bytes and in characters, stay the same, and with them the state
//! of the header compression (RFC 7541). Header blocks are read field by field, so that no other field changes.

use super::frames::{CONTINUATION, FramePart, HEADERS};
use super::huffman::HuffmanFilter;

/// The name, where it is not the entry of the static table.
const NAME: &[u8] = b":authority";

/// Its index in the static table.
const STATIC_INDEX: u8 = 1;

const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
/// A stream that another one depends on, and a weight.
const PRIORITY_BYTES: usize = 5;

/// Follows the header blocks of a connection.
#[derive(Default)]
pub(super) struct AuthorityFilter {
    at: FieldPosition,
    /// Bytes of the frame before the padding; before the block itself, those are skipped.
    left: usize,
    skipped: usize,
    is_padded: bool,
    /// The field that is being read is the authority.
    is_authority: bool,
}

/// The place of the next byte in a header block.
#[derive(Default)]
enum FieldPosition {
    /// The first byte of a field.
    #[default]
    Field,
    /// The rest of an index, with what follows it.
    Index { is_literal: bool },
    /// The length of a string.
    Length { is_name: bool },
    /// The rest of that length.
    LongLength { is_name: bool, is_huffman: bool, length: usize, shift: u32 },
    /// A name, of which `left` bytes are not read yet.
    Name { left: usize, matched: Option<usize> },
    /// A value.
    Value { left: usize, huffman: Option<HuffmanFilter> },
}

impl AuthorityFilter {
    /// Replaces bytes in the next part of a frame, which is in `bytes`.
    pub(super) fn overwrite(&mut self, part: &FramePart, bytes: &mut [u8]) {
        let kind = part.frame.kind;
        if part.is_first && matches!(kind, HEADERS | CONTINUATION) {
            self.begin(part);
        }
        if !matches!(kind, HEADERS | CONTINUATION) {
            return;
        }
        for at in part.payload.clone() {
            let Some(&byte) = bytes.get(at) else { return };
            if self.is_padded {
                self.is_padded = false;
                self.left = self.left.saturating_sub(usize::from(byte) + 1);
            } else if self.left == 0 {
                return;
            } else {
                self.left -= 1;
                match self.skipped.checked_sub(1) {
                    Some(skipped) => self.skipped = skipped,
                    None => self.step(byte, bytes.get_mut(part.payload.start..=at)),
                }
            }
        }
    }

    fn begin(&mut self, part: &FramePart) {
        self.left = part.frame.length;
        (self.is_padded, self.skipped) = (false, 0);
        if part.frame.kind == HEADERS {
            self.at = FieldPosition::Field;
            self.is_padded = part.frame.flags & PADDED != 0;
            self.skipped = if part.frame.flags & PRIORITY != 0 { PRIORITY_BYTES } else { 0 };
        }
    }

    /// Takes a byte of a block, the last one of `seen`.
    fn step(&mut self, byte: u8, seen: Option<&mut [u8]>) {
        let at = std::mem::take(&mut self.at);
        self.at = match at {
            FieldPosition::Field => self.field(byte),
            FieldPosition::Index { .. } if byte >= 0x80 => at,
            FieldPosition::Index { is_literal: true } => FieldPosition::Length { is_name: false },
            FieldPosition::Index { is_literal: false } => FieldPosition::Field,
            FieldPosition::Length { is_name } => match (byte & 0x7f, byte >= 0x80) {
                (0x7f, is_huffman) => {
                    FieldPosition::LongLength { is_name, is_huffman, length: 0x7f, shift: 0 }
                }
                (length, is_huffman) => self.string(is_name, is_huffman, length.into()),
            },
            FieldPosition::LongLength { is_name, is_huffman, length, shift } => {
                let more = usize::from(byte & 0x7f).checked_shl(shift).unwrap_or(usize::MAX);
                let length = length.saturating_add(more);
                match byte {
                    0x80.. => {
                        let shift = shift.saturating_add(7);
                        FieldPosition::LongLength { is_name, is_huffman, length, shift }
                    }
                    _ => self.string(is_name, is_huffman, length),
                }
            }
            FieldPosition::Name { left, matched } => self.name(byte, left, matched),
            FieldPosition::Value { left, huffman } => {
                self.value(left, huffman, seen.unwrap_or_default())
            }
        };
    }

    /// The place behind the first byte of a field.
    fn field(&mut self, byte: u8) -> FieldPosition {
        let (mask, is_literal) = match byte {
            0x80.. => (0x7f, false),
            0x40.. => (0x3f, true),
            // The size of the table.
            0x20.. => (0x1f, false),
            _ => (0x0f, true),
        };
        let index = byte & mask;
        self.is_authority = is_literal && index == STATIC_INDEX;
        match index {
            _ if index == mask => FieldPosition::Index { is_literal },
            _ if !is_literal => FieldPosition::Field,
            0 => FieldPosition::Length { is_name: true },
            _ => FieldPosition::Length { is_name: false },
        }
    }

    /// The place before a string of this length.
    fn string(&mut self, is_name: bool, is_huffman: bool, length: usize) -> FieldPosition {
        match (is_name, length) {
            (true, 0) => FieldPosition::Length { is_name: false },
            (false, 0) => FieldPosition::Field,
            // Clients that compress this name take it from the static table.
            (true, left) => FieldPosition::Name { left, matched: (!is_huffman).then_some(0) },
            (false, left) => {
                FieldPosition::Value { left, huffman: is_huffman.then(HuffmanFilter::default) }
            }
        }
    }

    fn name(&mut self, byte: u8, left: usize, matched: Option<usize>) -> FieldPosition {
        let matched = matched.filter(|&at| NAME.get(at) == Some(&byte)).map(|at| at + 1);
        if left > 1 {
            return FieldPosition::Name { left: left - 1, matched };
        }
        self.is_authority = matched == Some(NAME.len());
        FieldPosition::Length { is_name: false }
    }

    fn value(
        &self,
        left: usize,
        mut huffman: Option<HuffmanFilter>,
        seen: &mut [u8],
    ) -> FieldPosition {
        if self.is_authority {
            match (&mut huffman, seen) {
                (Some(huffman), seen) => huffman.overwrite_last(seen),
                (None, [.., last]) if !is_unreserved(*last) => *last = b'-',
                (None, _) => {}
            }
        }
        if left > 1 {
            FieldPosition::Value { left: left - 1, huffman }
        } else {
            FieldPosition::Field
        }
    }
}

/// Whether every part of a URI may have this byte, and a colon for the port.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{DATA, FrameSplitter, PREFACE, SETTINGS};

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        [&head[..], payload].concat()
    }

    /// A connection with this header block in several kinds of frames, and in one of data.
    fn connection(block: &[u8], data: &[u8]) -> Vec<u8> {
        let (first, second) = block.split_at(block.len() / 2);
        let padded = [&[3][..], block, b"%/%"].concat();
        let with_priority = [&[2, 1, 2, 3, 4, 5][..], block, b"//"].concat();
        let frames = [
            vec![b'P'; PREFACE],
            frame(SETTINGS, 0, b""),
            frame(HEADERS, 4, block),
            frame(DATA, 0, data),
            frame(HEADERS, 4 | PADDED, &padded),
            frame(HEADERS, 4 | PADDED | PRIORITY, &with_priority),
            frame(HEADERS, 0, first),
            frame(CONTINUATION, 4, second),
        ];
        frames.concat()
    }

    fn filtered(bytes: &[u8], cut: usize) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let (mut frames, mut filter) = (FrameSplitter::of_client(), AuthorityFilter::default());
        let (first, second) = bytes.split_at_mut(cut);
        for piece in [first, second] {
            let mut at = 0;
            while let Some(part) = frames.next(piece, &mut at) {
                filter.overwrite(&part, piece);
            }
        }
        bytes
    }

    /// Fields before and after the authority, which hold its bytes: `:path` with an index of two bytes, a
    /// value of 130 bytes, the size of the table, and an entry of the table.
    fn block(field: &[u8]) -> Vec<u8> {
        let long = [&b"\x00\x05x-any\x7f\x03"[..], &[b'/'; 130]].concat();
        let rest = b"\x0f\x40\x0c:authority/%\x3f\xe1\x1f\xff\x01\x83";
        [&b"\x83\x44\x05/a/b%"[..], &long, field, rest, field, &long].concat()
    }

    #[test]
    fn authorities_are_replaced_and_nothing_else() {
        let kinds: [(&[u8], &[u8]); 6] = [
            (b"@\x0a:authority\x0b/tmp/x.sock", b"@\x0a:authority\x0b-tmp-x.sock"),
            (b"\x41\x0dtmp%2Fx.sock:1", b"\x41\x0dtmp-2Fx.sock:1"),
            (b"\x01\x0clocalhost:80", b"\x01\x0clocalhost:80"),
            (b"\x11\x04\xc3\xa9 ?", b"\x11\x04----"),
            (
                b"\x41\x88\x61\x34\xd6\xc7\x95\xd0\x72\x75",
                b"\x41\x88\x59\x34\xd6\xb7\x95\xd0\x72\x75",
            ),
            (b"\x10\x0b:authoritee\x02//", b"\x10\x0b:authoritee\x02//"),
        ];
        for (field, expected) in kinds {
            let sent = connection(&block(field), &block(field));
            let expected = connection(&block(expected), &block(field));
            for cut in 0..sent.len() {
                let got = filtered(&sent, cut);
                // A compressed character that is cut keeps its first half.
                let is_cut = |at: usize| field[1] == 0x88 && at.abs_diff(cut) <= 1;
                let differs = |at: usize| got[at] != expected[at] && !is_cut(at);
                assert!(!(0..got.len()).any(differs), "{field:?} cut at {cut}");
            }
            assert_eq!(filtered(&sent, 0), expected);
        }
    }

    #[test]
    fn lengths_that_lie_are_followed_no_further_than_the_frame() {
        for block in [
            &b"\x41\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"[..],
            b"\x41\x85",
            b"\x00\x0a:auth",
            b"\x7f\xff",
            b"",
        ] {
            let good = frame(HEADERS, 4, b"\x41\x02//");
            let sent = [&vec![b'P'; PREFACE][..], &frame(HEADERS, 4, block), &good].concat();
            assert!(filtered(&sent, 0).ends_with(b"\x41\x02--"), "{block:?}");
        }
        // A padding that is longer than the frame.
        let sent = [&vec![b'P'; PREFACE][..], &frame(HEADERS, PADDED, b"\xff\x41\x02//")].concat();
        assert_eq!(filtered(&sent, 0), sent);
    }
}
