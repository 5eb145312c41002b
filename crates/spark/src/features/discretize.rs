//! The stages that change single numbers: `Bucketizer`, `Binarizer`, `ImputerModel`.

use std::borrow::Cow;

use super::super::folder::{Invalid, StageFolder};
use super::super::schema::{ColumnKind, Schema, Wanted};
use super::super::stage::{PipelineStage, reject};
use super::super::table::{SparkColumn, SparkTable, VectorRow, Vectors};
use super::super::{damaged, float};
use super::unequal;
use tensorserve_tensor::error::Result;

/// Several columns, each with its own parameters.
struct NumberStage<P> {
    columns: Vec<(String, usize, usize, P)>,
    invalid: Invalid,
}

/// Reads the columns of a stage of one or several columns.
fn columns_of<P>(
    folder: &StageFolder,
    schema: &mut Schema,
    parameters: Vec<P>,
) -> Result<Vec<(String, usize, usize, P)>> {
    let inputs = folder.columns("inputCol", "inputCols")?;
    let outputs = folder.columns("outputCol", "outputCols")?;
    if inputs.len() != outputs.len() || inputs.len() != parameters.len() {
        return Err(unequal(inputs.len(), outputs.len(), parameters.len(), "parameters"));
    }
    let mut columns = Vec::new();
    for ((name, output), parameter) in inputs.into_iter().zip(outputs).zip(parameters) {
        let input = schema.read(name, Wanted::Number)?;
        let output = schema.make(output, ColumnKind::Number)?;
        columns.push((name.to_owned(), input, output, parameter));
    }
    Ok(columns)
}

/// The borders of the buckets of a column.
struct Borders(Vec<f64>);

/// `Bucketizer`, which `QuantileDiscretizer` becomes, too.
pub(in super::super) fn bucketizer(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let borders = match (folder.number_lists("splitsArray")?, folder.numbers("splits")?) {
        (Some(lists), _) if !lists.is_empty() => lists,
        (_, Some(list)) => vec![list],
        _ => return Err(damaged("it has no splits")),
    };
    let is_valid = |list: &Vec<f64>| list.len() > 2 && list.is_sorted();
    if !borders.iter().all(is_valid) {
        return Err(damaged("its splits are not sorted"));
    }
    let invalid = folder.invalid()?;
    let counts: Vec<usize> = borders.iter().map(|list| list.len() - 1).collect();
    let columns = columns_of(folder, schema, borders.into_iter().map(Borders).collect())?;
    for ((_, _, output, _), count) in columns.iter().zip(counts) {
        // Spark does not count the bucket of missing numbers.
        schema.set_categories(*output, count, None);
    }
    Ok(Box::new(NumberStage { columns, invalid }))
}

impl Borders {
    /// The number of the bucket of a number that is not NaN.
    fn bucket(&self, number: f64) -> Option<usize> {
        let last = self.0.len().checked_sub(1)?;
        if self.0.get(last).copied() == Some(number) {
            return last.checked_sub(1);
        }
        // The order of Java, in which -0 is below 0.
        match self.0.binary_search_by(|border| border.total_cmp(&number)) {
            Ok(found) => Some(found),
            Err(0) => None,
            Err(above) if above > last => None,
            Err(above) => Some(above - 1),
        }
    }
}

impl PipelineStage for NumberStage<Borders> {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        for (name, input, output, borders) in &self.columns {
            let mut buckets = Vec::with_capacity(table.rows);
            let (mut missing, mut outside) = (Vec::new(), Vec::new());
            for (row, number) in table.numbers(*input)?.iter().enumerate() {
                let bucket = match number.is_nan() {
                    true => Some(borders.0.len() - 1),
                    false => borders.bucket(*number),
                };
                if number.is_nan() && self.invalid != Invalid::Keep {
                    missing.push((row, "is missing or NaN".to_owned()));
                }
                if bucket.is_none() {
                    outside.push((row, format!("has the value {number}, outside of the splits")));
                }
                buckets.push(float(bucket.unwrap_or(0)));
            }
            reject(table, self.invalid, name, missing)?;
            // Spark refuses these whatever `handleInvalid` says.
            reject(table, Invalid::Error, name, outside)?;
            table.put(*output, SparkColumn::Numbers(Cow::Owned(buckets)));
        }
        Ok(())
    }
}

/// What replaces missing numbers of a column, and which number is taken for a missing one.
struct Surrogate {
    missing: f64,
    surrogate: f64,
}

/// `ImputerModel`.
pub(in super::super) fn imputer(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let missing = folder.number("missingValue", f64::NAN)?;
    let data = folder.data()?;
    let mut surrogates = Vec::new();
    for name in folder.columns("inputCol", "inputCols")? {
        let surrogate = data.number(name);
        let surrogate =
            surrogate.ok_or_else(|| damaged(format!("it has no value for column {name:?}")))?;
        surrogates.push(Surrogate { missing, surrogate });
    }
    let columns = columns_of(folder, schema, surrogates)?;
    Ok(Box::new(NumberStage { columns, invalid: Invalid::Keep }))
}

impl PipelineStage for NumberStage<Surrogate> {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        for (_, input, output, Surrogate { missing, surrogate }) in &self.columns {
            // A missing number is NaN, and is replaced whatever the missing value is.
            let is_missing = |number: f64| number.is_nan() || number == *missing;
            let numbers = table.numbers(*input)?.iter();
            let filled =
                numbers.map(|number| if is_missing(*number) { *surrogate } else { *number });
            let filled = filled.collect();
            table.put(*output, SparkColumn::Numbers(Cow::Owned(filled)));
        }
        Ok(())
    }
}

/// `Binarizer` of vectors.
struct VectorBinarizer {
    input: usize,
    output: usize,
    threshold: f64,
}

/// What a number must be above to become 1.
struct BinarizerThreshold(f64);

pub(in super::super) fn binarizer(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let inputs = folder.columns("inputCol", "inputCols")?;
    let mut thresholds = folder.numbers("thresholds")?.unwrap_or_default();
    if thresholds.is_empty() {
        thresholds = vec![folder.number("threshold", 0.0)?; inputs.len()];
    }
    if let ([name], [threshold]) = (&inputs[..], &thresholds[..]) {
        let input = schema.read(name, Wanted::NumberOrVector)?;
        if let Some(ColumnKind::Vector(_)) = schema.kind(input) {
            let output = schema.make_like(folder.column("outputCol")?, input)?;
            return Ok(Box::new(VectorBinarizer { input, output, threshold: *threshold }));
        }
    }
    let thresholds = thresholds.into_iter().map(BinarizerThreshold).collect();
    let columns = columns_of(folder, schema, thresholds)?;
    Ok(Box::new(NumberStage { columns, invalid: Invalid::Keep }))
}

/// 1 for a number above the threshold, else 0.
fn above(number: f64, threshold: f64) -> f64 {
    f64::from(u8::from(number > threshold))
}

impl PipelineStage for NumberStage<BinarizerThreshold> {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        for (_, input, output, BinarizerThreshold(threshold)) in &self.columns {
            let numbers = table.numbers(*input)?.iter();
            let numbers = numbers.map(|number| above(*number, *threshold)).collect();
            table.put(*output, SparkColumn::Numbers(Cow::Owned(numbers)));
        }
        Ok(())
    }
}

impl PipelineStage for VectorBinarizer {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let vectors = table.vectors(self.input)?;
        let is_sparse = matches!(vectors.row(0), VectorRow::Sparse(_));
        let binary = match is_sparse && self.threshold < 0.0 {
            true => {
                let mut all = Vec::new();
                vectors.for_dense_rows(table.rows, |_, row| {
                    all.extend(row.iter().map(|value| above(*value, self.threshold)));
                    Ok(())
                })?;
                Vectors::dense(vectors.width, all)
            }
            false => vectors.mapped(|_, value| above(value, self.threshold)),
        };
        table.put(self.output, SparkColumn::Vectors(binary));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_on_a_border_is_in_the_bucket_above() {
        let borders = Borders(vec![-1.0, 0.0, 1.0]);
        let buckets: Vec<Option<usize>> =
            [-2.0, -1.0, -0.0, 0.0, 1.0, 1.5].iter().map(|x| borders.bucket(*x)).collect();
        assert_eq!(buckets, [None, Some(0), Some(0), Some(1), Some(1), None]);
    }
}
