//! Predictors by the training rows that are nearest to a row.

use super::distance::{Neighbor, TrainingRows};
use super::estimator::{ClassLabels, Estimator};
use super::model::{
    ClassScores, Classifier, FeatureRows, MultiClassifier, MultiScores, Predictor, Regressor,
    StepFacts,
};
use super::numeric::argmax;
use tensorserve_tensor::error::{Error, Result};

/// The error for a row without neighbours.
fn no_neighbors(row: usize) -> Error {
    Error::invalid(format!(
        "no row of the model's training is within its radius of row {row}, and the model has no label \
         for such rows"
    ))
}

/// Writes the share of each class among `neighbors`, whose classes `class_of` tells.
fn shares(neighbors: &[Neighbor], scores: &mut [f64], class_of: impl Fn(usize) -> usize) {
    scores.fill(0.0);
    for neighbor in neighbors {
        if let Some(score) = scores.get_mut(class_of(neighbor.row)) {
            *score += neighbor.weight;
        }
    }
    let sum: f64 = scores.iter().sum();
    let sum = if sum == 0.0 { 1.0 } else { sum };
    scores.iter_mut().for_each(|score| *score /= sum);
}

struct NeighborsClassifier {
    training: TrainingRows,
    /// The class of each training row.
    row_classes: Vec<usize>,
    classes: usize,
    /// The class of a row without neighbours.
    outlier: Option<usize>,
}

impl Classifier for NeighborsClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.training.features()).sparse_if(self.training.are_sparse())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let mut search = self.training.search(rows);
        let scores = scores.chunks_exact_mut(self.classes);
        for (row, (class, scores)) in classes.iter_mut().zip(scores).enumerate() {
            let neighbors = search.find(row);
            shares(neighbors, scores, |row| self.row_classes.get(row).copied().unwrap_or(0));
            if neighbors.is_empty() {
                let outlier = self.outlier.ok_or_else(|| no_neighbors(rows.first_row + row))?;
                if let Some(score) = scores.get_mut(outlier) {
                    *score = 1.0;
                }
            }
            *class = argmax(scores);
        }
        Ok(())
    }
}

/// Reads a `KNeighborsClassifier`.
pub(super) fn classifier(estimator: &Estimator) -> Result<Predictor> {
    let training = TrainingRows::nearest(estimator, &["n_neighbors"])?;
    match estimator.labels_by_output()? {
        Some(labels) => multi_classifier(estimator, training, labels),
        None => single_classifier(estimator, training, None),
    }
}

/// Reads a `RadiusNeighborsClassifier`.
pub(super) fn radius_classifier(estimator: &Estimator) -> Result<Predictor> {
    if estimator.labels_by_output()?.is_some() {
        return Err(estimator.unsupported("several outputs"));
    }
    // Before 0.22 the parameter is what counts, and there are no probabilities.
    let is_old = estimator.is_older_than(0, 22);
    let label = if is_old { "outlier_label" } else { "outlier_label_" };
    let outlier = match estimator.find(&[label]) {
        None => None,
        Some(label) => {
            let label = label.items().and_then(|items| items.first().copied()).unwrap_or(label);
            let class = estimator.labels()?.index_of(label);
            let unknown = "a label of outliers that is not one of the classes";
            Some(class.ok_or_else(|| estimator.unsupported(unknown))?)
        }
    };
    let training = TrainingRows::within_radius(estimator)?;
    let predictor = single_classifier(estimator, training, outlier)?;
    Ok(if is_old { predictor.without_scores() } else { predictor })
}

fn single_classifier(
    estimator: &Estimator,
    training: TrainingRows,
    outlier: Option<usize>,
) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let classes = labels.len();
    let row_classes = estimator.vector_of_len(&["_y"], training.len())?;
    let row_classes: Vec<usize> = row_classes.into_iter().map(|class| class as usize).collect();
    if row_classes.iter().any(|class| *class >= classes) {
        return Err(estimator.damaged(format_args!("_y has a class beyond the {classes} classes")));
    }
    let model = NeighborsClassifier { training, row_classes, classes, outlier };
    Ok(Predictor::classifier(model, labels, ClassScores::Probabilities))
}

struct MultiNeighborsClassifier {
    training: TrainingRows,
    /// For each training row, the class of each output.
    row_classes: Vec<usize>,
    labels: Vec<ClassLabels>,
}

impl MultiClassifier for MultiNeighborsClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.training.features()).sparse_if(self.training.are_sparse())
    }

    fn labels(&self) -> &[ClassLabels] {
        &self.labels
    }

    fn scores(&self) -> MultiScores {
        MultiScores::Separate(ClassScores::Probabilities)
    }

    fn classify(
        &self,
        rows: FeatureRows,
        classes: &mut [usize],
        scores: &mut [Vec<f64>],
    ) -> Result<()> {
        let mut search = self.training.search(rows);
        let outputs = self.labels.len();
        for (row, classes) in classes.chunks_exact_mut(outputs).enumerate() {
            let neighbors = search.find(row);
            let of_outputs = classes.iter_mut().zip(&self.labels).zip(&mut *scores);
            for (output, ((class, labels), scores)) in of_outputs.enumerate() {
                let range = row * labels.len()..(row + 1) * labels.len();
                let Some(scores) = scores.get_mut(range) else { continue };
                let class_of = |row: usize| row * outputs + output;
                shares(neighbors, scores, |row| {
                    self.row_classes.get(class_of(row)).copied().unwrap_or(0)
                });
                *class = argmax(scores);
            }
        }
        Ok(())
    }
}

fn multi_classifier(
    estimator: &Estimator,
    training: TrainingRows,
    labels: Vec<ClassLabels>,
) -> Result<Predictor> {
    estimator.check_types(&labels)?;
    let row_classes = estimator.matrix_of_shape(&["_y"], training.len(), labels.len())?;
    let row_classes: Vec<usize> = row_classes.values.iter().map(|class| *class as usize).collect();
    let is_valid = row_classes
        .chunks_exact(labels.len())
        .all(|row| row.iter().zip(&labels).all(|(class, labels)| *class < labels.len()));
    match is_valid {
        true => Ok(Predictor::MultiClassifier(Box::new(MultiNeighborsClassifier {
            training,
            row_classes,
            labels,
        }))),
        false => Err(estimator.damaged("_y has a class beyond those of its output")),
    }
}

struct NeighborsRegressor {
    training: TrainingRows,
    /// For each training row, its targets.
    targets: Vec<f64>,
    width: usize,
    is_vector: bool,
}

impl Regressor for NeighborsRegressor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.training.features()).sparse_if(self.training.are_sparse())
    }

    fn outputs(&self) -> Option<usize> {
        (!self.is_vector).then_some(self.width)
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let mut search = self.training.search(rows);
        for (row, out) in out.chunks_exact_mut(self.width).enumerate() {
            out.fill(0.0);
            let mut sum = 0.0;
            for neighbor in search.find(row) {
                let range = neighbor.row * self.width..(neighbor.row + 1) * self.width;
                let targets = self.targets.get(range).unwrap_or_default();
                out.iter_mut().zip(targets).for_each(|(out, y)| *out += y * neighbor.weight);
                sum += neighbor.weight;
            }
            // NaN without neighbours.
            out.iter_mut().for_each(|out| *out /= sum);
        }
        Ok(())
    }
}

/// Reads a `KNeighborsRegressor` or a `RadiusNeighborsRegressor`.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    let training = match estimator.class() {
        "RadiusNeighborsRegressor" => TrainingRows::within_radius(estimator)?,
        _ => TrainingRows::nearest(estimator, &["n_neighbors"])?,
    };
    let (shape, targets) = estimator.numbers(&["_y"])?;
    let width = match *shape {
        [rows] if rows == training.len() => 1,
        [rows, width] if rows == training.len() && width > 0 => width,
        _ => {
            let rows = training.len();
            return Err(estimator.damaged(format_args!("_y does not have {rows} rows, as _fit_X")));
        }
    };
    let is_vector = shape.len() == 1;
    Ok(Predictor::regressor(NeighborsRegressor { training, targets, width, is_vector }))
}
