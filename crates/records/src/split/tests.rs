use std::io::{self, Cursor, ErrorKind};

use proptest::prelude::*;
use tensorserve_tensor::error::Code;

use super::*;

/// Returns as many bytes at once as a list says, over and over.
struct Ragged<'a> {
    rest: &'a [u8],
    lengths: std::iter::Cycle<std::vec::IntoIter<usize>>,
}

impl<'a> Ragged<'a> {
    fn new(bytes: &'a [u8], lengths: Vec<usize>) -> Self {
        Ragged { rest: bytes, lengths: lengths.into_iter().cycle() }
    }
}

impl Read for Ragged<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.lengths.next().unwrap_or(1);
        if length == 0 {
            return Err(ErrorKind::Interrupted.into());
        }
        let count = length.min(out.len()).min(self.rest.len());
        out[..count].copy_from_slice(&self.rest[..count]);
        self.rest = &self.rest[count..];
        Ok(count)
    }
}

fn options(split: Split) -> SplitOptions {
    SplitOptions { split, max_record_bytes: 100, keep_blank_lines: false }
}

/// The bytes of a chunk and its records.
type Found = (Vec<u8>, Vec<RecordSpan>);

/// All chunks, and the error at the end if there is one.
fn chunks(
    source: impl Read,
    options: SplitOptions,
    max_records: usize,
    max_bytes: usize,
) -> (Vec<Found>, Option<String>) {
    let mut splitter = Splitter::new(source, options);
    let mut all = Vec::new();
    loop {
        match splitter.next_chunk(max_records, max_bytes) {
            Ok(Some(chunk)) => all.push((chunk.bytes.to_vec(), chunk.records)),
            Ok(None) => {
                assert!(splitter.next_chunk(max_records, max_bytes).unwrap().is_none());
                return (all, None);
            }
            Err(error) => {
                let again = splitter.next_chunk(max_records, max_bytes).unwrap_err();
                assert_eq!(again.message(), error.message());
                return (all, Some(error.message().to_owned()));
            }
        }
    }
}

fn contents(text: &[u8], options: SplitOptions) -> Vec<(u64, u64, String)> {
    let (chunks, error) = chunks(text, options, 3, 50);
    assert_eq!(error, None);
    let mut all = Vec::new();
    for (bytes, records) in chunks {
        for one in records {
            let content = String::from_utf8(bytes[one.start..one.end].to_vec()).unwrap();
            all.push((one.line, one.offset, content));
        }
    }
    all
}

fn texts(text: &str, split: Split) -> Vec<String> {
    contents(text.as_bytes(), options(split)).into_iter().map(|(_, _, text)| text).collect()
}

fn refusal(bytes: &[u8], options: SplitOptions) -> Error {
    let mut splitter = Splitter::new(bytes, options);
    loop {
        match splitter.next_chunk(1, 1) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("not refused"),
            Err(error) => return error,
        }
    }
}

fn tfrecords(records: &[&[u8]]) -> Vec<u8> {
    let mut file = Vec::new();
    records.iter().for_each(|record| tfrecord::append(record, &mut file));
    file
}

/// One part of a RecordIO record.
fn part(flag: u32, content: &[u8]) -> Vec<u8> {
    let mut out = 0xced7_230a_u32.to_le_bytes().to_vec();
    let word = flag << 29 | u32::try_from(content.len()).unwrap();
    out.extend_from_slice(&word.to_le_bytes());
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

#[test]
fn names_are_parsed() {
    for split in Split::ALL {
        assert_eq!(Split::parse(&split.to_string()).unwrap(), split);
    }
    assert_eq!(Split::parse("RecordIO").unwrap(), Split::RecordIo);
    assert_eq!(Split::parse("TFRecord").unwrap(), Split::TfRecord);
    assert_eq!(Split::parse("JsonLines").unwrap(), Split::JsonLines);
    assert!(Split::parse("xml").unwrap_err().message().contains("none, line, csv"));
}

#[test]
fn lines_are_split() {
    for split in [Split::Line, Split::Csv, Split::JsonLines] {
        assert_eq!(texts("a\nb\r\nc", split), ["a", "b", "c"]);
        assert_eq!(texts("a\n", split), ["a"]);
        assert_eq!(texts("", split), [""; 0]);
        assert_eq!(texts("\n \n\t\r\n", split), [""; 0]);
        assert_eq!(texts("a\r", split), ["a\r"]);
        assert_eq!(texts("\u{feff}a\n\u{feff}b", split), ["a", "\u{feff}b"]);
        assert_eq!(texts("\u{feff}", split), [""; 0]);
    }
}

#[test]
fn blank_lines_are_counted() {
    let text = b"\n\na\n \nb\n\n";
    let expected = [(3, 2, "a".to_owned()), (5, 6, "b".to_owned())];
    assert_eq!(contents(text, options(Split::Line)), expected);
    let keep = SplitOptions { keep_blank_lines: true, ..options(Split::Line) };
    let lines: Vec<String> = contents(text, keep).into_iter().map(|one| one.2).collect();
    assert_eq!(lines, ["", "", "a", " ", "b", ""]);
}

#[test]
fn quoted_fields_hold_line_breaks() {
    let text = "1,\"a\nb\"\r\n2,\"say \"\"\n\"\"\"\n3,5\" disk\n4,\"\"\n\"x\"\"\ny\",\"\"\"\"\n";
    let expected =
        ["1,\"a\nb\"", "2,\"say \"\"\n\"\"\"", "3,5\" disk", "4,\"\"", "\"x\"\"\ny\",\"\"\"\""];
    assert_eq!(texts(text, Split::Csv), expected);
    let lines: Vec<u64> =
        contents(text.as_bytes(), options(Split::Csv)).iter().map(|r| r.0).collect();
    assert_eq!(lines, [1, 3, 5, 6, 7]);
    assert_eq!(texts("\u{feff}\"a\nb\"", Split::Csv), ["\"a\nb\""]);
}

#[test]
fn an_unclosed_quote_is_told() {
    let error = refusal(b"1,2\n3,\"a\nb\"\n\"x\ny\",\"z\n\n", options(Split::Csv));
    assert_eq!(
        error.message(),
        "the CSV record at line 4 (byte 12) does not end: the quote that opens at line 5 is not \
         closed"
    );
    // One quote in the field, and still open.
    let error = refusal(b"\"a\n\"\"\n", options(Split::Csv));
    assert!(error.message().contains("opens at line 1 is not closed"), "{error}");
    let long = [&b"a\n\""[..], &[b'x'; 200]].concat();
    let error = refusal(&long, options(Split::Csv));
    assert!(error.message().contains("--max-record-mb"), "{error}");
    assert!(error.message().contains("opens at line 2"), "{error}");
}

#[test]
fn the_limit_of_a_record_is_exact() {
    for split in [Split::Line, Split::Csv] {
        for ending in ["", "\n", "\r\n"] {
            let (fits, long) = ("x".repeat(100), "x".repeat(101));
            assert_eq!(texts(&format!("a\n{fits}{ending}"), split), ["a", &fits]);
            let error = refusal(format!("a\n{long}{ending}").as_bytes(), options(split));
            assert!(error.message().starts_with("the record at line 2 (byte 2)"), "{error}");
            assert!(error.message().contains("100 bytes: raise --max-record-mb"), "{error}");
        }
    }
    assert_eq!(texts(&"x".repeat(100), Split::None).len(), 1);
    assert!(refusal(&[0; 101], options(Split::None)).message().contains("--max-record-mb"));
    let fits = [part(0, &[1; 100]), part(1, &[1; 90]), part(3, &[1; 6])].concat();
    assert_eq!(chunks(&fits[..], options(Split::RecordIo), 1, 1).1, None);
    for long in [part(0, &[1; 101]), [part(1, &[1; 90]), part(3, &[1; 7])].concat()] {
        assert!(refusal(&long, options(Split::RecordIo)).message().contains("--max-record-mb"));
    }
    let long = tfrecords(&[&[1; 100], &[1; 101]]);
    let error = refusal(&long, options(Split::TfRecord));
    assert!(error.message().starts_with("record 2 (byte 116)"), "{error}");
}

#[test]
fn an_object_that_is_not_split_is_one_record() {
    assert_eq!(contents(b"", options(Split::None)), [(1, 0, String::new())]);
    let whole = "\u{feff}a\n\nb\n".to_owned();
    assert_eq!(contents(whole.as_bytes(), options(Split::None)), [(1, 0, whole)]);
}

#[test]
fn chunks_obey_both_limits() {
    let text = b"aaaa\nbb\nc\ndddddddddd\ne\n";
    let sizes = |max_records, max_bytes| -> Vec<usize> {
        let (chunks, _) = chunks(&text[..], options(Split::Line), max_records, max_bytes);
        chunks.iter().map(|(_, records)| records.len()).collect()
    };
    assert_eq!(sizes(100, 100), [5]);
    assert_eq!(sizes(2, 100), [2, 2, 1]);
    assert_eq!(sizes(100, 8), [2, 1, 1, 1]);
    assert_eq!(sizes(100, 7), [1, 2, 1, 1]);
    assert_eq!(sizes(100, 0), [1; 5]);
    assert_eq!(sizes(0, 100), [1; 5]);
}

#[test]
fn positions_go_on_from_a_start() {
    let mut splitter = Splitter::new(&b"a\nb\n"[..], options(Split::Line)).starting_at(7, 90);
    let mut places = Vec::new();
    while let Some(chunk) = splitter.next_chunk(1, 10).unwrap() {
        let record = chunk.records[0];
        assert_eq!((record.framed_start, record.framed_end), (0, 2));
        places.push((record.line, record.offset));
    }
    assert_eq!(places, [(7, 90), (8, 92)]);
    // A mark that is not at the start of the object is text.
    let mut splitter =
        Splitter::new("\u{feff}a".as_bytes(), options(Split::Line)).starting_at(2, 9);
    let chunk = splitter.next_chunk(1, 10).unwrap().unwrap();
    assert_eq!(chunk.content(&chunk.records[0]), "\u{feff}a");
}

#[test]
fn tfrecords_are_verified() {
    let file = tfrecords(&[b"abc", b"", b"defg"]);
    let expected = [(1, 0, "abc"), (2, 19, ""), (3, 35, "defg")];
    let expected = expected.map(|(line, offset, text)| (line, offset, text.to_owned()));
    assert_eq!(contents(&file, options(Split::TfRecord)), expected);
    for at in 0..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 4;
        let error = refusal(&damaged, options(Split::TfRecord));
        assert_eq!(error.code(), Code::DataLoss);
        let number = 1 + usize::from(at >= 19) + usize::from(at >= 35);
        assert!(error.message().starts_with(&format!("TFRecord record {number} (")), "{error}");
    }
    for length in (1..file.len()).filter(|length| ![19, 35].contains(length)) {
        let error = refusal(&file[..length], options(Split::TfRecord));
        assert!(error.message().ends_with("is truncated"), "{error}");
    }
    let error = refusal(b"this is a text file", options(Split::TfRecord));
    assert!(error.message().contains("is this a TFRecord file?"), "{error}");
}

#[test]
fn recordio_parts_are_joined() {
    let file =
        [part(0, b"abc"), part(1, b"de"), part(2, b""), part(3, b"fgh"), part(0, b"")].concat();
    let (chunks, error) = chunks(&file[..], options(Split::RecordIo), 10, 1000);
    assert_eq!(error, None);
    let [(bytes, records)] = &chunks[..] else { panic!("one chunk") };
    assert_eq!(bytes[..file.len()], file);
    let contents: Vec<&[u8]> = records.iter().map(|one| &bytes[one.start..one.end]).collect();
    let magic = b"\x0a\x23\xd7\xce";
    assert_eq!(contents, [&b"abc"[..], &[b"de", &magic[..], magic, b"fgh"].concat(), b""]);
    let framed: Vec<_> = records.iter().map(|one| (one.framed_start, one.framed_end)).collect();
    assert_eq!(framed, [(0, 12), (12, 44), (44, 52)]);
    let offsets: Vec<_> = records.iter().map(|one| (one.line, one.offset)).collect();
    assert_eq!(offsets, [(1, 0), (2, 12), (3, 44)]);
}

#[test]
fn damaged_recordio_is_told() {
    let message = |file: &[u8]| {
        let error = refusal(file, options(Split::RecordIo));
        assert_eq!(error.code(), Code::DataLoss);
        error.message().to_owned()
    };
    let whole = part(0, b"abcde");
    assert!(message(b"just some text").contains("is this a RecordIO file?"));
    for length in 1..whole.len() {
        let text = message(&[&whole, &whole[..length]].concat());
        assert_eq!(text, "RecordIO record 2 (byte 16) is truncated");
    }
    assert!(message(&part(1, b"a")).ends_with("its last part is missing"));
    assert!(message(&part(3, b"a")).ends_with("a part with flag 3 is out of place"));
    assert!(message(&[part(1, b"a"), part(0, b"a")].concat()).contains("with flag 0"));
    assert!(message(&part(5, b"a")).contains("with flag 5"));
}

#[test]
fn records_before_a_failure_are_returned() {
    struct Failing(ErrorKind);
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(self.0, "stop"))
        }
    }
    let source = Cursor::new(b"a\nb\nc").chain(Failing(ErrorKind::UnexpectedEof));
    let (found, error) = chunks(source, options(Split::Line), 10, 1000);
    assert_eq!(found[0].0, b"a\nb\n");
    assert_eq!(error.unwrap(), "the object cannot be read at byte 5: stop");
    let mut splitter = Splitter::new(Failing(ErrorKind::UnexpectedEof), options(Split::None));
    assert_eq!(splitter.next_chunk(1, 1).unwrap_err().code(), Code::DataLoss);
    // The error of a store keeps its code.
    let inner = io::Error::other(Error::precondition("the object has changed"));
    let error = super::input::read_error(inner, 3);
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().ends_with("byte 3: the object has changed"));
}

#[test]
fn records_larger_than_a_block_are_whole() {
    let long = "x".repeat(3 << 20);
    let text = format!("a\n{long}\nb\n{long}");
    let limits = SplitOptions { max_record_bytes: 4 << 20, ..options(Split::Csv) };
    let (chunks, error) = chunks(text.as_bytes(), limits, 2, 1 << 20);
    assert_eq!(error, None);
    let sizes: Vec<usize> = chunks.iter().map(|(bytes, _)| bytes.len()).collect();
    assert_eq!(sizes, [2, long.len() + 1, 2, long.len()]);
}

#[test]
fn memory_does_not_grow_with_blank_lines() {
    let blank = io::repeat(b'\n').take(20 << 20);
    let mut splitter = Splitter::new(blank.chain(&b"a"[..]), options(Split::Line));
    let chunk = splitter.next_chunk(1, 1 << 30).unwrap().unwrap();
    assert_eq!(chunk.records[0].line, (20 << 20) + 1);
    assert_eq!(chunk.bytes, "a");
}

fn any_split() -> impl Strategy<Value = Split> {
    prop::sample::select(Split::ALL.to_vec())
}

/// Bytes that are often, but not always, of the format.
fn object(split: Split) -> BoxedStrategy<Vec<u8>> {
    let record = prop::collection::vec(any::<u8>(), 0..40);
    let records = prop::collection::vec(record, 0..12);
    match split {
        Split::None | Split::Line | Split::JsonLines | Split::Csv => {
            "(\u{feff})?[ab,\"\r\n \n]{0,300}".prop_map(String::into_bytes).boxed()
        }
        Split::TfRecord => (records, prop::option::of(0usize..400))
            .prop_map(|(records, flip)| {
                let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
                flipped(tfrecords(&slices), flip)
            })
            .boxed(),
        Split::RecordIo => {
            (prop::collection::vec((0u32..4, "[a-z]{0,40}"), 0..12), any::<Option<u8>>())
                .prop_map(|(parts, flip)| {
                    let mut file = Vec::new();
                    let mut is_open = false;
                    for (flag, content) in parts {
                        let flag = match (is_open, flag) {
                            (false, flag) => flag & 1,
                            (true, flag) => 2 + (flag & 1),
                        };
                        is_open = matches!(flag, 1 | 2);
                        file.extend(part(flag, content.as_bytes()));
                    }
                    flipped(file, flip.map(usize::from))
                })
                .boxed()
        }
    }
}

fn flipped(mut file: Vec<u8>, at: Option<usize>) -> Vec<u8> {
    if let Some(byte) = at.and_then(|at| file.get_mut(at)) {
        *byte ^= 1;
    }
    file
}

proptest! {
    #[test]
    fn chunks_depend_on_the_content_alone(
        (split, object) in any_split().prop_flat_map(|split| (Just(split), object(split))),
        lengths in prop::collection::vec(0usize..20, 1..8),
        max_records in 0usize..6,
        max_bytes in 0usize..80,
        keep_blank_lines: bool,
        max_record_bytes in 0usize..60,
    ) {
        prop_assume!(lengths.iter().any(|length| *length > 0));
        let options = SplitOptions { split, max_record_bytes, keep_blank_lines };
        let ragged = Ragged::new(&object, lengths);
        let (found, error) = chunks(ragged, options, max_records, max_bytes);
        let (expected, expected_error) = chunks(&object[..], options, max_records, max_bytes);
        prop_assert_eq!(&found, &expected);
        prop_assert_eq!(error, expected_error);
        // The records are the same whatever the chunks, and where they say in the object.
        let (one, _) = chunks(&object[..], options, 1, 1);
        let mut one = one.into_iter();
        for (bytes, records) in found {
            prop_assert!(records.len() <= max_records.max(1));
            let framed = records.last().unwrap().framed_end;
            prop_assert!(records.len() == 1 || framed <= max_bytes);
            prop_assert_eq!(records[0].framed_start, 0);
            for record in records {
                let (single, spans) = one.next().unwrap();
                prop_assert_eq!(&bytes[record.start..record.end], &single[spans[0].start..spans[0].end]);
                prop_assert_eq!((record.line, record.offset), (spans[0].line, spans[0].offset));
                let at = usize::try_from(record.offset).unwrap();
                let framed = &bytes[record.framed_start..record.framed_end];
                prop_assert_eq!(framed, &object[at..at + framed.len()]);
            }
        }
        prop_assert!(one.next().is_none());
    }

    #[test]
    fn lines_are_those_of_the_standard_library(text in "[ab\r\n ]{0,200}") {
        let keep = SplitOptions { keep_blank_lines: true, ..options(Split::Line) };
        let keep = SplitOptions { max_record_bytes: 1000, ..keep };
        let found: Vec<String> = contents(text.as_bytes(), keep).into_iter().map(|one| one.2).collect();
        prop_assert_eq!(found, text.lines().collect::<Vec<_>>());
    }

    #[test]
    fn csv_rows_with_quoted_fields_are_found(
        rows in prop::collection::vec(prop::collection::vec("[ab,\"\r\n]{0,6}", 1..4), 0..8),
        crlf: bool,
    ) {
        let mut text = String::new();
        let mut expected = Vec::new();
        for row in rows {
            let fields: Vec<String> =
                row.iter().map(|field| format!("\"{}\"", field.replace('"', "\"\""))).collect();
            expected.push(fields.join(","));
            text += &fields.join(",");
            text += if crlf { "\r\n" } else { "\n" };
        }
        let found: Vec<String> =
            contents(text.as_bytes(), options(Split::Csv)).into_iter().map(|one| one.2).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_are_read_or_refused(split in any_split(), bytes: Vec<u8>) {
        chunks(&bytes[..], options(split), 4, 100);
    }
}
