//! `application/vnd.amazon.eventstream`: messages with headers, a payload and two checksums, in
//! which AWS's services stream answers.

use flate2::Crc;

/// The most bytes of a payload in one message; clients take up to 24 MiB.
const LARGEST_PAYLOAD: usize = 1 << 20;

/// The number of the header type "string".
const STRING: u8 = 7;

/// `payload` as events of type `PayloadPart`, one for each MiB; none if it is empty.
#[must_use]
pub fn payload_parts(payload: &[u8]) -> Vec<u8> {
    let headers = [
        (":message-type", "event"),
        (":event-type", "PayloadPart"),
        (":content-type", "application/octet-stream"),
    ];
    let mut out = Vec::with_capacity(payload.len() + payload.len() / LARGEST_PAYLOAD * 128 + 128);
    for part in payload.chunks(LARGEST_PAYLOAD) {
        message(&headers, part, &mut out);
    }
    out
}

/// Appends one message: lengths of all of it and of its headers, a checksum of those; headers and
/// payload; a checksum of everything.
fn message(headers: &[(&str, &str)], payload: &[u8], out: &mut Vec<u8>) {
    const AROUND: usize = 16;
    let mut encoded = Vec::with_capacity(128);
    for (name, value) in headers {
        // Names and values are ours, and short.
        encoded.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        encoded.extend_from_slice(name.as_bytes());
        encoded.push(STRING);
        encoded.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
        encoded.extend_from_slice(value.as_bytes());
    }
    let start = out.len();
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
    out.extend_from_slice(&length(AROUND + encoded.len() + payload.len()));
    out.extend_from_slice(&length(encoded.len()));
    checksum(start, out);
    out.extend_from_slice(&encoded);
    out.extend_from_slice(payload);
    checksum(start, out);
}

/// Appends the checksum of `out` from `start` on.
fn checksum(start: usize, out: &mut Vec<u8>) {
    let mut crc = Crc::new();
    crc.update(out.get(start..).unwrap_or_default());
    out.extend_from_slice(&crc.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_that_of_the_reference() {
        // As Python's struct and zlib make it.
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
        assert!(payload_parts(b"").is_empty());
        let payload = vec![7; LARGEST_PAYLOAD * 2 + 1];
        let stream = payload_parts(&payload);
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
