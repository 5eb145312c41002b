//! `Scorecard`: the sum of the points of one attribute of each characteristic.

use std::collections::HashMap;

use super::builder::PmmlBuilder;
use super::context::ModelContext;
use super::expression::Expression;
use super::features::{ModelFeatures, SlotRange};
use super::field::PmmlType;
use super::predicate::{self, Predicate, Truth};
use super::prediction::PmmlPrediction;
use super::reader;
use super::row::PmmlRow;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct Scorecard {
    initial_score: f64,
    characteristics: Box<[Characteristic]>,
    reasons: Option<Reasons>,
}

struct Characteristic {
    attributes: Box<[ScorecardAttribute]>,
    /// The score that others are compared with for reasons.
    baseline: f64,
}

struct ScorecardAttribute {
    predicate: Predicate,
    score: PartialScore,
    /// The index of its reason code; [`NO_REASON`] if reasons are not in use.
    reason: u32,
}

/// The index in place of that of a reason code.
const NO_REASON: u32 = u32::MAX;

/// The reason codes, and where their points and their ranking are in a row.
struct Reasons {
    /// The codes of their strings.
    codes: Box<[f64]>,
    /// Whether scores above the baseline count, and not those below.
    counts_above: bool,
    points: SlotRange,
    ranked: SlotRange,
}

impl Reasons {
    /// Adds the points of a partial score.
    fn add(&self, row: &mut PmmlRow, reason: u32, score: f64, baseline: f64) {
        let points = if self.counts_above { score - baseline } else { baseline - score };
        let slot = self.points.first.saturating_add(reason);
        let before = row.get(slot);
        row.set(slot, if before.is_nan() { points } else { before + points });
    }

    /// Ranks the codes by their points; of equal ones, the first is first.
    fn rank(&self, row: &mut PmmlRow) {
        let points = row.range(self.points.first, self.codes.len());
        let mut order: Vec<(f64, f64)> =
            points.iter().copied().zip(self.codes.iter().copied()).collect();
        order.retain(|(points, _)| *points >= 0.0);
        order.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        for (slot, (_, code)) in (self.ranked.first..).zip(order) {
            row.set(slot, code);
        }
    }
}

enum PartialScore {
    Constant(f64),
    Complex(Expression),
}

impl Scorecard {
    /// The initial score, plus the partial score of the first attribute of each characteristic whose
    /// predicate is true.
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        let mut sum = self.initial_score;
        for characteristic in &self.characteristics {
            let mut attributes = characteristic.attributes.iter();
            let found = attributes.find(|one| one.predicate.test(row) == Truth::True);
            let Some(attribute) = found else {
                return PmmlPrediction::MISSING;
            };
            let score = match &attribute.score {
                PartialScore::Constant(score) => *score,
                PartialScore::Complex(expression) => expression.value(row),
            };
            sum += score;
            if let Some(reasons) = &self.reasons {
                reasons.add(row, attribute.reason, score, characteristic.baseline);
            }
        }
        if let Some(reasons) = &self.reasons {
            reasons.rank(row);
        }
        PmmlPrediction::number(sum)
    }

    pub(super) fn features(&self) -> ModelFeatures {
        let reason_codes = self.reasons.as_ref().map(|reasons| reasons.ranked);
        ModelFeatures { reason_codes, ..ModelFeatures::default() }
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        if context.classes.is_some() {
            return Err(element.damaged("functionName must be \"regression\""));
        }
        let uses_reasons = element.boolean_or("useReasonCodes", true)? && builder.needs_reasons;
        let counts_above = match element.attribute("reasonCodeAlgorithm") {
            Some("pointsAbove") => true,
            None | Some("pointsBelow") => false,
            Some(other) => {
                let message = format!("reasonCodeAlgorithm={other:?} is not valid");
                return Err(element.damaged(message));
            }
        };
        let mut reader = ScorecardReader {
            context,
            baseline: element.number("baselineScore")?,
            codes: uses_reasons.then(Vec::new),
            indices: HashMap::new(),
        };
        let mut characteristics = Vec::new();
        let list = element.required_child("Characteristics")?;
        for characteristic in list.children_named("Characteristic") {
            characteristics.push(reader.read(builder, characteristic)?);
        }
        let initial_score = element.number_or("initialScore", 0.0)?;
        let mut reasons = None;
        if let Some(codes) = reader.codes {
            let points = builder.allocate_range(element, codes.len())?;
            let ranked = builder.allocate_range(element, codes.len())?;
            reasons = Some(Reasons { codes: codes.into(), counts_above, points, ranked });
        }
        Ok(Scorecard { initial_score, characteristics: characteristics.into(), reasons })
    }
}

/// What characteristics have in common while they are read.
struct ScorecardReader<'a, 's> {
    context: &'a ModelContext<'a, 's>,
    baseline: Option<f64>,
    /// The reason codes so far; `None` if they are not in use.
    codes: Option<Vec<f64>>,
    /// The index of each, by its bits.
    indices: HashMap<u64, u32>,
}

impl ScorecardReader<'_, '_> {
    fn read<'d>(
        &mut self,
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
    ) -> Result<Characteristic> {
        let baseline = element.number("baselineScore")?.or(self.baseline);
        if self.codes.is_some() && baseline.is_none() {
            return Err(element.damaged("has no baselineScore for its reason code"));
        }
        let mut attributes = Vec::new();
        for attribute in element.children_named("Attribute") {
            let predicate = predicate::read_child(attribute, self.context.scope, builder)?;
            let constant = attribute.number("partialScore")?;
            let score = match (attribute.child("ComplexPartialScore"), constant) {
                (Some(complex), _) => PartialScore::Complex(reader::read_child(
                    complex,
                    PmmlType::NUMBER,
                    self.context.scope,
                    builder,
                )?),
                (None, Some(score)) => PartialScore::Constant(score),
                (None, None) => return Err(attribute.damaged("has no partialScore")),
            };
            let reason = self.reason(builder, attribute, element)?;
            attributes.push(ScorecardAttribute { predicate, score, reason });
        }
        match attributes.is_empty() {
            true => Err(element.damaged("has no Attribute")),
            false => {
                let baseline = baseline.unwrap_or(0.0);
                Ok(Characteristic { attributes: attributes.into(), baseline })
            }
        }
    }

    /// The index of the reason code of an attribute.
    fn reason(
        &mut self,
        builder: &mut PmmlBuilder,
        attribute: XmlElement,
        characteristic: XmlElement,
    ) -> Result<u32> {
        let Some(codes) = &mut self.codes else {
            return Ok(NO_REASON);
        };
        let text = attribute.attribute("reasonCode").or(characteristic.attribute("reasonCode"));
        let text = text.ok_or_else(|| attribute.damaged("has no reasonCode"))?;
        let code = builder.strings.intern(text);
        let next = u32::try_from(codes.len()).unwrap_or(NO_REASON);
        Ok(*self.indices.entry(code.to_bits()).or_insert_with(|| {
            codes.push(code);
            next
        }))
    }
}
