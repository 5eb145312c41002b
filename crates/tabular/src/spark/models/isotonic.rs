//! `IsotonicRegressionModel`: linear between the boundaries.

use std::borrow::Cow;

use super::super::damaged;
use super::super::folder::StageFolder;
use super::super::schema::{ColumnKind, Schema, Wanted};
use super::super::stage::Stage;
use super::super::table::{Column, Table, VectorRow};
use super::predict::prediction_name;
use tensorserve_tensor::error::Result;

struct Isotonic {
    input: usize,
    prediction: usize,
    /// The element of the vector, if the input is one.
    element: usize,
    boundaries: Vec<f64>,
    predictions: Vec<f64>,
}

pub(in super::super) fn isotonic(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn Stage>> {
    let data = folder.data()?;
    let boundaries = data.list("boundaries").to_vec();
    let predictions = data.list("predictions").to_vec();
    if boundaries.is_empty() || boundaries.len() != predictions.len() || !boundaries.is_sorted() {
        return Err(damaged("its boundaries and predictions do not fit together"));
    }
    let name = folder.text("featuresCol", "features")?;
    let input = schema.read(name, Wanted::NumberOrVector)?;
    let prediction = schema.make(prediction_name(folder)?, ColumnKind::Number)?;
    schema.add_output(prediction);
    let element = folder.size("featureIndex", 0)?;
    Ok(Box::new(Isotonic { input, prediction, element, boundaries, predictions }))
}

impl Isotonic {
    fn predict(&self, value: f64) -> f64 {
        let at = |index: usize| {
            let boundary = self.boundaries.get(index).copied().unwrap_or(f64::NAN);
            (boundary, self.predictions.get(index).copied().unwrap_or(f64::NAN))
        };
        match self.boundaries.binary_search_by(|boundary| boundary.total_cmp(&value)) {
            Ok(found) => at(found).1,
            Err(0) => at(0).1,
            Err(above) if above == self.boundaries.len() => at(above - 1).1,
            Err(above) => {
                let ((x1, y1), (x2, y2)) = (at(above - 1), at(above));
                y1 + (y2 - y1) * (value - x1) / (x2 - x1)
            }
        }
    }
}

impl Stage for Isotonic {
    fn run(&self, table: &mut Table<'_>) -> Result<()> {
        let predictions = match table.column(self.input)? {
            Column::Vectors(vectors) => {
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
            Column::Numbers(_) | Column::Texts(_) | Column::Words(_) => {
                table.numbers(self.input)?.iter().map(|value| self.predict(*value)).collect()
            }
        };
        table.put(self.prediction, Column::Numbers(Cow::Owned(predictions)));
        Ok(())
    }
}
