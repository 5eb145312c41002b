//! Parquet values as JSON.

use parquet::data_type::Decimal;
use parquet::record::{Field, Row};
use tensorserve_codec::base64;
use tensorserve_codec::json::write::string;
use tensorserve_tensor::error::{Error, Result};

/// The most digits of a decimal behind the point.
const MAX_SCALE: usize = 76;

/// Appends a row as an object, unless `out` becomes longer than `end`. It recurses as deep as the schema, which
/// is bounded.
pub(super) fn object(row: &Row, end: usize, out: &mut Vec<u8>) -> Result<()> {
    out.push(b'{');
    for (index, (name, field)) in row.get_column_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        string(name.as_bytes(), out);
        out.push(b':');
        value(field, end, out).map_err(|error| error.context(format!("column {name:?}")))?;
    }
    out.push(b'}');
    Ok(())
}

fn value(field: &Field, end: usize, out: &mut Vec<u8>) -> Result<()> {
    if out.len() > end {
        return Err(too_large());
    }
    match field {
        Field::Null => out.extend_from_slice(b"null"),
        Field::Bool(value) => {
            out.extend_from_slice(if *value { b"true" } else { b"false" });
        }
        Field::Byte(value) => integer(*value, out),
        Field::Short(value) => integer(*value, out),
        Field::Int(value) | Field::Date(value) | Field::TimeMillis(value) => integer(*value, out),
        Field::Long(value)
        | Field::TimeMicros(value)
        | Field::TimestampMillis(value)
        | Field::TimestampMicros(value) => integer(*value, out),
        Field::UByte(value) => integer(*value, out),
        Field::UShort(value) => integer(*value, out),
        Field::UInt(value) => integer(*value, out),
        Field::ULong(value) => integer(*value, out),
        Field::Float16(value) => float(value.to_f32(), f64::from(value.to_f32()), out),
        Field::Float(value) => float(*value, f64::from(*value), out),
        Field::Double(value) => float(*value, *value, out),
        Field::Decimal(value) => decimal(value, out)?,
        Field::Str(value) if value.len() > end.saturating_sub(out.len()) => return Err(too_large()),
        Field::Str(value) => string(value.as_bytes(), out),
        Field::Bytes(value) if value.len() > end.saturating_sub(out.len()) => {
            return Err(too_large());
        }
        Field::Bytes(value) => {
            out.extend_from_slice(b"{\"b64\":\"");
            base64::encode(value.data(), out);
            out.extend_from_slice(b"\"}");
        }
        Field::Group(row) => object(row, end, out)?,
        Field::ListInternal(list) => {
            out.push(b'[');
            for (index, element) in list.elements().iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                value(element, end, out)?;
            }
            out.push(b']');
        }
        Field::MapInternal(map) => {
            out.push(b'{');
            for (index, (key, element)) in map.entries().iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                map_key(key, end, out)?;
                out.push(b':');
                value(element, end, out)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

fn too_large() -> Error {
    Error::invalid("it is larger than a record may be: raise --max-record-mb")
}

/// A key that is not a string becomes its JSON in one, as in Python.
fn map_key(key: &Field, end: usize, out: &mut Vec<u8>) -> Result<()> {
    if let Field::Str(text) = key {
        string(text.as_bytes(), out);
        return Ok(());
    }
    let mut text = Vec::new();
    value(key, end, &mut text)?;
    string(text.trim_ascii(), out);
    Ok(())
}

fn integer(value: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// The shortest digits that read back as `exact`, whose value is `wide`.
fn float(exact: impl zmij::Float, wide: f64, out: &mut Vec<u8>) {
    if wide.is_nan() {
        out.extend_from_slice(b"NaN");
    } else if wide.is_infinite() {
        out.extend_from_slice(if wide > 0.0 { b"Infinity" } else { b"-Infinity" });
    } else {
        out.extend_from_slice(zmij::Buffer::new().format_finite(exact).as_bytes());
    }
}

/// A string, because most readers of JSON would round a number.
fn decimal(value: &Decimal, out: &mut Vec<u8>) -> Result<()> {
    let number = big_endian(value.data()).ok_or_else(|| {
        Error::invalid("a decimal has more than 38 digits, which is not supported")
    })?;
    let scale = usize::try_from(value.scale()).ok().filter(|scale| *scale <= MAX_SCALE);
    let scale = scale.ok_or_else(|| {
        Error::invalid(format!("a decimal has the scale {}, which is invalid", value.scale()))
    })?;
    let digits = format!("{:0width$}", number.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    out.push(b'"');
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(whole.as_bytes());
    if scale > 0 {
        out.push(b'.');
        out.extend_from_slice(fraction.as_bytes());
    }
    out.push(b'"');
    Ok(())
}

/// The number with these bytes in two's complement; `None` if it has more than 16.
fn big_endian(bytes: &[u8]) -> Option<i128> {
    let is_negative = bytes.first().is_some_and(|byte| *byte >= 0x80);
    let fill = if is_negative { 0xff } else { 0 };
    let extra = bytes.len().saturating_sub(size_of::<i128>());
    let (sign, bytes) = bytes.split_at(extra);
    let keeps_sign = bytes.first().is_none_or(|byte| (*byte >= 0x80) == is_negative);
    if !keeps_sign || sign.iter().any(|byte| *byte != fill) {
        return None;
    }
    let mut wide = [fill; size_of::<i128>()];
    let start = wide.len() - bytes.len();
    wide.get_mut(start..)?.copy_from_slice(bytes);
    Some(i128::from_be_bytes(wide))
}

#[cfg(test)]
mod tests {
    use parquet::data_type::ByteArray;

    use super::*;

    fn json(field: &Field) -> String {
        let mut out = Vec::new();
        value(field, usize::MAX, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn decimal_of(bytes: &[u8], scale: i32) -> Result<String> {
        let value = Decimal::from_bytes(ByteArray::from(bytes.to_vec()), 38, scale);
        let mut out = Vec::new();
        decimal(&value, &mut out).map(|()| String::from_utf8(out).unwrap())
    }

    #[test]
    fn floats_are_as_short_as_they_can_be() {
        assert_eq!(json(&Field::Float(0.1)), "0.1");
        assert_eq!(json(&Field::Float(16_777_216.0)), "16777216.0");
        assert_eq!(json(&Field::Double(0.1)), "0.1");
        assert_eq!(json(&Field::Double(f64::from(0.1_f32))), "0.10000000149011612");
        assert_eq!(json(&Field::Float(f32::NAN)), "NaN");
        assert_eq!(json(&Field::Double(f64::INFINITY)), "Infinity");
        assert_eq!(json(&Field::Float(f32::NEG_INFINITY)), "-Infinity");
        for value in [f64::MAX, f64::MIN_POSITIVE, -0.0, 1e300, 5e-324] {
            let back: f64 = serde_json::from_str(&json(&Field::Double(value))).unwrap();
            assert_eq!(back.to_bits(), value.to_bits());
        }
    }

    #[test]
    fn decimals_are_exact_strings() {
        let of = |value: i32, scale| decimal_of(&value.to_be_bytes(), scale).unwrap();
        assert_eq!(of(12345, 2), "\"123.45\"");
        assert_eq!(of(-5, 2), "\"-0.05\"");
        assert_eq!(of(0, 3), "\"0.000\"");
        assert_eq!(of(7, 0), "\"7\"");
        assert_eq!(decimal_of(&[], 0).unwrap(), "\"0\"");
        assert_eq!(decimal_of(&[0xff], 0).unwrap(), "\"-1\"");
        let wide = [[0; 4].as_slice(), &12_i128.to_be_bytes()].concat();
        assert_eq!(decimal_of(&wide, 1).unwrap(), "\"1.2\"");
        let wide = [[0xff; 4].as_slice(), &(-12_i128).to_be_bytes()].concat();
        assert_eq!(decimal_of(&wide, 1).unwrap(), "\"-1.2\"");
        assert!(decimal_of(&[1; 17], 0).is_err());
        assert!(decimal_of(&[[0; 1].as_slice(), &[0x80; 16]].concat(), 0).is_err());
        assert!(decimal_of(&[1], -1).is_err());
        assert!(decimal_of(&[1], 1 << 30).is_err());
    }
}
