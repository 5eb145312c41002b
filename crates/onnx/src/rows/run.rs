//! Runs graphs on what is known of their tensors.

use std::cell::Cell;
use std::collections::HashMap;

use tensorserve_rows::{Stop, Symbols, Value, unknown, verdict};

use super::call::{OnnxCall, SubgraphRunner, constant};
use super::table;
use crate::proto::{
    AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto,
};

/// The most inputs and outputs that are looked at: far more than those of the largest graphs.
const MAX_STEPS: usize = 1 << 19;

/// The most functions and subgraphs within each other.
const MAX_DEPTH: usize = 24;

/// The most dimensions that are followed.
const MAX_RANK: usize = 32;

/// The analysis of a model.
pub(super) struct OnnxAnalysis {
    pub(super) symbols: Symbols,
    functions: Vec<FunctionProto>,
    steps: Cell<usize>,
    depth: Cell<usize>,
    in_rows: Cell<bool>,
}

/// The call of a function, or the model.
pub(super) struct CallFrame<'f> {
    opsets: &'f [OperatorSetIdProto],
    attributes: HashMap<&'f str, &'f AttributeProto>,
    /// The names of the calls, each with a `/`.
    path: String,
}

/// The values of a graph, within those of the graph around it.
pub(super) struct OnnxScope<'s> {
    values: HashMap<&'s str, Value>,
    tensors: HashMap<&'s str, &'s TensorProto>,
    outer: Option<&'s OnnxScope<'s>>,
}

impl<'f> CallFrame<'f> {
    pub(super) fn of_model(opsets: &'f [OperatorSetIdProto]) -> Self {
        CallFrame { opsets, attributes: HashMap::new(), path: String::new() }
    }

    /// The version of the operators of `domain`.
    fn version(&self, domain: &str) -> Option<i64> {
        let mut opsets = self.opsets.iter();
        let found = opsets.find(|opset| table::domain(&opset.domain) == domain);
        found.map(|opset| opset.version)
    }

    /// An attribute, for which a function may take one of its own.
    fn resolve(&self, attribute: &'f AttributeProto) -> Option<(&'f str, &'f AttributeProto)> {
        let its = match attribute.ref_attr_name.as_str() {
            "" => Some(attribute),
            name => self.attributes.get(name).copied(),
        };
        its.map(|its| (attribute.name.as_str(), its))
    }
}

impl<'s> OnnxScope<'s> {
    /// A value. That a graph around this one began an iteration of its loop with it says nothing here.
    fn value(&self, name: &str) -> Option<Value> {
        match self.values.get(name) {
            Some(value) => Some(value.clone()),
            None => self.outer?.value(name).map(|value| Value { origin: None, ..value }),
        }
    }

    fn tensor(&self, name: &str) -> Option<&'s TensorProto> {
        match self.values.contains_key(name) {
            true => self.tensors.get(name).copied(),
            false => self.outer?.tensor(name),
        }
    }
}

impl OnnxAnalysis {
    pub(super) fn new(functions: Vec<FunctionProto>) -> Self {
        OnnxAnalysis {
            symbols: Symbols::default(),
            functions,
            steps: Cell::new(0),
            depth: Cell::new(0),
            in_rows: Cell::new(false),
        }
    }

    /// The outputs of a graph.
    pub(super) fn graph(
        &self,
        graph: &GraphProto,
        inputs: Vec<(&str, Value)>,
        outer: Option<&OnnxScope>,
        frame: &CallFrame,
    ) -> Vec<Value> {
        let mut scope =
            OnnxScope { values: inputs.into_iter().collect(), tensors: HashMap::new(), outer };
        for tensor in &graph.initializer {
            scope.values.insert(&tensor.name, constant(tensor, &self.symbols));
            scope.tensors.insert(&tensor.name, tensor);
        }
        for sparse in &graph.sparse_initializer {
            if let Some(values) = &sparse.values {
                let value = Value::constant_of(&sparse.dims, &self.symbols);
                scope.values.insert(&values.name, value);
            }
        }
        self.nodes(&graph.node, &mut scope, frame);
        let output = |name: &str| scope.value(name).unwrap_or_else(|| nothing_makes(name));
        graph.output.iter().map(|info| output(&info.name)).collect()
    }

    fn nodes<'s>(&self, nodes: &'s [NodeProto], scope: &mut OnnxScope<'s>, frame: &CallFrame) {
        for node in nodes {
            let results = self.node(node, scope, frame);
            let mut results = results.into_iter();
            for name in &node.output {
                let unset = || {
                    let why = "has an output that is not known".to_owned();
                    Stop::Unknown(why).value_at(&named(node, frame), &node.op_type)
                };
                let value = results.next().unwrap_or_else(unset);
                scope.values.insert(name, bounded(value));
            }
            if let (Some(name), "Constant") = (node.output.first(), node.op_type.as_str())
                && let Some(tensor) = node.get("value").and_then(|value| value.t.as_ref())
            {
                scope.tensors.insert(name, tensor);
            }
        }
    }

    /// The results of an operator.
    fn node(&self, node: &NodeProto, scope: &OnnxScope, frame: &CallFrame) -> Vec<Value> {
        let count = node.output.len();
        let steps = self.steps.get().saturating_add(1 + node.input.len() + count);
        self.steps.set(steps);
        let stop = |stop| vec![Stop::value_at(stop, &named(node, frame), &node.op_type); count];
        if steps > MAX_STEPS {
            let why = format!(
                "comes after the {MAX_STEPS} operators, inputs and outputs that are analyzed"
            );
            return stop(Stop::Unknown(why));
        }
        let input = |name: &String| match name.as_str() {
            "" => None,
            name => Some(scope.value(name).unwrap_or_else(|| nothing_makes(name))),
        };
        let inputs: Vec<Option<Value>> = node.input.iter().map(input).collect();
        if let Some(value) = verdict::lost(inputs.iter().flatten()) {
            return vec![value.clone(); count];
        }
        let result = match self.function(node) {
            Some(function) => self.call(function, node, inputs, frame),
            None => self.operator(node, inputs, scope, frame),
        };
        result.unwrap_or_else(stop)
    }

    /// The results of an operator that is in the table.
    fn operator(
        &self,
        node: &NodeProto,
        inputs: Vec<Option<Value>>,
        scope: &OnnxScope,
        frame: &CallFrame,
    ) -> Result<Vec<Value>, Stop> {
        let domain = table::domain(&node.domain);
        let Some(rule) = table::rule(domain, &node.op_type) else {
            return unknown("is an operator whose effect on rows is not known");
        };
        let version = match frame.version(domain) {
            Some(version) => version,
            None if domain.is_empty() => return unknown("has no version of its operator set"),
            None => 1,
        };
        let resolved: Vec<AttributeProto> = node
            .attribute
            .iter()
            .filter(|attribute| !attribute.ref_attr_name.is_empty())
            .filter_map(|attribute| frame.resolve(attribute))
            .map(|(name, its)| AttributeProto { name: name.to_owned(), ..its.clone() })
            .collect();
        let own = node.attribute.iter().filter(|attribute| attribute.ref_attr_name.is_empty());
        let call = OnnxCall {
            version,
            attributes: own.chain(&resolved).collect(),
            tensors: node.input.iter().map(|name| scope.tensor(name)).collect(),
            inputs,
            outputs: node.output.len(),
            symbols: &self.symbols,
            subgraphs: &Within { analysis: self, scope, frame },
        };
        rule(&call)
    }

    /// The function of the model that an operator stands for.
    fn function(&self, node: &NodeProto) -> Option<&FunctionProto> {
        let domain = table::domain(&node.domain);
        self.functions.iter().find(|function| {
            function.name == node.op_type && table::domain(&function.domain) == domain
        })
    }

    /// The results of a function of the model.
    fn call(
        &self,
        function: &FunctionProto,
        node: &NodeProto,
        inputs: Vec<Option<Value>>,
        frame: &CallFrame,
    ) -> Result<Vec<Value>, Stop> {
        let domain = table::domain(&function.domain);
        let same = self
            .functions
            .iter()
            .filter(|other| other.name == function.name && table::domain(&other.domain) == domain);
        if same.count() > 1 || table::rule(domain, &function.name).is_some() {
            return unknown("is a function that is defined more than once");
        }
        let defaults = function.attribute_proto.iter().map(|it| (it.name.as_str(), it));
        let given = node.attribute.iter().filter_map(|attribute| frame.resolve(attribute));
        let inner = CallFrame {
            opsets: &function.opset_import,
            attributes: defaults.chain(given).collect(),
            path: format!("{}/", named(node, frame)),
        };
        let names = function.input.iter().map(String::as_str);
        let given = names.zip(inputs).filter_map(|(name, value)| Some((name, value?)));
        let mut scope = OnnxScope { values: given.collect(), tensors: HashMap::new(), outer: None };
        self.nested(|| {
            self.nodes(&function.node, &mut scope, &inner);
            let output = |name: &String| scope.value(name).unwrap_or_else(|| nothing_makes(name));
            function.output.iter().map(output).collect()
        })
    }

    /// What `run` returns, one level deeper.
    fn nested(&self, run: impl FnOnce() -> Vec<Value>) -> Result<Vec<Value>, Stop> {
        let depth = self.depth.get();
        if depth >= MAX_DEPTH {
            return unknown(format!(
                "is nested in more than the {MAX_DEPTH} functions and subgraphs that are analyzed"
            ));
        }
        self.depth.set(depth + 1);
        let results = run();
        self.depth.set(depth);
        Ok(results)
    }
}

/// The subgraphs of an operator.
struct Within<'w> {
    analysis: &'w OnnxAnalysis,
    scope: &'w OnnxScope<'w>,
    frame: &'w CallFrame<'w>,
}

impl SubgraphRunner for Within<'_> {
    fn run(&self, graph: &GraphProto, inputs: Vec<Value>) -> Vec<Value> {
        let names = graph.input.iter().map(|input| input.name.as_str());
        let given = names.zip(inputs).collect();
        let run = || self.analysis.graph(graph, given, Some(self.scope), self.frame);
        let stopped = |stop| vec![Stop::value_at(stop, &graph.name, "graph"); graph.output.len()];
        self.analysis.nested(run).unwrap_or_else(stopped)
    }

    fn set_in_rows(&self, is_in_rows: bool) -> bool {
        self.analysis.in_rows.replace(is_in_rows)
    }
}

/// The name of an operator: its own, or that of its first output.
fn named(node: &NodeProto, frame: &CallFrame) -> String {
    let name = match node.name.as_str() {
        "" => node.output.first().map_or("", String::as_str),
        name => name,
    };
    format!("{}{name}", frame.path)
}

fn nothing_makes(name: &str) -> Value {
    let why = "is a tensor that no operator before it makes".to_owned();
    Stop::Unknown(why).value_at(name, "tensor")
}

/// A value without a shape of too many dimensions.
fn bounded(value: Value) -> Value {
    match value.rank() {
        Some(rank) if rank > MAX_RANK => Value { dims: None, elements: None, ..value },
        _ => value,
    }
}
