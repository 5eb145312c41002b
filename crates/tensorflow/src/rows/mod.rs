//! Whether the rows of a signature depend on each other, and which of its loops end after a bounded number of
//! iterations: the graph is run on what is known of its tensors (`tensorserve-rows`), through functions, conditions
//! and loops. `table` says what each operation does.

// Functions name the values that they can follow, and refuse all others.
#![allow(clippy::wildcard_enum_match_arm)]

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use tensorserve_proto::tensorflow::{FunctionDef, GraphDef, NodeDef};
use tensorserve_rows::{Flow, Symbols, Value, verdict};
use tensorserve_tensor::{RowDependence, Signature};

use self::run::{TensorFlowAnalysis, TensorFlowScope};
use crate::registry::OpRegistry;

mod call;
mod control;
mod counted;
mod features;
mod images;
mod rules;
mod run;
mod slicing;
mod table;
#[cfg(test)]
mod tests;

/// What the graph of a signature shows.
pub(super) struct GraphFindings {
    /// Whether each row of the outputs depends on the same row of the inputs alone.
    pub(super) rows: RowDependence,
    counted: HashSet<*const NodeDef>,
}

impl GraphFindings {
    /// Those of a signature whose graph was not run.
    pub(super) fn only(rows: RowDependence) -> Self {
        GraphFindings { rows, counted: HashSet::new() }
    }

    /// Whether `node`, of the graph that was looked at, is a loop for which the sizes of the inputs bound the number of
    /// iterations.
    pub(super) fn is_counted_loop(&self, node: &NodeDef) -> bool {
        self.counted.contains(&std::ptr::from_ref(node))
    }
}

/// Runs the graph of `signature` on what is known of its tensors.
pub(super) fn findings(
    signature: &Signature,
    graph: &GraphDef,
    registry: &OpRegistry,
) -> GraphFindings {
    if let Some(undeclared) = verdict::without_rows(&signature.inputs, &signature.outputs) {
        return GraphFindings::only(undeclared);
    }
    let library = graph.library.iter().flat_map(|library| &library.function);
    let functions: HashMap<&str, &FunctionDef> = library
        .filter_map(|function| Some((function.signature.as_ref()?.name.as_str(), function)))
        .collect();
    let analysis = TensorFlowAnalysis {
        symbols: Symbols::default(),
        registry,
        functions: &functions,
        in_rows: Cell::new(false),
        steps: Cell::new(0),
        depth: Cell::new(0),
        loops: RefCell::default(),
    };
    let mut scope = TensorFlowScope {
        nodes: graph.node.iter().map(|node| (node.name.as_str(), node)).collect(),
        given: HashMap::new(),
    };
    for spec in &signature.inputs {
        match Value::input(spec, &analysis.symbols) {
            Ok(value) => scope.given.insert(spec.tensor_name.clone(), value),
            Err(stop) => return GraphFindings::only(stop.at(&spec.tensor_name, "signature")),
        };
    }
    let names: Vec<&str> = signature.outputs.iter().map(|spec| spec.tensor_name.as_str()).collect();
    let results = analysis.run(&scope, &names);
    let verdicts = results.iter().zip(&names).map(|(value, name)| verdict(value, name));
    let rows = verdict::of_outputs(verdicts);
    let loops = analysis.loops.into_inner().into_iter();
    let counted = loops.filter_map(|(node, is_counted)| is_counted.then_some(node)).collect();
    GraphFindings { rows, counted }
}

/// What the value of an output means.
fn verdict(value: &Value, name: &str) -> RowDependence {
    match value.flow {
        Flow::RowLengths { .. } => RowDependence::Proven,
        // Without a rank, the size of a batch's outputs is compared with that of the batch.
        _ => verdict::of_output(value, name, RowDependence::Proven),
    }
}
