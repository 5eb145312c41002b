//! Several outputs: `MultiOutputClassifier`, `MultiOutputRegressor`, `ClassifierChain` and `RegressorChain`.

use super::accepted::AcceptedValues;
use super::columns::ColumnUse;
use super::compile;
use super::estimator::{ClassLabels, Estimator};
use super::model::{
    ClassScores, Decisions, FeatureRows, MultiClassifier, MultiScores, Predictions, Predictor,
    Regressor, SklearnModel, StepFacts,
};
use super::response::ResponseMethod;
use tensorserve_tensor::error::Result;

/// A model for each output.
struct OutputModels {
    features: usize,
    models: Vec<SklearnModel>,
}

impl OutputModels {
    fn read(estimator: &Estimator) -> Result<Self> {
        let members = estimator.children(&["estimators_"])?;
        let models = members.iter().map(compile::compile_part).collect::<Result<Vec<_>>>()?;
        let features = compile::same_features(estimator, models.iter())?;
        Ok(OutputModels { features, models })
    }

    fn accepts(&self) -> AcceptedValues {
        self.models
            .iter()
            .map(SklearnModel::accepts)
            .fold(AcceptedValues::Any, AcceptedValues::both)
    }

    fn uses(&self) -> Vec<ColumnUse> {
        compile::uses_of_all(self.features, self.models.iter())
    }
}

/// Writes one value for each row to column `column` of `out`, which has `width` columns.
fn write_column<T>(out: &mut [T], width: usize, column: usize, values: impl Iterator<Item = T>) {
    out.iter_mut().skip(column).step_by(width.max(1)).zip(values).for_each(|(out, v)| *out = v);
}

struct MultiRegressor(OutputModels);

impl Regressor for MultiRegressor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.0.features).accepting(self.0.accepts()).sparse()
    }

    fn outputs(&self) -> Option<usize> {
        Some(self.0.models.len())
    }

    fn uses(&self) -> Vec<ColumnUse> {
        self.0.uses()
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        for (column, model) in self.0.models.iter().enumerate() {
            let response = model.respond(rows, ResponseMethod::Predict)?;
            write_column(out, self.0.models.len(), column, response.column(0));
        }
        Ok(())
    }
}

/// Reads a `MultiOutputRegressor`.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    let models = OutputModels::read(estimator)?;
    let are_regressors = models.models.iter().all(|model| match &model.predictor {
        Predictor::Regressor(model) => model.outputs().is_none(),
        Predictor::Classifier(_) | Predictor::MultiClassifier(_) | Predictor::Features(_) => false,
    });
    match are_regressors {
        true => Ok(Predictor::regressor(MultiRegressor(models))),
        false => Err(estimator.damaged("a member does not predict one number")),
    }
}

struct OutputClassifiers {
    models: OutputModels,
    labels: Vec<ClassLabels>,
    scores: MultiScores,
}

impl MultiClassifier for OutputClassifiers {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.models.features).accepting(self.models.accepts()).sparse()
    }

    fn uses(&self) -> Vec<ColumnUse> {
        self.models.uses()
    }

    fn labels(&self) -> &[ClassLabels] {
        &self.labels
    }

    fn scores(&self) -> MultiScores {
        self.scores
    }

    fn classify(
        &self,
        rows: FeatureRows,
        classes: &mut [usize],
        scores: &mut [Vec<f64>],
    ) -> Result<()> {
        for (column, model) in self.models.models.iter().enumerate() {
            if let Predictions::Classes { classes: own, scores: own_scores } =
                model.run_member(rows)?
            {
                write_column(classes, self.labels.len(), column, own.into_iter());
                if let Some(scores) = scores.get_mut(column) {
                    *scores = probabilities(model, own_scores);
                }
            }
        }
        Ok(())
    }
}

/// The probabilities of `scores`, which may be their logarithms.
fn probabilities(model: &SklearnModel, mut scores: Vec<f64>) -> Vec<f64> {
    if model.predictor.scores().are_logs() {
        scores.iter_mut().for_each(|score| *score = score.exp());
    }
    scores
}

/// The labels of all members, which must be of one type.
fn labels_of(estimator: &Estimator, models: &[SklearnModel]) -> Result<Vec<ClassLabels>> {
    let mut labels: Vec<ClassLabels> = Vec::with_capacity(models.len());
    for model in models {
        let Predictor::Classifier(classifier) = &model.predictor else {
            return Err(estimator.damaged("a member is not a classifier of one output"));
        };
        labels.push(classifier.labels.clone());
    }
    estimator.check_types(&labels)?;
    Ok(labels)
}

/// Reads a `MultiOutputClassifier`.
pub(super) fn classifier(estimator: &Estimator) -> Result<Predictor> {
    let models = OutputModels::read(estimator)?;
    let labels = labels_of(estimator, &models.models)?;
    let have = models.models.iter().all(|model| model.predictor.scores() != ClassScores::None);
    let scores = match have {
        true => MultiScores::Separate(ClassScores::Probabilities),
        false => MultiScores::None,
    };
    Ok(Predictor::MultiClassifier(Box::new(OutputClassifiers { models, labels, scores })))
}

/// Models, each of which is also given what those before it predict.
struct ModelChain {
    features: usize,
    models: Vec<SklearnModel>,
    /// The output of each model.
    order: Vec<usize>,
    /// What is given to the models that follow.
    method: ResponseMethod,
}

impl ModelChain {
    fn read(estimator: &Estimator) -> Result<Self> {
        let members = estimator.children(&["estimators_"])?;
        let models = members.iter().map(compile::compile_part).collect::<Result<Vec<_>>>()?;
        let first = models.first().ok_or_else(|| estimator.damaged("it has no members"))?;
        let features = first.features();
        let mut widths = models.iter().enumerate();
        if widths.any(|(number, model)| model.features() != features + number) {
            return Err(estimator.damaged("a member does not take the answers of those before it"));
        }
        let wrong = || estimator.damaged("order_ is not an order of the outputs");
        let mut order = Vec::with_capacity(models.len());
        for place in estimator.vector_of_len(&["order_"], models.len())? {
            let place = place as usize;
            if place >= models.len() || order.contains(&place) {
                return Err(wrong());
            }
            order.push(place);
        }
        let method = match estimator.text("chain_method_")? {
            "" => ResponseMethod::Predict,
            name => ResponseMethod::named(estimator, name)?,
        };
        Ok(ModelChain { features, models, order, method })
    }

    /// Calls `take` with each model, its output, and its rows.
    fn run(
        &self,
        rows: FeatureRows,
        mut take: impl FnMut(&SklearnModel, usize, FeatureRows) -> Result<()>,
    ) -> Result<()> {
        let widest = self.features + self.models.len();
        let mut wide = vec![0.0; rows.len() * widest];
        for (to, row) in wide.chunks_exact_mut(widest).zip(rows.iter()) {
            to.iter_mut().zip(row).for_each(|(to, value)| *to = *value);
        }
        for (number, (model, output)) in self.models.iter().zip(&self.order).enumerate() {
            let columns = self.features + number;
            let values: Vec<f64> = wide
                .chunks_exact(widest)
                .flat_map(|row| row.iter().take(columns))
                .copied()
                .collect();
            let own = rows.with_dense(&values, columns);
            take(model, *output, own)?;
            let method = match &model.predictor {
                Predictor::Classifier(_) => self.method,
                Predictor::Regressor(_)
                | Predictor::MultiClassifier(_)
                | Predictor::Features(_) => ResponseMethod::Predict,
            };
            let response = model.respond(own, method)?;
            let last = response.columns.saturating_sub(1);
            write_column(&mut wide, widest, columns, response.column(last));
        }
        Ok(())
    }

    fn accepts(&self) -> AcceptedValues {
        let all = self.models.iter().map(SklearnModel::accepts);
        all.fold(AcceptedValues::Finite, AcceptedValues::both)
    }
}

impl Regressor for ModelChain {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).accepting(ModelChain::accepts(self))
    }

    fn outputs(&self) -> Option<usize> {
        Some(self.models.len())
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        self.run(rows, |model, output, rows| {
            let response = model.respond(rows, ResponseMethod::Predict)?;
            write_column(out, self.models.len(), output, response.column(0));
            Ok(())
        })
    }
}

/// Reads a `RegressorChain`.
pub(super) fn regressor_chain(estimator: &Estimator) -> Result<Predictor> {
    Ok(Predictor::regressor(ModelChain::read(estimator)?))
}

struct ClassifierChain {
    chain: ModelChain,
    labels: Vec<ClassLabels>,
    scores: MultiScores,
}

impl MultiClassifier for ClassifierChain {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.chain.features).accepting(self.chain.accepts())
    }

    fn labels(&self) -> &[ClassLabels] {
        &self.labels
    }

    fn scores(&self) -> MultiScores {
        self.scores
    }

    fn decisions(&self) -> Decisions {
        Decisions::Unsupported
    }

    fn classify(
        &self,
        rows: FeatureRows,
        classes: &mut [usize],
        scores: &mut [Vec<f64>],
    ) -> Result<()> {
        let width = self.labels.len();
        self.chain.run(rows, |model, output, rows| {
            let Predictions::Classes { classes: own, scores: own_scores } =
                model.run_member(rows)?
            else {
                return Ok(());
            };
            write_column(classes, width, output, own.into_iter());
            if let [scores] = &mut *scores {
                let own = probabilities(model, own_scores);
                write_column(scores, width, output, own.into_iter().skip(1).step_by(2));
            }
            Ok(())
        })
    }
}

/// Reads a `ClassifierChain`, of which each output has two classes. Its predictions are floats.
pub(super) fn classifier_chain(estimator: &Estimator) -> Result<Predictor> {
    let mut chain = ModelChain::read(estimator)?;
    // Before 1.4, what follows is always given classes.
    if estimator.find(&["chain_method_"]).is_none() {
        chain.method = ResponseMethod::Predict;
    }
    let mut by_output: Vec<Option<ClassLabels>> = vec![None; chain.models.len()];
    for (labels, output) in labels_of(estimator, &chain.models)?.into_iter().zip(&chain.order) {
        if labels.len() != 2 {
            return Err(estimator.unsupported("an output that does not have two classes"));
        }
        let floats = ClassLabels::Floats((0..labels.len()).map(|at| labels.number(at)).collect());
        if let Some(place) = by_output.get_mut(*output) {
            *place = Some(floats);
        }
    }
    let labels: Vec<ClassLabels> = by_output.into_iter().flatten().collect();
    let have = chain.models.iter().all(|model| model.predictor.scores() != ClassScores::None);
    let scores = match (have, estimator.is_older_than(1, 4)) {
        (false, _) => MultiScores::None,
        (true, true) => MultiScores::Joint(ClassScores::Probabilities),
        (true, false) => MultiScores::Joint(ClassScores::ProbabilitiesAndLogs),
    };
    Ok(Predictor::MultiClassifier(Box::new(ClassifierChain { chain, labels, scores })))
}
