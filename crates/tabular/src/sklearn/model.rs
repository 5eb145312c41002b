//! A compiled model: transformers, each of which makes a matrix of a matrix, and a predictor.

use super::accepted::{AcceptedValues, ValueCheck};
use super::estimator::ClassLabels;
pub(super) use super::rows::FeatureRows;
use tensorserve_tensor::error::{Error, Result};

/// The most numbers that a transformer makes at a time. Larger requests are evaluated in blocks.
const MAX_BLOCK_VALUES: usize = 1 << 17;

/// Makes new features of features.
pub(super) trait Transformer: Send + Sync {
    /// The number of features that it takes.
    fn input(&self) -> usize;
    /// The number of features that it makes.
    fn output(&self) -> usize;
    fn accepts(&self) -> AcceptedValues {
        AcceptedValues::Finite
    }
    /// Whether [`Transformer::apply`] may fail on values that [`Transformer::accepts`] allows.
    fn can_fail(&self) -> bool {
        false
    }
    /// Writes the new features of each row to `to`.
    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()>;
}

/// Predicts numbers.
pub(super) trait Regressor: Send + Sync {
    fn features(&self) -> usize;
    /// The length of the second dimension of its output; `None` if that has one dimension only.
    fn outputs(&self) -> Option<usize> {
        None
    }
    fn accepts(&self) -> AcceptedValues {
        AcceptedValues::Finite
    }
    /// Writes the prediction of each row to `out`.
    fn predict(&self, rows: FeatureRows, out: &mut [f64]);
}

/// Predicts classes.
pub(super) trait Classifier: Send + Sync {
    fn features(&self) -> usize;
    fn accepts(&self) -> AcceptedValues {
        AcceptedValues::Finite
    }
    /// Writes the index of each row's class, and the scores of all classes for each row.
    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]);
}

/// The meaning of a classifier's scores, and which of its methods scikit-learn offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClassScores {
    /// Scores that scikit-learn does not offer.
    None,
    /// Probabilities, without logarithms of them.
    Probabilities,
    /// Probabilities. The logarithm of 0 is negative infinity.
    ProbabilitiesAndLogs,
    /// Probabilities. The logarithm of 0 is that of the smallest normal number.
    ProbabilitiesAndClampedLogs,
    /// Logarithms of probabilities.
    LogProbabilities,
}

impl ClassScores {
    /// Whether scikit-learn offers `predict_log_proba`.
    pub(super) fn has_logs(self) -> bool {
        !matches!(self, ClassScores::None | ClassScores::Probabilities)
    }
}

/// The last part of a model.
pub(super) enum Predictor {
    Regressor(Box<dyn Regressor>),
    Classifier(LabelledClassifier),
}

/// A classifier with the labels of its classes.
pub(super) struct LabelledClassifier {
    pub(super) model: Box<dyn Classifier>,
    pub(super) labels: ClassLabels,
    pub(super) scores: ClassScores,
}

impl Predictor {
    pub(super) fn regressor(model: impl Regressor + 'static) -> Self {
        Predictor::Regressor(Box::new(model))
    }

    pub(super) fn classifier(
        model: impl Classifier + 'static,
        labels: ClassLabels,
        scores: ClassScores,
    ) -> Self {
        Predictor::Classifier(LabelledClassifier { model: Box::new(model), labels, scores })
    }

    pub(super) fn features(&self) -> usize {
        match self {
            Predictor::Regressor(model) => model.features(),
            Predictor::Classifier(classifier) => classifier.model.features(),
        }
    }

    pub(super) fn accepts(&self) -> AcceptedValues {
        match self {
            Predictor::Regressor(model) => model.accepts(),
            Predictor::Classifier(classifier) => classifier.model.accepts(),
        }
    }

    fn run(&self, rows: FeatureRows) -> Predictions {
        let count = rows.len();
        match self {
            Predictor::Regressor(model) => {
                let mut out = vec![0.0; count * model.outputs().unwrap_or(1)];
                model.predict(rows, &mut out);
                Predictions::Numbers(out)
            }
            Predictor::Classifier(LabelledClassifier { model, labels, .. }) => {
                let mut classes = vec![0; count];
                let mut scores = vec![0.0; count * labels.len()];
                model.classify(rows, &mut classes, &mut scores);
                Predictions::Classes { classes, scores }
            }
        }
    }
}

/// A complete model.
pub(super) struct SklearnModel {
    pub(super) steps: Vec<Box<dyn Transformer>>,
    pub(super) predictor: Predictor,
}

/// The predictions for some rows.
pub(super) enum Predictions {
    Numbers(Vec<f64>),
    Classes {
        /// The index of the class of each row.
        classes: Vec<usize>,
        /// The scores of all classes for each row.
        scores: Vec<f64>,
    },
}

impl Predictions {
    /// Adds the predictions for the rows that follow.
    fn append(&mut self, more: Predictions) -> Result<()> {
        match (self, more) {
            (Predictions::Numbers(all), Predictions::Numbers(more)) => all.extend(more),
            (
                Predictions::Classes { classes, scores },
                Predictions::Classes { classes: more_classes, scores: more_scores },
            ) => {
                classes.extend(more_classes);
                scores.extend(more_scores);
            }
            _ => return Err(Error::internal("a model made two kinds of predictions")),
        }
        Ok(())
    }
}

impl SklearnModel {
    /// The number of features that the model takes.
    pub(super) fn features(&self) -> usize {
        self.steps.first().map_or_else(|| self.predictor.features(), |step| step.input())
    }

    /// The values that its first step accepts.
    pub(super) fn accepts(&self) -> AcceptedValues {
        self.steps.first().map_or_else(|| self.predictor.accepts(), |step| step.accepts())
    }

    /// Evaluates the model. Many rows are evaluated block by block, which bounds the memory that
    /// transformers take.
    pub(super) fn predict(&self, rows: FeatureRows) -> Result<Predictions> {
        let size = self.rows_per_block();
        let mut blocks = rows.values.chunks(size * rows.columns).enumerate();
        let first = blocks.next().map_or(rows.values, |(_, values)| values);
        let first = FeatureRows { values: first, ..rows };
        let mut all = self.run_block(first, ValueCheck::Enabled)?;
        for (number, values) in blocks {
            let block = FeatureRows { values, first_row: number * size, ..rows };
            all.append(self.run_block(block, ValueCheck::Enabled)?)?;
        }
        Ok(all)
    }

    fn rows_per_block(&self) -> usize {
        let widest = self.steps.iter().map(|step| step.output()).max().unwrap_or(0);
        (MAX_BLOCK_VALUES / widest.max(self.features()).max(1)).max(1)
    }

    /// As [`SklearnModel::predict`], without checking values: for members of an ensemble, none of whose
    /// steps can fail.
    pub(super) fn run_unchecked(&self, rows: FeatureRows) -> Predictions {
        let predictions = self.run_block(rows, ValueCheck::Disabled);
        predictions.unwrap_or_else(|_| Predictions::Numbers(Vec::new()))
    }

    fn run_block(&self, rows: FeatureRows, check: ValueCheck) -> Result<Predictions> {
        let transformed = apply_steps(&self.steps, rows, check)?;
        let rows = match (&transformed, self.steps.last()) {
            (Some(values), Some(last)) => FeatureRows { values, columns: last.output(), ..rows },
            _ => rows,
        };
        check.apply(rows, self.predictor.accepts())?;
        Ok(self.predictor.run(rows))
    }
}

/// Applies `steps` to `rows` in turn; `None` without a step.
pub(super) fn apply_steps(
    steps: &[Box<dyn Transformer>],
    rows: FeatureRows,
    check: ValueCheck,
) -> Result<Option<Vec<f64>>> {
    let count = rows.len();
    let (mut this, mut next) = (Vec::new(), Vec::new());
    let mut columns = rows.columns;
    for (number, step) in steps.iter().enumerate() {
        let from = if number == 0 { rows.values } else { &this };
        let rows = FeatureRows { values: from, columns, ..rows };
        check.apply(rows, step.accepts())?;
        columns = step.output();
        next.clear();
        next.resize(count * columns, 0.0);
        step.apply(rows, &mut next)?;
        std::mem::swap(&mut this, &mut next);
    }
    Ok((!steps.is_empty()).then_some(this))
}
