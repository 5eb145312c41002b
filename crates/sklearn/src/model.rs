//! A compiled model: transformers, each of which makes a matrix of a matrix, and a predictor.

use super::accepted::{AcceptedValues, ValueCheck};
use super::columns::ColumnUse;
use super::estimator::ClassLabels;
pub(super) use super::rows::FeatureRows;
use super::sparse::SparseMatrix;
use tensorserve_tensor::error::{Error, Result};

/// The most numbers that a transformer makes at a time. Larger requests are evaluated in blocks.
const MAX_BLOCK_VALUES: usize = 1 << 17;

/// The values of a sparse row, as far as the size of blocks is concerned.
const SPARSE_ROW_VALUES: usize = 256;

/// What a step of a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepFacts {
    /// The number of its features.
    pub(super) features: usize,
    pub(super) accepts: AcceptedValues,
    /// Whether it takes sparse rows. Otherwise these are made dense.
    pub(super) takes_sparse: bool,
}

impl StepFacts {
    /// Of a step that takes dense rows of finite values.
    pub(super) fn of(features: usize) -> Self {
        StepFacts { features, accepts: AcceptedValues::Finite, takes_sparse: false }
    }

    pub(super) fn accepting(self, accepts: AcceptedValues) -> Self {
        StepFacts { accepts, ..self }
    }

    pub(super) fn sparse(self) -> Self {
        self.sparse_if(true)
    }

    pub(super) fn sparse_if(self, takes_sparse: bool) -> Self {
        StepFacts { takes_sparse, ..self }
    }
}

/// Makes new features of features.
pub(super) trait Transformer: Send + Sync {
    fn facts(&self) -> StepFacts;
    /// The number of features that it makes.
    fn output(&self) -> usize;
    /// How each column that it takes is used, if the columns that it makes are used as `outputs` says.
    fn uses(&self, _outputs: &[ColumnUse]) -> Vec<ColumnUse> {
        vec![ColumnUse::Number; self.facts().features]
    }
    /// The categories of each column that it takes, if `outputs` are those of the columns that it makes. A column
    /// for which any value is taken has none, and columns at the end may be missing.
    fn categories(&self, _outputs: &[Vec<String>]) -> Vec<Vec<String>> {
        Vec::new()
    }
    /// Whether it makes sparse rows, given whether it takes such rows.
    fn makes_sparse(&self, _from_sparse: bool) -> bool {
        false
    }
    /// Whether scikit-learn makes a sparse matrix, given whether it takes one.
    fn is_sparse_there(&self, from_sparse: bool) -> bool {
        from_sparse
    }
    /// Whether its file does not say how many columns it takes and makes. The step behind it does.
    fn is_open(&self) -> bool {
        false
    }
    /// Sets the number of columns that it makes, if that is open and it can make them.
    fn set_output(&mut self, _columns: usize) {}
    /// Writes the new features of each row to `to`.
    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()>;
    /// The new features as sparse rows: called if [`Transformer::makes_sparse`].
    fn apply_sparse(&self, _rows: FeatureRows) -> Result<SparseMatrix> {
        Err(Error::internal("a transformer without sparse rows was asked for them"))
    }
}

/// Predicts numbers.
pub(super) trait Regressor: Send + Sync {
    fn facts(&self) -> StepFacts;
    /// The length of the second dimension of its output; `None` if that has one dimension only.
    fn outputs(&self) -> Option<usize> {
        None
    }
    /// How each column is used.
    fn uses(&self) -> Vec<ColumnUse> {
        vec![ColumnUse::Number; self.facts().features]
    }
    /// Writes the prediction of each row to `out`.
    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()>;
}

/// Whether a classifier has `decision_function`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decisions {
    None,
    /// The classifier has it in scikit-learn; it is not supported here.
    Unsupported,
    /// The classifier writes this many values for a row: one for two classes.
    Columns(usize),
}

/// Predicts several classes for each row: one for each of its outputs.
pub(super) trait MultiClassifier: Send + Sync {
    fn facts(&self) -> StepFacts;
    /// How each column is used.
    fn uses(&self) -> Vec<ColumnUse> {
        vec![ColumnUse::Number; self.facts().features]
    }
    /// The labels of the classes of each output.
    fn labels(&self) -> &[ClassLabels];
    /// What its scores are.
    fn scores(&self) -> MultiScores;
    /// Whether scikit-learn offers `decision_function`.
    fn decisions(&self) -> Decisions {
        Decisions::None
    }
    /// As [`Classifier::decide`].
    fn decide(&self, _rows: FeatureRows, _out: &mut [f64]) -> Result<()> {
        Err(Error::internal("a classifier without a decision function was asked for it"))
    }
    /// Writes the index of the class of each row and output, and the scores: for each output those of
    /// all rows and classes, or all together.
    fn classify(
        &self,
        rows: FeatureRows,
        classes: &mut [usize],
        scores: &mut [Vec<f64>],
    ) -> Result<()>;
}

/// The scores of a [`MultiClassifier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MultiScores {
    None,
    /// The probabilities of the classes of each output, which are outputs of their own.
    Separate(ClassScores),
    /// The probability of the second class of each output, in one matrix.
    Joint(ClassScores),
}

impl MultiScores {
    /// Whether the scores are logarithms of probabilities.
    pub(super) fn are_logs(self) -> bool {
        match self {
            MultiScores::None => false,
            MultiScores::Separate(scores) | MultiScores::Joint(scores) => scores.are_logs(),
        }
    }

    /// The width of each matrix of scores, for outputs with these classes.
    pub(super) fn widths(self, labels: &[ClassLabels]) -> Vec<usize> {
        match self {
            MultiScores::None => Vec::new(),
            MultiScores::Separate(_) => labels.iter().map(ClassLabels::len).collect(),
            MultiScores::Joint(_) => vec![labels.len()],
        }
    }
}

/// Predicts classes.
pub(super) trait Classifier: Send + Sync {
    fn facts(&self) -> StepFacts;
    /// How each column is used.
    fn uses(&self) -> Vec<ColumnUse> {
        vec![ColumnUse::Number; self.facts().features]
    }
    /// Whether scikit-learn offers `decision_function`.
    fn decisions(&self) -> Decisions {
        Decisions::None
    }
    /// Writes the values of `decision_function` for each row, as many as [`Classifier::decisions`] says.
    fn decide(&self, _rows: FeatureRows, _out: &mut [f64]) -> Result<()> {
        Err(Error::internal("a classifier without a decision function was asked for it"))
    }
    /// Writes the index of each row's class, and the scores of all classes for each row.
    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()>;
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
    /// Logarithms of probabilities, of which scikit-learn offers the probabilities only.
    HiddenLogProbabilities,
}

impl ClassScores {
    /// Whether scikit-learn offers `predict_log_proba`.
    pub(super) fn has_logs(self) -> bool {
        matches!(
            self,
            ClassScores::ProbabilitiesAndLogs
                | ClassScores::ProbabilitiesAndClampedLogs
                | ClassScores::LogProbabilities
        )
    }

    /// Whether the scores are logarithms of probabilities.
    pub(super) fn are_logs(self) -> bool {
        matches!(self, ClassScores::LogProbabilities | ClassScores::HiddenLogProbabilities)
    }

    /// These scores, of which scikit-learn does not offer the logarithms.
    pub(super) fn without_logs(self) -> Self {
        match (self == ClassScores::None, self.are_logs()) {
            (true, _) => ClassScores::None,
            (false, true) => ClassScores::HiddenLogProbabilities,
            (false, false) => ClassScores::Probabilities,
        }
    }
}

/// The last part of a model.
pub(super) enum Predictor {
    Regressor(Box<dyn Regressor>),
    Classifier(LabelledClassifier),
    MultiClassifier(Box<dyn MultiClassifier>),
    /// Returns this many features: the last step of a model is a transformer.
    Features(usize),
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

    /// This predictor, of whose scores scikit-learn offers none.
    pub(super) fn without_scores(mut self) -> Self {
        if let Predictor::Classifier(classifier) = &mut self {
            classifier.scores = ClassScores::None;
        }
        self
    }

    pub(super) fn facts(&self) -> StepFacts {
        match self {
            Predictor::Regressor(model) => model.facts(),
            Predictor::Classifier(classifier) => classifier.model.facts(),
            Predictor::MultiClassifier(model) => model.facts(),
            Predictor::Features(columns) => StepFacts::of(*columns).accepting(AcceptedValues::Any),
        }
    }

    /// Whether it has `decision_function`.
    pub(super) fn decisions(&self) -> Decisions {
        match self {
            Predictor::Classifier(classifier) => classifier.model.decisions(),
            Predictor::MultiClassifier(model) => model.decisions(),
            Predictor::Regressor(_) | Predictor::Features(_) => Decisions::None,
        }
    }

    /// Whether it has `predict_proba`.
    pub(super) fn has_probabilities(&self) -> bool {
        match self {
            Predictor::MultiClassifier(model) => model.scores() != MultiScores::None,
            Predictor::Classifier(_) | Predictor::Regressor(_) | Predictor::Features(_) => {
                self.scores() != ClassScores::None
            }
        }
    }

    /// What the scores of a classifier are; [`ClassScores::None`] for anything else.
    pub(super) fn scores(&self) -> ClassScores {
        match self {
            Predictor::Classifier(classifier) => classifier.scores,
            Predictor::Regressor(_) | Predictor::MultiClassifier(_) | Predictor::Features(_) => {
                ClassScores::None
            }
        }
    }

    fn uses(&self) -> Vec<ColumnUse> {
        match self {
            Predictor::Regressor(model) => model.uses(),
            Predictor::Classifier(classifier) => classifier.model.uses(),
            Predictor::MultiClassifier(model) => model.uses(),
            Predictor::Features(columns) => vec![ColumnUse::Number; *columns],
        }
    }

    fn run(&self, rows: FeatureRows) -> Result<Predictions> {
        match rows.sparse {
            Some(matrix) if !self.facts().takes_sparse => self.run_dense(rows, matrix),
            _ => self.run_as_given(rows),
        }
    }

    /// Runs on sparse rows that are made dense, a few at a time.
    fn run_dense(&self, rows: FeatureRows, matrix: &SparseMatrix) -> Result<Predictions> {
        let mut all: Option<Predictions> = None;
        matrix.for_dense_blocks(MAX_BLOCK_VALUES, |values| {
            let block = self.run_as_given(rows.with_dense(values, matrix.columns()))?;
            match &mut all {
                None => all = Some(block),
                Some(all) => all.append(block)?,
            }
            Ok(())
        })?;
        all.ok_or_else(|| Error::internal("no block of rows"))
    }

    /// Writes the decision function of a classifier that has one, of `columns` values for each row.
    fn decide(&self, rows: FeatureRows, columns: usize) -> Result<Vec<f64>> {
        let decide = |rows: FeatureRows| {
            let mut out = vec![0.0; rows.len() * columns];
            match self {
                Predictor::Classifier(classifier) => classifier.model.decide(rows, &mut out)?,
                Predictor::MultiClassifier(model) => model.decide(rows, &mut out)?,
                Predictor::Regressor(_) | Predictor::Features(_) => {}
            }
            Ok(out)
        };
        let Some(matrix) = rows.sparse.filter(|_| !self.facts().takes_sparse) else {
            return decide(rows);
        };
        let mut out = Vec::new();
        matrix.for_dense_blocks(MAX_BLOCK_VALUES, |values| {
            out.extend(decide(rows.with_dense(values, matrix.columns()))?);
            Ok(())
        })?;
        Ok(out)
    }

    fn run_as_given(&self, rows: FeatureRows) -> Result<Predictions> {
        let count = rows.len();
        Ok(match self {
            Predictor::Regressor(model) => {
                let mut out = vec![0.0; count * model.outputs().unwrap_or(1)];
                model.predict(rows, &mut out)?;
                Predictions::Numbers(out)
            }
            Predictor::Classifier(LabelledClassifier { model, labels, .. }) => {
                let mut classes = vec![0; count];
                let mut scores = vec![0.0; count * labels.len()];
                model.classify(rows, &mut classes, &mut scores)?;
                Predictions::Classes { classes, scores }
            }
            Predictor::MultiClassifier(model) => {
                let labels = model.labels();
                let mut classes = vec![0; count * labels.len()];
                let widths = model.scores().widths(labels).into_iter();
                let mut scores: Vec<Vec<f64>> =
                    widths.map(|width| vec![0.0; count * width]).collect();
                model.classify(rows, &mut classes, &mut scores)?;
                Predictions::MultiClasses { classes, scores }
            }
            Predictor::Features(_) => Predictions::Numbers(rows.values.to_vec()),
        })
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
    MultiClasses {
        /// The index of the class of each row and output.
        classes: Vec<usize>,
        /// The matrices of scores.
        scores: Vec<Vec<f64>>,
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
            (
                Predictions::MultiClasses { classes, scores },
                Predictions::MultiClasses { classes: more_classes, scores: more_scores },
            ) => {
                classes.extend(more_classes);
                scores.iter_mut().zip(more_scores).for_each(|(all, more)| all.extend(more));
            }
            _ => return Err(Error::internal("a model made two kinds of predictions")),
        }
        Ok(())
    }
}

impl SklearnModel {
    /// What its first step takes.
    pub(super) fn facts(&self) -> StepFacts {
        self.steps.first().map_or_else(|| self.predictor.facts(), |step| step.facts())
    }

    /// The number of features that the model takes.
    pub(super) fn features(&self) -> usize {
        self.facts().features
    }

    /// The values that its first step accepts.
    pub(super) fn accepts(&self) -> AcceptedValues {
        self.facts().accepts
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
        let mut widest = self.features();
        let mut is_sparse = false;
        for step in &self.steps {
            if is_sparse && !step.facts().takes_sparse {
                widest = widest.max(step.facts().features);
                is_sparse = false;
            }
            is_sparse = step.makes_sparse(is_sparse);
            widest = widest.max(if is_sparse { SPARSE_ROW_VALUES } else { step.output() });
        }
        (MAX_BLOCK_VALUES / widest.max(1)).max(1)
    }

    /// How the model uses each of its columns.
    pub(super) fn uses(&self) -> Vec<ColumnUse> {
        uses_before(&self.steps, self.predictor.uses())
    }

    /// The categories that the model knows for each of its columns, as [`Transformer::categories`].
    pub(super) fn categories(&self) -> Vec<Vec<String>> {
        categories_before(&self.steps, &[])
    }

    /// As [`SklearnModel::predict`] for a member of an ensemble, all rows at once. What the first step
    /// accepts is checked by the ensemble.
    pub(super) fn run_member(&self, rows: FeatureRows) -> Result<Predictions> {
        match self.steps.is_empty() {
            true => self.run_block(rows, ValueCheck::Disabled),
            false => self.run_block(rows, ValueCheck::Enabled),
        }
    }

    /// The decision function for rows of an ensemble: the number of values of each row, and the values.
    pub(super) fn decide_member(&self, rows: FeatureRows) -> Result<(usize, Vec<f64>)> {
        let Decisions::Columns(columns) = self.predictor.decisions() else {
            return Err(Error::internal("a member without a decision function was asked for it"));
        };
        let transformed = apply_steps(&self.steps, rows, ValueCheck::Enabled)?;
        let rows = transformed.as_ref().map_or(rows, |features| features.rows(rows));
        Ok((columns, self.predictor.decide(rows, columns)?))
    }

    fn run_block(&self, rows: FeatureRows, check: ValueCheck) -> Result<Predictions> {
        let transformed = apply_steps(&self.steps, rows, check)?;
        let rows = transformed.as_ref().map_or(rows, |features| features.rows(rows));
        check.apply(rows, self.predictor.facts().accepts)?;
        self.predictor.run(rows)
    }
}

/// How `steps` use their columns, if those that they make are used as `outputs` says.
pub(super) fn uses_before(
    steps: &[Box<dyn Transformer>],
    outputs: Vec<ColumnUse>,
) -> Vec<ColumnUse> {
    steps.iter().rev().fold(outputs, |outputs, step| step.uses(&outputs))
}

/// The categories that `steps` know for each of their columns, if `outputs` are those of the columns that they
/// make.
pub(super) fn categories_before(
    steps: &[Box<dyn Transformer>],
    outputs: &[Vec<String>],
) -> Vec<Vec<String>> {
    steps.iter().rev().fold(outputs.to_vec(), |outputs, step| step.categories(&outputs))
}

/// The features that transformers make.
pub(super) struct Features {
    pub(super) values: FeatureMatrix,
    /// As in [`FeatureRows`].
    zeros_are_absent: bool,
}

/// Features in memory.
pub(super) enum FeatureMatrix {
    /// Dense rows of this many columns.
    Dense(Vec<f64>, usize),
    Sparse(SparseMatrix),
}

impl Features {
    /// `rows` with these features in place of their own.
    pub(super) fn rows<'a>(&'a self, rows: FeatureRows<'a>) -> FeatureRows<'a> {
        let zeros_are_absent = self.zeros_are_absent;
        let rows = FeatureRows { zeros_are_absent, ..rows };
        match &self.values {
            FeatureMatrix::Dense(values, columns) => rows.with_dense(values, *columns),
            FeatureMatrix::Sparse(matrix) => rows.with_sparse(matrix),
        }
    }
}

/// Applies `steps` to `rows` in turn; `None` without a step.
pub(super) fn apply_steps(
    steps: &[Box<dyn Transformer>],
    rows: FeatureRows,
    check: ValueCheck,
) -> Result<Option<Features>> {
    let mut features: Option<Features> = None;
    // The values of the step before the last, whose memory is used again.
    let mut spare = Vec::new();
    for step in steps {
        let mut from = features.as_ref().map_or(rows, |features| features.rows(rows));
        let dense;
        if let Some(matrix) = from.sparse
            && !step.facts().takes_sparse
        {
            dense = matrix.to_dense(0..matrix.len());
            from = from.with_dense(&dense, matrix.columns());
        }
        check.apply(from, step.facts().accepts)?;
        let zeros_are_absent = step.is_sparse_there(from.zeros_are_absent);
        let values = match step.makes_sparse(from.sparse.is_some()) {
            true => FeatureMatrix::Sparse(step.apply_sparse(from)?),
            false => {
                let mut to = std::mem::take(&mut spare);
                to.clear();
                to.resize(from.len() * step.output(), 0.0);
                step.apply(from, &mut to)?;
                FeatureMatrix::Dense(to, step.output())
            }
        };
        let made = Features { values, zeros_are_absent };
        if let Some(Features { values: FeatureMatrix::Dense(values, _), .. }) =
            features.replace(made)
        {
            spare = values;
        }
    }
    Ok(features)
}
