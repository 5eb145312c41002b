//! Runs a graph, and the functions that it calls, on what is known of its tensors.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use tensorserve_proto::tensorflow::{FunctionDef, NodeDef};
use tensorserve_rows::{Flow, Stop, Symbols, Value, unknown, verdict};

use super::call::{GraphInterpreter, TensorFlowCall};
use super::counted::counted_iterations;
use super::table;
use crate::registry::OpRegistry;
use crate::scope::Scope;

/// The most operations that are looked at, counted again in each call of a function and iteration.
const MAX_STEPS: usize = 400_000;

/// The most calls inside of each other.
const MAX_DEPTH: usize = 48;

/// The most times that a loop of TensorFlow 1 is looked at.
const MAX_ROUNDS: usize = 12;

/// The analysis of one signature.
pub(super) struct TensorFlowAnalysis<'a> {
    pub(super) symbols: Symbols,
    pub(super) registry: &'a OpRegistry,
    pub(super) functions: &'a HashMap<&'a str, &'a FunctionDef>,
    pub(super) in_rows: Cell<bool>,
    pub(super) steps: Cell<usize>,
    pub(super) depth: Cell<usize>,
    /// The loops that were found, and whether each is counted wherever it is found.
    pub(super) loops: RefCell<HashMap<*const NodeDef, bool>>,
}

/// The nodes of a graph or of a function, and the values of tensors that are given.
pub(super) struct TensorFlowScope<'a> {
    pub(super) nodes: HashMap<&'a str, &'a NodeDef>,
    /// By their names in inputs.
    pub(super) given: HashMap<String, Value>,
}

type GraphValues<'a> = HashMap<&'a str, Vec<Value>>;

impl<'a> TensorFlowAnalysis<'a> {
    /// The values of the tensors `wanted`.
    pub(super) fn run(&self, scope: &TensorFlowScope<'a>, wanted: &[&'a str]) -> Vec<Value> {
        let order = order(scope, wanted);
        let mut values = GraphValues::new();
        for _ in 0..MAX_ROUNDS {
            for node in &order {
                if node.op != "NextIteration" {
                    let outputs = self.evaluate(scope, &values, node);
                    values.insert(&node.name, outputs);
                }
            }
            if !self.iterate(scope, &order, &mut values) {
                self.note_iterations(scope, &order, &values);
                return wanted.iter().map(|name| self.tensor(scope, &values, name)).collect();
            }
        }
        let lost = Stop::Unknown("ends a loop whose state is not known".to_owned());
        vec![lost.value_at("", "NextIteration"); wanted.len()]
    }

    /// Notes which loops of TensorFlow 1 are counted.
    fn note_iterations(
        &self,
        scope: &TensorFlowScope<'a>,
        order: &[&'a NodeDef],
        values: &GraphValues<'a>,
    ) {
        if !order.iter().any(|node| node.op == "NextIteration") {
            return;
        }
        let nodes = order.iter().map(|node| (node.name.as_str(), *node)).collect();
        let value_of = |name: &str| self.tensor(scope, values, name);
        for (node, is_counted) in counted_iterations(&Scope::of_nodes(nodes), value_of) {
            self.note_loop(node, is_counted);
        }
    }

    /// Carries the values of loops of TensorFlow 1 to their next iteration. Whether one has changed.
    fn iterate(
        &self,
        scope: &TensorFlowScope<'a>,
        order: &[&'a NodeDef],
        values: &mut GraphValues<'a>,
    ) -> bool {
        let mut changed = false;
        for node in order.iter().filter(|node| node.op == "NextIteration") {
            let Some(input) = node.input.first() else { continue };
            let mut after = self.tensor(scope, values, input);
            after.elements = None;
            let before = values.get(node.name.as_str()).and_then(|outputs| outputs.first());
            let next = match before {
                None => after,
                Some(before) => before.joined(&after, &self.symbols).unwrap_or_else(|| {
                    let why = "carries values of different rows from one iteration to the next";
                    Stop::Mixed(why.to_owned()).value_at(&node.name, &node.op)
                }),
            };
            if before != Some(&next) {
                changed = true;
                values.insert(&node.name, vec![next]);
            }
        }
        changed
    }

    /// The value of the tensor `name`, as an input names it.
    fn tensor(&self, scope: &TensorFlowScope<'a>, values: &GraphValues<'a>, name: &str) -> Value {
        if let Some(value) = scope.given.get(name) {
            return value.clone();
        }
        let mut parts = name.split(':');
        let node = parts.next().unwrap_or_default();
        let index = match (parts.next(), parts.next()) {
            (None, _) => Some(0),
            (Some(index), None) => index.parse().ok(),
            (Some(output), Some(index)) => self.output_index(scope, node, output, index),
        };
        let Some(outputs) = values.get(node) else {
            // The next iteration of a loop that has not begun.
            return match scope.nodes.get(node) {
                Some(node) if node.op == "NextIteration" => Value::new(Flow::Dead, None),
                _ => Stop::Unknown("is not in the graph".to_owned()).value_at(node, "?"),
            };
        };
        match outputs.as_slice() {
            [only] if only.is_lost() => only.clone(),
            outputs => index.and_then(|index| outputs.get(index)).cloned().unwrap_or_else(|| {
                let op = scope.nodes.get(node).map_or("?", |node| &node.op);
                Stop::Unknown("has an output that is not known".to_owned()).value_at(node, op)
            }),
        }
    }

    /// The number of element `index` of the output `output` among all outputs of `node`.
    fn output_index(
        &self,
        scope: &TensorFlowScope<'a>,
        node: &str,
        output: &str,
        index: &str,
    ) -> Option<usize> {
        let node = scope.nodes.get(node)?;
        let first = match self.functions.get(node.op.as_str()) {
            Some(function) => {
                let outputs = &function.signature.as_ref()?.output_arg;
                outputs.iter().position(|arg| arg.name == output)?
            }
            None => self.registry.first_output(node, output)?,
        };
        first.checked_add(index.parse().ok()?)
    }

    fn evaluate(
        &self,
        scope: &TensorFlowScope<'a>,
        values: &GraphValues<'a>,
        node: &'a NodeDef,
    ) -> Vec<Value> {
        let steps = self.steps.get().saturating_add(1);
        self.steps.set(steps);
        if steps > MAX_STEPS {
            let why = "is beyond the number of operations that are analyzed".to_owned();
            return vec![Stop::Unknown(why).value_at(&node.name, &node.op)];
        }
        let given =
            scope.given.get(&node.name).or_else(|| scope.given.get(&format!("{}:0", node.name)));
        if let Some(value) = given {
            return vec![value.clone()];
        }
        let data = node.input.iter().filter(|input| !input.starts_with('^'));
        let inputs: Vec<Value> = data.map(|input| self.tensor(scope, values, input)).collect();
        let is_call = self.functions.contains_key(node.op.as_str());
        if let Some(lost) =
            verdict::lost(inputs.iter()).filter(|_| !is_call && !table::takes_lost(&node.op))
        {
            return vec![lost.clone()];
        }
        let call = TensorFlowCall { node, inputs, interpreter: self };
        match (table::apply(&call), verdict::lost(call.inputs.iter())) {
            (Ok(outputs), _) => outputs,
            (Err(_), Some(lost)) if !is_call => vec![lost.clone()],
            (Err(stop), _) => vec![stop.value_at(&node.name, &node.op)],
        }
    }
}

impl GraphInterpreter for TensorFlowAnalysis<'_> {
    fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    fn function(&self, name: &str) -> Option<&FunctionDef> {
        self.functions.get(name).copied()
    }

    fn note_loop(&self, node: &NodeDef, is_counted: bool) {
        let mut loops = self.loops.borrow_mut();
        *loops.entry(node).or_insert(true) &= is_counted;
    }

    fn set_in_rows(&self, is_in_rows: bool) -> bool {
        self.in_rows.replace(is_in_rows)
    }

    fn call(&self, name: &str, arguments: &[Value]) -> Result<Vec<Value>, Stop> {
        let Some(function) = self.functions.get(name) else {
            return unknown(format!("calls the function {name:?}, which does not exist"));
        };
        let Some(signature) = &function.signature else {
            return unknown(format!("calls the function {name:?}, which has no signature"));
        };
        if self.depth.get() >= MAX_DEPTH {
            return unknown("calls functions too deep inside of each other");
        }
        if signature.input_arg.len() != arguments.len() {
            return unknown(format!(
                "calls the function {name:?} with another number of arguments"
            ));
        }
        let given = signature.input_arg.iter().zip(arguments);
        let scope = TensorFlowScope {
            nodes: function.node_def.iter().map(|node| (node.name.as_str(), node)).collect(),
            given: given.map(|(arg, value)| (arg.name.clone(), value.clone())).collect(),
        };
        let mut wanted = Vec::with_capacity(signature.output_arg.len());
        for output in &signature.output_arg {
            let Some(name) = function.ret.get(&output.name) else {
                return unknown(format!("calls the function {name:?}, which lacks a result"));
            };
            wanted.push(name.as_str());
        }
        self.depth.set(self.depth.get() + 1);
        let results = self.run(&scope, &wanted);
        self.depth.set(self.depth.get() - 1);
        Ok(results)
    }
}

/// The name of the node that an input names; `None` for a control input.
fn node_name(input: &str) -> Option<&str> {
    match input.starts_with('^') {
        true => None,
        false => Some(input.split(':').next().unwrap_or(input)),
    }
}

/// The nodes that the tensors `wanted` depend on, each behind those that it depends on, but for those that
/// begin a next iteration: they are at the end.
fn order<'a>(scope: &TensorFlowScope<'a>, wanted: &[&'a str]) -> Vec<&'a NodeDef> {
    let mut found = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut loops: Vec<&'a NodeDef> = Vec::new();
    let mut roots: Vec<&'a str> = wanted.iter().copied().rev().collect();
    let mut next_loop = 0;
    loop {
        while let Some(root) = roots.pop() {
            visit(scope, root, &mut seen, &mut found, &mut loops);
        }
        let Some(node) = loops.get(next_loop) else { break };
        next_loop += 1;
        roots.extend(node.input.iter().map(String::as_str));
    }
    found.extend(loops);
    found
}

fn visit<'a>(
    scope: &TensorFlowScope<'a>,
    root: &'a str,
    seen: &mut HashSet<&'a str>,
    found: &mut Vec<&'a NodeDef>,
    loops: &mut Vec<&'a NodeDef>,
) {
    // A node, and the number of its next input.
    let mut path: Vec<(&'a NodeDef, usize)> = Vec::new();
    let mut enter = |name: &'a str, path: &mut Vec<(&'a NodeDef, usize)>| {
        if scope.given.contains_key(name) {
            return;
        }
        let node = node_name(name).and_then(|name| scope.nodes.get(name));
        let Some(&node) = node.filter(|node| seen.insert(&node.name)) else { return };
        match node.op == "NextIteration" {
            true => loops.push(node),
            false => path.push((node, 0)),
        }
    };
    enter(root, &mut path);
    while let Some((node, index)) = path.last_mut() {
        let Some(input) = node.input.get(*index) else {
            found.push(node);
            path.pop();
            continue;
        };
        *index += 1;
        enter(input, &mut path);
    }
}
