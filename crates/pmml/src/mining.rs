//! `MiningModel`: segments, each a model with a predicate, whose predictions are combined.

use smallvec::SmallVec;

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::{ExposedOutput, ModelContext};
use super::field::{FieldScope, MISSING};
use super::model::{self, MiningFunction, PmmlModel};
use super::numeric::{median, normalize};
use super::predicate::{self, Predicate, Truth};
use super::prediction::{NO_CLASS, PmmlPrediction};
use super::row::PmmlRow;
use super::schema;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

/// The most output fields of all segments.
const MAX_EXPOSED: usize = 65_536;

pub(super) struct MiningModel {
    segments: Box<[Segment]>,
    method: MultipleModelMethod,
    missing_treatment: MissingPredictionTreatment,
    /// The largest share of the weight that segments without a prediction may have: above it, there
    /// is no prediction (`missingThreshold`).
    missing_threshold: f64,
    classes: Option<SegmentClasses>,
    /// The slot of the first prediction of a segment; those of the others follow. Only for the
    /// median.
    first_value: u32,
}

/// The classes of a model of segments.
struct SegmentClasses {
    /// The classes of the whole model.
    own: TargetClasses,
    /// The classes that segments with the same target share.
    inner: TargetClasses,
}

impl SegmentClasses {
    /// The slots of the probabilities of each class: that of the whole model, and that of a segment.
    fn slots(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        (self.own.slot..).zip(self.inner.slot..).take(self.own.len())
    }
}

struct Segment {
    predicate: Predicate,
    model: PmmlModel,
    weight: f64,
    /// The code of its id.
    id: f64,
    /// Whether it predicts the target of the whole model.
    predicts_target: bool,
}

/// How the predictions of segments are combined: `multipleModelMethod`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MultipleModelMethod {
    SelectFirst,
    ModelChain,
    Aggregate(SegmentAggregation),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentAggregation {
    Sum,
    Average,
    Median,
    WeightedMedian,
    Max,
    Vote,
}

impl MultipleModelMethod {
    /// Reads the method, and whether it uses the weights of segments.
    fn read(element: XmlElement) -> Result<(Self, bool)> {
        use MultipleModelMethod::Aggregate;
        Ok(match element.required("multipleModelMethod")? {
            "sum" => (Aggregate(SegmentAggregation::Sum), false),
            "weightedSum" => (Aggregate(SegmentAggregation::Sum), true),
            "average" => (Aggregate(SegmentAggregation::Average), false),
            "weightedAverage" => (Aggregate(SegmentAggregation::Average), true),
            "median" => (Aggregate(SegmentAggregation::Median), false),
            "weightedMedian" | "x-weightedMedian" => {
                (Aggregate(SegmentAggregation::WeightedMedian), true)
            }
            "max" => (Aggregate(SegmentAggregation::Max), false),
            "majorityVote" => (Aggregate(SegmentAggregation::Vote), false),
            "weightedMajorityVote" => (Aggregate(SegmentAggregation::Vote), true),
            "selectFirst" => (MultipleModelMethod::SelectFirst, false),
            "modelChain" => (MultipleModelMethod::ModelChain, false),
            other => {
                return Err(element.unsupported(format!("multipleModelMethod={other:?}")));
            }
        })
    }
}

/// The effect of a segment without a prediction: `missingPredictionTreatment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissingPredictionTreatment {
    /// The segment votes for no prediction; a sum or a mean is missing.
    Continue,
    SkipSegment,
    /// The whole model has no prediction.
    ReturnMissing,
}

impl MiningModel {
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        match self.method {
            MultipleModelMethod::SelectFirst => self.score_first(row),
            MultipleModelMethod::ModelChain => self.score_model_chain(row),
            MultipleModelMethod::Aggregate(aggregation) => match &self.classes {
                None => self.score_number(row, aggregation),
                Some(classes) => self.score_class(row, aggregation, classes),
            },
        }
    }

    /// The prediction of the first segment whose predicate is true.
    fn score_first(&self, row: &mut PmmlRow) -> PmmlPrediction {
        let mut segments = self.segments.iter();
        match segments.find(|segment| segment.predicate.test(row) == Truth::True) {
            Some(segment) => segment.with_entity(segment.model.score(row)),
            None => PmmlPrediction::MISSING,
        }
    }

    /// The prediction of the last segment. Each segment can refer to the outputs of those before it.
    fn score_model_chain(&self, row: &mut PmmlRow) -> PmmlPrediction {
        let mut last = PmmlPrediction::MISSING;
        for segment in &self.segments {
            if segment.predicate.test(row) != Truth::True {
                continue;
            }
            let prediction = segment.model.score(row);
            if segment.predicts_target {
                last = prediction;
            }
            let returns_missing =
                self.missing_treatment == MissingPredictionTreatment::ReturnMissing;
            if prediction.is_missing() && returns_missing {
                return PmmlPrediction::MISSING;
            }
        }
        if let Some(classes) = &self.classes {
            for (own, inner) in classes.slots() {
                row.set(own, row.get(inner));
            }
        }
        last
    }

    /// Aggregates numbers.
    #[allow(clippy::cast_precision_loss)]
    fn score_number(&self, row: &mut PmmlRow, aggregation: SegmentAggregation) -> PmmlPrediction {
        let skips_missing = self.missing_treatment == MissingPredictionTreatment::SkipSegment;
        let (mut sum, mut largest) = (0.0, f64::NEG_INFINITY);
        let mut weighted: SmallVec<[(f64, f64); 16]> = SmallVec::new();
        let mut tally = SegmentTally::default();
        for segment in &self.segments {
            if segment.predicate.test(row) != Truth::True {
                continue;
            }
            let value = segment.model.score(row).value;
            tally.add(segment.weight, value.is_nan());
            if value.is_nan() {
                if skips_missing {
                    continue;
                }
                return PmmlPrediction::MISSING;
            }
            if aggregation == SegmentAggregation::WeightedMedian {
                weighted.push((value, segment.weight));
            }
            if aggregation == SegmentAggregation::Median {
                row.set(self.first_value.saturating_add(tally.count - 1), value);
            }
            sum += segment.weight * value;
            largest = largest.max(value);
        }
        if tally.count == 0 || tally.is_above(self.missing_threshold) {
            return PmmlPrediction::MISSING;
        }
        PmmlPrediction::number(match aggregation {
            SegmentAggregation::Max => largest,
            SegmentAggregation::Median => median(row.range(self.first_value, tally.count as usize)),
            SegmentAggregation::WeightedMedian => weighted_median(&mut weighted, tally.weight),
            SegmentAggregation::Average => sum / tally.weight,
            SegmentAggregation::Sum | SegmentAggregation::Vote => sum,
        })
    }

    /// Aggregates votes for classes, or the probabilities of classes.
    fn score_class(
        &self,
        row: &mut PmmlRow,
        aggregation: SegmentAggregation,
        classes: &SegmentClasses,
    ) -> PmmlPrediction {
        let own = &classes.own;
        row.range(own.slot, own.len()).fill(0.0);
        let is_vote = aggregation == SegmentAggregation::Vote;
        let skips_missing = match self.missing_treatment {
            MissingPredictionTreatment::Continue => is_vote,
            MissingPredictionTreatment::SkipSegment => true,
            MissingPredictionTreatment::ReturnMissing => false,
        };
        let mut tally = SegmentTally::default();
        // The classes in the order of their first votes: of equal ones, the first wins.
        let mut voted: SmallVec<[u32; 8]> = SmallVec::new();
        for segment in &self.segments {
            if segment.predicate.test(row) != Truth::True {
                continue;
            }
            let prediction = segment.model.score(row);
            let is_missing = prediction.is_missing() || prediction.class == NO_CLASS;
            tally.add(segment.weight, is_missing);
            if is_missing {
                if skips_missing {
                    continue;
                }
                return PmmlPrediction::MISSING;
            }
            if is_vote {
                let slot = own.slot.saturating_add(prediction.class);
                let votes = row.get(slot);
                if votes == 0.0 {
                    voted.push(prediction.class);
                }
                row.set(slot, votes + segment.weight);
                continue;
            }
            for (own, inner) in classes.slots() {
                row.set(own, row.get(own) + segment.weight * row.get(inner));
            }
        }
        if tally.count == 0 || tally.is_above(self.missing_threshold) {
            return PmmlPrediction::MISSING;
        }
        let votes = row.range(own.slot, own.len());
        // Segments without a prediction vote for none.
        let is_outvoted = votes.iter().all(|votes| *votes < tally.missing);
        let counts_missing = self.missing_treatment == MissingPredictionTreatment::Continue;
        if is_vote && counts_missing && is_outvoted {
            return PmmlPrediction::MISSING;
        }
        normalize(votes);
        if is_vote { own.most_probable_of(voted, row) } else { own.most_probable(row) }
    }
}

/// The segments whose predicates were true.
#[derive(Default)]
struct SegmentTally {
    /// The number of those with a prediction.
    count: u32,
    /// The weight of those with a prediction.
    weight: f64,
    /// The weight of those without.
    missing: f64,
}

impl SegmentTally {
    fn add(&mut self, weight: f64, is_missing: bool) {
        if is_missing {
            self.missing += weight;
        } else {
            self.count += 1;
            self.weight += weight;
        }
    }

    /// Whether the share of segments without a prediction is above `threshold`.
    fn is_above(&self, threshold: f64) -> bool {
        self.missing > threshold * (self.weight + self.missing)
    }
}

/// The first value, in ascending order, up to which the weights are half of all or more.
fn weighted_median(values: &mut [(f64, f64)], total: f64) -> f64 {
    values.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut below = 0.0;
    for (value, weight) in values {
        below += *weight;
        if below >= 0.5 * total {
            return *value;
        }
    }
    MISSING
}

impl Segment {
    /// The prediction with the id of what determined it: this segment, unless the model has an id.
    fn with_entity(&self, prediction: PmmlPrediction) -> PmmlPrediction {
        match prediction.entity.is_nan() {
            true => PmmlPrediction { entity: self.id, ..prediction },
            false => prediction,
        }
    }
}

impl MiningModel {
    /// Reads the model, and the outputs of its segments that are visible outside of it.
    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<(Self, Vec<ExposedOutput>)> {
        if let Some(embedded) = element.child("Regression").or(element.child("DecisionTree")) {
            return Err(embedded.unsupported("an embedded model without a segment"));
        }
        let segmentation = element.required_child("Segmentation")?;
        let (method, is_weighted) = MultipleModelMethod::read(segmentation)?;
        let classes = read_classes(builder, segmentation, context, method)?;
        let is_chain = method == MultipleModelMethod::ModelChain;
        let selects_first = method == MultipleModelMethod::SelectFirst;
        let mut segments = Vec::new();
        let mut exposed = Vec::new();
        // Has the outputs of the segments before, in a chain.
        let mut scope = FieldScope::within(context.scope);
        for segment in segmentation.children_named("Segment") {
            let inside = ModelContext {
                scope: &scope,
                steps: &[],
                classes: classes.as_ref().map(|classes| classes.inner.clone()),
                has_outputs: is_chain || (context.has_outputs && selects_first),
                depth: context.depth + 1,
            };
            let (segment, outputs) = read_segment(builder, segment, &inside, is_weighted)?;
            if is_chain {
                for output in &outputs {
                    scope.set(&output.name, output.field);
                }
            }
            exposed.extend(outputs);
            if exposed.len() > MAX_EXPOSED {
                return Err(segmentation.unsupported(format!("more than {MAX_EXPOSED} outputs")));
            }
            segments.push(segment);
        }
        check_targets(segmentation, method, &segments)?;
        let is_median = method == MultipleModelMethod::Aggregate(SegmentAggregation::Median);
        let first_value = match is_median {
            true => builder.allocate_slots(segmentation, segments.len())?,
            false => 0,
        };
        let (missing_treatment, missing_threshold) = read_missing_treatment(segmentation)?;
        let model = MiningModel {
            segments: segments.into(),
            method,
            missing_treatment,
            missing_threshold,
            classes,
            first_value,
        };
        Ok((model, exposed))
    }
}

/// Checks that the segments that determine the prediction predict the target of the whole model.
fn check_targets(
    element: XmlElement,
    method: MultipleModelMethod,
    segments: &[Segment],
) -> Result<()> {
    let is_valid = match method {
        MultipleModelMethod::ModelChain => segments.last().is_some_and(|last| last.predicts_target),
        MultipleModelMethod::SelectFirst | MultipleModelMethod::Aggregate(_) => {
            !segments.is_empty() && segments.iter().all(|segment| segment.predicts_target)
        }
    };
    match is_valid {
        true => Ok(()),
        false => Err(element.unsupported("a segment with another target than the whole model")),
    }
}

/// The classes of the model, and those of its segments.
fn read_classes(
    builder: &mut PmmlBuilder,
    element: XmlElement,
    context: &ModelContext,
    method: MultipleModelMethod,
) -> Result<Option<SegmentClasses>> {
    let is_vote = method == MultipleModelMethod::Aggregate(SegmentAggregation::Vote);
    let Some(own) = &context.classes else {
        return match is_vote {
            true => Err(element.damaged("a vote needs a model that predicts classes")),
            false => Ok(None),
        };
    };
    let inner = match method {
        MultipleModelMethod::SelectFirst => own.clone(),
        MultipleModelMethod::ModelChain
        | MultipleModelMethod::Aggregate(SegmentAggregation::Average | SegmentAggregation::Vote) => {
            own.with_own_slots(builder, element)?
        }
        MultipleModelMethod::Aggregate(
            SegmentAggregation::Sum
            | SegmentAggregation::Median
            | SegmentAggregation::WeightedMedian
            | SegmentAggregation::Max,
        ) => return Err(element.unsupported("this multipleModelMethod for classes")),
    };
    Ok(Some(SegmentClasses { own: own.clone(), inner }))
}

fn read_segment<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    context: &ModelContext,
    is_weighted: bool,
) -> Result<(Segment, Vec<ExposedOutput>)> {
    let predicate = predicate::read_child(element, context.scope, builder)?;
    let inner = schema::find_model(element).ok_or_else(|| element.damaged("has no model"))?;
    let weight = if is_weighted { element.number_or("weight", 1.0)? } else { 1.0 };
    if weight < 0.0 || weight.is_infinite() {
        return Err(element.damaged("weight is not a finite, positive number"));
    }
    let id = match element.attribute("id") {
        Some(id) if builder.needs_entity_ids => builder.strings.intern(id),
        _ => MISSING,
    };
    let (model, exposed) = model::read_inner(builder, inner, context)?;
    let predicts_target = match (&model.classes, &context.classes) {
        (None, None) => model.function == MiningFunction::Regression,
        (Some(inner), Some(expected)) => {
            inner.slot == expected.slot && inner.labels == expected.labels
        }
        _ => false,
    };
    Ok((Segment { predicate, model, weight, id, predicts_target }, exposed))
}

/// Reads the treatment of segments without a prediction, and the threshold for their share.
fn read_missing_treatment(element: XmlElement) -> Result<(MissingPredictionTreatment, f64)> {
    // Before 4.4, an extension of the same name with a prefix.
    let name = element
        .attribute("missingPredictionTreatment")
        .or(element.attribute("x-missingPredictionTreatment"));
    let treatment = match name {
        None | Some("continue") => MissingPredictionTreatment::Continue,
        Some("skipSegment") => MissingPredictionTreatment::SkipSegment,
        Some("returnMissing") => MissingPredictionTreatment::ReturnMissing,
        Some(other) => {
            let message = format!("missingPredictionTreatment={other:?} is not valid");
            return Err(element.damaged(message));
        }
    };
    let threshold = element.number("missingThreshold")?;
    let threshold = threshold.or(element.number("x-missingThreshold")?).unwrap_or(1.0);
    let is_used = treatment == MissingPredictionTreatment::SkipSegment;
    Ok((treatment, if is_used { threshold } else { 1.0 }))
}
