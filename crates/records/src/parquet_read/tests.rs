use std::io::{Read, Seek, SeekFrom, Write};

use parquet::basic::Compression;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type,
};
use parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::SerializedFileReader;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

use super::*;

const SCHEMA: &str = "message m {
    required int64 id;
    required float x;
    optional double y;
    required binary name (UTF8);
    required binary raw;
    required group tags (LIST) { repeated group list { optional int32 element; } }
    required int32 price (DECIMAL(9,2));
    required int64 at (TIMESTAMP_MICROS);
    required boolean ok;
    required group inner { required int32 a (DATE); }
}";

/// A file of `groups` row groups of three rows each.
fn file_of(groups: usize, compression: Compression) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties.into()).unwrap();
    for group in 0..groups {
        let base = i64::try_from(group * 3).unwrap();
        let mut rows = writer.next_row_group().unwrap();
        macro_rules! column {
            ($kind:ty, $values:expr, $definitions:expr, $repetitions:expr) => {{
                let mut column = rows.next_column().unwrap().unwrap();
                let typed = column.typed::<$kind>();
                typed.write_batch(&$values, $definitions, $repetitions).unwrap();
                column.close().unwrap();
            }};
        }
        let text = |texts: [&str; 3]| texts.map(ByteArray::from);
        column!(Int64Type, [base, base + 1, base + 2], None, None);
        column!(FloatType, [0.1, f32::NAN, f32::NEG_INFINITY], None, None);
        column!(DoubleType, [0.1, 1e300], Some(&[1, 0, 1]), None);
        column!(ByteArrayType, text(["a\"b", "", "ü\n"]), None, None);
        let raw = [vec![0xff, 0], vec![], vec![1]].map(ByteArray::from);
        column!(ByteArrayType, raw, None, None);
        // [1, null], [], [3]
        column!(Int32Type, [1, 3], Some(&[2, 1, 0, 2]), Some(&[0, 1, 0, 0]));
        column!(Int32Type, [12345, -5, 0], None, None);
        column!(Int64Type, [1_700_000_000_000_000, 0, -1], None, None);
        column!(BoolType, [true, false, true], None, None);
        column!(Int32Type, [19000, 0, -1], None, None);
        rows.close().unwrap();
    }
    writer.into_inner().unwrap()
}

fn footer_length(file: &[u8]) -> usize {
    let tail = file.len() - 8;
    usize::try_from(u32::from_le_bytes(file[tail..tail + 4].try_into().unwrap())).unwrap()
}

fn stored(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file
}

fn chunks(file: File, columns: Option<&[String]>, max: (usize, usize)) -> Result<Vec<Chunk>> {
    let mut rows = ParquetRows::open(file, columns, 1 << 20)?;
    let mut all = Vec::new();
    loop {
        match rows.next_chunk(max.0, max.1) {
            Ok(Some(chunk)) => all.push(chunk),
            Ok(None) => return Ok(all),
            Err(error) => {
                assert_eq!(rows.next_chunk(1, 1).unwrap_err().message(), error.message());
                return Err(error);
            }
        }
    }
}

fn lines(chunks: &[Chunk]) -> Vec<String> {
    let mut all = Vec::new();
    for chunk in chunks {
        for record in &chunk.records {
            all.push(String::from_utf8(chunk.content(record).to_vec()).unwrap());
        }
    }
    all
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn rows_are_json_objects() {
    let all = (100, 10_000);
    let all_compressions = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(Default::default()),
    ];
    for compression in all_compressions {
        let found = chunks(stored(&file_of(1, compression)), None, all).unwrap();
        assert_eq!(
            lines(&found),
            [
                r#"{"id":0,"x":0.1,"y":0.1,"name":"a\"b","raw":{"b64":"/wA="},"tags":[1,null],"price":"123.45","at":1700000000000000,"ok":true,"inner":{"a":19000}}"#,
                r#"{"id":1,"x":NaN,"y":null,"name":"","raw":{"b64":""},"tags":[],"price":"-0.05","at":0,"ok":false,"inner":{"a":0}}"#,
                r#"{"id":2,"x":-Infinity,"y":1e+300,"name":"ü\n","raw":{"b64":"AQ=="},"tags":[3],"price":"0.00","at":-1,"ok":true,"inner":{"a":-1}}"#,
            ]
        );
    }
}

#[test]
fn columns_are_selected_in_order() {
    let file = file_of(1, Compression::SNAPPY);
    let columns = names(&["ok", "id", "tags"]);
    let found = chunks(stored(&file), Some(&columns), (1, 1)).unwrap();
    assert_eq!(lines(&found)[0], r#"{"ok":true,"id":0,"tags":[1,null]}"#);
    let error = |columns: &[&str]| {
        let error = chunks(stored(&file), Some(&names(columns)), (1, 1)).unwrap_err();
        error.message().to_owned()
    };
    let expected = "the Parquet file has no column \"z\"; it has id, x, y, name, raw, tags, price, \
                    at, ok, inner";
    assert_eq!(error(&["id", "z"]), expected);
    assert!(error(&["id", "id"]).contains("selected twice"));
    assert!(error(&[]).contains("at least one"));
}

#[test]
fn chunks_obey_both_limits() {
    let file = file_of(4, Compression::SNAPPY);
    let columns = names(&["id"]);
    let of = |records, bytes| chunks(stored(&file), Some(&columns), (records, bytes)).unwrap();
    let sizes = |chunks: &[Chunk]| chunks.iter().map(|one| one.records.len()).collect::<Vec<_>>();
    assert_eq!(sizes(&of(5, 1000)), [5, 5, 2]);
    // Each line has 9 bytes, and from row 11 on 10.
    assert_eq!(sizes(&of(100, 27)), [3, 3, 3, 2, 1]);
    assert_eq!(sizes(&of(0, 0)), [1; 12]);
    let found = of(5, 20);
    assert_eq!(lines(&found), lines(&of(100, 1000)));
    let places: Vec<_> =
        found.iter().flat_map(|one| &one.records).map(|one| (one.line, one.offset)).collect();
    assert_eq!(places[..4], [(1, 0), (2, 9), (3, 18), (4, 27)]);
    assert_eq!(places[11], (12, 100));
    assert_eq!(found[0].bytes, "{\"id\":0}\n{\"id\":1}\n");
}

#[test]
fn an_empty_file_has_no_rows() {
    assert!(chunks(stored(&file_of(0, Compression::SNAPPY)), None, (1, 1)).unwrap().is_empty());
}

#[test]
fn other_files_are_refused() {
    let refusal = |bytes: &[u8]| chunks(stored(bytes), None, (1, 1)).unwrap_err();
    assert!(refusal(b"").message().contains("not a Parquet file"));
    assert!(refusal(b"id,x\n1,2\n3,4\n").message().contains("not a Parquet file"));
    assert!(refusal(b"PAR1\0\0\0\0PARE").message().contains("encrypted"));
    assert!(refusal(b"PAR1\xff\xff\xff\xffPAR1").message().contains("footer is damaged"));
    let whole = file_of(1, Compression::SNAPPY);
    assert!(refusal(&whole[..whole.len() - 1]).message().contains("truncated"));
}

#[test]
fn other_compressions_are_refused() {
    let mut file = file_of(1, Compression::SNAPPY);
    // In the footer, the codec is the field after the column's path; its number is zigzag encoded.
    let footer = file.len() - 8 - footer_length(&file);
    let path = footer + file[footer..].windows(5).rposition(|at| at == b"\x19\x18\x02id").unwrap();
    assert_eq!(file[path + 5..path + 7], [0x15, 2]);
    file[path + 6] = 2 * 4;
    let error = chunks(stored(&file), None, (1, 1)).unwrap_err();
    assert!(error.message().contains("column \"id\" is compressed with Brotli"), "{error}");
}

#[test]
fn the_offset_of_a_dictionary_that_a_column_does_not_have_may_be_0() {
    let file = file_of(2, Compression::SNAPPY);
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&stored(&file)).unwrap();
    let mut metadata = metadata.into_builder();
    // The column of booleans has no dictionary.
    let groups = metadata.take_row_groups().into_iter().map(|group| {
        let mut group = group.into_builder();
        for column in group.take_columns() {
            let is_bool = column.column_path().string() == "ok";
            assert_eq!(column.dictionary_page_offset().is_none(), is_bool);
            let offset = column.dictionary_page_offset().or(Some(0));
            let column = column.into_builder().set_dictionary_page_offset(offset);
            group = group.add_column_metadata(column.build().unwrap());
        }
        group.build().unwrap()
    });
    let groups = groups.collect();
    let mut changed = file[..file.len() - 8 - footer_length(&file)].to_vec();
    let metadata = metadata.set_row_groups(groups).build();
    ParquetMetaDataWriter::new(&mut changed, &metadata).finish().unwrap();
    let of = |file: &[u8]| lines(&chunks(stored(file), None, (10, 10_000)).unwrap());
    assert_eq!(of(&changed), of(&file));
}

#[test]
fn damage_names_the_row() {
    let mut file = file_of(2, Compression::SNAPPY);
    let reader = SerializedFileReader::new(stored(&file)).unwrap();
    // The header of the first page of the second row group.
    let (start, _) = reader.metadata().row_group(1).column(0).byte_range();
    let start = usize::try_from(start).unwrap();
    file[start..start + 8].fill(0xff);
    let mut rows = ParquetRows::open(stored(&file), None, 1 << 20).unwrap();
    assert_eq!(rows.next_chunk(100, 10_000).unwrap().unwrap().records.len(), 3);
    let error = rows.next_chunk(100, 10_000).unwrap_err();
    assert_eq!(error.code(), Code::DataLoss);
    assert!(error.message().starts_with("row 4 of the Parquet file"), "{error}");
}

#[test]
fn the_rows_can_go_to_another_thread() {
    fn check<T: Send>() {}
    check::<ParquetRows>();
}

#[test]
fn the_file_may_be_at_any_position() {
    let mut file = stored(&file_of(1, Compression::SNAPPY));
    file.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(lines(&chunks(file, None, (10, 1000)).unwrap()).len(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_are_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        in_footer: bool,
        is_plain: bool,
    ) {
        let compression = if is_plain { Compression::UNCOMPRESSED } else { Compression::SNAPPY };
        let mut file = file_of(2, compression);
        let tail = file.len() - 8;
        let footer = tail - footer_length(&file);
        let part = if in_footer { &mut file[footer..tail] } else { &mut file[..footer] };
        for (at, byte) in changes {
            *at.get_mut(&mut *part) = byte;
        }
        let _ = chunks(stored(&file), None, (2, 1000));
    }
}

/// A file of `count` texts of `length` bytes.
fn texts_of(length: usize, count: usize, compression: Compression) -> Vec<u8> {
    let schema = Arc::new(parse_message_type("message m { required binary x (UTF8); }").unwrap());
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties.into()).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    let mut column = rows.next_column().unwrap().unwrap();
    let texts = vec![ByteArray::from(vec![b'a'; length]); count];
    column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
    column.close().unwrap();
    rows.close().unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn a_small_file_of_large_texts_is_refused() {
    let file = texts_of(100_000_000, 1, Compression::ZSTD(Default::default()));
    assert!(file.len() < 20_000, "{}", file.len());
    let error = ParquetRows::open(stored(&file), None, usize::MAX).err().expect("too large");
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("when decompressed"), "{error}");
    // A similar file without compression is as large as what it takes.
    let file = texts_of(20_000_000, 1, Compression::UNCOMPRESSED);
    let mut rows = ParquetRows::open(stored(&file), None, 30_000_000).unwrap();
    assert!(rows.next_chunk(1, 1).unwrap().is_some());
}

#[test]
fn a_row_has_at_most_the_bytes_of_a_record() {
    let file = texts_of(1000, 3, Compression::SNAPPY);
    let mut rows = ParquetRows::open(stored(&file), None, 999).unwrap();
    let error = rows.next_chunk(1, 1).unwrap_err();
    assert!(error.message().contains("row 1 of the Parquet file"), "{error}");
    assert!(error.message().contains("--max-record-mb"), "{error}");
    let mut rows = ParquetRows::open(stored(&file), None, 2000).unwrap();
    assert_eq!(rows.next_chunk(9, 1 << 20).unwrap().unwrap().records.len(), 3);
}

/// A file of one row: a list of `count` equal texts of `length` bytes, which are in a dictionary once.
fn list_of_texts(length: usize, count: usize) -> Vec<u8> {
    let schema = "message m { required group x (LIST) { repeated group list { required binary element (UTF8); } } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(Default::default()))
        .set_dictionary_page_size_limit(usize::MAX)
        .set_write_batch_size(usize::MAX)
        .set_statistics_enabled(EnabledStatistics::None)
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties.into()).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    let mut column = rows.next_column().unwrap().unwrap();
    let texts = vec![ByteArray::from(vec![b'a'; length]); count];
    let repetitions: Vec<i16> = (0..count).map(|index| i16::from(index > 0)).collect();
    let typed = column.typed::<ByteArrayType>();
    typed.write_batch(&texts, Some(&vec![1; count]), Some(&repetitions)).unwrap();
    column.close().unwrap();
    rows.close().unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn a_text_of_a_dictionary_counts_wherever_a_row_has_it() {
    // 100 KB in the file's dictionary, 2000 times in its row: 200 MB.
    let file = list_of_texts(100_000, 2000);
    assert!(file.len() < 4000, "{}", file.len());
    let error = ParquetRows::open(stored(&file), None, 1 << 20).err().expect("too large");
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("\"x.list.element\" has 2000 values"), "{error}");
    assert!(error.message().contains("texts of 100000 bytes"), "{error}");
    // Fewer fit.
    let file = list_of_texts(1000, 50);
    let mut rows = ParquetRows::open(stored(&file), None, 1 << 20).unwrap();
    assert_eq!(rows.next_chunk(1, 1).unwrap().unwrap().records.len(), 1);
}

#[test]
fn a_list_of_many_values_is_refused_before_it_is_read() {
    // 20 million texts without bytes, of which the file has a few runs: 1 GB as values of the crate.
    let file = list_of_texts(0, 20_000_000);
    assert!(file.len() < 4000, "{}", file.len());
    let error = ParquetRows::open(stored(&file), None, 6 << 20).err().expect("too large");
    assert!(error.message().contains("has 20000000 values"), "{error}");
}

#[test]
fn a_dictionary_declares_no_more_values_than_it_has_bytes() {
    let mut file = list_of_texts(10, 3);
    // The header of the dictionary: field 7, a structure whose field 1 is the number of values.
    let at = file.windows(3).position(|bytes| bytes == [0x4c, 0x15, 2]).unwrap();
    let reader = SerializedFileReader::new(stored(&file)).unwrap();
    assert_eq!(reader.metadata().row_group(0).column(0).dictionary_page_offset(), Some(4));
    // One byte more would move the pages: 63 is the most that fits.
    file[at + 2] = 126;
    let error = ParquetRows::open(stored(&file), None, 1 << 20).err().expect("damaged");
    assert_eq!(error.code(), Code::DataLoss);
}
