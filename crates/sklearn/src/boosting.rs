//! Gradient boosting: trees that add to the same sums.

use super::accepted::AcceptedValues;
use super::estimator::Estimator;
use super::forest::{LeafShape, compile_trees};
use super::model::{
    ClassScores, Classifier, Decisions, FeatureRows, Predictor, Regressor, StepFacts,
};
use super::numeric::{argmax, logistic, softmax};
use super::tree::SklearnTrees;
use tensorserve_tensor::error::Result;

/// How sums become predictions.
#[derive(Clone, Copy)]
pub(super) enum BoostingLink {
    Identity,
    /// The prediction is the exponential of the sum.
    Log,
    /// The log-odds of the second of two classes are this many times the sum.
    LogOdds(f64),
    /// The sums are the logits of the classes.
    Softmax,
}

/// Boosted trees. Tree number `i` adds to sum number `i` modulo the number of sums.
pub(super) struct BoostedTrees {
    trees: SklearnTrees,
    /// The initial value of each sum.
    baseline: Vec<f64>,
    link: BoostingLink,
    accepts: AcceptedValues,
}

impl BoostedTrees {
    /// Trees of a `GradientBoosting` estimator. No version of it accepts missing values.
    fn exact(
        estimator: &Estimator,
        trees: SklearnTrees,
        baseline: Vec<f64>,
        link: BoostingLink,
    ) -> Result<Self> {
        let accepts = AcceptedValues::FiniteSingle;
        check_baseline(estimator, &baseline)?;
        Ok(BoostedTrees { trees, baseline, link, accepts })
    }

    /// Trees of a `HistGradientBoosting` estimator.
    pub(super) fn histogram(
        estimator: &Estimator,
        trees: SklearnTrees,
        baseline: Vec<f64>,
        link: BoostingLink,
    ) -> Result<Self> {
        // 0.21 takes no missing values.
        let accepts = match estimator.is_older_than(0, 22) {
            true => AcceptedValues::Finite,
            false => AcceptedValues::Any,
        };
        check_baseline(estimator, &baseline)?;
        Ok(BoostedTrees { trees, baseline, link, accepts })
    }

    /// Writes the sums of each row.
    fn write_sums(&self, rows: FeatureRows, out: &mut [f64]) {
        let sums = self.baseline.len();
        out.chunks_exact_mut(sums).for_each(|out| out.copy_from_slice(&self.baseline));
        self.trees.walk(rows, |tree, row, leaf| {
            if let (Some(sum), [value]) = (out.get_mut(row * sums + tree % sums), leaf) {
                *sum += value;
            }
        });
    }
}

fn check_baseline(estimator: &Estimator, baseline: &[f64]) -> Result<()> {
    match baseline.is_empty() {
        true => Err(estimator.damaged("it has no baseline prediction")),
        false => Ok(()),
    }
}

impl Regressor for BoostedTrees {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.trees.features()).accepting(self.accepts)
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        self.write_sums(rows, out);
        if let BoostingLink::Log = self.link {
            out.iter_mut().for_each(|value| *value = value.exp());
        }
        Ok(())
    }
}

impl Classifier for BoostedTrees {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.trees.features()).accepting(self.accepts)
    }

    fn decisions(&self) -> Decisions {
        Decisions::Columns(self.baseline.len())
    }

    fn decide(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        self.write_sums(rows, out);
        Ok(())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let BoostingLink::LogOdds(factor) = self.link else {
            self.write_sums(rows, scores);
            let scores = scores.chunks_exact_mut(self.baseline.len());
            for (class, scores) in classes.iter_mut().zip(scores) {
                *class = argmax(scores);
                softmax(scores);
            }
            return Ok(());
        };
        let mut sums = vec![0.0; classes.len()];
        self.write_sums(rows, &mut sums);
        for ((class, scores), sum) in classes.iter_mut().zip(scores.chunks_exact_mut(2)).zip(sums) {
            let second = logistic(factor * sum);
            *class = usize::from(second > 0.5);
            scores.copy_from_slice(&[1.0 - second, second]);
        }
        Ok(())
    }
}

/// Reads a `GradientBoostingClassifier` or a `GradientBoostingRegressor`.
pub(super) fn read(estimator: &Estimator) -> Result<Predictor> {
    let members = estimator.children(&["estimators_"])?;
    let rate = estimator.number(&["learning_rate"])?;
    let shape = LeafShape { outputs: 1, width: 1 };
    let (trees, _) = compile_trees(estimator, &members, shape, |values, out| {
        out.extend(values.iter().map(|value| value * rate));
    })?;
    if estimator.class() == "GradientBoostingRegressor" {
        let baseline = vec![regressor_baseline(estimator)?];
        let model = BoostedTrees::exact(estimator, trees, baseline, BoostingLink::Identity)?;
        return Ok(Predictor::regressor(model));
    }
    let labels = estimator.labels()?;
    let (sums, link) = match (labels.len(), estimator.text("loss")?) {
        (0 | 1, _) => return Err(estimator.damaged("it has a single class")),
        (2, "exponential") => (1, BoostingLink::LogOdds(2.0)),
        (2, _) => (1, BoostingLink::LogOdds(1.0)),
        (classes, _) => (classes, BoostingLink::Softmax),
    };
    if !trees.len().is_multiple_of(sums) {
        return Err(estimator.damaged("a boosting round does not have one tree for each class"));
    }
    let baseline = classifier_baseline(estimator, sums, link)?;
    let model = BoostedTrees::exact(estimator, trees, baseline, link)?;
    Ok(Predictor::classifier(model, labels, ClassScores::ProbabilitiesAndLogs))
}

/// The estimator of the baseline; `None` for a baseline of 0.
fn baseline_estimator<'a>(estimator: &Estimator<'a>) -> Result<Option<Estimator<'a>>> {
    let Some(value) = estimator.find(&["init_"]) else { return Ok(None) };
    match value.text() {
        Some(_) => Ok(None),
        None => Ok(Some(estimator.child(value)?)),
    }
}

fn regressor_baseline(estimator: &Estimator) -> Result<f64> {
    let Some(init) = baseline_estimator(estimator)? else { return Ok(0.0) };
    match init.class() {
        "DummyRegressor" => init.number(&["constant_"]),
        "MeanEstimator" => init.number(&["mean"]),
        "QuantileEstimator" => init.number(&["quantile"]),
        "ZeroEstimator" => Ok(0.0),
        other => Err(estimator.unsupported(format_args!("init={other}"))),
    }
}

fn classifier_baseline(estimator: &Estimator, sums: usize, link: BoostingLink) -> Result<Vec<f64>> {
    let Some(init) = baseline_estimator(estimator)? else { return Ok(vec![0.0; sums]) };
    match init.class() {
        "DummyClassifier" => {}
        "ZeroEstimator" => return Ok(vec![0.0; sums]),
        "LogOddsEstimator" | "ScaledLogOddsEstimator" => return Ok(vec![init.number(&["prior"])?]),
        // Versions with this class used the probabilities themselves, not their logarithms.
        "PriorProbabilityEstimator" => return init.vector_of_len(&["priors"], sums),
        other => return Err(estimator.unsupported(format_args!("init={other}"))),
    }
    let priors = init.vector(&["class_prior_"])?;
    match (link, &*priors) {
        (BoostingLink::LogOdds(factor), [_, second]) => {
            let prior = clip_prior(*second);
            Ok(vec![(prior / (1.0 - prior)).ln() / factor])
        }
        (BoostingLink::Softmax, priors) if priors.len() == sums => {
            let mut logs: Vec<f64> = priors.iter().map(|prior| clip_prior(*prior).ln()).collect();
            // Since 1.4 their mean is 0, which only the decision function shows.
            if !estimator.is_older_than(1, 4) {
                let mean = logs.iter().sum::<f64>() / logs.len() as f64;
                logs.iter_mut().for_each(|log| *log -= mean);
            }
            Ok(logs)
        }
        _ => {
            let count = priors.len();
            Err(init.damaged(format_args!("class_prior_ has {count} elements for {sums} sums")))
        }
    }
}

/// Keeps the logarithm of a prior probability finite.
fn clip_prior(prior: f64) -> f64 {
    let smallest = f64::from(f32::EPSILON);
    prior.clamp(smallest, 1.0 - smallest)
}
