//! Support vector machines with kernels, as libsvm defines them.

use super::estimator::{ClassLabels, Estimator};
use super::kernel::Kernel;
use super::known_rows::KnownRows;
use super::model::{
    ClassScores, Classifier, Decisions, FeatureRows, Predictor, Regressor, StepFacts,
};
use super::numeric::{argmax, dot, logistic};
use tensorserve_tensor::error::Result;

/// libsvm's bound on the probabilities of pairs (`min_prob`).
const MIN_PROBABILITY: f64 = 1e-7;

/// libsvm's minimum number of iterations of pairwise coupling, and its tolerance, which is divided by
/// the number of classes.
const MIN_ITERATIONS: usize = 100;
const TOLERANCE: f64 = 0.005;

/// The support vectors of a machine with their coefficients.
struct SupportVectors {
    kernel: Kernel,
    vectors: KnownRows,
    count: usize,
    /// Sets of dual coefficients of all vectors, one set after the other.
    coefficients: Vec<f64>,
    intercepts: Vec<f64>,
}

impl SupportVectors {
    fn read(estimator: &Estimator) -> Result<Self> {
        let gamma = estimator.optional_number(&["_gamma"])?.unwrap_or(0.0);
        let kernel = Kernel::read(estimator, gamma)?;
        let vectors = KnownRows::read(estimator, &["support_vectors_"])?;
        let count = vectors.len();
        let (width, coefficients) = read_coefficients(estimator)?;
        if width != count {
            return Err(estimator.damaged(format_args!(
                "dual_coef_ has {width} columns for {count} support vectors"
            )));
        }
        let intercepts = estimator.vector(&["_intercept_", "intercept_"])?;
        Ok(SupportVectors { kernel, vectors, count, coefficients, intercepts })
    }
}

/// The sets of dual coefficients: the length of a set, and one set after the other.
fn read_coefficients(estimator: &Estimator) -> Result<(usize, Vec<f64>)> {
    let names = ["_dual_coef_", "dual_coef_"];
    if !estimator.has_sparse(&names) {
        let coefficients = estimator.matrix(&names)?;
        return Ok((coefficients.columns, coefficients.values));
    }
    let coefficients = estimator.sparse_matrix(&names)?;
    let (sets, width) = (coefficients.len(), coefficients.columns());
    estimator.charge(sets.saturating_mul(width))?;
    Ok((width, coefficients.to_dense(0..sets)))
}

struct SvmRegressor(SupportVectors);

impl Regressor for SvmRegressor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.0.vectors.features()).sparse_if(self.0.vectors.are_sparse())
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let mut kernels = vec![0.0; self.0.count];
        let intercept = self.0.intercepts.first().copied().unwrap_or(0.0);
        let rows = self.0.vectors.compare(rows);
        for (row, out) in out.iter_mut().enumerate() {
            rows.evaluate(row, &self.0.kernel, &mut kernels);
            *out = dot(&kernels, &self.0.coefficients) + intercept;
        }
        Ok(())
    }
}

/// Reads an `SVR` or a `NuSVR`.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    let machine = SupportVectors::read(estimator)?;
    if machine.coefficients.len() != machine.count || machine.intercepts.len() != 1 {
        return Err(estimator.damaged("it does not have one set of coefficients and one intercept"));
    }
    Ok(Predictor::regressor(SvmRegressor(machine)))
}

/// A machine for each pair of classes. Pairs are in the order (0, 1), (0, 2), …, (1, 2), …
struct SvmClassifier {
    machine: SupportVectors,
    classes: usize,
    /// Where the support vectors of each class start, and where the last ones end.
    starts: Vec<usize>,
    /// For each pair, slope and offset of the sigmoid that makes a probability of its decision.
    sigmoids: Option<Vec<(f64, f64)>>,
    /// Whether ties of votes are broken by the sum of decisions.
    breaks_ties: bool,
    /// Whether `decision_function` has a value for each class, not for each pair.
    decides_by_class: bool,
}

impl SvmClassifier {
    /// The sum over the support vectors of `class` of coefficient times kernel, with the coefficients
    /// of set `set`.
    fn partial_sum(&self, set: usize, class: usize, kernels: &[f64]) -> f64 {
        let (Some(start), Some(end)) = (self.starts.get(class), self.starts.get(class + 1)) else {
            return 0.0;
        };
        let offset = set * self.machine.count;
        let coefficients = self.machine.coefficients.get(offset + start..offset + end);
        dot(coefficients.unwrap_or_default(), kernels.get(*start..*end).unwrap_or_default())
    }

    /// Writes the decision of each pair of classes: above 0 for the first of the two.
    fn decide_pairs(&self, kernels: &[f64], decisions: &mut [f64]) {
        let mut pairs = decisions.iter_mut().zip(&self.machine.intercepts);
        for first in 0..self.classes {
            for second in first + 1..self.classes {
                let Some((decision, intercept)) = pairs.next() else { return };
                *decision = self.partial_sum(second - 1, first, kernels)
                    + self.partial_sum(first, second, kernels)
                    + intercept;
            }
        }
    }

    /// Counts the pairs that each class wins.
    fn vote(&self, decisions: &[f64], votes: &mut [f64]) {
        votes.fill(0.0);
        let mut pairs = decisions.iter();
        for first in 0..self.classes {
            for second in first + 1..self.classes {
                let is_first = pairs.next().is_some_and(|decision| *decision > 0.0);
                if let Some(votes) = votes.get_mut(if is_first { first } else { second }) {
                    *votes += 1.0;
                }
            }
        }
    }

    /// Adds the sum of its decisions to the votes of each class, scaled so that it only breaks ties.
    fn add_confidence(&self, decisions: &[f64], votes: &mut [f64]) {
        let mut sums = vec![0.0; self.classes];
        let mut pairs = decisions.iter();
        for first in 0..self.classes {
            for second in first + 1..self.classes {
                let decision = pairs.next().copied().unwrap_or(0.0);
                if let Some(sum) = sums.get_mut(first) {
                    *sum += decision;
                }
                if let Some(sum) = sums.get_mut(second) {
                    *sum -= decision;
                }
            }
        }
        for (vote, sum) in votes.iter_mut().zip(sums) {
            *vote += sum / (3.0 * (sum.abs() + 1.0));
        }
    }
}

impl Classifier for SvmClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.machine.vectors.features()).sparse_if(self.machine.vectors.are_sparse())
    }

    fn decisions(&self) -> Decisions {
        Decisions::Columns(match (self.classes, self.decides_by_class) {
            (2, _) => 1,
            (classes, true) => classes,
            (_, false) => self.machine.intercepts.len(),
        })
    }

    fn decide(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let mut kernels = vec![0.0; self.machine.count];
        let mut decisions = vec![0.0; self.machine.intercepts.len()];
        let Decisions::Columns(columns) = self.decisions() else { return Ok(()) };
        let rows = self.machine.vectors.compare(rows);
        for (row, out) in out.chunks_exact_mut(columns).enumerate() {
            rows.evaluate(row, &self.machine.kernel, &mut kernels);
            self.decide_pairs(&kernels, &mut decisions);
            match (&*decisions, &mut *out) {
                ([decision], [out]) => *out = -decision,
                (decisions, out) if !self.decides_by_class => out.copy_from_slice(decisions),
                (decisions, out) => {
                    self.vote(decisions, out);
                    self.add_confidence(decisions, out);
                }
            }
        }
        Ok(())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let mut kernels = vec![0.0; self.machine.count];
        let mut decisions = vec![0.0; self.machine.intercepts.len()];
        let mut coupling = PairwiseCoupling::new(self.classes);
        let rows = self.machine.vectors.compare(rows);
        let scores = scores.chunks_exact_mut(self.classes);
        for (row, (class, scores)) in classes.iter_mut().zip(scores).enumerate() {
            rows.evaluate(row, &self.machine.kernel, &mut kernels);
            self.decide_pairs(&kernels, &mut decisions);
            self.vote(&decisions, scores);
            if self.breaks_ties {
                self.add_confidence(&decisions, scores);
            }
            *class = argmax(scores);
            if let Some(sigmoids) = &self.sigmoids {
                coupling.set_pairs(&decisions, sigmoids);
                coupling.solve(scores);
            }
        }
        Ok(())
    }
}

/// Makes class probabilities of those of pairs, by the second method of Wu, Lin and Weng, "Probability
/// estimates for multi-class classification by pairwise coupling" (2004), with libsvm's limits.
struct PairwiseCoupling {
    classes: usize,
    /// The probability of the first of two classes, given that it is one of the two: `pairs[i][j]`.
    pairs: Vec<f64>,
    /// The matrix `Q` of the paper.
    matrix: Vec<f64>,
    /// The product of the matrix and the probabilities.
    product: Vec<f64>,
}

impl PairwiseCoupling {
    fn new(classes: usize) -> Self {
        let square = vec![0.0; classes * classes];
        let product = vec![0.0; classes];
        PairwiseCoupling { classes, pairs: square.clone(), matrix: square, product }
    }

    /// Sets the probabilities of pairs from their decisions.
    fn set_pairs(&mut self, decisions: &[f64], sigmoids: &[(f64, f64)]) {
        let mut known = decisions.iter().zip(sigmoids);
        for first in 0..self.classes {
            for second in first + 1..self.classes {
                let Some((decision, (slope, offset))) = known.next() else { return };
                let probability = logistic(-(decision * slope + offset));
                let probability = probability.clamp(MIN_PROBABILITY, 1.0 - MIN_PROBABILITY);
                if let Some(pair) = self.pairs.get_mut(first * self.classes + second) {
                    *pair = probability;
                }
                if let Some(pair) = self.pairs.get_mut(second * self.classes + first) {
                    *pair = 1.0 - probability;
                }
            }
        }
    }

    fn pair(&self, first: usize, second: usize) -> f64 {
        self.pairs.get(first * self.classes + second).copied().unwrap_or(0.0)
    }

    fn fill_matrix(&mut self) {
        for row in 0..self.classes {
            let others = (0..self.classes).filter(|other| *other != row);
            let diagonal: f64 = others.map(|other| self.pair(other, row).powi(2)).sum();
            for column in 0..self.classes {
                let value = match row == column {
                    true => diagonal,
                    false => -self.pair(column, row) * self.pair(row, column),
                };
                if let Some(element) = self.matrix.get_mut(row * self.classes + column) {
                    *element = value;
                }
            }
        }
    }

    /// Writes the class probabilities.
    fn solve(&mut self, probabilities: &mut [f64]) {
        self.fill_matrix();
        let count = self.classes as f64;
        probabilities.fill(1.0 / count);
        for _ in 0..self.classes.max(MIN_ITERATIONS) {
            let mut quadratic_form = 0.0;
            let rows = self.matrix.chunks_exact(self.classes);
            for ((product, row), probability) in
                self.product.iter_mut().zip(rows).zip(&*probabilities)
            {
                *product = dot(row, probabilities);
                quadratic_form += probability * *product;
            }
            let errors = self.product.iter().map(|product| (product - quadratic_form).abs());
            if errors.fold(0.0, f64::max) < TOLERANCE / count {
                break;
            }
            self.improve(probabilities, quadratic_form);
        }
    }

    /// Sets each probability in turn to the best value while the others stay.
    fn improve(&mut self, probabilities: &mut [f64], mut quadratic_form: f64) {
        for (number, row) in self.matrix.chunks_exact(self.classes).enumerate() {
            let diagonal = row.get(number).copied().unwrap_or(1.0);
            let product = self.product.get(number).copied().unwrap_or(0.0);
            let step = (quadratic_form - product) / diagonal;
            if let Some(probability) = probabilities.get_mut(number) {
                *probability += step;
            }
            let sum = 1.0 + step;
            quadratic_form =
                (quadratic_form + step * (step * diagonal + 2.0 * product)) / sum / sum;
            for ((product, probability), value) in
                self.product.iter_mut().zip(&mut *probabilities).zip(row)
            {
                *product = (*product + step * value) / sum;
                *probability /= sum;
            }
        }
    }
}

/// Reads an `SVC` or a `NuSVC`.
pub(super) fn classifier(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let classes = labels.len();
    let pairs = classes * (classes - 1) / 2;
    let machine = SupportVectors::read(estimator)?;
    let sizes = estimator.vector_of_len(&["_n_support", "n_support_"], classes)?;
    let mut starts = vec![0];
    for size in sizes {
        starts.push(starts.last().copied().unwrap_or(0usize).saturating_add(size as usize));
    }
    let sets = classes - 1;
    if classes < 2
        || starts.last() != Some(&machine.count)
        || machine.intercepts.len() != pairs
        || machine.coefficients.len() != sets * machine.count
    {
        return Err(estimator.damaged(format_args!(
            "the support vectors do not match the {pairs} pairs of {classes} classes"
        )));
    }
    let sigmoids = read_sigmoids(estimator, pairs)?;
    let scores = match sigmoids.is_some() {
        true => ClassScores::ProbabilitiesAndLogs,
        false => ClassScores::None,
    };
    let breaks_ties = estimator.flag("break_ties", false)?
        && estimator.text("decision_function_shape")? == "ovr"
        && classes > 2;
    let decides_by_class = estimator.text("decision_function_shape")? != "ovo";
    let model = SvmClassifier { machine, classes, starts, sigmoids, breaks_ties, decides_by_class };
    Ok(Predictor::classifier(model, labels, scores))
}

/// Slope and offset of the sigmoid of each pair; `None` if the model was fitted without probabilities.
fn read_sigmoids(estimator: &Estimator, pairs: usize) -> Result<Option<Vec<(f64, f64)>>> {
    let Some(slopes) = estimator.optional_vector(&["_probA", "probA_"])? else {
        return Ok(None);
    };
    let offsets = estimator.vector_of_len(&["_probB", "probB_"], slopes.len())?;
    match slopes.len() {
        0 => Ok(None),
        count if count == pairs => Ok(Some(slopes.into_iter().zip(offsets).collect())),
        count => Err(estimator
            .damaged(format_args!("probA_ has {count} elements for {pairs} pairs of classes"))),
    }
}

/// Predicts whether a row is like those of the training.
struct OutlierMachine(SupportVectors);

impl Classifier for OutlierMachine {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.0.vectors.features()).sparse_if(self.0.vectors.are_sparse())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], _: &mut [f64]) -> Result<()> {
        let mut kernels = vec![0.0; self.0.count];
        let intercept = self.0.intercepts.first().copied().unwrap_or(0.0);
        let rows = self.0.vectors.compare(rows);
        for (row, class) in classes.iter_mut().enumerate() {
            rows.evaluate(row, &self.0.kernel, &mut kernels);
            *class = usize::from(dot(&kernels, &self.0.coefficients) + intercept > 0.0);
        }
        Ok(())
    }
}

/// Reads a `OneClassSVM`, which predicts 1 for a row like those of the training, and -1 for others.
pub(super) fn one_class(estimator: &Estimator) -> Result<Predictor> {
    let machine = SupportVectors::read(estimator)?;
    if machine.coefficients.len() != machine.count || machine.intercepts.len() != 1 {
        return Err(estimator.damaged("it does not have one set of coefficients and one intercept"));
    }
    let labels = ClassLabels::Ints(vec![-1, 1]);
    Ok(Predictor::classifier(OutlierMachine(machine), labels, ClassScores::None))
}
