//! `CalibratedClassifierCV`, and the isotonic regression that it may use.

use super::accepted::{AcceptedValues, not_finite};
use super::columns::ColumnUse;
use super::compile;
use super::estimator::{ClassLabels, Estimator};
use super::model::{
    ClassScores, Classifier, FeatureRows, Predictor, Regressor, SklearnModel, StepFacts,
};
use super::numeric::{argmax, logistic, softmax};
use super::response::ResponseMethod;
use tensorserve_tabular::numeric::Isotonic;
use tensorserve_tensor::error::Result;

/// How far a probability may be above 1 by rounding.
const ROUNDING_TOLERANCE: f64 = 1e-5;

/// What is added to a probability before its logarithm is taken.
const LOG_OFFSET: f64 = 1e-12;

/// An increasing or decreasing function through points, with straight lines between these.
struct IsotonicFunction {
    points: Isotonic,
    /// Whether a value beyond the points has that of the next point; otherwise NaN.
    clips: bool,
}

impl IsotonicFunction {
    fn read(estimator: &Estimator) -> Result<Self> {
        let x = estimator.vector(&["X_thresholds_", "_necessary_X_"])?;
        let y = estimator.vector_of_len(&["y_thresholds_", "_necessary_y_"], x.len())?;
        let points =
            Isotonic::new(x, y).ok_or_else(|| estimator.damaged("X_thresholds_ is empty"))?;
        let clips = match estimator.text("out_of_bounds")? {
            "clip" => true,
            "nan" => false,
            _ => return Err(estimator.unsupported("out_of_bounds=\"raise\"")),
        };
        Ok(IsotonicFunction { points, clips })
    }

    fn at(&self, value: f64) -> f64 {
        let (first, last) = self.points.bounds();
        if value.is_nan() || (!self.clips && !(first..=last).contains(&value)) {
            return f64::NAN;
        }
        let value = if value < first { first } else { value };
        let value = if value > last { last } else { value };
        let Some(((x0, y0), (x1, y1))) = self.points.around(value) else {
            return self.points.point(0).1;
        };
        (y1 - y0) / (x1 - x0) * (value - x0) + y0
    }
}

impl Regressor for IsotonicFunction {
    fn facts(&self) -> StepFacts {
        StepFacts::of(1)
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        out.iter_mut().zip(rows.values).for_each(|(out, value)| *out = self.at(*value));
        Ok(())
    }
}

/// Reads an `IsotonicRegression`, of one feature.
pub(super) fn isotonic(estimator: &Estimator) -> Result<Predictor> {
    Ok(Predictor::regressor(IsotonicFunction::read(estimator)?))
}

/// Makes a probability of a value.
enum Calibrator {
    Sigmoid { slope: f64, offset: f64 },
    Isotonic(IsotonicFunction),
}

impl Calibrator {
    fn read(estimator: &Estimator) -> Result<Self> {
        match estimator.class() {
            "IsotonicRegression" => IsotonicFunction::read(estimator).map(Calibrator::Isotonic),
            "_SigmoidCalibration" => Ok(Calibrator::Sigmoid {
                slope: estimator.number(&["a_"])?,
                offset: estimator.number(&["b_"])?,
            }),
            _ => Err(estimator.unsupported("this calibrator")),
        }
    }

    fn at(&self, value: f64) -> f64 {
        match self {
            Calibrator::Sigmoid { slope, offset } => logistic(-(slope * value + offset)),
            Calibrator::Isotonic(function) => function.at(value),
        }
    }
}

/// How the answer of a member is calibrated.
enum MemberCalibration {
    /// Each class by its own function.
    ByClass(Vec<Calibrator>),
    /// All logits multiplied by a number.
    Temperature(f64),
}

/// A member, and the calibration of its answer.
struct CalibratedMember {
    model: SklearnModel,
    method: ResponseMethod,
    calibration: MemberCalibration,
    /// For each of the member's classes, the index in the whole.
    classes: Vec<usize>,
    /// Whether probabilities that are NaN count as equal: before 1.0.
    replaces_nan: bool,
}

impl CalibratedMember {
    /// Adds the probabilities of each row to `scores`, `classes` for each row.
    fn add(&self, rows: FeatureRows, scores: &mut [f64], classes: usize) -> Result<()> {
        let response = self.model.respond(rows, self.method)?;
        let mut probabilities = vec![0.0; classes];
        let is_temperature = matches!(self.calibration, MemberCalibration::Temperature(_));
        if is_temperature && !response.values.iter().all(|value| value.is_finite()) {
            return Err(not_finite());
        }
        let values = response.values.chunks_exact(response.columns.max(1));
        for (values, scores) in values.zip(scores.chunks_exact_mut(classes)) {
            self.calibrate(values, &mut probabilities);
            if self.replaces_nan {
                let uniform = 1.0 / classes as f64;
                probabilities.iter_mut().filter(|value| value.is_nan()).for_each(|x| *x = uniform);
            }
            for (score, probability) in scores.iter_mut().zip(&probabilities) {
                let is_rounded = *probability > 1.0 && *probability <= 1.0 + ROUNDING_TOLERANCE;
                *score += if is_rounded { 1.0 } else { *probability };
            }
        }
        Ok(())
    }

    /// Writes the probabilities of a row for which the member answers `values`.
    fn calibrate(&self, values: &[f64], out: &mut [f64]) {
        let calibrators = match &self.calibration {
            MemberCalibration::ByClass(calibrators) => calibrators,
            MemberCalibration::Temperature(factor) => return self.scale(values, *factor, out),
        };
        if let [first, second] = out {
            // The last value is that of the second class: of two probabilities, or the only one.
            let value = values.last().copied().unwrap_or(f64::NAN);
            *second = calibrators.first().map_or(f64::NAN, |calibrator| calibrator.at(value));
            *first = 1.0 - *second;
            return;
        }
        out.fill(0.0);
        for ((value, calibrator), class) in values.iter().zip(calibrators).zip(&self.classes) {
            if let Some(out) = out.get_mut(*class) {
                *out = calibrator.at(*value);
            }
        }
        let sum: f64 = out.iter().sum();
        let uniform = 1.0 / out.len() as f64;
        out.iter_mut().for_each(|out| *out = if sum == 0.0 { uniform } else { *out / sum });
    }

    /// The softmax of the logits of `values`, each multiplied by `factor`.
    fn scale(&self, values: &[f64], factor: f64, out: &mut [f64]) {
        match values {
            [only] => out.copy_from_slice(&[-only * factor, only * factor]),
            // As scikit-learn has it, the first of two probabilities is what is missing from 1.
            [_, second] if self.method == ResponseMethod::Probability => {
                let logit = |value: f64| factor * (value + LOG_OFFSET).ln();
                out.copy_from_slice(&[logit(1.0 - second), logit(*second)]);
            }
            values => {
                let are_logs = self.method == ResponseMethod::Probability;
                for (out, value) in out.iter_mut().zip(values) {
                    *out = factor * if are_logs { (value + LOG_OFFSET).ln() } else { *value };
                }
            }
        }
        softmax(out);
    }
}

struct CalibratedClassifier {
    features: usize,
    members: Vec<CalibratedMember>,
    classes: usize,
}

impl Classifier for CalibratedClassifier {
    fn facts(&self) -> StepFacts {
        let members = self.members.iter().map(|member| member.model.accepts());
        let accepts = members.fold(AcceptedValues::Any, AcceptedValues::both);
        StepFacts::of(self.features).accepting(accepts).sparse()
    }

    fn uses(&self) -> Vec<ColumnUse> {
        compile::uses_of_all(self.features, self.members.iter().map(|member| &member.model))
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        for member in &self.members {
            member.add(rows, scores, self.classes)?;
        }
        let count = self.members.len() as f64;
        for (class, scores) in classes.iter_mut().zip(scores.chunks_exact_mut(self.classes)) {
            scores.iter_mut().for_each(|score| *score /= count);
            *class = argmax(scores);
        }
        Ok(())
    }
}

/// Reads a `CalibratedClassifierCV`.
pub(super) fn read(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let classes = labels.len();
    let mut members = Vec::new();
    for part in estimator.children(&["calibrated_classifiers_"])? {
        members.push(read_member(estimator, &part, &labels)?);
    }
    let features = compile::same_features(estimator, members.iter().map(|member| &member.model))?;
    let model = CalibratedClassifier { features, members, classes };
    Ok(Predictor::classifier(model, labels, ClassScores::Probabilities))
}

fn read_member(
    estimator: &Estimator,
    part: &Estimator,
    labels: &ClassLabels,
) -> Result<CalibratedMember> {
    let inner = part.child(part.attribute(&["estimator", "base_estimator"])?)?;
    let model = compile::compile_part(&inner)?;
    let method = ResponseMethod::first(
        part,
        &model,
        &[ResponseMethod::Decision, ResponseMethod::Probability],
    )?;
    // Decisions by pairs of classes were scaled by the largest of all rows of a request.
    let by_pairs = matches!(inner.class(), "SVC" | "NuSVC" | "OneVsOneClassifier");
    if by_pairs
        && method == ResponseMethod::Decision
        && labels.len() > 2
        && estimator.is_older_than(0, 21)
    {
        return Err(part.unsupported(
            "a member that votes by pairs of classes, of scikit-learn before 0.21, whose probabilities \
             depend on the other rows of a request,",
        ));
    }
    let calibrators = part.children(&["calibrators", "calibrators_"])?;
    let wrong = || part.damaged("its calibrators do not fit the classes");
    let Predictor::Classifier(classifier) = &model.predictor else {
        return Err(part.damaged("its member is not a classifier"));
    };
    // For a temperature, members are fitted with the indices of the labels.
    let is_temperature = part.text("method")? == "temperature";
    let classes = match is_temperature {
        true => (0..labels.len()).collect(),
        false => classifier.labels.places_in(labels).ok_or_else(wrong)?,
    };
    let width = model.response_width(method);
    let calibration = match (is_temperature, &*calibrators) {
        (true, [only]) => MemberCalibration::Temperature(only.number(&["beta_"])?),
        _ => {
            let all = calibrators.iter().map(Calibrator::read).collect::<Result<Vec<_>>>()?;
            MemberCalibration::ByClass(all)
        }
    };
    let replaces_nan = estimator.is_older_than(1, 0);
    let is_binary = labels.len() == 2;
    let fits = match &calibration {
        MemberCalibration::ByClass(all) if is_binary => all.len() == 1 && matches!(width, 1 | 2),
        MemberCalibration::ByClass(all) => all.len() == width && width == classes.len(),
        MemberCalibration::Temperature(_) => width == labels.len() || (is_binary && width == 1),
    };
    match fits {
        true => Ok(CalibratedMember { model, method, calibration, classes, replaces_nan }),
        false => Err(wrong()),
    }
}
