//! Model files. What can be loaded is run, where a model has an evaluator of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use tensorserve_boosters::catboost::CATBOOST;
use tensorserve_boosters::lightgbm::LIGHTGBM;
use tensorserve_boosters::xgboost::XGBOOST;
use tensorserve_h2o::H2O;
use tensorserve_litert::LiteRt;
use tensorserve_onnx::Onnx;
use tensorserve_onnx::mxnet::MxNet;
use tensorserve_openvino::OpenVino;
use tensorserve_pickle::{self as pickles, PickleValue};
use tensorserve_platform::library::RuntimeConfig;
use tensorserve_platform::{ForeignFormats, LoadOptions, ModelLoader, ModelPath, RunOptions};
use tensorserve_pmml::PMML;
use tensorserve_sklearn::SCIKIT_LEARN;
use tensorserve_spark::SPARK;
use tensorserve_tensor::{Shape, Signature, Tensor};
use tensorserve_tensorflow::{GpuConfig, TensorFlow, TensorFlowConfig};

use super::echo::constant;
use super::target::{selected, split, with_file, with_folder};

/// The most bytes of a pickle when it is not compressed.
const MAX_PICKLE_BYTES: usize = 1 << 20;

/// The most elements of an input that a loaded model is run on.
const MAX_INPUT_ELEMENTS: usize = 1 << 16;

/// How deep a pickle's values are walked.
const MAX_DEPTH: usize = 16;

/// The most files of a model.
const MAX_FILES: usize = 64;

/// Separates the files of a model that has several.
const SEPARATOR: &[u8] = b"\n----\n";

/// Loads the model at `path`, and runs each of its signatures on zeros.
fn load(platform: &dyn ModelLoader, path: &Path) {
    let options = LoadOptions::default();
    let Ok(loaded) = platform.load(path, &options) else { return };
    for (index, signature) in loaded.signatures.iter().enumerate() {
        let Some(inputs) = zeros(signature) else { continue };
        let Ok(outputs) = loaded.executable.run(index, &inputs, RunOptions::default()) else {
            continue;
        };
        assert_eq!(outputs.len(), signature.outputs.len());
        for (output, spec) in outputs.iter().zip(&signature.outputs) {
            assert_eq!(Some(output.dtype()), spec.dtype(), "{}", spec.alias);
        }
    }
}

/// An input for each of a signature's, with two rows.
fn zeros(signature: &Signature) -> Option<Vec<Tensor>> {
    let mut inputs = Vec::new();
    for spec in &signature.inputs {
        let sizes = spec.shape.sizes()?;
        let dims: Vec<i64> = sizes.iter().map(|size| if *size < 0 { 2 } else { *size }).collect();
        let shape = Shape::new(&dims).ok()?;
        if shape.elements().ok()? > MAX_INPUT_ELEMENTS {
            return None;
        }
        inputs.push(constant(spec.dtype()?, shape).ok()?);
    }
    Some(inputs)
}

/// A pickle or a joblib file, whose values are read.
pub fn pickle(file: &[u8]) {
    if let Ok(pickle) = pickles::read(file.to_vec(), MAX_PICKLE_BYTES) {
        walk(pickle.root(), MAX_DEPTH, &mut 10_000);
    }
}

/// Reads every value, as far as depth and `budget` allow.
fn walk(value: PickleValue<'_>, depth: usize, budget: &mut usize) {
    if depth == 0 || *budget == 0 {
        return;
    }
    *budget -= 1;
    let _ = (value.type_name(), value.bool(), value.int(), value.float(), value.text());
    let _ = (value.bytes(), value.class(), value.description(), value.class_name());
    if let Some(array) = value.array() {
        let _ = (array.f64s(), array.i64s(), array.strings(), array.kind(), array.shape());
        for field in array.dtype().fields() {
            let _ = array.field(field).and_then(|field| field.f64s());
        }
    }
    let items = value.items().unwrap_or_default();
    items.into_iter().chain(value.arguments()).for_each(|item| walk(item, depth - 1, budget));
    for (key, entry) in value.entries() {
        walk(key, depth - 1, budget);
        walk(entry, depth - 1, budget);
    }
}

/// scikit-learn's estimators.
pub fn sklearn(file: &[u8]) {
    with_file("model.pkl", file, |path| load(&SCIKIT_LEARN, path));
}

/// XGBoost's formats: JSON, UBJSON, binary, and pickles.
pub fn xgboost(file: &[u8]) {
    with_file("model.xgb", file, |path| load(&XGBOOST, path));
}

/// LightGBM's formats: text, JSON, and pickles.
pub fn lightgbm(file: &[u8]) {
    with_file("model.lgb", file, |path| load(&LIGHTGBM, path));
}

/// CatBoost's formats: binary, and JSON.
pub fn catboost(file: &[u8]) {
    with_file("model.cbm", file, |path| load(&CATBOOST, path));
}

/// PMML.
pub fn pmml(file: &[u8]) {
    with_file("model.pmml", file, |path| load(&PMML, path));
}

/// Spark: a model's metadata, a line of dashes, and its Parquet file; or the files of a folder with a line
/// of dashes between them, each after a line with its path in the folder.
pub fn spark(input: &[u8]) {
    with_folder(|folder| {
        let folder = folder.join("spark");
        drop(fs::remove_dir_all(&folder));
        if input.starts_with(b"{") {
            let (metadata, data) = split(input, SEPARATOR);
            write(&folder, "metadata/part-00000", metadata);
            write(&folder, "data/part-00000.parquet", data);
        } else {
            written(&folder, input);
        }
        load(&SPARK, &folder);
    });
}

/// Writes the files of an input into `folder`, and returns their paths.
fn written(folder: &Path, input: &[u8]) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut rest = input;
    for _ in 0..MAX_FILES {
        let (file, others) = split(rest, SEPARATOR);
        let (name, content) = split(file, b"\n");
        rest = others;
        let is_within = |name: &&str| {
            let parts = name.split('/');
            name.len() < 200 && parts.clone().count() < 8 && parts.into_iter().all(is_plain)
        };
        let Some(name) = std::str::from_utf8(name).ok().filter(is_within) else { continue };
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        // A name may be that of a file and of a folder.
        if fs::create_dir_all(parent).and_then(|()| fs::write(&path, content)).is_ok() {
            paths.push(path);
        }
    }
    paths
}

/// Whether the name of a file or a folder stays where it is.
fn is_plain(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(is_allowed)
}

/// MOJOs: an archive; or the files of one, with a line of dashes between them, each after a line with its
/// name.
pub fn h2o(input: &[u8]) {
    with_file("model.mojo", &archived(input), |path| load(&H2O, path));
}

/// Files of PyTorch, as far as they are read without libtorch: an archive, or its files, as for `h2o`.
pub fn torch(input: &[u8]) {
    with_file("model.pt", &archived(input), |path| {
        let _ = tensorserve_torch::read(path);
    });
}

/// Programs of ExecuTorch, as far as they are read without libexecutorch.
pub fn executorch(input: &[u8]) {
    with_file("model.pte", input, |path| {
        let _ = tensorserve_torch::executorch::read(path);
    });
}

/// What files and folders of formats that are not served are: a folder of files, as for `h2o`, and each file.
pub fn foreign(input: &[u8]) {
    with_folder(|folder| {
        for path in written(folder, input) {
            let _ = ForeignFormats::explain(&path);
        }
        let _ = ForeignFormats::explain(folder);
    });
}

/// The archive that the input is, or whose files it has.
fn archived(input: &[u8]) -> Vec<u8> {
    if input.starts_with(b"PK") {
        return input.to_vec();
    }
    let mut files = Vec::new();
    let mut rest = input;
    while !rest.is_empty() {
        let (file, others) = split(rest, SEPARATOR);
        files.push(split(file, b"\n"));
        rest = others;
    }
    archive_of(&files)
}

/// A zip archive of files by their names, which are not compressed. What is too long for it is left out.
fn archive_of(files: &[(&[u8], &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory, mut count) = (Vec::new(), Vec::new(), 0_u16);
    for (name, content) in files {
        let (Ok(size), Ok(length)) = (u32::try_from(content.len()), u16::try_from(name.len()))
        else {
            continue;
        };
        let at = u32::try_from(bytes.len()).expect("the input is short");
        let sizes = [size.to_le_bytes(), size.to_le_bytes()].concat();
        let names = [&length.to_le_bytes()[..], &[0; 2]].concat();
        bytes.extend([&b"PK\x03\x04"[..], &[0; 22], &names, name, content].concat());
        let ends = [&[0; 10][..], &at.to_le_bytes(), name].concat();
        directory.extend([&b"PK\x01\x02"[..], &[0; 16], &sizes, &names, &ends].concat());
        count += 1;
    }
    let start = u32::try_from(bytes.len()).expect("the input is short");
    let size = u32::try_from(directory.len()).expect("the input is short");
    let place = [size.to_le_bytes(), start.to_le_bytes()].concat();
    bytes.extend(directory);
    bytes.extend([&b"PK\x05\x06"[..], &[0; 6], &count.to_le_bytes(), &place, &[0; 2]].concat());
    bytes
}

fn write(folder: &Path, name: &str, content: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap_or(folder)).expect("created");
    fs::write(path, content).expect("written");
}

/// TensorFlow Lite, without a library: a load ends before the model reaches the runtime.
pub fn tflite(file: &[u8]) {
    let library = Some(PathBuf::from("/nowhere"));
    let litert = LiteRt::new(RuntimeConfig { library, ..RuntimeConfig::default() });
    with_file("model.tflite", file, |path| load(&litert, path));
}

/// OpenVINO's graphs with a few weights, without the library.
pub fn openvino(file: &[u8]) {
    let library = Some(PathBuf::from("/nowhere"));
    let openvino = OpenVino::new(RuntimeConfig { library, ..RuntimeConfig::default() });
    let folder = tempfile::tempdir().expect("a directory");
    write(folder.path(), "model.xml", file);
    write(folder.path(), "model.bin", &[0; 512]);
    load(&openvino, folder.path());
}

/// The `onnx` platform without a library: a load ends before the model reaches the runtime.
static ONNX: LazyLock<Arc<Onnx>> = LazyLock::new(|| {
    let library = Some(PathBuf::from("/no/such/library"));
    Arc::new(Onnx::new(RuntimeConfig { library, ..RuntimeConfig::default() }))
});

/// ONNX models: signatures, weight files, and the upgrade of old models.
pub fn onnx(file: &[u8]) {
    with_file("model.onnx", file, |path| {
        let _ = ONNX.check(path);
        let _ = ONNX.inspect(path, &LoadOptions::default());
        assert!(ONNX.load(path, &LoadOptions::default()).is_err());
    });
}

/// An MXNet checkpoint: symbol, parameters and signature, separated by lines of dashes.
pub fn mxnet(input: &[u8]) {
    let (symbol, rest) = split(input, SEPARATOR);
    let (signature, params) = split(rest, SEPARATOR);
    with_folder(|folder| {
        write(folder, "mxnet/m-symbol.json", symbol);
        write(folder, "mxnet/m-0000.params", params);
        let file = folder.join("mxnet/m-signature.json");
        match signature.is_empty() {
            true => drop(fs::remove_file(file)),
            false => write(folder, "mxnet/m-signature.json", signature),
        }
        let platform = MxNet::new(Arc::clone(&ONNX));
        let _ = platform.inspect(&folder.join("mxnet"), &LoadOptions::default());
        assert!(platform.load(&folder.join("mxnet"), &LoadOptions::default()).is_err());
    });
}

/// A SavedModel: its graph, a line of dashes, and the index of its variables. The first byte selects
/// the tags.
pub fn saved_model(input: &[u8]) {
    static TENSORFLOW: LazyLock<TensorFlow> = LazyLock::new(|| {
        TensorFlow::new(TensorFlowConfig {
            library: Some(PathBuf::from("/no/such/library")),
            search: Vec::new(),
            custom_ops: Vec::new(),
            log_level: None,
            is_alone_on_stderr: false,
            intra_op_threads: 0,
            inter_op_threads: 0,
            session_target: String::new(),
            gpu: GpuConfig {
                memory_fraction: 0.0,
                allow_growth: false,
                visible_devices: String::new(),
                cuda_visible_devices: None,
            },
        })
    });
    let Some((first, rest)) = selected(input) else { return };
    let (graph, index) = split(rest, SEPARATOR);
    let tags = ["serve", "serve,gpu", ""][first % 3];
    let tags = tags.split(',').filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
    let options = LoadOptions { tags, ..LoadOptions::default() };
    with_folder(|folder| {
        write(folder, "saved_model/saved_model.pb", graph);
        write(folder, "saved_model/variables/variables.index", index);
        let path = folder.join("saved_model");
        let _ = TENSORFLOW.check(&path);
        let _ = TENSORFLOW.inspect(&path, &options);
        // The graph once more, as a frozen one.
        write(folder, "frozen/model.graphdef", graph);
        let path = folder.join("frozen");
        let _ = TENSORFLOW.recognises(&ModelPath::new(&path));
        let _ = TENSORFLOW.check(&path);
    });
}
