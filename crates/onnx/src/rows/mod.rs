//! Whether the rows of a model depend on each other: the graph is run on what is known of its tensors
//! (`tensorserve-rows`), through functions, branches and loops. `table` says what each operator does.

// Rules name the values that they can follow, and refuse all others.
#![allow(clippy::wildcard_enum_match_arm)]

use prost::Message;
use tensorserve_rows::{Stop, Value, verdict};
use tensorserve_tensor::{RowDependence, Signature};

use self::run::{CallFrame, OnnxAnalysis};
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
    if let Some(undeclared) = verdict::without_rows(&signature.inputs, &signature.outputs) {
        return undeclared;
    }
    let Ok(functions) = model
        .functions
        .iter()
        .map(|it| FunctionProto::decode(it.clone()))
        .collect::<Result<_, _>>()
    else {
        let why = "has a function that cannot be read".to_owned();
        return Stop::Unknown(why).at("", "model");
    };
    let analysis = OnnxAnalysis::new(functions);
    let mut inputs = Vec::new();
    for spec in &signature.inputs {
        match Value::input(spec, &analysis.symbols) {
            Ok(value) => inputs.push((spec.tensor_name.as_str(), value)),
            Err(stop) => return stop.at(&spec.tensor_name, "input"),
        }
    }
    let frame = CallFrame::of_model(&model.opset_import);
    let results = analysis.graph(graph, inputs, None, &frame);
    let names = graph.output.iter().map(|output| output.name.as_str());
    verdict::of_outputs(results.iter().zip(names).map(|(value, name)| {
        let why = "gives an output whose number of rows is not known before a request";
        verdict::of_output(value, name, Stop::Unknown(why.to_owned()).at(name, "output"))
    }))
}
