//! Classification and regression, over REST and gRPC: a signature with one input, which takes
//! serialized `tensorflow.Example`s, and outputs with fixed names and shapes.
//!
//! The checks, their order and their messages are those of the reference's `classifier.cc`,
//! `regressor.cc` and `util.cc`. Some messages of the reference end with the debug string of the
//! signature, which protocol buffers vary on purpose; here they end before it.

use super::DEFAULT_SIGNATURE;
use super::fault::type_name;
use tensorserve_core::engine::{Method, ModelHandle, SignatureRun};
use tensorserve_tensor::budget::Meter;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, STRING_OVERHEAD, Shape, Signature, StringsBuilder, Tensor};

/// The one input of a signature for classification or regression.
const INPUTS: &str = "inputs";
/// The outputs of a classification: labels and scores, or only one of them.
const CLASSES: &str = "classes";
const SCORES: &str = "scores";
/// The output of a regression.
const OUTPUTS: &str = "outputs";

/// One class that an example may belong to.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Its label: any bytes; empty if the model returns only scores.
    pub label: Vec<u8>,
    /// Its score; 0 if the model returns only labels.
    pub score: f32,
}

/// The classes of each example.
pub type Classifications = Vec<Vec<Class>>;

/// The index of the signature `name` (the default one if that is empty), which supports `method`.
///
/// # Errors
/// If there is no such signature, and the errors of [`check`].
pub fn find(handle: &ModelHandle, name: &str, method: Method) -> Result<usize> {
    let name = if name.is_empty() { DEFAULT_SIGNATURE } else { name };
    let Some((number, signature)) = handle.signature(name) else {
        return Err(Error::invalid(format!("No signature was found with the name: {name}")));
    };
    check(signature, method)?;
    Ok(number)
}

/// Checks that `signature` has the inputs and outputs that `method` requires. As in the reference, the
/// method name that the signature declares is ignored.
///
/// # Errors
/// [`Error::invalid`] that names the missing input or output.
pub fn check(signature: &Signature, method: Method) -> Result<()> {
    if signature.inputs.len() != 1 {
        return Err(Error::invalid("Expected one input Tensor."));
    }
    let outputs = signature.outputs.len();
    let has_inputs = signature.input(INPUTS).is_some();
    match method {
        Method::Classify if !matches!(outputs, 1 | 2) => {
            Err(Error::invalid(format!("Expected one or two output Tensors, found {outputs}")))
        }
        Method::Classify if !has_inputs => {
            Err(Error::invalid("No classification inputs found in SignatureDef: "))
        }
        Method::Classify if output(signature, CLASSES).or(output(signature, SCORES)).is_none() => {
            Err(Error::invalid(
                "Expected classification signature outputs to contain at least one of \
                 \"classes\" or \"scores\". Signature was: ",
            ))
        }
        Method::Regress if outputs != 1 => Err(Error::invalid("Expected one output Tensor.")),
        Method::Regress if !has_inputs => {
            Err(Error::invalid("No regression inputs found in SignatureDef: "))
        }
        Method::Regress if output(signature, OUTPUTS).is_none() => {
            Err(Error::invalid("No regression outputs found in SignatureDef: "))
        }
        Method::Classify | Method::Regress | Method::Predict | Method::MultiInference => Ok(()),
    }
}

/// The position of the output `alias`.
fn output(signature: &Signature, alias: &str) -> Option<usize> {
    signature.outputs.iter().position(|spec| spec.alias == alias)
}

/// Collects serialized examples into a tensor.
pub struct ExamplesBuilder<'c> {
    context: &'c [u8],
    strings: StringsBuilder,
    /// The remaining memory budget in bytes.
    room: usize,
    meter: Meter,
}

impl<'c> ExamplesBuilder<'c> {
    /// An empty collection. The bytes of `context`, itself an example, precede those of each example:
    /// later fields of a protocol buffer win, so the context adds only features that an example
    /// lacks. The tensor may take `max_bytes`, because a context is repeated for each example.
    #[must_use]
    pub fn new(context: &'c [u8], max_bytes: usize) -> Self {
        ExamplesBuilder {
            context,
            strings: StringsBuilder::default(),
            room: max_bytes,
            meter: Meter::default(),
        }
    }

    /// The remaining memory budget in bytes.
    #[must_use]
    pub fn room(&self) -> usize {
        self.room
    }

    /// Adds an example.
    ///
    /// # Errors
    /// If the budget is exceeded.
    pub fn push(&mut self, example: &[u8]) -> Result<()> {
        let bytes =
            STRING_OVERHEAD.saturating_add(self.context.len()).saturating_add(example.len());
        self.room = self.room.checked_sub(bytes).ok_or_else(too_large)?;
        // A buffer that grows has up to twice the capacity that it needs.
        self.meter.add(bytes.saturating_mul(2))?;
        self.strings.push_with(|out| {
            out.extend_from_slice(self.context);
            out.extend_from_slice(example);
            Ok(())
        })
    }

    /// The tensor of all examples.
    ///
    /// # Errors
    /// If there is none.
    pub fn into_tensor(self) -> Result<Tensor> {
        if self.strings.is_empty() {
            return Err(Error::invalid("Input is empty."));
        }
        Tensor::from_strings(Shape::vector(self.strings.len()), self.strings)
    }
}

/// The error for examples that take too much memory.
pub(super) fn too_large() -> Error {
    Error::invalid("The examples, each with its context, take too much memory")
}

/// The tensor of serialized `examples`, each preceded by `context` (which may be empty).
///
/// # Errors
/// If there is none, or they take more than `max_bytes`
/// (`Engine::max_tensor_bytes`) together.
pub fn examples_tensor<E: AsRef<[u8]>>(
    context: &[u8],
    examples: &[E],
    max_bytes: usize,
) -> Result<Tensor> {
    let mut all = ExamplesBuilder::new(context, max_bytes);
    for example in examples {
        all.push(example.as_ref())?;
    }
    all.into_tensor()
}

/// The run of a signature on serialized examples.
#[must_use]
pub fn run(signature: usize, method: Method, examples: Tensor) -> SignatureRun {
    SignatureRun { signature, method, inputs: vec![examples], output_filter: Vec::new() }
}

/// The classes of `examples` examples, from the outputs of `signature`.
///
/// # Errors
/// [`Error::invalid`] if types or shapes are not those of a classification.
pub fn classifications(
    signature: &Signature,
    examples: usize,
    outputs: &[Tensor],
) -> Result<Classifications> {
    let named = |alias| output(signature, alias).and_then(|index| outputs.get(index));
    let (labels, scores) = (named(CLASSES), named(SCORES));
    let label_width = labels.map(|labels| width(labels, CLASSES, DType::String, examples));
    let score_width = scores.map(|scores| width(scores, SCORES, DType::Float, examples));
    let width = match (label_width.transpose()?, score_width.transpose()?) {
        (Some(labels), Some(scores)) if labels != scores => {
            return Err(Error::invalid(format!(
                "Tensors class and score should match in dim_size(1). Got {labels} vs. {scores}"
            )));
        }
        (Some(width), _) | (None, Some(width)) => width,
        (None, None) => return Err(Error::internal("neither classes nor scores")),
    };
    let mut labels = labels.and_then(Tensor::strings).map(|labels| labels.iter());
    let mut scores = scores.and_then(Tensor::values::<f32>).unwrap_or_default().iter();
    let mut all = Vec::with_capacity(examples);
    for _ in 0..examples {
        let mut classes = Vec::with_capacity(width);
        for _ in 0..width {
            let label = labels.as_mut().and_then(Iterator::next).unwrap_or_default().to_vec();
            let score = scores.next().copied().unwrap_or(0.0);
            classes.push(Class { label, score });
        }
        all.push(classes);
    }
    Ok(all)
}

/// The number of classes in the output `alias`, which must have one row for each example.
fn width(tensor: &Tensor, alias: &str, dtype: DType, examples: usize) -> Result<usize> {
    let shape = tensor.shape();
    let &[rows, width] = shape.dims() else {
        return Err(Error::invalid(format!(
            "Expected Tensor shape: [batch_size num_classes] but got {shape:?}"
        )));
    };
    if tensor.dtype() != dtype {
        let (want, got) = (type_constant(dtype), type_constant(tensor.dtype()));
        return Err(Error::invalid(format!("Expected {alias} Tensor of {want}. Got: {got}")));
    }
    if tensor.rows() != Some(examples) {
        return Err(Error::invalid(format!(
            "Expected {alias} output batch size of {examples}. Got: {rows}"
        )));
    }
    usize::try_from(width).map_err(|_| Error::internal("a negative dimension"))
}

/// The regression values of `examples` examples, from the outputs of `signature`.
///
/// # Errors
/// [`Error::invalid`] if type or shape are not those of a regression.
pub fn regressions(signature: &Signature, examples: usize, outputs: &[Tensor]) -> Result<Vec<f32>> {
    let Some(tensor) = output(signature, OUTPUTS).and_then(|index| outputs.get(index)) else {
        return Err(Error::internal("no output of that name"));
    };
    let shape = tensor.shape();
    let rows = match shape.dims() {
        [rows] | [rows, 1] => rows,
        _ => {
            return Err(Error::invalid(format!(
                "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but \
                 got {shape:?}"
            )));
        }
    };
    if tensor.rows() != Some(examples) {
        return Err(Error::invalid(format!(
            "Input batch size did not match output batch size: {examples} vs. {rows}"
        )));
    }
    let Some(values) = tensor.values::<f32>() else {
        let got = type_constant(tensor.dtype());
        return Err(Error::invalid(format!("Expected output Tensor of DT_FLOAT.  Got: {got}")));
    };
    Ok(values.to_vec())
}

/// The name of a type in protocol buffers: `DT_FLOAT`.
fn type_constant(dtype: DType) -> String {
    format!("DT_{}", type_name(dtype.number()).to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{
        DeclaredShape, ImageEncoding, RowDependence, TensorSpec, aligned_vec,
    };

    fn signature(inputs: &[&str], outputs: &[&str]) -> Signature {
        let spec = |alias: &&str| TensorSpec {
            alias: (*alias).to_owned(),
            tensor_name: format!("{alias}:0"),
            dtype_number: DType::String.number(),
            shape: DeclaredShape::Missing,
            sparse: None,
            takes_missing: false,
            number_texts: None,
            quantization: None,
            column_names: Vec::new(),
        };
        Signature {
            name: "any".to_owned(),
            method_name: String::new(),
            inputs: inputs.iter().map(spec).collect(),
            outputs: outputs.iter().map(spec).collect(),
            defaults: Vec::new(),
            images: ImageEncoding::Raw,
            takes_images: false,
            read_only: true,
            repeatable: true,
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

    fn floats(dims: &[i64]) -> Tensor {
        let shape = Shape::new(dims).expect("shape");
        let mut values = aligned_vec(0);
        for value in (0u8..).take(shape.elements().expect("small")) {
            values.push(f32::from(value));
        }
        Tensor::from_vec(shape, values).expect("tensor")
    }

    fn texts(dims: &[i64], texts: &[&str]) -> Tensor {
        let mut strings = StringsBuilder::default();
        texts.iter().for_each(|text| strings.push(text.as_bytes()));
        Tensor::from_strings(Shape::new(dims).expect("shape"), strings).expect("tensor")
    }

    fn class(label: &str, score: f32) -> Class {
        Class { label: label.into(), score }
    }

    #[test]
    fn signatures_are_told_apart_by_names() {
        let error = |method, inputs: &[&str], outputs: &[&str]| {
            let checked = check(&signature(inputs, outputs), method);
            checked.err().map_or(String::new(), |error| error.message().to_owned())
        };
        let (classify, regress) = (Method::Classify, Method::Regress);
        for outputs in [&["classes"][..], &["scores"], &["classes", "scores"], &["a", "scores"]] {
            assert_eq!(error(classify, &["inputs"], outputs), "", "{outputs:?}");
        }
        assert_eq!(error(regress, &["inputs"], &["outputs"]), "");
        let one = "Expected one input Tensor.";
        assert_eq!(error(classify, &[], &["classes"]), one);
        assert_eq!(error(regress, &["inputs", "x"], &["outputs"]), one);
        let text = error(classify, &["inputs"], &["classes", "scores", "x"]);
        assert_eq!(text, "Expected one or two output Tensors, found 3");
        assert_eq!(error(regress, &["inputs"], &[]), "Expected one output Tensor.");
        let none = "inputs found in SignatureDef: ";
        assert_eq!(error(classify, &["x"], &["scores"]), format!("No classification {none}"));
        assert_eq!(error(regress, &["x"], &["outputs"]), format!("No regression {none}"));
        let text = error(regress, &["inputs"], &["y"]);
        assert_eq!(text, "No regression outputs found in SignatureDef: ");
        assert!(error(classify, &["inputs"], &["y"]).contains("\"classes\" or \"scores\""));
    }

    #[test]
    fn a_context_is_put_before_each_example() {
        let tensor = examples_tensor(b"c", &[&b"a"[..], b""], 100).expect("fits");
        let strings: Vec<&[u8]> = tensor.strings().expect("strings").iter().collect();
        assert_eq!(strings, [&b"ca"[..], b"c"]);
        assert_eq!(tensor.shape().dims(), [2]);
        let error = |result: Result<Tensor>| result.expect_err("refused").message().to_owned();
        assert_eq!(error(examples_tensor::<&[u8]>(b"c", &[], 100)), "Input is empty.");
        let context = vec![0; 40];
        let refused = error(examples_tensor(&context, &[b"", b""], 100));
        assert!(refused.contains("too much memory"), "{refused}");
    }

    #[test]
    fn classes_have_labels_or_scores_or_both() {
        let both = signature(&["inputs"], &["classes", "scores"]);
        let labels = texts(&[2, 2], &["a", "b", "c", "d"]);
        let classes =
            classifications(&both, 2, &[labels.clone(), floats(&[2, 2])]).expect("matching");
        let want = [[class("a", 0.0), class("b", 1.0)], [class("c", 2.0), class("d", 3.0)]];
        assert_eq!(classes, want);
        let only = |alias, tensor| {
            classifications(&signature(&["inputs"], &[alias]), 2, &[tensor]).expect("fits")
        };
        let classes = only("classes", labels.clone());
        assert_eq!(
            classes,
            [[class("a", 0.0), class("b", 0.0)], [class("c", 0.0), class("d", 0.0)]]
        );
        let classes = only("scores", floats(&[2, 1]));
        assert_eq!(classes, [[class("", 0.0)], [class("", 1.0)]]);
        assert_eq!(only("scores", floats(&[2, 0])), [[], []]);

        let error = |outputs: &[Tensor]| {
            classifications(&both, 2, outputs).expect_err("refused").message().to_owned()
        };
        let shape = "Expected Tensor shape: [batch_size num_classes] but got ";
        assert_eq!(error(&[texts(&[1], &["a"]), floats(&[2, 2])]), format!("{shape}[1]"));
        assert_eq!(error(&[labels.clone(), floats(&[1, 2, 2])]), format!("{shape}[1,2,2]"));
        let text = error(&[floats(&[2, 2]), floats(&[2, 2])]);
        assert_eq!(text, "Expected classes Tensor of DT_STRING. Got: DT_FLOAT");
        let text = error(&[labels.clone(), labels.clone()]);
        assert_eq!(text, "Expected scores Tensor of DT_FLOAT. Got: DT_STRING");
        let text = error(&[labels.clone(), floats(&[3, 2])]);
        assert_eq!(text, "Expected scores output batch size of 2. Got: 3");
        let text = error(&[labels, floats(&[2, 3])]);
        assert_eq!(text, "Tensors class and score should match in dim_size(1). Got 2 vs. 3");
    }

    #[test]
    fn regressions_are_one_number_each() {
        let signature = signature(&["inputs"], &["outputs"]);
        let of = |tensor| regressions(&signature, 2, &[tensor]);
        assert_eq!(of(floats(&[2])).expect("fits"), [0.0, 1.0]);
        assert_eq!(of(floats(&[2, 1])).expect("fits"), [0.0, 1.0]);
        let error = |tensor| of(tensor).expect_err("refused").message().to_owned();
        let shape =
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got ";
        assert_eq!(error(floats(&[2, 2])), format!("{shape}[2,2]"));
        assert_eq!(error(floats(&[])), format!("{shape}[]"));
        let text = error(floats(&[3]));
        assert_eq!(text, "Input batch size did not match output batch size: 2 vs. 3");
        let text = error(texts(&[2], &["a", "b"]));
        assert_eq!(text, "Expected output Tensor of DT_FLOAT.  Got: DT_STRING");
    }
}
