//! What an analysis says of a graph: whether its outputs have the rows of its inputs, or where it ends.

use std::rc::Rc;

use tensorserve_tensor::{RowDependence, RowFinding, TensorSpec};

use crate::size::Size;
use crate::value::{Flow, Stop, Value};

impl Stop {
    /// What is said of a graph whose analysis ends at the operation `op` of `node`.
    #[must_use]
    pub fn at(self, node: &str, op: &str) -> RowDependence {
        let finding = |why| RowFinding { node: node.to_owned(), op: op.to_owned(), why };
        match self {
            Stop::Mixed(why) => RowDependence::Mixed(finding(why)),
            Stop::Unknown(why) => RowDependence::Unknown(finding(why)),
        }
    }

    /// The tensor of which nothing is known because of the operation `op` of `node`.
    #[must_use]
    pub fn value_at(self, node: &str, op: &str) -> Value {
        let finding = |why| Rc::new(RowFinding { node: node.to_owned(), op: op.to_owned(), why });
        let flow = match self {
            Stop::Mixed(why) => Flow::Mixed(finding(why)),
            Stop::Unknown(why) => Flow::Unknown(finding(why)),
        };
        Value::new(flow, None)
    }
}

/// The first value of which nothing is known; one that mixes rows before others.
pub fn lost<'v>(values: impl Iterator<Item = &'v Value> + Clone) -> Option<&'v Value> {
    let mut mixed = values.clone().filter(|value| matches!(value.flow, Flow::Mixed(_)));
    mixed.next().or_else(|| values.into_iter().find(|value| value.is_lost()))
}

/// What is said of the first input or output that declares no dimension for rows: requests with it cannot be
/// joined.
#[must_use]
pub fn without_rows(inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Option<RowDependence> {
    let inputs = inputs.iter().map(|spec| ("input", spec));
    let mut all = inputs.chain(outputs.iter().map(|spec| ("output", spec)));
    let (kind, spec) = all.find(|(_, spec)| !spec.shape.is_batched())?;
    let why = format!("is the {kind} {:?}, which declares no dimension for rows", spec.alias);
    Some(Stop::Mixed(why).at(&spec.tensor_name, kind))
}

/// What the value of the output `name` says. One of rows whose rank is not known says `without_rank`.
#[must_use]
pub fn of_output(value: &Value, name: &str, without_rank: RowDependence) -> RowDependence {
    match (&value.flow, value.dims.as_deref()) {
        (Flow::Rows { axis: 0 }, Some([size, ..])) if *size == Size::rows() => {
            RowDependence::Proven
        }
        (Flow::Rows { axis: 0 }, None) => without_rank,
        (Flow::Mixed(finding), _) => RowDependence::Mixed(RowFinding::clone(finding)),
        (Flow::Unknown(finding), _) => RowDependence::Unknown(RowFinding::clone(finding)),
        _ => {
            let why = "gives an output that does not have a row for each row of the inputs";
            Stop::Mixed(why.to_owned()).at(name, "output")
        }
    }
}

/// What all outputs say together: the first that mixes rows, else the first that is not proven.
pub fn of_outputs(outputs: impl Iterator<Item = RowDependence>) -> RowDependence {
    let mut found = RowDependence::Proven;
    for output in outputs {
        match output {
            RowDependence::Mixed(_) => return output,
            other if found == RowDependence::Proven => found = other,
            _ => {}
        }
    }
    found
}
