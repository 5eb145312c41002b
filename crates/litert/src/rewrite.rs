//! Makes a model's outputs readable.
//!
//! LiteRT's C API fills the caller's buffer for an output only if the size of the output is known before the
//! run. Where it is known during the run only, as for the rows that `tf.where` selects, or a shape that the
//! model computes, the buffer stays as it was, without an error. Strings are the exception: their tensors
//! are copied after the run. And `RESHAPE` copies the bytes of any tensor into one of strings. So each output of a
//! function is replaced by two tensors of strings: one with the bytes of its shape (`SHAPE`, as 32-bit
//! integers), one with its own.
//!
//! What is new is written before the file's bytes, which stay as they are: offsets in FlatBuffers point
//! forward, so that new tables can refer to old ones.

use std::cell::Cell;

use super::model::{ModelFunction, TfliteModel};
use super::schema::{
    self, model, operator, operator_code, signature, subgraph, tensor, tensor_map,
};
use tensorserve_codec::flatbuffer::{FlatFile, Table};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{AlignedVec, aligned_vec};

/// How many outputs of the new model there are for each output of the old one: its shape and its content.
pub(super) const PARTS: usize = 2;

/// The new tensors for each output: its shape, and the two outputs.
const NEW_TENSORS: usize = 3;

/// The library holds pointers to a function's outputs during a run, into an array that moves when operators add
/// more tensors than it has room for. It has room for this many, or, if the subgraph has more, for twice as many
/// as that has. Unused tensors make that enough.
const LEAST_ROOM: usize = 128;

/// More than an operator adds, and than the library wants to be free.
const ROOM_OF_OPERATOR: usize = 16;

/// The number of unused tensors for a subgraph of `tensors` tensors and `operators` operators.
fn unused_tensors(tensors: usize, operators: usize) -> usize {
    let needed = operators.saturating_add(1).saturating_mul(ROOM_OF_OPERATOR);
    if tensors.saturating_add(needed) <= LEAST_ROOM {
        return 0;
    }
    let at_least = (2 * LEAST_ROOM + 1).saturating_sub(tensors);
    needed.saturating_sub(tensors).max(at_least)
}

/// The new operators, by their numbers.
const NEW_OPERATORS: [i32; 2] = [schema::SHAPE, schema::RESHAPE];

/// Alignment of the file's bytes, so that its data keeps its own.
const ALIGNMENT: usize = 64;

/// The size of an offset, of a length and of an index.
const WORD: usize = 4;

/// The model as LiteRT gets it: its signatures are the functions of `model` in order, with inputs in the
/// order of the subgraph, and [`PARTS`] outputs for each output.
pub(super) fn rewrite(bytes: &[u8], model: &TfliteModel) -> Result<AlignedVec<u8>> {
    let file = FlatFile::new(bytes);
    let root = Table::root(&file)?;
    let mut writer = Writer::new();
    let old_codes = positions(&root, model::OPERATOR_CODES)?;
    let old_subgraphs = root.vector(model::SUBGRAPHS)?.tables()?;
    let mut fields = vec![
        (model::VERSION, TableField::Word(3)),
        (model::OPERATOR_CODES, TableField::Offset),
        (model::SUBGRAPHS, TableField::Offset),
        (model::BUFFERS, TableField::Offset),
        (model::SIGNATURES, TableField::Offset),
    ];
    if root.has(model::METADATA) {
        fields.push((model::METADATA, TableField::Offset));
    }
    let offsets = writer.table(&fields);
    writer.point_root(offsets.table);
    writer.point_old(offsets.of(model::BUFFERS)?, root.vector(model::BUFFERS)?.position());
    if root.has(model::METADATA) {
        writer.point_old(offsets.of(model::METADATA)?, root.vector(model::METADATA)?.position());
    }
    writer.operator_codes(offsets.of(model::OPERATOR_CODES)?, &old_codes)?;
    let subgraphs = SubgraphMap::plan(model, old_subgraphs.len());
    writer.subgraphs(offsets.of(model::SUBGRAPHS)?, &old_subgraphs, &subgraphs, old_codes.len())?;
    writer.signatures(offsets.of(model::SIGNATURES)?, model, &subgraphs)?;
    writer.finish(bytes)
}

/// An index or a length as FlatBuffers has it. It fits: files are smaller than 2 GiB.
fn word(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// The outputs of a function in the new file: [`PARTS`] for each of its own.
fn outputs(function: &ModelFunction) -> Vec<u32> {
    let first = |port: usize| function.tensors + port * NEW_TENSORS + 1;
    let ports = 0..function.outputs.len();
    ports.flat_map(|port| [word(first(port)), word(first(port) + 1)]).collect()
}

/// The positions of the tables of a vector.
fn positions(table: &Table, field: usize) -> Result<Vec<usize>> {
    Ok(table.vector(field)?.tables()?.iter().map(Table::position).collect())
}

/// Which subgraph is what function.
struct SubgraphMap<'a> {
    /// For each subgraph of the new file: the old one, and the function that it becomes.
    new: Vec<(usize, Option<&'a ModelFunction>)>,
    /// The subgraph of each function.
    of: Vec<usize>,
}

impl<'a> SubgraphMap<'a> {
    /// A subgraph becomes its function. One that others may run, or that is several functions, stays, and
    /// is copied.
    fn plan(model: &'a TfliteModel, count: usize) -> Self {
        let mut new: Vec<(usize, Option<&ModelFunction>)> =
            (0..count).map(|old| (old, None)).collect();
        let mut of = Vec::new();
        for function in &model.functions {
            let old = function.subgraph;
            match new.get_mut(old) {
                Some((_, taken @ None)) if !model.shared.contains(&old) => {
                    *taken = Some(function);
                    of.push(old);
                }
                _ => {
                    of.push(new.len());
                    new.push((old, Some(function)));
                }
            }
        }
        SubgraphMap { new, of }
    }
}

/// A field of a new table.
#[derive(Clone, Copy)]
enum TableField {
    Byte(u8),
    Word(u32),
    /// An offset, which is set later.
    Offset,
}

/// Where a new table is, and where its offsets are, by field.
struct Offsets {
    table: usize,
    fields: Vec<(usize, usize)>,
}

impl Offsets {
    fn of(&self, field: usize) -> Result<usize> {
        let found = self.fields.iter().find(|(its, _)| *its == field);
        found.map(|(_, at)| *at).ok_or_else(|| Error::internal("a table has no such offset"))
    }
}

/// Writes the new beginning of a file. What a table refers to is written after it.
struct Writer {
    bytes: Vec<u8>,
    /// Where offsets into the old file are, with the position there.
    old: Vec<(usize, usize)>,
}

impl Writer {
    fn new() -> Self {
        let mut bytes = vec![0; WORD];
        bytes.extend_from_slice(schema::IDENTIFIER);
        Writer { bytes, old: Vec::new() }
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(WORD), 0);
    }

    fn word(&mut self, value: usize) {
        self.bytes.extend_from_slice(&word(value).to_le_bytes());
    }

    fn set(&mut self, at: usize, value: u32) {
        if let Some(place) = self.bytes.get_mut(at..at + WORD) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Lets the offset at `at` point to `target`, which is behind it.
    fn point(&mut self, at: usize, target: usize) {
        self.set(at, word(target.saturating_sub(at)));
    }

    fn point_root(&mut self, target: usize) {
        self.point(0, target);
    }

    /// Lets the offset at `at` point to the position `target` of the old file.
    fn point_old(&mut self, at: usize, target: usize) {
        self.old.push((at, target));
    }

    /// Lets the offset at `at` point to what is written next.
    fn point_here(&mut self, at: usize) {
        self.align();
        self.point(at, self.bytes.len());
    }

    /// Writes a table of these fields, each of which takes a word.
    fn table(&mut self, fields: &[(usize, TableField)]) -> Offsets {
        self.align();
        let count = fields.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
        let vtable = self.bytes.len();
        let size = WORD + 2 * count;
        let length = WORD * (fields.len() + 1);
        let mut places = vec![0_u16; count];
        for (index, (number, _)) in fields.iter().enumerate() {
            if let Some(place) = places.get_mut(*number) {
                *place = u16::try_from(WORD * (index + 1)).unwrap_or(u16::MAX);
            }
        }
        for half in [size, length].map(|it| u16::try_from(it).unwrap_or(u16::MAX)) {
            self.bytes.extend_from_slice(&half.to_le_bytes());
        }
        places.iter().for_each(|place| self.bytes.extend_from_slice(&place.to_le_bytes()));
        self.align();
        let table = self.bytes.len();
        self.word(table - vtable);
        let mut offsets = Offsets { table, fields: Vec::new() };
        for (number, field) in fields {
            match field {
                TableField::Byte(value) => self.bytes.extend_from_slice(&[*value, 0, 0, 0]),
                TableField::Word(value) => self.bytes.extend_from_slice(&value.to_le_bytes()),
                TableField::Offset => {
                    offsets.fields.push((*number, self.bytes.len()));
                    self.word(0);
                }
            }
        }
        offsets
    }

    /// Writes a vector of `count` offsets, which are set later; returns where they are.
    fn vector(&mut self, at: usize, count: usize) -> Vec<usize> {
        self.point_here(at);
        self.word(count);
        let first = self.bytes.len();
        self.bytes.resize(first + count * WORD, 0);
        (0..count).map(|index| first + index * WORD).collect()
    }

    /// Writes a table that the offset at `at` points to.
    fn table_at(&mut self, at: usize, fields: &[(usize, TableField)]) -> Offsets {
        let offsets = self.table(fields);
        self.point(at, offsets.table);
        offsets
    }

    fn ints(&mut self, at: usize, values: &[u32]) {
        self.point_here(at);
        self.word(values.len());
        values.iter().for_each(|value| self.bytes.extend_from_slice(&value.to_le_bytes()));
    }

    fn text(&mut self, at: usize, text: &str) {
        self.point_here(at);
        self.word(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
    }

    /// The old operator codes and the new ones.
    fn operator_codes(&mut self, at: usize, old: &[usize]) -> Result<()> {
        self.extended(at, old, NEW_OPERATORS.len(), |writer, place, index| {
            let code = NEW_OPERATORS.get(index).copied().unwrap_or_default().unsigned_abs();
            let fields = [
                (operator_code::OLD_BUILTIN, TableField::Byte(code.to_le_bytes()[0])),
                (operator_code::VERSION, TableField::Word(1)),
                (operator_code::BUILTIN, TableField::Word(code)),
            ];
            writer.table_at(place, &fields);
            Ok(())
        })
    }

    fn subgraphs(
        &mut self,
        at: usize,
        old: &[Table],
        plan: &SubgraphMap,
        code: usize,
    ) -> Result<()> {
        let places = self.vector(at, plan.new.len());
        for (place, (index, function)) in places.into_iter().zip(&plan.new) {
            let table =
                old.get(*index).ok_or_else(|| Error::internal("there is no such subgraph"))?;
            match function {
                None => self.point_old(place, table.position()),
                Some(function) => self.subgraph(place, table, function, code)?,
            }
        }
        Ok(())
    }

    /// The subgraph `old` with other outputs. `code` is the first of the new operators.
    fn subgraph(
        &mut self,
        at: usize,
        old: &Table,
        function: &ModelFunction,
        code: usize,
    ) -> Result<()> {
        let mut fields = vec![
            (subgraph::TENSORS, TableField::Offset),
            (subgraph::INPUTS, TableField::Offset),
            (subgraph::OUTPUTS, TableField::Offset),
            (subgraph::OPERATORS, TableField::Offset),
        ];
        if old.has(subgraph::NAME) {
            fields.push((subgraph::NAME, TableField::Offset));
        }
        let offsets = self.table_at(at, &fields);
        if old.has(subgraph::NAME) {
            let name = old.vector(subgraph::NAME)?.position();
            self.point_old(offsets.of(subgraph::NAME)?, name);
        }
        self.point_old(offsets.of(subgraph::INPUTS)?, old.vector(subgraph::INPUTS)?.position());
        self.ints(offsets.of(subgraph::OUTPUTS)?, &outputs(function));
        let (ports, tensors) = (function.outputs.len(), positions(old, subgraph::TENSORS)?);
        let operators = positions(old, subgraph::OPERATORS)?;
        let at = offsets.of(subgraph::TENSORS)?;
        let added = ports * NEW_TENSORS;
        let room = unused_tensors(tensors.len() + added, operators.len() + added);
        let unused = Cell::new(None);
        self.extended(at, &tensors, added + room, |writer, place, index| {
            let is_shape = index % NEW_TENSORS == 0;
            let element = if is_shape { schema::INT32 } else { schema::STRING };
            let fields =
                [(tensor::SHAPE, TableField::Offset), (tensor::TYPE, TableField::Byte(element))];
            if let Some(table) = unused.get() {
                writer.point(place, table);
                return Ok(());
            }
            let offsets = writer.table_at(place, &fields);
            writer.ints(offsets.of(tensor::SHAPE)?, &[1]);
            // All unused tensors are the same table.
            unused.set((index >= added).then_some(offsets.table));
            Ok(())
        })?;
        let at = offsets.of(subgraph::OPERATORS)?;
        self.extended(at, &operators, ports * NEW_TENSORS, |writer, place, index| {
            let output = function.outputs.get(index / NEW_TENSORS).map_or(0, |port| port.tensor);
            let shape = function.tensors + index / NEW_TENSORS * NEW_TENSORS;
            match index % NEW_TENSORS {
                0 => writer.shape(place, code, output, shape),
                1 => writer.flatten(place, code + 1, shape, shape + 1),
                _ => writer.flatten(place, code + 1, output, shape + 2),
            }
        })
    }

    /// `SHAPE` of 32-bit integers.
    fn shape(&mut self, at: usize, code: usize, input: usize, output: usize) -> Result<()> {
        let options = self.operator(at, code, input, output, schema::SHAPE_OPTIONS)?;
        self.table_at(options, &[(schema::OUT_TYPE, TableField::Byte(schema::INT32))]);
        Ok(())
    }

    /// `RESHAPE` to a vector.
    fn flatten(&mut self, at: usize, code: usize, input: usize, output: usize) -> Result<()> {
        let options = self.operator(at, code, input, output, schema::RESHAPE_OPTIONS)?;
        let offsets = self.table_at(options, &[(schema::NEW_SHAPE, TableField::Offset)]);
        self.ints(offsets.of(schema::NEW_SHAPE)?, &[u32::MAX]);
        Ok(())
    }

    /// An operator of one input and one output; returns where the offset of its options is.
    fn operator(
        &mut self,
        at: usize,
        code: usize,
        input: usize,
        output: usize,
        options: u8,
    ) -> Result<usize> {
        let offsets = self.table_at(
            at,
            &[
                (operator::CODE, TableField::Word(word(code))),
                (operator::INPUTS, TableField::Offset),
                (operator::OUTPUTS, TableField::Offset),
                (operator::OPTIONS_TYPE, TableField::Byte(options)),
                (operator::OPTIONS, TableField::Offset),
            ],
        );
        self.ints(offsets.of(operator::INPUTS)?, &[word(input)]);
        self.ints(offsets.of(operator::OUTPUTS)?, &[word(output)]);
        offsets.of(operator::OPTIONS)
    }

    /// A vector of the old tables and of `count` new ones, which `new` writes.
    fn extended(
        &mut self,
        at: usize,
        old: &[usize],
        count: usize,
        new: impl Fn(&mut Self, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let places = self.vector(at, old.len() + count);
        let (places, added) = places.split_at(old.len());
        places.iter().zip(old).for_each(|(place, target)| self.point_old(*place, *target));
        added.iter().enumerate().try_for_each(|(index, place)| new(self, *place, index))
    }

    /// A signature for each function, whose names are numbers: those of the file may be missing.
    fn signatures(&mut self, at: usize, model: &TfliteModel, plan: &SubgraphMap) -> Result<()> {
        let places = self.vector(at, model.functions.len());
        let functions = model.functions.iter().zip(&plan.of).enumerate();
        for (place, (number, (function, subgraph))) in places.into_iter().zip(functions) {
            let offsets = self.table_at(
                place,
                &[
                    (signature::INPUTS, TableField::Offset),
                    (signature::OUTPUTS, TableField::Offset),
                    (signature::KEY, TableField::Offset),
                    (signature::SUBGRAPH, TableField::Word(word(*subgraph))),
                ],
            );
            self.text(offsets.of(signature::KEY)?, &number.to_string());
            let inputs: Vec<u32> = function.inputs.iter().map(|port| word(port.tensor)).collect();
            self.names(offsets.of(signature::INPUTS)?, &inputs)?;
            self.names(offsets.of(signature::OUTPUTS)?, &outputs(function))?;
        }
        Ok(())
    }

    /// Numbers as the names of tensors.
    fn names(&mut self, at: usize, tensors: &[u32]) -> Result<()> {
        let places = self.vector(at, tensors.len());
        for (number, (place, tensor)) in places.into_iter().zip(tensors).enumerate() {
            let fields = [
                (tensor_map::NAME, TableField::Offset),
                (tensor_map::TENSOR, TableField::Word(*tensor)),
            ];
            let offsets = self.table_at(place, &fields);
            self.text(offsets.of(tensor_map::NAME)?, &number.to_string());
        }
        Ok(())
    }

    /// The new bytes, and those of the old file.
    fn finish(mut self, file: &[u8]) -> Result<AlignedVec<u8>> {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        let length = self.bytes.len();
        for (at, target) in std::mem::take(&mut self.old) {
            self.point(at, length.saturating_add(target));
        }
        let total = length.saturating_add(file.len());
        if i32::try_from(total).is_err() {
            return Err(Error::oversized("the model has more than 2 GiB"));
        }
        let mut bytes = aligned_vec(total);
        bytes.extend_from_slice(&self.bytes);
        bytes.extend_from_slice(file);
        Ok(bytes)
    }
}
