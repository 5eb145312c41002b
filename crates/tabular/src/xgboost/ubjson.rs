//! Reads UBJSON (<https://ubjson.org>, draft 12) into [`Value`]s: numbers are big-endian, lengths
//! are numbers with their type before them, and lists may name one type for all their elements.

use super::broken;
use super::document::{Count, Value};
use super::scan::Scan;
use tensorserve_tensor::error::Result;

/// Reads the one value of `bytes`.
pub(super) fn read(bytes: &[u8]) -> Result<Value> {
    let mut scan = Scan::new(bytes);
    let marker = scan.byte()?;
    value(marker, &mut scan, &mut Count::default(), 0)
}

/// The value that `marker` announces.
fn value(marker: u8, scan: &mut Scan, count: &mut Count, depth: usize) -> Result<Value> {
    count.one_more(depth)?;
    match marker {
        b'{' => object(scan, count, depth),
        b'[' => array(scan, count, depth),
        b'S' => text(scan).map(Value::Text),
        b'Z' => Ok(Value::Nothing),
        _ => number(marker, scan).map(Value::Number),
    }
}

fn object(scan: &mut Scan, count: &mut Count, depth: usize) -> Result<Value> {
    let mut members = Vec::new();
    while scan.peek() != Some(b'}') {
        let name = text(scan)?;
        let marker = scan.byte()?;
        let value = value(marker, scan, count, depth + 1)?;
        if Value::keeps(&name) {
            members.push((name, value));
        }
    }
    scan.byte()?;
    Ok(Value::Object(members))
}

fn array(scan: &mut Scan, count: &mut Count, depth: usize) -> Result<Value> {
    if scan.take(b'$') {
        return typed_array(scan);
    }
    // Without a length, the list ends at a bracket.
    let mut left = match scan.take(b'#') {
        true => Some(length(scan)?),
        false => None,
    };
    let mut numbers = Vec::new();
    let mut list = Vec::new();
    loop {
        match &mut left {
            Some(0) => break,
            Some(left) => *left -= 1,
            None if scan.take(b']') => break,
            None => {}
        }
        match scan.byte()? {
            marker @ (b'{' | b'[' | b'S' | b'Z') => {
                list.push(value(marker, scan, count, depth + 1)?);
            }
            marker => numbers.push(number(marker, scan)?),
        }
    }
    match (numbers.is_empty(), list.is_empty()) {
        (false, false) => Err(broken(format!("a list mixes numbers and others, {}", scan.place()))),
        (false, true) => Ok(Value::Numbers(numbers)),
        (true, _) => Ok(Value::List(list)),
    }
}

/// A list whose elements are of one type of number.
fn typed_array(scan: &mut Scan) -> Result<Value> {
    let marker = scan.byte()?;
    if !scan.take(b'#') {
        return Err(broken(format!("a list has a type and no length, {}", scan.place())));
    }
    let size = match marker {
        b'i' | b'U' => 1,
        b'I' => 2,
        b'l' | b'd' => 4,
        b'L' | b'D' => 8,
        _ => return Err(unknown(marker, scan)),
    };
    let length = length(scan)?;
    let bytes = length.checked_mul(size).ok_or_else(|| scan.too_short())?;
    let mut elements = Scan::new(scan.bytes(bytes)?);
    let numbers = (0..length).map(|_| number(marker, &mut elements));
    numbers.collect::<Result<_>>().map(Value::Numbers)
}

#[allow(clippy::cast_precision_loss)] // None of the library's numbers is that large.
fn number(marker: u8, scan: &mut Scan) -> Result<f64> {
    Ok(match marker {
        b'i' => f64::from(i8::from_be_bytes(scan.array()?)),
        b'U' | b'C' => f64::from(scan.byte()?),
        b'I' => f64::from(i16::from_be_bytes(scan.array()?)),
        b'l' => f64::from(i32::from_be_bytes(scan.array()?)),
        b'L' => i64::from_be_bytes(scan.array()?) as f64,
        b'd' => f64::from(f32::from_be_bytes(scan.array()?)),
        b'D' => f64::from_be_bytes(scan.array()?),
        b'T' => 1.0,
        b'F' => 0.0,
        _ => return Err(unknown(marker, scan)),
    })
}

fn unknown(marker: u8, scan: &Scan) -> tensorserve_tensor::error::Error {
    let marker = char::from(marker);
    broken(format!("{marker:?} announces no kind of value, {}", scan.place()))
}

fn text(scan: &mut Scan) -> Result<String> {
    let length = length(scan)?;
    Ok(String::from_utf8_lossy(scan.bytes(length)?).into_owned())
}

/// A length: an integer with its type before it.
fn length(scan: &mut Scan) -> Result<usize> {
    let marker = scan.byte()?;
    let length = match marker {
        b'i' => i64::from(i8::from_be_bytes(scan.array()?)),
        b'U' => i64::from(scan.byte()?),
        b'I' => i64::from(i16::from_be_bytes(scan.array()?)),
        b'l' => i64::from(i32::from_be_bytes(scan.array()?)),
        b'L' => i64::from_be_bytes(scan.array()?),
        _ => return Err(broken(format!("a length is missing, {}", scan.place()))),
    };
    usize::try_from(length).map_err(|_| broken(format!("a length is negative, {}", scan.place())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_kinds() {
        let object = b"{U\x01aSi\x02xyU\x01bZU\x01c[TFi\xff]U\x01d[$d#i\x01\x3f\x80\0\0U\x01e[#U\x02Si\x01xSi\x01yU\x01f[$l#L\0\0\0\0\0\0\0\x01\xff\xff\xff\xfeU\x01g[#i\0}";
        let value = read(object).expect("UBJSON");
        assert_eq!(value.text("a").expect("text"), "xy");
        assert_eq!(value.find("b"), Some(&Value::Nothing));
        assert_eq!(value.numbers("c").expect("numbers"), [1.0, 0.0, -1.0]);
        assert_eq!(value.numbers("d").expect("numbers"), [1.0]);
        assert_eq!(value.texts("e").expect("texts"), ["x", "y"]);
        assert_eq!(value.numbers("f").expect("numbers"), [-2.0]);
        assert_eq!(value.numbers("g").expect("none"), [] as [f64; 0]);
        for end in 0..object.len() {
            assert!(read(object.get(..end).expect("in it")).is_err(), "cut at {end}");
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
