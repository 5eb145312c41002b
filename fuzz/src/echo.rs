//! Models that return their inputs. A decoder then meets every signature that a client can.

use std::path::Path;
use std::sync::Arc;

use tensorserve_mlflow::MlflowModel;
use tensorserve_platform::{
    Completeness, Executable, InputStyle, Inspection, LoadOptions, Loaded, ModelLoader, ModelPath,
    Packaging, PartOfProgram, Platform, PlatformInfo, RunOptions,
};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    DType, ImageEncoding, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

use super::memory::unwatched;

/// The types of the models that have one input and one output, all of them; each is the name of a model. Seeds
/// select a type by its place here.
pub const DTYPES: [DType; DType::ALL.len()] = [
    DType::Float,
    DType::Double,
    DType::Half,
    DType::BFloat16,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Bool,
    DType::String,
    DType::Complex64,
    DType::Complex128,
];

/// The model with two inputs.
pub const TWO: &str = "two";

/// The model that takes examples.
pub const EXAMPLES: &str = "examples";

/// The model that takes images.
pub const IMAGES: &str = "images";

/// A model of rows of eight numbers.
pub const ROWS: &str = "rows";

/// A model of records with a number and a text.
pub const RECORDS: &str = "records";

/// Models of rows of eight numbers in model folders of MLflow, each with the signature in its `MLmodel`.
pub const SCORED: [(&str, &str); 4] = [
    ("scored", "flavors: {xgboost: {data: m}}"),
    (
        "scored_columns",
        "flavors: {xgboost: {data: m}}\nsignature:\n  params: '[{\"name\": \"p\", \"type\": \"long\"}]'\n  \
         inputs: '[{\"type\": \"double\", \"name\": \"a\"}, {\"type\": \"long\", \"name\": \"b\", \
         \"required\": false}, {\"type\": \"array\", \"items\": {\"type\": \"float\"}, \"name\": \"c\", \
         \"required\": false}, {\"type\": \"binary\", \"name\": \"d\", \"required\": false}]'",
    ),
    (
        "scored_tensor",
        "flavors: {onnx: {data: m}}\nsignature:\n  inputs: '[{\"type\": \"tensor\", \"tensor-spec\": \
         {\"dtype\": \"float32\", \"shape\": [-1, 8]}}]'",
    ),
    (
        "scored_tensors",
        "flavors: {onnx: {data: m}}\nsignature:\n  inputs: '[{\"type\": \"tensor\", \"name\": \"data\", \
         \"tensor-spec\": {\"dtype\": \"int32\", \"shape\": [-1, 2, 4]}}]'",
    ),
];

/// The `MLmodel` of the model `name`.
fn model_file_of(name: &str) -> Option<&'static str> {
    SCORED.iter().find(|(scored, _)| *scored == name).map(|(_, file)| *file)
}

/// The names of all models.
pub fn names() -> Vec<&'static str> {
    let others = [TWO, EXAMPLES, IMAGES, ROWS, RECORDS];
    let others = others.into_iter().chain(SCORED.iter().map(|(name, _)| *name));
    DTYPES.iter().map(|dtype| dtype.name()).chain(others).collect()
}

/// A platform whose models have this input style.
pub struct Echo(pub InputStyle);

impl Echo {
    fn takes(&self, model: &str) -> bool {
        let style = match model {
            ROWS => InputStyle::Rows,
            scored if model_file_of(scored).is_some() => InputStyle::Rows,
            RECORDS => InputStyle::Records,
            _ => InputStyle::Tensors,
        };
        style == self.0
    }
}

/// The name of the model at `path`, a folder of a version.
fn model_of(path: &Path) -> &str {
    let model = path.parent().and_then(Path::file_name);
    model.and_then(|name| name.to_str()).unwrap_or_default()
}

impl Echo {
    /// A platform whose inputs have this style.
    pub fn platform(self) -> Platform {
        let name = match self.0 {
            InputStyle::Tensors => "tensorflow",
            InputStyle::Rows => "xgboost",
            InputStyle::Records => "pmml",
        };
        let info = PlatformInfo {
            name,
            title: name,
            input_style: self.0,
            takes_threads: false,
            must_be_named: false,
            is_isolated: false,
        };
        Platform { info, loader: Arc::new(self), runtime: Arc::new(PartOfProgram("echo")) }
    }
}

impl ModelLoader for Echo {
    fn recognises(&self, place: &ModelPath<'_>) -> bool {
        place.has_file(&["echo"]) && self.takes(model_of(place.path()))
    }

    fn check(&self, _: &Path) -> Completeness {
        Completeness::Complete
    }

    fn inspect(&self, folder: &Path, _: &LoadOptions) -> Result<Inspection> {
        let signatures = signatures(model_of(folder));
        let written_by = String::new();
        Ok(Inspection { signatures, written_by, bytes: 1, external_ops: Vec::new() })
    }

    fn load(&self, folder: &Path, _: &LoadOptions) -> Result<Loaded> {
        let signatures = signatures(model_of(folder));
        let executable = Arc::new(EchoExecutable(signatures.clone()));
        let (bytes, external_ops) = (1, Vec::new());
        Ok(Loaded { signatures, executable, bytes, marshalled_hooks: false, external_ops })
    }

    fn packaging(&self, folder: &Path) -> Result<Option<Packaging>> {
        let file = model_file_of(model_of(folder)).map(str::as_bytes);
        Ok(file.map(MlflowModel::parse).transpose()?.map(|model| Arc::new(model) as Packaging))
    }
}

/// The signatures of the model `name`, sorted by name.
fn signatures(name: &str) -> Vec<Signature> {
    match name {
        TWO => vec![echoing(&[("x", DType::Float, &[-1, 2]), ("y", DType::String, &[-1])])],
        EXAMPLES => {
            let classes =
                specs(&[("classes", DType::String, &[-1, 2]), ("scores", DType::Float, &[-1, 2])]);
            let numbers = specs(&[("outputs", DType::Float, &[-1, 1])]);
            let examples = specs(&[("inputs", DType::String, &[-1])]);
            vec![
                named("regression", Signature::only(examples.clone(), numbers)),
                Signature::only(examples, classes),
            ]
        }
        IMAGES => {
            let mut signature = echoing(&[("image", DType::String, &[-1])]);
            signature.takes_images = true;
            signature.images = ImageEncoding::Base64Url;
            vec![signature]
        }
        name if name == ROWS || model_file_of(name).is_some() => vec![Signature::only(
            specs(&[("data", DType::Double, &[-1, 8])]),
            specs(&[("result", DType::Double, &[-1, 8])]),
        )],
        RECORDS => {
            let columns = [("number", DType::Double, &[-1][..]), ("text", DType::String, &[-1])];
            let mut signature = echoing(&columns);
            let zero = constant(DType::Double, Shape::vector(1)).ok();
            signature.defaults.extend(zero.map(|zero| ("number".to_owned(), zero)));
            vec![signature]
        }
        name => {
            let dtype = DTYPES.into_iter().find(|dtype| dtype.name() == name);
            vec![echoing(&[("x", dtype.unwrap_or(DType::Float), &[-1, -1])])]
        }
    }
}

/// A name, a type and sizes.
type Declared<'d> = (&'d str, DType, &'d [i64]);

fn specs(all: &[Declared<'_>]) -> Vec<TensorSpec> {
    all.iter().map(|(name, dtype, sizes)| TensorSpec::new(*name, *dtype, sizes)).collect()
}

/// A signature with the same inputs and outputs.
fn echoing(all: &[Declared<'_>]) -> Signature {
    Signature::only(specs(all), specs(all))
}

fn named(name: &str, signature: Signature) -> Signature {
    Signature { name: name.to_owned(), ..signature }
}

/// A tensor of zeros or empty strings.
pub fn constant(dtype: DType, shape: Shape) -> Result<Tensor> {
    let count = shape.elements()?;
    if dtype == DType::String {
        let mut strings = StringsBuilder::default();
        (0..count).for_each(|_| strings.push(b""));
        return Tensor::from_strings(shape, strings);
    }
    let size = dtype.size().unwrap_or(1);
    let mut bytes = aligned_vec::<u8>(count * size);
    bytes.resize(count * size, 0);
    Tensor::numeric(dtype, shape, tensorserve_tensor::Buffer::new(Arc::new(bytes)))
}

/// Returns the inputs, or constants for outputs that have another type.
struct EchoExecutable(Vec<Signature>);

impl Executable for EchoExecutable {
    fn run(&self, signature: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let signature = self.0.get(signature).ok_or_else(|| Error::internal("no signature"))?;
        let rows = inputs.first().and_then(Tensor::rows).unwrap_or(1);
        let mut outputs = Vec::new();
        for (index, spec) in signature.outputs.iter().enumerate() {
            let dtype = spec.dtype().unwrap_or(DType::Float);
            let input = inputs.get(index).filter(|input| input.dtype() == dtype);
            let is_same = signature.outputs.len() == signature.inputs.len();
            outputs.push(match input.filter(|_| is_same) {
                Some(input) => input.clone(),
                // The runtime's memory.
                None => unwatched(|| constant(dtype, with_rows(spec, rows)?))?,
            });
        }
        Ok(outputs)
    }
}

/// The declared shape with `rows` rows, and 1 for every other size that is not declared.
fn with_rows(spec: &TensorSpec, rows: usize) -> Result<Shape> {
    let sizes = spec.shape.sizes().unwrap_or_default();
    let dims: Vec<i64> = sizes.iter().map(|size| (*size).max(1)).collect();
    Ok(Shape::new(&dims)?.with_rows(rows))
}
