//! `RuleSetModel`: rules, of which the first, the heaviest, or all that hold decide.

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ModelContext;
use super::features::ModelFeatures;
use super::field::MISSING;
use super::predicate::{self, Predicate, Truth};
use super::prediction::{NO_CLASS, PmmlPrediction};
use super::row::PmmlRow;
use tensorserve_codec::xml::{MAX_DEPTH, XmlElement};
use tensorserve_tensor::error::Result;

pub(super) struct RuleSet {
    rules: Box<[Rule]>,
    selection: RuleSelection,
    /// The class if no rule holds, and the confidence in it.
    default: Option<(u32, f64)>,
    classes: TargetClasses,
    /// The slot of the confidence in the prediction.
    confidence: u32,
}

/// A rule, or the condition of those that follow it.
struct Rule {
    predicate: Predicate,
    /// How many rules are skipped if it does not hold: those of a `CompoundRule`.
    inner: usize,
    /// What a `SimpleRule` decides.
    conclusion: Option<Conclusion>,
}

#[derive(Clone, Copy)]
struct Conclusion {
    class: u32,
    weight: f64,
    confidence: f64,
    /// The code of its id.
    id: f64,
}

#[derive(Clone, Copy, Debug)]
enum RuleSelection {
    FirstHit,
    WeightedSum,
    WeightedMax,
}

impl RuleSet {
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        row.range(self.classes.slot, self.classes.len()).fill(0.0);
        let mut best: Option<Conclusion> = None;
        let (mut next, mut count) = (0, 0.0);
        while let Some(rule) = self.rules.get(next) {
            next += 1;
            if rule.predicate.test(row) != Truth::True {
                next += rule.inner;
                continue;
            }
            let Some(conclusion) = rule.conclusion else { continue };
            count += 1.0;
            match self.selection {
                RuleSelection::FirstHit => {
                    best = Some(conclusion);
                    break;
                }
                RuleSelection::WeightedMax => {
                    if best.is_none_or(|best| conclusion.weight > best.weight) {
                        best = Some(conclusion);
                    }
                }
                RuleSelection::WeightedSum => {
                    let slot = self.classes.slot.saturating_add(conclusion.class);
                    row.set(slot, row.get(slot) + conclusion.weight);
                }
            }
        }
        if matches!(self.selection, RuleSelection::WeightedSum) && count > 0.0 {
            return self.heaviest(row, count);
        }
        let default = self.default.map(|(class, confidence)| Conclusion {
            class,
            weight: 0.0,
            confidence,
            id: MISSING,
        });
        let Some(conclusion) = best.or(default).filter(|one| one.class != NO_CLASS) else {
            return PmmlPrediction::MISSING;
        };
        row.set(self.classes.slot.saturating_add(conclusion.class), conclusion.confidence);
        row.set(self.confidence, conclusion.confidence);
        PmmlPrediction { entity: conclusion.id, ..self.classes.prediction(conclusion.class) }
    }

    /// The class with the largest sum of weights, and the mean weight as the confidence.
    fn heaviest(&self, row: &mut PmmlRow, count: f64) -> PmmlPrediction {
        let sums = row.range(self.classes.slot, self.classes.len());
        sums.iter_mut().for_each(|sum| *sum /= count);
        let prediction = self.classes.most_probable(row);
        let confidence = row.get(self.classes.slot.saturating_add(prediction.class));
        row.set(self.confidence, confidence);
        prediction
    }

    pub(super) fn features(&self) -> ModelFeatures {
        ModelFeatures {
            confidence: Some(self.confidence),
            class_confidences: Some(self.classes.slot),
            ..ModelFeatures::default()
        }
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        let Some(classes) = context.classes.clone() else {
            return Err(element.damaged("functionName must be \"classification\""));
        };
        let set = element.required_child("RuleSet")?;
        // Of several methods, the first is the default.
        let method = set.required_child("RuleSelectionMethod")?;
        let selection = match method.required("criterion")? {
            "firstHit" => RuleSelection::FirstHit,
            "weightedSum" => RuleSelection::WeightedSum,
            "weightedMax" => RuleSelection::WeightedMax,
            other => return Err(method.damaged(format!("criterion={other:?} is not valid"))),
        };
        let mut rules = Vec::new();
        read_rules(builder, set, context, &classes, &mut rules, 0)?;
        let default = match set.attribute("defaultScore") {
            Some(name) => {
                let class = classes.index_of(builder, set, name)?;
                Some((class, set.number_or("defaultConfidence", MISSING)?))
            }
            None => None,
        };
        let confidence = builder.allocate_slot(element)?;
        Ok(RuleSet { rules: rules.into(), selection, default, classes, confidence })
    }
}

/// Reads the rules among the children of `element`.
fn read_rules<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    context: &ModelContext,
    classes: &TargetClasses,
    rules: &mut Vec<Rule>,
    depth: usize,
) -> Result<()> {
    if depth >= MAX_DEPTH {
        return Err(element.damaged("is nested too deeply"));
    }
    for child in element.children() {
        match child.name() {
            "SimpleRule" => {
                let predicate = predicate::read_child(child, context.scope, builder)?;
                let class = classes.index_of(builder, child, child.required("score")?)?;
                let id = match child.attribute("id") {
                    Some(id) if builder.needs_entity_ids => builder.strings.intern(id),
                    _ => MISSING,
                };
                let weight = child.number_or("weight", 1.0)?;
                let confidence = child.number_or("confidence", 1.0)?;
                let conclusion = Some(Conclusion { class, weight, confidence, id });
                rules.push(Rule { predicate, inner: 0, conclusion });
            }
            "CompoundRule" => {
                let predicate = predicate::read_child(child, context.scope, builder)?;
                let place = rules.len();
                rules.push(Rule { predicate, inner: 0, conclusion: None });
                read_rules(builder, child, context, classes, rules, depth + 1)?;
                let inner = rules.len() - place - 1;
                if let Some(rule) = rules.get_mut(place) {
                    rule.inner = inner;
                }
            }
            _ => {}
        }
    }
    Ok(())
}
