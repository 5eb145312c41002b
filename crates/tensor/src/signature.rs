//! What a model declares: signatures and the tensors they name.

use std::fmt;

use super::{DType, Tensor};

/// The declared shape of a signature's tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeclaredShape {
    /// The model says nothing (a `TensorInfo` without `tensor_shape`).
    Missing,
    /// Declared to be of any rank.
    UnknownRank,
    /// Each dimension with its name (mostly empty); -1 is unknown.
    Dims(Vec<(i64, String)>),
}

impl DeclaredShape {
    /// The dimension sizes, -1 where unknown; `None` if the rank is unknown.
    #[must_use]
    pub fn sizes(&self) -> Option<Vec<i64>> {
        match self {
            DeclaredShape::Dims(dims) => Some(dims.iter().map(|(size, _)| *size).collect()),
            DeclaredShape::Missing | DeclaredShape::UnknownRank => None,
        }
    }

    /// Whether the 0-th dimension is declared to be of any size: the sign of a batch dimension.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        matches!(self, DeclaredShape::Dims(dims) if dims.first().is_some_and(|(size, _)| *size == -1))
    }
}

impl fmt::Display for DeclaredShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sizes() {
            None => f.write_str("any rank"),
            Some(sizes) => {
                let sizes: Vec<String> =
                    sizes.iter().map(|&s| if s < 0 { "?".into() } else { s.to_string() }).collect();
                write!(f, "[{}]", sizes.join(", "))
            }
        }
    }
}

/// Names of the three tensors that make up a sparse one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CooSparse {
    /// Tensor of the values.
    pub values: String,
    /// Tensor of their positions.
    pub indices: String,
    /// Tensor of the dense shape.
    pub dense_shape: String,
}

/// One input or output of a signature.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// The name clients use.
    pub alias: String,
    /// The tensor of the graph, for example `serving_default_x:0`.
    pub tensor_name: String,
    /// TensorFlow's type number as the model declares it, reference types and all.
    pub dtype_number: i32,
    /// Declared shape. Models in the wild declare wrong ones: a hint, not a check.
    pub shape: DeclaredShape,
    /// Set if the model declares a sparse tensor, which clients can not send as one.
    pub sparse: Option<CooSparse>,
}

impl TensorSpec {
    /// One of a model that is no graph: its tensor is called what clients call it. -1 in `sizes`
    /// is an open dimension.
    #[must_use]
    pub fn new(alias: impl Into<String>, dtype: DType, sizes: &[i64]) -> Self {
        let alias = alias.into();
        TensorSpec {
            tensor_name: alias.clone(),
            alias,
            dtype_number: dtype.number(),
            shape: DeclaredShape::Dims(sizes.iter().map(|&size| (size, String::new())).collect()),
            sparse: None,
        }
    }

    /// Element type; `None` if it is one that no client can send.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        DType::from_number(self.dtype_number)
    }
}

/// How images reach a model whose one input is a string tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageEncoding {
    /// The file's bytes as they are.
    Raw,
    /// URL-safe base64 text of the bytes, which the graph decodes itself.
    Base64Url,
}

/// A function of a model: named inputs to named outputs.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The name clients use, for example `serving_default`.
    pub name: String,
    /// `tensorflow/serving/predict`, `…/classify`, `…/regress` or whatever the model says.
    pub method_name: String,
    /// Inputs, sorted by alias.
    pub inputs: Vec<TensorSpec>,
    /// Outputs, sorted by alias.
    pub outputs: Vec<TensorSpec>,
    /// Values of inputs that a caller may leave out, by alias.
    pub defaults: Vec<(String, Tensor)>,
    /// How image uploads are fed to it.
    pub images: ImageEncoding,
    /// Whether it is seen to decode images.
    pub takes_images: bool,
    /// Whether running it changes no state of the model, as far as its operations tell (no
    /// variable is assigned, no table or queue written). Only such a signature is warmed with made-up data, batched
    /// without being asked to, or run twice.
    pub read_only: bool,
}

impl Signature {
    /// The one function of a model that changes nothing by being run: `serving_default`.
    #[must_use]
    pub fn only(mut inputs: Vec<TensorSpec>, mut outputs: Vec<TensorSpec>) -> Self {
        inputs.sort_by(|a, b| a.alias.cmp(&b.alias));
        outputs.sort_by(|a, b| a.alias.cmp(&b.alias));
        Signature {
            name: "serving_default".to_owned(),
            method_name: "tensorflow/serving/predict".to_owned(),
            inputs,
            outputs,
            defaults: Vec::new(),
            images: ImageEncoding::Raw,
            takes_images: false,
            read_only: true,
        }
    }

    /// The position of the input `alias`.
    #[must_use]
    pub fn input(&self, alias: &str) -> Option<usize> {
        self.inputs.iter().position(|spec| spec.alias == alias)
    }

    /// Whether every input and output declares an open 0-th dimension, so that requests can be
    /// expected to join along it.
    #[must_use]
    pub fn is_batchable(&self) -> bool {
        let mut all = self.inputs.iter().chain(&self.outputs);
        !self.inputs.is_empty()
            && !self.outputs.is_empty()
            && all.all(|spec| spec.shape.is_batched() && spec.dtype().is_some())
    }
}
