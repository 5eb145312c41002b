//! Tests with model files of ONNX's own tools, and with small graphs that the tests build.
//!
//! The expected numbers of the files come from onnxruntime 1.31.1 in Python; those of the graphs
//! are calculated by hand. In addition, the 112 models for operator set 6 of ONNX's own tests
//! (`onnx/backend/test/data` of its Python package) returned the expected outputs stored with them.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tempfile::TempDir;

use super::graph::{float, int, int64_vector, ints, node, string, tensor_info};
use super::*;
use crate::proto::{
    GraphProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
};
use tensorserve_platform::library::SearchFolder;
use tensorserve_tensor::{DType, DeclaredShape, Shape, StringsBuilder, aligned_vec};

/// The platform with the library that the environment names, or that `make lib` downloads.
pub(crate) fn onnx() -> Onnx {
    let downloaded = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../lib");
    Onnx::new(RuntimeConfig {
        library: path_from_environment("TENSORSERVE_LIBONNXRUNTIME"),
        search: path_from_environment("TENSORSERVE_LIB_DIR")
            .into_iter()
            .chain([downloaded])
            .map(SearchFolder::from)
            .collect(),
        ..RuntimeConfig::default()
    })
}

pub(crate) fn path_from_environment(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(path)
}

pub(crate) fn load(path: &Path) -> Result<Loaded> {
    onnx().load(path, &LoadOptions { threads: 1, ..LoadOptions::default() })
}

pub(crate) fn floats_of(shape: &[i64], values: &[f32]) -> Tensor {
    let mut aligned = aligned_vec(values.len());
    aligned.extend_from_slice(values);
    Tensor::from_vec(Shape::new(shape).expect("shape"), aligned).expect("tensor")
}

pub(crate) fn run(loaded: &Loaded, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    loaded.executable.run(0, inputs, RunOptions::default())
}

pub(crate) fn close(tensor: &Tensor, shape: &[i64], expected: &[f32]) {
    assert_eq!(tensor.shape().dims(), shape);
    let values = tensor.values::<f32>().expect("floats");
    for (got, expected) in values.iter().zip(expected) {
        let far = (got - expected).abs() > 1e-6 * expected.abs().max(1.0);
        assert!(!far, "{values:?} is not {expected:?}");
    }
}

const IRIS: [f32; 12] = [5.1, 3.5, 1.4, 0.2, 6.0, 2.9, 4.5, 1.5, 6.3, 3.3, 6.0, 2.5];
const IRIS_SCORES: [f32; 9] = [
    0.984_703_1,
    0.015_296_797,
    6.203_780_6e-8,
    0.011_724_683,
    0.778_964_8,
    0.209_310_41,
    1.491_786_2e-5,
    0.006_202_660_5,
    0.993_782_46,
];

/// A model with the nodes, for the operator set `opset`.
pub(crate) fn model(
    opset: i64,
    nodes: Vec<NodeProto>,
    inputs: &[(&str, DType, &[i64])],
) -> ModelProto {
    let last = nodes.last().and_then(|node| node.output.first()).cloned().unwrap_or_default();
    ModelProto {
        ir_version: if opset < 7 { 3 } else { 7 },
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: opset }],
        graph: Some(GraphProto {
            name: "test".to_owned(),
            node: nodes,
            input: inputs
                .iter()
                .map(|(name, dtype, dims)| tensor_info(name, *dtype, dims))
                .collect(),
            output: vec![tensor_info(&last, DType::Float, &[-1])],
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

pub(crate) fn save(model: &ModelProto) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("model.onnx");
    fs::write(&file, model.encode_to_vec()).expect("written");
    (folder, file)
}

/// The output of a graph with the float input `x` and constants, for `x` of any shape.
pub(crate) fn compute(
    opset: i64,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    x: &Tensor,
) -> Tensor {
    let mut model = model(opset, nodes, &[("x", DType::Float, x.shape().dims())]);
    let graph = model.graph.as_mut().expect("graph");
    if opset < 7 {
        // Old IR versions require initializers to be inputs.
        graph.input.extend(constants.iter().map(|c| tensor_info(&c.name, DType::Float, &c.dims)));
    }
    graph.initializer = constants;
    if let Some(crate::proto::type_proto::Value::TensorType(tensor)) =
        graph.output[0].r#type.as_mut().and_then(|its| its.value.as_mut())
    {
        tensor.shape = None;
    }
    let (_folder, file) = save(&model);
    let loaded = load(&file).expect("loads");
    run(&loaded, std::slice::from_ref(x)).expect("runs").remove(0)
}

pub(crate) fn constant(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    TensorProto {
        name: name.to_owned(),
        dims: dims.to_vec(),
        data_type: types::element_type(DType::Float),
        raw_data: raw.into(),
        ..TensorProto::default()
    }
}

#[test]
fn a_classifier_gives_labels_and_scores() {
    let rows = floats_of(&[3, 4], &IRIS);
    for (file, scores) in [
        ("iris_logreg.onnx", &IRIS_SCORES[..]),
        ("iris_rf.onnx", &[1.0, 0.0, 0.0, 0.0, 0.998_809_7, 0.001_190_476_2, 0.0, 0.0, 1.0]),
    ] {
        let loaded = load(&data("platforms/onnx").join(file)).expect(file);
        let signature = &loaded.signatures[0];
        assert!(signature.is_batchable(), "{file}");
        let names: Vec<&str> = signature.outputs.iter().map(|spec| &*spec.alias).collect();
        assert_eq!(names, ["label", "probabilities"]);
        let outputs = run(&loaded, std::slice::from_ref(&rows)).expect("runs");
        assert_eq!(outputs[0].values::<i64>(), Some(&[0, 1, 2][..]));
        close(&outputs[1], &[3, 3], scores);
        let none = run(&loaded, &[floats_of(&[0, 4], &[])]).expect("valid without rows");
        assert_eq!(none[1].shape().dims(), [0, 3]);
    }
}

#[test]
fn maps_of_scores_come_as_one_tensor() {
    let path = data("platforms/onnx/iris_logreg_zipmap.onnx");
    let loaded = load(&path).expect("loads");
    let scores = &loaded.signatures[0].outputs[1];
    assert_eq!((&*scores.alias, scores.shape.sizes()), ("output_probability", Some(vec![-1, 3])));
    let outputs = run(&loaded, &[floats_of(&[3, 4], &IRIS)]).expect("runs");
    assert_eq!(outputs[0].values::<i64>(), Some(&[0, 1, 2][..]));
    close(&outputs[1], &[3, 3], &IRIS_SCORES);
    // Inspection, which does not use the library, reports the same.
    let inspected = onnx().inspect(&path, &LoadOptions::default()).expect("inspected");
    assert_eq!(inspected.signatures[0].outputs[1], *scores);
    assert_eq!(inspected.written_by, "skl2onnx 1.20.0 (opset 18)");
}

#[test]
fn scores_are_in_the_order_of_the_classes() {
    let bytes = fs::read(data("platforms/onnx/iris_logreg_zipmap.onnx")).expect("file");
    let mut model = ModelProto::decode(Bytes::from(bytes)).expect("a model");
    let nodes = &mut model.graph.as_mut().expect("graph").node;
    let zip_map = nodes.iter_mut().find(|node| node.op_type == "ZipMap").expect("ZipMap");
    zip_map.attribute[0].name = "classlabels_strings".to_owned();
    zip_map.attribute[0].ints.clear();
    zip_map.attribute[0].strings = ["rose", "iris", "lily"].map(Bytes::from).to_vec();
    zip_map.attribute[0].r#type = 8;
    let (_folder, file) = save(&model);
    let outputs = run(&load(&file).expect("loads"), &[floats_of(&[3, 4], &IRIS)]).expect("runs");
    let [a, b, c] = [IRIS_SCORES[0], IRIS_SCORES[1], IRIS_SCORES[2]];
    assert_eq!(outputs[1].values::<f32>().map(<[f32]>::len), Some(9));
    close(&outputs[1].slice_rows(0..1), &[1, 3], &[b, c, a]);
}

#[test]
fn every_type_passes_unchanged() {
    let loaded = load(&data("platforms/onnx/types_identity.onnx")).expect("loads");
    let inputs: Vec<Tensor> = loaded.signatures[0]
        .inputs
        .iter()
        .map(|spec| {
            let dtype = spec.dtype().expect("a type");
            let size = dtype.size().expect("numbers");
            let mut bytes = aligned_vec::<u8>(2 * size);
            (0..2 * size).for_each(|n| bytes.push(u8::from(n % 2 == 0)));
            let buffer = tensorserve_tensor::Buffer::new(Arc::new(bytes));
            Tensor::numeric(dtype, Shape::vector(2), buffer).expect("tensor")
        })
        .collect();
    let outputs = run(&loaded, &inputs).expect("runs");
    assert_eq!(outputs.len(), 6);
    for (input, output) in inputs.iter().zip(&outputs) {
        assert_eq!((input.dtype(), input.bytes()), (output.dtype(), output.bytes()));
    }
}

#[test]
fn strings_may_hold_any_bytes() {
    let loaded = load(&data("platforms/onnx/string_identity.onnx")).expect("loads");
    for strings in [&[&b"a\0b"[..], b"", b"\xff\xfe", &[7; 5000]][..], &[]] {
        let mut builder = StringsBuilder::default();
        strings.iter().for_each(|string| builder.push(string));
        let input = Tensor::from_strings(Shape::vector(strings.len()), builder).expect("strings");
        let outputs = run(&loaded, &[input]).expect("runs");
        let got: Vec<&[u8]> = outputs[0].strings().expect("strings").iter().collect();
        assert_eq!(got, strings);
    }
}

#[test]
fn a_model_of_the_first_operators_is_brought_to_new_ones() {
    // A model of PyTorch 0.3 for operator set 2, and the same rewritten by hand for set 8.
    let expected = [
        -2.333_852,
        -2.289_035_8,
        -2.359_411_2,
        -2.433_702_2,
        -2.209_483_6,
        -2.337_414_5,
        -2.306_198,
        -2.234_381_7,
        -2.346_539,
        -2.200_073_2,
    ];
    let models = data("simple-tensorflow-serving");
    for file in
        ["models/onnx_mnist_model/onnx_model.proto", "converted/onnx_mnist_opset8_converted.onnx"]
    {
        let loaded = load(&models.join(file)).expect(file);
        let [input] = &loaded.signatures[0].inputs[..] else {
            panic!("parameters are listed as inputs");
        };
        assert_eq!((&*input.alias, input.shape.sizes()), ("1", Some(vec![1, 1, 28, 28])));
        let outputs = run(&loaded, &[floats_of(&[1, 1, 28, 28], &[1.0; 784])]).expect("runs");
        assert_eq!(loaded.signatures[0].outputs[0].alias, "32");
        close(&outputs[0], &[1, 10], &expected);
    }
}

#[test]
fn operands_that_begin_at_an_axis_are_broadcast_from_there() {
    let x = floats_of(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let b = || vec![constant("b", &[2], &[10.0, 20.0])];
    let add = |attributes: &[(&str, i64)]| {
        let mut add = node("Add", &["x", "b"], &["y"]);
        add.attribute.extend(attributes.iter().map(|(name, value)| int(name, *value)));
        vec![add.with(ints("consumed_inputs", &[0, 0]))]
    };
    let middle = compute(1, add(&[("broadcast", 1), ("axis", 1)]), b(), &x);
    close(&middle, &[1, 2, 2], &[11.0, 12.0, 23.0, 24.0]);
    let last = compute(6, add(&[("broadcast", 1)]), b(), &x);
    close(&last, &[1, 2, 2], &[11.0, 22.0, 13.0, 24.0]);
    let from_end = compute(1, add(&[("broadcast", 1), ("axis", -2)]), b(), &x);
    close(&from_end, &[1, 2, 2], &[11.0, 12.0, 23.0, 24.0]);
    let slope = vec![constant("s", &[2], &[0.5, 0.25])];
    let below = floats_of(&[1, 2, 2], &[-1.0, 2.0, -4.0, -8.0]);
    let prelu = compute(1, vec![node("PRelu", &["x", "s"], &["y"])], slope, &below);
    close(&prelu, &[1, 2, 2], &[-0.5, 2.0, -1.0, -2.0]);
}

#[test]
fn what_was_an_attribute_becomes_what_it_is_now() {
    let x = floats_of(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let one = |node: NodeProto| compute(1, vec![node], Vec::new(), &x);
    let reshaped = one(node("Reshape", &["x"], &["y"]).with(ints("shape", &[0, -1])));
    close(&reshaped, &[1, 4], &[1.0, 2.0, 3.0, 4.0]);
    let padded = one(node("Pad", &["x"], &["y"])
        .with(string("mode", "constant"))
        .with(ints("paddings", &[0, 0, 0, 1, 0, 0, 0, 0]))
        .with(float("value", 9.0)));
    close(&padded, &[1, 1, 2, 3], &[9.0, 1.0, 2.0, 9.0, 3.0, 4.0]);
    let larger = one(node("Upsample", &["x"], &["y"])
        .with(string("mode", "nearest"))
        .with(float("width_scale", 2.0))
        .with(float("height_scale", 1.0)));
    close(&larger, &[1, 1, 2, 4], &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]);
    let norm = one(node("GlobalLpPool", &["x"], &["y"]).with(float("p", 1.0)));
    close(&norm, &[1, 1, 1, 1], &[10.0]);
    let joined = one(node("Concat", &["x", "x"], &["y"]));
    assert_eq!(joined.shape().dims(), [1, 2, 2, 2]);
    let cast =
        |to: &str, from: &str, name: &str| node("Cast", &[from], &[name]).with(string("to", to));
    let nodes = vec![cast("INT64", "x", "whole"), cast("FLOAT", "whole", "y")];
    let whole = compute(1, nodes, Vec::new(), &floats_of(&[2], &[1.7, -1.7]));
    close(&whole, &[2], &[1.0, -1.0]);
    let kept = one(node("Dropout", &["x"], &["y", "mask"]).with(int("is_test", 1)));
    close(&kept, &[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let parameters =
        ["scale", "bias", "mean", "variance"].map(|name| constant(name, &[1], &[4.0])).to_vec();
    let inputs = ["x", "scale", "bias", "mean", "variance"];
    let normal = node("BatchNormalization", &inputs, &["y", "a", "b", "c", "d"])
        .with(int("is_test", 1))
        .with(float("epsilon", 0.0))
        .with(ints("consumed_inputs", &[0, 0, 0, 1, 1]));
    let normal = compute(1, vec![normal], parameters, &x);
    close(&normal, &[1, 1, 2, 2], &[-2.0, 0.0, 2.0, 4.0]);
}

#[test]
fn an_operator_without_upgrade_is_refused_by_name() {
    let tile = node("Tile", &["x", "x", "x"], &["y"]);
    let (_folder, file) = save(&model(1, vec![tile], &[("x", DType::Float, &[1])]));
    let error = load(&file).err().expect("refused");
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains("version 1 ") && error.message().contains("Tile"), "{error}");
}

#[test]
fn an_output_that_is_an_input_outlives_the_request() {
    let mut model = model(13, Vec::new(), &[("x", DType::Float, &[-1])]);
    let graph = model.graph.as_mut().expect("graph");
    graph.output = graph.input.clone();
    let (_folder, file) = save(&model);
    let Ok(loaded) = load(&file) else {
        return; // Some versions of the library refuse such a graph.
    };
    let outputs = run(&loaded, &[floats_of(&[3], &[1.0, 2.0, 3.0])]).expect("runs");
    drop(loaded);
    let _other = floats_of(&[3], &[7.0, 8.0, 9.0]);
    close(&outputs[0], &[3], &[1.0, 2.0, 3.0]);
}

#[test]
fn many_threads_share_a_session() {
    let loaded = load(&data("platforms/onnx/iris_logreg.onnx")).expect("loads");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let loaded = &loaded;
            scope.spawn(move || {
                for round in 0..500_usize {
                    let row = (round + usize::from(thread)) % 3;
                    let x = floats_of(&[1, 4], &IRIS[row * 4..row * 4 + 4]);
                    let outputs = run(loaded, &[x]).expect("runs");
                    close(&outputs[1], &[1, 3], &IRIS_SCORES[row * 3..row * 3 + 3]);
                }
            });
        }
    });
}

#[test]
fn what_a_request_gets_wrong_is_its_own_fault() {
    let loaded = load(&data("platforms/onnx/iris_logreg.onnx")).expect("loads");
    for shape in [&[3, 5][..], &[12], &[1, 3, 4], &[0, 3]] {
        let count = shape.iter().product::<i64>();
        let values = vec![0.0; usize::try_from(count).expect("small")];
        let error = run(&loaded, &[floats_of(shape, &values)]).expect_err("wrong shape");
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains("\"X\"") && error.message().contains("[?, 4]"), "{error}");
    }
    // Only the operator detects this mismatch.
    let nodes = vec![node("Add", &["x", "y"], &["z"])];
    let inputs: [(&str, DType, &[i64]); 2] =
        [("x", DType::Float, &[-1]), ("y", DType::Float, &[-1])];
    let (_folder, file) = save(&model(13, nodes, &inputs));
    let unequal = [floats_of(&[2], &[1.0; 2]), floats_of(&[3], &[1.0; 3])];
    let error = run(&load(&file).expect("loads"), &unequal).expect_err("cannot be added");
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
}

#[test]
fn a_run_that_takes_too_long_is_ended() {
    let body = GraphProto {
        name: "body".to_owned(),
        node: vec![node("Identity", &["go"], &["go on"]), node("Sin", &["before"], &["after"])],
        input: vec![
            tensor_info("round", DType::Int64, &[]),
            tensor_info("go", DType::Bool, &[]),
            tensor_info("before", DType::Float, &[-1]),
        ],
        output: vec![
            tensor_info("go on", DType::Bool, &[]),
            tensor_info("after", DType::Float, &[-1]),
        ],
        ..GraphProto::default()
    };
    let mut repeat = node("Loop", &["rounds", "", "x"], &["y"]).with(int("body", 0));
    repeat.attribute[0].i = None;
    repeat.attribute[0].r#type = 5;
    repeat.attribute[0].g = Some(body);
    let mut model = model(13, vec![repeat], &[("x", DType::Float, &[-1])]);
    let graph = model.graph.as_mut().expect("graph");
    graph.initializer = vec![TensorProto { dims: vec![], ..int64_vector("rounds", &[1 << 40]) }];
    let (_folder, file) = save(&model);
    let loaded = load(&file).expect("loads");
    let started = Instant::now();
    for _ in 0..2 {
        let options = RunOptions { threads: 1, timeout: Some(Duration::from_millis(30)) };
        let result = loaded.executable.run(0, &[floats_of(&[1], &[1.0])], options);
        assert_eq!(result.expect_err("too long").code(), Code::DeadlineExceeded);
    }
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// A model with a weight in the file `location`.
fn with_weight_at(location: &str) -> ModelProto {
    let mut model =
        model(13, vec![node("Add", &["x", "w"], &["y"])], &[("x", DType::Float, &[-1])]);
    let entry = |key: &str, value: &str| StringStringEntryProto {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    let weight = TensorProto {
        raw_data: Bytes::new(),
        external_data: vec![entry("location", location), entry("length", "8")],
        data_location: 1,
        ..constant("w", &[2], &[])
    };
    model.graph.as_mut().expect("graph").initializer = vec![weight];
    model
}

#[test]
fn weights_come_from_the_models_own_folder() {
    let home = tempfile::tempdir().expect("temporary directory");
    let folder = home.path().join("1");
    fs::create_dir(&folder).expect("directory");
    let weights: Vec<u8> = [1.0_f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let outside = home.path().join("secret");
    fs::write(&outside, &weights).expect("written");
    let file = folder.join("model.onnx");
    let at = |location: &str| {
        fs::write(&file, with_weight_at(location).encode_to_vec()).expect("written");
        load(&folder)
    };
    assert_eq!(at("weights.bin").err().expect("missing").code(), Code::NotFound);
    assert!(matches!(onnx().check(&folder), Completeness::Missing(_)));
    fs::write(folder.join("weights.bin"), &weights).expect("written");
    let loaded = at("weights.bin").expect("loads");
    assert_eq!(loaded.bytes, fs::metadata(&file).expect("file").len() + 8);
    close(&run(&loaded, &[floats_of(&[2], &[1.0, 1.0])]).expect("runs")[0], &[2], &[2.0, 3.0]);
    std::os::unix::fs::symlink(&outside, folder.join("link")).expect("link");
    let absolute = outside.display().to_string();
    for location in ["../secret", "./../secret", &absolute, "link", ""] {
        let error = at(location).err().expect(location);
        assert_eq!(error.code(), Code::PermissionDenied, "{location}: {error}");
    }
}

#[test]
fn damaged_models_are_errors() {
    for name in ["iris_logreg_zipmap.onnx", "types_identity.onnx", "iris_mlp_torch113.onnx"] {
        let whole = fs::read(data("platforms/onnx").join(name)).expect("file");
        let folder = tempfile::tempdir().expect("temporary directory");
        let file = folder.path().join("model.onnx");
        let load_and_inspect = |bytes: &[u8]| {
            fs::write(&file, bytes).expect("written");
            let _ = load(&file);
            let _ = onnx().inspect(&file, &LoadOptions::default());
        };
        for length in 0..whole.len() {
            load_and_inspect(&whole[..length]);
        }
        let mut seed = 1_u32;
        for _ in 0..200 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let mut bytes = whole.clone();
            let index = usize::try_from(seed >> 8).expect("small") % bytes.len();
            bytes[index] ^= u8::try_from(seed >> 24).expect("a byte") | 1;
            load_and_inspect(&bytes);
        }
    }
}

#[test]
fn names_of_open_dimensions_are_kept() {
    let inspected =
        onnx().inspect(&data("platforms/onnx/half_plus_two.onnx"), &LoadOptions::default());
    let inspected = inspected.expect("inspected");
    let DeclaredShape::Dims(dims) = &inspected.signatures[0].inputs[0].shape else {
        panic!("dimensions are declared");
    };
    assert_eq!(dims[..], [(-1, "N".to_owned())]);
}

#[test]
fn without_the_library_the_error_says_how_to_get_it() {
    let onnx =
        Onnx::new(RuntimeConfig { search: vec!["/nowhere".into()], ..RuntimeConfig::default() });
    let path = data("platforms/onnx/half_plus_two.onnx");
    assert!(
        onnx.inspect(&path, &LoadOptions::default()).is_ok(),
        "inspection must not need the library"
    );
    if let Err(error) = onnx.load(&path, &LoadOptions::default()) {
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.message().contains("make lib") && error.message().contains("/nowhere"));
    }
    let wrong = RuntimeConfig { library: Some("/nowhere".into()), ..RuntimeConfig::default() };
    assert!(Onnx::new(wrong).describe().is_err(), "a wrong setting must be an error at once");
}

/// The warnings that are logged, each as a line.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct WarningLog;

impl log::Log for WarningLog {
    fn enabled(&self, record: &log::Metadata) -> bool {
        record.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record) {
        if self.enabled(record.metadata()) {
            WARNINGS.lock().expect("not poisoned").push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// The library warns in each run that the output has another shape than declared.
#[test]
fn a_warning_of_every_run_is_logged_once() {
    log::set_logger(&WarningLog).expect("the only logger");
    log::set_max_level(log::LevelFilter::Warn);
    let mut model =
        model(13, vec![node("Relu", &["x"], &["of_three"])], &[("x", DType::Float, &[-1])]);
    model.graph.as_mut().expect("graph").output = vec![tensor_info("of_three", DType::Float, &[3])];
    let (_folder, file) = save(&model);
    let loaded = load(&file).expect("loads");
    for _ in 0..50 {
        run(&loaded, &[floats_of(&[2], &[1.0, 2.0])]).expect("runs");
    }
    let warnings = WARNINGS.lock().expect("not poisoned");
    let warnings: Vec<&String> = warnings.iter().filter(|line| line.contains("of_three")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains(&file.display().to_string()), "{warnings:?}");
}

/// Without the locale of text operations the error says how to get it.
#[test]
fn text_is_normalized_in_the_locale_of_the_model() {
    let file = data("platforms/onnx/string_normalizer.onnx");
    let loaded = match load(&file) {
        Ok(loaded) => loaded,
        Err(error) => {
            assert!(error.message().contains("localedef -i en_US"), "{error}");
            return;
        }
    };
    let mut texts = StringsBuilder::default();
    texts.push("ÀB".as_bytes());
    let text = Tensor::from_strings(Shape::vector(1), texts).expect("a tensor");
    let outputs = run(&loaded, &[text]).expect("runs");
    assert_eq!(outputs[0].strings().expect("texts").iter().next(), Some("àb".as_bytes()));
}
