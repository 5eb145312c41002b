//! `TreeModel`: decision trees in an array. The children of a node are adjacent and behind it, so that
//! every walk ends.

use std::collections::HashMap;

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ModelContext;
use super::features::ModelFeatures;
use super::field::{MISSING, rounded};
use super::numeric::normalize;
use super::predicate::{self, Predicate, Truth};
use super::prediction::{NO_CLASS, PmmlPrediction};
use super::row::PmmlRow;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct TreeModel {
    nodes: Box<[PmmlNode]>,
    /// The probabilities of all classes, for each node that has them.
    probabilities: Box<[f64]>,
    /// The record counts or confidences of all classes, in the same places; empty if not in use.
    details: Box<[f64]>,
    /// The slot of the confidence in the first class, if outputs need it.
    confidences: Option<u32>,
    classes: Option<TargetClasses>,
    missing_strategy: MissingValueStrategy,
    /// Whether a node without a true child makes the prediction (`noTrueChildStrategy`).
    returns_last_prediction: bool,
}

struct PmmlNode {
    predicate: Predicate,
    first_child: u32,
    children: u32,
    default_child: u32,
    /// The number that it predicts; missing if it predicts a class.
    score: f64,
    class: u32,
    /// The index of its probabilities in units of the number of classes.
    probabilities: u32,
    /// The number of its records.
    records: f64,
    /// The code of its id.
    id: f64,
}

/// The index in place of a node or of probabilities that do not exist.
const NONE: u32 = u32::MAX;

/// What happens where the predicate of a node is unknown: `missingValueStrategy`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MissingValueStrategy {
    /// The predicate counts as false.
    None,
    /// The parent makes the prediction.
    LastPrediction,
    NullPrediction,
    /// The default child of the parent is next.
    DefaultChild,
    /// The records of all leaves that are possible are counted.
    AggregateNodes,
    /// The confidences of all children that are possible are weighted by their records.
    WeightedConfidence,
}

impl MissingValueStrategy {
    fn read(element: XmlElement) -> Result<Self> {
        match element.attribute("missingValueStrategy").unwrap_or("none") {
            "none" => Ok(MissingValueStrategy::None),
            "lastPrediction" => Ok(MissingValueStrategy::LastPrediction),
            "nullPrediction" => Ok(MissingValueStrategy::NullPrediction),
            "defaultChild" => Ok(MissingValueStrategy::DefaultChild),
            "aggregateNodes" => Ok(MissingValueStrategy::AggregateNodes),
            "weightedConfidence" => Ok(MissingValueStrategy::WeightedConfidence),
            other => Err(element.unsupported(format!("missingValueStrategy={other:?}"))),
        }
    }
}

/// The continuation of a walk.
enum NextNode<'t> {
    Child(&'t PmmlNode),
    /// The walk ends here.
    Here,
    /// The walk goes on at all children from this one on that are not false.
    Several(usize),
    NoPrediction,
}

impl TreeModel {
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        let Some(mut node) = self.nodes.first() else {
            return PmmlPrediction::MISSING;
        };
        if node.predicate.test(row) != Truth::True {
            return PmmlPrediction::MISSING;
        }
        while node.children > 0 {
            match self.next(node, row) {
                NextNode::Child(child) => node = child,
                NextNode::Here => break,
                NextNode::Several(first) => return self.aggregate(node, first, row),
                NextNode::NoPrediction => return PmmlPrediction::MISSING,
            }
        }
        self.prediction(node, row)
    }

    #[inline]
    fn next(&self, node: &PmmlNode, row: &PmmlRow) -> NextNode<'_> {
        let first = node.first_child as usize;
        let children = self.nodes.get(first..first + node.children as usize).unwrap_or_default();
        for (index, child) in children.iter().enumerate() {
            match (child.predicate.test(row), self.missing_strategy) {
                (Truth::True, _) => return NextNode::Child(child),
                (Truth::False, _) | (Truth::Unknown, MissingValueStrategy::None) => {}
                (Truth::Unknown, MissingValueStrategy::LastPrediction) => return NextNode::Here,
                (Truth::Unknown, MissingValueStrategy::NullPrediction) => {
                    return NextNode::NoPrediction;
                }
                (
                    Truth::Unknown,
                    MissingValueStrategy::AggregateNodes | MissingValueStrategy::WeightedConfidence,
                ) => return NextNode::Several(index),
                (Truth::Unknown, MissingValueStrategy::DefaultChild) => {
                    let child = self.nodes.get(node.default_child as usize);
                    return child.map_or(NextNode::NoPrediction, NextNode::Child);
                }
            }
        }
        if self.returns_last_prediction { NextNode::Here } else { NextNode::NoPrediction }
    }

    /// The prediction of all leaves that are possible from a node on, whose child number `first` is
    /// the first that is.
    fn aggregate(&self, node: &PmmlNode, first: usize, row: &mut PmmlRow) -> PmmlPrediction {
        let Some(classes) = &self.classes else {
            return PmmlPrediction::MISSING;
        };
        let mut totals = vec![0.0; classes.len()];
        let mut open = Vec::new();
        self.open_children(node, first, 1.0, row, &mut open);
        while let Some((node, weight)) = open.pop() {
            let next = if node.children > 0 { self.next(node, row) } else { NextNode::Here };
            match next {
                NextNode::Child(child) => open.push((child, weight)),
                NextNode::NoPrediction => {}
                NextNode::Several(first) => self.open_children(node, first, weight, row, &mut open),
                NextNode::Here => {
                    let details = self.details_of(node, classes.len());
                    for (total, detail) in totals.iter_mut().zip(details) {
                        *total += weight * detail;
                    }
                }
            }
        }
        if self.missing_strategy == MissingValueStrategy::AggregateNodes {
            normalize(&mut totals);
        }
        row.range(classes.slot, classes.len()).copy_from_slice(&totals);
        if let Some(slot) = self.confidences {
            row.range(slot, classes.len()).copy_from_slice(&totals);
        }
        classes.most_probable(row)
    }

    /// Adds the children of a node from number `first` on that are not false, each with its weight.
    fn open_children<'t>(
        &'t self,
        node: &PmmlNode,
        first: usize,
        weight: f64,
        row: &PmmlRow,
        open: &mut Vec<(&'t PmmlNode, f64)>,
    ) {
        let start = node.first_child as usize;
        let children = self.nodes.get(start..start + node.children as usize).unwrap_or_default();
        let possible = children.iter().skip(first);
        let possible: Vec<&PmmlNode> =
            possible.filter(|child| child.predicate.test(row) != Truth::False).collect();
        let total: f64 = possible.iter().map(|child| child.records).sum();
        // The last is the first to be visited.
        for child in possible.into_iter().rev() {
            let is_weighted = self.missing_strategy == MissingValueStrategy::WeightedConfidence;
            let share = if is_weighted { child.records / total } else { 1.0 };
            open.push((child, weight * share));
        }
    }

    /// The details of a node; empty if it has none.
    fn details_of(&self, node: &PmmlNode, count: usize) -> &[f64] {
        let start = (node.probabilities as usize).saturating_mul(count);
        self.details.get(start..start.saturating_add(count)).unwrap_or_default()
    }

    fn prediction(&self, node: &PmmlNode, row: &mut PmmlRow) -> PmmlPrediction {
        let Some(classes) = &self.classes else {
            return PmmlPrediction { entity: node.id, ..PmmlPrediction::number(node.score) };
        };
        let count = classes.len();
        let probabilities = row.range(classes.slot, count);
        let start = (node.probabilities as usize).saturating_mul(count);
        match self.probabilities.get(start..start.saturating_add(count)) {
            Some(known) => probabilities.copy_from_slice(known),
            None => {
                // Without a distribution, only the class is known.
                probabilities.fill(0.0);
                if let Some(probability) = probabilities.get_mut(node.class as usize) {
                    *probability = 1.0;
                }
            }
        }
        if let Some(slot) = self.confidences {
            let details = self.details_of(node, count);
            row.range(slot, details.len()).copy_from_slice(details);
        }
        PmmlPrediction { entity: node.id, ..classes.prediction(node.class) }
    }

    pub(super) fn features(&self) -> ModelFeatures {
        ModelFeatures { class_confidences: self.confidences, ..ModelFeatures::default() }
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        let missing_strategy = MissingValueStrategy::read(element)?;
        let returns_last_prediction = match element.attribute("noTrueChildStrategy") {
            None | Some("returnNullPrediction") => false,
            Some("returnLastPrediction") => true,
            Some(other) => {
                let message = format!("noTrueChildStrategy={other:?} is not valid");
                return Err(element.damaged(message));
            }
        };
        match element.attribute("splitCharacteristic") {
            None | Some("binarySplit" | "multiSplit") => {}
            Some(other) => {
                let message = format!("splitCharacteristic={other:?} is not valid");
                return Err(element.damaged(message));
            }
        }
        let aggregates = matches!(
            missing_strategy,
            MissingValueStrategy::AggregateNodes | MissingValueStrategy::WeightedConfidence
        );
        if aggregates && context.classes.is_none() {
            return Err(element.unsupported("this missingValueStrategy for numbers"));
        }
        let confidences = match &context.classes {
            Some(classes)
                if builder.needs_confidence
                    && missing_strategy != MissingValueStrategy::AggregateNodes =>
            {
                Some(builder.allocate_slots(element, classes.len())?)
            }
            _ => None,
        };
        let mut reader = TreeReader {
            builder,
            context,
            missing_strategy,
            nodes: Vec::new(),
            probabilities: Vec::new(),
            details: Vec::new(),
            needs_details: aggregates || confidences.is_some(),
            is_single: element.attribute("x-mathContext") == Some("float"),
        };
        reader.read(element.required_child("Node")?)?;
        let TreeReader { nodes, probabilities, details, .. } = reader;
        Ok(TreeModel {
            nodes: nodes.into(),
            probabilities: probabilities.into(),
            details: details.into(),
            confidences,
            classes: context.classes.clone(),
            missing_strategy,
            returns_last_prediction,
        })
    }
}

struct TreeReader<'a, 'b, 'd, 's> {
    builder: &'a mut PmmlBuilder<'d>,
    context: &'a ModelContext<'b, 's>,
    missing_strategy: MissingValueStrategy,
    nodes: Vec<PmmlNode>,
    probabilities: Vec<f64>,
    details: Vec<f64>,
    needs_details: bool,
    /// Whether scores are numbers of single precision.
    is_single: bool,
}

impl<'d> TreeReader<'_, '_, 'd, '_> {
    /// Reads the nodes level by level. The index of a node is that of its element in `elements`.
    fn read(&mut self, root: XmlElement<'d>) -> Result<()> {
        let mut elements = vec![root];
        let mut next = 0;
        while let Some(element) = elements.get(next).copied() {
            let first_child = node_index(element, elements.len())?;
            elements.extend(element.children_named("Node"));
            let children = node_index(element, elements.len())? - first_child;
            if let Some(embedded) = element.children().find(|child| is_embedded_model(*child)) {
                return Err(embedded.unsupported("a model within a node"));
            }
            let mut default_child = NONE;
            if let Some(id) = element.attribute("defaultChild")
                && children > 0
                && self.missing_strategy == MissingValueStrategy::DefaultChild
            {
                let mut siblings = elements.iter().skip(first_child as usize);
                let found = siblings.position(|child| child.attribute("id") == Some(id));
                let found = found.ok_or_else(|| {
                    element.damaged(format!("defaultChild={id:?} is not the id of a child"))
                })?;
                default_child = first_child + node_index(element, found)?;
            }
            let node = self.read_node(element)?;
            self.nodes.push(PmmlNode { first_child, children, default_child, ..node });
            next += 1;
        }
        Ok(())
    }

    /// Reads a node without its children.
    fn read_node(&mut self, element: XmlElement<'d>) -> Result<PmmlNode> {
        let predicate = predicate::read_child(element, self.context.scope, self.builder)?;
        let id = match element.attribute("id") {
            Some(id) if self.builder.needs_entity_ids => self.builder.strings.intern(id),
            _ => MISSING,
        };
        let mut node = PmmlNode {
            predicate,
            first_child: 0,
            children: 0,
            default_child: NONE,
            score: MISSING,
            class: NO_CLASS,
            probabilities: NONE,
            records: element.number_or("recordCount", 0.0)?,
            id,
        };
        match &self.context.classes {
            None => {
                let score = element.number("score")?;
                node.score = score.map_or(MISSING, |score| rounded(score, self.is_single));
            }
            Some(classes) => {
                (node.class, node.probabilities) = self.read_distribution(element, classes)?;
            }
        }
        Ok(node)
    }

    /// Reads the class that a node predicts, and its probabilities. Returns the index of both.
    fn read_distribution(
        &mut self,
        element: XmlElement<'d>,
        classes: &TargetClasses,
    ) -> Result<(u32, u32)> {
        // The record count, the declared probability and the confidence of each class.
        let mut parts: HashMap<u32, (f64, Option<f64>, Option<f64>)> = HashMap::new();
        let (mut total, mut largest) = (0.0, None::<(u32, f64)>);
        for part in element.children_named("ScoreDistribution") {
            let class = classes.index_of(self.builder, part, part.required("value")?)?;
            let count = part.required_number("recordCount")?;
            if count.is_nan() || count < 0.0 {
                return Err(part.damaged("recordCount is negative"));
            }
            total += count;
            if largest.is_none_or(|(_, largest)| count > largest) {
                largest = Some((class, count));
            }
            let confidence = part.number("confidence")?;
            parts.insert(class, (count, part.number("probability")?, confidence));
        }
        let class = match element.attribute("score") {
            Some(name) => classes.index_of(self.builder, element, name)?,
            None => largest.map_or(NO_CLASS, |(class, _)| class),
        };
        let are_declared = parts.values().all(|(_, probability, _)| probability.is_some());
        if parts.is_empty() || (total <= 0.0 && !are_declared) {
            return Ok((class, NONE));
        }
        self.builder.count_probabilities(element, classes.len())?;
        let index = node_index(element, self.probabilities.len() / classes.len())?;
        for class in (0u32..).take(classes.len()) {
            self.probabilities.push(match parts.get(&class) {
                Some((_, Some(probability), _)) if are_declared => *probability,
                Some((count, ..)) => count / total,
                None => 0.0,
            });
            if self.needs_details {
                let counts = self.missing_strategy == MissingValueStrategy::AggregateNodes;
                self.details.push(match parts.get(&class) {
                    Some((count, ..)) if counts => *count,
                    Some((_, _, Some(confidence))) => *confidence,
                    Some((count, ..)) => count / total,
                    None => 0.0,
                });
            }
        }
        Ok((class, index))
    }
}

fn node_index(element: XmlElement, index: usize) -> Result<u32> {
    let index = u32::try_from(index).ok().filter(|index| *index < NONE);
    index.ok_or_else(|| element.damaged("has too many nodes"))
}

/// Whether `element` is a model that a node embeds.
fn is_embedded_model(element: XmlElement) -> bool {
    matches!(element.name(), "Regression" | "DecisionTree")
}
