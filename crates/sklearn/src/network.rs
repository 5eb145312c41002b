//! Multi-layer perceptrons.

use super::estimator::{ClassLabels, Estimator};
use super::model::{
    ClassScores, Classifier, FeatureRows, MultiClassifier, MultiScores, Predictor, Regressor,
    StepFacts,
};
use super::numeric::{argmax, logistic, softmax};
use tensorserve_tensor::error::Result;

/// A layer of neurons.
struct Layer {
    inputs: usize,
    outputs: usize,
    /// For each input, its weights for all outputs.
    weights: Vec<f64>,
    intercepts: Vec<f64>,
    activation: Activation,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Activation {
    Identity,
    Logistic,
    Tanh,
    Relu,
    Softmax,
    Exp,
}

impl Activation {
    /// The activation `name` of scikit-learn.
    fn named(estimator: &Estimator, name: &str) -> Result<Self> {
        Ok(match name {
            "identity" => Activation::Identity,
            "logistic" => Activation::Logistic,
            "tanh" => Activation::Tanh,
            "relu" => Activation::Relu,
            "softmax" => Activation::Softmax,
            "exp" => Activation::Exp,
            other => return Err(estimator.unsupported(format_args!("the activation {other:?}"))),
        })
    }

    fn apply(self, values: &mut [f64]) {
        let function: fn(f64) -> f64 = match self {
            Activation::Identity => return,
            Activation::Softmax => return softmax(values),
            Activation::Logistic => logistic,
            Activation::Tanh => f64::tanh,
            Activation::Relu => relu,
            Activation::Exp => f64::exp,
        };
        values.iter_mut().for_each(|value| *value = function(*value));
    }
}

fn relu(x: f64) -> f64 {
    if x > 0.0 { x } else { 0.0 }
}

/// A network of fully connected layers.
struct Perceptron {
    layers: Vec<Layer>,
    /// The most inputs or outputs of a layer.
    widest: usize,
}

impl Perceptron {
    fn read(estimator: &Estimator) -> Result<Self> {
        let weights = estimator.children(&["coefs_"])?;
        let intercepts = estimator.children(&["intercepts_"])?;
        if weights.is_empty() || weights.len() != intercepts.len() {
            let (weights, intercepts) = (weights.len(), intercepts.len());
            return Err(estimator.damaged(format_args!(
                "coefs_ has {weights} elements, and intercepts_ has {intercepts}"
            )));
        }
        let hidden = Activation::named(estimator, estimator.text("activation")?)?;
        let output = Activation::named(estimator, estimator.text("out_activation_")?)?;
        let mut layers: Vec<Layer> = Vec::new();
        let count = weights.len();
        for (number, (weights, intercepts)) in weights.iter().zip(intercepts).enumerate() {
            let wrong = || {
                estimator.damaged(format_args!("layer {number} does not match the one before it"))
            };
            let weights = weights.value.array().ok_or_else(wrong)?;
            let intercepts = intercepts.value.array().ok_or_else(wrong)?;
            estimator.charge(weights.len().saturating_add(intercepts.len()))?;
            let [inputs, outputs] = *weights.shape() else { return Err(wrong()) };
            let is_connected = layers.last().is_none_or(|before| before.outputs == inputs);
            if !is_connected || inputs == 0 || outputs == 0 || *intercepts.shape() != [outputs] {
                return Err(wrong());
            }
            let weights = weights.f64s().ok_or_else(wrong)?;
            let intercepts = intercepts.f64s().ok_or_else(wrong)?;
            let activation = if number + 1 == count { output } else { hidden };
            layers.push(Layer { inputs, outputs, weights, intercepts, activation });
        }
        let widest = layers.iter().map(|layer| layer.outputs.max(layer.inputs)).max();
        Ok(Perceptron { layers, widest: widest.unwrap_or(0) })
    }

    fn features(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.inputs)
    }

    fn outputs(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.outputs)
    }

    /// Calls `take` for each row, with its index and the outputs of the last layer.
    fn run(&self, rows: FeatureRows, mut take: impl FnMut(usize, &[f64])) {
        let (mut this, mut next) = (vec![0.0; self.widest], vec![0.0; self.widest]);
        for (number, row) in rows.iter().enumerate() {
            this.iter_mut().zip(row).for_each(|(to, from)| *to = *from);
            for layer in &self.layers {
                let (Some(from), Some(to)) =
                    (this.get(..layer.inputs), next.get_mut(..layer.outputs))
                else {
                    return;
                };
                layer.apply(from, to);
                std::mem::swap(&mut this, &mut next);
            }
            take(number, this.get(..self.outputs()).unwrap_or_default());
        }
    }
}

impl Layer {
    fn apply(&self, from: &[f64], to: &mut [f64]) {
        to.copy_from_slice(&self.intercepts);
        for (value, weights) in from.iter().zip(self.weights.chunks_exact(self.outputs)) {
            to.iter_mut().zip(weights).for_each(|(to, weight)| *to += value * weight);
        }
        self.activation.apply(to);
    }
}

struct PerceptronRegressor(Perceptron);

impl Regressor for PerceptronRegressor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.0.features())
    }

    fn outputs(&self) -> Option<usize> {
        Some(self.0.outputs()).filter(|outputs| *outputs > 1)
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let width = self.0.outputs();
        self.0.run(rows, |row, values| {
            if let Some(out) = out.get_mut(row * width..(row + 1) * width) {
                out.copy_from_slice(values);
            }
        });
        Ok(())
    }
}

/// Reads an `MLPRegressor`.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    Ok(Predictor::regressor(PerceptronRegressor(Perceptron::read(estimator)?)))
}

struct PerceptronClassifier {
    network: Perceptron,
    classes: usize,
}

impl Classifier for PerceptronClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.network.features())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        self.network.run(rows, |row, values| {
            let width = self.classes;
            let scores = scores.get_mut(row * width..(row + 1) * width);
            let (Some(class), Some(scores)) = (classes.get_mut(row), scores) else { return };
            match *values {
                [second] => {
                    *class = usize::from(second > 0.5);
                    scores.copy_from_slice(&[1.0 - second, second]);
                }
                _ => {
                    *class = argmax(values);
                    scores.copy_from_slice(values);
                }
            }
        });
        Ok(())
    }
}

/// Reads an `MLPClassifier`.
pub(super) fn classifier(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let classes = labels.len();
    let network = Perceptron::read(estimator)?;
    let has_softmax =
        network.layers.last().map(|layer| layer.activation) == Some(Activation::Softmax);
    match (classes, network.outputs(), has_softmax) {
        (2, 1, false) => {}
        (_, outputs, true) if outputs == classes => {}
        (_, outputs, false) if outputs == classes => {
            let labels = vec![ClassLabels::Ints(vec![0, 1]); classes];
            let model = LabelPerceptron { network, labels };
            return Ok(Predictor::MultiClassifier(Box::new(model)));
        }
        (_, outputs, _) => {
            return Err(estimator.damaged(format_args!(
                "the last layer has {outputs} outputs for {classes} classes"
            )));
        }
    }
    let model = PerceptronClassifier { network, classes };
    Ok(Predictor::classifier(model, labels, ClassScores::ProbabilitiesAndLogs))
}

/// Any of several labels for each row.
struct LabelPerceptron {
    network: Perceptron,
    labels: Vec<ClassLabels>,
}

impl MultiClassifier for LabelPerceptron {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.network.features())
    }

    fn labels(&self) -> &[ClassLabels] {
        &self.labels
    }

    fn scores(&self) -> MultiScores {
        MultiScores::Joint(ClassScores::ProbabilitiesAndLogs)
    }

    fn classify(
        &self,
        rows: FeatureRows,
        classes: &mut [usize],
        scores: &mut [Vec<f64>],
    ) -> Result<()> {
        let width = self.labels.len();
        self.network.run(rows, |row, values| {
            let range = row * width..(row + 1) * width;
            for (class, value) in
                classes.get_mut(range.clone()).unwrap_or_default().iter_mut().zip(values)
            {
                *class = usize::from(*value > 0.5);
            }
            if let Some(to) = scores.first_mut().and_then(|scores| scores.get_mut(range)) {
                to.copy_from_slice(values);
            }
        });
        Ok(())
    }
}
