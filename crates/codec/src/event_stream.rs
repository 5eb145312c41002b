//! `application/vnd.amazon.eventstream`, in which AWS services stream responses: messages of
//! headers, a payload and two checksums.

use flate2::Crc;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::Result;

/// The most payload bytes of one message; clients accept up to 24 MiB.
const MAX_PAYLOAD: usize = 1 << 20;

/// The header type "string".
const STRING_TYPE: u8 = 7;

/// Bytes of a message beside its headers and payload: two lengths and two checksums of 4 bytes.
const FRAMING_BYTES: usize = 16;

/// Capacity for the headers of one message of [`payload_parts`].
const HEADER_CAPACITY: usize = 128;

/// Splits `payload` into events of type `PayloadPart`, one per MiB; none if it is empty.
///
/// # Errors
/// Those of [`budget::reserve`].
pub fn payload_parts(payload: &[u8]) -> Result<Vec<u8>> {
    let headers = [
        (":message-type", "event"),
        (":event-type", "PayloadPart"),
        (":content-type", "application/octet-stream"),
    ];
    let messages = payload.len() / MAX_PAYLOAD + 1;
    let capacity = payload.len() + messages * HEADER_CAPACITY;
    budget::reserve(capacity)?;
    let mut out = Vec::with_capacity(capacity);
    for part in payload.chunks(MAX_PAYLOAD) {
        message(&headers, part, &mut out);
    }
    Ok(out)
}

/// Appends one message: the lengths of the message and of its headers, their checksum, the headers,
/// the payload, and the checksum of everything before it.
fn message(headers: &[(&str, &str)], payload: &[u8], out: &mut Vec<u8>) {
    let mut encoded = Vec::with_capacity(HEADER_CAPACITY);
    for (name, value) in headers {
        // Names and values are the short ones above.
        encoded.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        encoded.extend_from_slice(name.as_bytes());
        encoded.push(STRING_TYPE);
        encoded.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
        encoded.extend_from_slice(value.as_bytes());
    }
    let start = out.len();
    push_length(FRAMING_BYTES + encoded.len() + payload.len(), out);
    push_length(encoded.len(), out);
    push_checksum(start, out);
    out.extend_from_slice(&encoded);
    out.extend_from_slice(payload);
    push_checksum(start, out);
}

/// Appends a length as a big-endian u32.
fn push_length(bytes: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes());
}

/// Appends the CRC-32 of `out` from `start` on.
fn push_checksum(start: usize, out: &mut Vec<u8>) {
    let mut crc = Crc::new();
    crc.update(out.get(start..).unwrap_or_default());
    out.extend_from_slice(&crc.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_that_of_the_reference() {
        // Computed with Python's struct and zlib.
        let mut got = Vec::new();
        message(&[(":event-type", "PayloadPart")], b"{}", &mut got);
        let mut want = vec![0, 0, 0, 44, 0, 0, 0, 26];
        want.extend_from_slice(&0x9c71_e416_u32.to_be_bytes());
        want.extend_from_slice(b"\x0b:event-type\x07\0\x0bPayloadPart{}");
        want.extend_from_slice(&0xed49_a017_u32.to_be_bytes());
        assert_eq!(got, want);
    }

    #[test]
    fn large_payloads_come_in_parts() {
        assert!(payload_parts(b"").unwrap().is_empty());
        let payload = vec![7; MAX_PAYLOAD * 2 + 1];
        let stream = payload_parts(&payload).unwrap();
        let (mut rest, mut joined) = (&stream[..], Vec::new());
        while !rest.is_empty() {
            let number = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().expect("4"));
            let (length, headers) = (number(0) as usize, number(4) as usize);
            joined.extend_from_slice(&rest[12 + headers..length - 4]);
            rest = &rest[length..];
        }
        assert!(joined == payload);
    }
}
