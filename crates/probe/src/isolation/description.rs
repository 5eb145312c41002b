//! What a process tells of the version that it has loaded: JSON, and the signatures' default values as
//! the tensors of the frame.

use std::io;

use serde::{Deserialize, Serialize};
use tensorserve_platform::{Loaded, OpRun};
use tensorserve_tensor::{
    CooSparse, DeclaredShape, ImageEncoding, NumberTexts, Quantization, RowDependence, RowFinding,
    Signature, Tensor, TensorSpec,
};

/// [`Loaded`] without its executable.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct VersionDescription {
    signatures: Vec<IsolatedSignature>,
    pub(crate) bytes: u64,
    pub(crate) marshalled_hooks: bool,
    /// Whether it has external operations.
    pub(crate) is_external: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct IsolatedSignature {
    name: String,
    method_name: String,
    inputs: Vec<IsolatedSpec>,
    outputs: Vec<IsolatedSpec>,
    /// The inputs with default values.
    defaults: Vec<String>,
    base64_images: bool,
    takes_images: bool,
    read_only: bool,
    repeatable: bool,
    exact_shapes: bool,
    by_columns: Option<String>,
    unused_columns: Vec<String>,
    categories: Vec<(String, Vec<String>)>,
    ignores_unknown: bool,
    ran_with: Vec<(String, Vec<i64>)>,
    rows: RowsDescription,
    is_bounded: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum RowsDescription {
    ByConstruction,
    Proven,
    /// Node, operation, and what it does.
    Mixed([String; 3]),
    Unknown([String; 3]),
    NoGraph,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct IsolatedSpec {
    alias: String,
    tensor_name: String,
    dtype_number: i32,
    shape: ShapeDescription,
    /// The tensors of values, indices and dense shape.
    sparse: Option<[String; 3]>,
    takes_missing: bool,
    /// Whether the texts of numbers are those of doubles, not of integers.
    double_texts: Option<bool>,
    /// Scale and zero point.
    quantization: Option<(f32, i64)>,
    column_names: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum ShapeDescription {
    Missing,
    UnknownRank,
    Dims(Vec<(i64, String)>),
}

impl VersionDescription {
    /// The description of a version, and the default values of its signatures in order.
    pub(crate) fn of(loaded: &Loaded) -> (Self, Vec<Tensor>) {
        let signatures = loaded.signatures.iter().map(IsolatedSignature::of).collect();
        let description = VersionDescription {
            signatures,
            bytes: loaded.bytes,
            marshalled_hooks: loaded.marshalled_hooks,
            is_external: !loaded.external_ops.is_empty(),
        };
        let defaults = loaded.signatures.iter().flat_map(|signature| &signature.defaults);
        (description, defaults.map(|(_, value)| value.clone()).collect())
    }

    /// The signatures, with these default values.
    ///
    /// # Errors
    /// If there are fewer values than the description has.
    pub(crate) fn signatures(&self, defaults: &[Tensor]) -> io::Result<Vec<Signature>> {
        let mut defaults = defaults.iter().cloned();
        let mut signatures = Vec::new();
        for described in &self.signatures {
            let mut values = Vec::new();
            for alias in &described.defaults {
                let value = defaults.next();
                let value = value.ok_or_else(|| io::Error::other("a default value is missing"))?;
                values.push((alias.clone(), value));
            }
            signatures.push(described.signature(values));
        }
        Ok(signatures)
    }
}

impl IsolatedSignature {
    fn of(signature: &Signature) -> Self {
        IsolatedSignature {
            name: signature.name.clone(),
            method_name: signature.method_name.clone(),
            inputs: signature.inputs.iter().map(IsolatedSpec::of).collect(),
            outputs: signature.outputs.iter().map(IsolatedSpec::of).collect(),
            defaults: signature.defaults.iter().map(|(alias, _)| alias.clone()).collect(),
            base64_images: signature.images == ImageEncoding::Base64Url,
            takes_images: signature.takes_images,
            read_only: signature.read_only,
            repeatable: signature.repeatable,
            exact_shapes: signature.exact_shapes,
            by_columns: signature.by_columns.clone(),
            unused_columns: signature.unused_columns.clone(),
            categories: signature.categories.clone(),
            ignores_unknown: signature.ignores_unknown,
            ran_with: signature.ran_with.clone(),
            rows: RowsDescription::of(&signature.rows),
            is_bounded: signature.is_bounded,
        }
    }

    fn signature(&self, defaults: Vec<(String, Tensor)>) -> Signature {
        Signature {
            name: self.name.clone(),
            method_name: self.method_name.clone(),
            inputs: self.inputs.iter().map(IsolatedSpec::spec).collect(),
            outputs: self.outputs.iter().map(IsolatedSpec::spec).collect(),
            defaults,
            images: if self.base64_images { ImageEncoding::Base64Url } else { ImageEncoding::Raw },
            takes_images: self.takes_images,
            read_only: self.read_only,
            repeatable: self.repeatable,
            exact_shapes: self.exact_shapes,
            by_columns: self.by_columns.clone(),
            unused_columns: self.unused_columns.clone(),
            categories: self.categories.clone(),
            ignores_unknown: self.ignores_unknown,
            ran_with: self.ran_with.clone(),
            rows: self.rows.dependence(),
            is_bounded: self.is_bounded,
        }
    }
}

impl RowsDescription {
    fn of(rows: &RowDependence) -> Self {
        let texts = |finding: &RowFinding| {
            let RowFinding { node, op, why } = finding;
            [node.clone(), op.clone(), why.clone()]
        };
        match rows {
            RowDependence::ByConstruction => RowsDescription::ByConstruction,
            RowDependence::Proven => RowsDescription::Proven,
            RowDependence::Mixed(finding) => RowsDescription::Mixed(texts(finding)),
            RowDependence::Unknown(finding) => RowsDescription::Unknown(texts(finding)),
            RowDependence::NoGraph => RowsDescription::NoGraph,
        }
    }

    fn dependence(&self) -> RowDependence {
        let finding = |[node, op, why]: &[String; 3]| {
            let (node, op, why) = (node.clone(), op.clone(), why.clone());
            RowFinding { node, op, why }
        };
        match self {
            RowsDescription::ByConstruction => RowDependence::ByConstruction,
            RowsDescription::Proven => RowDependence::Proven,
            RowsDescription::Mixed(texts) => RowDependence::Mixed(finding(texts)),
            RowsDescription::Unknown(texts) => RowDependence::Unknown(finding(texts)),
            RowsDescription::NoGraph => RowDependence::NoGraph,
        }
    }
}

impl IsolatedSpec {
    fn of(spec: &TensorSpec) -> Self {
        let sparse = spec.sparse.clone();
        IsolatedSpec {
            alias: spec.alias.clone(),
            tensor_name: spec.tensor_name.clone(),
            dtype_number: spec.dtype_number,
            shape: match &spec.shape {
                DeclaredShape::Missing => ShapeDescription::Missing,
                DeclaredShape::UnknownRank => ShapeDescription::UnknownRank,
                DeclaredShape::Dims(dims) => ShapeDescription::Dims(dims.clone()),
            },
            sparse: sparse.map(|names| [names.values, names.indices, names.dense_shape]),
            takes_missing: spec.takes_missing,
            double_texts: spec.number_texts.map(|texts| texts == NumberTexts::Doubles),
            quantization: spec.quantization.map(|it| (it.scale, it.zero_point)),
            column_names: spec.column_names.clone(),
        }
    }

    fn spec(&self) -> TensorSpec {
        let sparse = self.sparse.clone();
        TensorSpec {
            alias: self.alias.clone(),
            tensor_name: self.tensor_name.clone(),
            dtype_number: self.dtype_number,
            shape: match &self.shape {
                ShapeDescription::Missing => DeclaredShape::Missing,
                ShapeDescription::UnknownRank => DeclaredShape::UnknownRank,
                ShapeDescription::Dims(dims) => DeclaredShape::Dims(dims.clone()),
            },
            sparse: sparse.map(|[values, indices, dense_shape]| CooSparse {
                values,
                indices,
                dense_shape,
            }),
            takes_missing: self.takes_missing,
            number_texts: self.double_texts.map(|doubles| match doubles {
                true => NumberTexts::Doubles,
                false => NumberTexts::Integers,
            }),
            quantization: self
                .quantization
                .map(|(scale, zero_point)| Quantization { scale, zero_point }),
            column_names: self.column_names.clone(),
        }
    }
}

/// [`OpRun`] as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OpRunDescription {
    op: String,
    node: String,
    nanos: u64,
    bytes: u64,
    on_accelerator: bool,
}

impl From<OpRun> for OpRunDescription {
    fn from(run: OpRun) -> Self {
        let OpRun { op, node, nanos, bytes, on_accelerator } = run;
        OpRunDescription { op, node, nanos, bytes, on_accelerator }
    }
}

impl From<OpRunDescription> for OpRun {
    fn from(run: OpRunDescription) -> Self {
        let OpRunDescription { op, node, nanos, bytes, on_accelerator } = run;
        OpRun { op, node, nanos, bytes, on_accelerator }
    }
}
