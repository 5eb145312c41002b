//! Linear models: sums of products, and what each makes of them.

use super::estimator::{Estimator, Labels};
use super::model::{
    Classify, Gives, Predictor, Regress, Rows, dot, largest, log_softmax, logistic, softmax,
};
use tensorserve_tensor::error::Result;

/// Products of a row with each of several vectors, and a constant.
struct Products {
    features: usize,
    /// One vector after the other.
    coefficients: Vec<f64>,
    intercepts: Vec<f64>,
}

impl Products {
    /// Of an estimator with `coef_` and `intercept_`, and whether it has just a vector of them.
    fn read(of: &Estimator) -> Result<(Self, bool)> {
        let coefficients = of.matrix(&["coef_"])?;
        let count = coefficients.rows;
        let mut intercepts = match of.find(&["intercept_"]) {
            Some(_) => of.vector(&["intercept_"])?,
            None => vec![0.0],
        };
        if let [only] = *intercepts {
            intercepts = vec![only; count];
        }
        if intercepts.len() != count || count == 0 {
            let has = intercepts.len();
            return Err(of.fault(format_args!("it has {has} intercepts for {count} vectors")));
        }
        if of.features().is_some_and(|features| features != coefficients.columns) {
            return Err(of.fault("coef_ has not as many columns as the model has features"));
        }
        let (features, is_vector) = (coefficients.columns, coefficients.is_vector);
        let coefficients = coefficients.values;
        Ok((Products { features, coefficients, intercepts }, is_vector))
    }

    fn count(&self) -> usize {
        self.intercepts.len()
    }

    fn write(&self, row: &[f64], out: &mut [f64]) {
        let vectors = self.coefficients.chunks_exact(self.features);
        for ((out, vector), intercept) in out.iter_mut().zip(vectors).zip(&self.intercepts) {
            *out = dot(row, vector) + intercept;
        }
    }
}

/// What a generalised linear model makes of its sum.
#[derive(Clone, Copy)]
enum Link {
    Identity,
    Log,
}

struct LinearRegressor {
    products: Products,
    is_vector: bool,
    link: Link,
}

impl Regress for LinearRegressor {
    fn features(&self) -> usize {
        self.products.features
    }

    fn outputs(&self) -> Option<usize> {
        (!self.is_vector).then_some(self.products.count())
    }

    fn predict(&self, rows: Rows, out: &mut [f64]) {
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.products.count())) {
            self.products.write(row, out);
        }
        if let Link::Log = self.link {
            out.iter_mut().for_each(|value| *value = value.exp());
        }
    }
}

pub(super) fn regressor(of: &Estimator) -> Result<Predictor> {
    let (products, is_vector) = Products::read(of)?;
    let link = match of.class() {
        "PoissonRegressor" | "GammaRegressor" => Link::Log,
        "TweedieRegressor" => match of.text("link")? {
            "log" => Link::Log,
            "identity" => Link::Identity,
            _ if of.number(&["power"])? <= 0.0 => Link::Identity,
            _ => Link::Log,
        },
        _ => Link::Identity,
    };
    Ok(Predictor::regressor(LinearRegressor { products, is_vector, link }))
}

/// How sums become probabilities.
#[derive(Clone, Copy, PartialEq)]
enum Shares {
    /// They do not: the largest sum tells the class.
    None,
    /// Each by the logistic function, then to a sum of 1.
    Each,
    /// All together, by softmax; of one sum, its negative is the other.
    Together,
    /// Each from -1…1 to 0…1, then to a sum of 1.
    Clipped,
}

struct LinearClassifier {
    products: Products,
    classes: usize,
    shares: Shares,
}

impl Classify for LinearClassifier {
    fn features(&self) -> usize {
        self.products.features
    }

    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]) {
        let scores = scores.chunks_exact_mut(self.classes);
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            if self.classes == 2 {
                let mut sum = [0.0];
                self.products.write(row, &mut sum);
                let [sum] = sum;
                *class = usize::from(sum > 0.0);
                scores.copy_from_slice(&self.two(sum));
            } else {
                self.products.write(row, scores);
                *class = largest(scores);
                self.several(scores);
            }
        }
    }
}

impl LinearClassifier {
    fn two(&self, sum: f64) -> [f64; 2] {
        let second = match self.shares {
            Shares::None => sum,
            Shares::Each => logistic(sum),
            Shares::Together => {
                let mut pair = [-sum, sum];
                softmax(&mut pair);
                return pair;
            }
            Shares::Clipped => f64::midpoint(sum.clamp(-1.0, 1.0), 1.0),
        };
        [1.0 - second, second]
    }

    fn several(&self, scores: &mut [f64]) {
        match self.shares {
            Shares::None => return,
            Shares::Together => return softmax(scores),
            Shares::Each => scores.iter_mut().for_each(|score| *score = logistic(*score)),
            Shares::Clipped => {
                for score in &mut *scores {
                    *score = f64::midpoint(score.clamp(-1.0, 1.0), 1.0);
                }
            }
        }
        let sum: f64 = scores.iter().sum();
        if sum == 0.0 && self.shares == Shares::Clipped {
            let share = 1.0 / scores.len() as f64;
            return scores.fill(share);
        }
        scores.iter_mut().for_each(|score| *score /= sum);
    }
}

pub(super) fn classifier(of: &Estimator) -> Result<Predictor> {
    let labels = of.labels()?;
    let classes = labels.len();
    let (products, _) = Products::read(of)?;
    let vectors = if classes == 2 { 1 } else { classes };
    if products.count() != vectors {
        // Versions before 0.20 keep two vectors for two classes nowhere.
        let count = products.count();
        let what = format!("it has {count} vectors of coefficients for {classes} classes");
        return Err(match classes {
            1 => of.unsupported("a model of one class"),
            _ => of.fault(what),
        });
    }
    let (shares, gives) = match of.class() {
        "LogisticRegression" | "LogisticRegressionCV" => {
            (logistic_shares(of, classes)?, Gives::ProbabilitiesAndLogs)
        }
        "SGDClassifier" => match of.text("loss")? {
            "log" | "log_loss" => (Shares::Each, Gives::ProbabilitiesAndLogs),
            "modified_huber" => (Shares::Clipped, Gives::ProbabilitiesAndLogs),
            _ => (Shares::None, Gives::Classes),
        },
        "LinearDiscriminantAnalysis" => {
            let shares = if classes == 2 { Shares::Each } else { Shares::Together };
            (shares, Gives::ProbabilitiesAndFlooredLogs)
        }
        _ => (Shares::None, Gives::Classes),
    };
    Ok(Predictor::classifier(LinearClassifier { products, classes, shares }, labels, gives))
}

/// Whether a logistic regression was fitted class by class, or all together.
fn logistic_shares(of: &Estimator, classes: usize) -> Result<Shares> {
    let each = match of.text("multi_class")? {
        "ovr" | "warn" => true,
        // Two classes, too: as they were before 0.20, they are one.
        "multinomial" => classes == 2 && of.is_older_than(0, 20),
        // Auto, deprecated, or not there any more.
        _ => classes == 2 || of.text("solver")? == "liblinear",
    };
    Ok(if each { Shares::Each } else { Shares::Together })
}

/// What naive Bayes models make of a row: the logarithm of each class's share, up to a constant.
pub(super) struct Bayes {
    features: usize,
    kind: BayesKind,
    /// A constant for each class.
    constants: Vec<f64>,
    classes: usize,
}

enum BayesKind {
    /// For each class and feature, the mean and half of one over the variance.
    Gaussian { means: Vec<f64>, halves: Vec<f64> },
    /// For each class and feature, the weight of its count.
    Counts { weights: Vec<f64>, above: Option<f64> },
    /// For each feature the number of its values; for each class, feature and value a weight.
    Quadratic { parts: Vec<Quadratic> },
}

/// A class of a quadratic discriminant analysis.
struct Quadratic {
    mean: Vec<f64>,
    /// For each direction, its vector divided by the square root of its scaling.
    directions: Vec<f64>,
}

impl Bayes {
    fn sums(&self, row: &[f64], scores: &mut [f64], scratch: &mut [f64]) {
        match &self.kind {
            BayesKind::Gaussian { means, halves } => {
                let parts = means.chunks_exact(row.len()).zip(halves.chunks_exact(row.len()));
                for ((score, constant), (means, halves)) in
                    scores.iter_mut().zip(&self.constants).zip(parts)
                {
                    let terms = row.iter().zip(means).zip(halves);
                    let sum: f64 = terms.map(|((x, mean), half)| (x - mean).powi(2) * half).sum();
                    *score = constant - sum;
                }
            }
            BayesKind::Counts { weights, above } => {
                let counts = match above {
                    None => row,
                    Some(above) => {
                        let bits = row.iter().map(|x| f64::from(u8::from(x > above)));
                        scratch.iter_mut().zip(bits).for_each(|(to, bit)| *to = bit);
                        scratch
                    }
                };
                let parts = weights.chunks_exact(row.len());
                for ((score, constant), weights) in
                    scores.iter_mut().zip(&self.constants).zip(parts)
                {
                    *score = dot(counts, weights) + constant;
                }
            }
            BayesKind::Quadratic { parts } => {
                for ((score, constant), part) in scores.iter_mut().zip(&self.constants).zip(parts) {
                    let apart = row.iter().zip(&part.mean).map(|(x, mean)| x - mean);
                    scratch.iter_mut().zip(apart).for_each(|(to, apart)| *to = apart);
                    let directions = part.directions.chunks_exact(row.len());
                    let sum: f64 = directions.map(|d| dot(scratch, d).powi(2)).sum();
                    *score = constant - 0.5 * sum;
                }
            }
        }
    }
}

impl Classify for Bayes {
    fn features(&self) -> usize {
        self.features
    }

    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]) {
        let mut scratch = vec![0.0; self.features];
        let scores = scores.chunks_exact_mut(self.classes);
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            self.sums(row, scores, &mut scratch);
            *class = largest(scores);
            log_softmax(scores);
        }
    }
}

/// Each class's share of the data, as logarithms.
fn log_priors(of: &Estimator, names: &[&str], labels: &Labels) -> Result<Vec<f64>> {
    let priors = of.vector_of(names, labels.len())?;
    Ok(priors.into_iter().map(f64::ln).collect())
}

pub(super) fn gaussian(of: &Estimator) -> Result<Predictor> {
    let labels = of.labels()?;
    let classes = labels.len();
    let means = of.matrix(&["theta_"])?;
    let variances = of.matrix_of(&["var_", "sigma_"], classes, means.columns)?;
    let mut constants = log_priors(of, &["class_prior_"], &labels)?;
    if means.rows != classes {
        return Err(of.fault("theta_ has not one row for each class"));
    }
    for (constant, variances) in constants.iter_mut().zip(variances.iter()) {
        let sum: f64 = variances.iter().map(|var| (std::f64::consts::TAU * var).ln()).sum();
        *constant -= 0.5 * sum;
    }
    let halves = variances.values.iter().map(|variance| 0.5 / variance).collect();
    let kind = BayesKind::Gaussian { means: means.values, halves };
    let model = Bayes { features: means.columns, kind, constants, classes };
    Ok(Predictor::classifier(model, labels, Gives::Logs))
}

/// Multinomial, complement and Bernoulli's naive Bayes.
pub(super) fn counting(of: &Estimator) -> Result<Predictor> {
    let labels = of.labels()?;
    let classes = labels.len();
    let weights = of.matrix(&["feature_log_prob_"])?;
    if weights.rows != classes {
        return Err(of.fault("feature_log_prob_ has not one row for each class"));
    }
    let features = weights.columns;
    let mut constants = of.vector_of(&["class_log_prior_"], classes)?;
    let (mut above, mut values) = (None, weights.values);
    match of.class() {
        "BernoulliNB" => {
            for (constant, weights) in constants.iter_mut().zip(values.chunks_exact_mut(features)) {
                for weight in weights {
                    let absent = (-weight.exp()).ln_1p();
                    *weight -= absent;
                    *constant += absent;
                }
            }
            above = of.find(&["binarize"]).map(|_| of.number(&["binarize"])).transpose()?;
        }
        // A class's own share counts for nothing, but if it is alone.
        "ComplementNB" if classes > 1 => constants.fill(0.0),
        _ => {}
    }
    let kind = BayesKind::Counts { weights: values, above };
    let model = Bayes { features, kind, constants, classes };
    Ok(Predictor::classifier(model, labels, Gives::Logs))
}

pub(super) fn quadratic(of: &Estimator) -> Result<Predictor> {
    let labels = of.labels()?;
    let classes = labels.len();
    let means = of.matrix(&["means_"])?;
    let features = means.columns;
    let mut constants = log_priors(of, &["priors_"], &labels)?;
    let rotations = of.children(&["rotations_"])?;
    let scalings = of.children(&["scalings_"])?;
    if means.rows != classes || rotations.len() != classes || scalings.len() != classes {
        return Err(of.fault("it has not one mean, rotation and scaling for each class"));
    }
    let mut parts = Vec::with_capacity(classes);
    for (((mean, rotation), scaling), constant) in
        means.iter().zip(rotations).zip(scalings).zip(&mut constants)
    {
        let wrong = || of.fault("a rotation of it does not fit its scaling");
        let scaling = scaling.value.array().and_then(|array| array.f64s()).ok_or_else(wrong)?;
        let rotation = rotation.value.array().ok_or_else(wrong)?;
        of.charge(rotation.len())?;
        if *rotation.shape() != [features, scaling.len()] {
            return Err(wrong());
        }
        let rotation = rotation.f64s().ok_or_else(wrong)?;
        let mut directions = Vec::with_capacity(rotation.len());
        for (number, scaling) in scaling.iter().enumerate() {
            let column = rotation.iter().skip(number).step_by(scaling_count(&rotation, features));
            directions.extend(column.map(|value| value / scaling.sqrt()));
        }
        *constant -= 0.5 * scaling.iter().map(|scaling| scaling.ln()).sum::<f64>();
        parts.push(Quadratic { mean: mean.to_vec(), directions });
    }
    let kind = BayesKind::Quadratic { parts };
    let model = Bayes { features, kind, constants, classes };
    Ok(Predictor::classifier(model, labels, Gives::Logs))
}

fn scaling_count(rotation: &[f64], features: usize) -> usize {
    (rotation.len() / features.max(1)).max(1)
}
