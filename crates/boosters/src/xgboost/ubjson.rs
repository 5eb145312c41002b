//! Reads UBJSON (<https://ubjson.org>, draft 12): numbers are big-endian, a length is an integer with
//! its type marker before it, and an array may declare one type for all its elements.

use super::document::{DocumentLimits, DocumentValue};
use super::reader::ByteReader;
use tensorserve_tensor::error::{Error, Result};

/// Type markers, <https://ubjson.org/type-reference>.
mod marker {
    pub(super) const NULL: u8 = b'Z';
    pub(super) const TRUE: u8 = b'T';
    pub(super) const FALSE: u8 = b'F';
    pub(super) const INT8: u8 = b'i';
    pub(super) const UINT8: u8 = b'U';
    pub(super) const INT16: u8 = b'I';
    pub(super) const INT32: u8 = b'l';
    pub(super) const INT64: u8 = b'L';
    pub(super) const FLOAT32: u8 = b'd';
    pub(super) const FLOAT64: u8 = b'D';
    pub(super) const CHAR: u8 = b'C';
    pub(super) const STRING: u8 = b'S';
    pub(super) const ARRAY: u8 = b'[';
    pub(super) const ARRAY_END: u8 = b']';
    pub(super) const OBJECT: u8 = b'{';
    pub(super) const OBJECT_END: u8 = b'}';
    /// The type of all elements of a container.
    pub(super) const TYPE: u8 = b'$';
    /// The number of elements of a container.
    pub(super) const COUNT: u8 = b'#';
}

/// Reads the one value of `bytes`.
pub(super) fn read(bytes: &[u8]) -> Result<DocumentValue> {
    read_document(bytes).map_err(|e| e.context("invalid UBJSON"))
}

fn read_document(bytes: &[u8]) -> Result<DocumentValue> {
    let mut reader = ByteReader::new(bytes);
    let kind = reader.byte()?;
    read_value(kind, &mut reader, &mut DocumentLimits::default(), 0)
}

/// Reads the value whose marker is `kind`.
fn read_value(
    kind: u8,
    reader: &mut ByteReader,
    limits: &mut DocumentLimits,
    depth: usize,
) -> Result<DocumentValue> {
    limits.count_value(depth)?;
    match kind {
        marker::OBJECT => read_object(reader, limits, depth),
        marker::ARRAY => read_array(reader, limits, depth),
        marker::STRING => read_text(reader).map(DocumentValue::Text),
        marker::NULL => Ok(DocumentValue::Null),
        _ => read_number(kind, reader).map(DocumentValue::Number),
    }
}

fn read_object(
    reader: &mut ByteReader,
    limits: &mut DocumentLimits,
    depth: usize,
) -> Result<DocumentValue> {
    let mut members = Vec::new();
    while reader.peek() != Some(marker::OBJECT_END) {
        let name = read_text(reader)?;
        let kind = reader.byte()?;
        let value = read_value(kind, reader, limits, depth + 1)?;
        if DocumentValue::is_used(&name) {
            members.push((name, value));
        }
    }
    reader.byte()?;
    Ok(DocumentValue::Object(members))
}

fn read_array(
    reader: &mut ByteReader,
    limits: &mut DocumentLimits,
    depth: usize,
) -> Result<DocumentValue> {
    if reader.skip_if(marker::TYPE) {
        return read_typed_array(reader);
    }
    // Without a count, the array ends at a bracket.
    let mut left = match reader.skip_if(marker::COUNT) {
        true => Some(read_length(reader)?),
        false => None,
    };
    let mut numbers = Vec::new();
    let mut list = Vec::new();
    loop {
        match &mut left {
            Some(0) => break,
            Some(left) => *left -= 1,
            None if reader.skip_if(marker::ARRAY_END) => break,
            None => {}
        }
        match reader.byte()? {
            kind @ (marker::OBJECT | marker::ARRAY | marker::STRING | marker::NULL) => {
                list.push(read_value(kind, reader, limits, depth + 1)?);
            }
            kind => numbers.push(read_number(kind, reader)?),
        }
    }
    match (numbers.is_empty(), list.is_empty()) {
        (false, false) => Err(Error::damaged(format!(
            "an array mixes numbers with other values, {}",
            reader.position()
        ))),
        (false, true) => Ok(DocumentValue::Numbers(numbers)),
        (true, _) => Ok(DocumentValue::List(list)),
    }
}

/// Reads an array whose elements are all of one numeric type.
fn read_typed_array(reader: &mut ByteReader) -> Result<DocumentValue> {
    let kind = reader.byte()?;
    if !reader.skip_if(marker::COUNT) {
        return Err(Error::damaged(format!(
            "an array declares a type without a count, {}",
            reader.position()
        )));
    }
    let size = match kind {
        marker::INT8 | marker::UINT8 => 1,
        marker::INT16 => 2,
        marker::INT32 | marker::FLOAT32 => 4,
        marker::INT64 | marker::FLOAT64 => 8,
        _ => return Err(unknown_marker(kind, reader)),
    };
    let length = read_length(reader)?;
    let bytes = length.checked_mul(size).ok_or_else(|| reader.too_short())?;
    let mut elements = ByteReader::new(reader.bytes(bytes)?);
    let numbers = (0..length).map(|_| read_number(kind, &mut elements));
    numbers.collect::<Result<_>>().map(DocumentValue::Numbers)
}

#[allow(clippy::cast_precision_loss)] // None of the library's numbers is that large.
fn read_number(kind: u8, reader: &mut ByteReader) -> Result<f64> {
    Ok(match kind {
        marker::INT8 => f64::from(i8::from_be_bytes(reader.array()?)),
        marker::UINT8 | marker::CHAR => f64::from(reader.byte()?),
        marker::INT16 => f64::from(i16::from_be_bytes(reader.array()?)),
        marker::INT32 => f64::from(i32::from_be_bytes(reader.array()?)),
        marker::INT64 => i64::from_be_bytes(reader.array()?) as f64,
        marker::FLOAT32 => f64::from(f32::from_be_bytes(reader.array()?)),
        marker::FLOAT64 => f64::from_be_bytes(reader.array()?),
        marker::TRUE => 1.0,
        marker::FALSE => 0.0,
        _ => return Err(unknown_marker(kind, reader)),
    })
}

fn unknown_marker(kind: u8, reader: &ByteReader) -> Error {
    let kind = char::from(kind);
    Error::damaged(format!("{kind:?} is not a type marker, {}", reader.position()))
}

fn read_text(reader: &mut ByteReader) -> Result<String> {
    let length = read_length(reader)?;
    Ok(String::from_utf8_lossy(reader.bytes(length)?).into_owned())
}

/// Reads a length: an integer with its type marker before it.
fn read_length(reader: &mut ByteReader) -> Result<usize> {
    let length = match reader.byte()? {
        marker::INT8 => i64::from(i8::from_be_bytes(reader.array()?)),
        marker::UINT8 => i64::from(reader.byte()?),
        marker::INT16 => i64::from(i16::from_be_bytes(reader.array()?)),
        marker::INT32 => i64::from(i32::from_be_bytes(reader.array()?)),
        marker::INT64 => i64::from_be_bytes(reader.array()?),
        _ => return Err(Error::damaged(format!("a length is missing, {}", reader.position()))),
    };
    usize::try_from(length)
        .map_err(|_| Error::damaged(format!("a length is negative, {}", reader.position())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_kinds() {
        let object = b"{U\x01aSi\x02xyU\x01bZU\x01c[TFi\xff]U\x01d[$d#i\x01\x3f\x80\0\0U\x01e[#U\x02Si\x01xSi\x01yU\x01f[$l#L\0\0\0\0\0\0\0\x01\xff\xff\xff\xfeU\x01g[#i\0}";
        let value = read(object).expect("UBJSON");
        assert_eq!(value.text("a").expect("text"), "xy");
        assert_eq!(value.find("b"), Some(&DocumentValue::Null));
        assert_eq!(value.numbers("c").expect("numbers"), [1.0, 0.0, -1.0]);
        assert_eq!(value.numbers("d").expect("numbers"), [1.0]);
        assert_eq!(value.texts("e").expect("texts"), ["x", "y"]);
        assert_eq!(value.numbers("f").expect("numbers"), [-2.0]);
        assert_eq!(value.numbers("g").expect("none"), [] as [f64; 0]);
        for end in 0..object.len() {
            assert!(read(object.get(..end).expect("in range")).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn hostile_lengths_take_no_memory() {
        for bytes in [
            &b"[$D#L\x7f\xff\xff\xff\xff\xff\xff\xff"[..],
            b"[$D#L\x1f\xff\xff\xff\xff\xff\xff\xff",
            b"[#L\x7f\xff\xff\xff\xff\xff\xff\xffZ",
            b"SL\x7f\xff\xff\xff\xff\xff\xff\xff",
            b"SL\xff\xff\xff\xff\xff\xff\xff\xff",
            b"[$Z#L\x7f\xff\xff\xff\xff\xff\xff\xff",
            b"[$i",
            b"H",
        ] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
        assert!(read(&[b'['; 1000]).expect_err("deep").message().contains("nested"));
    }
}
