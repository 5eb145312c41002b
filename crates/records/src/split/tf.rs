//! Records in TensorFlow's file format.

use std::io::Read;

use tensorserve_codec::tfrecord::{CHECKSUM, HEADER, is_intact, record_length};
use tensorserve_tensor::error::{Code, Error, Result};

use super::input::Input;
use super::limit::Limit;

/// Finds the record that starts at `start`, which is record `number`, and returns the end of its
/// content; [`HEADER`] bytes go before the content, and [`CHECKSUM`] bytes follow it. `None` at the
/// end of the object.
pub(super) fn record<R: Read>(
    input: &mut Input<R>,
    start: usize,
    number: u64,
    limit: Limit,
) -> Result<Option<usize>> {
    let content = start.saturating_add(HEADER);
    if !input.fill_to(content)? {
        let is_end = input.bytes().len() == start;
        return if is_end { Ok(None) } else { Err(damaged(input, start, number, "is truncated")) };
    }
    let header = input.slice(start, content).try_into().ok();
    let Some(length) = header.and_then(|header: &[u8; HEADER]| record_length(header)) else {
        let reason = if number == 1 {
            "has a length whose checksum is wrong; is this a TFRecord file?"
        } else {
            "has a length whose checksum is wrong"
        };
        return Err(damaged(input, start, number, reason));
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= limit.bytes);
    let Some(length) = length else {
        return Err(limit.record_error(number, input.offset_of(start)));
    };
    let end = content.saturating_add(length);
    let framed_end = end.saturating_add(CHECKSUM);
    if !input.fill_to(framed_end)? {
        return Err(damaged(input, start, number, "is truncated"));
    }
    if !is_intact(input.slice(content, end), input.slice(end, framed_end)) {
        return Err(damaged(input, start, number, "is corrupt: its checksum is wrong"));
    }
    Ok(Some(end))
}

fn damaged<R: Read>(input: &Input<R>, start: usize, number: u64, reason: &str) -> Error {
    let at = input.offset_of(start);
    Error::new(Code::DataLoss, format!("TFRecord record {number} (byte {at}) {reason}"))
}
