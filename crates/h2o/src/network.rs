//! Deep learning: dense layers.
//!
//! Sums are added in H2O's order. Source: `DeeplearningMojoModel`, `NeuralNetwork`, `ActivationUtils`
//! and `GenModel.setInput` of h2o-genmodel 3.46.0.6.

use super::classes::ClassRule;
use super::head::{MojoHead, MojoScorer};
use super::info::MojoInfo;
use super::link::bounded_mean;
use super::numeric::{float, java_int};
use tensorserve_tabular::numeric::{Link, softmax};
use tensorserve_tensor::error::{Error, Result};

/// Products that are added side by side.
const PARTIAL_SUMS: usize = 8;

/// A network. The columns of levels come first, then those of numbers.
pub(super) struct Network {
    columns: usize,
    /// For each column of levels where its units start, and one more: their end.
    starts: Vec<usize>,
    has_first_level: bool,
    /// What is subtracted from numbers, and by what they are multiplied; empty if they are as they are.
    shifts: Vec<f64>,
    factors: Vec<f64>,
    inputs: usize,
    layers: Vec<MojoLayer>,
    response: NetworkResponse,
}

struct MojoLayer {
    outputs: usize,
    /// Of one output after the other.
    weights: Vec<f32>,
    biases: Vec<f64>,
    activation: MojoActivation,
    /// What remains of its outputs: 1 less the rate of drop-out.
    keeps: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MojoActivation {
    Identity,
    Softmax,
    Tanh,
    Rectifier,
    ExpRectifier,
    /// The largest of so many sums.
    Maxout(usize),
}

enum NetworkResponse {
    Number {
        link: Link,
        standard: Option<(f64, f64)>,
    },
    Classes(ClassRule),
    /// The inputs themselves.
    Inputs,
}

impl Network {
    /// Reads the network.
    pub(super) fn read(head: &MojoHead) -> Result<Self> {
        let info = &head.info;
        let response = NetworkResponse::read(head)?;
        let sizes = info.sizes("neural_network_sizes")?;
        let (Some(&inputs), Some(&outputs)) = (sizes.first(), sizes.last()) else {
            return Err(Error::damaged("model.ini: neural_network_sizes is empty"));
        };
        let needs = match response {
            NetworkResponse::Number { .. } => 1,
            NetworkResponse::Classes(_) => head.classes,
            NetworkResponse::Inputs => inputs,
        };
        if outputs != needs {
            return Err(Error::damaged(format!(
                "the network has {outputs} outputs, and needs {needs}"
            )));
        }
        let (starts, numbers) = info.level_starts(head.features)?;
        let network = Network {
            columns: head.features,
            starts,
            has_first_level: info.flag_or("use_all_factor_levels", false)?,
            shifts: info.numbers("norm_sub")?,
            factors: info.numbers("norm_mul")?,
            inputs,
            layers: read_layers(info, &sizes, &response)?,
            response,
        };
        network.check(numbers)?;
        Ok(network)
    }

    fn check(&self, numbers: usize) -> Result<()> {
        if self.first_number().checked_add(numbers) != Some(self.inputs) {
            return Err(Error::damaged("model.ini: the network has another number of inputs"));
        }
        let normed = (self.shifts.len(), self.factors.len());
        if !self.factors.is_empty() && normed != (numbers, numbers) {
            return Err(Error::damaged(
                "model.ini: norm_sub or norm_mul has another length than nums",
            ));
        }
        Ok(())
    }

    /// The unit of the first number.
    fn first_number(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Puts a row into the units of the first layer.
    fn fill(&self, row: &[f64], units: &mut [f64]) {
        let levels = self.starts.len().saturating_sub(1);
        let (levels, numbers) = row.split_at_checked(levels).unwrap_or_default();
        let (level_units, number_units) = match units.split_at_mut_checked(self.first_number()) {
            Some(parts) => parts,
            None => return,
        };
        level_units.fill(0.0);
        for (x, bounds) in levels.iter().zip(self.starts.windows(2)) {
            let &[start, end] = bounds else { continue };
            if let Some(unit) = self.level_unit(*x, start, end)
                && let Some(unit) = level_units.get_mut(unit)
            {
                *unit = 1.0;
            }
        }
        for (column, (unit, x)) in number_units.iter_mut().zip(numbers).enumerate() {
            let normed = match (self.shifts.get(column), self.factors.get(column)) {
                (Some(shift), Some(factor)) => (x - shift) * factor,
                _ => *x,
            };
            *unit = if normed.is_nan() { 0.0 } else { normed };
        }
    }

    /// The unit of a level among those from `start` to `end`: the last is for missing ones.
    fn level_unit(&self, x: f64, start: usize, end: usize) -> Option<usize> {
        let last = end.checked_sub(1)?;
        if x.is_nan() {
            return Some(last);
        }
        let skipped = i32::from(!self.has_first_level);
        let level = usize::try_from(java_int(x).checked_sub(skipped)?).ok()?;
        Some(start.checked_add(level)?.min(last))
    }

    fn finish(&self, row: &[f64], units: &[f64], outputs: &[f64], prediction: &mut [f64]) {
        match &self.response {
            NetworkResponse::Number { link, standard } => {
                let output = outputs.first().copied().unwrap_or(f64::NAN);
                let number = standard.map_or(output, |(factor, shift)| output / factor + shift);
                prediction.fill(bounded_mean(*link, number));
            }
            NetworkResponse::Classes(rule) => {
                let probabilities = prediction.get_mut(1..).unwrap_or_default();
                probabilities.iter_mut().zip(outputs).for_each(|(to, from)| *to = *from);
                rule.decide(prediction, row);
            }
            NetworkResponse::Inputs => self.reconstruct(row, units, outputs, prediction),
        }
    }

    /// Writes what the network makes of the units of a row, numbers in their own scale, and the mean
    /// square of the error in that of the network.
    fn reconstruct(&self, row: &[f64], units: &[f64], outputs: &[f64], prediction: &mut [f64]) {
        let Some((error, values)) = prediction.split_last_mut() else { return };
        let first = self.first_number();
        let numbers = row.get(self.starts.len().saturating_sub(1)..).unwrap_or_default();
        let mut sum = 0.0;
        for (index, (value, output)) in values.iter_mut().zip(outputs).enumerate() {
            let column = index.checked_sub(first);
            let normed = column
                .and_then(|column| Some((*self.factors.get(column)?, *self.shifts.get(column)?)));
            *value = normed.map_or(*output, |(factor, shift)| output / factor + shift);
            let original = match column.and_then(|column| numbers.get(column)) {
                Some(number) => *number,
                None => units.get(index).copied().unwrap_or(0.0),
            };
            let scale = normed.map_or(1.0, |(factor, _)| factor);
            sum += ((*value - original) * scale) * ((*value - original) * scale);
        }
        *error = sum / float(outputs.len());
    }
}

impl NetworkResponse {
    fn read(head: &MojoHead) -> Result<Self> {
        let info = &head.info;
        if head.category == "AutoEncoder" {
            return Ok(NetworkResponse::Inputs);
        }
        let link = match info.required("distribution")? {
            "modified_huber" => {
                return Err(Error::unsupported(
                    "deep learning with the distribution modified_huber is not supported: \
                     h2o-genmodel predicts the same for all rows",
                ));
            }
            "bernoulli" | "quasibinomial" | "ordinal" => Link::Logit,
            "multinomial" | "poisson" | "gamma" | "tweedie" => Link::Log,
            _ => Link::Identity,
        };
        if head.is_classifier() {
            return Ok(NetworkResponse::Classes(ClassRule::read(info, head.classes)?));
        }
        let factor = info.optional_numbers("norm_resp_mul")?;
        let shift = info.optional_numbers("norm_resp_sub")?;
        let standard = match (factor.as_deref(), shift.as_deref()) {
            (None, _) => None,
            (Some([factor, ..]), Some([shift, ..])) => Some((*factor, *shift)),
            _ => return Err(Error::damaged("model.ini: norm_resp_sub is missing")),
        };
        Ok(NetworkResponse::Number { link, standard })
    }
}

fn read_layers(
    info: &MojoInfo,
    sizes: &[usize],
    response: &NetworkResponse,
) -> Result<Vec<MojoLayer>> {
    let hidden = info.required("activation")?;
    let rates = info.numbers("hidden_dropout_ratios")?;
    let mut layers = Vec::new();
    for (number, size) in sizes.windows(2).enumerate() {
        let &[inputs, outputs] = size else { continue };
        let weights = info.numbers(&format!("weight_layer{number}"))?;
        let biases = info.numbers(&format!("bias_layer{number}"))?;
        let name = match response {
            _ if number + 2 < sizes.len() => hidden,
            NetworkResponse::Inputs => hidden,
            NetworkResponse::Number { .. } => "Linear",
            NetworkResponse::Classes(_) => "Softmax",
        };
        let sums = biases.len().checked_div(outputs).unwrap_or(0);
        let activation = MojoActivation::read(name, sums)?;
        let width = match activation {
            MojoActivation::Maxout(sums) => outputs.checked_mul(sums),
            MojoActivation::Identity
            | MojoActivation::Softmax
            | MojoActivation::Tanh
            | MojoActivation::Rectifier
            | MojoActivation::ExpRectifier => Some(outputs),
        };
        let needs = width.and_then(|width| width.checked_mul(inputs));
        if outputs == 0 || Some(biases.len()) != width || Some(weights.len()) != needs {
            return Err(Error::damaged(format!(
                "layer {number} of the network has {} weights and {} biases for {inputs} inputs \
                 and {outputs} outputs",
                weights.len(),
                biases.len()
            )));
        }
        let rate = rates.get(number).copied().unwrap_or(0.0);
        let drops = name.ends_with("WithDropout") && rate > 0.0;
        #[allow(clippy::cast_possible_truncation)] // H2O has them in single precision.
        let weights = weights.into_iter().map(|weight| weight as f32).collect();
        let keeps = drops.then_some(1.0 - rate);
        layers.push(MojoLayer { outputs, weights, biases, activation, keeps });
    }
    Ok(layers)
}

impl MojoActivation {
    fn read(name: &str, sums: usize) -> Result<Self> {
        match name.strip_suffix("WithDropout").unwrap_or(name) {
            "Linear" => Ok(MojoActivation::Identity),
            "Softmax" => Ok(MojoActivation::Softmax),
            "Tanh" => Ok(MojoActivation::Tanh),
            "Rectifier" => Ok(MojoActivation::Rectifier),
            "ExpRectifier" => Ok(MojoActivation::ExpRectifier),
            // H2O has two, and goes wrong for more.
            "Maxout" if sums <= 2 => Ok(MojoActivation::Maxout(sums)),
            other => Err(Error::unsupported(format!("the activation {other:?} is not supported"))),
        }
    }

    /// Applies the function to the sums of a layer, whose outputs come first.
    fn apply(self, sums: &mut [f64]) {
        match self {
            MojoActivation::Identity => {}
            MojoActivation::Softmax => softmax(sums),
            MojoActivation::Tanh => {
                sums.iter_mut().for_each(|x| *x = 1.0 - 2.0 / (1.0 + (2.0 * *x).exp()));
            }
            MojoActivation::Rectifier => sums.iter_mut().for_each(|x| *x = 0.5 * (*x + x.abs())),
            MojoActivation::ExpRectifier => {
                sums.iter_mut().for_each(|x| *x = if *x >= 0.0 { *x } else { x.exp() - 1.0 });
            }
            MojoActivation::Maxout(count) => {
                let count = count.max(1);
                for output in 0..sums.len() / count {
                    let group = sums.get(output * count..(output + 1) * count).unwrap_or_default();
                    let largest = group.iter().copied().reduce(|a, b| if a > b { a } else { b });
                    if let (Some(to), Some(largest)) = (sums.get_mut(output), largest) {
                        *to = largest;
                    }
                }
            }
        }
    }
}

impl MojoLayer {
    /// Computes the outputs of the layer.
    fn apply(&self, inputs: &[f64], outputs: &mut Vec<f64>) {
        outputs.clear();
        if let MojoActivation::Maxout(count) = self.activation
            && count > 1
        {
            self.add_interleaved(inputs, count, outputs);
        } else {
            let rows = self.weights.chunks_exact(inputs.len().max(1));
            let sums = rows.zip(&self.biases);
            outputs.extend(sums.map(|(weights, bias)| dot(weights, inputs) + bias));
        }
        self.activation.apply(outputs);
        outputs.truncate(self.outputs);
        if let Some(keeps) = self.keeps {
            outputs.iter_mut().for_each(|output| *output *= keeps);
        }
    }

    /// The sums of weights that lie side by side, `count` for each input.
    fn add_interleaved(&self, inputs: &[f64], count: usize, sums: &mut Vec<f64>) {
        let rows = self.weights.chunks_exact(inputs.len().max(1) * count);
        for (weights, biases) in rows.zip(self.biases.chunks_exact(count)) {
            for (number, bias) in biases.iter().enumerate() {
                let weights = weights.iter().skip(number).step_by(count);
                let products = inputs.iter().zip(weights).map(|(x, weight)| x * f64::from(*weight));
                sums.push(products.fold(0.0, |sum, product| sum + product) + bias);
            }
        }
    }
}

/// The sum of products, in H2O's order.
fn dot(weights: &[f32], inputs: &[f64]) -> f64 {
    let (weight_blocks, weights) = weights.as_chunks::<PARTIAL_SUMS>();
    let (input_blocks, inputs) = inputs.as_chunks::<PARTIAL_SUMS>();
    let mut sums = [0.0; PARTIAL_SUMS];
    for (weights, inputs) in weight_blocks.iter().zip(input_blocks) {
        for ((sum, weight), x) in sums.iter_mut().zip(weights).zip(inputs) {
            *sum += f64::from(*weight) * x;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let mut sum = (a + b + c + d) + (e + f + g + h);
    for (weight, x) in weights.iter().zip(inputs) {
        sum += f64::from(*weight) * x;
    }
    sum
}

impl MojoScorer for Network {
    fn score(&self, rows: &mut [f64], _: &[f64], predictions: &mut [f64]) {
        let rows = rows.chunks_exact(self.columns.max(1));
        let width = predictions.len() / rows.len().max(1);
        let mut units = vec![0.0; self.inputs];
        let (mut values, mut outputs) = (Vec::new(), Vec::new());
        for (row, prediction) in rows.zip(predictions.chunks_exact_mut(width.max(1))) {
            self.fill(row, &mut units);
            values.clone_from(&units);
            for layer in &self.layers {
                layer.apply(&values, &mut outputs);
                std::mem::swap(&mut values, &mut outputs);
            }
            self.finish(row, &units, &values, prediction);
        }
    }
}
