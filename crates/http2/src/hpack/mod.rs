//! Header compression (RFC 7541): reads what clients send, and writes without a table of its own.
//!
//! A field in the dynamic table is kept as the name and value that requests have, so a field that is
//! repeated is neither checked nor copied again.

mod huffman;
mod static_table;

use std::collections::VecDeque;
use std::sync::LazyLock;

use http::{HeaderName, HeaderValue};

use static_table::FIELDS;

/// The most bytes of the dynamic table: the default, which is not changed.
const TABLE: usize = 4096;

/// What a field counts for besides its name and value.
const OVERHEAD: usize = 32;

/// The name of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldName {
    /// `:method`
    Method,
    /// `:scheme`
    Scheme,
    /// `:authority`
    Authority,
    /// `:path`
    Path,
    /// `:status`
    Status,
    /// The name of a header.
    Header(HeaderName),
    /// A name or a value that no message may have.
    Malformed,
}

impl FieldName {
    /// The name, which is empty if it is malformed.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            FieldName::Method => ":method",
            FieldName::Scheme => ":scheme",
            FieldName::Authority => ":authority",
            FieldName::Path => ":path",
            FieldName::Status => ":status",
            FieldName::Header(name) => name.as_str(),
            FieldName::Malformed => "",
        }
    }
}

/// A field of a head.
#[derive(Clone, Debug)]
pub struct HpackField {
    /// Its name.
    pub name: FieldName,
    /// Its value; empty if that is malformed.
    pub value: HeaderValue,
    /// How many bytes it counts for.
    pub(crate) size: usize,
}

impl HpackField {
    fn new(name: &[u8], value: &[u8]) -> Self {
        HpackField::named(field_name(name), name.len(), value)
    }

    fn named(name: FieldName, length: usize, value: &[u8]) -> Self {
        let size = length + value.len() + OVERHEAD;
        match HeaderValue::from_bytes(value) {
            Ok(value) => HpackField { name, value, size },
            Err(_) => {
                HpackField { name: FieldName::Malformed, value: HeaderValue::from_static(""), size }
            }
        }
    }
}

fn field_name(name: &[u8]) -> FieldName {
    match name {
        b":method" => FieldName::Method,
        b":scheme" => FieldName::Scheme,
        b":authority" => FieldName::Authority,
        b":path" => FieldName::Path,
        b":status" => FieldName::Status,
        _ => HeaderName::from_lowercase(name).map_or(FieldName::Malformed, FieldName::Header),
    }
}

/// A block of fields that cannot be read; the state of the connection's table is lost with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedBlock;

/// Reads the blocks of a connection.
#[derive(Default)]
pub struct HpackDecoder {
    /// The newest first.
    dynamic: VecDeque<HpackField>,
    size: usize,
    /// The most bytes of the table, as the client has limited it.
    limit: Option<usize>,
    /// What a Huffman-coded string says.
    text: Vec<u8>,
    /// How often the table has changed.
    changes: u64,
}

static STATIC: LazyLock<Vec<HpackField>> = LazyLock::new(|| {
    FIELDS.iter().map(|(name, value)| HpackField::new(name.as_bytes(), value.as_bytes())).collect()
});

impl HpackDecoder {
    /// Hands each field of a block to `take`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn decode(
        &mut self,
        block: &[u8],
        mut take: impl FnMut(HpackField),
    ) -> Result<(), DamagedBlock> {
        let (mut rest, mut has_field) = (block, false);
        while let Some(&first) = rest.first() {
            if first & 0b1110_0000 == 0b0010_0000 {
                // Only in front of the fields.
                if has_field {
                    return Err(DamagedBlock);
                }
                self.limit(integer(&mut rest, 5)?)?;
                continue;
            }
            has_field = true;
            if first & 0b1000_0000 != 0 {
                let index = integer(&mut rest, 7)?;
                take(self.field(index)?.clone());
                continue;
            }
            let is_kept = first & 0b0100_0000 != 0;
            let index = integer(&mut rest, if is_kept { 6 } else { 4 })?;
            let field = self.literal(index, &mut rest)?;
            if is_kept {
                self.keep(field.clone());
            }
            take(field);
        }
        Ok(())
    }

    /// How often the table has changed: a block that changes nothing says the same until then.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// A field whose value, and name if `index` is 0, follow.
    fn literal(&mut self, index: usize, rest: &mut &[u8]) -> Result<HpackField, DamagedBlock> {
        let mut text = std::mem::take(&mut self.text);
        let (name, length) = match index {
            0 => {
                let name = string(rest, &mut text)?;
                (field_name(name), name.len())
            }
            _ => {
                let known = self.field(index)?;
                let length = known.size - known.value.len() - OVERHEAD;
                (known.name.clone(), length)
            }
        };
        let field = HpackField::named(name, length, string(rest, &mut text)?);
        self.text = text;
        Ok(field)
    }

    fn field(&self, index: usize) -> Result<&HpackField, DamagedBlock> {
        let index = index.checked_sub(1).ok_or(DamagedBlock)?;
        match index.checked_sub(FIELDS.len()) {
            None => STATIC.get(index),
            Some(index) => self.dynamic.get(index),
        }
        .ok_or(DamagedBlock)
    }

    fn limit(&mut self, limit: usize) -> Result<(), DamagedBlock> {
        if limit > TABLE {
            return Err(DamagedBlock);
        }
        self.limit = Some(limit);
        self.changes += 1;
        self.evict(limit);
        Ok(())
    }

    fn keep(&mut self, field: HpackField) {
        let limit = self.limit.unwrap_or(TABLE);
        self.changes += 1;
        self.evict(limit.saturating_sub(field.size));
        if field.size <= limit {
            self.size += field.size;
            self.dynamic.push_front(field);
        }
    }

    /// Forgets the oldest fields until the others have at most `most` bytes.
    fn evict(&mut self, most: usize) {
        while self.size > most
            && let Some(oldest) = self.dynamic.pop_back()
        {
            self.size -= oldest.size;
        }
    }
}

/// An integer whose first bits are the last `bits` of the first byte.
fn integer(rest: &mut &[u8], bits: u32) -> Result<usize, DamagedBlock> {
    let (&first, after) = rest.split_first().ok_or(DamagedBlock)?;
    *rest = after;
    let most = (1_usize << bits) - 1;
    let mut value = usize::from(first) & most;
    if value < most {
        return Ok(value);
    }
    // No number here is longer: all that it may be are sizes within a block.
    for shift in [0, 7, 14, 21] {
        let (&next, after) = rest.split_first().ok_or(DamagedBlock)?;
        *rest = after;
        value += usize::from(next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DamagedBlock)
}

/// A string, which is Huffman-coded or not.
fn string<'t, 'r: 't>(
    rest: &mut &'r [u8],
    text: &'t mut Vec<u8>,
) -> Result<&'t [u8], DamagedBlock> {
    let is_coded = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(rest, 7)?;
    let (bytes, after) = rest.split_at_checked(length).ok_or(DamagedBlock)?;
    *rest = after;
    if !is_coded {
        return Ok(bytes);
    }
    text.clear();
    match huffman::decode(bytes, text) {
        true => Ok(text),
        false => Err(DamagedBlock),
    }
}

/// Writes a status.
pub(crate) fn encode_status(block: &mut Vec<u8>, status: http::StatusCode) {
    let text = status.as_str();
    let known = FIELDS.iter().position(|field| *field == (":status", text));
    if let Some(index) = known.and_then(|place| u8::try_from(place + 1).ok()) {
        block.push(0x80 | index);
        return;
    }
    // The name of the field 8.
    block.push(8);
    encode_string(block, text.as_bytes());
}

/// Writes a field, which is not to be kept in a table.
pub(crate) fn encode_field(block: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    if *name == http::header::CONTENT_TYPE {
        // The name of the field 31.
        block.extend_from_slice(&[0x0f, 31 - 15]);
    } else {
        block.push(0);
        encode_string(block, name.as_str().as_bytes());
    }
    encode_string(block, value.as_bytes());
}

/// Writes a string as it is.
pub fn encode_string(block: &mut Vec<u8>, text: &[u8]) {
    encode_integer(block, text.len(), 7);
    block.extend_from_slice(text);
}

/// Writes an integer whose first byte has room for `bits` of it, and zeros in front of them.
fn encode_integer(block: &mut Vec<u8>, value: usize, bits: u32) {
    let most = (1_usize << bits) - 1;
    let low = |value: usize| u8::try_from(value & 0x7f).unwrap_or(0);
    if value < most {
        block.push(low(value));
        return;
    }
    block.push(low(most));
    let mut rest = value - most;
    while rest >= 0x80 {
        block.push(0x80 | low(rest));
        rest >>= 7;
    }
    block.push(low(rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn hex(text: &str) -> Vec<u8> {
        let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
        (0..text.len()).step_by(2).map(digit).collect()
    }

    fn shown(field: &HpackField) -> String {
        format!("{}: {}", field.name.as_str(), field.value.to_str().expect("text"))
    }

    fn read(decoder: &mut HpackDecoder, block: &[u8]) -> Result<Vec<String>, DamagedBlock> {
        let mut fields = Vec::new();
        decoder.decode(block, |field| fields.push(shown(&field)))?;
        Ok(fields)
    }

    /// The requests of RFC 7541, C.3 and C.4: one connection without Huffman codes, and one with them.
    #[test]
    fn the_examples_of_the_standard_are_read() {
        let plain = [
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ];
        let coded = [
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ];
        let expected = [
            &[":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"][..],
            &[
                ":method: GET",
                ":scheme: http",
                ":path: /",
                ":authority: www.example.com",
                "cache-control: no-cache",
            ],
            &[
                ":method: GET",
                ":scheme: https",
                ":path: /index.html",
                ":authority: www.example.com",
                "custom-key: custom-value",
            ],
        ];
        for blocks in [plain, coded] {
            let mut decoder = HpackDecoder::default();
            for (block, fields) in blocks.into_iter().zip(expected) {
                assert_eq!(read(&mut decoder, &hex(block)).expect(block), fields);
            }
            assert_eq!(decoder.size, 164);
        }
    }

    /// The responses of RFC 7541, C.5 and C.6, with a table of 256 bytes, from which fields are evicted.
    #[test]
    fn the_responses_of_the_standard_are_read() {
        let plain = [
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e17\
             68747470733a2f2f7777772e6578616d706c652e636f6d",
            "4803333037c1c0bf",
            "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d41\
             53444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b20766572736\
             96f6e3d31",
        ];
        let coded = [
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97\
             c8e9ae82ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd\
             5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        ];
        let date = "date: Mon, 21 Oct 2013 20:13:21 GMT";
        let location = "location: https://www.example.com";
        let cookie = "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
        let expected = [
            vec![":status: 302", "cache-control: private", date, location],
            vec![":status: 307", "cache-control: private", date, location],
            vec![
                ":status: 200",
                "cache-control: private",
                "date: Mon, 21 Oct 2013 20:13:22 GMT",
                location,
                "content-encoding: gzip",
                cookie,
            ],
        ];
        for blocks in [plain, coded] {
            let mut decoder = HpackDecoder { limit: Some(256), ..HpackDecoder::default() };
            for (block, fields) in blocks.into_iter().zip(&expected) {
                assert_eq!(&read(&mut decoder, &hex(block)).expect(block), fields);
            }
            assert_eq!((decoder.dynamic.len(), decoder.size), (3, 215));
        }
    }

    #[test]
    fn the_table_is_limited() {
        let mut decoder = HpackDecoder::default();
        // Names of one byte and values of 1000 bytes: three fit.
        let field = |name| [&[0x40, 1, name, 0x7f, 0xe9, 6][..], &[b'x'; 1000]].concat();
        for name in b"abcde" {
            read(&mut decoder, &field(*name)).expect("a field");
        }
        assert_eq!((decoder.dynamic.len(), decoder.size), (3, 3 * 1033));
        let newest = read(&mut decoder, &[0xbe]).expect("the newest");
        assert!(newest[0].starts_with("e: xxx"), "{newest:?}");
        assert_eq!(read(&mut decoder, &[0xc1]), Err(DamagedBlock), "the fourth is gone");
        // A field that does not fit empties the table.
        let huge = [&[0x40, 1, b'z', 0x7f, 0x81, 0x27][..], &[b'x'; 5120]].concat();
        read(&mut decoder, &huge).expect("a field");
        assert_eq!((decoder.dynamic.len(), decoder.size), (0, 0));
        // A smaller table, and one of 0 bytes.
        read(&mut decoder, &[&[0x3f, 0xe1, 7][..], &field(b'a')].concat()).expect("a field");
        assert_eq!(decoder.dynamic.len(), 0, "1033 bytes do not fit into 1024");
        read(&mut decoder, &[0x20]).expect("an empty block");
        read(&mut decoder, &[0x40, 1, b'q', 1, b'q']).expect("a field");
        assert_eq!(decoder.dynamic.len(), 0);
    }

    #[test]
    fn damaged_blocks_are_refused() {
        let wrong: [&[u8]; 10] = [
            &[0x80],                               // The index 0.
            &[0xbe],                               // Nothing is in the table.
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff], // An integer without end.
            &[0xff],                               // Half an integer.
            &[0x00, 5, b'a'],                      // A name that is cut off.
            &[0x00, 1, b'a'],                      // No value.
            &[0x00, 1, b'a', 0x82, 0xff, 0xff],    // Padding of 16 bits.
            &[0x3f, 0xe2, 0x1f],                   // A table of 4097 bytes.
            &[0x82, 0x20],                         // A size behind a field.
            &[0x0f, 0xff, 0xff, 0xff, 0xff, 0x7f], // The name of a field that is far away.
        ];
        for block in wrong {
            assert_eq!(read(&mut HpackDecoder::default(), block), Err(DamagedBlock), "{block:x?}");
        }
    }

    #[test]
    fn fields_that_no_request_has_are_marked() {
        for (name, value) in [("A", "b"), ("", "b"), ("a b", "b"), (":other", "b"), ("a", "b\n")] {
            let mut block = vec![0];
            encode_string(&mut block, name.as_bytes());
            encode_string(&mut block, value.as_bytes());
            let mut found = Vec::new();
            let mut decoder = HpackDecoder::default();
            decoder.decode(&block, |field| found.push(field.name)).expect("it is readable");
            assert_eq!(found, [FieldName::Malformed], "{name:?}: {value:?}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let mut block = Vec::new();
        let long = "x".repeat(70_000);
        let fields = [("content-type", "application/grpc"), ("grpc-status", "0"), ("a", &long)];
        for (name, value) in fields {
            let name = HeaderName::from_static(name);
            encode_field(&mut block, &name, &HeaderValue::from_str(value).expect("a value"));
        }
        let expected = fields.map(|(name, value)| format!("{name}: {value}"));
        assert_eq!(read(&mut HpackDecoder::default(), &block).expect("readable"), expected);
        let statuses = [(200, &[0x88][..]), (431, &[8, 3, b'4', b'3', b'1'])];
        for (status, written) in statuses {
            let mut block = Vec::new();
            encode_status(&mut block, http::StatusCode::from_u16(status).expect("a status"));
            assert_eq!(block, written);
        }
    }
}
