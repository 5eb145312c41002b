//! `LabelPropagation` and `LabelSpreading`: a row has the labels of the training rows that are like it.

use super::distance::TrainingRows;
use super::estimator::Estimator;
use super::kernel::Kernel;
use super::known_rows::KnownRows;
use super::model::{ClassScores, Classifier, FeatureRows, Predictor, StepFacts};
use super::numeric::argmax;
use tensorserve_tensor::error::Result;

/// How alike rows are.
enum Likeness {
    Kernel(Kernel, KnownRows),
    /// 1 for the nearest, else 0.
    Nearest(TrainingRows),
}

struct PropagatedLabels {
    likeness: Likeness,
    /// The probabilities of the classes of each training row, one row after the other.
    distributions: Vec<f64>,
    classes: usize,
}

impl PropagatedLabels {
    /// Adds `weight` times the probabilities of a training row to `scores`.
    fn add(&self, row: usize, weight: f64, scores: &mut [f64]) {
        let range = row * self.classes..(row + 1) * self.classes;
        let distribution = self.distributions.get(range).unwrap_or_default();
        scores.iter_mut().zip(distribution).for_each(|(score, share)| *score += weight * share);
    }
}

/// Makes `scores` probabilities, and returns the index of the largest.
fn normalize(scores: &mut [f64]) -> usize {
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
    argmax(scores)
}

impl Classifier for PropagatedLabels {
    fn facts(&self) -> StepFacts {
        StepFacts::of(match &self.likeness {
            Likeness::Kernel(_, known) => known.features(),
            Likeness::Nearest(training) => training.features(),
        })
        .sparse_if(match &self.likeness {
            Likeness::Kernel(_, known) => known.are_sparse(),
            Likeness::Nearest(training) => training.are_sparse(),
        })
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        scores.fill(0.0);
        let of_rows = classes.iter_mut().zip(scores.chunks_exact_mut(self.classes)).enumerate();
        match &self.likeness {
            Likeness::Kernel(kernel, known) => {
                let rows = known.compare(rows);
                let mut kernels = vec![0.0; known.len()];
                for (row, (class, scores)) in of_rows {
                    rows.evaluate(row, kernel, &mut kernels);
                    for (known, weight) in kernels.iter().enumerate() {
                        self.add(known, *weight, scores);
                    }
                    *class = normalize(scores);
                }
            }
            Likeness::Nearest(training) => {
                let mut search = training.search(rows);
                for (row, (class, scores)) in of_rows {
                    search.find(row).iter().for_each(|near| self.add(near.row, 1.0, scores));
                    *class = normalize(scores);
                }
            }
        }
        Ok(())
    }
}

/// Reads a `LabelPropagation` or a `LabelSpreading`.
pub(super) fn read(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let likeness = match estimator.text("kernel")? {
        "rbf" => {
            let gamma = estimator.number(&["gamma"])?;
            let known = KnownRows::read(estimator, &["X_"])?;
            Likeness::Kernel(Kernel::Radial { gamma }, known)
        }
        "knn" => {
            let neighbors = estimator.child(estimator.attribute(&["nn_fit"])?)?;
            Likeness::Nearest(TrainingRows::nearest(&neighbors, &["n_neighbors"])?)
        }
        _ => return Err(estimator.unsupported("a kernel as a function")),
    };
    let count = match &likeness {
        Likeness::Kernel(_, known) => known.len(),
        Likeness::Nearest(training) => training.len(),
    };
    let classes = labels.len();
    let distributions =
        estimator.matrix_of_shape(&["label_distributions_"], count, classes)?.values;
    let model = PropagatedLabels { likeness, distributions, classes };
    Ok(Predictor::classifier(model, labels, ClassScores::Probabilities))
}
