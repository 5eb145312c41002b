//! Whether the rows of a signature depend on each other: the graph is run on what is known of its tensors
//! (`tensorserve-rows`), through functions, conditions and loops. `table` says what each operation
//! does.

// Functions name the values that they can follow, and refuse all others.
#![allow(clippy::wildcard_enum_match_arm)]

use std::cell::Cell;
use std::collections::HashMap;

use tensorserve_proto::tensorflow::{FunctionDef, GraphDef};
use tensorserve_rows::{Flow, Size, Stop, Symbols, Value};
use tensorserve_tensor::{RowDependence, RowFinding, Signature};

use self::run::{Analysis, Scope};
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
    if let Some(undeclared) = without_dimension(signature) {
        return undeclared;
    }
    let library = graph.library.iter().flat_map(|library| &library.function);
    let functions: HashMap<&str, &FunctionDef> = library
        .filter_map(|function| Some((function.signature.as_ref()?.name.as_str(), function)))
        .collect();
    let analysis = Analysis {
        symbols: Symbols::default(),
        registry,
        functions: &functions,
        in_rows: Cell::new(false),
        steps: Cell::new(0),
        depth: Cell::new(0),
    };
    let mut scope = Scope {
        nodes: graph.node.iter().map(|node| (node.name.as_str(), node)).collect(),
        given: HashMap::new(),
    };
    for spec in &signature.inputs {
        match Value::input(spec, &analysis.symbols) {
            Ok(value) => scope.given.insert(spec.tensor_name.clone(), value),
            Err(stop) => return stopped(&spec.tensor_name, "signature", stop),
        };
    }
    let names: Vec<&str> = signature.outputs.iter().map(|spec| spec.tensor_name.as_str()).collect();
    let results = analysis.run(&scope, &names);
    let verdicts = results.iter().zip(&names).map(|(value, name)| verdict(value, name));
    let mut found = RowDependence::Proven;
    for verdict in verdicts {
        match verdict {
            RowDependence::Mixed(_) => return verdict,
            RowDependence::Unknown(_) if found == RowDependence::Proven => found = verdict,
            _ => {}
        }
    }
    found
}

/// The first input or output that does not declare a dimension for rows: requests with it cannot be joined.
fn without_dimension(signature: &Signature) -> Option<RowDependence> {
    let inputs = signature.inputs.iter().map(|spec| ("input", spec));
    let mut all = inputs.chain(signature.outputs.iter().map(|spec| ("output", spec)));
    let (kind, spec) = all.find(|(_, spec)| !spec.shape.is_batched())?;
    let why = format!("is the {kind} {:?}, which declares no dimension for rows", spec.alias);
    Some(stopped(&spec.tensor_name, kind, Stop::Mixed(why)))
}

/// What the value of an output means.
fn verdict(value: &Value, name: &str) -> RowDependence {
    let is_rows = |dims: &[Size]| dims.first() == Some(&Size::rows());
    let without_rows = || {
        let why = "gives an output that does not have a row for each row of the inputs";
        stopped(name, "output", Stop::Mixed(why.to_owned()))
    };
    match (&value.flow, &value.dims) {
        (Flow::Rows { axis: 0 }, Some(dims)) if is_rows(dims) => RowDependence::Proven,
        // The size of a batch's outputs is compared with that of the batch.
        (Flow::Rows { axis: 0 }, None) => RowDependence::Proven,
        (Flow::RowLengths { .. }, _) => RowDependence::Proven,
        (Flow::Mixed(finding), _) => RowDependence::Mixed(RowFinding::clone(finding)),
        (Flow::Unknown(finding), _) => RowDependence::Unknown(RowFinding::clone(finding)),
        _ => without_rows(),
    }
}

fn stopped(node: &str, op: &str, stop: Stop) -> RowDependence {
    let finding = |why| RowFinding { node: node.to_owned(), op: op.to_owned(), why };
    match stop {
        Stop::Mixed(why) => RowDependence::Mixed(finding(why)),
        Stop::Unknown(why) => RowDependence::Unknown(finding(why)),
    }
}
