//! `NeuralNetwork`: layers of neurons, each an activation function of a weighted sum of values of
//! layers before.

use std::collections::HashMap;
use std::ops::Range;

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ModelContext;
use super::expression::Expression;
use super::field::{MISSING, PmmlType, indicator};
use super::norm_continuous::NormContinuous;
use super::numeric::{logistic, normalize, softmax};
use super::prediction::PmmlPrediction;
use super::reader;
use super::row::PmmlRow;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct NeuralNetwork {
    /// The slot and the expression of each input.
    inputs: Box<[(u32, Expression)]>,
    layers: Box<[NeuralLayer]>,
    outputs: NeuralOutputs,
}

struct NeuralLayer {
    /// The slot of the value of its first neuron; those of the others follow.
    first: u32,
    neurons: Box<[Neuron]>,
    /// The connections of all its neurons: slot and weight.
    connections: Box<[(u32, f64)]>,
    activation: ActivationFunction,
    /// Used by [`ActivationFunction::Threshold`].
    threshold: f64,
    normalization: LayerNormalization,
}

struct Neuron {
    bias: f64,
    /// A range of [`NeuralLayer::connections`].
    connections: Range<usize>,
}

enum NeuralOutputs {
    Number {
        slot: u32,
        /// The inverse of the normalization of the target.
        denormalization: Option<NormContinuous>,
    },
    Classes {
        classes: TargetClasses,
        /// The index of each class, the slot of its probability, and the code of the id of its neuron.
        sources: Box<[(u32, u32, f64)]>,
    },
}

#[derive(Clone, Copy, Debug)]
enum ActivationFunction {
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
enum LayerNormalization {
    None,
    Simplemax,
    Softmax,
}

impl ActivationFunction {
    fn apply(self, sum: f64, threshold: f64) -> f64 {
        match self {
            ActivationFunction::Threshold if sum.is_nan() => sum,
            ActivationFunction::Threshold => indicator(sum > threshold),
            ActivationFunction::Logistic => logistic(sum),
            ActivationFunction::Tanh => sum.tanh(),
            ActivationFunction::Identity => sum,
            ActivationFunction::Exponential => sum.exp(),
            ActivationFunction::Reciprocal => 1.0 / sum,
            ActivationFunction::Square => sum * sum,
            ActivationFunction::Gauss => (-(sum * sum)).exp(),
            ActivationFunction::Sine => sum.sin(),
            ActivationFunction::Cosine => sum.cos(),
            ActivationFunction::Elliott => sum / (1.0 + sum.abs()),
            ActivationFunction::Arctan => 2.0 * sum.atan() / std::f64::consts::PI,
            ActivationFunction::Rectifier if sum.is_nan() => sum,
            ActivationFunction::Rectifier => sum.max(0.0),
        }
    }

    fn named(element: XmlElement, name: &str) -> Result<Self> {
        Ok(match name {
            "threshold" => ActivationFunction::Threshold,
            "logistic" => ActivationFunction::Logistic,
            "tanh" => ActivationFunction::Tanh,
            "identity" => ActivationFunction::Identity,
            "exponential" => ActivationFunction::Exponential,
            "reciprocal" => ActivationFunction::Reciprocal,
            "square" => ActivationFunction::Square,
            "Gauss" => ActivationFunction::Gauss,
            "sine" => ActivationFunction::Sine,
            "cosine" => ActivationFunction::Cosine,
            "Elliott" => ActivationFunction::Elliott,
            "arctan" => ActivationFunction::Arctan,
            "rectifier" => ActivationFunction::Rectifier,
            _ => return Err(element.unsupported(format!("activationFunction={name:?}"))),
        })
    }
}

impl LayerNormalization {
    fn named(element: XmlElement, name: Option<&str>) -> Result<Self> {
        match name {
            None | Some("none") => Ok(LayerNormalization::None),
            Some("simplemax") => Ok(LayerNormalization::Simplemax),
            Some("softmax") => Ok(LayerNormalization::Softmax),
            Some(name) => {
                Err(element.damaged(format!("normalizationMethod={name:?} is not valid")))
            }
        }
    }
}

impl NeuralLayer {
    fn run(&self, row: &mut PmmlRow) {
        for (slot, neuron) in (self.first..).zip(&self.neurons) {
            let connections = self.connections.get(neuron.connections.clone()).unwrap_or_default();
            let mut sum = neuron.bias;
            for (from, weight) in connections {
                sum += weight * row.get(*from);
            }
            row.set(slot, self.activation.apply(sum, self.threshold));
        }
        let values = row.range(self.first, self.neurons.len());
        match self.normalization {
            LayerNormalization::None => {}
            LayerNormalization::Simplemax => normalize(values),
            // The maximum ignores NaN, but a missing value makes all of them missing.
            LayerNormalization::Softmax if values.iter().any(|value| value.is_nan()) => {
                values.fill(f64::NAN);
            }
            LayerNormalization::Softmax => softmax(values),
        }
    }
}

impl NeuralNetwork {
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        for (slot, expression) in &self.inputs {
            let value = expression.value(row);
            row.set(*slot, value);
        }
        for layer in &self.layers {
            layer.run(row);
        }
        match &self.outputs {
            NeuralOutputs::Number { slot, denormalization } => {
                let value = row.get(*slot);
                PmmlPrediction::number(match denormalization {
                    Some(function) if !value.is_nan() => function.at(value),
                    Some(_) | None => value,
                })
            }
            NeuralOutputs::Classes { classes, sources } => {
                row.range(classes.slot, classes.len()).fill(0.0);
                for (class, from, _) in sources {
                    let value = row.get(*from);
                    if value.is_nan() {
                        return PmmlPrediction::MISSING;
                    }
                    row.set(classes.slot.saturating_add(*class), value);
                }
                let prediction = classes.most_probable(row);
                let winner = sources.iter().find(|(class, ..)| *class == prediction.class);
                let entity = winner.map_or(MISSING, |(_, _, id)| *id);
                PmmlPrediction { entity, ..prediction }
            }
        }
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        let mut neurons = NeuronSlots::default();
        let mut inputs = Vec::new();
        for input in element.required_child("NeuralInputs")?.children_named("NeuralInput") {
            let derived = input.required_child("DerivedField")?;
            let expression = reader::read_child(derived, PmmlType::NUMBER, context.scope, builder)?;
            let slot = builder.allocate_slot(input)?;
            neurons.0.insert(input.required("id")?, slot);
            inputs.push((slot, expression));
        }
        let mut layers = Vec::new();
        for layer in element.children_named("NeuralLayer") {
            layers.push(read_layer(builder, element, layer, &mut neurons)?);
        }
        let outputs = read_outputs(builder, element, context, &neurons)?;
        Ok(NeuralNetwork { inputs: inputs.into(), layers: layers.into(), outputs })
    }
}

/// The slot of each neuron by its id.
#[derive(Default)]
struct NeuronSlots<'d>(HashMap<&'d str, u32>);

impl NeuronSlots<'_> {
    /// The slot of the neuron that the attribute `attribute` of `element` names.
    fn find(&self, element: XmlElement, attribute: &str) -> Result<u32> {
        let id = element.required(attribute)?;
        let slot = self.0.get(id).copied();
        slot.ok_or_else(|| element.damaged(format!("no layer before has the neuron {id:?}")))
    }
}

fn read_layer<'d>(
    builder: &mut PmmlBuilder<'d>,
    network: XmlElement<'d>,
    element: XmlElement<'d>,
    slots: &mut NeuronSlots<'d>,
) -> Result<NeuralLayer> {
    // Attributes of the network are the defaults for its layers.
    let name = match element.attribute("activationFunction") {
        Some(name) => name,
        None => network.required("activationFunction")?,
    };
    let activation = ActivationFunction::named(element, name)?;
    let method = element.attribute("normalizationMethod");
    let method = method.or(network.attribute("normalizationMethod"));
    let normalization = LayerNormalization::named(element, method)?;
    let threshold = match element.number("threshold")? {
        Some(threshold) => threshold,
        None => network.number_or("threshold", 0.0)?,
    };
    let (mut neurons, mut connections) = (Vec::new(), Vec::new());
    for neuron in element.children_named("Neuron") {
        let start = connections.len();
        for connection in neuron.children_named("Con") {
            let from = slots.find(connection, "from")?;
            connections.push((from, connection.required_number("weight")?));
        }
        let bias = neuron.number_or("bias", 0.0)?;
        neurons.push(Neuron { bias, connections: start..connections.len() });
    }
    let first = builder.allocate_slots(element, neurons.len())?;
    for (slot, neuron) in (first..).zip(element.children_named("Neuron")) {
        slots.0.insert(neuron.required("id")?, slot);
    }
    let (neurons, connections) = (neurons.into(), connections.into());
    Ok(NeuralLayer { first, neurons, connections, activation, threshold, normalization })
}

fn read_outputs<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    context: &ModelContext,
    neurons: &NeuronSlots<'d>,
) -> Result<NeuralOutputs> {
    let outputs = element.required_child("NeuralOutputs")?;
    match &context.classes {
        None => read_number_output(outputs, neurons),
        Some(classes) => read_class_outputs(builder, outputs, classes, neurons),
    }
}

fn read_number_output(outputs: XmlElement, neurons: &NeuronSlots) -> Result<NeuralOutputs> {
    let mut all = outputs.children_named("NeuralOutput");
    let (Some(output), None) = (all.next(), all.next()) else {
        return Err(outputs.damaged("needs one NeuralOutput for a number"));
    };
    let slot = neurons.find(output, "outputNeuron")?;
    let derived = output.required_child("DerivedField")?;
    let denormalization = match derived.children().next() {
        Some(child) if child.name() == "FieldRef" => None,
        Some(child) if child.name() == "NormContinuous" => {
            Some(NormContinuous::read_inverse(child)?)
        }
        _ => return Err(derived.unsupported("this expression of an output")),
    };
    Ok(NeuralOutputs::Number { slot, denormalization })
}

fn read_class_outputs<'d>(
    builder: &mut PmmlBuilder<'d>,
    outputs: XmlElement<'d>,
    classes: &TargetClasses,
    neurons: &NeuronSlots<'d>,
) -> Result<NeuralOutputs> {
    let mut sources = Vec::new();
    for output in outputs.children_named("NeuralOutput") {
        let slot = neurons.find(output, "outputNeuron")?;
        let Some(discrete) = output.required_child("DerivedField")?.child("NormDiscrete") else {
            return Err(output.unsupported("an output of a class that is not a NormDiscrete"));
        };
        let class = classes.index_of(builder, discrete, discrete.required("value")?)?;
        let id = match builder.needs_entity_ids {
            true => builder.strings.intern(output.required("outputNeuron")?),
            false => MISSING,
        };
        sources.push((class, slot, id));
    }
    if sources.is_empty() {
        return Err(outputs.damaged("has no NeuralOutput"));
    }
    Ok(NeuralOutputs::Classes { classes: classes.clone(), sources: sources.into() })
}
