//! One operator of a subgraph, with what is known of its inputs.

use tensorserve_codec::flatbuffer::Table;
use tensorserve_rows::{Stop, Symbols, Value, unknown};

/// What runs the subgraph that the operator is in.
pub(super) trait SubgraphInterpreter {
    fn symbols(&self) -> &Symbols;

    /// The results of another subgraph for these arguments.
    fn call(&self, subgraph: usize, arguments: &[Value]) -> Result<Vec<Value>, Stop>;
}

/// An operator that is looked at.
pub(super) struct LiteRtCall<'c, 'a> {
    /// The number of the operator.
    pub(super) code: i32,
    /// `None` for an input that is left out.
    pub(super) inputs: Vec<Option<Value>>,
    pub(super) outputs: usize,
    pub(super) options: Option<Table<'a>>,
    pub(super) interpreter: &'c dyn SubgraphInterpreter,
}

impl LiteRtCall<'_, '_> {
    pub(super) fn symbols(&self) -> &Symbols {
        self.interpreter.symbols()
    }

    /// Input `index`.
    pub(super) fn input(&self, index: usize) -> Result<&Value, Stop> {
        match self.inputs.get(index) {
            Some(Some(value)) => Ok(value),
            _ => unknown("has fewer inputs than expected"),
        }
    }

    /// All inputs that are there, from number `first` on.
    pub(super) fn from(&self, first: usize) -> Vec<&Value> {
        self.inputs.iter().skip(first).flatten().collect()
    }

    /// An `int` of the options; `default` if it is absent.
    pub(super) fn int(&self, field: usize, default: i32) -> Result<i64, Stop> {
        let Some(options) = &self.options else { return Ok(default.into()) };
        match options.int(field, default) {
            Ok(value) => Ok(value.into()),
            Err(error) => unknown(format!("has damaged options ({error})")),
        }
    }

    /// A `byte` or `bool` of the options; 0 if it is absent.
    pub(super) fn byte(&self, field: usize) -> Result<u8, Stop> {
        let Some(options) = &self.options else { return Ok(0) };
        options.byte(field, 0).or_else(|error| unknown(format!("has damaged options ({error})")))
    }

    /// Integers of the options.
    pub(super) fn ints(&self, field: usize) -> Result<Vec<i64>, Stop> {
        let Some(options) = &self.options else { return Ok(Vec::new()) };
        match options.ints(field) {
            Ok(values) => Ok(values.into_iter().map(i64::from).collect()),
            Err(error) => unknown(format!("has damaged options ({error})")),
        }
    }
}
