//! The file of the bad records of an entry.

use serde::Serialize;

use crate::batch::RecordPlace;
use tensorserve_codec::base64;

/// The most bytes of a record in a dead letter, and of a message.
const MOST: usize = 64 << 10;

/// A record that the model refused.
#[derive(Serialize)]
struct DeadLetter<'d> {
    object: &'d str,
    line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    byte: Option<u64>,
    reason: &'d str,
    /// Its text, or base64 of its bytes if they are no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record_b64: Option<String>,
    /// The record has more bytes than these.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// Appends a bad record to the text of an entry's dead letters.
pub(crate) fn append(
    object: &str,
    place: RecordPlace,
    reason: &str,
    record: &[u8],
    out: &mut Vec<u8>,
) {
    let kept = record.get(..record.len().min(MOST)).unwrap_or_default();
    let text = std::str::from_utf8(kept).ok();
    let encoded = text.is_none().then(|| {
        let mut encoded = Vec::new();
        base64::encode(kept, &mut encoded);
        String::from_utf8_lossy(&encoded).into_owned()
    });
    let letter = DeadLetter {
        object,
        line: place.line,
        byte: place.offset,
        reason,
        record: text,
        record_b64: encoded,
        truncated: kept.len() < record.len(),
    };
    // It is plain data, which always becomes JSON.
    let _ = serde_json::to_writer(&mut *out, &letter);
    out.push(b'\n');
}

/// A bad record in words: where it is, and what is wrong.
pub(crate) fn described(place: RecordPlace, reason: &str) -> String {
    match place.offset {
        Some(offset) => format!("line {}, byte {offset}: {reason}", place.line),
        None => format!("record {}: {reason}", place.line),
    }
}
