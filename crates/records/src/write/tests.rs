use std::io::{Read, Seek, SeekFrom};

use parquet::file::reader::{FileReader, SerializedFileReader};
use proptest::prelude::*;
use tensorserve_codec::tfrecord::TfRecordReader;
use tensorserve_tensor::Tensor;

use super::*;

/// Writes each of `writes` at once, and returns the file, which is also removed.
fn try_file(format: OutputFormat, dtype: DType, writes: &[&[&str]]) -> Result<Vec<u8>> {
    let mut file = tempfile::tempfile().expect("a file");
    let mut writer = writer(format, file.try_clone().expect("a handle"), dtype)?;
    for outputs in writes {
        let outputs: Vec<&[u8]> = outputs.iter().map(|output| output.as_bytes()).collect();
        writer.write(&outputs)?;
    }
    writer.finish()?;
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("seekable");
    file.read_to_end(&mut bytes).expect("readable");
    Ok(bytes)
}

fn file(format: OutputFormat, writes: &[&[&str]]) -> Vec<u8> {
    try_file(format, DType::Float, writes).expect("valid")
}

fn error(format: OutputFormat, writes: &[&[&str]]) -> String {
    try_file(format, DType::Float, writes).expect_err("refused").message().to_owned()
}

/// The columns' types, and the rows as text.
fn table(bytes: Vec<u8>) -> (Vec<String>, Vec<String>) {
    let path = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(path.path(), bytes).expect("writable");
    let reader = SerializedFileReader::new(path.reopen().expect("a file")).expect("Parquet");
    let metadata = reader.metadata().file_metadata();
    let fields = metadata.schema().get_fields().iter().map(|field| {
        let physical = if field.is_primitive() {
            format!("{:?}", field.get_physical_type())
        } else {
            format!("{:?}", field.get_basic_info().converted_type())
        };
        format!("{} {physical}", field.name())
    });
    let types = fields.collect();
    let rows = reader.get_row_iter(None).expect("rows");
    let rows = rows.map(|row| row.expect("a row").to_json_value_text()).collect();
    (types, rows)
}

trait RowAsText {
    fn to_json_value_text(&self) -> String;
}

impl RowAsText for parquet::record::Row {
    fn to_json_value_text(&self) -> String {
        let columns = self.get_column_iter().map(|(name, value)| format!("{name}={value}"));
        columns.collect::<Vec<_>>().join(" ")
    }
}

fn npy(dtype: DType, writes: &[&[&str]]) -> Tensor {
    let bytes = try_file(OutputFormat::Npy, dtype, writes).expect("valid");
    tensorserve_codec::npy::read(&bytes, 1 << 20).expect("an array")
}

#[test]
fn lines_are_ended() {
    assert_eq!(file(OutputFormat::Lines, &[&["1,2", ""], &["{\"a\":1}"]]), b"1,2\n\n{\"a\":1}\n");
    assert_eq!(file(OutputFormat::Lines, &[]), b"");
}

#[test]
fn records_are_framed() {
    let bytes = file(OutputFormat::TfRecord, &[&["abc", ""], &["d"]]);
    let (mut reader, mut record) = (TfRecordReader::new(bytes.as_slice(), 100), Vec::new());
    for expected in ["abc", "", "d"] {
        assert!(reader.next(&mut record).expect("whole"));
        assert_eq!(record, expected.as_bytes());
    }
    assert!(!reader.next(&mut record).expect("the end"));
}

#[test]
fn members_are_columns() {
    let (types, rows) = table(file(
        OutputFormat::Parquet,
        &[
            &[
                r#"{"id": 7, "p": 1, "ok": true, "s": "\u00e9\"", "v": [1, 2.5], "o": {"x": [1,
                    2]}}"#,
                r#"{"p": 0.5, "id": -9223372036854775808, "v": [], "n": null}"#,
            ],
            &[r#"{"ok": false, "v": [null, 3], "o": [[1]], "n": [2]}"#, "null"],
        ],
    ));
    assert_eq!(
        types,
        [
            "id INT64",
            "p DOUBLE",
            "ok BOOLEAN",
            "s BYTE_ARRAY",
            "v LIST",
            "o BYTE_ARRAY",
            "n BYTE_ARRAY"
        ]
    );
    let expected = [
        r#"id=7 p=1.0 ok=true s="é"" v=[1.0, 2.5] o="{"x": [1,2]}" n=null"#,
        "id=-9223372036854775808 p=0.5 ok=null s=null v=[] o=null n=null",
        r#"id=null p=null ok=false s=null v=[null, 3.0] o="[[1]]" n="[2]""#,
        "id=null p=null ok=null s=null v=null o=null n=null",
    ];
    assert_eq!(rows, expected);
}

#[test]
fn other_outputs_are_one_column() {
    let lists = table(file(OutputFormat::Parquet, &[&["[0.5, 1]"], &["null", "[]"]]));
    assert_eq!(lists.0, ["output LIST"]);
    assert_eq!(lists.1, ["output=[0.5, 1.0]", "output=null", "output=[]"]);
    let nested = table(file(OutputFormat::Parquet, &[&["[[1],[2]]", "[1]"], &["{}"]]));
    assert_eq!(nested.0, ["output BYTE_ARRAY"]);
    assert_eq!(nested.1, [r#"output="[[1],[2]]""#, r#"output="[1]""#, r#"output="{}""#]);
    let large =
        table(file(OutputFormat::Parquet, &[&["18446744073709551615", "NaN", "-Infinity"]]));
    assert_eq!(large.0, ["output DOUBLE"]);
    assert_eq!(large.1[1..], ["output=NaN", "output=-inf"]);
}

#[test]
fn nulls_before_the_first_value_are_kept() {
    let (types, rows) = table(file(OutputFormat::Parquet, &[&["null", "null"], &["null"], &["1"]]));
    assert_eq!(types, ["output INT64"]);
    assert_eq!(rows, ["output=null", "output=null", "output=null", "output=1"]);
    let only_nulls = table(file(OutputFormat::Parquet, &[&["null"]]));
    assert_eq!(only_nulls, (vec!["output BYTE_ARRAY".to_owned()], vec!["output=null".to_owned()]));
    assert!(table(file(OutputFormat::Parquet, &[])).1.is_empty());
}

#[test]
fn outputs_that_fit_no_column_are_refused() {
    let refused = |writes: &[&[&str]], why: &str| {
        let message = error(OutputFormat::Parquet, writes);
        assert!(message.contains(why), "{why:?} is not in {message:?}");
    };
    let column = "record 3: the column \"p\" holds integers as the first records have them";
    refused(&[&["{\"p\":1}", "{\"p\":2}"], &["{\"p\":0.5}"]], column);
    refused(&[&["{\"p\":1}"], &["{\"p\":0.5}"]], "a number with a fraction");
    refused(&[&["{\"p\":1}"], &["{\"p\":\"x\"}"]], "a string: \"x\"");
    refused(&[&["{\"p\":[1]}"], &["{\"p\":[[1]]}"]], "lists of numbers");
    refused(&[&["{\"p\":1}"], &["{\"q\":1}"]], "record 2: the output has the member \"q\"");
    refused(&[&["{\"p\":1}"], &["{\"p\":1,\"p\":2}"]], "the member \"p\" twice");
    refused(&[&["{\"p\":1,\"p\":2}"]], "record 1: the output has the member \"p\" twice");
    refused(&[&["{\"p\":1}"], &["5"]], "record 2: the output is a number");
    refused(&[&["{\"p\":1}", "[1]"]], "record 2: the output is an array");
    refused(&[&["[1]", "{\"p\":1}"]], "record 2: the output is an object");
    refused(&[&["1"], &["{\"p\":1}"]], "record 2: the column \"output\" holds integers");
    refused(&[&["1", "true"]], "record 2: the column \"output\" holds integers in earlier records");
    refused(&[&["{}", "{}"]], "without members");
    refused(&[&["{\"p\":1}"], &["{\"p\":"]], "record 2: is not JSON");
    let many: Vec<String> = (0..5000).map(|index| format!("\"c{index}\":1")).collect();
    refused(&[&[&format!("{{{}}}", many.join(","))]], "more than 4096 members");
    let file = tempfile::tempfile().expect("a file");
    let mut writer = writer(OutputFormat::Parquet, file, DType::Float).expect("a writer");
    let invalid = writer.write(&[b"\"\xff\""]).expect_err("not UTF-8");
    assert_eq!(invalid.message(), "record 1: a string is not UTF-8");
}

#[test]
fn row_groups_are_bounded() {
    let outputs = vec!["{\"a\":1,\"b\":null}"; 250_001];
    let bytes = file(OutputFormat::Parquet, &[&outputs]);
    let path = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(path.path(), bytes).expect("writable");
    let reader = SerializedFileReader::new(path.reopen().expect("a file")).expect("Parquet");
    let rows = reader.metadata().row_groups().iter().map(|group| group.num_rows());
    assert_eq!(rows.collect::<Vec<_>>(), [100_000, 100_000, 50_001]);
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    let outputs = vec![long.as_str(); 70];
    let bytes = file(OutputFormat::Parquet, &[&outputs]);
    std::fs::write(path.path(), bytes).expect("writable");
    let reader = SerializedFileReader::new(path.reopen().expect("a file")).expect("Parquet");
    assert_eq!(reader.num_row_groups(), 2);
}

#[test]
fn rows_become_an_array() {
    let matrix = npy(DType::Float, &[&["[1, 2.5]", "[3,4]"], &["[5,NaN]"]]);
    assert_eq!(matrix.shape().dims(), [3, 2]);
    assert_eq!(matrix.values::<f32>().expect("floats")[..5], [1.0, 2.5, 3.0, 4.0, 5.0]);
    let vector = npy(DType::Int64, &[&["-9223372036854775808", "7"]]);
    assert_eq!(vector.shape().dims(), [2]);
    assert_eq!(vector.values::<i64>(), Some(&[i64::MIN, 7][..]));
    let cubes = npy(DType::Double, &[&["[[1],[2]]"], &["[[3],[4]]"]]);
    assert_eq!(cubes.shape().dims(), [2, 2, 1]);
    assert_eq!(npy(DType::Bool, &[&["true"], &["false"]]).bytes(), [1, 0]);
    assert_eq!(npy(DType::Float, &[]).shape().dims(), [0]);
    assert_eq!(npy(DType::Float, &[&["[]", "[]"]]).shape().dims(), [2, 0]);
    let many = vec!["1"; 12_345];
    assert_eq!(npy(DType::UInt8, &[&many]).shape().dims(), [12_345]);
}

#[test]
fn rows_of_other_shapes_are_refused() {
    let refused = |outputs: &[&str], why: &str| {
        let message = error(OutputFormat::Npy, &[outputs]);
        assert!(message.contains(why), "{why:?} is not in {message:?}");
    };
    refused(&["[1,2]", "[1,2,3]"], "record 2: the output has the shape [3]");
    refused(&["1", "[1]"], "record 2: the output has the shape [1]");
    refused(&["[]", "[1]"], "record 2: the output has the shape [1]");
    refused(&["[[1],[2,3]]"], "record 1: the lists of the output have different");
    refused(&["[1,\"x\"]"], "record 1: the output has an element that is not of type float: \"x\"");
    refused(&["{\"a\":1}"], "not of type float: {\"a\":1}");
    refused(&["null"], "not of type float: null");
    refused(&["1 2"], "more text follows");
    refused(&["["], "is not JSON");
    for dtype in [DType::String, DType::Complex64, DType::Complex128, DType::BFloat16] {
        assert!(try_file(OutputFormat::Npy, dtype, &[]).is_err(), "{dtype:?}");
    }
    let fraction = try_file(OutputFormat::Npy, DType::Int32, &[&["1.5"]]).expect_err("a fraction");
    assert!(fraction.message().contains("not of type int32: 1.5"), "{fraction}");
}

#[test]
fn bad_records_have_an_output() {
    let null = |format: OutputFormat, lines| format.null_output(lines).expect("a value");
    assert_eq!(null(OutputFormat::Lines, RecordFormat::Json), b"null");
    assert_eq!(null(OutputFormat::Lines, RecordFormat::Csv), b"");
    assert_eq!(null(OutputFormat::TfRecord, RecordFormat::Csv), b"");
    assert_eq!(null(OutputFormat::Parquet, RecordFormat::Csv), b"null");
    assert!(OutputFormat::Npy.null_output(RecordFormat::Json).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn numbers_are_read_as_written(
        rows in proptest::collection::vec((any::<i64>(), proptest::option::of(-1e9..1e9_f64)), 1..40),
        at in any::<prop::sample::Index>(),
    ) {
        let texts: Vec<String> = rows.iter().map(|(a, b)| match b {
            Some(b) => format!("{{\"a\":{a},\"b\":{b:?}}}"),
            None => format!("{{\"a\":{a}}}"),
        }).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (first, second) = texts.split_at(at.index(texts.len()) + 1);
        // The first write must show the type of every column.
        prop_assume!(rows[..first.len()].iter().any(|(_, b)| b.is_some_and(|b| b.fract() != 0.0)));
        let bytes = file(OutputFormat::Parquet, &[first, second]);
        let path = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(path.path(), bytes).expect("writable");
        let reader = SerializedFileReader::new(path.reopen().expect("a file")).expect("Parquet");
        let read: Vec<_> = reader.get_row_iter(None).expect("rows").map(|row| {
            use parquet::record::RowAccessor;
            let row = row.expect("a row");
            (row.get_long(0).expect("a"), row.get_double(1).ok())
        }).collect();
        prop_assert_eq!(read, rows);
    }

    #[test]
    fn any_output_is_written_or_refused(
        outputs in proptest::collection::vec("[\\[\\]{}\"ab:,0-9.n ul]{0,12}", 0..4),
    ) {
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        for format in [OutputFormat::Parquet, OutputFormat::Npy] {
            let _ = try_file(format, DType::Float, &[&outputs]);
        }
    }
}
