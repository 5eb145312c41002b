//! Huffman-coded strings of HTTP/2 (RFC 7541, 5.2), in which characters that no authority has are replaced by
//! others with codes of the same length.

/// The number of codes of each length in bits. The codes of one length are consecutive, in the order of
/// their characters, and follow those of the shorter ones.
const CODES: [u32; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 4,
];

/// Reads the codes of a string bit by bit.
#[derive(Default)]
pub(super) struct HuffmanFilter {
    /// The bits of the current code.
    code: u32,
    length: usize,
    /// The first code of this length.
    first: u32,
}

impl HuffmanFilter {
    /// Reads the last byte of `seen`, and replaces the characters that end in it, if they begin in `seen`.
    pub(super) fn overwrite_last(&mut self, seen: &mut [u8]) {
        let Some(&byte) = seen.last() else { return };
        for bit in (0..8).rev() {
            self.code |= u32::from(byte >> bit & 1);
            self.length += 1;
            let count = CODES.get(self.length).copied().unwrap_or(0);
            let place = self.code.wrapping_sub(self.first);
            if place < count {
                if let Some(other) = replacement(self.length, place) {
                    replace(seen, bit, self.length, self.first + other);
                }
                *self = HuffmanFilter::default();
            } else {
                self.first = self.first.wrapping_add(count) << 1;
                self.code <<= 1;
            }
        }
    }
}

/// The character for the one at `place` among those with codes of this length, as its place. `None` for one
/// that may stay, and for those that have no other: `#`, `<`, `>`, `\`, `^`, backquote, braces and all that is
/// not ASCII.
fn replacement(length: usize, place: u32) -> Option<u32> {
    match (length, place) {
        // Space, `%` and `/` become `-`.
        (6, 0 | 1 | 4) => Some(2),
        // `"` and `?` become `!`.
        (10, 1 | 4) => Some(0),
        // `|` becomes `'`.
        (11, 2) => Some(0),
        // Zero, `@` and brackets become `~`.
        (13, 0 | 2 | 3 | 4) => Some(5),
        _ => None,
    }
}

/// Writes a code of `length` bits, the last of which is `bit` of the last byte.
fn replace(seen: &mut [u8], bit: usize, length: usize, code: u32) {
    let bytes = (bit + length).div_ceil(8);
    let Some(at) = seen.len().checked_sub(bytes) else {
        return; // It begins in bytes that have been passed on.
    };
    let mask = ((1_u32 << length) - 1) << bit;
    let code = code << bit;
    for (place, byte) in seen.get_mut(at..).unwrap_or_default().iter_mut().rev().enumerate() {
        let [mask, code] = [mask, code].map(|bits| bits.to_le_bytes().get(place).copied());
        let (mask, code) = (mask.unwrap_or(0), code.unwrap_or(0));
        *byte = *byte & !mask | code;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
        (0..text.len()).step_by(2).map(digit).collect()
    }

    fn filtered(text: &str) -> Vec<u8> {
        let (mut bytes, mut filter) = (hex(text), HuffmanFilter::default());
        for end in 1..=bytes.len() {
            filter.overwrite_last(&mut bytes[..end]);
        }
        bytes
    }

    /// As the encoder of the Python package hpack writes them.
    #[test]
    fn characters_are_replaced_by_others_of_the_same_length() {
        // `/tmp/x.sock` and `-tmp-x.sock`.
        assert_eq!(filtered("6134d6c795d07275"), hex("5934d6b795d07275"));
        // `tmp%2Fx.sock` and `tmp-2Fx.sock`.
        assert_eq!(filtered("4d35aa2c3e5741c9d7"), hex("4d35ac2c3e5741c9d7"));
        // `unix:/run/a b@c"d|e?f.sock` and `unix:-run-a-b~c!d'e!f.sock`.
        let text = "b6a379b8c596d4c0d48fff44fe64ff85ff255d07275f";
        assert_eq!(filtered(text), hex("b6a379b8b596d4b0d68fffa4fe24ff45fe255d07275f"));
        // `www.example.com` stays, and so do bytes that are no codes.
        assert_eq!(filtered("f1e3c2e5f23a6ba0ab90f4ff"), hex("f1e3c2e5f23a6ba0ab90f4ff"));
        assert_eq!(filtered("ffffffffffffff"), hex("ffffffffffffff"));
    }
}
