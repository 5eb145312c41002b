//! Protobuf messages in their encoded form: fields are replaced or added, and all others stay as they are, also those
//! that no schema here knows.

use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use tensorserve_tensor::error::{Code, Error, Result};

/// One field of a message.
pub(super) struct WireField<'a> {
    pub(super) number: u32,
    /// With its key.
    encoded: &'a [u8],
    /// Without key and length, if it has a length.
    pub(super) payload: Option<&'a [u8]>,
}

/// The fields of a message, in the order in which they are encoded.
pub(super) struct WireFields<'a> {
    rest: &'a [u8],
}

impl<'a> WireFields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        WireFields { rest: message }
    }

    fn next_field(&mut self) -> Result<WireField<'a>> {
        let start = self.rest;
        let (number, kind) = decode_key(&mut self.rest).map_err(|_| damaged())?;
        let payload = match kind {
            WireType::Varint => {
                self.varint()?;
                None
            }
            WireType::SixtyFourBit => self.take(8).map(|_| None)?,
            WireType::LengthDelimited => {
                let length = usize::try_from(self.varint()?).map_err(|_| damaged())?;
                Some(self.take(length)?)
            }
            WireType::ThirtyTwoBit => self.take(4).map(|_| None)?,
            // Groups are no part of proto3.
            WireType::StartGroup | WireType::EndGroup => return Err(damaged()),
        };
        let length = start.len() - self.rest.len();
        let encoded = start.get(..length).ok_or_else(damaged)?;
        Ok(WireField { number, encoded, payload })
    }

    fn varint(&mut self) -> Result<u64> {
        decode_varint(&mut self.rest).map_err(|_| damaged())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(damaged)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for WireFields<'a> {
    type Item = Result<WireField<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.next_field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

fn damaged() -> Error {
    Error::new(Code::DataLoss, "the encoding of the graph is damaged")
}

/// What becomes of a field with a length.
pub(super) enum Edit {
    Keep,
    /// It gets another payload.
    Replace(Vec<u8>),
    Remove,
}

/// A copy of `message` in which `edit` decides about each field with a length, by its number and payload.
///
/// # Errors
/// If the message is damaged, and those of `edit`.
pub(super) fn edited(
    message: &[u8],
    mut edit: impl FnMut(u32, &[u8]) -> Result<Edit>,
) -> Result<Vec<u8>> {
    let mut copy = Vec::with_capacity(message.len());
    for field in WireFields::of(message) {
        let field = field?;
        let Some(payload) = field.payload else {
            copy.extend_from_slice(field.encoded);
            continue;
        };
        match edit(field.number, payload)? {
            Edit::Keep => copy.extend_from_slice(field.encoded),
            Edit::Replace(payload) => push_bytes(&mut copy, field.number, &payload),
            Edit::Remove => {}
        }
    }
    Ok(copy)
}

/// A copy of `message` in which the texts with the number `number` have the new texts that `rename` knows.
///
/// # Errors
/// If the message is damaged.
pub(super) fn with_texts(
    message: &[u8],
    number: u32,
    rename: impl Fn(&str) -> Option<String>,
) -> Result<Vec<u8>> {
    edited(message, |found, payload| {
        let text = std::str::from_utf8(payload).ok().filter(|_| found == number);
        Ok(text.and_then(&rename).map_or(Edit::Keep, |new| Edit::Replace(new.into_bytes())))
    })
}

/// Appends a text, bytes or a message to the message `to`.
pub(super) fn push_bytes(to: &mut Vec<u8>, number: u32, payload: &[u8]) {
    encode_key(number, WireType::LengthDelimited, to);
    encode_varint(payload.len() as u64, to);
    to.extend_from_slice(payload);
}

/// Appends an integer, which is not negative, to the message `to`.
pub(super) fn push_integer(to: &mut Vec<u8>, number: u32, value: u64) {
    encode_key(number, WireType::Varint, to);
    encode_varint(value, to);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Vec<u8> {
        let mut message = Vec::new();
        push_integer(&mut message, 1, 300);
        push_bytes(&mut message, 2, b"name");
        message.extend_from_slice(&[5 << 3 | 5, 1, 2, 3, 4]);
        message.extend_from_slice(&[6 << 3 | 1, 1, 2, 3, 4, 5, 6, 7, 8]);
        push_bytes(&mut message, 1000, &[0; 200]);
        message
    }

    #[test]
    fn fields_that_are_not_edited_stay_as_they_are() {
        let kept = edited(&message(), |_, _| Ok(Edit::Keep)).expect("valid");
        assert_eq!(kept, message());
        let renamed = edited(&message(), |number, payload| {
            Ok(match (number, payload) {
                (2, b"name") => Edit::Replace(b"a longer name".to_vec()),
                (1000, _) => Edit::Remove,
                _ => Edit::Keep,
            })
        });
        let renamed = renamed.expect("valid");
        let numbers: Vec<u32> =
            WireFields::of(&renamed).map(|field| field.expect("valid").number).collect();
        assert_eq!(numbers, [1, 2, 5, 6]);
        let name = WireFields::of(&renamed).nth(1).expect("there").expect("valid");
        assert_eq!(name.payload, Some(&b"a longer name"[..]));
    }

    #[test]
    fn every_cut_is_an_error_or_ends_a_field() {
        let message = message();
        let mut ends = vec![0];
        for field in WireFields::of(&message) {
            ends.push(ends.last().expect("one") + field.expect("valid").encoded.len());
        }
        for cut in 0..message.len() {
            let result = edited(&message[..cut], |_, _| Ok(Edit::Keep));
            assert_eq!(result.is_ok(), ends.contains(&cut), "{cut}");
        }
        assert!(edited(&[0xff; 11], |_, _| Ok(Edit::Keep)).is_err());
        assert!(edited(&[3 << 3 | 3], |_, _| Ok(Edit::Keep)).is_err(), "groups");
    }
}
