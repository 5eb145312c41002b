//! What a SavedModel declares: its signatures, with the types and shapes of their inputs and outputs.

use tensorserve_proto::tensor_from_proto;
use tensorserve_proto::tensorflow::tensor_info::Encoding;
use tensorserve_proto::tensorflow::{MetaGraphDef, SignatureDef, TensorInfo};
use tensorserve_tensor::{
    CooSparse, DeclaredShape, ImageEncoding, RowDependence, Signature, TensorSpec,
};

/// The signature that is declared as `definition`, without what its graph shows.
#[must_use]
pub fn declared_signature(name: &str, definition: &SignatureDef) -> Signature {
    let mut defaults = Vec::new();
    for (alias, proto) in &definition.defaults {
        match tensor_from_proto(proto) {
            Ok(tensor) => defaults.push((alias.clone(), tensor)),
            Err(e) => log::warn!("signature {name}: ignoring the default of {alias}: {e}"),
        }
    }
    Signature {
        name: name.to_owned(),
        method_name: definition.method_name.clone(),
        inputs: definition.inputs.iter().map(|(alias, info)| spec(alias, info)).collect(),
        outputs: definition.outputs.iter().map(|(alias, info)| spec(alias, info)).collect(),
        defaults,
        images: ImageEncoding::Raw,
        takes_images: false,
        read_only: false,
        repeatable: false,
        exact_shapes: false,
        by_columns: None,
        unused_columns: Vec::new(),
        categories: Vec::new(),
        ignores_unknown: true,
        ran_with: Vec::new(),
        is_bounded: true,
        rows: RowDependence::NoGraph,
    }
}

fn spec(alias: &str, info: &TensorInfo) -> TensorSpec {
    let shape = match &info.tensor_shape {
        None => DeclaredShape::Missing,
        Some(shape) if shape.unknown_rank => DeclaredShape::UnknownRank,
        Some(shape) => {
            let dims = shape.dim.iter().map(|dim| (dim.size, dim.name.clone()));
            DeclaredShape::Dims(dims.collect())
        }
    };
    let (tensor_name, sparse) = match &info.encoding {
        Some(Encoding::Name(name)) => (name.clone(), None),
        Some(Encoding::CooSparse(coo)) => {
            let sparse = CooSparse {
                values: coo.values_tensor_name.clone(),
                indices: coo.indices_tensor_name.clone(),
                dense_shape: coo.dense_shape_tensor_name.clone(),
            };
            (String::new(), Some(sparse))
        }
        None => (String::new(), None),
    };
    TensorSpec {
        alias: alias.to_owned(),
        tensor_name,
        dtype_number: info.dtype,
        shape,
        sparse,
        takes_missing: false,
        number_texts: None,
        quantization: None,
        column_names: Vec::new(),
    }
}

/// The tensors of an input or output: three for a sparse one.
#[must_use]
pub fn tensor_names(info: &TensorInfo) -> Vec<&str> {
    match &info.encoding {
        Some(Encoding::Name(name)) => vec![name],
        Some(Encoding::CooSparse(coo)) => {
            vec![&coo.values_tensor_name, &coo.indices_tensor_name, &coo.dense_shape_tensor_name]
        }
        None => Vec::new(),
    }
}

/// Whether the graph has the marshalled Python functions that Simple TensorFlow Serving would call.
#[must_use]
pub fn has_marshalled_hooks(meta: &MetaGraphDef) -> bool {
    let hooks = ["preprocess_function", "postprocess_function"];
    hooks.iter().any(|name| meta.collection_def.contains_key(*name))
}
