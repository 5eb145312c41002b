//! A classifier of a few nodes as a SavedModel, and versions of it that are changed in some way.

use std::fs;
use std::path::Path;

use super::process::run;
use super::saved_model::{
    FLOAT, INT32, SavedModel, a_float_tensor, a_type, an_int_tensor, node, placeholder, signature,
    tensor,
};

/// Weights of three classes for two features.
pub const WEIGHTS: [f32; 6] = [1.0, 0.2, -0.7, -0.3, 0.9, 0.4];

/// `scores = softmax(x * weights)`, changed in some way.
pub struct Classifier {
    pub weights: [f32; 6],
    /// Nodes that make `added` of `logits`.
    pub more: Vec<Vec<u8>>,
    pub output: &'static str,
    /// The number of features that the signature declares.
    pub features: i64,
    pub signatures: Vec<&'static str>,
}

impl Default for Classifier {
    fn default() -> Self {
        Classifier {
            weights: WEIGHTS,
            more: vec![node("added", "Identity", &["logits"], &of_float())],
            output: "scores",
            features: 2,
            signatures: vec!["serving_default"],
        }
    }
}

/// The attribute of an operation on floats.
pub fn of_float() -> [(&'static str, Vec<u8>); 1] {
    [("T", a_type(FLOAT))]
}

/// A `Const`.
pub fn constant(name: &str, dtype: u64, value: Vec<u8>) -> Vec<u8> {
    node(name, "Const", &[], &[("dtype", a_type(dtype)), ("value", value)])
}

impl Classifier {
    /// Writes `saved_model.pb` into the directory `folder`, which it creates.
    pub fn write(&self, folder: &Path) {
        let (x, y) = ("x:0", "scores:0");
        let signature = signature(
            &[("x", tensor(x, FLOAT, &[-1, self.features]))],
            &[(self.output, tensor(y, FLOAT, &[-1, 3]))],
        );
        // A third feature counts nothing.
        let mut weights = self.weights.to_vec();
        weights.resize(self.features as usize * 3, 0.0);
        let mut nodes = vec![
            placeholder("x", FLOAT, &[-1, self.features]),
            constant("w", FLOAT, a_float_tensor(&[self.features, 3], &weights)),
            node("logits", "MatMul", &["x", "w"], &of_float()),
            node("scores", "Softmax", &["added"], &of_float()),
        ];
        nodes.extend(self.more.iter().cloned());
        let signatures = self.signatures.iter().map(|name| (*name, signature.clone())).collect();
        SavedModel { nodes, signatures, ..SavedModel::default() }.write(folder);
    }
}

/// One with changed weights, which `change` gets with their places.
pub fn weights(change: impl Fn(usize, f32) -> f32) -> Classifier {
    let mut new = Classifier::default();
    new.weights.iter_mut().enumerate().for_each(|(at, weight)| *weight = change(at, *weight));
    new
}

/// One whose nodes `more` make `added` of `logits`.
pub fn with(more: Vec<Vec<u8>>) -> Classifier {
    Classifier { more, ..Classifier::default() }
}

/// Adds a number that changes no digit of the logits, and takes long to compute: twenty products of large matrices. A
/// factor of zero would be optimized away.
pub fn with_cost() -> Classifier {
    let (float, int) = (("T", a_type(FLOAT)), ("Tidx", a_type(INT32)));
    let mut more = vec![
        constant("both", INT32, an_int_tensor(&[0, 1])),
        constant("size", INT32, an_int_tensor(&[120, 120])),
        constant("tiny", FLOAT, a_float_tensor(&[], &[1e-30])),
        node("sum", "Sum", &["x", "both"], &[float.clone(), int.clone()]),
        node("bounded0", "Tanh", &["sum"], &of_float()),
        node(
            "wide",
            "Fill",
            &["size", "bounded0"],
            &[float.clone(), ("index_type", a_type(INT32))],
        ),
        node("m0", "Tanh", &["wide"], &of_float()),
    ];
    for step in 1..=20 {
        let (before, product, after) =
            (format!("m{}", step - 1), format!("product{step}"), format!("m{step}"));
        more.push(node(&product, "MatMul", &[&before, "wide"], &of_float()));
        more.push(node(&after, "Tanh", &[&product], &of_float()));
    }
    more.extend([
        node("mean", "Mean", &["m20", "both"], &[float, int]),
        node("nothing", "Mul", &["mean", "tiny"], &of_float()),
        node("added", "AddV2", &["logits", "nothing"], &of_float()),
    ]);
    with(more)
}

/// Adds next to nothing, computed from log(x + 1), which `last` makes `checked` of: NaN for values below -1.
pub fn with_logarithm(last: Vec<u8>) -> Classifier {
    with(vec![
        constant("one", FLOAT, a_float_tensor(&[], &[1.0])),
        constant("tiny", FLOAT, a_float_tensor(&[], &[1e-30])),
        constant("columns", INT32, an_int_tensor(&[1])),
        node("above", "AddV2", &["x", "one"], &of_float()),
        node("log", "Log", &["above"], &of_float()),
        last,
        reduction("sums", "Sum", &["checked", "columns"]),
        node("nothing", "Mul", &["sums", "tiny"], &of_float()),
        node("added", "AddV2", &["logits", "nothing"], &of_float()),
    ])
}

/// What [`with_logarithm`] takes to fail for such values.
pub fn check_numerics() -> Vec<u8> {
    let message = ("message", [&[0x12, 3][..], b"odd"].concat());
    node("checked", "CheckNumerics", &["log"], &[("T", a_type(FLOAT)), message])
}

/// A reduction of floats along some dimensions, which stay with the size 1.
pub fn reduction(name: &str, op: &str, inputs: &[&str; 2]) -> Vec<u8> {
    let keep_dims = ("keep_dims", vec![0x28, 1]);
    node(name, op, inputs, &[("T", a_type(FLOAT)), ("Tidx", a_type(INT32)), keep_dims])
}

/// Records `count` requests of two rows with the version in `folder`, into the file `output` or beside the version. Their
/// bodies are written to `bodies`. The last request alone has a value below -1.
pub fn record_requests(folder: &Path, count: u8, bodies: &Path, output: Option<&Path>) {
    let mut words = vec!["warmup".to_owned(), "record".to_owned(), folder.display().to_string()];
    for number in 0..count {
        let body = bodies.join(format!("{number}.json"));
        let x = 4.0 * f32::from(number) / f32::from(count);
        let y = if number == count - 1 { -2.0 } else { 1.0 - x / 4.0 };
        let text = format!("{{\"instances\": [[{x}, {y}], [{y}, 0.5]]}}");
        fs::write(&body, text).expect("written");
        words.push(body.display().to_string());
    }
    if let Some(output) = output {
        words.extend(["--output".to_owned(), output.display().to_string()]);
    }
    let recorded = run(&words);
    assert!(recorded.status.success(), "{}{}", recorded.stdout, recorded.stderr);
}
