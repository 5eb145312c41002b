//! The stages that scale the elements of a vector.
//!
//! Source: `org.apache.spark.ml.feature` of Spark 4.1.

use super::super::damaged;
use super::super::folder::StageFolder;
use super::super::schema::{Schema, Wanted};
use super::super::stage::PipelineStage;
use super::super::table::{SparkColumn, SparkTable, VectorRow, VectorRows, Vectors};
use super::super::vector::{read_vector, vector_of_json};
use tensorserve_tensor::error::Result;

/// Subtracts a shift, multiplies by a scale, and adds a constant.
struct Scaler {
    input: usize,
    output: usize,
    /// Empty for no shift.
    shift: Vec<f64>,
    scale: Vec<f64>,
    /// What a scaler of ranges adds, and the value of elements whose range is 0.
    range: Option<(f64, f64)>,
}

impl Scaler {
    fn new(folder: &StageFolder, schema: &mut Schema, scale: Vec<f64>) -> Result<Self> {
        let input = schema.read(folder.column("inputCol")?, Wanted::Vector(Some(scale.len())))?;
        let output = schema.make_like(folder.column("outputCol")?, input)?;
        Ok(Scaler { input, output, shift: Vec::new(), scale, range: None })
    }

    fn value(&self, at: usize, value: f64) -> f64 {
        let scale = self.scale.get(at).copied().unwrap_or(1.0);
        let shifted = value - self.shift.get(at).copied().unwrap_or(0.0);
        match self.range {
            None => shifted * scale,
            Some(_) if value.is_nan() => value,
            Some((_, constant)) if scale == 0.0 => constant,
            Some((least, _)) => shifted * scale + least,
        }
    }
}

impl PipelineStage for Scaler {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let vectors = table.vectors(self.input)?;
        let keeps_zeros = self.range.is_none() && self.shift.is_empty();
        let scaled = match (&vectors.rows, keeps_zeros) {
            (VectorRows::Dense(_), _) | (VectorRows::Sparse(_), true) => {
                vectors.mapped(|at, value| self.value(at, value))
            }
            (VectorRows::Sparse(_), false) => {
                let mut all = Vec::with_capacity(vectors.width * table.rows);
                vectors.for_dense_rows(table.rows, |_, row| {
                    all.extend(row.iter().enumerate().map(|(at, value)| self.value(at, *value)));
                    Ok(())
                })?;
                Vectors::dense(vectors.width, all)
            }
        };
        table.put(self.output, SparkColumn::Vectors(scaled));
        Ok(())
    }
}

/// 1 divided by each; 0 for 0.
fn inverses(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| if *value == 0.0 { 0.0 } else { 1.0 / value }).collect()
}

/// A scaler by the spread in the column `spread` and the middle in `middle`.
fn scaler_of(
    folder: &StageFolder,
    schema: &mut Schema,
    (spread, scales): (&str, bool),
    (middle, shifts): (&str, bool),
) -> Result<Box<dyn PipelineStage>> {
    let data = folder.data()?;
    let spread = read_vector(&data, spread)?;
    let scale = if scales { inverses(&spread) } else { vec![1.0; spread.len()] };
    let mut scaler = Scaler::new(folder, schema, scale)?;
    if shifts {
        scaler.shift = read_vector(&data, middle)?;
    }
    check_lengths(&scaler.shift, &scaler.scale)?;
    Ok(Box::new(scaler))
}

fn check_lengths(shift: &[f64], scale: &[f64]) -> Result<()> {
    match shift.is_empty() || shift.len() == scale.len() {
        true => Ok(()),
        false => Err(damaged("its vectors differ in length")),
    }
}

pub(in super::super) fn standard(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let scales = folder.flag("withStd", true)?;
    let shifts = folder.flag("withMean", false)?;
    scaler_of(folder, schema, ("std", scales), ("mean", shifts))
}

pub(in super::super) fn robust(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let scales = folder.flag("withScaling", true)?;
    let shifts = folder.flag("withCentering", false)?;
    scaler_of(folder, schema, ("range", scales), ("median", shifts))
}

pub(in super::super) fn max_abs(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let largest = read_vector(&folder.data()?, "maxAbs")?;
    let scale = largest.iter().map(|value| if *value == 0.0 { 1.0 } else { 1.0 / value });
    Ok(Box::new(Scaler::new(folder, schema, scale.collect())?))
}

pub(in super::super) fn min_max(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let data = folder.data()?;
    let (least, most) = (read_vector(&data, "originalMin")?, read_vector(&data, "originalMax")?);
    check_lengths(&least, &most)?;
    let (low, high) = (folder.number("min", 0.0)?, folder.number("max", 1.0)?);
    let scale = least.iter().zip(&most).map(|(least, most)| {
        let range = most - least;
        if range == 0.0 { 0.0 } else { (high - low) / range }
    });
    let mut scaler = Scaler::new(folder, schema, scale.collect())?;
    scaler.shift = least;
    scaler.range = Some((low, f64::midpoint(low, high)));
    Ok(Box::new(scaler))
}

/// `IDFModel`: multiplies by the inverse document frequency.
pub(in super::super) fn idf(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let scale = read_vector(&folder.data()?, "idf")?;
    Ok(Box::new(Scaler::new(folder, schema, scale)?))
}

/// `ElementwiseProduct`.
pub(in super::super) fn product(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let scale = folder.parameter("scalingVec").and_then(vector_of_json);
    let scale = scale.ok_or_else(|| damaged("its scalingVec is not a vector"))?;
    Ok(Box::new(Scaler::new(folder, schema, scale)?))
}

/// `Normalizer`: divides by the norm.
struct SparkNormalizer {
    input: usize,
    output: usize,
    power: f64,
}

pub(in super::super) fn normalizer(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let input = schema.read(folder.column("inputCol")?, Wanted::Vector(None))?;
    let output = schema.make_like(folder.column("outputCol")?, input)?;
    Ok(Box::new(SparkNormalizer { input, output, power: folder.number("p", 2.0)? }))
}

impl SparkNormalizer {
    /// What a row is divided by.
    fn norm(&self, row: VectorRow<'_>) -> f64 {
        let values = row.values();
        if self.power == 1.0 {
            return values.map(f64::abs).sum();
        }
        if self.power == 2.0 {
            return values.map(|value| value * value).sum::<f64>().sqrt();
        }
        if self.power == f64::INFINITY {
            return values
                .fold(0.0, |most, value| if value.abs() > most { value.abs() } else { most });
        }
        let powers = values.map(|value| value.abs().powf(self.power));
        powers.sum::<f64>().powf(1.0 / self.power)
    }
}

impl PipelineStage for SparkNormalizer {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let vectors = table.vectors(self.input)?;
        let norms: Vec<f64> = (0..table.rows)
            .map(|row| Some(self.norm(vectors.row(row))).filter(|norm| *norm != 0.0).unwrap_or(1.0))
            .collect();
        let mut scaled = vectors.mapped(|_, value| value);
        match &mut scaled.rows {
            VectorRows::Dense(values) => {
                let rows = values.to_mut().chunks_exact_mut(vectors.width.max(1));
                for (row, norm) in rows.zip(&norms) {
                    row.iter_mut().for_each(|value| *value /= norm);
                }
            }
            VectorRows::Sparse(rows) => {
                let mut start = 0;
                for (end, norm) in rows.ends.iter().zip(&norms) {
                    let row = rows.entries.get_mut(start..*end).unwrap_or_default();
                    row.iter_mut().for_each(|(_, value)| *value /= norm);
                    start = *end;
                }
            }
        }
        table.put(self.output, SparkColumn::Vectors(scaled));
        Ok(())
    }
}
