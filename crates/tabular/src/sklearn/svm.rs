//! Support vector machines with kernels, as libsvm defines them.

use super::estimator::Estimator;
use super::model::{Classify, Gives, Predictor, Regress, Rows, dot};
use tensorserve_tensor::error::Result;

/// How alike two rows are.
#[derive(Clone, Copy)]
enum Kernel {
    Linear,
    Polynomial { gamma: f64, offset: f64, degree: f64 },
    Radial { gamma: f64 },
    Sigmoid { gamma: f64, offset: f64 },
}

impl Kernel {
    fn read(of: &Estimator) -> Result<Self> {
        let gamma = || of.number(&["_gamma"]);
        let offset = || of.number(&["coef0"]);
        Ok(match of.text("kernel")? {
            "linear" => Kernel::Linear,
            "poly" => Kernel::Polynomial {
                gamma: gamma()?,
                offset: offset()?,
                degree: of.number(&["degree"])?,
            },
            "rbf" => Kernel::Radial { gamma: gamma()? },
            "sigmoid" => Kernel::Sigmoid { gamma: gamma()?, offset: offset()? },
            "" => return Err(of.unsupported("a kernel that is a function")),
            other => return Err(of.unsupported(format_args!("the kernel {other:?}"))),
        })
    }

    fn of(self, a: &[f64], b: &[f64]) -> f64 {
        match self {
            Kernel::Linear => dot(a, b),
            Kernel::Polynomial { gamma, offset, degree } => {
                (gamma * dot(a, b) + offset).powf(degree)
            }
            Kernel::Radial { gamma } => (-gamma * distance(a, b)).exp(),
            Kernel::Sigmoid { gamma, offset } => (gamma * dot(a, b) + offset).tanh(),
        }
    }
}

/// The square of the distance.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The rows that a machine was made of, and how it weighs them.
struct Machine {
    kernel: Kernel,
    features: usize,
    /// One row after the other.
    vectors: Vec<f64>,
    count: usize,
    /// Sets of weights of all vectors, one after the other.
    weights: Vec<f64>,
    /// What is added to each sum.
    constants: Vec<f64>,
}

impl Machine {
    fn read(of: &Estimator) -> Result<Self> {
        if of.flag("_sparse", false)? {
            return Err(of.unsupported("a machine that was fitted with sparse rows"));
        }
        let kernel = Kernel::read(of)?;
        let vectors = of.matrix(&["support_vectors_"])?;
        let weights = of.matrix(&["_dual_coef_", "dual_coef_"])?;
        if weights.columns != vectors.rows {
            return Err(of.fault("it has not one weight for each support vector"));
        }
        let constants = of.vector(&["_intercept_", "intercept_"])?;
        Ok(Machine {
            kernel,
            features: vectors.columns,
            count: vectors.rows,
            vectors: vectors.values,
            weights: weights.values,
            constants,
        })
    }

    /// How alike `row` is to each vector.
    fn compare(&self, row: &[f64], out: &mut [f64]) {
        for (out, vector) in out.iter_mut().zip(self.vectors.chunks_exact(self.features)) {
            *out = self.kernel.of(row, vector);
        }
    }
}

struct SupportRegressor(Machine);

impl Regress for SupportRegressor {
    fn features(&self) -> usize {
        self.0.features
    }

    fn predict(&self, rows: Rows, out: &mut [f64]) {
        let mut alike = vec![0.0; self.0.count];
        let constant = self.0.constants.first().copied().unwrap_or(0.0);
        for (row, out) in rows.iter().zip(out) {
            self.0.compare(row, &mut alike);
            *out = dot(&alike, &self.0.weights) + constant;
        }
    }
}

pub(super) fn regressor(of: &Estimator) -> Result<Predictor> {
    let machine = Machine::read(of)?;
    if machine.weights.len() != machine.count || machine.constants.len() != 1 {
        return Err(of.fault("it has not one weight for each support vector"));
    }
    Ok(Predictor::regressor(SupportRegressor(machine)))
}

/// A machine for each pair of classes.
struct SupportClassifier {
    machine: Machine,
    classes: usize,
    /// Where the vectors of each class begin; and where all end.
    starts: Vec<usize>,
    /// For each pair, how its sum becomes a probability.
    slopes: Option<Vec<(f64, f64)>>,
    /// Whether equal votes are told apart by how sure the pairs are.
    breaks_ties: bool,
}

impl SupportClassifier {
    /// The weights of the vectors of `class` in set `set`, each with how alike it is.
    fn part(&self, set: usize, class: usize, alike: &[f64]) -> f64 {
        let (Some(start), Some(end)) = (self.starts.get(class), self.starts.get(class + 1)) else {
            return 0.0;
        };
        let all = set * self.machine.count;
        let weights = self.machine.weights.get(all + start..all + end).unwrap_or_default();
        dot(weights, alike.get(*start..*end).unwrap_or_default())
    }

    /// What each pair of classes says: above 0 for the first of the two.
    fn decide(&self, alike: &[f64], decisions: &mut [f64]) {
        let mut pairs = decisions.iter_mut().zip(&self.machine.constants);
        for first in 0..self.classes {
            for second in first + 1..self.classes {
                let Some((decision, constant)) = pairs.next() else { return };
                *decision = self.part(second - 1, first, alike)
                    + self.part(first, second, alike)
                    + constant;
            }
        }
    }

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

    /// Adds to each class's votes how sure its pairs are, which changes no order of votes.
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

impl Classify for SupportClassifier {
    fn features(&self) -> usize {
        self.machine.features
    }

    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]) {
        let mut alike = vec![0.0; self.machine.count];
        let mut decisions = vec![0.0; self.machine.constants.len()];
        let mut coupling = Coupling::new(self.classes);
        let scores = scores.chunks_exact_mut(self.classes);
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            self.machine.compare(row, &mut alike);
            self.decide(&alike, &mut decisions);
            self.vote(&decisions, scores);
            if self.breaks_ties {
                self.add_confidence(&decisions, scores);
            }
            *class = super::model::largest(scores);
            if let Some(slopes) = &self.slopes {
                coupling.set(&decisions, slopes);
                coupling.solve(scores);
            }
        }
    }
}

/// Makes shares of classes of what each pair of them says, by the second method of Wu, Lin and
/// Weng, "Probability estimates for multi-class classification by pairwise coupling" (2004), as
/// far as libsvm takes it.
struct Coupling {
    classes: usize,
    /// For each pair, how probable the first is if it is one of the two.
    pairs: Vec<f64>,
    matrix: Vec<f64>,
    product: Vec<f64>,
}

impl Coupling {
    fn new(classes: usize) -> Self {
        let square = vec![0.0; classes * classes];
        Coupling { classes, pairs: square.clone(), matrix: square, product: vec![0.0; classes] }
    }

    fn set(&mut self, decisions: &[f64], slopes: &[(f64, f64)]) {
        const LEAST: f64 = 1e-7;
        let mut known = decisions.iter().zip(slopes);
        for first in 0..self.classes {
            for second in first + 1..self.classes {
                let Some((decision, (slope, offset))) = known.next() else { return };
                let share = super::model::logistic(-(decision * slope + offset));
                let share = share.clamp(LEAST, 1.0 - LEAST);
                let (there, back) = (first * self.classes + second, second * self.classes + first);
                if let Some(pair) = self.pairs.get_mut(there) {
                    *pair = share;
                }
                if let Some(pair) = self.pairs.get_mut(back) {
                    *pair = 1.0 - share;
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
                if let Some(place) = self.matrix.get_mut(row * self.classes + column) {
                    *place = value;
                }
            }
        }
    }

    fn solve(&mut self, shares: &mut [f64]) {
        self.fill_matrix();
        let count = self.classes as f64;
        shares.fill(1.0 / count);
        for _ in 0..self.classes.max(100) {
            let mut whole = 0.0;
            let rows = self.matrix.chunks_exact(self.classes);
            for ((product, row), share) in self.product.iter_mut().zip(rows).zip(&*shares) {
                *product = dot(row, shares);
                whole += share * *product;
            }
            let error = |product: &f64| (product - whole).abs();
            let worst = self.product.iter().map(error).fold(0.0, f64::max);
            if worst < 0.005 / count {
                break;
            }
            self.improve(shares, whole);
        }
    }

    /// Sets one share after the other to what is best while the others stay.
    fn improve(&mut self, shares: &mut [f64], mut whole: f64) {
        for (number, row) in self.matrix.chunks_exact(self.classes).enumerate() {
            let diagonal = row.get(number).copied().unwrap_or(1.0);
            let product = self.product.get(number).copied().unwrap_or(0.0);
            let step = (whole - product) / diagonal;
            if let Some(share) = shares.get_mut(number) {
                *share += step;
            }
            let all = 1.0 + step;
            whole = (whole + step * (step * diagonal + 2.0 * product)) / all / all;
            for ((product, share), value) in self.product.iter_mut().zip(&mut *shares).zip(row) {
                *product = (*product + step * value) / all;
                *share /= all;
            }
        }
    }
}

pub(super) fn classifier(of: &Estimator) -> Result<Predictor> {
    let labels = of.labels()?;
    let classes = labels.len();
    let pairs = classes * (classes - 1) / 2;
    let machine = Machine::read(of)?;
    let sizes = of.vector_of(&["_n_support", "n_support_"], classes)?;
    let mut starts = vec![0];
    for size in sizes {
        starts.push(starts.last().copied().unwrap_or(0usize).saturating_add(size as usize));
    }
    let sets = classes - 1;
    if classes < 2
        || starts.last() != Some(&machine.count)
        || machine.constants.len() != pairs
        || machine.weights.len() != sets * machine.count
    {
        return Err(of.fault("it has not the support vectors of each pair of classes"));
    }
    // Empty where it was fitted without them.
    let slopes = match of.find(&["_probA", "probA_"]).map(|_| of.vector(&["_probA", "probA_"])) {
        None => None,
        Some(slopes) => {
            let slopes = slopes?;
            let offsets = of.vector_of(&["_probB", "probB_"], slopes.len())?;
            match slopes.len() {
                0 => None,
                count if count == pairs => Some(slopes.into_iter().zip(offsets).collect()),
                _ => return Err(of.fault("it has not one probability for each pair of classes")),
            }
        }
    };
    let gives = if slopes.is_some() { Gives::ProbabilitiesAndLogs } else { Gives::Classes };
    let breaks_ties = of.flag("break_ties", false)?
        && of.text("decision_function_shape")? == "ovr"
        && classes > 2;
    let model = SupportClassifier { machine, classes, starts, slopes, breaks_ties };
    Ok(Predictor::classifier(model, labels, gives))
}
