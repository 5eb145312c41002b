//! What a meta-estimator takes from its members: classes, probabilities or the decision function.

use super::estimator::Estimator;
use super::model::{
    Decisions, FeatureRows, LabelledClassifier, Predictions, Predictor, SklearnModel,
};
use tensorserve_tensor::error::{Error, Result};

/// A method of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseMethod {
    Predict,
    Probability,
    Decision,
}

/// The values that a member answers with for each row.
pub(super) struct MemberResponse {
    /// How many there are for each row.
    pub(super) columns: usize,
    /// One row after the other.
    pub(super) values: Vec<f64>,
}

impl MemberResponse {
    /// Column `column` of all rows.
    pub(super) fn column(&self, column: usize) -> impl Iterator<Item = f64> {
        self.values.iter().skip(column).step_by(self.columns.max(1)).copied()
    }
}

impl ResponseMethod {
    /// The first of `methods` that the predictor of `model` has, as scikit-learn looks for it.
    pub(super) fn first(
        estimator: &Estimator,
        model: &SklearnModel,
        methods: &[ResponseMethod],
    ) -> Result<ResponseMethod> {
        for method in methods {
            let has = match method {
                ResponseMethod::Predict => true,
                ResponseMethod::Probability => model.predictor.has_probabilities(),
                ResponseMethod::Decision => match model.predictor.decisions() {
                    Decisions::None => false,
                    Decisions::Columns(_) => true,
                    Decisions::Unsupported => {
                        return Err(estimator.unsupported("the decision function of a member"));
                    }
                },
            };
            if has {
                return Ok(*method);
            }
        }
        Err(estimator.unsupported("a member without probabilities and without a decision function"))
    }

    /// The method of scikit-learn of this name.
    pub(super) fn named(estimator: &Estimator, name: &str) -> Result<ResponseMethod> {
        match name {
            "predict" => Ok(ResponseMethod::Predict),
            "predict_proba" => Ok(ResponseMethod::Probability),
            "decision_function" => Ok(ResponseMethod::Decision),
            other => Err(estimator.unsupported(format_args!("the method {other:?} of a member"))),
        }
    }
}

impl SklearnModel {
    /// How many values it answers with for each row: those of all classes for a probability.
    pub(super) fn response_width(&self, method: ResponseMethod) -> usize {
        match (&self.predictor, method) {
            (Predictor::Regressor(model), _) => model.outputs().unwrap_or(1),
            (Predictor::Classifier(classifier), ResponseMethod::Probability) => {
                classifier.labels.len()
            }
            (Predictor::Classifier(_), ResponseMethod::Decision) => {
                match self.predictor.decisions() {
                    Decisions::Columns(columns) => columns,
                    Decisions::None | Decisions::Unsupported => 0,
                }
            }
            (Predictor::Classifier(_), ResponseMethod::Predict) => 1,
            (Predictor::MultiClassifier(model), ResponseMethod::Probability) => {
                model.scores().widths(model.labels()).iter().sum()
            }
            (Predictor::MultiClassifier(model), _) => model.labels().len(),
            (Predictor::Features(columns), _) => *columns,
        }
    }

    /// What it answers for `rows`: as a member of an ensemble, all rows at once.
    pub(super) fn respond(
        &self,
        rows: FeatureRows,
        method: ResponseMethod,
    ) -> Result<MemberResponse> {
        if method == ResponseMethod::Decision {
            let (columns, values) = self.decide_member(rows)?;
            return Ok(MemberResponse { columns, values });
        }
        let columns = self.response_width(method);
        let values = match (&self.predictor, self.run_member(rows)?) {
            (_, Predictions::Numbers(numbers)) => numbers,
            (Predictor::Classifier(classifier), Predictions::Classes { classes, mut scores }) => {
                match method {
                    ResponseMethod::Predict => classifier.label_numbers(&classes),
                    ResponseMethod::Probability | ResponseMethod::Decision => {
                        if classifier.scores.are_logs() {
                            scores.iter_mut().for_each(|score| *score = score.exp());
                        }
                        scores
                    }
                }
            }
            (Predictor::MultiClassifier(model), Predictions::MultiClasses { mut scores, .. })
                if method == ResponseMethod::Probability =>
            {
                if model.scores().are_logs() {
                    scores.iter_mut().flatten().for_each(|score| *score = score.exp());
                }
                side_by_side(&scores, &model.scores().widths(model.labels()), rows.len())
            }
            (Predictor::MultiClassifier(model), Predictions::MultiClasses { classes, .. }) => {
                let labels = model.labels();
                let of_row = |row: &[usize]| -> Vec<f64> {
                    row.iter().zip(labels).map(|(class, labels)| labels.number(*class)).collect()
                };
                classes.chunks_exact(labels.len().max(1)).flat_map(of_row).collect()
            }
            _ => return Err(Error::internal("a member made predictions of another kind")),
        };
        Ok(MemberResponse { columns, values })
    }
}

/// The rows of several matrices, of these widths, beside each other.
fn side_by_side(matrices: &[Vec<f64>], widths: &[usize], rows: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(matrices.iter().map(Vec::len).sum());
    for row in 0..rows {
        for (matrix, width) in matrices.iter().zip(widths) {
            out.extend_from_slice(matrix.get(row * width..(row + 1) * width).unwrap_or_default());
        }
    }
    out
}

impl LabelledClassifier {
    /// The labels of `classes`, as numbers.
    fn label_numbers(&self, classes: &[usize]) -> Vec<f64> {
        classes.iter().map(|class| self.labels.number(*class)).collect()
    }
}
