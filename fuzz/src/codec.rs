//! The formats of payloads: `tensorserve_codec`.

use std::str;

use flate2::Crc;
use serde_json::Value;
use tensorserve_codec::base64::Alphabet;
use tensorserve_codec::csv::{CsvReader, Dialect};
use tensorserve_codec::json::dump::dump;
use tensorserve_codec::json::read::{ReadOptions, TensorReader};
use tensorserve_codec::json::scan::Cursor;
use tensorserve_codec::json::write::{self, Floats, JsonLayout, Style, Texts};
use tensorserve_codec::table::Header;
use tensorserve_codec::{base64 as codec_base64, cast, csv as codec_csv, npy as codec_npy, table};
use tensorserve_codec::{event_stream as aws, tfrecord as records};
use tensorserve_tensor::{DType, Signature, Tensor, TensorSpec};

use super::echo::DTYPES;
use super::memory::unwatched;
use super::server::received;
use super::target::selected;

/// The most memory of one tensor.
const MAX_TENSOR_BYTES: usize = 1 << 20;

/// The scanner accepts what `serde_json` accepts, and refuses what it refuses.
pub fn json(text: &[u8]) {
    let text = &received(text);
    let mut cursor = Cursor::new(text);
    let accepted = cursor.open_document().is_ok()
        && cursor.skip_value().is_ok()
        && cursor.skip_space() == 0
        && cursor.remaining() == 0;
    let shown = dump(text, 0);
    assert!(shown.len() <= 3 * text.len() + 1024, "{shown}");
    unwatched(|| check_accepted(text, accepted));
}

fn check_accepted(text: &[u8], accepted: bool) {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let Ok(text) = str::from_utf8(text) else { return };
    match serde_json::from_str::<Value>(text) {
        // The reference's parser takes only arrays and objects for documents.
        Ok(Value::Array(_) | Value::Object(_)) => assert!(accepted, "refused: {text:?}"),
        Ok(_) => {}
        Err(error) => {
            let error = error.to_string();
            // Limits of `serde_json`, and halves of surrogate pairs, which RapidJSON accepts.
            let limits = ["recursion limit", "out of range", "surrogate"];
            // RapidJSON's words for numbers that are not finite.
            let is_known = limits.iter().any(|word| error.contains(word))
                || ["NaN", "Inf"].iter().any(|word| text.contains(word));
            assert!(!accepted || is_known, "accepted, but {error}: {text:?}");
        }
    }
}

/// A value becomes a tensor, whose text becomes the same tensor, with the numbers that `serde_json`
/// reads. The first byte selects type and options.
pub fn json_tensor(input: &[u8]) {
    let Some((first, text)) = selected(input) else { return };
    let text = &received(text);
    let dtype = DTYPES[first % DTYPES.len()];
    let is_lenient = first / DTYPES.len() % 2 == 1;
    let options = ReadOptions {
        coerce: is_lenient,
        all_types: true,
        nulls: false,
        number_texts: None,
        alphabet: if is_lenient { Alphabet::Any } else { Alphabet::Standard },
        max_bytes: MAX_TENSOR_BYTES,
    };
    let Some((tensor, end)) = read_json(text, dtype, options) else { return };
    assert!(tensor.byte_len() <= MAX_TENSOR_BYTES, "{}", tensor.byte_len());
    if !is_lenient {
        unwatched(|| check_numbers(&tensor, text.get(..end).unwrap_or_default()));
    }
    let layouts = [JsonLayout::Compact, JsonLayout::Line, JsonLayout::Pretty];
    let layout = layouts[first % layouts.len()];
    let style = Style { layout, floats: Floats::TensorFlowServing, texts: Texts::Base64 };
    let mut written = Vec::new();
    if write::tensor(&tensor, style, 0, &mut written).is_err() || is_not_finite(&tensor) {
        return;
    }
    unwatched(|| {
        let again = read_json(&written, dtype, options).map(|(tensor, _)| tensor);
        let again = again.unwrap_or_else(|| panic!("refused: {:?}", str::from_utf8(&written)));
        assert!(is_same(&tensor, &again), "{tensor:?} and {again:?}");
    });
}

fn read_json(text: &[u8], dtype: DType, options: ReadOptions) -> Option<(Tensor, usize)> {
    let mut cursor = Cursor::new(text);
    cursor.skip_space();
    let mut reader = TensorReader::new(dtype, options, cursor.remaining());
    reader.read(&mut cursor).ok()?;
    let end = cursor.offset();
    Some((reader.finish().ok()?, end))
}

fn is_same(one: &Tensor, other: &Tensor) -> bool {
    one.dtype() == other.dtype()
        && one.shape() == other.shape()
        && one.bytes() == other.bytes()
        && strings(one) == strings(other)
}

/// The elements of a string tensor.
pub fn strings(tensor: &Tensor) -> Option<Vec<Vec<u8>>> {
    Some(tensor.strings()?.iter().map(<[u8]>::to_vec).collect())
}

/// Whether there are numbers that JSON cannot represent.
fn is_not_finite(tensor: &Tensor) -> bool {
    let floats = tensor.values::<f32>().is_some_and(|all| all.iter().any(|x| !x.is_finite()));
    let doubles = tensor.values::<f64>().is_some_and(|all| all.iter().any(|x| !x.is_finite()));
    let halves = matches!(tensor.dtype(), DType::Half | DType::BFloat16);
    floats || doubles || halves
}

/// Compares numbers with those that `serde_json` reads.
fn check_numbers(tensor: &Tensor, text: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return };
    let mut numbers = Vec::new();
    flatten(&value, &mut numbers);
    if let Some(values) = tensor.values::<f64>() {
        let expected: Option<Vec<f64>> = numbers.iter().map(|number| number.as_f64()).collect();
        let expected = expected.unwrap_or_default();
        assert_eq!(values.len(), expected.len());
        let mut pairs = values.iter().zip(&expected);
        // `serde_json` rounds a little wrong; unit tests compare with the standard library.
        assert!(pairs.all(|(x, y)| is_near(*x, *y)), "{values:?} and {expected:?}");
    }
    if let Some(values) = tensor.values::<i64>() {
        let numbers = numbers.iter().map(|number| number.as_i64().or(negative_zero(number)));
        let expected: Option<Vec<i64>> = numbers.collect();
        assert_eq!(Some(values), expected.as_deref());
    }
    if let Some(values) = tensor.values::<u64>() {
        let numbers = numbers.iter().map(|number| number.as_u64().or(negative_zero(number)));
        let expected: Option<Vec<u64>> = numbers.collect();
        assert_eq!(Some(values), expected.as_deref());
    }
}

/// Zero for `-0`, which is an integer for RapidJSON and a fraction for `serde_json`.
fn negative_zero<T: From<bool>>(number: &Value) -> Option<T> {
    let is_zero = number.as_f64().is_some_and(|number| number == 0.0);
    is_zero.then(|| T::from(false))
}

fn is_near(x: f64, y: f64) -> bool {
    x == y || ((x - y) / y).abs() < 1e-14
}

fn flatten<'v>(value: &'v Value, numbers: &mut Vec<&'v Value>) {
    match value.as_array() {
        Some(values) => values.iter().for_each(|value| flatten(value, numbers)),
        None => numbers.push(value),
    }
}

/// An array survives being written and read. The first byte selects a type to convert it to.
pub fn npy(input: &[u8]) {
    let Some((first, file)) = selected(input) else { return };
    let file = &received(file);
    let Ok(tensor) = codec_npy::read(file, MAX_TENSOR_BYTES) else { return };
    let wanted = DTYPES[first % DTYPES.len()];
    if let Some(converted) = cast::cast(&tensor, wanted) {
        assert_eq!((converted.dtype(), converted.shape()), (wanted, tensor.shape()));
    }
    let Ok(written) = codec_npy::write(&tensor, MAX_TENSOR_BYTES) else { return };
    let again = codec_npy::read(&written, 2 * MAX_TENSOR_BYTES).expect("what was written");
    if tensor.dtype() != DType::BFloat16 {
        assert!(is_same(&tensor, &again), "{tensor:?} and {again:?}");
    }
}

/// Fields, and numbers, which are the same in both readers. The first byte selects a type.
pub fn csv(input: &[u8]) {
    let Some((first, text)) = selected(input) else { return };
    let text = &received(text);
    let (rows, fields) = csv_size(text, Dialect::Container).expect("quotes may be open");
    let plain = csv_size(text, Dialect::Rfc4180);
    let multiline = csv_size(text, Dialect::Multiline);
    csv_tables(text);
    let dtype = DTYPES[first % DTYPES.len()];
    let Some(tensor) = codec_csv::numbers(text, dtype, MAX_TENSOR_BYTES) else { return };
    let columns = tensor.shape().dims().get(1).copied().unwrap_or(1);
    assert_eq!((tensor.rows(), columns * rows as i64), (Some(rows), fields as i64));
    assert_eq!((plain, multiline), (Some((rows, fields)), Some((rows, fields))));
}

/// The records and fields of a text; `None` if a quote is open.
fn csv_size(text: &[u8], dialect: Dialect) -> Option<(usize, usize)> {
    let (mut rows, mut fields, mut bytes) = (0, 0, 0);
    let mut reader = CsvReader::new(text, dialect);
    while reader.next_record().ok()? {
        rows += 1;
        while let Some(field) = reader.next_field().ok()? {
            let _ = codec_csv::kind(field);
            fields += 1;
            bytes += field.len();
        }
    }
    assert!(bytes <= text.len() && fields <= text.len() + 1, "{fields} fields of {bytes} bytes");
    Some((rows, fields))
}

/// All columns of a table have as many rows, and a matrix has as many fields in each.
fn csv_tables(text: &[u8]) {
    let spec = |alias, dtype, dims| TensorSpec::new(alias, dtype, dims).with_missing_values();
    let columns = vec![spec("a", DType::Double, &[-1]), spec("b", DType::String, &[-1])];
    let mut columns = Signature::only(columns, Vec::new());
    columns.unused_columns.push("c".to_owned());
    if let Ok(tensors) = table::read(text, &columns, Header::Auto, MAX_TENSOR_BYTES) {
        assert_eq!((tensors.len(), tensors[0].rows()), (2, tensors[1].rows()));
    }
    let matrix = Signature::only(vec![spec("x", DType::Float, &[-1, 3])], Vec::new());
    if let Ok(tensors) = table::read(text, &matrix, Header::Auto, MAX_TENSOR_BYTES) {
        // One number in each row makes a vector.
        assert!(matches!(tensors[0].shape().dims().len(), 1 | 2));
    }
}

/// What is decoded is what another implementation decodes, and survives being encoded.
pub fn base64(text: &[u8]) {
    let text = &received(text);
    for alphabet in [Alphabet::Standard, Alphabet::Any] {
        let mut decoded = b"kept".to_vec();
        if codec_base64::decode(text, alphabet, &mut decoded).is_err() {
            assert_eq!(decoded, b"kept");
            continue;
        }
        let bytes = decoded.split_off(4);
        assert!(bytes.len() <= text.len(), "{} bytes", bytes.len());
        unwatched(|| check_encoded(&bytes));
    }
}

fn check_encoded(bytes: &[u8]) {
    let (mut standard, mut url_safe, mut again) = (Vec::new(), Vec::new(), Vec::new());
    codec_base64::encode(bytes, &mut standard);
    codec_base64::encode_url_safe(bytes, &mut url_safe);
    for encoded in [standard, url_safe] {
        again.clear();
        codec_base64::decode(&encoded, Alphabet::Any, &mut again).expect("what was encoded");
        assert_eq!(again, bytes);
    }
}

/// The records of a file make the same file.
pub fn tfrecord(file: &[u8]) {
    let file: &[u8] = &received(file);
    let mut reader = records::TfRecordReader::new(file, file.len());
    let (mut record, mut written) = (Vec::new(), Vec::new());
    while let Ok(true) = reader.next(&mut record) {
        unwatched(|| records::append(&record, &mut written));
    }
    assert!(file.starts_with(&written), "{} bytes", written.len());
}

/// A payload comes out of its messages, whose lengths and checksums are right.
pub fn event_stream(payload: &[u8]) {
    let stream = aws::payload_parts(payload).expect("memory");
    unwatched(|| check_parts(&stream, payload));
}

fn check_parts(stream: &[u8], payload: &[u8]) {
    let (mut rest, mut parts) = (stream, Vec::new());
    while !rest.is_empty() {
        let (total, headers) = (number(&rest[..4]) as usize, number(&rest[4..8]) as usize);
        assert_eq!(number(&rest[8..12]), checksum_of(&rest[..8]));
        let (message, checksum) = rest[..total].split_at(total - 4);
        assert_eq!(number(checksum), checksum_of(message));
        parts.extend_from_slice(&message[12 + headers..]);
        rest = &rest[total..];
    }
    assert_eq!(parts, payload);
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

fn checksum_of(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}
