//! Reads the graph of a checkpoint: `P-symbol.json`.

use std::collections::BTreeMap;

use serde::Deserialize;

use tensorserve_tensor::error::{Code, Error, Result};

/// A graph of operations, each after those that it takes from.
pub(super) struct Symbol {
    pub(super) nodes: Vec<Node>,
    /// What the graph gives.
    pub(super) heads: Vec<Port>,
}

/// An operation, or a variable (of the operation `null`).
pub(super) struct Node {
    pub(super) op: String,
    pub(super) name: String,
    pub(super) inputs: Vec<Port>,
    attributes: BTreeMap<String, String>,
}

/// One output of a node.
#[derive(Clone, Copy)]
pub(super) struct Port {
    pub(super) node: usize,
    pub(super) output: usize,
}

/// As the file has it.
#[derive(Deserialize)]
struct File {
    nodes: Vec<FileNode>,
    heads: Vec<Vec<usize>>,
}

#[derive(Deserialize)]
struct FileNode {
    op: String,
    name: String,
    #[serde(default)]
    inputs: Vec<Vec<usize>>,
    // The name has changed twice; in between there were two.
    #[serde(default)]
    attrs: BTreeMap<String, String>,
    #[serde(default)]
    attr: BTreeMap<String, String>,
    #[serde(default)]
    param: BTreeMap<String, String>,
}

/// The graph in the text of a file.
///
/// # Errors
/// [`Code::DataLoss`] if it is none.
pub(super) fn read(text: &[u8]) -> Result<Symbol> {
    let broken =
        |what: String| Error::new(Code::DataLoss, format!("the symbol is damaged: {what}"));
    // The parser stops at a nesting depth of 128.
    let file: File = serde_json::from_slice(text).map_err(|e| broken(e.to_string()))?;
    let port = |ends: &Vec<usize>, before: usize| match ends.as_slice() {
        [node, output, ..] if *node < before => Ok(Port { node: *node, output: *output }),
        _ => Err(broken("an operation takes from none before it".to_owned())),
    };
    let count = file.nodes.len();
    let heads = file.heads.iter().map(|ends| port(ends, count)).collect::<Result<Vec<_>>>()?;
    if heads.is_empty() {
        return Err(broken("it gives nothing".to_owned()));
    }
    let nodes = file.nodes.into_iter().enumerate().map(|(index, node)| {
        let inputs = node.inputs.iter().map(|ends| port(ends, index)).collect::<Result<_>>()?;
        let mut attributes = node.param;
        attributes.extend(node.attr);
        attributes.extend(node.attrs);
        Ok(Node { op: node.op, name: node.name, inputs, attributes })
    });
    Ok(Symbol { nodes: nodes.collect::<Result<_>>()?, heads })
}

impl Node {
    pub(super) fn is_variable(&self) -> bool {
        self.op == "null"
    }

    /// The attribute `name`, if it is set: Python's `None` is none.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(|text| text.trim()).filter(|text| *text != "None")
    }

    pub(super) fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.get(name).unwrap_or(default)
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(default),
            Some("True" | "true" | "1") => Ok(true),
            Some("False" | "false" | "0") => Ok(false),
            Some(other) => Err(self.malformed(name, other)),
        }
    }

    pub(super) fn number(&self, name: &str, default: f64) -> Result<f64> {
        let Some(text) = self.get(name) else {
            return Ok(default);
        };
        text.parse().map_err(|_| self.malformed(name, text))
    }

    pub(super) fn integer(&self, name: &str, default: i64) -> Result<i64> {
        let Some(text) = self.get(name) else {
            return Ok(default);
        };
        text.parse().map_err(|_| self.malformed(name, text))
    }

    /// The integers of a tuple, a list or one integer; none if it is not set.
    pub(super) fn integers(&self, name: &str) -> Result<Vec<i64>> {
        let Some(text) = self.get(name) else {
            return Ok(Vec::new());
        };
        let inner = text.trim_matches(|c| matches!(c, '(' | ')' | '[' | ']'));
        let items = inner.split(',').map(|item| item.trim().trim_end_matches('L'));
        let numbers = items.filter(|item| !item.is_empty()).map(str::parse);
        numbers.collect::<Result<_, _>>().map_err(|_| self.malformed(name, text))
    }

    fn malformed(&self, name: &str, text: &str) -> Error {
        let message = format!("{} {:?}: {name} is {text:?}", self.op, self.name);
        Error::new(Code::DataLoss, format!("the symbol is damaged: {message}"))
    }

    /// The error that `what` of the operation can not be served.
    pub(super) fn refused(&self, what: &str) -> Error {
        let Node { op, name, .. } = self;
        Error::new(
            Code::Unimplemented,
            format!(
                "the operation {op} ({name:?}) can not be served: {what}. Export the model to ONNX \
                 with MXNet's own exporter, and serve that"
            ),
        )
    }
}
