//! What the models have in common: how a prediction becomes columns.

use std::borrow::Cow;

use super::super::folder::StageFolder;
use super::super::numeric::argmax;
use super::super::schema::{ColumnKind, Schema, Wanted};
use super::super::stage::PipelineStage;
use super::super::table::{SparkColumn, SparkTable, VectorRow, Vectors};
use super::super::{MAX_CLASSES, damaged, unsupported};
use tensorserve_tensor::error::Result;

/// A model of numbers.
pub(in super::super) trait SparkRegressor: Send + Sync {
    fn predict(&self, row: VectorRow<'_>) -> f64;
}

/// A model of classes.
pub(in super::super) trait SparkClassifier: Send + Sync {
    /// Writes what the model has for each class.
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]);

    /// Turns that into probabilities.
    fn probabilities(&self, raw: &mut [f64]);

    /// Why a row is refused, if it is.
    fn refusal(&self, _row: VectorRow<'_>) -> Option<String> {
        None
    }
}

/// How a class is chosen.
#[derive(Clone, Debug)]
pub(in super::super) enum ClassDecision {
    /// The one with the largest raw value.
    Largest,
    /// The one with the largest probability, each divided by its threshold.
    Thresholds(Vec<f64>),
    /// The second of two if its raw value is above this.
    Above(f64),
}

/// A classifier of so many classes.
pub(in super::super) struct ClassModel {
    pub(in super::super) classifier: Box<dyn SparkClassifier>,
    pub(in super::super) classes: usize,
    pub(in super::super) decision: ClassDecision,
    /// The number of features, if it is known.
    pub(in super::super) features: Option<usize>,
    /// Whether it has probabilities.
    pub(in super::super) has_probabilities: bool,
}

/// The decision by the parameter `thresholds`.
pub(in super::super) fn decision(folder: &StageFolder, classes: usize) -> Result<ClassDecision> {
    match folder.numbers("thresholds")? {
        None => Ok(ClassDecision::Largest),
        Some(thresholds) if thresholds.is_empty() => Ok(ClassDecision::Largest),
        Some(thresholds) if thresholds.len() == classes => {
            Ok(ClassDecision::Thresholds(thresholds))
        }
        Some(thresholds) => {
            let have = thresholds.len();
            Err(damaged(format!("it has {have} thresholds for {classes} classes")))
        }
    }
}

impl ClassModel {
    /// The class of a row with these raw values and probabilities.
    fn decide(&self, raw: &[f64], probabilities: &[f64]) -> f64 {
        match &self.decision {
            ClassDecision::Largest => argmax(raw.iter().copied()),
            ClassDecision::Above(threshold) => {
                f64::from(u8::from(raw.get(1).is_some_and(|raw| raw > threshold)))
            }
            ClassDecision::Thresholds(thresholds) => {
                let scaled = probabilities.iter().zip(thresholds);
                let (mut best, mut largest) = (0u32, f64::NEG_INFINITY);
                for (class, (probability, threshold)) in (0u32..).zip(scaled) {
                    let scaled = probability / threshold;
                    if scaled > largest {
                        (best, largest) = (class, scaled);
                    }
                }
                f64::from(best)
            }
        }
    }
}

/// The column of features of a model, which takes so many.
pub(in super::super) fn features(
    folder: &StageFolder,
    schema: &mut Schema,
    count: Option<usize>,
) -> Result<usize> {
    let name = folder.text("featuresCol", "features")?;
    schema.read(name, Wanted::Vector(count))
}

/// The name of the column of predictions.
pub(in super::super) fn prediction_name(folder: &StageFolder) -> Result<&str> {
    match folder.optional_column("predictionCol")? {
        Some(name) => Ok(name),
        None => Ok("prediction"),
    }
}

/// A stage of a model of numbers.
struct RegressionStage {
    features: usize,
    prediction: usize,
    model: Box<dyn SparkRegressor>,
}

pub(in super::super) fn regression(
    folder: &StageFolder,
    schema: &mut Schema,
    width: Option<usize>,
    model: Box<dyn SparkRegressor>,
) -> Result<Box<dyn PipelineStage>> {
    let features = features(folder, schema, width)?;
    let prediction = schema.make(prediction_name(folder)?, ColumnKind::Number)?;
    schema.add_output(prediction);
    Ok(Box::new(RegressionStage { features, prediction, model }))
}

impl PipelineStage for RegressionStage {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let vectors = table.vectors(self.features)?;
        let predictions = (0..table.rows).map(|row| self.model.predict(vectors.row(row)));
        let predictions = predictions.collect();
        table.put(self.prediction, SparkColumn::Numbers(Cow::Owned(predictions)));
        Ok(())
    }
}

/// A stage of a model of classes.
struct ClassificationStage {
    name: String,
    features: usize,
    prediction: usize,
    raw: Option<usize>,
    probability: Option<usize>,
    model: ClassModel,
}

pub(in super::super) fn classification(
    folder: &StageFolder,
    schema: &mut Schema,
    model: ClassModel,
) -> Result<Box<dyn PipelineStage>> {
    let classes = model.classes;
    if classes > MAX_CLASSES {
        return Err(unsupported(format!("a model of more than {MAX_CLASSES} classes")));
    }
    let features = features(folder, schema, model.features)?;
    let prediction = schema.make(prediction_name(folder)?, ColumnKind::Number)?;
    schema.add_output(prediction);
    let mut vector = |name: &str| -> Result<Option<usize>> {
        let Some(name) = folder.optional_column(name)? else { return Ok(None) };
        let column = schema.make_vector(name, classes)?;
        schema.add_output(column);
        Ok(Some(column))
    };
    let raw = vector("rawPredictionCol")?;
    let probability = if model.has_probabilities { vector("probabilityCol")? } else { None };
    let name = schema.name(features).to_owned();
    Ok(Box::new(ClassificationStage { name, features, prediction, raw, probability, model }))
}

impl PipelineStage for ClassificationStage {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let vectors = table.vectors(self.features)?;
        let classes = self.model.classes;
        let mut raws = vec![0.0; table.rows * classes];
        for (row, raw) in raws.chunks_exact_mut(classes.max(1)).enumerate() {
            let features = vectors.row(row);
            if let Some(reason) = self.model.classifier.refusal(features)
                && !table.is_skipped(row)
            {
                return Err(table.refusal(row, &self.name, &reason));
            }
            self.model.classifier.raw(features, raw);
        }
        let mut probabilities = raws.clone();
        let mut predictions = Vec::with_capacity(table.rows);
        let rows = raws.chunks_exact(classes.max(1));
        for (raw, probability) in rows.zip(probabilities.chunks_exact_mut(classes.max(1))) {
            if self.model.has_probabilities {
                self.model.classifier.probabilities(probability);
            }
            predictions.push(self.model.decide(raw, probability));
        }
        table.put(self.prediction, SparkColumn::Numbers(Cow::Owned(predictions)));
        if let Some(raw) = self.raw {
            table.put(raw, SparkColumn::Vectors(Vectors::dense(classes, raws)));
        }
        if let Some(probability) = self.probability {
            table.put(probability, SparkColumn::Vectors(Vectors::dense(classes, probabilities)));
        }
        Ok(())
    }
}
