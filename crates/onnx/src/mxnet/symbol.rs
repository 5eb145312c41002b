//! Reads the graph of a checkpoint: `P-symbol.json`.

use std::collections::BTreeMap;

use serde::Deserialize;

use tensorserve_tensor::error::{Code, Error, Result};

/// A graph of operations in topological order: each follows the nodes that it takes inputs from.
pub(super) struct Symbol {
    pub(super) nodes: Vec<SymbolNode>,
    /// The outputs of the graph (MXNet's `heads`).
    pub(super) outputs: Vec<NodeOutput>,
}

/// An operation, or a variable, whose operation is `null`.
pub(super) struct SymbolNode {
    pub(super) op: String,
    pub(super) name: String,
    pub(super) inputs: Vec<NodeOutput>,
    attributes: BTreeMap<String, String>,
}

/// One output of a node.
#[derive(Clone, Copy)]
pub(super) struct NodeOutput {
    /// The node's index in [`Symbol::nodes`].
    pub(super) node: usize,
    pub(super) output: usize,
}

/// The JSON document. A reference to a node's output is an array of the node's index, the output's
/// index and, in newer files, a version.
#[derive(Deserialize)]
struct SymbolFile {
    nodes: Vec<SymbolFileNode>,
    heads: Vec<Vec<usize>>,
}

#[derive(Deserialize)]
struct SymbolFileNode {
    op: String,
    name: String,
    #[serde(default)]
    inputs: Vec<Vec<usize>>,
    // MXNet has renamed the attributes' member twice, from `param` to `attr` to `attrs`, and some
    // files have two of them.
    #[serde(default)]
    attrs: BTreeMap<String, String>,
    #[serde(default)]
    attr: BTreeMap<String, String>,
    #[serde(default)]
    param: BTreeMap<String, String>,
}

/// Parses the text of a symbol file.
///
/// # Errors
/// [`Code::DataLoss`] if the text is not a valid symbol.
pub(super) fn read(text: &[u8]) -> Result<Symbol> {
    // The parser refuses documents that are nested more than 128 levels deep.
    let file: SymbolFile =
        serde_json::from_slice(text).map_err(|error| invalid_symbol(&error.to_string()))?;
    let heads = file.heads.iter().map(|head| node_output(head, file.nodes.len()));
    let outputs = heads.collect::<Result<Vec<_>>>()?;
    if outputs.is_empty() {
        return Err(invalid_symbol("it has no outputs"));
    }
    let nodes = file.nodes.into_iter().enumerate().map(|(index, node)| node.check(index));
    Ok(Symbol { nodes: nodes.collect::<Result<_>>()?, outputs })
}

/// The output that `reference` names, which must be of one of the first `count` nodes.
fn node_output(reference: &[usize], count: usize) -> Result<NodeOutput> {
    match reference {
        [node, output, ..] if *node < count => Ok(NodeOutput { node: *node, output: *output }),
        _ => Err(invalid_symbol("a node or an output does not refer to an earlier node")),
    }
}

/// The error for a file that is not a valid symbol.
pub(super) fn invalid_symbol(reason: &str) -> Error {
    Error::new(Code::DataLoss, format!("the symbol is invalid: {reason}"))
}

impl SymbolFileNode {
    /// The node with the index `index`, whose inputs must be outputs of earlier nodes.
    fn check(self, index: usize) -> Result<SymbolNode> {
        let inputs = self.inputs.iter().map(|reference| node_output(reference, index));
        let inputs = inputs.collect::<Result<_>>()?;
        let mut attributes = self.param;
        attributes.extend(self.attr);
        attributes.extend(self.attrs);
        Ok(SymbolNode { op: self.op, name: self.name, inputs, attributes })
    }
}

impl SymbolNode {
    pub(super) fn is_variable(&self) -> bool {
        self.op == "null"
    }

    /// The text of an attribute. Python's `None` counts as not set.
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(|text| text.trim()).filter(|text| *text != "None")
    }

    /// A text attribute.
    pub(super) fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.attribute(name).unwrap_or(default)
    }

    /// A boolean attribute.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.attribute(name) {
            None => Ok(default),
            Some("True" | "true" | "1") => Ok(true),
            Some("False" | "false" | "0") => Ok(false),
            Some(other) => Err(self.invalid_attribute(name, other)),
        }
    }

    /// A float attribute.
    pub(super) fn float(&self, name: &str, default: f64) -> Result<f64> {
        let Some(text) = self.attribute(name) else {
            return Ok(default);
        };
        text.parse().map_err(|_| self.invalid_attribute(name, text))
    }

    /// An integer attribute.
    pub(super) fn integer(&self, name: &str, default: i64) -> Result<i64> {
        let Some(text) = self.attribute(name) else {
            return Ok(default);
        };
        text.parse().map_err(|_| self.invalid_attribute(name, text))
    }

    /// The integers of an attribute that is a tuple, a list or one integer; empty if it is not set.
    pub(super) fn integers(&self, name: &str) -> Result<Vec<i64>> {
        let Some(text) = self.attribute(name) else {
            return Ok(Vec::new());
        };
        let inner = text.trim_matches(|c| matches!(c, '(' | ')' | '[' | ']'));
        let items = inner.split(',').map(|item| item.trim().trim_end_matches('L'));
        let integers = items.filter(|item| !item.is_empty()).map(str::parse);
        integers.collect::<Result<_, _>>().map_err(|_| self.invalid_attribute(name, text))
    }

    fn invalid_attribute(&self, name: &str, text: &str) -> Error {
        let Self { op, name: node, .. } = self;
        invalid_symbol(&format!("{op} {node:?} has the attribute {name} = {text:?}"))
    }

    /// The error for an operation that cannot be converted.
    pub(super) fn unsupported(&self, reason: &str) -> Error {
        let Self { op, name, .. } = self;
        Error::new(
            Code::Unimplemented,
            format!(
                "the operation {op} ({name:?}) is not supported: {reason}. Export the model to ONNX \
                 with MXNet's own exporter, and serve that"
            ),
        )
    }
}

/// Operations whose second input is labels, which only training uses.
const WITH_LABELS: &[&str] = &[
    "SoftmaxOutput",
    "Softmax",
    "LinearRegressionOutput",
    "MAERegressionOutput",
    "LogisticRegressionOutput",
];

/// The inputs that inference uses: all but labels.
pub(super) fn inference_inputs(node: &SymbolNode) -> &[NodeOutput] {
    let has_labels = WITH_LABELS.contains(&&*node.op);
    let end = if has_labels { node.inputs.len().min(1) } else { node.inputs.len() };
    node.inputs.get(..end).unwrap_or_default()
}

/// The suffixes that MXNet's layers give to the names of their parameters.
const PARAMETER_SUFFIXES: [&str; 7] =
    ["_weight", "_bias", "_gamma", "_beta", "_moving_mean", "_moving_var", "_running_mean"];

/// Whether a variable's name is that of a parameter, and not that of an input.
pub(super) fn is_parameter_name(name: &str) -> bool {
    PARAMETER_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}
