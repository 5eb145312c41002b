//! Models with inputs and expected outputs in files, as ONNX's own tests have them: a folder for each model, with
//! `model.onnx` and `test_data_set_N` of `input_N.pb` and `output_N.pb`.
//!
//! A few are in `tests/data/platforms/onnx/others`. For all of them, `make_onnx.py` beside them writes models of
//! skl2onnx, onnxmltools and CatBoost into a folder, `make_operators.py` the tests of ONNX's operators, and the package
//! `onnx` has others in `onnx/backend/test/data`:
//!
//! ```sh
//! python3 tests/data/platforms/onnx/make_onnx.py models /tmp/models
//! python3 tests/data/platforms/onnx/make_operators.py /tmp/operators
//! TENSORSERVE_ONNX_MODELS=/tmp/models:/tmp/operators cargo test -p tensorserve-onnx -- --ignored --nocapture
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;

use super::tests::{onnx, path_from_environment};
use super::types;
use crate::proto::type_proto::{Sequence, Value};
use crate::proto::{ModelProto, TensorProto, ValueInfoProto};
use tensorserve_platform::{LoadOptions, ModelLoader, RunOptions};
use tensorserve_tensor::{DType, Shape, StringsBuilder, Tensor};

/// `SequenceProto` of `onnx-data.proto`, as far as it is read here.
#[derive(Clone, PartialEq, prost::Message)]
struct SequenceProto {
    #[prost(message, repeated, tag = "3")]
    tensor_values: Vec<TensorProto>,
}

/// `OptionalProto` of `onnx-data.proto`, as far as it is read here.
#[derive(Clone, PartialEq, prost::Message)]
struct OptionalProto {
    #[prost(message, optional, tag = "3")]
    tensor_value: Option<TensorProto>,
    #[prost(message, optional, tag = "5")]
    sequence_value: Option<SequenceProto>,
}

/// What became of a model.
#[derive(Debug, PartialEq)]
enum Outcome {
    Equal,
    /// The test is not for this platform: its inputs or outputs are of types that are refused.
    Refused(String),
    /// ONNX Runtime does not run it.
    Runtime(String),
    Wrong(String),
}

/// The tensor in a file, or the tensors of a sequence along a first dimension.
fn tensor(proto: &TensorProto) -> Option<Tensor> {
    let dtype = types::dtype(proto.data_type)?;
    let shape = Shape::new(&proto.dims).ok()?;
    if dtype == DType::String {
        let mut texts = StringsBuilder::default();
        proto.string_data.iter().for_each(|text| texts.push(text));
        return Tensor::from_strings(shape, texts).ok();
    }
    let content =
        if proto.raw_data.is_empty() { packed(proto, dtype)? } else { proto.raw_data.clone() };
    Tensor::from_bytes(dtype, shape, content).ok()
}

/// The values of the fields for numbers as bytes.
fn packed(proto: &TensorProto, dtype: DType) -> Option<Bytes> {
    // Small types are in the low bytes of larger ones.
    let low = |size: usize| {
        let all = proto.int32_data.iter().flat_map(|it| it.to_le_bytes().into_iter().take(size));
        all.collect::<Vec<u8>>()
    };
    Some(Bytes::from(match dtype {
        DType::Float => proto.float_data.iter().flat_map(|it| it.to_le_bytes()).collect(),
        DType::Double => proto.double_data.iter().flat_map(|it| it.to_le_bytes()).collect(),
        DType::Int64 => proto.int64_data.iter().flat_map(|it| it.to_le_bytes()).collect(),
        DType::UInt64 => proto.uint64_data.iter().flat_map(|it| it.to_le_bytes()).collect(),
        DType::UInt32 => {
            proto.uint64_data.iter().flat_map(|it| it.to_le_bytes().into_iter().take(4)).collect()
        }
        DType::Int32 => low(4),
        DType::Int16 | DType::UInt16 | DType::Half | DType::BFloat16 => low(2),
        DType::Int8 | DType::UInt8 | DType::Bool => low(1),
        DType::String | DType::Complex64 | DType::Complex128 => return None,
    }))
}

/// The numbers of a tensor.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    macro_rules! try_types {
        ($($type:ty),*) => {
            $(if let Some(values) = tensor.values::<$type>() {
                #[allow(clippy::cast_precision_loss, clippy::cast_lossless, reason = "for comparison")]
                return values.iter().map(|it| *it as f64).collect();
            })*
        };
    }
    try_types!(f32, f64, i64, i32, u8, i8, u16, i16, u32, u64);
    let pairs = tensor.bytes().as_chunks::<2>().0.iter();
    if tensor.dtype() == DType::Half {
        return pairs.map(|it| half(u16::from_le_bytes(*it))).collect();
    }
    if tensor.dtype() == DType::BFloat16 {
        return pairs.map(|it| f32::from_le_bytes([0, 0, it[0], it[1]]).into()).collect();
    }
    tensor.bytes().iter().map(|it| f64::from(*it)).collect()
}

/// The value of a number of 16 bits.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
    sign * match exponent {
        0 => fraction * 2f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
    }
}

/// How two tensors differ, if they do by more than rounding.
fn difference(got: &Tensor, expected: &Tensor) -> Option<String> {
    if got.dtype() != expected.dtype() || got.shape().dims() != expected.shape().dims() {
        return Some(format!("{:?} {:?}", got.dtype(), got.shape()));
    }
    if let (Some(got), Some(expected)) = (got.strings(), expected.strings()) {
        return (!got.iter().eq(expected.iter())).then(|| "other texts".to_owned());
    }
    let rounding = match got.dtype() == DType::BFloat16 {
        true => 2e-2,
        false if got.dtype() == DType::Half => 2e-3,
        false => 1e-3,
    };
    let (got, expected) = (numbers(got), numbers(expected));
    // Transforms of signals are sums of large numbers that cancel out.
    let largest =
        expected.iter().copied().filter(|it| it.is_finite()).fold(1.0, |a, b| b.abs().max(a));
    let far = |(a, b): (&f64, &f64)| {
        let is_equal = a == b || (a.is_nan() && b.is_nan());
        (!is_equal
            && ((a - b).abs() > 5e-6 * largest + rounding * b.abs() || a.is_nan() != b.is_nan()))
        .then(|| format!("{a} for {b}"))
    };
    got.iter().zip(&expected).find_map(far)
}

/// The files `input_0.pb`, … or `output_0.pb`, … of a data set: each a tensor, or a sequence of them.
fn values(set: &Path, kind: &str, infos: &[ValueInfoProto]) -> Option<Vec<Vec<Tensor>>> {
    let mut all = Vec::new();
    for (index, info) in infos.iter().enumerate() {
        let file = set.join(format!("{kind}_{index}.pb"));
        let Ok(bytes) = fs::read(&file) else {
            break;
        };
        let tensors =
            |tensors: &[TensorProto]| tensors.iter().map(tensor).collect::<Option<Vec<_>>>();
        let sequence = || SequenceProto::decode(&bytes[..]).ok();
        let optional = || OptionalProto::decode(&bytes[..]).ok();
        let is_optional = matches!(type_of(info), Some(Value::OptionalType(_)));
        all.push(match (is_optional, is_sequence(info)) {
            (false, false) => vec![tensor(&TensorProto::decode(&bytes[..]).ok()?)?],
            (false, true) => tensors(&sequence()?.tensor_values)?,
            (true, false) => vec![tensor(&optional()?.tensor_value?)?],
            (true, true) => tensors(&optional()?.sequence_value?.tensor_values)?,
        });
    }
    Some(all)
}

/// The elements of a sequence as one tensor; `None` if they are texts, or of several shapes.
fn stacked(parts: &[Tensor]) -> Option<Tensor> {
    let [first, ..] = parts else {
        return None;
    };
    let dims = first.shape().dims();
    let mut content = Vec::new();
    for part in parts {
        if part.shape().dims() != dims || part.dtype() == DType::String {
            return None;
        }
        content.extend_from_slice(part.bytes());
    }
    let count = i64::try_from(parts.len()).ok()?;
    let shape = Shape::new(&[&[count], dims].concat()).ok()?;
    Tensor::from_bytes(first.dtype(), shape, content.into()).ok()
}

/// Tests of ONNX whose outputs ONNX Runtime itself does not give: of random numbers, and of another resampling.
const OF_RUNTIME: [&str; 7] = [
    "test_maxunpool_export_with_output_shape",
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
    "test_training_dropout",
    "test_training_dropout_default",
    "test_training_dropout_default_mask",
    "test_training_dropout_mask",
];

fn outcome(folder: &Path) -> Outcome {
    let file = folder.join("model.onnx");
    let Ok(proto) = ModelProto::decode(&fs::read(&file).unwrap_or_default()[..]) else {
        return Outcome::Wrong("the model cannot be read".to_owned());
    };
    let graph = proto.graph.unwrap_or_default();
    let options = LoadOptions { threads: 1, ..LoadOptions::default() };
    let inspected = match onnx().inspect(&file, &options) {
        Ok(inspected) => inspected,
        Err(error) => return Outcome::Refused(error.message().to_owned()),
    };
    let loaded = match onnx().load(&file, &options) {
        Ok(loaded) => loaded,
        Err(error) => return Outcome::Runtime(error.message().to_owned()),
    };
    let signature = &loaded.signatures[0];
    let specs = |signature: &tensorserve_tensor::Signature| {
        signature.outputs.iter().map(|spec| spec.alias.clone()).collect::<Vec<_>>()
    };
    if specs(signature) != specs(&inspected.signatures[0]) {
        return Outcome::Wrong("inspection has another signature".to_owned());
    }
    // Data sets have values for inputs with an initializer, too.
    let names: Vec<&String> = graph.input.iter().map(|input| &input.name).collect();
    for set in
        (0..).map(|n| folder.join(format!("test_data_set_{n}"))).take_while(|set| set.is_dir())
    {
        let (Some(inputs), Some(outputs)) =
            (values(&set, "input", &graph.input), values(&set, "output", &graph.output))
        else {
            return Outcome::Refused("its data has a type that the test does not read".to_owned());
        };
        let find = |alias: &str| {
            let index = names.iter().position(|name| *name == alias)?;
            match &inputs.get(index)?[..] {
                [one] if !is_sequence(&graph.input[index]) => Some(one.clone()),
                parts => stacked(parts),
            }
        };
        let Some(given) =
            signature.inputs.iter().map(|spec| find(&spec.alias)).collect::<Option<Vec<_>>>()
        else {
            return Outcome::Refused("an input is optional or an empty sequence".to_owned());
        };
        let got = match loaded.executable.run(0, &given, RunOptions::default()) {
            Ok(got) => got,
            Err(error) => return Outcome::Runtime(error.message().to_owned()),
        };
        for (info, expected) in graph.output.iter().zip(outputs) {
            let of = |alias: &str| {
                let index = signature.outputs.iter().position(|spec| spec.alias == alias)?;
                got.get(index).cloned()
            };
            let mut pairs: Vec<(Option<Tensor>, Option<Tensor>)> = Vec::new();
            match (&expected[..], of(&info.name)) {
                ([one], Some(whole)) if !is_sequence(info) => {
                    pairs.push((Some(whole), Some(one.clone())))
                }
                (parts, Some(whole)) => pairs.push((Some(whole), stacked(parts))),
                (parts, None) => {
                    let named = (0..).zip(parts).map(|(index, part): (usize, &Tensor)| {
                        (of(&format!("{}_{index}", info.name)), Some(part.clone()))
                    });
                    pairs.extend(named);
                }
            }
            for pair in pairs {
                match pair {
                    (Some(got), Some(expected)) => {
                        if let Some(how) = difference(&got, &expected) {
                            return Outcome::Wrong(format!("{}: {how}", info.name));
                        }
                    }
                    (_, None) => {
                        return Outcome::Refused("a sequence of several shapes".to_owned());
                    }
                    (None, _) => return Outcome::Wrong(format!("{} is missing", info.name)),
                }
            }
        }
    }
    Outcome::Equal
}

fn type_of(info: &ValueInfoProto) -> Option<&Value> {
    info.r#type.as_ref().and_then(|its| its.value.as_ref())
}

/// Whether a value is a sequence of tensors, or an optional one. A sequence of maps is stored as a tensor.
fn is_sequence(info: &ValueInfoProto) -> bool {
    let of_tensors = |sequence: &Sequence| {
        let element = sequence.elem_type.as_ref().and_then(|its| its.value.as_ref());
        matches!(element, Some(Value::TensorType(_)))
    };
    match type_of(info) {
        Some(Value::SequenceType(sequence)) => of_tensors(sequence),
        Some(Value::OptionalType(optional)) => {
            match optional.elem_type.as_ref().and_then(|its| its.value.as_ref()) {
                Some(Value::SequenceType(sequence)) => of_tensors(sequence),
                _ => false,
            }
        }
        _ => false,
    }
}

/// The folders with a `model.onnx` below `folder`, sorted.
fn models(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        if folder.join("model.onnx").is_file() {
            found.push(folder);
            continue;
        }
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        open.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    found.sort();
    found
}

#[test]
fn models_of_others_give_their_expected_outputs() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/platforms/onnx");
    let models = [models(&folder.join("others")), models(&folder.join("made"))].concat();
    assert!(models.len() >= 20, "only {} models", models.len());
    for model in models {
        assert_eq!(outcome(&model), Outcome::Equal, "{}", model.display());
    }
}

#[test]
#[ignore = "needs the models of TENSORSERVE_ONNX_MODELS"]
#[expect(clippy::print_stdout, reason = "the numbers are its result")]
fn models_of_a_folder_give_their_expected_outputs() {
    let folders = path_from_environment("TENSORSERVE_ONNX_MODELS").expect("folders");
    for folder in std::env::split_paths(&folders) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for model in models(&folder) {
            let (kind, why) = match outcome(&model) {
                Outcome::Equal => ("equal", None),
                Outcome::Refused(why) => ("refused", Some(why)),
                Outcome::Runtime(why) => ("not run by ONNX Runtime", Some(why)),
                Outcome::Wrong(why) => ("wrong", Some(why)),
            };
            *counts.entry(kind).or_default() += 1;
            if let Some(why) = why {
                let why: String = why.chars().take(110).collect();
                let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
                reasons.entry(format!("{kind}: {why}")).or_default().push(name);
            }
        }
        println!("{}: {counts:?}", folder.display());
        for (why, models) in &reasons {
            println!("  {} × {why} ({})", models.len(), models[..models.len().min(3)].join(", "));
        }
        let wrong = reasons.iter().filter(|(why, _)| why.starts_with("wrong"));
        let wrong: Vec<&String> = wrong.flat_map(|(_, models)| models).collect();
        let unknown: Vec<_> =
            wrong.iter().filter(|model| !OF_RUNTIME.contains(&model.as_str())).collect();
        assert!(unknown.is_empty(), "wrong outputs: {unknown:?}");
    }
}
