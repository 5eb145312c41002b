//! Models and predictions of `tests/data/platforms/h2o/make_h2o.py`: written with H2O 3.46.0.6, and
//! scored by its own `PredictCsv`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

use super::*;
use tensorserve_platform::{
    Completeness, Executable, LoadOptions, ModelLoader, ModelPath, RunOptions,
};
use tensorserve_tensor::{
    DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};
use tensorserve_testing::{Random, test_data};

const FOLDER: &str = "platforms/h2o";

/// Rows of texts, the first of them names.
struct Table(Vec<Vec<String>>);

impl Table {
    /// Reads CSV, in which a backslash escapes the next character.
    fn parse(text: &str) -> Self {
        let (mut rows, mut row, mut cell) = (Vec::new(), Vec::new(), String::new());
        let mut is_quoted = false;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\\' => cell.extend(chars.next()),
                '"' if is_quoted && chars.peek() == Some(&'"') => cell.extend(chars.next()),
                '"' => is_quoted = !is_quoted,
                ',' if !is_quoted => row.push(std::mem::take(&mut cell)),
                '\n' if !is_quoted => {
                    row.push(std::mem::take(&mut cell));
                    rows.push(std::mem::take(&mut row));
                }
                other => cell.push(other),
            }
        }
        Table(rows)
    }

    fn column(&self, name: &str) -> Vec<&str> {
        let index = self.0[0].iter().position(|column| column == name).expect(name);
        self.0[1..].iter().map(|row| &*row[index]).collect()
    }
}

fn text(path: &Path) -> String {
    let mut text = String::new();
    let file = File::open(path).expect("test data");
    match path.extension().is_some_and(|ending| ending == "gz") {
        true => GzDecoder::new(file).read_to_string(&mut text),
        false => { file }.read_to_string(&mut text),
    }
    .expect("text");
    text
}

/// The inputs of a model from the columns of a table.
fn inputs(signature: &Signature, rows: &Table) -> Vec<Tensor> {
    let specs = signature.inputs.iter();
    let tensors = specs.map(|spec| {
        let cells = rows.column(&spec.alias);
        let shape = Shape::vector(cells.len());
        if spec.dtype() == Some(DType::String) {
            let mut texts = StringsBuilder::default();
            cells.iter().for_each(|cell| texts.push(cell.as_bytes()));
            return Tensor::from_strings(shape, texts).expect("texts");
        }
        let mut numbers = aligned_vec(cells.len());
        for cell in cells {
            // Texts are asked for as numbers by a damaged model only.
            numbers.push(cell.parse().unwrap_or(f64::NAN));
        }
        Tensor::from_vec(shape, numbers).expect("numbers")
    });
    tensors.collect()
}

fn mojo(name: &str) -> Vec<u8> {
    mojo_in(&test_data(FOLDER), name)
}

fn mojo_in(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(format!("{name}.zip"))).expect(name)
}

fn run(model: &MojoModel, rows: &Table) -> Vec<Tensor> {
    let signature = model.signature().expect("signature");
    model.run(0, &inputs(&signature, rows), RunOptions::default()).expect("predictions")
}

/// How far a prediction is from the expected one, relative to it.
fn difference(found: f64, expected: f64) -> f64 {
    if found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan() {
        return 0.0;
    }
    let difference = (found - expected).abs() / expected.abs().max(f64::MIN_POSITIVE);
    if difference.is_nan() { f64::INFINITY } else { difference }
}

/// The greatest difference of the predictions of a model from those expected.
fn greatest_difference(folder: &Path, name: &str, rows: &Table) -> f64 {
    let model = read(mojo_in(folder, name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let expected = Table::parse(&text(&folder.join(format!("{name}.csv.gz"))));
    let outputs = run(&model, rows);
    let signature = model.signature().expect("signature");
    let mut greatest = 0.0_f64;
    let mut compared = 0;
    for (output, spec) in outputs.iter().zip(&signature.outputs) {
        let columns: Vec<Vec<&str>> = match &*spec.alias {
            "distances" | "mse" => continue,
            "reconstructed" => expected.0[0].iter().map(|name| expected.column(name)).collect(),
            name => vec![expected.column(name)],
        };
        compared += columns.len();
        let expected = (0..columns[0].len()).flat_map(|row| columns.iter().map(move |c| c[row]));
        if let Some(strings) = output.strings() {
            assert!(strings.iter().eq(expected.map(str::as_bytes)), "{name}: {}", spec.alias);
            continue;
        }
        let found: Vec<f64> = match output.values::<i64>() {
            Some(integers) => integers.iter().map(|integer| *integer as f64).collect(),
            None => output.values::<f64>().expect("numbers").to_vec(),
        };
        let expected: Vec<&str> = expected.collect();
        assert_eq!(found.len(), expected.len(), "{name}: {}", spec.alias);
        for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
            let wanted = match expected {
                "NA" => f64::NAN,
                number => number.parse().expect("a number"),
            };
            let difference = difference(*found, wanted);
            if difference > 1e-6 {
                eprintln!("{name}: row {row}: {}: {found} is not {expected}", spec.alias);
            }
            greatest = greatest.max(difference);
        }
    }
    assert_eq!(compared, expected.0[0].len(), "{name}: some columns are not compared");
    greatest
}

/// The models with predictions.
fn names() -> Vec<String> {
    names_in(&test_data(FOLDER))
}

fn names_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("folder").flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".csv.gz").map(str::to_owned)).collect();
    names.sort();
    names
}

#[test]
fn predictions_are_those_of_h2o() {
    let folder = test_data(FOLDER);
    let rows = Table::parse(&text(&folder.join("rows.csv")));
    let iris = Table::parse(&text(&folder.join("iris_rows.csv")));
    assert_eq!((rows.0.len(), iris.0.len()), (1001, 1001));
    let mut wrong = Vec::new();
    for name in names() {
        let rows = if name.starts_with("iris") { &iris } else { &rows };
        let difference = greatest_difference(&folder, &name, rows);
        if difference > 1e-13 {
            wrong.push((name, difference));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// For directories in which `score_h2o.py` has scored models.
#[test]
#[ignore = "needs folders of cases, in TENSORSERVE_H2O_CASES when this is compiled"]
fn predictions_in_other_folders() {
    let Some(folders) = option_env!("TENSORSERVE_H2O_CASES") else { panic!("no directories") };
    let mut greatest = 0.0_f64;
    for folder in folders.split(':').map(Path::new) {
        for name in names_in(folder) {
            let rows = Table::parse(&text(&folder.join(format!("{name}.rows.csv"))));
            let difference = greatest_difference(folder, &name, &rows);
            eprintln!("{name}: {difference:e}");
            greatest = greatest.max(difference);
        }
    }
    assert!(greatest < 1e-13, "{greatest}");
}

#[test]
fn inputs_that_are_left_out_are_missing_values() {
    let model = read(mojo("gbm_poisson_offset")).expect("valid");
    let signature = model.signature().expect("signature");
    let names: Vec<&str> = signature.inputs.iter().map(|spec| &*spec.alias).collect();
    assert_eq!(names, ["a", "b", "city", "code", "color", "count", "rare", "shift"]);
    let dtypes: Vec<_> = signature.inputs.iter().filter_map(TensorSpec::dtype).collect();
    assert_eq!(dtypes.iter().filter(|dtype| **dtype == DType::String).count(), 3);
    let defaults: Vec<Tensor> = signature
        .inputs
        .iter()
        .map(|spec| {
            let found = signature.defaults.iter().find(|(name, _)| *name == spec.alias);
            found.expect("a default").1.clone()
        })
        .collect();
    let missing = model.run(0, &defaults, RunOptions::default()).expect("a row");
    let rows = Table(vec![
        names.iter().map(|name| (*name).to_owned()).collect(),
        names.iter().map(|name| if *name == "shift" { "0" } else { "" }.to_owned()).collect(),
        names.iter().map(|name| if *name == "shift" { "1" } else { "" }.to_owned()).collect(),
    ]);
    let found = run(&model, &rows);
    let (missing, found) = (missing[0].values::<f64>(), found[0].values::<f64>());
    let (Some(&[missing]), Some(&[without, with])) = (missing, found) else { panic!("numbers") };
    assert_eq!(missing.to_bits(), without.to_bits());
    assert!((with / without - 1.0_f64.exp()).abs() < 1e-12, "{with} {without}");
}

/// Expected values: by hand, with the centers in the file.
#[test]
fn distances_to_clusters_are_given() {
    let model = read(mojo("kmeans_raw")).expect("valid");
    let head: Vec<String> = ["a", "b", "color"].map(str::to_owned).into();
    let rows = Table(vec![head, ["0.5", "", "red"].map(str::to_owned).into()]);
    let outputs = run(&model, &rows);
    assert_eq!(outputs[1].shape().dims(), [1, 3]);
    let distances = outputs[1].values::<f64>().expect("numbers");
    let archive = MojoArchive::open(mojo("kmeans_raw")).expect("an archive");
    let info = info::MojoInfo::read(&archive.root()).expect("model.ini");
    let red = info.domains[info.columns.iter().position(|name| name == "color").unwrap()]
        .as_ref()
        .and_then(|levels| levels.iter().position(|level| level == "red"))
        .expect("a level");
    for (number, distance) in distances.iter().enumerate() {
        let center = info.numbers(&format!("center_{number}")).expect("a center");
        let at = |name| center[info.columns.iter().position(|column| column == name).unwrap()];
        let level = if at("color") == numeric::float(red) { 0.0 } else { 1.0 };
        let expected = ((0.5 - at("a")).powi(2) + level) * 1.5;
        assert!((distance - expected).abs() < 1e-12, "{number}: {distance} is not {expected}");
    }
}

#[test]
fn what_cannot_be_scored_is_refused_by_name() {
    for (name, says) in [
        ("refused_pca", "the algorithm \"pca\" is not supported, only gbm, drf,"),
        ("refused_binary", "the encoding of categories \"Binary\" is not supported:"),
        ("refused_eigen", "the encoding of categories \"Eigen\" is not supported:"),
    ] {
        let error = read(mojo(name)).err().expect(name);
        assert_eq!(error.code(), Code::Unimplemented, "{name}");
        assert!(error.message().starts_with(says), "{error}");
    }
    let error = read(b"\x1c\xab binary model".to_vec()).err().expect("not an archive");
    assert!(error.message().contains("model.download_mojo"), "{error}");
}

/// The archive with a file changed.
fn changed(name: &str, file: &str, change: impl Fn(&str) -> String) -> Result<MojoModel> {
    let archive = MojoArchive::open(mojo(name)).expect("an archive");
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for path in archive.names() {
        let content = archive.root().read(&path).expect("a file").to_vec();
        let content = match path == file {
            true => change(std::str::from_utf8(&content).expect("text")).into_bytes(),
            false => content,
        };
        files.push((path, content));
    }
    read(stored(&files))
}

/// An archive with these files, not compressed.
fn stored(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let size = u32::try_from(content.len()).expect("small").to_le_bytes();
        let length = u16::try_from(name.len()).expect("short").to_le_bytes();
        let at = u32::try_from(bytes.len()).expect("small").to_le_bytes();
        directory.extend(b"PK\x01\x02");
        directory.extend([0; 16]);
        directory.extend([size, size].concat());
        directory.extend(length);
        directory.extend([0; 12]);
        directory.extend(at);
        directory.extend(name.as_bytes());
        bytes.extend(b"PK\x03\x04");
        bytes.extend([0; 22]);
        bytes.extend(length);
        bytes.extend([0; 2]);
        bytes.extend(name.as_bytes());
        bytes.extend(content);
    }
    let start = u32::try_from(bytes.len()).expect("small").to_le_bytes();
    let size = u32::try_from(directory.len()).expect("small").to_le_bytes();
    bytes.extend(directory);
    bytes.extend(b"PK\x05\x06");
    bytes.extend([0; 6]);
    bytes.extend(u16::try_from(files.len()).expect("few").to_le_bytes());
    bytes.extend(size);
    bytes.extend(start);
    bytes.extend([0; 2]);
    bytes
}

#[test]
fn damaged_descriptions_are_refused_with_the_reason() {
    let ini = "model.ini";
    for (name, from, to, says) in [
        ("glm_binomial", "n_features = 7", "n_features = 70", "n_features is 70, and there are"),
        ("glm_binomial", "n_columns = 8", "n_columns = 9", "names 8 columns, and n_columns is 9"),
        ("glm_binomial", "beta = [", "beta = [1.0, ", "beta has 61 numbers, and needs 60"),
        ("glm_binomial", "nums = 4", "nums = many", "nums = \"many\" is not a size"),
        ("glm_binomial", "beta = [", "beta = (", "is not a list of numbers"),
        ("glm_binomial", "family = binomial", "", "model.ini has no family"),
        ("glm_binomial", "link = logit", "link = ologit", "\"ologit\" is not supported"),
        ("glm_binomial", "LITTLE", "BIG", "the byte order BIG_ENDIAN is not supported"),
        ("glm_binomial", ": 3 d0", ": 4 d0", "has 3 levels, and model.ini says 4"),
        ("glm_binomial", "family =", "interactions = [a]\nfamily =", "with interactions"),
        ("kmeans", "center_1 = [", "center_1 = [1, ", "center_1 has 8 numbers, and the model has"),
        ("kmeans", "center_num = 4", "center_num = 5", "center_4 has 0 numbers, and the model has"),
        (
            "network_tanh",
            "sizes = [",
            "sizes = [9, ",
            "layer 0 of the network has 558 weights and 9 biases for 9",
        ),
        (
            "gbm_bernoulli",
            "per_class = 1",
            "per_class = 2",
            "n_trees_per_class is 2, for 2 classes",
        ),
        ("gbm_bernoulli", "mojo_version = 1.40", "mojo_version = 1.5", "MOJO version 1.5 of gbm"),
        (
            "xgboost_binomial",
            "nums = 4",
            "nums = 5",
            "cats = 3 and nums = 5 are not the 7 features",
        ),
        ("ensemble_binomial", "metalearner = ", "metalearner = x", "the ensemble has no model"),
    ] {
        let result = changed(name, ini, |text| {
            assert!(text.contains(from), "{name}: {from}");
            text.replacen(from, to, 1)
        });
        let error = result.err().unwrap_or_else(|| panic!("{name}: {to}"));
        assert!(error.message().contains(says), "{name}: {to}: {error}");
    }
}

/// What can be read of damaged files is also run. No byte ends the process.
#[test]
fn damaged_files_do_not_panic() {
    let folder = test_data(FOLDER);
    let rows = Table::parse(&text(&folder.join("rows.csv")));
    let few = Table(rows.0.into_iter().take(40).collect());
    let mut random = Random::seeded(11);
    let mut loaded = 0;
    for name in names().iter().filter(|name| !name.starts_with("iris")) {
        let archive = MojoArchive::open(mojo(name)).expect("an archive");
        let files: Vec<(String, Vec<u8>)> = archive
            .names()
            .into_iter()
            .map(|path| (path.clone(), archive.root().read(&path).expect("a file").to_vec()))
            .collect();
        for _ in 0..20 {
            let mut files = files.clone();
            let index = random.below(files.len());
            let content = &mut files[index].1;
            if content.is_empty() {
                continue;
            }
            let digits: Option<&[u8]> = (random.below(2) == 0).then_some(b"0123456789-.,");
            random.damage(content, 4, digits);
            let Ok(model) = read(stored(&files)) else { continue };
            loaded += 1;
            let signature = model.signature().expect("signature");
            let known = |name: &str| few.0[0].iter().any(|column| column == name);
            if signature.inputs.iter().all(|spec| known(&spec.alias)) {
                run(&model, &few);
            }
        }
    }
    assert!(loaded > 100, "{loaded}");
}

#[test]
fn mojos_are_recognised_by_ending_or_by_content() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let at = |name: &str| folder.path().join(name);
    let recognises = |path: &Path| H2O.recognises(&ModelPath::new(path));
    assert!(recognises(&test_data(FOLDER).join("iris_gbm.zip")));
    assert!(matches!(H2O.check(folder.path()), Completeness::Missing(_)));
    std::fs::write(at("other.zip"), stored(&[("a".to_owned(), b"model".to_vec())])).unwrap();
    assert!(!recognises(&at("other.zip")) && !recognises(folder.path()));
    std::fs::write(at("model.zip"), mojo("kmeans")).unwrap();
    assert!(recognises(folder.path()), "{}", folder.path().display());
    assert!(matches!(H2O.check(folder.path()), Completeness::Complete));
    let inspected = H2O.inspect(folder.path(), &LoadOptions::default()).expect("a model");
    assert_eq!(inspected.written_by, "3.46.0.6");
    std::fs::write(at("one.mojo"), mojo("kmeans")).unwrap();
    assert!(matches!(H2O.check(folder.path()), Completeness::Broken(_)));
}

/// Archives that expand much more than trees and texts do are refused before they are read.
#[test]
fn archives_that_expand_a_lot_are_refused() {
    let archive = MojoArchive::open(stored(&[("a".to_owned(), vec![b' '; 3 << 20])])).unwrap();
    let files = archive.root();
    assert_eq!(files.read("a").map(|content| content.len()).expect("small"), 3 << 20);
    for _ in 0..18 {
        files.read("a").expect("within the limit");
    }
    files.read("a").expect("20 times");
    let error = files.read("a").expect_err("too much");
    assert!(error.message().contains("more than 20 times as large"), "{error}");
}
