//! Follows what is known of tensors through a graph and the functions that it calls.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use super::ops::{self, Known, OpCall};
use tensorserve_proto::tensorflow::{FunctionDef, GraphDef, NodeDef};
use tensorserve_tensor::error::{Error, Result};

/// The most operations that are looked at, counted again in each call of a function.
const MOST_STEPS: usize = 400_000;

/// The most calls inside of each other.
const DEEPEST_CALL: usize = 48;

/// The walk through one graph.
pub(super) struct GraphFlow<'g> {
    graph: &'g GraphDef,
    functions: HashMap<&'g str, &'g FunctionDef>,
    /// For each input of the signature, the number of rows of the smallest table that it has ids of.
    limits: RefCell<Vec<Option<i64>>>,
    steps: Cell<usize>,
    depth: Cell<usize>,
}

/// Nodes, and what is known of tensors from outside.
struct FlowScope<'g> {
    nodes: HashMap<&'g str, &'g NodeDef>,
    /// By the names of nodes or arguments.
    given: HashMap<&'g str, Known>,
}

type FlowValues<'g> = HashMap<&'g str, Vec<Known>>;

impl<'g> GraphFlow<'g> {
    /// A walk through `graph`, for a signature with so many inputs.
    pub(super) fn new(graph: &'g GraphDef, inputs: usize) -> Self {
        let functions = graph.library.iter().flat_map(|library| &library.function);
        let named = |it: &'g FunctionDef| Some((it.signature.as_ref()?.name.as_str(), it));
        GraphFlow {
            graph,
            functions: functions.filter_map(named).collect(),
            limits: RefCell::new(vec![None; inputs]),
            steps: Cell::new(0),
            depth: Cell::new(0),
        }
    }

    /// What is known of the tensors `wanted` of the graph if this is known of the tensors `given`.
    ///
    /// # Errors
    /// If an operation on the way may compute something else in OpenVINO.
    pub(super) fn run_graph(
        &self,
        given: &[(&'g str, Known)],
        wanted: &[&'g str],
    ) -> Result<Vec<Known>> {
        let mut scope = FlowScope {
            nodes: self.graph.node.iter().map(|node| (node.name.as_str(), node)).collect(),
            given: HashMap::new(),
        };
        for (name, known) in given {
            let (node, index) = place(name);
            // Another output of it would pass as this one.
            if index != Some(0) || scope.given.insert(node, known.clone()).is_some() {
                return Err(Error::unsupported(format!(
                    "the input {name:?} is not the only output of its node"
                )));
            }
        }
        self.run(&scope, wanted, wanted)
    }

    /// The smallest table that each input has ids of, in rows.
    pub(super) fn limits(&self) -> Vec<Option<i64>> {
        self.limits.borrow().clone()
    }

    /// What is known of the tensors `wanted`, after all nodes that `roots` depend on were looked at.
    fn run(
        &self,
        scope: &FlowScope<'g>,
        roots: &[&'g str],
        wanted: &[&'g str],
    ) -> Result<Vec<Known>> {
        let mut values = FlowValues::new();
        for node in order(scope, roots) {
            let known = self.evaluate(scope, &values, node).map_err(|error| {
                let (name, op) = (&node.name, &node.op);
                // The innermost node is the one to know.
                match error.message().starts_with("operation ") {
                    true => error,
                    false => {
                        Error::unsupported(format!("operation {op} ({name}) {}", error.message()))
                    }
                }
            })?;
            values.insert(node.name.as_str(), known);
        }
        wanted.iter().map(|name| tensor(scope, &values, name)).collect()
    }

    fn evaluate(
        &self,
        scope: &FlowScope<'g>,
        values: &FlowValues<'g>,
        node: &'g NodeDef,
    ) -> Result<Vec<Known>> {
        self.steps.set(self.steps.get().saturating_add(1));
        if self.steps.get() > MOST_STEPS {
            return Err(Error::unsupported("is one of too many operations"));
        }
        let data = node.input.iter().filter(|input| !input.starts_with('^'));
        let inputs = data.map(|input| tensor(scope, values, input)).collect::<Result<Vec<_>>>()?;
        let call = OpCall { node, inputs };
        if let Some(function) = call.called() {
            return self.call(function?, &call.inputs);
        }
        if self.functions.contains_key(node.op.as_str()) {
            return Err(Error::unsupported("calls a function by its name"));
        }
        let found = ops::apply(&call)?;
        if let Some((inputs, limit)) = found.ids {
            let mut limits = self.limits.borrow_mut();
            for input in inputs {
                if let Some(known) = limits.get_mut(input) {
                    *known = Some(known.map_or(limit, |known| known.min(limit)));
                }
            }
        }
        Ok(found.outputs)
    }

    fn call(&self, name: &str, arguments: &[Known]) -> Result<Vec<Known>> {
        let function = self.functions.get(name).copied();
        let signature = function.and_then(|function| function.signature.as_ref());
        let Some((function, signature)) = function.zip(signature) else {
            return Err(Error::unsupported(format!(
                "calls the function {name:?}, which is missing"
            )));
        };
        if self.depth.get() >= DEEPEST_CALL {
            return Err(Error::unsupported("calls functions too deep inside of each other"));
        }
        let mut all = signature.input_arg.iter().chain(&signature.output_arg);
        let is_list = all.any(|it| !it.number_attr.is_empty() || !it.type_list_attr.is_empty());
        if is_list || signature.input_arg.len() != arguments.len() {
            return Err(Error::unsupported(format!(
                "calls {name:?} with other arguments than it has"
            )));
        }
        let given = signature.input_arg.iter().zip(arguments);
        let scope = FlowScope {
            nodes: function.node_def.iter().map(|node| (node.name.as_str(), node)).collect(),
            given: given.map(|(arg, known)| (arg.name.as_str(), known.clone())).collect(),
        };
        let mut wanted = Vec::with_capacity(signature.output_arg.len());
        for output in &signature.output_arg {
            let tensor = function.ret.get(&output.name);
            let tensor = tensor.ok_or_else(|| {
                Error::unsupported(format!("calls {name:?}, which lacks a result"))
            })?;
            wanted.push(tensor.as_str());
        }
        // A body counts as a whole: what it asserts, it does without a result.
        let roots: Vec<&str> = function.node_def.iter().map(|node| node.name.as_str()).collect();
        self.depth.set(self.depth.get() + 1);
        let results = self.run(&scope, &roots, &wanted);
        self.depth.set(self.depth.get() - 1);
        results
    }
}

/// The node or argument of the tensor `name` (`node`, `node:1`, `node:output:1`, `^node`), and the number of its output.
fn place(name: &str) -> (&str, Option<usize>) {
    let name = name.strip_prefix('^').unwrap_or(name);
    let Some((node, rest)) = name.split_once(':') else {
        return (name, Some(0));
    };
    let index = rest.rsplit_once(':').map_or(rest, |(_, index)| index);
    (node, index.parse().ok())
}

fn tensor(scope: &FlowScope<'_>, values: &FlowValues<'_>, name: &str) -> Result<Known> {
    let (node, index) = place(name);
    let found = match scope.given.get(node) {
        Some(known) => Some(known),
        None => match values.get(node).map(Vec::as_slice) {
            // All outputs are of one kind.
            Some([only]) => Some(only),
            Some(outputs) => index.and_then(|index| outputs.get(index)),
            None => None,
        },
    };
    let missing =
        || Error::unsupported(format!("takes {name:?}, which is in a loop or not in the graph"));
    found.cloned().ok_or_else(missing)
}

/// The nodes that `roots` depend on, also by control inputs, each behind those that it depends on.
fn order<'g>(scope: &FlowScope<'g>, roots: &[&'g str]) -> Vec<&'g NodeDef> {
    let mut found = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    // A node, and the number of its next input.
    let mut path: Vec<(&'g NodeDef, usize)> = Vec::new();
    for root in roots {
        enter(scope, root, &mut seen, &mut path);
        while let Some((node, index)) = path.last_mut() {
            let Some(input) = node.input.get(*index) else {
                found.push(*node);
                path.pop();
                continue;
            };
            *index += 1;
            enter(scope, input, &mut seen, &mut path);
        }
    }
    found
}

fn enter<'g>(
    scope: &FlowScope<'g>,
    name: &'g str,
    seen: &mut HashSet<&'g str>,
    path: &mut Vec<(&'g NodeDef, usize)>,
) {
    let (name, _) = place(name);
    if scope.given.contains_key(name) {
        return;
    }
    if let Some(node) = scope.nodes.get(name).copied()
        && seen.insert(&node.name)
    {
        path.push((node, 0));
    }
}
