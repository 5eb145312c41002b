//! Estimators that change what another one predicts: `FixedThresholdClassifier`,
//! `TunedThresholdClassifierCV` and `TransformedTargetRegressor`.

use super::columns::ColumnUse;
use super::compile;
use super::estimator::Estimator;
use super::function::TargetFunction;
use super::model::{
    ClassScores, Classifier, FeatureRows, Predictions, Predictor, Regressor, SklearnModel,
    StepFacts,
};
use super::response::ResponseMethod;
use tensorserve_tensor::error::Result;

/// A classifier of two classes with another threshold.
struct ThresholdClassifier {
    model: SklearnModel,
    method: ResponseMethod,
    threshold: f64,
    /// The class that is predicted from the threshold on.
    positive: usize,
}

impl Classifier for ThresholdClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.model.features()).accepting(self.model.accepts()).sparse()
    }

    fn uses(&self) -> Vec<ColumnUse> {
        self.model.uses()
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let response = self.model.respond(rows, self.method)?;
        let column = if self.method == ResponseMethod::Probability { self.positive } else { 0 };
        let sign = match self.method {
            ResponseMethod::Decision if self.positive == 0 => -1.0,
            ResponseMethod::Decision | ResponseMethod::Probability | ResponseMethod::Predict => 1.0,
        };
        for (class, value) in classes.iter_mut().zip(response.column(column)) {
            let is_positive = sign * value >= self.threshold;
            *class = if is_positive { self.positive } else { 1 - self.positive };
        }
        if self.model.predictor.scores() != ClassScores::None
            && let Predictions::Classes { scores: own, .. } = self.model.run_member(rows)?
        {
            scores.iter_mut().zip(own).for_each(|(to, score)| *to = score);
        }
        Ok(())
    }
}

/// Reads a `FixedThresholdClassifier` or a `TunedThresholdClassifierCV`.
pub(super) fn threshold(estimator: &Estimator) -> Result<Predictor> {
    let inner = estimator.child(estimator.attribute(&["estimator_", "estimator"])?)?;
    let model = compile::compile_part(&inner)?;
    let methods = match estimator.text("response_method")? {
        "predict_proba" => vec![ResponseMethod::Probability],
        "decision_function" => vec![ResponseMethod::Decision],
        _ => vec![ResponseMethod::Probability, ResponseMethod::Decision],
    };
    let method = ResponseMethod::first(estimator, &model, &methods)?;
    let threshold = estimator.find(&["best_threshold_", "threshold"]);
    let threshold = match threshold.and_then(|threshold| threshold.float()) {
        Some(threshold) => threshold,
        // "auto".
        None if method == ResponseMethod::Probability => 0.5,
        None => 0.0,
    };
    let Predictor::Classifier(classifier) = &model.predictor else {
        return Err(estimator.damaged("its estimator is not a classifier"));
    };
    let (labels, scores) = (classifier.labels.clone(), classifier.scores);
    let scorer = estimator.find(&["_curve_scorer"]);
    let scored = scorer.and_then(|scorer| scorer.attribute("_kwargs")?.get("pos_label"));
    let label = estimator.find(&["pos_label"]).or(scored).filter(|label| !label.is_none());
    let positive = match label {
        None => Some(1),
        Some(label) => labels.index_of(label),
    };
    let positive = positive.filter(|class| *class < 2 && labels.len() == 2);
    let positive = positive.ok_or_else(|| estimator.damaged("it does not have two classes"))?;
    let model = ThresholdClassifier { model, method, threshold, positive };
    Ok(Predictor::classifier(model, labels, scores))
}

/// A regressor whose predictions are transformed.
struct TransformedRegressor {
    model: SklearnModel,
    function: TargetFunction,
    outputs: Option<usize>,
}

impl Regressor for TransformedRegressor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.model.features()).accepting(self.model.accepts()).sparse()
    }

    fn outputs(&self) -> Option<usize> {
        self.outputs
    }

    fn uses(&self) -> Vec<ColumnUse> {
        self.model.uses()
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let response = self.model.respond(rows, ResponseMethod::Predict)?;
        out.iter_mut().zip(response.values).for_each(|(out, value)| *out = value);
        self.function.apply(out, response.columns);
        Ok(())
    }
}

/// Reads a `TransformedTargetRegressor`.
pub(super) fn transformed_target(estimator: &Estimator) -> Result<Predictor> {
    let inner = estimator.child(estimator.attribute(&["regressor_"])?)?;
    let model = compile::compile_part(&inner)?;
    let Predictor::Regressor(regressor) = &model.predictor else {
        return Err(estimator.damaged("its estimator is not a regressor"));
    };
    // Targets in one dimension stay in one, even if the transformer makes a column of them.
    let outputs = match estimator.count(&["_training_dim"]) {
        Ok(1) => None,
        _ => Some(regressor.outputs().unwrap_or(1)),
    };
    let columns = regressor.outputs().unwrap_or(1);
    let transformer = estimator.child(estimator.attribute(&["transformer_"])?)?;
    let function = TargetFunction::inverse(&transformer, columns)?;
    Ok(Predictor::regressor(TransformedRegressor { model, function, outputs }))
}
