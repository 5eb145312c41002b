//! Outputs as SageMaker's SDK for Python writes them in its local mode, to the byte.
//!
//! Source: `sagemaker/local/data.py` and `sagemaker/local/entities.py` of sagemaker 2.257: text is read
//! with universal line breaks, each record keeps its line break, payloads are measured as Python measures
//! strings, the response is written whatever its status is, and a line break follows each response if
//! the job assembles lines.

use std::io::Write;

use bytes::Bytes;

use crate::job::{InputFormat, Job, SdkExact};
use crate::model::Model;
use tensorserve_records::split::Split;
use tensorserve_tensor::error::{Error, Result};

/// The bytes besides the characters of a string object: of ASCII, of Latin-1, of two bytes for each
/// character, and of four (CPython up to 3.11).
const ASCII_OBJECT: u64 = 49;
const LATIN_OBJECT: u64 = 73;
const WIDE_OBJECT: u64 = 74;
const WIDEST_OBJECT: u64 = 76;
/// The bytes besides the content of a bytes object.
const BYTES_OBJECT: u64 = 33;

/// Writes the output of an object with this content, and returns the number of payloads and of bytes.
///
/// # Errors
/// If a record is larger than a payload may be, or the output cannot be written.
pub(crate) fn transform(
    job: &Job,
    exact: SdkExact,
    model: &dyn Model,
    content: &Bytes,
    out: &mut impl Write,
) -> Result<(u64, u64)> {
    let (mut payloads, mut bytes) = (0, 0);
    let split = match job.input {
        InputFormat::Split(split) => split,
        InputFormat::Parquet | InputFormat::Npy => Split::None,
    };
    each_payload(split, exact, content, |payload| {
        let response = model.respond(payload);
        let mut write = |text: &[u8]| {
            bytes += u64::try_from(text.len()).unwrap_or(0);
            out.write_all(text).map_err(|e| Error::unavailable(format!("the output: {e}")))
        };
        payloads += 1;
        write(&response)?;
        if exact.assemble_lines { write(b"\n") } else { Ok(()) }
    })?;
    Ok((payloads, bytes))
}

/// Calls `send` with each payload.
fn each_payload(
    split: Split,
    exact: SdkExact,
    content: &Bytes,
    mut send: impl FnMut(Bytes) -> Result<()>,
) -> Result<()> {
    let is_text = !is_binary(content) && std::str::from_utf8(content).is_ok();
    if split == Split::None {
        check(size_of(content, is_text), exact)?;
        return send(content.clone());
    }
    if !is_text && std::str::from_utf8(content).is_err() {
        return Err(Error::invalid("it is not UTF-8, and --split line reads text"));
    }
    let text = with_newlines(content);
    if !exact.multi_record {
        for record in lines(&text) {
            check(size_of(record, true), exact)?;
            send(text.slice_ref(record))?;
        }
        return Ok(());
    }
    let mut payload = 0..0;
    let mut size = TextSize::default();
    for record in lines(&text) {
        let next = size.with(record);
        let end = payload.end + record.len();
        if exact.max_payload_mib == 0 || next.bytes() < limit(exact) {
            (payload.end, size) = (end, next);
            continue;
        }
        // Also an empty one, before a record that is too large.
        send(text.slice(payload.clone()))?;
        payload = payload.end..end;
        size = TextSize::default().with(record);
    }
    check(size.bytes(), exact)?;
    send(text.slice(payload))
}

fn limit(exact: SdkExact) -> u64 {
    exact.max_payload_mib.saturating_mul(1 << 20)
}

fn check(size: u64, exact: SdkExact) -> Result<()> {
    if exact.max_payload_mib == 0 || size < limit(exact) {
        return Ok(());
    }
    let most = exact.max_payload_mib;
    Err(Error::invalid(format!("Record is larger than {most}MB. Please increase your max_payload")))
}

/// The lines, with their line breaks.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n')
}

/// The text with `\n` for every line break.
fn with_newlines(content: &Bytes) -> Bytes {
    if memchr::memchr(b'\r', content).is_none() {
        return content.clone();
    }
    let mut text = Vec::with_capacity(content.len());
    let mut rest: &[u8] = content;
    while let Some(at) = memchr::memchr(b'\r', rest) {
        let (before, after) = rest.split_at_checked(at).unwrap_or_default();
        text.extend_from_slice(before);
        text.push(b'\n');
        rest = match after {
            [_, b'\n', rest @ ..] | [_, rest @ ..] => rest,
            [] => after,
        };
    }
    text.extend_from_slice(rest);
    text.into()
}

/// Whether the SDK takes a file for binary: it has control characters that text does not have.
fn is_binary(content: &[u8]) -> bool {
    content.iter().any(|byte| !matches!(byte, 7..=10 | 12 | 13 | 27 | 0x20..=0x7e | 0x80..))
}

fn size_of(content: &[u8], is_text: bool) -> u64 {
    match is_text {
        true => TextSize::default().with(content).bytes(),
        false => BYTES_OBJECT + u64::try_from(content.len()).unwrap_or(u64::MAX / 2),
    }
}

/// The size of a Python string: it depends on its widest character.
#[derive(Clone, Copy, Default)]
struct TextSize {
    characters: u64,
    widest: u32,
}

impl TextSize {
    /// The size with this UTF-8 appended.
    fn with(self, text: &[u8]) -> Self {
        let characters = text.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        let widest = match text.is_ascii() {
            true => 0,
            false => String::from_utf8_lossy(text).chars().map(u32::from).max().unwrap_or(0),
        };
        TextSize {
            characters: self.characters + u64::try_from(characters).unwrap_or(0),
            widest: self.widest.max(widest),
        }
    }

    fn bytes(self) -> u64 {
        match self.widest {
            0..=0x7f => ASCII_OBJECT + self.characters,
            0x80..=0xff => LATIN_OBJECT + self.characters,
            0x100..=0xffff => WIDE_OBJECT + 2 * self.characters,
            _ => WIDEST_OBJECT + 4 * self.characters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payloads(split: Split, exact: SdkExact, content: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        each_payload(split, exact, &Bytes::copy_from_slice(content), |payload| {
            all.push(payload.to_vec());
            Ok(())
        })?;
        Ok(all)
    }

    const MULTI: SdkExact =
        SdkExact { multi_record: true, assemble_lines: true, max_payload_mib: 1 };
    const SINGLE: SdkExact = SdkExact { multi_record: false, ..MULTI };

    #[test]
    fn records_keep_their_line_breaks() {
        let text = b"1,2\r\n\n3\r4";
        let single = payloads(Split::Line, SINGLE, text).expect("small");
        assert_eq!(single, [&b"1,2\n"[..], b"\n", b"3\n", b"4"]);
        assert_eq!(payloads(Split::Line, MULTI, text).expect("small"), [b"1,2\n\n3\n4"]);
        assert_eq!(payloads(Split::None, MULTI, text).expect("small"), [text]);
    }

    #[test]
    fn empty_files_are_a_payload_of_joined_records_only() {
        assert_eq!(payloads(Split::Line, MULTI, b"").expect("small"), [b""]);
        assert!(payloads(Split::Line, SINGLE, b"").expect("small").is_empty());
        assert_eq!(payloads(Split::None, SINGLE, b"").expect("small"), [b""]);
    }

    #[test]
    fn payloads_are_measured_like_strings_of_python() {
        let line = [&[b'1'; 99][..], b"\n"].concat();
        let text = line.repeat(20_000);
        let all = payloads(Split::Line, MULTI, &text).expect("small records");
        // 1,048,576 - 49 bytes at most, in lines of 100.
        assert_eq!(all[0].len(), 1_048_500);
        assert_eq!(all.concat(), text);
        let huge = [&b"1\n"[..], &[b'2'; 1_100_001], b"\n3"].concat();
        let all = payloads(Split::Line, MULTI, &huge).expect("as the SDK sends them");
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1_100_002, 1]);
        assert!(payloads(Split::Line, SINGLE, &huge).is_err());
        assert!(payloads(Split::None, MULTI, &huge).is_err());
        // sys.getsizeof of "é", "€" and an emoji.
        let sizes = ["é", "€", "\u{1f600}"].map(|text| size_of(text.as_bytes(), true));
        assert_eq!(sizes, [74, 76, 80]);
    }
}
