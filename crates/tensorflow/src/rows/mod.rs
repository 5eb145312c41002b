//! Whether the rows of a signature depend on each other: the graph is run on what is known of its tensors
//! (`tensorserve-rows`), through functions, conditions and loops. `table` says what each operation
//! does.

// Functions name the values that they can follow, and refuse all others.
#![allow(clippy::wildcard_enum_match_arm)]

use std::cell::Cell;
use std::collections::HashMap;

use tensorserve_proto::tensorflow::{FunctionDef, GraphDef};
use tensorserve_rows::{Flow, Symbols, Value, verdict};
use tensorserve_tensor::{RowDependence, Signature};

use self::run::{TensorFlowAnalysis, TensorFlowScope};
use crate::graph::OpRegistry;

mod call;
mod control;
mod features;
mod images;
mod rules;
mod run;
mod slicing;
mod table;
#[cfg(test)]
mod tests;

/// Whether each row of the outputs of `signature` depends on the same row of its inputs alone.
pub(super) fn dependence(
    signature: &Signature,
    graph: &GraphDef,
    registry: &OpRegistry,
) -> RowDependence {
    if let Some(undeclared) = verdict::without_rows(&signature.inputs, &signature.outputs) {
        return undeclared;
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
    };
    let mut scope = TensorFlowScope {
        nodes: graph.node.iter().map(|node| (node.name.as_str(), node)).collect(),
        given: HashMap::new(),
    };
    for spec in &signature.inputs {
        match Value::input(spec, &analysis.symbols) {
            Ok(value) => scope.given.insert(spec.tensor_name.clone(), value),
            Err(stop) => return stop.at(&spec.tensor_name, "signature"),
        };
    }
    let names: Vec<&str> = signature.outputs.iter().map(|spec| spec.tensor_name.as_str()).collect();
    let results = analysis.run(&scope, &names);
    verdict::of_outputs(results.iter().zip(&names).map(|(value, name)| verdict(value, name)))
}

/// What the value of an output means.
fn verdict(value: &Value, name: &str) -> RowDependence {
    match value.flow {
        Flow::RowLengths { .. } => RowDependence::Proven,
        // Without a rank, the size of a batch's outputs is compared with that of the batch.
        _ => verdict::of_output(value, name, RowDependence::Proven),
    }
}
