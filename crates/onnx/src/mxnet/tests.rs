//! Tests with checkpoints that MXNet wrote, and with checkpoints that the tests build.
//!
//! The expected numbers of the files come from MXNet 1.9.1 (`iris_mlp`) or are calculated by hand
//! from the parameters (`mx_mlp`), as are those of the built checkpoints. In addition, 140 graphs
//! with random parameters (each operation with its attributes, and a small residual network)
//! returned the results of MXNet 1.9.1 with differences of at most 4e-6.

use serde_json::json;
use tempfile::TempDir;

use super::*;
use tensorserve_platform::RunOptions;
use tensorserve_tensor::{Shape, Tensor, aligned_vec};

fn mxnet() -> MxNet {
    MxNet::new(Arc::new(crate::tests::onnx()))
}

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(path)
}

fn load(path: &Path) -> Result<Loaded> {
    mxnet().load(path, &LoadOptions { threads: 1, ..LoadOptions::default() })
}

fn tensor(shape: &[i64], values: &[f32]) -> Tensor {
    let mut aligned = aligned_vec(values.len());
    aligned.extend_from_slice(values);
    Tensor::from_vec(Shape::new(shape).expect("shape"), aligned).expect("tensor")
}

fn run(loaded: &Loaded, input: Tensor) -> Tensor {
    let outputs = loaded.executable.run(0, &[input], RunOptions::default());
    outputs.expect("runs").remove(0)
}

fn close(tensor: &Tensor, shape: &[i64], expected: &[f32]) {
    assert_eq!(tensor.shape().dims(), shape);
    let values = tensor.values::<f32>().expect("floats");
    for (got, expected) in values.iter().zip(expected) {
        let far = (got - expected).abs() > 2e-6 * expected.abs().max(1.0);
        assert!(!far, "{values:?} is not {expected:?}");
    }
}

/// A parameter file as MXNet 1.x writes it.
fn params(arrays: &[(&str, &[i64], &[f32])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let long = |bytes: &mut Vec<u8>, value: usize| {
        bytes.extend(u64::try_from(value).expect("small").to_le_bytes());
    };
    long(&mut bytes, 0x112);
    long(&mut bytes, 0);
    long(&mut bytes, arrays.len());
    for (_, dims, values) in arrays {
        bytes.extend(0xF993_FAC9_u32.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(u32::try_from(dims.len()).expect("small").to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    }
    long(&mut bytes, arrays.len());
    for (name, ..) in arrays {
        let name = format!("arg:{name}");
        long(&mut bytes, name.len());
        bytes.extend(name.bytes());
    }
    bytes
}

/// A checkpoint of one operation, whose inputs are `data` of the shape `shape` and its parameters.
fn checkpoint_of(
    op: &str,
    attributes: &[(&str, &str)],
    shape: &[i64],
    arrays: &[(&str, &[i64], &[f32])],
) -> TempDir {
    let folder = tempfile::tempdir().expect("temporary directory");
    let mut nodes = vec![json!({"op": "null", "name": "data", "inputs": []})];
    nodes.extend(arrays.iter().map(|(name, ..)| json!({"op": "null", "name": name, "inputs": []})));
    let attributes: serde_json::Map<_, _> =
        attributes.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let inputs: Vec<_> = (0..=arrays.len()).map(|index| json!([index, 0, 0])).collect();
    nodes.push(json!({"op": op, "name": "op", "attrs": attributes, "inputs": inputs}));
    let symbol = json!({"nodes": nodes, "heads": [[arrays.len() + 1, 0, 0]]});
    let write = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).expect("written");
    };
    write("m-symbol.json", symbol.to_string().as_bytes());
    write("m-0003.params", &params(arrays));
    let signature = json!({"inputs": [{"data_name": "data", "data_shape": shape}]});
    write("m-signature.json", signature.to_string().as_bytes());
    folder
}

/// The output of one operation.
fn compute(
    op: &str,
    attributes: &[(&str, &str)],
    x: (&[i64], &[f32]),
    arrays: &[(&str, &[i64], &[f32])],
) -> Tensor {
    let folder = checkpoint_of(op, attributes, x.0, arrays);
    let loaded = load(folder.path()).unwrap_or_else(|e| panic!("{op}: {e}"));
    run(&loaded, tensor(x.0, x.1))
}

#[test]
fn a_checkpoint_with_a_signature_is_called_by_its_names() {
    let folder = data("simple-tensorflow-serving/models/mxnet_mlp");
    for path in [folder.clone(), folder.join("mx_mlp"), folder.join("mx_mlp-symbol.json")] {
        assert!(mxnet().recognises(&ModelPath::new(&path)), "{}", path.display());
        assert!(matches!(mxnet().check(&path), Completeness::Complete));
        let loaded = load(&path).expect("loads");
        let signature = &loaded.signatures[0];
        assert_eq!(signature.inputs[0].alias, "data");
        assert_eq!(signature.inputs[0].shape.sizes(), Some(vec![-1, 2]));
        assert_eq!(signature.outputs[0].alias, "lro");
        assert!(signature.is_batchable());
        let output = run(&loaded, tensor(&[2, 2], &[1.0, 2.0, 12.0, 2.0]));
        close(&output, &[2, 1], &[2.950_734_8, 8.336_846]);
    }
}

#[test]
fn the_inputs_of_a_checkpoint_without_a_signature_come_from_its_symbol() {
    let loaded = load(&data("platforms/mxnet")).expect("loads");
    let signature = &loaded.signatures[0];
    assert_eq!((&*signature.inputs[0].alias, signature.inputs.len()), ("data", 1));
    assert_eq!(signature.outputs[0].alias, "softmax_output");
    let rows = [5.1, 3.5, 1.4, 0.2, 6.0, 2.9, 4.5, 1.5, 6.3, 3.3, 6.0, 2.5];
    let expected = [
        0.990_695_5,
        0.009_304_574,
        3.651_729_5e-10,
        0.877_899_4,
        0.122_086_845,
        1.370_043_5e-5,
        0.979_099_6,
        0.020_760_754,
        0.000_139_742_43,
    ];
    close(&run(&loaded, tensor(&[3, 4], &rows)), &[3, 3], &expected);
}

#[test]
fn layers_give_what_mxnet_gives() {
    let x = [1.0, 2.0, 3.0, 4.0];
    let image: (&[i64], &[f32]) = (&[1, 1, 2, 2], &x);
    let row: (&[i64], &[f32]) = (&[1, 4], &x);
    // By default, gamma is 1.
    let normal: [(&str, &[i64], &[f32]); 4] = [
        ("gamma", &[1], &[3.0]),
        ("beta", &[1], &[0.5]),
        ("mean", &[1], &[1.0]),
        ("var", &[1], &[4.0]),
    ];
    let fixed = compute("BatchNorm", &[("eps", "0")], image, &normal);
    close(&fixed, &[1, 1, 2, 2], &[0.5, 1.0, 1.5, 2.0]);
    let learnt = compute("BatchNorm", &[("eps", "0"), ("fix_gamma", "False")], image, &normal);
    close(&learnt, &[1, 1, 2, 2], &[0.5, 2.0, 3.5, 5.0]);
    let weight: [(&str, &[i64], &[f32]); 1] = [("w", &[1, 1, 2, 2], &[1.0, 0.0, 0.0, 2.0])];
    let kernel =
        [("kernel", "(2, 2)"), ("num_filter", "1"), ("no_bias", "True"), ("pad", "(1, 0)")];
    close(&compute("Convolution", &kernel, image, &weight), &[1, 1, 3, 1], &[4.0, 9.0, 3.0]);
    let wide = compute("Deconvolution", &kernel[..3], image, &weight);
    close(&wide, &[1, 1, 3, 3], &[1.0, 2.0, 0.0, 3.0, 6.0, 4.0, 0.0, 6.0, 8.0]);
    let matrix: [(&str, &[i64], &[f32]); 2] =
        [("w", &[2, 2], &[1.0, 0.0, 1.0, 1.0]), ("b", &[2], &[0.0, 10.0])];
    let apart = [("num_hidden", "2"), ("flatten", "False")];
    close(
        &compute("FullyConnected", &apart, image, &matrix),
        &[1, 1, 2, 2],
        &[1.0, 13.0, 3.0, 17.0],
    );
    let rows: [(&str, &[i64], &[f32]); 1] = [("w", &[2, 2], &[1.0, 2.0, 3.0, 4.0])];
    let looked_up = compute("Embedding", &[], (&[3], &[-5.0, 1.9, 7.0]), &rows);
    close(&looked_up, &[3, 2], &[1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
    let half = [("act_type", "prelu")];
    let slope: [(&str, &[i64], &[f32]); 1] = [("g", &[2], &[0.5, 0.25])];
    let negative = compute("LeakyReLU", &half, (&[1, 2, 1, 1], &[-4.0, -4.0]), &slope);
    close(&negative, &[1, 2, 1, 1], &[-2.0, -1.0]);
    let softmax = compute("SoftmaxActivation", &[], (&[1, 2], &[0.0, 0.0]), &[]);
    close(&softmax, &[1, 2], &[0.5, 0.5]);
    let gelu = compute("LeakyReLU", &[("act_type", "gelu")], (&[1, 2], &[1.0, -1.0]), &[]);
    close(&gelu, &[1, 2], &[0.841_344_7, -0.158_655_3]);
    let warm = compute("softmax", &[("temperature", "2")], (&[1, 2], &[2.0, 0.0]), &[]);
    close(&warm, &[1, 2], &[0.731_058_6, 0.268_941_4]);
    let large = compute("clip", &[("a_min", "2"), ("a_max", "3")], row, &[]);
    close(&large, &[1, 4], &[2.0, 2.0, 3.0, 3.0]);
}

#[test]
fn poolings_round_and_count_as_mxnets() {
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
    let image: (&[i64], &[f32]) = (&[1, 1, 3, 3], &x);
    let pool = |attributes: &[(&str, &str)]| {
        let all = [&[("kernel", "(2, 2)"), ("stride", "(2, 2)")], attributes].concat();
        compute("Pooling", &all, image, &[])
    };
    close(&pool(&[]), &[1, 1, 1, 1], &[5.0]);
    let full = ("pooling_convention", "full");
    close(&pool(&[full]), &[1, 1, 2, 2], &[5.0, 6.0, 8.0, 9.0]);
    let average = ("pool_type", "avg");
    close(&pool(&[average, full]), &[1, 1, 2, 2], &[3.0, 4.5, 7.5, 9.0]);
    let padded = [average, ("pad", "(1, 1)")];
    close(&pool(&padded), &[1, 1, 2, 2], &[0.25, 1.25, 2.75, 7.0]);
    let uncounted = [average, ("pad", "(1, 1)"), ("count_include_pad", "False")];
    close(&pool(&uncounted), &[1, 1, 2, 2], &[1.0, 2.5, 5.5, 7.0]);
    close(&pool(&[average, ("global_pool", "True")]), &[1, 1, 1, 1], &[5.0]);
}

#[test]
fn shapes_and_numbers_change_as_mxnets() {
    let x = [1.0, 2.0, 3.0, 4.0];
    let square: (&[i64], &[f32]) = (&[2, 2], &x);
    let of = |op: &str, attributes: &[(&str, &str)]| compute(op, attributes, square, &[]);
    close(&of("Reshape", &[("shape", "(0, -1, 1)")]), &[2, 2, 1], &x);
    close(&of("transpose", &[("axes", "(1, 0)")]), &[2, 2], &[1.0, 3.0, 2.0, 4.0]);
    close(&of("_rminus_scalar", &[("scalar", "10")]), &[2, 2], &[9.0, 8.0, 7.0, 6.0]);
    close(&of("_RDivScalar", &[("scalar", "12")]), &[2, 2], &[12.0, 6.0, 4.0, 3.0]);
    close(&of("_power_scalar", &[("scalar", "2")]), &[2, 2], &[1.0, 4.0, 9.0, 16.0]);
    close(&of("sum", &[("axis", "1")]), &[2], &[3.0, 7.0]);
    close(&of("mean", &[("axis", "(0,)"), ("keepdims", "True")]), &[1, 2], &[2.0, 3.0]);
    close(&of("max", &[]), &[], &[4.0]);
    let last = [("axis", "1"), ("begin", "-1"), ("end", "None")];
    close(&of("slice_axis", &last), &[2, 1], &[2.0, 4.0]);
    close(&of("expand_dims", &[("axis", "1")]), &[2, 1, 2], &x);
    close(&of("square", &[]), &[2, 2], &[1.0, 4.0, 9.0, 16.0]);
    close(&of("LogisticRegressionOutput", &[]).slice_rows(0..0), &[0, 2], &[]);
    let image: (&[i64], &[f32]) = (&[1, 1, 1, 2], &[1.0, 2.0]);
    let edges = [("mode", "constant"), ("pad_width", "(0,0,0,0,1,0,0,1)"), ("constant_value", "7")];
    let padded = compute("Pad", &edges, image, &[]);
    close(&padded, &[1, 1, 2, 3], &[7.0, 7.0, 7.0, 1.0, 2.0, 7.0]);
    let doubled = compute("UpSampling", &[("scale", "2"), ("sample_type", "nearest")], image, &[]);
    close(&doubled, &[1, 1, 2, 4], &[1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
    let normal = compute("LRN", &[("nsize", "1"), ("alpha", "1"), ("beta", "1")], image, &[]);
    close(&normal, &[1, 1, 1, 2], &[1.0 / 3.0, 2.0 / 6.0]);
}

#[test]
fn a_wrong_shape_of_an_output_does_no_harm() {
    let folder = checkpoint_of("relu", &[], &[1, 2], &[]);
    let input = json!({"data_name": "data", "data_shape": [1, 2]});
    let output = json!({"data_name": "out", "data_shape": [1, 7, 7]});
    let signature = json!({"inputs": [input], "outputs": [output]}).to_string();
    fs::write(folder.path().join("m-signature.json"), signature).expect("written");
    let loaded = load(folder.path()).expect("loads");
    close(&run(&loaded, tensor(&[2, 2], &[-1.0, 1.0, 2.0, -2.0])), &[2, 2], &[0.0, 1.0, 2.0, 0.0]);
}

#[test]
fn what_has_no_counterpart_is_refused_by_name() {
    for (op, attributes) in [
        ("RNN", &[][..]),
        ("Pooling", &[("kernel", "(2, 2)"), ("pool_type", "sum")]),
        ("Pooling", &[("kernel", "(2, 2)"), ("stride", "(3, 3)"), ("pooling_convention", "full")]),
        ("BatchNorm", &[("axis", "3")]),
        ("Reshape", &[("shape", "(-3, 0)")]),
        ("Activation", &[("act_type", "mish")]),
    ] {
        let folder = checkpoint_of(op, attributes, &[1, 1, 2, 2], &[]);
        let error = load(folder.path()).err().expect(op);
        assert_eq!(error.code(), Code::Unimplemented, "{error}");
        assert!(error.message().contains(op) && error.message().contains("ONNX"), "{error}");
    }
}

#[test]
fn parts_that_are_missing_are_named() {
    let folder = checkpoint_of("relu", &[], &[1], &[]);
    let params = folder.path().join("m-0003.params");
    let bytes = fs::read(&params).expect("file");
    fs::remove_file(&params).expect("removed");
    assert!(matches!(mxnet().check(folder.path()), Completeness::Missing(_)));
    // The last epoch is used.
    fs::write(folder.path().join("m-0009.params"), "damaged").expect("written");
    assert!(matches!(mxnet().check(folder.path()), Completeness::Broken(_)));
    fs::write(folder.path().join("m-0010.params"), bytes).expect("written");
    assert!(matches!(mxnet().check(folder.path()), Completeness::Complete));
    // A missing parameter is named.
    let home = tempfile::tempdir().expect("temporary directory");
    for name in ["iris_mlp-symbol.json", "iris_mlp-0000.params"] {
        fs::copy(data("platforms/mxnet").join(name), home.path().join(name)).expect("copied");
    }
    fs::write(home.path().join("iris_mlp-0001.params"), self::params(&[])).expect("written");
    let error = load(home.path()).err().expect("no weights");
    assert!(error.message().contains("fc1_weight"), "{error}");
}

#[test]
fn damaged_checkpoints_are_errors() {
    let source = data("simple-tensorflow-serving/models/mxnet_mlp");
    let folder = tempfile::tempdir().expect("temporary directory");
    let names = ["mx_mlp-symbol.json", "mx_mlp-0001.params", "mx_mlp-signature.json"];
    for name in names {
        fs::copy(source.join(name), folder.path().join(name)).expect("copied");
    }
    for name in names {
        let (file, whole) = (folder.path().join(name), fs::read(source.join(name)).expect("file"));
        let write_and_load = |bytes: &[u8]| {
            fs::write(&file, bytes).expect("written");
            let _ = load(folder.path());
        };
        for length in 0..whole.len() {
            write_and_load(&whole[..length]);
        }
        let mut seed = 7_u32;
        for _ in 0..200 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let mut bytes = whole.clone();
            let index = usize::try_from(seed >> 8).expect("small") % bytes.len();
            bytes[index] ^= u8::try_from(seed >> 24).expect("a byte") | 1;
            write_and_load(&bytes);
        }
        write_and_load(&whole);
    }
    load(folder.path()).expect("whole again");
}

#[test]
fn a_symbol_that_goes_in_circles_is_damaged() {
    let node = json!({"op": "relu", "name": "a", "inputs": [[0, 0]]});
    let text = json!({"nodes": [node], "heads": [[0, 0]]}).to_string();
    assert_eq!(symbol::read(text.as_bytes()).err().expect("a circle").code(), Code::DataLoss);
}
