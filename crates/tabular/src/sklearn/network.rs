//! Multi-layer perceptrons.

use super::estimator::Estimator;
use super::model::{Classify, Gives, Predictor, Regress, Rows, largest, logistic, softmax};
use tensorserve_tensor::error::Result;

struct Layer {
    inputs: usize,
    outputs: usize,
    /// For each input, its weight for every output.
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
    fn named(of: &Estimator, name: &str) -> Result<Self> {
        Ok(match name {
            "identity" => Activation::Identity,
            "logistic" => Activation::Logistic,
            "tanh" => Activation::Tanh,
            "relu" => Activation::Relu,
            "softmax" => Activation::Softmax,
            "exp" => Activation::Exp,
            other => return Err(of.unsupported(format_args!("the activation {other:?}"))),
        })
    }

    fn apply(self, values: &mut [f64]) {
        let each: fn(f64) -> f64 = match self {
            Activation::Identity => return,
            Activation::Softmax => return softmax(values),
            Activation::Logistic => logistic,
            Activation::Tanh => f64::tanh,
            Activation::Relu => |x| if x > 0.0 { x } else { 0.0 },
            Activation::Exp => f64::exp,
        };
        values.iter_mut().for_each(|value| *value = each(*value));
    }
}

struct Network {
    layers: Vec<Layer>,
    widest: usize,
}

impl Network {
    fn read(of: &Estimator) -> Result<Self> {
        let weights = of.children(&["coefs_"])?;
        let intercepts = of.children(&["intercepts_"])?;
        if weights.is_empty() || weights.len() != intercepts.len() {
            return Err(of.fault("it has not one set of intercepts for each layer"));
        }
        let hidden = Activation::named(of, of.text("activation")?)?;
        let last = Activation::named(of, of.text("out_activation_")?)?;
        let mut layers: Vec<Layer> = Vec::new();
        let count = weights.len();
        for (number, (weights, intercepts)) in weights.iter().zip(intercepts).enumerate() {
            let wrong = || of.fault(format_args!("layer {number} of it does not fit"));
            let weights = weights.value.array().ok_or_else(wrong)?;
            let intercepts = intercepts.value.array().ok_or_else(wrong)?;
            of.charge(weights.len().saturating_add(intercepts.len()))?;
            let [inputs, outputs] = *weights.shape() else { return Err(wrong()) };
            let fits = layers.last().is_none_or(|before| before.outputs == inputs);
            if !fits || inputs == 0 || outputs == 0 || *intercepts.shape() != [outputs] {
                return Err(wrong());
            }
            let weights = weights.f64s().ok_or_else(wrong)?;
            let intercepts = intercepts.f64s().ok_or_else(wrong)?;
            let activation = if number + 1 == count { last } else { hidden };
            layers.push(Layer { inputs, outputs, weights, intercepts, activation });
        }
        let widest = layers.iter().map(|layer| layer.outputs.max(layer.inputs)).max();
        Ok(Network { layers, widest: widest.unwrap_or(0) })
    }

    fn features(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.inputs)
    }

    fn outputs(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.outputs)
    }

    /// Gives `take` what the last layer makes of each row, and its number.
    fn run(&self, rows: Rows, mut take: impl FnMut(usize, &[f64])) {
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

struct NetworkRegressor(Network);

impl Regress for NetworkRegressor {
    fn features(&self) -> usize {
        self.0.features()
    }

    fn outputs(&self) -> Option<usize> {
        Some(self.0.outputs()).filter(|outputs| *outputs > 1)
    }

    fn predict(&self, rows: Rows, out: &mut [f64]) {
        let width = self.0.outputs();
        self.0.run(rows, |row, values| {
            if let Some(out) = out.get_mut(row * width..(row + 1) * width) {
                out.copy_from_slice(values);
            }
        });
    }
}

pub(super) fn regressor(of: &Estimator) -> Result<Predictor> {
    Ok(Predictor::regressor(NetworkRegressor(Network::read(of)?)))
}

struct NetworkClassifier {
    network: Network,
    classes: usize,
}

impl Classify for NetworkClassifier {
    fn features(&self) -> usize {
        self.network.features()
    }

    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]) {
        self.network.run(rows, |row, values| {
            let width = self.classes;
            let place = scores.get_mut(row * width..(row + 1) * width);
            let (Some(class), Some(scores)) = (classes.get_mut(row), place) else { return };
            match *values {
                [second] => {
                    *class = usize::from(second > 0.5);
                    scores.copy_from_slice(&[1.0 - second, second]);
                }
                _ => {
                    *class = largest(values);
                    scores.copy_from_slice(values);
                }
            }
        });
    }
}

pub(super) fn classifier(of: &Estimator) -> Result<Predictor> {
    let labels = of.labels()?;
    let classes = labels.len();
    let network = Network::read(of)?;
    let softmax = network.layers.last().map(|layer| layer.activation) == Some(Activation::Softmax);
    match (classes, network.outputs(), softmax) {
        (2, 1, false) => {}
        (_, outputs, true) if outputs == classes => {}
        (_, _, false) => return Err(of.unsupported("a model of several labels for a row")),
        _ => return Err(of.fault("it has not one output for each class")),
    }
    let model = NetworkClassifier { network, classes };
    Ok(Predictor::classifier(model, labels, Gives::ProbabilitiesAndLogs))
}
