//! Puts the values of variables into a graph: what reads a variable becomes a constant, also within functions, which
//! are cloned for the variables that they are called with. Names, signatures of functions, tables and initialization
//! stay.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::forms::FrozenVariables;
use super::nodes::{self, NewCalls};
use super::wire::{Edit, WireFields, edited, push_bytes, with_texts};
use crate::scope::{self, Scope, VariableNumber, is_control};
use tensorserve_proto::tensorflow::{FunctionDef, GraphDef, NodeDef};
use tensorserve_savedmodel::called_functions;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, Tensor};

/// The numbers of fields of TensorFlow's `GraphDef`, `FunctionDefLibrary`, `FunctionDef` and `OpDef` (graph.proto,
/// function.proto, op_def.proto).
mod field {
    pub(super) const NODE: u32 = 1;
    pub(super) const LIBRARY: u32 = 2;
    pub(super) const FUNCTION: u32 = 1;
    pub(super) const SIGNATURE: u32 = 1;
    pub(super) const BODY_NODE: u32 = 3;
    pub(super) const RESULT: u32 = 4;
    pub(super) const FUNCTION_ATTR: u32 = 5;
    pub(super) const SIGNATURE_NAME: u32 = 1;
}

/// The most clones of functions, and the most that call each other.
const MOST_CLONES: usize = 10_000;
const DEEPEST_CALL: usize = 200;

/// The most bytes of constants.
pub(super) const MOST_CONSTANT_BYTES: usize = 64 << 20;

/// The attribute by which the runtime finds other functions that compute the same. Those read variables.
const OTHER_IMPLEMENTATIONS: &str = "api_implements";

/// A graph with constants in place of variables.
pub(super) struct FrozenGraph {
    pub(super) encoded: Vec<u8>,
    pub(super) counts: FrozenCounts,
}

/// What was frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrozenCounts {
    /// Reads that have become constants.
    pub(super) constants: usize,
    pub(super) constant_bytes: usize,
    /// Whether anything may still need the value of a variable.
    pub(super) has_variables: bool,
}

impl fmt::Display for FrozenCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.constant_bytes.div_ceil(1024);
        let rest = if self.has_variables { "; other variables stay" } else { "" };
        write!(f, "{} reads of variables are constants ({kib} KiB){rest}", self.constants)
    }
}

/// Freezes what the nodes `reachable` of a graph read. `handles` are the nodes whose output is the handle of a variable
/// in `values`.
///
/// # Errors
/// If the graph is damaged, or functions call each other too deeply.
pub(super) fn frozen(
    (graph, encoded): (&GraphDef, &[u8]),
    reachable: &HashSet<&str>,
    handles: HashMap<&str, VariableNumber>,
    values: &[Tensor],
    variables: FrozenVariables,
) -> Result<FrozenGraph> {
    let library = graph.library.iter().flat_map(|library| &library.function);
    let bodies = library_of(encoded)?;
    let functions: HashMap<&str, Function> = library
        .zip(bodies)
        .filter_map(|(definition, encoded)| {
            let name = definition.signature.as_ref()?.name.as_str();
            Some((name, Function { definition, encoded }))
        })
        .collect();
    let mut rewrite = Rewrite {
        values,
        variables,
        functions: &functions,
        clones: HashMap::new(),
        made: Vec::new(),
        depth: 0,
        counts: FrozenCounts::default(),
    };
    let is_variable = |node: &NodeDef| node.op == "VarHandleOp";
    let in_bodies = functions.values().flat_map(|function| &function.definition.node_def);
    rewrite.counts.has_variables = in_bodies.into_iter().any(is_variable);
    let scope = Scope::of_graph(&graph.node, handles);
    let mut nodes = graph.node.iter();
    let mut added = Vec::new();
    let mut libraries = 0;
    let mut copy = edited(encoded, |number, payload| match number {
        field::NODE => {
            let node = nodes.next().ok_or_else(unequal)?;
            if !reachable.contains(node.name.as_str()) {
                return Ok(Edit::Keep);
            }
            let change = rewrite.node(node, payload, &scope)?;
            Ok(change.apply(&mut added))
        }
        field::LIBRARY => {
            libraries += 1;
            Ok(Edit::Keep)
        }
        _ => Ok(Edit::Keep),
    })?;
    if libraries > 1 || nodes.next().is_some() {
        return Err(unequal());
    }
    added.iter().for_each(|node| push_bytes(&mut copy, field::NODE, node));
    // Libraries of the same graph are joined when they are decoded.
    let mut library = Vec::new();
    rewrite.made.iter().for_each(|function| push_bytes(&mut library, field::FUNCTION, function));
    push_bytes(&mut copy, field::LIBRARY, &library);
    Ok(FrozenGraph { encoded: copy, counts: rewrite.counts })
}

/// The functions of a graph in their encoded form, in order.
fn library_of(graph: &[u8]) -> Result<Vec<&[u8]>> {
    let mut functions = Vec::new();
    for field in WireFields::of(graph) {
        let field = field?;
        let (field::LIBRARY, Some(library)) = (field.number, field.payload) else {
            continue;
        };
        for function in WireFields::of(library) {
            let function = function?;
            if function.number == field::FUNCTION {
                functions.extend(function.payload);
            }
        }
    }
    Ok(functions)
}

/// A function, and its encoded form.
struct Function<'a> {
    definition: &'a FunctionDef,
    encoded: &'a [u8],
}

/// What becomes of a node.
enum NodeChange {
    Stays,
    /// It becomes another node of the same name.
    Becomes(Vec<u8>),
    /// It becomes another node of the same name, which needs these.
    Needs(Vec<u8>, Vec<Vec<u8>>),
    /// It becomes a constant of the same name: its output has another name within a function.
    Constant(Vec<u8>),
}

impl NodeChange {
    fn apply(self, added: &mut Vec<Vec<u8>>) -> Edit {
        match self {
            NodeChange::Stays => Edit::Keep,
            NodeChange::Becomes(node) | NodeChange::Constant(node) => Edit::Replace(node),
            NodeChange::Needs(node, needed) => {
                added.extend(needed);
                Edit::Replace(node)
            }
        }
    }
}

/// How a node calls functions: the first of its inputs that is an argument.
fn first_argument(op: &str) -> Option<usize> {
    match op {
        "PartitionedCall" | "StatefulPartitionedCall" | "While" | "StatelessWhile" => Some(0),
        "If" | "StatelessIf" | "Case" | "StatelessCase" => Some(1),
        _ => None,
    }
}

struct Rewrite<'a> {
    values: &'a [Tensor],
    variables: FrozenVariables,
    functions: &'a HashMap<&'a str, Function<'a>>,
    /// The names of clones, by the function and what is known of its arguments; `None` where nothing changes.
    clones: HashMap<(&'a str, Vec<Option<VariableNumber>>), Option<String>>,
    made: Vec<Vec<u8>>,
    depth: usize,
    counts: FrozenCounts,
}

impl<'a> Rewrite<'a> {
    fn node(&mut self, node: &'a NodeDef, encoded: &[u8], scope: &Scope) -> Result<NodeChange> {
        let inputs = node.input.iter().filter(|input| !is_control(input));
        let known: Vec<Option<VariableNumber>> =
            inputs.map(|input| scope.variable(input)).collect();
        if let Some(first) = first_argument(&node.op) {
            let arguments = known.get(first..).unwrap_or_default();
            return self.call(node, encoded, arguments);
        }
        let Some(variable) = known.iter().copied().flatten().next() else {
            // Handles that are not known come from variables that stay.
            let calls =
                self.functions.contains_key(&*node.op) || called_functions(node).next().is_some();
            self.counts.has_variables |= calls || needs_variable(&node.op);
            return Ok(NodeChange::Stays);
        };
        let change = match node.op.as_str() {
            "Identity" => Some(NodeChange::Stays),
            "ReadVariableOp" => self.read(node, encoded, variable)?,
            "ResourceGather" => self.gather(node, encoded, variable, scope)?,
            _ => None,
        };
        self.counts.has_variables |= change.is_none();
        Ok(change.unwrap_or(NodeChange::Stays))
    }

    /// The value of a variable, if it is of this type and there is room for one more constant.
    fn value(&mut self, variable: VariableNumber, dtype: Option<i32>) -> Option<&'a Tensor> {
        let value = self.values.get(variable)?;
        let bytes = self.counts.constant_bytes + value.bytes().len();
        if dtype != Some(value.dtype().number()) || bytes > MOST_CONSTANT_BYTES {
            return None;
        }
        self.counts.constant_bytes = bytes;
        self.counts.constants += 1;
        Some(value)
    }

    fn read(
        &mut self,
        node: &NodeDef,
        encoded: &[u8],
        variable: VariableNumber,
    ) -> Result<Option<NodeChange>> {
        if self.values.get(variable).is_some_and(|value| self.variables.keeps(value)) {
            return Ok(None);
        }
        let Some(value) = self.value(variable, scope::dtype(node, "dtype")) else {
            return Ok(None);
        };
        let constant = nodes::constant(&node.name, &nodes::controls(node), value, encoded)?;
        Ok(Some(NodeChange::Constant(constant)))
    }

    fn gather(
        &mut self,
        node: &NodeDef,
        encoded: &[u8],
        variable: VariableNumber,
        scope: &Scope,
    ) -> Result<Option<NodeChange>> {
        let [table, axis] = ["params", "axis"].map(|it| format!("{}/frozen_{it}", node.name));
        let is_taken = |name: &String| scope.nodes.contains_key(name.as_str());
        let types = scope::dtype(node, "dtype").zip(scope::dtype(node, "Tindices"));
        let has_batches = scope::integer(node, "batch_dims").is_some_and(|it| it != 0);
        let mut inputs = node.input.iter().filter(|input| !is_control(input));
        let (Some(_), Some(indices), None, Some(types)) =
            (inputs.next(), inputs.next(), inputs.next(), types)
        else {
            return Ok(None);
        };
        if has_batches || is_taken(&table) || is_taken(&axis) {
            return Ok(None);
        }
        let Some(value) = self.value(variable, Some(types.0)) else {
            return Ok(None);
        };
        let zero = Tensor::from_bytes(
            DType::Int32,
            tensorserve_tensor::Shape::scalar(),
            0i32.to_ne_bytes().to_vec().into(),
        )?;
        let needed = vec![
            nodes::constant(&table, &[], value, encoded)?,
            nodes::constant(&axis, &[], &zero, encoded)?,
        ];
        let mut inputs = vec![scope.output_of(&table), indices.clone(), scope.output_of(&axis)];
        inputs.extend(nodes::controls(node));
        let gather = nodes::gather(&node.name, &inputs, types, encoded)?;
        Ok(Some(NodeChange::Needs(gather, needed)))
    }

    /// A node that calls functions with `arguments`, of which it is known which variables they are.
    fn call(
        &mut self,
        node: &'a NodeDef,
        encoded: &[u8],
        arguments: &[Option<VariableNumber>],
    ) -> Result<NodeChange> {
        let called: Vec<_> = called_functions(node).collect();
        let known = match node.op.as_str() {
            "While" | "StatelessWhile" => self.unchanged(&called, arguments),
            _ => arguments.to_vec(),
        };
        let mut calls = NewCalls::new();
        for (attribute, place, function) in called {
            if let Some(clone) = self.clone_for(function, &known)? {
                calls.insert((attribute.to_owned(), place), clone);
            }
        }
        if calls.is_empty() {
            return Ok(NodeChange::Stays);
        }
        nodes::calling(encoded, &calls).map(NodeChange::Becomes)
    }

    /// What is known of the state of a loop: those of its initial values that no round replaces.
    fn unchanged(
        &self,
        called: &[(&str, usize, &str)],
        arguments: &[Option<VariableNumber>],
    ) -> Vec<Option<VariableNumber>> {
        let body = called.iter().find(|(attribute, _, _)| *attribute == "body");
        let Some(body) = body.and_then(|(_, _, name)| self.functions.get(name)) else {
            return vec![None; arguments.len()];
        };
        let scope = Scope::of_function(body.definition, arguments);
        let keep = |(index, known): (usize, &Option<VariableNumber>)| {
            known.filter(|_| scope.returns_argument(index))
        };
        arguments.iter().enumerate().map(keep).collect()
    }

    /// The name of the clone of a function for these arguments; `None` if it stays as it is.
    fn clone_for(
        &mut self,
        name: &'a str,
        arguments: &[Option<VariableNumber>],
    ) -> Result<Option<String>> {
        let Some(function) = self.functions.get(name) else {
            self.counts.has_variables |= arguments.iter().any(Option::is_some);
            return Ok(None);
        };
        let count = scope::argument_names(function.definition).len();
        let mut known = arguments.to_vec();
        if count != known.len() {
            self.counts.has_variables |= known.iter().any(Option::is_some);
            known = vec![None; known.len()];
        }
        let key = (name, known);
        if let Some(clone) = self.clones.get(&key) {
            return Ok(clone.clone());
        }
        if self.depth >= DEEPEST_CALL || self.clones.len() >= MOST_CLONES {
            return Err(Error::new(Code::Unimplemented, "its functions call too many others"));
        }
        let clone = format!("{name}_frozen_{}", self.clones.len());
        let scope = Scope::of_function(function.definition, &key.1);
        self.depth += 1;
        let changed = self.function(function, &scope, &clone)?;
        self.depth -= 1;
        let clone = changed.is_some().then_some(clone);
        self.clones.insert(key, clone.clone());
        self.made.extend(changed);
        Ok(clone)
    }

    /// The function with the name `clone`, and what it reads of variables as constants; `None` if nothing changes.
    fn function(
        &mut self,
        function: &Function<'a>,
        scope: &Scope,
        clone: &str,
    ) -> Result<Option<Vec<u8>>> {
        let mut changes = 0;
        let mut body = function.definition.node_def.iter();
        let mut constants: HashSet<&str> = HashSet::new();
        let mut added = Vec::new();
        let changed = edited(function.encoded, |number, payload| match number {
            field::SIGNATURE => {
                let renamed =
                    with_texts(payload, field::SIGNATURE_NAME, |_| Some(clone.to_owned()));
                renamed.map(Edit::Replace)
            }
            field::BODY_NODE => {
                let node = body.next().ok_or_else(unequal)?;
                let change = self.node(node, payload, scope)?;
                changes += usize::from(!matches!(change, NodeChange::Stays));
                if matches!(change, NodeChange::Constant(_)) {
                    constants.insert(node.name.as_str());
                }
                Ok(change.apply(&mut added))
            }
            field::FUNCTION_ATTR if nodes::key(payload)? == OTHER_IMPLEMENTATIONS => {
                Ok(Edit::Remove)
            }
            _ => Ok(Edit::Keep),
        })?;
        if body.next().is_some() {
            return Err(unequal());
        }
        if changes == 0 {
            return Ok(None);
        }
        // The output of a read is `value`, that of a constant `output`.
        let rename = |input: &str| {
            let (node, output) = input.split_once(':')?;
            let is_read = output == "value" || output.starts_with("value:");
            let renamed = || format!("{node}:output:0");
            (is_read && constants.contains(node)).then(renamed)
        };
        let mut copy = edited(&changed, |number, payload| match number {
            field::BODY_NODE => nodes::with_inputs(payload, rename).map(Edit::Replace),
            field::RESULT => nodes::with_value(payload, rename).map(Edit::Replace),
            _ => Ok(Edit::Keep),
        })?;
        added.iter().for_each(|node| push_bytes(&mut copy, field::BODY_NODE, node));
        Ok(Some(copy))
    }
}

/// Operations that need the value of a variable of which no handle is known.
fn needs_variable(op: &str) -> bool {
    let takes_handle = matches!(op, "ReadVariableOp" | "VariableShape" | "VarIsInitializedOp");
    takes_handle || op.starts_with("Resource") || matches!(op, "Variable" | "VariableV2")
}

fn unequal() -> Error {
    Error::new(Code::DataLoss, "a part of the graph occurs more than once")
}
