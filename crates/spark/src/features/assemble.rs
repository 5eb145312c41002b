//! `VectorAssembler` and `Interaction`: columns become a vector. `VectorSizeHint` says how long one is.

use super::super::folder::{Invalid, StageFolder};
use super::super::schema::{ColumnKind, Schema, Wanted};
use super::super::stage::{PipelineStage, Rejected, reject};
use super::super::table::{
    SparkColumn, SparkTable, SparseVectorRows, VectorRow, VectorRows, Vectors,
};
use super::super::{MAX_WIDTH, damaged, index_of, unsupported};
use tensorserve_tensor::error::Result;

struct Assembler {
    parts: Vec<AssembledPart>,
    output: usize,
    width: usize,
    invalid: Invalid,
}

struct AssembledPart {
    name: String,
    input: usize,
    /// Where its elements are in the vector.
    offset: usize,
    width: usize,
}

pub(in super::super) fn assembler(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let names = folder.texts("inputCols")?.ok_or_else(|| damaged("it has no inputCols"))?;
    let (mut parts, mut offset) = (Vec::new(), 0usize);
    for name in names {
        let input = schema.read(name, Wanted::NumberOrVector)?;
        let width = match schema.kind(input) {
            Some(ColumnKind::Vector(_)) => schema.known_size(input)?,
            _ => 1,
        };
        parts.push(AssembledPart { name: name.to_owned(), input, offset, width });
        offset = offset.saturating_add(width);
        check_width(offset)?;
    }
    let output = schema.make_vector(folder.column("outputCol")?, offset)?;
    Ok(Box::new(Assembler { parts, output, width: offset, invalid: folder.invalid()? }))
}

fn check_width(width: usize) -> Result<()> {
    match width <= MAX_WIDTH {
        true => Ok(()),
        false => Err(unsupported(format!("a vector of more than {MAX_WIDTH} elements"))),
    }
}

impl Assembler {
    fn is_sparse(&self, table: &SparkTable<'_>) -> bool {
        self.parts.iter().any(|part| {
            let column = table.column(part.input);
            matches!(column, Ok(SparkColumn::Vectors(Vectors { rows: VectorRows::Sparse(_), .. })))
        })
    }

    fn dense(&self, table: &SparkTable<'_>) -> Result<Vectors<'static>> {
        let mut values = vec![0.0; self.width * table.rows];
        let width = self.width.max(1);
        for part in &self.parts {
            match table.column(part.input)? {
                SparkColumn::Numbers(numbers) => {
                    for (row, number) in values.chunks_exact_mut(width).zip(numbers.iter()) {
                        if let Some(element) = row.get_mut(part.offset) {
                            *element = *number;
                        }
                    }
                }
                SparkColumn::Vectors(vectors) => {
                    let range = part.offset..part.offset + part.width;
                    for (at, row) in values.chunks_exact_mut(width).enumerate() {
                        if let (VectorRow::Dense(from), Some(to)) =
                            (vectors.row(at), row.get_mut(range.clone()))
                            && from.len() == to.len()
                        {
                            to.copy_from_slice(from);
                        }
                    }
                }
                SparkColumn::Texts(_) | SparkColumn::Words(_) => {}
            }
        }
        Ok(Vectors::dense(self.width, values))
    }

    fn sparse(&self, table: &SparkTable<'_>) -> Result<Vectors<'static>> {
        let mut rows = SparseVectorRows::default();
        let columns: Vec<&SparkColumn<'_>> =
            self.parts.iter().map(|part| table.column(part.input)).collect::<Result<_>>()?;
        for row in 0..table.rows {
            for (part, column) in self.parts.iter().zip(&columns) {
                let mut push = |at: usize, value: f64| {
                    if value != 0.0 {
                        let at = u32::try_from(part.offset + at).unwrap_or(u32::MAX);
                        rows.entries.push((at, value));
                    }
                };
                match column {
                    SparkColumn::Numbers(numbers) => {
                        push(0, numbers.get(row).copied().unwrap_or(0.0))
                    }
                    SparkColumn::Vectors(vectors) => match vectors.row(row) {
                        VectorRow::Dense(values) => {
                            values.iter().enumerate().for_each(|(at, value)| push(at, *value));
                        }
                        VectorRow::Sparse(entries) => {
                            entries.iter().for_each(|(at, value)| push(*at as usize, *value));
                        }
                    },
                    SparkColumn::Texts(_) | SparkColumn::Words(_) => {}
                }
            }
            rows.ends.push(rows.entries.len());
        }
        Ok(Vectors::sparse(self.width, rows))
    }
}

impl PipelineStage for Assembler {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        if self.invalid != Invalid::Keep {
            for part in &self.parts {
                let SparkColumn::Numbers(numbers) = table.column(part.input)? else { continue };
                let missing = numbers.iter().enumerate().filter(|(_, number)| number.is_nan());
                let rejected: Rejected =
                    missing.map(|(row, _)| (row, "is missing or NaN".to_owned())).collect();
                reject(table, self.invalid, &part.name, rejected)?;
            }
        }
        let vectors = match self.is_sparse(table) {
            true => self.sparse(table)?,
            false => self.dense(table)?,
        };
        table.put(self.output, SparkColumn::Vectors(vectors));
        Ok(())
    }
}

/// A stage that changes nothing.
struct Nothing;

impl PipelineStage for Nothing {
    fn run(&self, _: &mut SparkTable<'_>) -> Result<()> {
        Ok(())
    }
}

/// A stage that changes no values: the names of elements, or which columns are kept.
pub(in super::super) fn unchanged(
    _: &StageFolder,
    _: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    Ok(Box::new(Nothing))
}

/// `VectorSizeHint`: says the size of an input.
pub(in super::super) fn size_hint(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let size = folder.size("size", 0)?;
    schema.read(folder.column("inputCol")?, Wanted::Vector(Some(size)))?;
    Ok(Box::new(Nothing))
}

/// `Interaction`: all products of one element of each column. The indices of categories become a vector
/// first, with a 1 for the category.
struct Interaction {
    inputs: Vec<InteractionInput>,
    output: usize,
    width: usize,
}

struct InteractionInput {
    name: String,
    column: usize,
    /// The number of categories, if the column has their indices and there are several.
    categories: Option<usize>,
}

pub(in super::super) fn interaction(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let names = folder.texts("inputCols")?.ok_or_else(|| damaged("it has no inputCols"))?;
    let (mut inputs, mut width) = (Vec::new(), 1usize);
    for name in names {
        let column = schema.read(name, Wanted::NumberOrVector)?;
        let categories = schema.categories(column).filter(|count| *count > 1);
        width = width.saturating_mul(match schema.kind(column) {
            Some(ColumnKind::Vector(_)) => schema.known_size(column)?,
            _ => categories.unwrap_or(1),
        });
        check_width(width)?;
        inputs.push(InteractionInput { name: name.to_owned(), column, categories });
    }
    let output = schema.make_vector(folder.column("outputCol")?, width)?;
    Ok(Box::new(Interaction { inputs, output, width }))
}

impl InteractionInput {
    /// The elements of row `row`.
    fn elements(&self, table: &SparkTable<'_>, row: usize) -> Result<Vec<f64>> {
        match (table.column(self.column)?, self.categories) {
            (SparkColumn::Numbers(numbers), None) => {
                Ok(vec![numbers.get(row).copied().unwrap_or(f64::NAN)])
            }
            (SparkColumn::Numbers(numbers), Some(categories)) => {
                let index = numbers.get(row).copied().unwrap_or(f64::NAN);
                let mut elements = vec![0.0; categories];
                let element = elements.get_mut(index_of(index));
                match element.filter(|_| index.fract() == 0.0) {
                    Some(element) => *element = 1.0,
                    None if table.is_skipped(row) => {}
                    None => {
                        let reason = format!("has the unseen category {index}");
                        return Err(table.refusal(row, &self.name, &reason));
                    }
                }
                Ok(elements)
            }
            (SparkColumn::Vectors(vectors), _) => {
                let mut elements = vec![0.0; vectors.width];
                match vectors.row(row) {
                    VectorRow::Dense(values) => elements = values.to_vec(),
                    VectorRow::Sparse(entries) => {
                        for (at, value) in entries {
                            if let Some(element) = elements.get_mut(*at as usize) {
                                *element = *value;
                            }
                        }
                    }
                }
                Ok(elements)
            }
            _ => Ok(Vec::new()),
        }
    }
}

impl PipelineStage for Interaction {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let mut all = Vec::with_capacity(self.width.saturating_mul(table.rows));
        for row in 0..table.rows {
            let mut products = vec![1.0];
            // The elements of the last column are the outermost, as in Spark.
            for input in self.inputs.iter().rev() {
                let elements = input.elements(table, row)?;
                let mut next = Vec::with_capacity(products.len() * elements.len());
                let is_number = elements.len() == 1;
                for element in elements {
                    // Spark leaves out the elements of vectors that are 0: they make no NaN of others.
                    let is_left_out = element == 0.0 && !is_number;
                    let product = |product: &f64| if is_left_out { 0.0 } else { product * element };
                    next.extend(products.iter().map(product));
                }
                products = next;
            }
            all.extend(products);
        }
        table.put(self.output, SparkColumn::Vectors(Vectors::dense(self.width, all)));
        Ok(())
    }
}
