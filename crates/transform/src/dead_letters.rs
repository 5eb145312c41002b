//! The file of the bad records of an entry.

use std::borrow::Cow;

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

/// What a model says of a record, without what TensorFlow adds for people who look into the graph: the functions
/// before the text (`{{function_node map_while_body}}`), and the nodes behind it.
pub(crate) fn without_nodes(reason: &str) -> Cow<'_, str> {
    if !reason.contains("{{") {
        return reason.into();
    }
    let mut text = reason.trim_start();
    let mut plain = String::with_capacity(text.len());
    while let Some((before, rest)) = text.split_once("{{function_node ") {
        let Some((_, after)) = rest.split_once("}}") else { break };
        plain.push_str(before);
        text = after.trim_start();
    }
    plain.push_str(text);
    // Lines such as `\t [[{{node map/while/DecodePng}}]]`.
    let is_node = |line: &&str| line.trim_start().starts_with("[[");
    let lines: Vec<&str> = plain.lines().filter(|line| !is_node(line)).collect();
    let plain = lines.join("\n");
    let plain = plain.trim();
    if plain.is_empty() { reason.into() } else { plain.to_owned().into() }
}

/// A bad record in words: where it is, and what is wrong.
pub(crate) fn described(place: RecordPlace, reason: &str) -> String {
    match place.offset {
        Some(offset) => format!("line {}, byte {offset}: {reason}", place.line),
        None => format!("record {}: {reason}", place.line),
    }
}

#[cfg(test)]
mod tests {
    use super::without_nodes;

    #[test]
    fn texts_of_graphs_say_what_was_wrong() {
        let said = "{{function_node __inference_signature_wrapper_1}} {{function_node map_while_body_9}} Unknown \
                    image file format. One of JPEG, PNG, GIF, BMP required.\n\t [[{{node map/while/DecodeImage}}]]\n\
                    \t [[StatefulPartitionedCall/map/while]]";
        let plain = "Unknown image file format. One of JPEG, PNG, GIF, BMP required.";
        assert_eq!(without_nodes(said), plain);
        assert_eq!(without_nodes(&format!("the model: {said}")), format!("the model: {plain}"));
        // Of other models, and what would leave nothing.
        for other in
            ["{{ x }}: wrong", "no", "a\n [[1, 2]]", "{{function_node f}}", "{{function_node f"]
        {
            assert_eq!(without_nodes(other), other);
        }
    }
}
