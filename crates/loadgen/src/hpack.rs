//! Header fields of HTTP/2 (RFC 7541): those of a request, written, and those of a response, read.

use std::collections::VecDeque;

/// The table of fields that every connection has.
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The number of Huffman codes of each length in bits. The codes of one length are consecutive and follow those of the
/// shorter ones.
const CODES: [u32; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 4,
];

/// The characters with the shortest codes, in the order of these. All others but the backslash are not ASCII text.
const CHARACTERS: &[u8] =
    b"012aceiost %-./3456789=A_bdfghlmnpru:BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz&*,;XZ!\"()?'+|\
#>\0$@[]~^}<`{\\";

/// The largest dynamic table, which every sender may use (RFC 9113, 6.5.2).
const TABLE: usize = 4096;

/// What a field takes in the table besides its text.
const OVERHEAD: usize = 32;

type Text = Vec<u8>;

/// Reads the header blocks of one connection.
#[derive(Default)]
pub(crate) struct HeaderDecoder {
    /// The newest field first.
    table: VecDeque<(Text, Text)>,
    size: usize,
    /// The limit of the size, below [`TABLE`] by so much.
    less: usize,
}

impl HeaderDecoder {
    /// Calls `field` for each name and value of a block.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn read(
        &mut self,
        block: &[u8],
        field: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), &'static str> {
        let mut rest = block;
        while let Some(&first) = rest.first() {
            if first & 0x80 != 0 {
                let index = integer(&mut rest, 7)?;
                let (name, value) = self.field(index)?;
                field(name, value);
            } else if first & 0xe0 == 0x20 {
                let size = integer(&mut rest, 5)?;
                self.less = TABLE.checked_sub(size).ok_or("a table of fields that is too large")?;
                self.evict(0);
            } else {
                let is_kept = first & 0x40 != 0;
                let index = integer(&mut rest, if is_kept { 6 } else { 4 })?;
                let name = match index {
                    0 => text(&mut rest)?,
                    index => self.field(index)?.0.to_vec(),
                };
                let value = text(&mut rest)?;
                field(&name, &value);
                if is_kept {
                    self.keep(name, value);
                }
            }
        }
        Ok(())
    }

    fn field(&self, index: usize) -> Result<(&[u8], &[u8]), &'static str> {
        let wrong = "a field that is in no table";
        let index = index.checked_sub(1).ok_or(wrong)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let (name, value) = self.table.get(index - STATIC.len()).ok_or(wrong)?;
        Ok((name, value))
    }

    fn keep(&mut self, name: Text, value: Text) {
        let size = name.len() + value.len() + OVERHEAD;
        self.evict(size);
        if size <= TABLE - self.less {
            self.size += size;
            self.table.push_front((name, value));
        }
    }

    /// Makes room for `size` bytes.
    fn evict(&mut self, size: usize) {
        while self.size + size > TABLE - self.less {
            let Some((name, value)) = self.table.pop_back() else { return };
            self.size -= name.len() + value.len() + OVERHEAD;
        }
    }
}

const CUT: &str = "a block of fields that is cut";

/// An integer that begins in the last `bits` of a byte.
fn integer(rest: &mut &[u8], bits: u32) -> Result<usize, &'static str> {
    let most = (1usize << bits) - 1;
    let mut value = usize::from(take(rest)?) & most;
    if value < most {
        return Ok(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = take(rest)?;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number that is too large")
}

fn take(rest: &mut &[u8]) -> Result<u8, &'static str> {
    let (first, others) = rest.split_first().ok_or(CUT)?;
    *rest = others;
    Ok(*first)
}

fn text(rest: &mut &[u8]) -> Result<Text, &'static str> {
    let is_coded = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(rest, 7)?;
    let (coded, others) = rest.split_at_checked(length).ok_or(CUT)?;
    *rest = others;
    Ok(if is_coded { decoded(coded) } else { coded.to_vec() })
}

/// A Huffman-coded text. Characters that are not ASCII, which no field here has, become `?`.
fn decoded(coded: &[u8]) -> Text {
    let mut text = Vec::with_capacity(coded.len() * 2);
    let (mut code, mut first, mut length, mut before) = (0u32, 0u32, 0usize, 0u32);
    for byte in coded {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            first <<= 1;
            length += 1;
            let count = CODES.get(length).copied().unwrap_or(0);
            let place = code.wrapping_sub(first);
            if place < count {
                let at = usize::try_from(before + place).unwrap_or(usize::MAX);
                text.push(CHARACTERS.get(at).copied().unwrap_or(b'?'));
                (code, first, length, before) = (0, 0, 0, 0);
            } else {
                first = first.wrapping_add(count);
                before += count;
            }
        }
    }
    text
}

/// A block of a request with these fields, which changes no table, so that it can be sent again and again.
pub(crate) fn block(
    path: &str,
    (scheme, authority): (&str, &str),
    others: &[(&str, &str)],
) -> Vec<u8> {
    // POST over http or https, by their places in the static table; the names of the path and the authority as well.
    let mut block = vec![0x83, if scheme == "https" { 0x87 } else { 0x86 }, 0x04];
    write_text(path, &mut block);
    block.push(0x01);
    write_text(authority, &mut block);
    for (name, value) in others {
        block.push(0);
        write_text(&name.to_ascii_lowercase(), &mut block);
        write_text(value, &mut block);
    }
    block
}

fn write_text(text: &str, block: &mut Vec<u8>) {
    let length = text.len();
    match u8::try_from(length) {
        Ok(short) if short < 0x7f => block.push(short),
        _ => {
            block.push(0x7f);
            let mut rest = length - 0x7f;
            while rest >= 0x80 {
                block.push(u8::try_from(rest & 0x7f).unwrap_or(0) | 0x80);
                rest >>= 7;
            }
            block.push(u8::try_from(rest).unwrap_or(0));
        }
    }
    block.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let text: String = text.split_whitespace().collect();
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex"))
            .collect()
    }

    fn read(
        decoder: &mut HeaderDecoder,
        block: &[u8],
    ) -> Result<Vec<(String, String)>, &'static str> {
        let mut all = Vec::new();
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder.read(block, &mut |name, value| all.push((lossy(name), lossy(value))))?;
        Ok(all)
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// The responses of RFC 7541, C.5 and C.6, without and with Huffman codes. Their table has 256 bytes.
    #[test]
    fn the_examples_of_the_standard_are_read() {
        let redirect = pairs(&[
            (":status", "302"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("location", "https://www.example.com"),
        ]);
        let mut changed = redirect.clone();
        changed[0].1 = "307".to_owned();
        let mut last = pairs(&[(":status", "200")]);
        last.extend_from_slice(&redirect[1..]);
        last[2].1 = "Mon, 21 Oct 2013 20:13:22 GMT".to_owned();
        last.extend(pairs(&[
            ("content-encoding", "gzip"),
            ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
        ]));
        let plain = [
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 \
             3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 \
             7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 \
             6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
        ];
        let coded = [
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad \
             1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 \
             e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        ];
        for blocks in [plain, coded] {
            let mut decoder = HeaderDecoder { less: TABLE - 256, ..HeaderDecoder::default() };
            for (block, want) in blocks.iter().zip([&redirect, &changed, &last]) {
                assert_eq!(&read(&mut decoder, &hex(block)).expect("a block"), want);
            }
            assert_eq!((decoder.table.len(), decoder.size), (3, 215));
        }
    }

    #[test]
    fn a_request_is_read_back() {
        let path = format!("/{}", "long".repeat(100));
        let block = block(
            &path,
            ("http", "h:1"),
            &[("Content-Type", "application/grpc"), ("te", "trailers")],
        );
        let want = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path.as_str()),
            (":authority", "h:1"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        let mut decoder = HeaderDecoder::default();
        assert_eq!(read(&mut decoder, &block).expect("a block"), pairs(&want));
        assert!(decoder.table.is_empty());
    }

    #[test]
    fn damaged_blocks_are_refused() {
        for block in
            ["80", "c0", "ff ff ff ff ff ff", "48 05 41", "00 01", "3f ff ff ff 7f", "3f e2 1f"]
        {
            assert!(read(&mut HeaderDecoder::default(), &hex(block)).is_err(), "{block}");
        }
    }
}
