//! Sequences, maps and optional values, with models that skl2onnx wrote and graphs that the tests build.

use std::path::PathBuf;

use super::*;
use crate::graph::{int64_vector, tensor_info};
use crate::proto::{OperatorSetIdProto, TypeProto};
use crate::tests::{floats_of, load, onnx, run, save};
use tensorserve_platform::{LoadOptions, Loaded, ModelLoader};
use tensorserve_tensor::error::Code;
use tensorserve_tensor::{DType, DeclaredShape};

fn made(name: &str) -> PathBuf {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/platforms/onnx");
    data.join("made").join(name).join("model.onnx")
}

fn outputs(loaded: &Loaded) -> Vec<&str> {
    loaded.signatures[0].outputs.iter().map(|spec| &*spec.alias).collect()
}

/// A sequence of tensors of floats of this shape, or an optional one.
fn sequence(name: &str, dims: &[i64], is_optional: bool) -> ValueInfoProto {
    let element = tensor_info(name, DType::Float, dims).r#type.map(Box::new);
    let value = Type::SequenceType(Box::new(type_proto::Sequence { elem_type: element }));
    let mut its_type = TypeProto { value: Some(value), ..TypeProto::default() };
    if is_optional {
        let optional = type_proto::Optional { elem_type: Some(Box::new(its_type)) };
        its_type = TypeProto {
            value: Some(Type::OptionalType(Box::new(optional))),
            ..TypeProto::default()
        };
    }
    ValueInfoProto { name: name.to_owned(), r#type: Some(its_type) }
}

fn model(
    nodes: Vec<NodeProto>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
) -> ModelProto {
    ModelProto {
        ir_version: 8,
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 18 }],
        graph: Some(GraphProto {
            name: "test".to_owned(),
            node: nodes,
            input: inputs,
            output: outputs,
            ..GraphProto::default()
        }),
        ..ModelProto::default()
    }
}

#[test]
fn scores_come_with_the_names_of_their_classes() {
    let file = made("skl_logistic_texts_15");
    let loaded = load(&file).expect("loads");
    let names = ["output_label", "output_probability", "output_probability_classes"];
    assert_eq!(outputs(&loaded), names);
    assert!(loaded.signatures[0].is_batchable());
    let x = floats_of(&[2, 4], &[5.1, 3.5, 1.4, 0.2, 6.3, 3.3, 6.0, 2.5]);
    let got = run(&loaded, &[x]).expect("runs");
    let classes: Vec<&[u8]> = got[2].strings().expect("texts").iter().collect();
    assert_eq!(got[2].shape().dims(), [2, 3]);
    let once = [&b"setosa"[..], b"versicolor", b"virginica"];
    assert_eq!(classes, [once, once].concat());
    let scores = got[1].values::<f32>().expect("floats");
    assert!(scores[0] > 0.9 && scores[5] > 0.9, "{scores:?}");
    let inspected = onnx().inspect(&file, &LoadOptions::default()).expect("inspected");
    assert_eq!(inspected.signatures[0].outputs, loaded.signatures[0].outputs);
}

/// The numbers of the columns are no news.
#[test]
fn classes_that_are_the_numbers_of_the_columns_are_no_output() {
    let loaded = load(&made("skl_forest_numbers_12")).expect("loads");
    assert_eq!(outputs(&loaded), ["output_label", "output_probability"]);
}

#[test]
fn classes_that_are_other_numbers_are_an_output() {
    let mut zip_map = node("ZipMap", &["x"], &["scores"])
        .with(crate::graph::ints("classlabels_int64s", &[7, -1]));
    zip_map.domain = "ai.onnx.ml".to_owned();
    let map = type_proto::Map {
        key_type: 7,
        value_type: tensor_info("", DType::Float, &[]).r#type.map(Box::new),
    };
    let map = TypeProto { value: Some(Type::MapType(Box::new(map))), ..TypeProto::default() };
    let maps =
        Type::SequenceType(Box::new(type_proto::Sequence { elem_type: Some(Box::new(map)) }));
    let output = ValueInfoProto {
        name: "scores".to_owned(),
        r#type: Some(TypeProto { value: Some(maps), ..TypeProto::default() }),
    };
    let mut model =
        model(vec![zip_map], vec![tensor_info("x", DType::Float, &[-1, 2])], vec![output]);
    model.opset_import.push(OperatorSetIdProto { domain: "ai.onnx.ml".to_owned(), version: 1 });
    let (_folder, file) = save(&model);
    let loaded = load(&file).expect("loads");
    assert_eq!(outputs(&loaded), ["scores", "scores_classes"]);
    let got = run(&loaded, &[floats_of(&[2, 2], &[0.1, 0.9, 0.6, 0.4])]).expect("runs");
    assert_eq!(got[0].values::<f32>().expect("floats"), [0.9, 0.1, 0.4, 0.6]);
    assert_eq!(got[1].values::<i64>().expect("integers"), [-1, 7, -1, 7]);
    // Without rows there are no classes.
    let got = run(&loaded, &[floats_of(&[0, 2], &[])]).expect("runs");
    assert_eq!(got[1].shape().dims(), [0, 2]);

    let graph = model.graph.as_mut().expect("a graph");
    graph.node = vec![node("Other", &["x"], &["scores"])];
    let (_folder, file) = save(&model);
    let error = load(&file).err().expect("refused");
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(
        error.message().contains("\"scores\"") && error.message().contains("zipmap"),
        "{error}"
    );
}

/// A classifier of several targets returns a tensor for each of them.
#[test]
fn a_sequence_that_the_graph_lists_is_an_output_for_each_element() {
    let loaded = load(&made("skl_multi_texts_15")).expect("loads");
    assert_eq!(outputs(&loaded), ["label", "probabilities_0", "probabilities_1"]);
    let got = run(&loaded, &[floats_of(&[1, 4], &[5.1, 3.5, 1.4, 0.2])]).expect("runs");
    for scores in &got[1..] {
        assert_eq!(scores.shape().dims(), [1, 3]);
        let sum: f32 = scores.values::<f32>().expect("floats").iter().sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    }
}

#[test]
fn another_sequence_is_a_tensor_of_its_elements() {
    let split = node("SplitToSequence", &["x", "sizes"], &["parts"]).with(int("axis", 0));
    let mut whole = model(
        vec![split],
        vec![tensor_info("x", DType::Float, &[-1, 2])],
        vec![sequence("parts", &[-1, 2], false)],
    );
    whole.graph.as_mut().expect("a graph").initializer = vec![int64_vector("sizes", &[2, 2])];
    let (_folder, file) = save(&whole);
    let loaded = load(&file).expect("loads");
    let signature = &loaded.signatures[0];
    assert_eq!(outputs(&loaded), ["parts"]);
    assert_eq!(signature.outputs[0].shape, DeclaredShape::UnknownRank);
    assert!(!signature.is_batchable());
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let got = run(&loaded, &[floats_of(&[4, 2], &values)]).expect("runs");
    assert_eq!(got[0].shape().dims(), [2, 2, 2]);
    assert_eq!(got[0].values::<f32>().expect("floats"), values);

    let graph = whole.graph.as_mut().expect("a graph");
    graph.initializer = vec![int64_vector("sizes", &[1, 3])];
    let (_folder, file) = save(&whole);
    let error = run(&load(&file).expect("loads"), &[floats_of(&[4, 2], &values)]);
    assert_eq!(error.expect_err("two shapes").code(), Code::InvalidArgument);
}

#[test]
fn sequences_and_optional_values_are_taken_as_tensors() {
    for is_optional in [false, true] {
        let (inside, mut nodes) = match is_optional {
            true => ("inside", vec![node("OptionalGetElement", &["s"], &["inside"])]),
            false => ("s", Vec::new()),
        };
        nodes.push(node("ConcatFromSequence", &[inside], &["y"]).with(int("axis", 0)));
        let (_folder, file) = save(&model(
            nodes,
            vec![sequence("s", &[-1], is_optional)],
            vec![tensor_info("y", DType::Float, &[-1])],
        ));
        let loaded = load(&file).expect("loads");
        assert_eq!(loaded.signatures[0].inputs[0].alias, "s");
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let got = run(&loaded, &[floats_of(&[3, 2], &values)]).expect("runs");
        assert_eq!(got[0].values::<f32>().expect("floats"), values);
    }
}

#[test]
fn damaged_models_are_errors() {
    let whole = std::fs::read(made("skl_multi_texts_15")).expect("a file");
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("model.onnx");
    let inspect = |bytes: &[u8]| {
        std::fs::write(&file, bytes).expect("written");
        let _ = onnx().inspect(&file, &LoadOptions::default());
    };
    for at in 0..whole.len() {
        inspect(&whole[..at]);
        let mut flipped = whole.clone();
        flipped[at] ^= 0x55;
        inspect(&flipped);
    }
}
