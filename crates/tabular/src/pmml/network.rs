//! Neural networks: layers of sums of the layer before, each through an activation function.

use std::collections::HashMap;
use std::ops::Range;

use super::expression::{self, Expression, Line};
use super::field::{Kind, Row};
use super::model::{Classes, Place, Verdict};
use super::regression::{divide_by_total, softmax};
use super::schema::Builder;
use super::xml::Element;
use tensorserve_tensor::error::Result;

pub(super) struct Network {
    inputs: Box<[(u32, Expression)]>,
    layers: Box<[Layer]>,
    outputs: Outputs,
}

struct Layer {
    /// Where the values of its neurons lie, side by side.
    first: u32,
    neurons: Box<[Neuron]>,
    /// Of all its neurons: where a value comes from, and its weight.
    connections: Box<[(u32, f64)]>,
    activation: Activation,
    /// Of the activation function `threshold`.
    threshold: f64,
    normalization: Normalization,
}

struct Neuron {
    bias: f64,
    connections: Range<usize>,
}

enum Outputs {
    /// Where the number is, and what makes it one of the target's.
    Number(u32, Option<Line>),
    /// Where the probability of each class comes from.
    Classes(Classes, Box<[(u32, u32)]>),
}

#[derive(Clone, Copy, Debug)]
enum Activation {
    Threshold,
    Logistic,
    Tanh,
    Identity,
    Exponential,
    Reciprocal,
    Square,
    Gauss,
    Sine,
    Cosine,
    Elliott,
    Arctan,
    Rectifier,
}

#[derive(Clone, Copy, Debug)]
enum Normalization {
    None,
    Simplemax,
    Softmax,
}

impl Activation {
    fn of(self, sum: f64, threshold: f64) -> f64 {
        match self {
            Activation::Threshold if sum.is_nan() => sum,
            Activation::Threshold => f64::from(u8::from(sum > threshold)),
            Activation::Logistic => 1.0 / (1.0 + (-sum).exp()),
            Activation::Tanh => sum.tanh(),
            Activation::Identity => sum,
            Activation::Exponential => sum.exp(),
            Activation::Reciprocal => 1.0 / sum,
            Activation::Square => sum * sum,
            Activation::Gauss => (-(sum * sum)).exp(),
            Activation::Sine => sum.sin(),
            Activation::Cosine => sum.cos(),
            Activation::Elliott => sum / (1.0 + sum.abs()),
            Activation::Arctan => 2.0 * sum.atan() / std::f64::consts::PI,
            Activation::Rectifier if sum.is_nan() => sum,
            Activation::Rectifier => sum.max(0.0),
        }
    }

    fn named(element: Element, name: &str) -> Result<Self> {
        Ok(match name {
            "threshold" => Activation::Threshold,
            "logistic" => Activation::Logistic,
            "tanh" => Activation::Tanh,
            "identity" => Activation::Identity,
            "exponential" => Activation::Exponential,
            "reciprocal" => Activation::Reciprocal,
            "square" => Activation::Square,
            "Gauss" => Activation::Gauss,
            "sine" => Activation::Sine,
            "cosine" => Activation::Cosine,
            "Elliott" => Activation::Elliott,
            "arctan" => Activation::Arctan,
            "rectifier" => Activation::Rectifier,
            _ => return Err(element.unsupported(format!("activationFunction={name:?}"))),
        })
    }
}

impl Normalization {
    fn named(element: Element, name: Option<&str>) -> Result<Self> {
        match name {
            None | Some("none") => Ok(Normalization::None),
            Some("simplemax") => Ok(Normalization::Simplemax),
            Some("softmax") => Ok(Normalization::Softmax),
            Some(name) => {
                Err(element.damaged(format!("normalizationMethod={name:?} is not known")))
            }
        }
    }
}

impl Layer {
    fn run(&self, row: &mut Row) {
        for (slot, neuron) in (self.first..).zip(&self.neurons) {
            let connections = self.connections.get(neuron.connections.clone()).unwrap_or_default();
            let mut sum = neuron.bias;
            for (from, weight) in connections {
                sum += weight * row.get(*from);
            }
            row.set(slot, self.activation.of(sum, self.threshold));
        }
        let values = row.range(self.first, self.neurons.len());
        match self.normalization {
            Normalization::None => {}
            Normalization::Simplemax => divide_by_total(values),
            // A missing value must not be taken for a small one.
            Normalization::Softmax if values.iter().any(|value| value.is_nan()) => {
                values.fill(f64::NAN);
            }
            Normalization::Softmax => softmax(values),
        }
    }
}

impl Network {
    pub(super) fn score(&self, row: &mut Row) -> Verdict {
        for (slot, expression) in &self.inputs {
            row.set(*slot, expression.value(row));
        }
        for layer in &self.layers {
            layer.run(row);
        }
        match &self.outputs {
            Outputs::Number(slot, line) => {
                let value = row.get(*slot);
                Verdict::number(match line {
                    Some(line) if !value.is_nan() => line.at(value),
                    Some(_) | None => value,
                })
            }
            Outputs::Classes(classes, sources) => {
                row.range(classes.slot, classes.len()).fill(0.0);
                for (class, from) in sources {
                    let value = row.get(*from);
                    if value.is_nan() {
                        return Verdict::MISSING;
                    }
                    row.set(classes.slot.saturating_add(*class), value);
                }
                classes.likeliest(row)
            }
        }
    }

    pub(super) fn read<'d>(
        builder: &mut Builder<'d>,
        element: Element<'d>,
        place: &Place,
    ) -> Result<Self> {
        let mut ids = HashMap::new();
        let mut inputs = Vec::new();
        for input in element.need_child("NeuralInputs")?.all("NeuralInput") {
            let derived = input.need_child("DerivedField")?;
            let (scope, symbols) = (place.scope, &mut builder.symbols);
            let expression = expression::of(derived, Kind::Number, false, scope, symbols)?;
            let slot = builder.slot(input)?;
            ids.insert(input.need("id")?, slot);
            inputs.push((slot, expression));
        }
        let mut layers = Vec::new();
        for layer in element.all("NeuralLayer") {
            layers.push(read_layer(builder, element, layer, &mut ids)?);
        }
        let outputs = read_outputs(builder, element, place, &ids)?;
        Ok(Network { inputs: inputs.into(), layers: layers.into(), outputs })
    }
}

/// The place of the neuron that `attribute` names.
fn neuron(ids: &HashMap<&str, u32>, element: Element, attribute: &str) -> Result<u32> {
    let id = element.need(attribute)?;
    let found = ids.get(id).copied();
    found.ok_or_else(|| element.damaged(format!("no neuron {id:?} comes before it")))
}

fn read_layer<'d>(
    builder: &mut Builder<'d>,
    network: Element<'d>,
    element: Element<'d>,
    ids: &mut HashMap<&'d str, u32>,
) -> Result<Layer> {
    let own = element.attribute("activationFunction");
    let name = match own {
        Some(name) => name,
        None => network.need("activationFunction")?,
    };
    let activation = Activation::named(element, name)?;
    let method = element.attribute("normalizationMethod");
    let method = method.or(network.attribute("normalizationMethod"));
    let normalization = Normalization::named(element, method)?;
    let threshold = match element.number("threshold")? {
        Some(threshold) => threshold,
        None => network.number_or("threshold", 0.0)?,
    };
    let (mut neurons, mut connections) = (Vec::new(), Vec::new());
    for neuron_element in element.all("Neuron") {
        let start = connections.len();
        for connection in neuron_element.all("Con") {
            let from = neuron(ids, connection, "from")?;
            connections.push((from, connection.need_number("weight")?));
        }
        let bias = neuron_element.number_or("bias", 0.0)?;
        neurons.push(Neuron { bias, connections: start..connections.len() });
    }
    let first = builder.slots(element, neurons.len())?;
    for (slot, neuron) in (first..).zip(element.all("Neuron")) {
        ids.insert(neuron.need("id")?, slot);
    }
    let (neurons, connections) = (neurons.into(), connections.into());
    Ok(Layer { first, neurons, connections, activation, threshold, normalization })
}

fn read_outputs<'d>(
    builder: &mut Builder<'d>,
    element: Element<'d>,
    place: &Place,
    ids: &HashMap<&'d str, u32>,
) -> Result<Outputs> {
    let outputs = element.need_child("NeuralOutputs")?;
    let Some(classes) = &place.classes else {
        let mut all = outputs.all("NeuralOutput");
        let (Some(output), None) = (all.next(), all.next()) else {
            return Err(outputs.damaged("needs one NeuralOutput for a number"));
        };
        let slot = neuron(ids, output, "outputNeuron")?;
        let derived = output.need_child("DerivedField")?;
        return match derived.children().next() {
            Some(child) if child.name() == "FieldRef" => Ok(Outputs::Number(slot, None)),
            Some(child) if child.name() == "NormContinuous" => {
                Ok(Outputs::Number(slot, Some(Line::inverse(child)?)))
            }
            _ => Err(derived.unsupported("this expression of an output")),
        };
    };
    let mut sources = Vec::new();
    for output in outputs.all("NeuralOutput") {
        let slot = neuron(ids, output, "outputNeuron")?;
        let Some(discrete) = output.need_child("DerivedField")?.child("NormDiscrete") else {
            return Err(output.unsupported("another expression of a class than NormDiscrete"));
        };
        let class = classes.number(builder, discrete, discrete.need("value")?)?;
        sources.push((class, slot));
    }
    if sources.len() != classes.len() {
        return Err(outputs.unsupported("another number of outputs than of classes"));
    }
    Ok(Outputs::Classes(classes.clone(), sources.into()))
}
