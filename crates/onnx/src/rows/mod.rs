//! Whether the rows of a model depend on each other: the graph is run on what is known of its tensors
//! (`tensorserve-rows`), through functions, branches and loops. `table` says what each operator does.

// Rules name the values that they can follow, and refuse all others.
#![allow(clippy::wildcard_enum_match_arm)]

use std::rc::Rc;

use prost::Message;
use tensorserve_rows::{Flow, Size, Stop, Value};
use tensorserve_tensor::{RowDependence, RowFinding, Signature};

use self::run::{Analysis, Frame};
use crate::proto::{FunctionProto, ModelProto};

mod call;
mod control;
mod elements;
mod images;
mod layers;
mod learning;
mod places;
mod run;
mod shapes;
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_models;

/// Whether each row of the outputs of `model`, whose signature this is, depends on the same row of its inputs
/// alone.
pub(super) fn dependence(model: &ModelProto, signature: &Signature) -> RowDependence {
    let Some(graph) = &model.graph else {
        return RowDependence::NoGraph;
    };
    let inputs = signature.inputs.iter().map(|spec| ("input", spec));
    let mut specs = inputs.chain(signature.outputs.iter().map(|spec| ("output", spec)));
    if let Some((kind, spec)) = specs.find(|(_, spec)| !spec.shape.is_batched()) {
        let why = format!("is the {kind} {:?}, which declares no dimension for rows", spec.alias);
        return stopped(&spec.tensor_name, kind, Stop::Mixed(why));
    }
    let Ok(functions) = model
        .functions
        .iter()
        .map(|it| FunctionProto::decode(it.clone()))
        .collect::<Result<_, _>>()
    else {
        let why = "has a function that cannot be read".to_owned();
        return stopped("", "model", Stop::Unknown(why));
    };
    let analysis = Analysis::new(functions);
    let mut inputs = Vec::new();
    for spec in &signature.inputs {
        match Value::input(spec, &analysis.symbols) {
            Ok(value) => inputs.push((spec.tensor_name.as_str(), value)),
            Err(stop) => return stopped(&spec.tensor_name, "input", stop),
        }
    }
    let frame = Frame::of_model(&model.opset_import);
    let results = analysis.graph(graph, inputs, None, &frame);
    let names = graph.output.iter().map(|output| output.name.as_str());
    let mut found = RowDependence::Proven;
    for (value, name) in results.iter().zip(names) {
        match verdict(value, name) {
            mixed @ RowDependence::Mixed(_) => return mixed,
            RowDependence::Proven => {}
            other if found == RowDependence::Proven => found = other,
            _ => {}
        }
    }
    found
}

/// What the value of an output means.
fn verdict(value: &Value, name: &str) -> RowDependence {
    match (&value.flow, &value.dims) {
        (Flow::Rows { axis: 0 }, Some(dims)) if dims.first() == Some(&Size::rows()) => {
            RowDependence::Proven
        }
        (Flow::Rows { axis: 0 }, None) => {
            let why = "gives an output whose number of rows is not known before a request";
            stopped(name, "output", Stop::Unknown(why.to_owned()))
        }
        (Flow::Mixed(finding), _) => RowDependence::Mixed(RowFinding::clone(finding)),
        (Flow::Unknown(finding), _) => RowDependence::Unknown(RowFinding::clone(finding)),
        _ => {
            let why = "gives an output that does not have a row for each row of the inputs";
            stopped(name, "output", Stop::Mixed(why.to_owned()))
        }
    }
}

fn stopped(node: &str, op: &str, stop: Stop) -> RowDependence {
    match lost(node, op, stop).flow {
        Flow::Mixed(finding) => RowDependence::Mixed(RowFinding::clone(&finding)),
        Flow::Unknown(finding) => RowDependence::Unknown(RowFinding::clone(&finding)),
        _ => RowDependence::NoGraph,
    }
}

/// The result of an operator at which the analysis cannot go on.
fn lost(node: &str, op: &str, stop: Stop) -> Value {
    let finding = |why| Rc::new(RowFinding { node: node.to_owned(), op: op.to_owned(), why });
    let flow = match stop {
        Stop::Mixed(why) => Flow::Mixed(finding(why)),
        Stop::Unknown(why) => Flow::Unknown(finding(why)),
    };
    Value::new(flow, None)
}
