//! Models of exporters: which of them are proven, and that the rows of those get in a batch with any others what
//! they get alone.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;
use tempfile::TempDir;
use tensorserve_platform::{LoadOptions, Loaded, ModelLoader, RunOptions};
use tensorserve_tensor::{
    DType, Element, RowDependence, Shape, Tensor, TensorSpec, aligned_vec, concat,
};

use crate::proto::tensor_shape_proto::Dimension;
use crate::proto::type_proto::Value as Type;
use crate::proto::{ModelProto, ValueInfoProto};
use crate::tests::{onnx, path_from_environment};

/// Models in `tests/data` whose rows are not proven to be independent.
const NOT_PROVEN: &[&str] = &[
    // An output, a list of tensors that declares no shape.
    "made/skl_multi_texts_15/model.onnx",
    // Inputs of different first sizes, which are left as they are.
    "others/test_operator_add_broadcast/model.onnx",
    "others/test_operator_addmm/model.onnx",
    // Splits and picks along the first dimension.
    "others/test_operator_chunk/model.onnx",
    "others/test_operator_index/model.onnx",
    "others/test_operator_mm/model.onnx",
    // A constant of as many rows is added.
    "others/test_operator_params/model.onnx",
    // Lists of tensors.
    "others/test_sequence_model1/model.onnx",
    "others/test_sequence_model2/model.onnx",
    "others/test_sequence_model3/model.onnx",
    "others/test_sequence_model4/model.onnx",
    "others/test_sequence_model5/model.onnx",
    "others/test_sequence_model6/model.onnx",
    "others/test_sequence_model7/model.onnx",
    "others/test_sequence_model8/model.onnx",
];

fn models(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true => models(&path, found),
            false if path.extension().is_some_and(|its| its == "onnx") => found.push(path),
            false => {}
        }
    }
}

/// The rows that are joined: usual ones, zeros, great ones, and none that is a number.
fn row(spec: &TensorSpec, kind: usize) -> Option<Tensor> {
    let sizes = spec.shape.sizes()?;
    let inner: Vec<i64> =
        sizes.iter().skip(1).map(|size| if *size < 0 { 3 } else { *size }).collect();
    let count = usize::try_from(inner.iter().product::<i64>()).ok()?;
    let shape = Shape::new(&[&[1], inner.as_slice()].concat()).ok()?;
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let usual = |index: usize| (((index * 37 + kind * 11) % 19) as f32 - 9.0) / 4.0;
    let value = |index: usize| match kind {
        3 => 0.0,
        4 => 100f32.exp2(),
        5 => f32::NAN,
        6 => f32::NEG_INFINITY,
        _ => usual(index),
    };
    let whole = |index: usize| (index + kind) % 3;
    match spec.dtype()? {
        DType::Float => tensor(shape, count, value),
        DType::Double => tensor(shape, count, |index| f64::from(value(index))),
        DType::Int64 => tensor(shape, count, |index| i64::try_from(whole(index)).unwrap_or(0)),
        DType::Int32 => tensor(shape, count, |index| i32::try_from(whole(index)).unwrap_or(0)),
        _ => None,
    }
}

fn tensor<T: Element>(shape: Shape, count: usize, value: impl Fn(usize) -> T) -> Option<Tensor> {
    let values: Vec<T> = (0..count).map(value).collect();
    let mut aligned = aligned_vec(count);
    aligned.extend_from_slice(&values);
    Tensor::from_vec(shape, aligned).ok()
}

fn run(loaded: &Loaded, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
    loaded.executable.run(0, inputs, RunOptions::default()).ok()
}

fn is_close(a: &Tensor, b: &Tensor) -> bool {
    if a.shape() != b.shape() {
        return false;
    }
    let (Some(x), Some(y)) = (a.values::<f32>(), b.values::<f32>()) else {
        return a.bytes() == b.bytes();
    };
    let scale = x.iter().filter(|it| it.is_finite()).fold(1.0f32, |most, it| most.max(it.abs()));
    x.iter()
        .zip(y)
        .all(|(x, y)| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-5 * scale)
}

/// Compares rows of batches with those alone; returns how many were compared.
fn compare(name: &str, loaded: &Loaded) -> usize {
    let signature = &loaded.signatures[0];
    let inputs = |kind: usize| -> Option<Vec<Tensor>> {
        signature.inputs.iter().map(|spec| row(spec, kind)).collect()
    };
    let batches: [&[usize]; 6] =
        [&[0, 1], &[1, 0], &[3, 0, 4], &[0, 5, 1], &[6, 2, 3, 4, 5], &[2, 3, 1, 0, 4, 6, 5, 1]];
    let mut compared = 0;
    for kinds in batches {
        let Some(rows) = kinds.iter().map(|kind| inputs(*kind)).collect::<Option<Vec<_>>>() else {
            return 0;
        };
        let joined = (0..signature.inputs.len()).map(|input| {
            let parts: Vec<&Tensor> = rows.iter().map(|row| &row[input]).collect();
            concat(&parts, kinds.len()).expect("a batch")
        });
        let Some(together) = run(loaded, &joined.collect::<Vec<_>>()) else { continue };
        for (place, row) in rows.iter().enumerate() {
            let Some(alone) = run(loaded, row) else { continue };
            for ((together, alone), spec) in together.iter().zip(&alone).zip(&signature.outputs) {
                let its = together.slice_rows(place..place + 1);
                let output = &spec.alias;
                assert!(
                    is_close(alone, &its),
                    "{name}: {output} of row {place} of {kinds:?}: {:?}, alone {:?}",
                    its.values::<f32>(),
                    alone.values::<f32>()
                );
                compared += 1;
            }
        }
    }
    compared
}

/// A copy of the model at `path` of which the first size of all inputs and outputs varies, if that of all inputs
/// is the same.
fn of_any_number_of_rows(path: &Path, folder: &Path) -> Option<PathBuf> {
    let mut model = ModelProto::decode(fs::read(path).ok()?.as_slice()).ok()?;
    let graph = model.graph.as_mut()?;
    let weights: Vec<String> = graph.initializer.iter().map(|its| its.name.clone()).collect();
    graph.input.retain(|input| !weights.contains(&input.name));
    let first = |info: &mut ValueInfoProto| -> Option<Dimension> {
        let Type::TensorType(tensor) = info.r#type.as_mut()?.value.as_mut()? else { return None };
        let first = tensor.shape.as_mut()?.dim.first_mut()?;
        Some(std::mem::take(first))
    };
    let sizes: Option<Vec<Dimension>> = graph.input.iter_mut().map(first).collect();
    let sizes = sizes?;
    graph.output.iter_mut().for_each(|output| drop(first(output)));
    let copy = folder.join("model.onnx");
    fs::write(&copy, model.encode_to_vec()).expect("a copy");
    sizes.windows(2).all(|pair| pair[0] == pair[1]).then_some(copy)
}

/// The verdict of a model that can be loaded; of one that is proven, the number of rows that were compared.
fn judge(name: &str, path: &Path) -> Option<(RowDependence, usize)> {
    let loaded = onnx().load(path, &LoadOptions { threads: 1, ..LoadOptions::default() }).ok()?;
    let rows = loaded.signatures[0].rows.clone();
    let compared = if rows.is_independent() { compare(name, &loaded) } else { 0 };
    Some((rows, compared))
}

#[test]
fn models_of_exporters_are_proven() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/platforms/onnx");
    let mut paths = Vec::new();
    models(&folder, &mut paths);
    let scratch = TempDir::new().expect("a folder");
    let mut refused = Vec::new();
    let mut compared = 0;
    for path in &paths {
        let name = path.strip_prefix(&folder).expect("below").display().to_string();
        if name.starts_with("mixing/") {
            continue;
        }
        let copy = of_any_number_of_rows(path, scratch.path());
        let Some((rows, count)) = judge(&name, copy.as_ref().unwrap_or(path)) else { continue };
        compared += count;
        if !rows.is_independent() {
            refused.push((name, rows.to_string()));
        }
    }
    assert!(compared > 400, "{compared}");
    let names: Vec<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, NOT_PROVEN, "{refused:#?}");
}

/// The models that `tests/data/platforms/onnx/make_mixing.py` makes: all but one mix rows, each in another way.
#[test]
fn models_that_mix_rows_are_not_proven() {
    let folder = "../../tests/data/platforms/onnx/mixing";
    let mut paths = Vec::new();
    models(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder), &mut paths);
    assert!(paths.len() > 25, "{paths:?}");
    for path in paths {
        let folder = path.ancestors().nth(2).expect("the folder of a model");
        let name = folder.file_name().expect("a name").display().to_string();
        let (rows, _) = judge(&name, &path).expect("a model that can be loaded");
        assert_eq!(rows.is_independent(), name == "independent", "{name}: {rows}");
    }
}

/// Runs other models in batches and alone: see the top of `tests_of_models.rs`.
#[test]
#[ignore = "needs the models of TENSORSERVE_ONNX_MODELS"]
fn other_models_get_in_a_batch_what_they_get_alone() {
    let folders = path_from_environment("TENSORSERVE_ONNX_MODELS").expect("folders");
    let mut paths = Vec::new();
    std::env::split_paths(&folders).for_each(|folder| models(&folder, &mut paths));
    let scratch = TempDir::new().expect("a folder");
    let mut verdicts = Vec::new();
    for path in &paths {
        let name = path.display().to_string();
        let Some(copy) = of_any_number_of_rows(path, scratch.path()) else { continue };
        let judged = judge(&name, &copy);
        verdicts.extend(judged.map(|(rows, count)| format!("{name}: {rows} ({count} compared)\n")));
    }
    let report = std::env::temp_dir().join("tensorserve-onnx-rows.txt");
    fs::write(report, verdicts.concat()).expect("a report");
    assert!(!verdicts.is_empty());
}
