//! RecordIO, the format of MXNet and SageMaker: a magic number, a length with flags, and the content,
//! padded to 4 bytes.
//!
//! A writer splits a record where its content has the magic number at a multiple of 4, and leaves
//! that number out, so a reader that joins the parts puts it back.
//!
//! Source: `include/dmlc/recordio.h` and `src/recordio.cc` of github.com/dmlc/dmlc-core.

use std::io::Read;

use tensorserve_tensor::error::{Code, Error, Result};

use super::input::Input;
use super::limit::Limit;

const MAGIC: [u8; 4] = 0xced7_230a_u32.to_le_bytes();

/// Size of the magic number and the length in bytes.
const HEADER: usize = 8;

/// Bits of the length; the three above are flags.
const LENGTH_BITS: u32 = 29;

/// Contents are padded to a multiple of this.
const ALIGNMENT: usize = 4;

/// A record in the buffer.
pub(super) struct Record {
    /// Its content: in the buffer, or in `joined` if it has several parts.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) is_joined: bool,
    pub(super) framed_end: usize,
}

struct Part {
    flag: u32,
    start: usize,
    end: usize,
    framed_end: usize,
}

/// Finds the record that starts at `start`, which is record `number`; `None` at the end of the
/// object. The content of a record of several parts is appended to `joined`.
pub(super) fn record<R: Read>(
    input: &mut Input<R>,
    start: usize,
    number: u64,
    limit: Limit,
    joined: &mut Vec<u8>,
) -> Result<Option<Record>> {
    let damaged = |input: &Input<R>, reason: &str| {
        let at = input.offset_of(start);
        Error::new(Code::DataLoss, format!("RecordIO record {number} (byte {at}) {reason}"))
    };
    let joined_start = joined.len();
    let mut at = start;
    loop {
        let too_long = || limit.bytes.saturating_sub(joined.len() - joined_start);
        let part = match part(input, at, too_long())? {
            FoundPart::Part(part) => part,
            FoundPart::End if at == start => return Ok(None),
            FoundPart::End => return Err(damaged(input, "is truncated: its last part is missing")),
            FoundPart::Truncated => return Err(damaged(input, "is truncated")),
            FoundPart::TooLong => return Err(limit.record_error(number, input.offset_of(start))),
            FoundPart::NoMagic => {
                return Err(damaged(
                    input,
                    "does not begin with the magic number 0xced7230a; is this a RecordIO file?",
                ));
            }
        };
        match (part.flag, at == start) {
            (0, true) => {
                let Part { start, end, framed_end, .. } = part;
                return Ok(Some(Record { start, end, is_joined: false, framed_end }));
            }
            (1, true) | (2 | 3, false) => {}
            (flag, _) => {
                let reason = format!("is corrupt: a part with flag {flag} is out of place");
                return Err(damaged(input, &reason));
            }
        }
        joined.extend_from_slice(input.slice(part.start, part.end));
        at = part.framed_end;
        if part.flag == 3 {
            let (start, end) = (joined_start, joined.len());
            return Ok(Some(Record { start, end, is_joined: true, framed_end: at }));
        }
        // This also bounds the number of empty parts.
        joined.extend_from_slice(&MAGIC);
        if joined.len() - joined_start > limit.bytes {
            return Err(limit.record_error(number, input.offset_of(start)));
        }
    }
}

enum FoundPart {
    Part(Part),
    End,
    Truncated,
    TooLong,
    NoMagic,
}

/// The part that starts at `at`, of at most `max_bytes`.
fn part<R: Read>(input: &mut Input<R>, at: usize, max_bytes: usize) -> Result<FoundPart> {
    let start = at.saturating_add(HEADER);
    if !input.fill_to(start)? {
        return Ok(if input.bytes().len() == at { FoundPart::End } else { FoundPart::Truncated });
    }
    let [a, b, c, d, length @ ..] = input.slice(at, start) else {
        return Ok(FoundPart::Truncated);
    };
    if [*a, *b, *c, *d] != MAGIC {
        return Ok(FoundPart::NoMagic);
    }
    let word = length.try_into().map_or(0, u32::from_le_bytes);
    let length = usize::try_from(word & ((1 << LENGTH_BITS) - 1)).unwrap_or(usize::MAX);
    if length > max_bytes {
        return Ok(FoundPart::TooLong);
    }
    let end = start.saturating_add(length);
    let framed_end = start.saturating_add(length.next_multiple_of(ALIGNMENT));
    if !input.fill_to(framed_end)? {
        return Ok(FoundPart::Truncated);
    }
    Ok(FoundPart::Part(Part { flag: word >> LENGTH_BITS, start, end, framed_end }))
}
