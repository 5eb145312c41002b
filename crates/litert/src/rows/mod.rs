//! Whether the rows of a function depend on each other: its subgraph is run on what is known of its tensors
//! (`tensorserve-rows`). `table` says what each operator does.

// Functions name the values that they can follow, and refuse all others.
#![allow(clippy::wildcard_enum_match_arm)]

use std::cell::Cell;

use tensorserve_codec::flatbuffer::{FlatFile, Table};
use tensorserve_rows::{MAX_ELEMENTS, Size, Stop, Symbols, Value, unknown, verdict};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{RowDependence, TensorSpec};

use self::call::{LiteRtCall, SubgraphInterpreter};
use super::model::read_operators;
use super::schema::{self, buffer, model, operator, subgraph, tensor};

mod call;
mod ops;
mod table;
#[cfg(test)]
mod tests;

/// The most operators that are looked at, counted again in each call and iteration.
const MAX_STEPS: usize = 200_000;

/// The most calls inside of each other.
const MAX_DEPTH: usize = 32;

/// Whether each row of the outputs of a function, whose inputs and outputs are `inputs` and `outputs` in the order
/// of its subgraph, depends on the same row of its inputs alone.
///
/// # Errors
/// If the file is damaged.
pub(super) fn dependence(
    file: &[u8],
    function: usize,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
) -> Result<RowDependence> {
    if let Some(undeclared) = verdict::without_rows(inputs, outputs) {
        return Ok(undeclared);
    }
    let file = FlatFile::new(file);
    let graph = ModelGraphs::read(&Table::root(&file)?)?;
    let mut arguments = Vec::with_capacity(inputs.len());
    for spec in inputs {
        match Value::input(spec, &graph.symbols) {
            Ok(value) => arguments.push(value),
            Err(stop) => return Ok(stop.at(&spec.tensor_name, "input")),
        }
    }
    let results = match graph.call(function, &arguments) {
        Ok(results) => results,
        Err(stop) => return Ok(stop.at("", "subgraph")),
    };
    let outputs = results.iter().zip(outputs).map(|(value, spec)| {
        let without_rank = Stop::Unknown("has a rank that is not known".to_owned());
        let name = &spec.tensor_name;
        verdict::of_output(value, name, without_rank.at(name, "output"))
    });
    Ok(verdict::of_outputs(outputs))
}

/// The graphs of a file.
struct ModelGraphs<'a> {
    codes: Vec<i32>,
    buffers: Vec<Table<'a>>,
    subgraphs: Vec<Subgraph<'a>>,
    symbols: Symbols,
    steps: Cell<usize>,
    depth: Cell<usize>,
}

struct Subgraph<'a> {
    tensors: Vec<Table<'a>>,
    operators: Vec<Table<'a>>,
    inputs: Vec<i32>,
    outputs: Vec<i32>,
}

impl<'a> ModelGraphs<'a> {
    fn read(root: &Table<'a>) -> Result<Self> {
        let mut subgraphs = Vec::new();
        for table in root.vector(model::SUBGRAPHS)?.tables()? {
            subgraphs.push(Subgraph {
                tensors: table.vector(subgraph::TENSORS)?.tables()?,
                operators: table.vector(subgraph::OPERATORS)?.tables()?,
                inputs: table.ints(subgraph::INPUTS)?,
                outputs: table.ints(subgraph::OUTPUTS)?,
            });
        }
        Ok(ModelGraphs {
            codes: read_operators(root)?,
            buffers: root.vector(model::BUFFERS)?.tables()?,
            subgraphs,
            symbols: Symbols::default(),
            steps: Cell::new(0),
            depth: Cell::new(0),
        })
    }

    /// The constants of a subgraph by the numbers of its tensors.
    fn constants(&self, subgraph: &Subgraph<'a>) -> Vec<Option<Value>> {
        subgraph.tensors.iter().map(|table| self.constant(table).ok().flatten()).collect()
    }

    fn constant(&self, table: &Table<'a>) -> Result<Option<Value>> {
        let index = usize::try_from(table.uint(tensor::BUFFER)?).unwrap_or(usize::MAX);
        let Some(buffer) = self.buffers.get(index) else { return Ok(None) };
        let data = buffer.vector(buffer::DATA)?;
        if data.is_empty() {
            return Ok(None);
        }
        let sizes: Vec<i64> = table.ints(tensor::SHAPE)?.into_iter().map(i64::from).collect();
        let value = Value::constant_of(&sizes, &self.symbols);
        let element = table.byte(tensor::TYPE, 0)?;
        let width = match element {
            schema::INT32 => 4,
            schema::INT64 => 8,
            schema::BOOL => 1,
            _ => return Ok(Some(value)),
        };
        let count: i64 = sizes.iter().product();
        if usize::try_from(count) != Ok(data.len() / width) || data.len() / width > MAX_ELEMENTS {
            return Ok(Some(value));
        }
        let numbers: Vec<i64> = match element {
            schema::INT32 => buffer.packed(buffer::DATA, |it| i32::from_le_bytes(it).into())?,
            schema::INT64 => buffer.packed(buffer::DATA, i64::from_le_bytes)?,
            _ => buffer.packed(buffer::DATA, |[byte]: [u8; 1]| byte.into())?,
        };
        let elements = numbers.into_iter().map(Size::number).collect();
        Ok(Some(Value::of_elements(elements, value.dims.unwrap_or_default())))
    }

    /// Looks at one operator.
    fn step(&self, subgraph: &Subgraph<'a>, values: &mut [Option<Value>], table: &Table<'a>) {
        let outputs = table.ints(operator::OUTPUTS).unwrap_or_default();
        let first = outputs.first().and_then(|index| usize::try_from(*index).ok());
        let tensor = first.and_then(|index| subgraph.tensors.get(index));
        let node = tensor.and_then(|table| table.text(tensor::NAME).ok()).unwrap_or_default();
        let results = self.results(values, table, outputs.len(), &node);
        for (place, index) in outputs.iter().enumerate() {
            let slot = usize::try_from(*index).ok().and_then(|index| values.get_mut(index));
            let result = match results.as_slice() {
                [only] if only.is_lost() => Some(only.clone()),
                all => all.get(place).cloned(),
            };
            if let Some(slot) = slot {
                *slot = result;
            }
        }
    }

    fn results(
        &self,
        values: &[Option<Value>],
        table: &Table<'a>,
        outputs: usize,
        node: &str,
    ) -> Vec<Value> {
        let code = table.uint(operator::CODE).ok().and_then(|code| self.codes.get(code as usize));
        let code = code.copied().unwrap_or(-1);
        let mut inputs = Vec::new();
        for index in table.ints(operator::INPUTS).unwrap_or_default() {
            let value =
                usize::try_from(index).ok().map(|index| values.get(index).cloned().flatten());
            if value == Some(None) {
                let why = "takes a tensor that no operator gives".to_owned();
                return vec![Stop::Unknown(why).value_at(node, &table::name(code))];
            }
            inputs.push(value.flatten());
        }
        if let Some(lost) = verdict::lost(inputs.iter().flatten()).filter(|_| !table::is_call(code))
        {
            return vec![lost.clone()];
        }
        let options = table.table(operator::OPTIONS).ok().flatten();
        let call = LiteRtCall { code, inputs, outputs, options, interpreter: self };
        let result = table::apply(&call);
        result.unwrap_or_else(|stop| vec![stop.value_at(node, &table::name(code))])
    }
}

impl SubgraphInterpreter for ModelGraphs<'_> {
    fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    fn call(&self, subgraph: usize, arguments: &[Value]) -> Result<Vec<Value>, Stop> {
        let Some(subgraph) = self.subgraphs.get(subgraph) else {
            return unknown("runs a subgraph that does not exist");
        };
        if self.depth.get() >= MAX_DEPTH {
            return unknown("runs subgraphs too deep inside of each other");
        }
        if subgraph.inputs.len() != arguments.len() {
            return unknown("runs a subgraph with another number of inputs");
        }
        let mut values = self.constants(subgraph);
        for (index, argument) in subgraph.inputs.iter().zip(arguments) {
            let slot = usize::try_from(*index).ok().and_then(|index| values.get_mut(index));
            if let Some(slot) = slot {
                *slot = Some(argument.clone());
            }
        }
        self.depth.set(self.depth.get() + 1);
        for table in &subgraph.operators {
            self.steps.set(self.steps.get() + 1);
            if self.steps.get() > MAX_STEPS {
                return unknown("has more operators than are analyzed");
            }
            self.step(subgraph, &mut values, table);
        }
        self.depth.set(self.depth.get() - 1);
        let result = |index: &i32| {
            let value = usize::try_from(*index).ok().and_then(|index| values.get(index)?.clone());
            value.map_or_else(|| unknown("has an output that no operator gives"), Ok)
        };
        subgraph.outputs.iter().map(result).collect()
    }
}
