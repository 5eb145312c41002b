//! What a model takes and returns, as tensors.
//!
//! No protocol here has sequences, maps and optional values. Around the model's graph, operators are added:
//!
//! * the maps from class to score of a classifier become a tensor ([`zipmap`]), and its classes an
//!   output of their own;
//! * a sequence of tensors that the graph lists one by one becomes an output for each of them; any other
//!   sequence becomes one tensor, with the elements along the first dimension, so they need the same shape;
//! * an optional value becomes that value.

use std::collections::HashSet;

use super::graph::{int, node, value_of};
use super::model::{is_standard_domain, opset};
use super::upgrade::separate_initializers;
use super::zipmap::{self, ClassNames};
use crate::proto::type_proto::Value as Type;
use crate::proto::{GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, type_proto};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::Result;

/// The first version of the standard operators with sequences.
const OPSET_WITH_SEQUENCES: i64 = 11;

/// The most outputs that a sequence becomes. A longer one becomes one tensor.
const MAX_OUTPUTS: usize = 64;

/// A model whose inputs and outputs are tensors.
#[derive(Default)]
pub(super) struct Interface {
    /// Whether its graph was changed.
    pub(super) is_changed: bool,
    /// The classes of its scores.
    pub(super) classes: Vec<ClassNames>,
    /// Tensors of the graph, with the names that clients use.
    aliases: Vec<(String, String)>,
}

impl Interface {
    /// Changes `model` so that its inputs and outputs are tensors, as far as that is possible.
    ///
    /// # Errors
    /// [`Code::Unimplemented`](tensorserve_tensor::error::Code) for a map that is not made by a `ZipMap`.
    pub(super) fn of_tensors(model: &mut ModelProto) -> Result<Self> {
        let classes = zipmap::replace_maps(model)?;
        let mut interface = Interface { is_changed: classes.is_some(), ..Interface::default() };
        interface.classes = classes.unwrap_or_default();
        let has_sequences = opset(model).is_some_and(|version| version >= OPSET_WITH_SEQUENCES);
        let graph = model.graph.get_or_insert_default();
        if !has_sequences || !graph.input.iter().chain(&graph.output).any(is_composite) {
            return Ok(interface);
        }
        separate_initializers(model);
        let graph = model.graph.get_or_insert_default();
        interface.replace_inputs(graph);
        interface.replace_outputs(graph);
        interface.is_changed = true;
        Ok(interface)
    }

    /// The signature of the model.
    ///
    /// # Errors
    /// [`Code::Unimplemented`](tensorserve_tensor::error::Code) if an input or output is of no supported type.
    pub(super) fn signature(&self, model: &ModelProto) -> Result<Signature> {
        let mut signature = super::signature(model)?;
        for spec in signature.inputs.iter_mut().chain(&mut signature.outputs) {
            let alias = self.aliases.iter().find(|(name, _)| *name == spec.tensor_name);
            if let Some((_, alias)) = alias {
                spec.alias.clone_from(alias);
            }
        }
        signature.outputs.extend(self.classes.iter().map(ClassNames::spec));
        signature.inputs.sort_by(|a, b| a.alias.cmp(&b.alias));
        signature.outputs.sort_by(|a, b| a.alias.cmp(&b.alias));
        Ok(signature)
    }

    /// Takes a tensor in place of each input that is a sequence or optional.
    fn replace_inputs(&mut self, graph: &mut GraphProto) {
        let mut nodes = Vec::new();
        for input in &mut graph.input {
            let Some(composite) = Composite::of(input) else {
                continue;
            };
            let alias = input.name.clone();
            let tensor = format!("{alias}/tensor");
            let sequence =
                if composite.is_optional { format!("{alias}/sequence") } else { alias.clone() };
            if composite.is_sequence {
                let split = node("SplitToSequence", &[&tensor], &[&sequence]);
                nodes.push(split.with(int("axis", 0)).with(int("keepdims", 0)));
            }
            if composite.is_optional {
                let value = if composite.is_sequence { &sequence } else { &tensor };
                nodes.push(node("Optional", &[value], &[&alias]));
            }
            *input = composite.tensor(&tensor);
            self.aliases.push((tensor, alias));
        }
        nodes.append(&mut graph.node);
        graph.node = nodes;
    }

    /// Returns tensors in place of each output that is a sequence or optional.
    fn replace_outputs(&mut self, graph: &mut GraphProto) {
        let mut taken: HashSet<String> =
            graph.output.iter().map(|output| output.name.clone()).collect();
        for output in std::mem::take(&mut graph.output) {
            let Some(composite) = Composite::of(&output) else {
                graph.output.push(output);
                continue;
            };
            let alias = output.name;
            let parts = parts_of(graph, &alias).filter(|_| composite.is_sequence);
            let outputs: Vec<ValueInfoProto> = match parts {
                Some(parts) => {
                    let named = (0..).zip(parts).map(|(index, part): (usize, String)| {
                        let mut its_alias = format!("{alias}_{index}");
                        while !taken.insert(its_alias.clone()) {
                            its_alias.push('_');
                        }
                        (part, its_alias)
                    });
                    let named: Vec<(String, String)> = named.collect();
                    let element = |(part, its_alias): (String, String)| {
                        let tensor = format!("{alias}/{its_alias}");
                        graph.node.push(node("Identity", &[&part], &[&tensor]));
                        let info = composite.element(&tensor);
                        self.aliases.push((tensor, its_alias));
                        info
                    };
                    named.into_iter().map(element).collect()
                }
                None => {
                    let mut value = alias.clone();
                    if composite.is_optional {
                        let inner = format!("{alias}/value");
                        graph.node.push(node("OptionalGetElement", &[&value], &[&inner]));
                        value = inner;
                    }
                    if composite.is_sequence {
                        let stacked = format!("{alias}/tensor");
                        let concat = node("ConcatFromSequence", &[&value], &[&stacked]);
                        graph.node.push(concat.with(int("axis", 0)).with(int("new_axis", 1)));
                        value = stacked;
                    }
                    self.aliases.push((value.clone(), alias));
                    vec![composite.tensor(&value)]
                }
            };
            graph.output.extend(outputs);
        }
    }
}

fn is_composite(info: &ValueInfoProto) -> bool {
    Composite::of(info).is_some()
}

/// A value that is a sequence of tensors, or optional, or both.
struct Composite {
    is_optional: bool,
    is_sequence: bool,
    /// The type of its tensors.
    element: type_proto::Tensor,
}

impl Composite {
    fn of(info: &ValueInfoProto) -> Option<Self> {
        let value = |its: &Option<Box<TypeProto>>| its.as_ref()?.value.clone();
        let mut its_type = info.r#type.as_ref()?.value.clone()?;
        let is_optional = matches!(its_type, Type::OptionalType(_));
        if let Type::OptionalType(optional) = &its_type {
            its_type = value(&optional.elem_type)?;
        }
        let is_sequence = matches!(its_type, Type::SequenceType(_));
        if let Type::SequenceType(sequence) = &its_type {
            its_type = value(&sequence.elem_type)?;
        }
        let Type::TensorType(element) = its_type else {
            return None;
        };
        let is_composite = is_optional || is_sequence;
        is_composite.then_some(Composite { is_optional, is_sequence, element })
    }

    /// One element, as the tensor `name`.
    fn element(&self, name: &str) -> ValueInfoProto {
        value_of(name, self.element.clone())
    }

    /// The value, as the tensor `name`. The number of elements of a sequence is not that of the rows of other
    /// values: without dimensions, requests are not batched.
    fn tensor(&self, name: &str) -> ValueInfoProto {
        match self.is_sequence {
            true => {
                let elem_type = self.element.elem_type;
                value_of(name, type_proto::Tensor { elem_type, shape: None })
            }
            false => self.element(name),
        }
    }
}

/// The tensors of the sequence `name`, if the graph lists them.
fn parts_of(graph: &GraphProto, name: &str) -> Option<Vec<String>> {
    let makes_it = |node: &&NodeProto| {
        node.op_type == "SequenceConstruct"
            && is_standard_domain(&node.domain)
            && node.output.first().is_some_and(|output| output == name)
    };
    let parts = &graph.node.iter().find(makes_it)?.input;
    (!parts.is_empty() && parts.len() <= MAX_OUTPUTS).then(|| parts.clone())
}

#[cfg(test)]
mod tests;
