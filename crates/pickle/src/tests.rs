use std::fs;

use serde::Deserialize;

use super::*;
use tensorserve_codec::base64;
use tensorserve_testing::{Random, project, test_data};

#[derive(Deserialize)]
struct Case {
    name: String,
    file: String,
    shown: String,
}

fn cases() -> Vec<(Case, Vec<u8>)> {
    let text = fs::read_to_string(project("tests/cases/pickles.json")).expect("cases");
    let cases: Vec<Case> = serde_json::from_str(&text).expect("cases");
    let decoded = cases.into_iter().map(|case| {
        let mut file = Vec::new();
        base64::decode(case.file.as_bytes(), base64::Alphabet::Standard, &mut file).expect("file");
        (case, file)
    });
    decoded.collect()
}

fn joined<'a>(items: impl IntoIterator<Item = PickleValue<'a>>, depth: usize) -> String {
    let shown: Vec<String> = items.into_iter().map(|item| shown(item, depth)).collect();
    shown.join(",")
}

fn entries(value: PickleValue, depth: usize) -> String {
    let pairs = value.entries();
    let pairs: Vec<String> =
        pairs.map(|(k, v)| format!("{}:{}", shown(k, depth), shown(v, depth))).collect();
    pairs.join(",")
}

/// A number as Python writes it.
fn number(number: f64) -> String {
    match number {
        n if n == f64::INFINITY => "inf".to_owned(),
        n => format!("{n:?}"),
    }
}

fn array(array: &NumpyArray) -> String {
    let shape: Vec<String> = array.shape().iter().map(ToString::to_string).collect();
    let elements: Vec<String> = match array.kind() {
        dtype_kind::VOID => {
            let field =
                |name| format!("{name}={}", self::array(&array.field(name).expect("field")));
            array.dtype().fields().map(field).collect()
        }
        dtype_kind::BOOL => {
            let bools = array.i64s().expect("bools").into_iter();
            bools.map(|b| if b == 1 { "True".into() } else { "False".into() }).collect()
        }
        dtype_kind::FLOAT => array.f64s().expect("numbers").into_iter().map(number).collect(),
        dtype_kind::BYTES => {
            let texts = array.strings().expect("text").into_iter();
            texts.map(|text| hex(text.as_bytes())).collect()
        }
        dtype_kind::TEXT => {
            array.strings().expect("text").iter().map(|t| format!("{t:?}")).collect()
        }
        _ => array.i64s().expect("numbers").iter().map(ToString::to_string).collect(),
    };
    format!("array[{}]({})", shape.join(","), elements.join(","))
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("b{digits}")
}

/// The value as `tests/cases/pickles.py` shows it.
fn shown(value: PickleValue, depth: usize) -> String {
    let Some(depth) = depth.checked_sub(1) else { return "…".to_owned() };
    let items = || joined(value.items().expect("items"), depth);
    match value.node() {
        PickleNode::None => "None".to_owned(),
        PickleNode::Bool(true) => "True".to_owned(),
        PickleNode::Bool(false) => "False".to_owned(),
        PickleNode::Int(number) => number.to_string(),
        PickleNode::BigInt => "huge".to_owned(),
        PickleNode::Float(value) => number(*value),
        PickleNode::Bytes(bytes) => hex(bytes),
        PickleNode::Text(text) => serde_json::to_string(text).expect("text"),
        PickleNode::List(_) => format!("[{}]", items()),
        PickleNode::Tuple(_) => format!("({})", items()),
        PickleNode::Set(_) => format!("set({})", items()),
        PickleNode::Dict(_) => format!("{{{}}}", entries(value, depth)),
        PickleNode::Global(name) => name.to_string(),
        PickleNode::Dtype(_) => "dtype".to_owned(),
        PickleNode::Array(inner) if inner.kind() == dtype_kind::OBJECT => {
            let shape: Vec<String> = inner.shape().iter().map(ToString::to_string).collect();
            format!("array[{}]({})", shape.join(","), items())
        }
        PickleNode::Array(inner) => array(inner),
        PickleNode::Object(object) => {
            let mut text = format!("{}({})", object.class, joined(value.arguments(), depth));
            if let Some(state) = object.state {
                text += &shown(value.other(state), depth);
            }
            if !object.items.is_empty() {
                text += &format!("+[{}]", items());
            }
            if !object.entries.is_empty() {
                text += &format!("+{{{}}}", entries(value, depth));
            }
            text
        }
    }
}

#[test]
fn what_python_pickles_is_read_in_every_protocol() {
    let cases = cases();
    assert!(cases.len() > 150, "cases are missing");
    for (case, file) in cases {
        let name = &case.name;
        let pickle = read(file, 1 << 20).unwrap_or_else(|e| panic!("{name}: {e}"));
        // Rust and Python write the exponents of numbers differently.
        let same = shown(pickle.root(), 20).replace("e+", "e");
        assert_eq!(same, case.shown.replace("e+", "e"), "{name}");
    }
}

#[test]
fn a_pickle_cut_short_or_damaged_is_an_error_or_a_value() {
    let mut random = Random::seeded(7);
    for (_, file) in cases() {
        for length in 0..file.len() {
            assert!(read(file.get(..length).unwrap_or_default().to_vec(), 1 << 20).is_err());
        }
        for _ in 0..300 {
            let mut damaged = file.clone();
            random.damage(&mut damaged, 1, None);
            if let Ok(pickle) = read(damaged, 1 << 20) {
                let _ = visit(pickle.root(), 12);
            }
        }
    }
}

/// Calls every accessor of a value; returns the number of values and elements.
fn visit(value: PickleValue, depth: usize) -> usize {
    let Some(depth) = depth.checked_sub(1) else { return 0 };
    let mut seen = 1;
    if let Some(array) = value.array() {
        seen += array.f64s().map_or(0, |values| values.len());
        seen += array.strings().map_or(0, |values| values.len());
        let fields: Vec<NumpyArray> =
            array.dtype().fields().filter_map(|f| array.field(f)).collect();
        seen +=
            fields.iter().filter_map(NumpyArray::i64s).map(|values| values.len()).sum::<usize>();
    }
    seen += value.items().unwrap_or_default().into_iter().map(|v| visit(v, depth)).sum::<usize>();
    seen += value.entries().map(|(k, v)| visit(k, depth) + visit(v, depth)).sum::<usize>();
    seen + value.object().and_then(|o| o.state).map_or(0, |id| visit(value.other(id), depth))
}

#[test]
fn joblib_files_are_read_compressed_or_not() {
    let plain = fs::read(test_data("platforms/sklearn/iris_logreg_pipeline.joblib"));
    let plain = plain.expect("file");
    let mut gzip = flate2::read::GzEncoder::new(&*plain, flate2::Compression::fast());
    let mut zlib = flate2::read::ZlibEncoder::new(&*plain, flate2::Compression::best());
    let (mut gzipped, mut zlibbed) = (Vec::new(), Vec::new());
    gzip.read_to_end(&mut gzipped).expect("packed");
    zlib.read_to_end(&mut zlibbed).expect("packed");
    for file in [plain, gzipped, zlibbed] {
        let pickle = read(file, 1 << 20).expect("a joblib file");
        let root = pickle.root();
        assert_eq!(root.class(), Some("sklearn.pipeline.Pipeline"));
        let steps = root.attribute("steps").and_then(PickleValue::items).expect("steps");
        let last = steps.last().and_then(|step| step.items()).expect("a pair");
        let model = last.last().expect("an estimator");
        assert_eq!(model.class_name(), Some("LogisticRegression"));
        let coef = model.attribute("coef_").and_then(PickleValue::array).expect("coefficients");
        assert_eq!(coef.shape(), [3, 4]);
        // Written by columns, as 4-byte numbers.
        let first = coef.f64s().expect("numbers").into_iter().take(2).collect::<Vec<f64>>();
        assert_eq!(first, [-1.076_592_683_792_114_3, 1.159_776_329_994_201_7]);
    }
}

#[test]
fn pickles_of_python_2_are_read() {
    for file in ["model.pkl", "model.joblib"] {
        let folder = test_data("simple-tensorflow-serving/models/scikitlearn_iris");
        let bytes = fs::read(folder.join(file)).expect("file");
        let pickle = read(bytes, 1 << 20).unwrap_or_else(|e| panic!("{file}: {e}"));
        let root = pickle.root();
        assert_eq!(root.class(), Some("sklearn.pipeline.Pipeline"), "{file}");
        let steps = root.attribute("steps").and_then(PickleValue::items).expect("steps");
        let [_, forest] = *steps.last().and_then(|step| step.items()).expect("a pair") else {
            panic!("no pair")
        };
        let trees = forest.attribute("estimators_").and_then(PickleValue::items).expect("trees");
        assert_eq!(trees.len(), 10);
        let tree = trees.first().and_then(|tree| tree.attribute("tree_")).expect("a tree");
        assert_eq!(tree.class(), Some("sklearn.tree._tree.Tree"));
        assert_eq!(tree.arguments().len(), 3);
        let nodes = tree.attribute("nodes").and_then(PickleValue::array).expect("nodes");
        let count = tree.attribute("node_count").and_then(PickleValue::int).expect("a number");
        assert_eq!(i64::try_from(nodes.len()), Ok(count));
        let left = nodes.field("left_child").and_then(|field| field.i64s()).expect("children");
        assert_eq!(left.first(), Some(&1));
    }
}

fn refusal(bytes: &[u8]) -> Error {
    read(bytes.to_vec(), 1 << 20).expect_err("refused")
}

#[test]
fn errors_name_the_byte_and_the_opcode() {
    let cases: [(&[u8], Code, &str); 9] = [
        (b"", Code::DataLoss, "byte 0 without STOP"),
        (b"\x80\x09.", Code::Unimplemented, "protocol 9"),
        (b"K\x01K", Code::DataLoss, "byte 2 (opcode 'K')"),
        (b"(K\x010.", Code::DataLoss, "byte 4 (opcode '.')"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", Code::DataLoss, "opcode 0x8e"),
        (b"Pabc\n.", Code::Unimplemented, "outside of the file"),
        (b"BZh9", Code::DataLoss, "compressed pickle is damaged"),
        (b"PK\x03\x04", Code::DataLoss, "zip"),
        (b"h\x05.", Code::DataLoss, "number 5"),
    ];
    for (bytes, code, says) in cases {
        let error = refusal(bytes);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(says), "{error}");
    }
}

#[test]
fn a_few_bytes_do_not_make_much() {
    // A list that contains itself, and nested tuples that each contain the one before twice.
    let pickle = read(b"]q\x00h\x00a.".to_vec(), 100).expect("a cycle");
    assert_eq!(visit(pickle.root(), 10), 10);
    let mut doubled = b")".to_vec();
    doubled.extend(std::iter::repeat_n(*b"2\x86", 1000).flatten());
    doubled.push(b'.');
    assert!(read(doubled, 10_000).is_ok());

    // A text that is encoded repeatedly.
    let mut copies = b"X\x00\x00\x10\x00".to_vec();
    copies.extend(std::iter::repeat_n(b'x', 1 << 20));
    copies.extend_from_slice(b"\x85q\x000");
    for _ in 0..1000 {
        copies.extend_from_slice(b"c_codecs\nencode\nh\x00R0");
    }
    copies.extend_from_slice(b"N.");
    let error = read(copies, 1 << 22).expect_err("too much");
    assert!(error.message().contains("far more"), "{error}");

    // Data that compresses well.
    let zeros = vec![b'N'; 1 << 20];
    let mut packed = Vec::new();
    let mut gzip = flate2::read::GzEncoder::new(&*zeros, flate2::Compression::best());
    gzip.read_to_end(&mut packed).expect("packed");
    let error = read(packed, 1 << 10).expect_err("too much");
    assert_eq!(error.code(), Code::ResourceExhausted);
}

#[test]
fn a_few_kilobytes_that_become_too_many_are_refused_for_that_reason() {
    let zeros = vec![0; 17 << 20];
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    std::io::Write::write_all(&mut lz4, &zeros).expect("compressed");
    let mut bombs = vec![
        ("zstd", zstd::encode_all(&*zeros, 3).expect("compressed")),
        ("lz4", lz4.finish().expect("compressed")),
    ];
    for kind in ["zlib", "gzip", "bz2", "xz", "lzma"] {
        let file = test_data("platforms/pickle_bombs").join(kind);
        bombs.push((kind, fs::read(file).expect("a file")));
    }
    for (kind, bomb) in bombs {
        let compressed = bomb.len();
        assert!(compressed < 100_000, "{kind}: {compressed}");
        for most in [1000, 17 << 20] {
            let error = read(bomb.clone(), most - 1).expect_err(kind);
            assert_eq!(error.code(), Code::ResourceExhausted, "{kind}: {error}");
            let why = format!("has more than {} bytes when it is uncompressed", most - 1);
            assert!(error.message().contains(&why), "{kind}: {error}");
        }
        // Within the limit its content counts.
        let error = read(bomb, 17 << 20).expect_err(kind);
        assert_eq!(error.code(), Code::DataLoss, "{kind}: {error}");
    }
}
