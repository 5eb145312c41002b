//! `IsotonicRegressionModel`: linear between the boundaries.

use std::borrow::Cow;

use super::super::damaged;
use super::super::folder::StageFolder;
use super::super::schema::{ColumnKind, Schema, Wanted};
use super::super::stage::PipelineStage;
use super::super::table::{SparkColumn, SparkTable, VectorRow};
use super::predict::prediction_name;
use tensorserve_tabular::numeric::{Isotonic, Located};
use tensorserve_tensor::error::Result;

struct IsotonicStage {
    input: usize,
    prediction: usize,
    /// The element of the vector, if the input is one.
    element: usize,
    points: Isotonic,
}

pub(in super::super) fn isotonic(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let data = folder.data()?;
    let boundaries = data.list("boundaries").to_vec();
    let predictions = data.list("predictions").to_vec();
    let is_sorted = boundaries.is_sorted();
    let points = Isotonic::new(boundaries, predictions).filter(|_| is_sorted);
    let points =
        points.ok_or_else(|| damaged("its boundaries and predictions do not fit together"))?;
    let name = folder.text("featuresCol", "features")?;
    let input = schema.read(name, Wanted::NumberOrVector)?;
    let prediction = schema.make(prediction_name(folder)?, ColumnKind::Number)?;
    schema.add_output(prediction);
    let element = folder.size("featureIndex", 0)?;
    Ok(Box::new(IsotonicStage { input, prediction, element, points }))
}

impl IsotonicStage {
    fn predict(&self, value: f64) -> f64 {
        match self.points.locate(value) {
            Located::At(y) | Located::Below(y) | Located::Above(y) => y,
            Located::Between((x1, y1), (x2, y2)) => y1 + (y2 - y1) * (value - x1) / (x2 - x1),
        }
    }
}

impl PipelineStage for IsotonicStage {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let predictions = match table.column(self.input)? {
            SparkColumn::Vectors(vectors) => {
                let element = |row: usize| match vectors.row(row) {
                    VectorRow::Dense(values) => values.get(self.element).copied(),
                    VectorRow::Sparse(entries) => entries
                        .iter()
                        .find(|(at, _)| *at as usize == self.element)
                        .map(|(_, value)| *value),
                };
                let rows = 0..table.rows;
                rows.map(|row| self.predict(element(row).unwrap_or(0.0))).collect()
            }
            SparkColumn::Numbers(_) | SparkColumn::Texts(_) | SparkColumn::Words(_) => {
                table.numbers(self.input)?.iter().map(|value| self.predict(*value)).collect()
            }
        };
        table.put(self.prediction, SparkColumn::Numbers(Cow::Owned(predictions)));
        Ok(())
    }
}
