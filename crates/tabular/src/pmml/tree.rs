//! `TreeModel`: decision trees in an array. The children of a node are adjacent and behind it, so that
//! every walk ends.

use std::collections::HashMap;

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ModelContext;
use super::field::{MISSING, PmmlRow, rounded};
use super::predicate::{self, Predicate, Truth};
use super::prediction::{NO_CLASS, PmmlPrediction};
use super::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct TreeModel {
    nodes: Box<[PmmlNode]>,
    /// The probabilities of all classes, for each node that has them.
    probabilities: Box<[f64]>,
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
}

impl MissingValueStrategy {
    fn read(element: XmlElement) -> Result<Self> {
        match element.attribute("missingValueStrategy").unwrap_or("none") {
            "none" => Ok(MissingValueStrategy::None),
            "lastPrediction" => Ok(MissingValueStrategy::LastPrediction),
            "nullPrediction" => Ok(MissingValueStrategy::NullPrediction),
            "defaultChild" => Ok(MissingValueStrategy::DefaultChild),
            other => Err(element.unsupported(format!("missingValueStrategy={other:?}"))),
        }
    }
}

/// The continuation of a walk.
enum NextNode<'t> {
    Child(&'t PmmlNode),
    /// The walk ends here.
    Here,
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
                NextNode::NoPrediction => return PmmlPrediction::MISSING,
            }
        }
        self.prediction(node, row)
    }

    #[inline]
    fn next(&self, node: &PmmlNode, row: &PmmlRow) -> NextNode<'_> {
        let first = node.first_child as usize;
        let children = self.nodes.get(first..first + node.children as usize).unwrap_or_default();
        for child in children {
            match (child.predicate.test(row), self.missing_strategy) {
                (Truth::True, _) => return NextNode::Child(child),
                (Truth::False, _) | (Truth::Unknown, MissingValueStrategy::None) => {}
                (Truth::Unknown, MissingValueStrategy::LastPrediction) => return NextNode::Here,
                (Truth::Unknown, MissingValueStrategy::NullPrediction) => {
                    return NextNode::NoPrediction;
                }
                (Truth::Unknown, MissingValueStrategy::DefaultChild) => {
                    let child = self.nodes.get(node.default_child as usize);
                    return child.map_or(NextNode::NoPrediction, NextNode::Child);
                }
            }
        }
        if self.returns_last_prediction { NextNode::Here } else { NextNode::NoPrediction }
    }

    fn prediction(&self, node: &PmmlNode, row: &mut PmmlRow) -> PmmlPrediction {
        let Some(classes) = &self.classes else {
            return PmmlPrediction { value: node.score, class: NO_CLASS, entity: node.id };
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
        PmmlPrediction { entity: node.id, ..classes.prediction(node.class) }
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
        let mut reader = TreeReader {
            builder,
            context,
            missing_strategy,
            nodes: Vec::new(),
            probabilities: Vec::new(),
            is_single: element.attribute("x-mathContext") == Some("float"),
        };
        reader.read(element.required_child("Node")?)?;
        let TreeReader { nodes, probabilities, .. } = reader;
        Ok(TreeModel {
            nodes: nodes.into(),
            probabilities: probabilities.into(),
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
        let predicate =
            predicate::read_child(element, self.context.scope, &mut self.builder.strings)?;
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
        // The record count and the declared probability of each class.
        let mut parts: HashMap<u32, (f64, Option<f64>)> = HashMap::new();
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
            parts.insert(class, (count, part.number("probability")?));
        }
        let class = match element.attribute("score") {
            Some(name) => classes.index_of(self.builder, element, name)?,
            None => largest.map_or(NO_CLASS, |(class, _)| class),
        };
        let are_declared = parts.values().all(|(_, probability)| probability.is_some());
        if parts.is_empty() || (total <= 0.0 && !are_declared) {
            return Ok((class, NONE));
        }
        self.builder.count_probabilities(element, classes.len())?;
        let index = node_index(element, self.probabilities.len() / classes.len())?;
        for class in (0u32..).take(classes.len()) {
            self.probabilities.push(match parts.get(&class) {
                Some((_, Some(probability))) if are_declared => *probability,
                Some((count, _)) => count / total,
                None => 0.0,
            });
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
