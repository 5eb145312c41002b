//! Comma-separated values: the one reader of them, of three dialects.
//!
//! [`Dialect::Rfc4180`] is RFC 4180 with the habits of pandas. [`Dialect::Container`] is what SageMaker's
//! containers make of a body; their clients rely on it to the byte. [`Dialect::Multiline`] is
//! the same for records that may span lines.

use crate::json::number::Number;
use crate::json::scan::Cursor;
use crate::json::{NumberBuffer, Scalar};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Shape, Tensor};

mod record;

pub use self::record::RecordScan;

/// What quotes, blanks and line breaks mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// A quote at the start of a field opens it; in it are commas, line breaks and quotes, which are doubled.
    /// Any other quote and all blanks are text. Lines of blanks are skipped. A carriage return ends a line,
    /// too.
    Rfc4180,
    /// The text is split at line feeds, lines are trimmed, and those without text are skipped. A quote anywhere
    /// starts or ends a quoted part, in which commas are text and two quotes stand for one. A field cannot span
    /// lines.
    Container,
    /// As [`Dialect::Container`], but records end where [`RecordScan`] says: quoted fields may have line feeds.
    Multiline,
}

/// Reads records, field by field:
///
/// ```text
/// while reader.next_record()? {
///     while let Some(field) = reader.next_field()? { … }
/// }
/// ```
#[derive(Clone)]
pub struct CsvReader<'t> {
    dialect: Dialect,
    /// What has not been read of the record; of [`Dialect::Rfc4180`], of the text.
    rest: &'t [u8],
    /// The lines after those of the record; none of [`Dialect::Rfc4180`].
    behind: &'t [u8],
    /// Whether the record has another field.
    is_open: bool,
    /// The number of the line at `rest`, from 1.
    line: usize,
    /// The number of the line at which the record starts.
    record_line: usize,
    /// A field that had quotes.
    field: Vec<u8>,
}

impl<'t> CsvReader<'t> {
    /// A reader of `text`, which may start with a byte order mark.
    #[must_use]
    pub fn new(text: &'t [u8], dialect: Dialect) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let (rest, behind): (&[u8], &[u8]) = match dialect {
            Dialect::Rfc4180 => (text, &[]),
            Dialect::Container | Dialect::Multiline => (&[], text),
        };
        CsvReader {
            dialect,
            rest,
            behind,
            is_open: false,
            line: 1,
            record_line: 1,
            field: Vec::new(),
        }
    }

    /// A reader of the fields of one record of [`Dialect::Container`], which another reader has found: line breaks
    /// are text.
    #[must_use]
    pub fn of_record(record: &'t [u8]) -> Self {
        CsvReader { rest: record, is_open: true, ..CsvReader::new(&[], Dialect::Container) }
    }

    /// The next field of the record as it is written, with its quotes; `None` at its end.
    ///
    /// # Errors
    /// As [`CsvReader::next_field`].
    pub fn next_raw_field(&mut self) -> Result<Option<&'t [u8]>> {
        let before = self.rest;
        if self.next_field()?.is_none() {
            return Ok(None);
        }
        // Behind a field that is not the last one is its comma.
        let length = match self.is_open {
            true => before.len().saturating_sub(self.rest.len() + 1),
            false => before.len(),
        };
        Ok(before.get(..length))
    }

    /// Goes to the next record with text; false at the end of the text.
    ///
    /// # Errors
    /// If what is left of this record has an open quote.
    pub fn next_record(&mut self) -> Result<bool> {
        while self.is_open {
            self.next_field()?;
        }
        self.is_open = match self.dialect {
            Dialect::Rfc4180 => self.skip_blank_lines(),
            Dialect::Container => self.next_line(|text| (memchr::memchr(b'\n', text), 1)),
            Dialect::Multiline => self.next_line(end_of_record),
        };
        Ok(self.is_open)
    }

    /// The next field of the record; `None` at its end.
    ///
    /// # Errors
    /// If it has a quote that nothing closes.
    pub fn next_field(&mut self) -> Result<Option<&[u8]>> {
        if !self.is_open {
            return Ok(None);
        }
        if self.dialect != Dialect::Rfc4180 {
            return Ok(Some(self.field_of_line()));
        }
        if self.rest.first() == Some(&b'"') {
            return self.quoted_field().map(Some);
        }
        Ok(Some(self.take_to_end()))
    }

    /// The number of the line at which the record starts, from 1.
    #[must_use]
    pub fn record_line(&self) -> usize {
        self.record_line
    }

    /// The text after the record.
    ///
    /// # Errors
    /// If the record has an open quote.
    pub fn after_record(mut self) -> Result<&'t [u8]> {
        while self.is_open {
            self.next_field()?;
        }
        Ok(match self.dialect {
            Dialect::Rfc4180 => self.rest,
            Dialect::Container | Dialect::Multiline => self.behind,
        })
    }

    fn skip_blank_lines(&mut self) -> bool {
        loop {
            let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t');
            let Some(at) = self.rest.iter().position(is_text) else {
                return false;
            };
            if !matches!(self.rest.get(at), Some(b'\n' | b'\r')) {
                self.record_line = self.line;
                return true;
            }
            self.end_field(at);
        }
    }

    /// Goes to the next record with text; `end` finds the line feed at which a record ends, and counts its lines.
    fn next_line(&mut self, end: impl Fn(&[u8]) -> (Option<usize>, usize)) -> bool {
        while !self.behind.is_empty() {
            let (end, lines) = end(self.behind);
            let (line, behind) = match end {
                Some(end) => self.behind.split_at_checked(end).unwrap_or_default(),
                None => (self.behind, &[][..]),
            };
            self.rest = line.trim_ascii();
            self.behind = behind.get(1..).unwrap_or_default();
            self.record_line = self.line;
            self.line += lines;
            if !self.rest.is_empty() {
                return true;
            }
        }
        false
    }

    /// The text up to the end of the field.
    fn take_to_end(&mut self) -> &'t [u8] {
        let rest = self.rest;
        let end = memchr::memchr3(b',', b'\n', b'\r', rest).unwrap_or(rest.len());
        self.end_field(end);
        rest.get(..end).unwrap_or_default()
    }

    /// Goes behind what ends the field at `end`: a comma, a line break, or the end of the text.
    fn end_field(&mut self, end: usize) {
        let (length, is_open) = match self.rest.get(end..).unwrap_or_default() {
            [b',', ..] => (1, true),
            [b'\r', b'\n', ..] => (2, false),
            [_, ..] => (1, false),
            [] => (0, false),
        };
        self.is_open = is_open;
        self.line += usize::from(!is_open && length > 0);
        self.rest = self.rest.get(end + length..).unwrap_or_default();
    }

    /// The field that the quote at `rest` opens. What follows the closing quote is text as it is.
    fn quoted_field(&mut self) -> Result<&[u8]> {
        let opened = self.line;
        self.field.clear();
        let mut rest = self.rest.get(1..).unwrap_or_default();
        loop {
            let Some(end) = memchr::memchr(b'"', rest) else {
                self.is_open = false;
                self.rest = &[];
                return Err(Error::invalid(format!(
                    "the quote that opens a field in line {opened} is not closed"
                )));
            };
            let (text, after) = rest.split_at_checked(end).unwrap_or_default();
            self.field.extend_from_slice(text);
            self.line += memchr::memchr_iter(b'\n', text).count();
            rest = after.get(1..).unwrap_or_default();
            if rest.first() != Some(&b'"') {
                break;
            }
            self.field.push(b'"');
            rest = rest.get(1..).unwrap_or_default();
        }
        self.rest = rest;
        let tail = self.take_to_end();
        self.field.extend_from_slice(tail);
        Ok(&self.field)
    }

    /// The first field at `rest`, of any dialect but [`Dialect::Rfc4180`].
    fn field_of_line(&mut self) -> &[u8] {
        self.field.clear();
        let mut is_quoted = false;
        loop {
            let rest = self.rest;
            let stop = match is_quoted {
                true => memchr::memchr(b'"', rest),
                false => memchr::memchr2(b'"', b',', rest),
            };
            let (text, after) =
                rest.split_at_checked(stop.unwrap_or(rest.len())).unwrap_or_default();
            self.field.extend_from_slice(text);
            match (after, is_quoted) {
                ([b',', next @ ..], _) => {
                    self.rest = next;
                    break;
                }
                ([b'"', b'"', next @ ..], true) => {
                    self.field.push(b'"');
                    self.rest = next;
                }
                ([_, next @ ..], _) => {
                    is_quoted = !is_quoted;
                    self.rest = next;
                }
                ([], _) => {
                    self.rest = &[];
                    self.is_open = false;
                    break;
                }
            }
        }
        &self.field
    }
}

/// The line feed at which the record ends that `text` starts with, if it has one, and the number of its lines.
fn end_of_record(text: &[u8]) -> (Option<usize>, usize) {
    let mut scan = RecordScan::new(0);
    let end = scan.end(text).map(|end| end - 1);
    let lines = scan.lines() + u64::from(end.is_none());
    (end, usize::try_from(lines).unwrap_or(usize::MAX))
}

/// The fields that pandas takes for missing values, in the order of their bytes.
const MISSING: [&[u8]; 19] = [
    b"",
    b"#N/A",
    b"#N/A N/A",
    b"#NA",
    b"-1.#IND",
    b"-1.#QNAN",
    b"-NaN",
    b"-nan",
    b"1.#IND",
    b"1.#QNAN",
    b"<NA>",
    b"N/A",
    b"NA",
    b"NULL",
    b"NaN",
    b"None",
    b"n/a",
    b"nan",
    b"null",
];

/// Whether pandas takes a field for a missing value.
#[must_use]
pub fn is_missing(field: &[u8]) -> bool {
    field.len() <= 8 && MISSING.binary_search(&field).is_ok()
}

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'f> {
    /// A number in JSON's syntax, without surrounding white space. It may be quoted.
    Number(&'f [u8]),
    /// Anything else.
    Text,
}

/// The type of `field`.
#[must_use]
pub fn kind(field: &[u8]) -> Field<'_> {
    let trimmed = field.trim_ascii();
    if is_number(trimmed) { Field::Number(trimmed) } else { Field::Text }
}

/// Whether `text` is `-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?`.
fn is_number(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let (whole, mut rest) = digits(text);
    if whole.is_empty() || (whole.len() > 1 && whole.first() == Some(&b'0')) {
        return false;
    }
    if let Some(after) = rest.strip_prefix(b".") {
        let (fraction, after) = digits(after);
        if fraction.is_empty() {
            return false;
        }
        rest = after;
    }
    if let [b'e' | b'E', after @ ..] = rest {
        let after = match after {
            [b'+' | b'-', after @ ..] => after,
            _ => after,
        };
        let (exponent, after) = digits(after);
        return !exponent.is_empty() && after.is_empty();
    }
    rest.is_empty()
}

/// Splits `text` after its leading decimal digits.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or_default()
}

/// Reads lines that hold only numbers into a tensor: a matrix with one row per line, or a vector if
/// every line has one number. `None` for text, quotes, lines of different lengths, numbers that
/// `dtype` cannot represent, and more than `max_bytes`; [`CsvReader`] and [`kind`] read these.
#[must_use]
pub fn numbers(text: &[u8], dtype: DType, max_bytes: usize) -> Option<Tensor> {
    match dtype {
        DType::Float => read_rows::<f32>(text, max_bytes),
        DType::Double => read_rows::<f64>(text, max_bytes),
        DType::Int8 => read_rows::<i8>(text, max_bytes),
        DType::Int16 => read_rows::<i16>(text, max_bytes),
        DType::Int32 => read_rows::<i32>(text, max_bytes),
        DType::Int64 => read_rows::<i64>(text, max_bytes),
        DType::UInt8 => read_rows::<u8>(text, max_bytes),
        DType::UInt32 => read_rows::<u32>(text, max_bytes),
        DType::UInt64 => read_rows::<u64>(text, max_bytes),
        DType::UInt16
        | DType::Half
        | DType::BFloat16
        | DType::Complex64
        | DType::Complex128
        | DType::Bool
        | DType::String => None,
    }
}

fn read_rows<T: Scalar>(text: &[u8], max_bytes: usize) -> Option<Tensor> {
    let mut values = NumberBuffer::<T>::new(text.len());
    let mut cursor = Cursor::new(text);
    let (mut rows, mut columns) = (0, 0);
    while skip_blank_lines(&mut cursor) {
        let before = values.len();
        read_row(&mut cursor, &mut values, max_bytes)?;
        let found = values.len() - before;
        if rows > 0 && found != columns {
            return None;
        }
        columns = found;
        rows += 1;
    }
    let shape = match columns {
        0 => return None,
        1 => Shape::vector(rows),
        _ => Shape::new(&[i64::try_from(rows).ok()?, i64::try_from(columns).ok()?]).ok()?,
    };
    Tensor::from_vec(shape, values.finish()).ok()
}

/// Skips to the next non-blank line; false at the end of the text.
fn skip_blank_lines(cursor: &mut Cursor) -> bool {
    cursor.skip_space();
    cursor.remaining() > 0
}

/// Reads the numbers of a line, up to its end.
fn read_row<T: Scalar>(
    cursor: &mut Cursor,
    numbers: &mut NumberBuffer<T>,
    max_bytes: usize,
) -> Option<()> {
    loop {
        skip_spaces(cursor);
        // `NaN` and `Infinity` are numbers for the JSON reader, but text in CSV.
        if !matches!(cursor.peek(), b'-' | b'0'..=b'9') {
            return None;
        }
        let number = cursor.number().ok()?;
        if matches!(number, Number::Float(value) if !value.is_finite()) {
            return None;
        }
        numbers.make_room(cursor.remaining(), max_bytes).ok().filter(|may| *may)?;
        numbers.values().push(T::from_number(number)?);
        skip_spaces(cursor);
        match cursor.peek() {
            b',' => cursor.advance(),
            b'\n' => return Some(()),
            // A carriage return counts only as part of a line break.
            b'\r' => {
                cursor.advance();
                return matches!(cursor.peek(), b'\n').then_some(());
            }
            _ => return (cursor.remaining() == 0).then_some(()),
        }
    }
}

fn skip_spaces(cursor: &mut Cursor) {
    while matches!(cursor.peek(), b' ' | b'\t') {
        cursor.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &str, dialect: Dialect) -> Result<Vec<(usize, Vec<String>)>> {
        let mut reader = CsvReader::new(text.as_bytes(), dialect);
        let mut all = Vec::new();
        while reader.next_record()? {
            let mut record = Vec::new();
            while let Some(field) = reader.next_field()? {
                record.push(String::from_utf8_lossy(field).into_owned());
            }
            all.push((reader.record_line(), record));
        }
        Ok(all)
    }

    fn fields(line: &str) -> Vec<String> {
        let mut all = records(line, Dialect::Container).expect("no error");
        all.pop().expect("a record").1
    }

    #[test]
    fn quotes_of_the_container_are_anywhere() {
        assert_eq!(fields("a,b"), ["a", "b"]);
        assert_eq!(fields("1,,"), ["1", "", ""]);
        assert_eq!(fields(r#""a,b",c"#), ["a,b", "c"]);
        assert_eq!(fields(r#""a""b",c"#), ["a\"b", "c"]);
        assert_eq!(fields(r#"a"b,c"d"#), ["ab,cd"]);
        assert_eq!(fields(r#"",""#), [","]);
        assert_eq!(fields(r#""""",1"#), ["\"", "1"]);
        assert_eq!(fields(r#""",x"#), ["", "x"]);
        assert_eq!(fields(r#""open,1"#), ["open,1"]);
        let text = "\u{feff}1,2\r\n\r\n  3,4  \n\n";
        let all = records(text, Dialect::Container).expect("no error");
        let of = |line, a: &str, b: &str| (line, vec![a.to_owned(), b.to_owned()]);
        assert_eq!(all, [of(1, "1", "2"), of(3, "3", "4")]);
    }

    #[test]
    fn records_of_several_lines_have_the_fields_of_the_container() {
        let text = "\u{feff}1,\"a\nb\"\r\n \n\"\"\"\n,\" x,y \nc\"d,e\"f\n\n\"open\n,1";
        let all = records(text, Dialect::Multiline).expect("no error");
        let of = |line, fields: &[&str]| {
            (line, fields.iter().map(|field| (*field).to_owned()).collect::<Vec<_>>())
        };
        let right = [
            of(1, &["1", "a\nb"]),
            of(4, &["\"\n, x", "y"]),
            of(6, &["cd,ef"]),
            of(8, &["open\n,1"]),
        ];
        assert_eq!(all, right);
        // Without quotes at the starts of fields, records are lines.
        let plain = "1,2\r\n\r\n  3,4\"x  \n\nd";
        let lines = records(plain, Dialect::Container).expect("no error");
        assert_eq!(records(plain, Dialect::Multiline).expect("no error"), lines);
    }

    /// As `pandas.read_csv` of pandas 3.1 reads them.
    #[test]
    fn quotes_of_rfc_4180_are_around_fields() {
        let of = |text: &str| records(text, Dialect::Rfc4180);
        let one = |text: &str| {
            let mut all = of(text).expect("no error");
            assert_eq!(all.len(), 1, "{text}");
            all.pop().expect("a record").1
        };
        assert_eq!(one("a,b"), ["a", "b"]);
        assert_eq!(one("1,,\n"), ["1", "", ""]);
        assert_eq!(one(" a , b \r\n"), [" a ", " b "]);
        assert_eq!(one("\"a,b\",c"), ["a,b", "c"]);
        assert_eq!(one("\"a\"\"b\",\"\"\"\",\"\""), ["a\"b", "\"", ""]);
        assert_eq!(one("a\"b,c\"d, \"e\""), ["a\"b", "c\"d", " \"e\""]);
        assert_eq!(one("\"a\"b\"c\",d"), ["ab\"c\"", "d"]);
        assert_eq!(one("\u{feff}\"a\""), ["a"]);
        let all = of(" \n\"a\nb\",1\r\t\r\n\"\r\n\"\n\nc,2").expect("no error");
        let lines: Vec<usize> = all.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 5, 8]);
        assert_eq!((all[0].1[0].as_str(), all[1].1[0].as_str()), ("a\nb", "\r\n"));
        assert_eq!(of(" \n\n  ").expect("no error"), []);
        let error = of("a\n\"x\"\"\n1,\n").expect_err("an open quote");
        assert_eq!(error.message(), "the quote that opens a field in line 2 is not closed");
    }

    #[test]
    fn what_follows_a_record_is_told() {
        let mut reader = CsvReader::new(b"\n\"a\nb\",c\r\n1,2\n", Dialect::Rfc4180);
        assert!(reader.next_record().expect("no error"));
        assert_eq!(reader.after_record().expect("no error"), b"1,2\n");
    }

    #[test]
    fn numbers_are_those_of_json() {
        for number in ["0", "-0", "10", "1.5", "-1.0e5", "1E-3", "1e+30", " 7\t"] {
            assert!(matches!(kind(number.as_bytes()), Field::Number(_)), "{number}");
        }
        for text in ["", "-", "+1", ".5", "1.", "007", "1e", "1e+", "nan", "NaN", "1;2", "0x1"] {
            assert_eq!(kind(text.as_bytes()), Field::Text, "{text}");
        }
    }

    fn floats(text: &str) -> Option<(Vec<i64>, Vec<f32>)> {
        let tensor = numbers(text.as_bytes(), DType::Float, 1 << 20)?;
        Some((tensor.shape().dims().to_vec(), tensor.values().expect("floats").to_vec()))
    }

    #[test]
    fn lines_of_numbers_are_a_tensor() {
        assert_eq!(floats("1,2\n3,4.5\n"), Some((vec![2, 2], vec![1.0, 2.0, 3.0, 4.5])));
        assert_eq!(floats("1\r\n\r\n 2 \r\n"), Some((vec![2], vec![1.0, 2.0])));
        assert_eq!(floats("\u{feff}1e1 ,\t-0.5"), Some((vec![1, 2], vec![10.0, -0.5])));
        for other in [
            "", " ", "1,2\n3", "1,", ",1", "1,\n2", "a", "1,NaN", "-Inf", "\"1\"", "007", "1.",
            "1\0", "1\r2", "1e999",
        ] {
            assert_eq!(floats(other), None, "{other:?}");
        }
        assert!(numbers(b"1.5", DType::Int32, 100).is_none());
        assert!(numbers(b"1,2,3", DType::Int64, 23).is_none());
        assert!(numbers(b"1,2,3", DType::Int64, 24).is_some());
    }
}
