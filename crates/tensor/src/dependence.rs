//! Whether the rows of a batch depend on each other: what decides whether requests may be joined.

use std::fmt;

/// Whether each row of a signature's outputs depends on the same row of its inputs alone. Only then a
/// request that is joined with others in a batch gets the outputs that it gets alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowDependence {
    /// Each row does: an evaluator of our own computes one row after the other.
    ByConstruction,
    /// Each row does: the analysis of the graph has proven it.
    Proven,
    /// Some row does not: an operation mixes rows, or its result depends on their number.
    Mixed(RowFinding),
    /// Unknown: the analysis has no rule for an operation, or for how it is used.
    Unknown(RowFinding),
    /// Unknown: the model has no graph that can be read.
    NoGraph,
}

/// The operation at which an analysis of rows ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFinding {
    /// The node's name in the graph; inside of a function, the names of the calls before it.
    pub node: String,
    /// The kind of operation.
    pub op: String,
    /// What it does to the rows, as a predicate: `adds up the rows`.
    pub why: String,
}

impl RowDependence {
    /// Whether requests may be joined because of it.
    #[must_use]
    pub fn is_independent(&self) -> bool {
        matches!(self, RowDependence::ByConstruction | RowDependence::Proven)
    }
}

impl fmt::Display for RowDependence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowDependence::ByConstruction => f.write_str("independent, by construction"),
            RowDependence::Proven => f.write_str("independent, proven from the graph"),
            RowDependence::Mixed(finding) => write!(f, "mixed: {finding}"),
            RowDependence::Unknown(finding) => write!(f, "unknown: {finding}"),
            RowDependence::NoGraph => {
                f.write_str("unknown: the model has no graph that can be read")
            }
        }
    }
}

impl fmt::Display for RowFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {:?} ({}) {}", self.node, self.op, self.why)
    }
}
