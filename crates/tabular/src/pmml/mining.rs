//! Models of models: segments, each with a predicate, whose results are put together.

use super::field::{MISSING, Row, Scope};
use super::model::{self, Classes, Model, NO_CLASS, Place, Shown, Verdict};
use super::predicate::{self, Predicate, Truth};
use super::regression::divide_by_total;
use super::schema::Builder;
use super::xml::Element;
use tensorserve_tensor::error::Result;

/// The most output fields of segments.
const MAX_SHOWN: usize = 65_536;

pub(super) struct Mining {
    segments: Box<[Segment]>,
    method: Method,
    on_missing: OnMissing,
    /// Of segments without a result, the share of the weight above which there is none at all.
    most_missing: f64,
    /// Our classes, and those of the segments.
    classes: Option<(Classes, Classes)>,
    /// For the median: where the results of segments lie.
    results: u32,
}

struct Segment {
    predicate: Predicate,
    model: Model,
    weight: f64,
    name: f64,
    /// Whether its answer is of the kind that the whole gives.
    answers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    SelectFirst,
    Chain,
    /// One result is made of those of all segments.
    Combine(Combination),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combination {
    Sum,
    Average,
    Median,
    Max,
    Vote,
}

impl Method {
    /// The method, and whether segments have weights.
    fn of(element: Element) -> Result<(Self, bool)> {
        Ok(match element.need("multipleModelMethod")? {
            "sum" => (Method::Combine(Combination::Sum), false),
            "weightedSum" => (Method::Combine(Combination::Sum), true),
            "average" => (Method::Combine(Combination::Average), false),
            "weightedAverage" => (Method::Combine(Combination::Average), true),
            "median" => (Method::Combine(Combination::Median), false),
            "max" => (Method::Combine(Combination::Max), false),
            "majorityVote" => (Method::Combine(Combination::Vote), false),
            "weightedMajorityVote" => (Method::Combine(Combination::Vote), true),
            "selectFirst" => (Method::SelectFirst, false),
            "modelChain" => (Method::Chain, false),
            other => {
                return Err(element.unsupported(format!("multipleModelMethod={other:?}")));
            }
        })
    }
}

/// What a segment without a result does to the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnMissing {
    /// It has no vote; a sum or a mean with it is missing.
    Continue,
    Skip,
    NoResult,
}

impl Mining {
    pub(super) fn score(&self, row: &mut Row) -> Verdict {
        match self.method {
            Method::SelectFirst => self.first(row),
            Method::Chain => self.chain(row),
            Method::Combine(combination) => match &self.classes {
                None => self.number(row, combination),
                Some((own, theirs)) => self.class(row, combination, own, theirs),
            },
        }
    }

    fn first(&self, row: &mut Row) -> Verdict {
        let mut segments = self.segments.iter();
        match segments.find(|segment| segment.predicate.test(row) == Truth::True) {
            Some(segment) => segment.named(segment.model.score(row)),
            None => Verdict::MISSING,
        }
    }

    /// Every segment sees the outputs of those before it; the last one's result is that of all.
    fn chain(&self, row: &mut Row) -> Verdict {
        let mut verdict = Verdict::MISSING;
        for segment in &self.segments {
            if segment.predicate.test(row) != Truth::True {
                continue;
            }
            let one = segment.model.score(row);
            if segment.answers {
                verdict = one;
            }
            if one.is_missing() && self.on_missing == OnMissing::NoResult {
                return Verdict::MISSING;
            }
        }
        if let Some((own, theirs)) = &self.classes {
            for (own, theirs) in (own.slot..).zip(theirs.slot..).take(own.len()) {
                row.set(own, row.get(theirs));
            }
        }
        verdict
    }

    /// One number of those of the segments.
    #[allow(clippy::cast_precision_loss)]
    fn number(&self, row: &mut Row, combination: Combination) -> Verdict {
        let (mut sum, mut most) = (0.0, f64::NEG_INFINITY);
        let mut tally = Tally::default();
        for segment in &self.segments {
            if segment.predicate.test(row) != Truth::True {
                continue;
            }
            let value = segment.model.score(row).value;
            if !tally.add(segment.weight, value.is_nan(), self.on_missing == OnMissing::Skip) {
                return Verdict::MISSING;
            }
            if value.is_nan() {
                continue;
            }
            if combination == Combination::Median {
                row.set(self.results.saturating_add(tally.count - 1), value);
            }
            sum += segment.weight * value;
            most = most.max(value);
        }
        if tally.count == 0 || tally.is_too_much_missing(self.most_missing) {
            return Verdict::MISSING;
        }
        Verdict::number(match combination {
            Combination::Max => most,
            Combination::Median => median(row.range(self.results, tally.count as usize)),
            Combination::Average => sum / tally.weight,
            Combination::Sum | Combination::Vote => sum,
        })
    }

    /// One class by those of the segments, or by their probabilities.
    fn class(
        &self,
        row: &mut Row,
        combination: Combination,
        own: &Classes,
        theirs: &Classes,
    ) -> Verdict {
        row.range(own.slot, own.len()).fill(0.0);
        let votes = combination == Combination::Vote;
        let mut tally = Tally::default();
        for segment in &self.segments {
            if segment.predicate.test(row) != Truth::True {
                continue;
            }
            let verdict = segment.model.score(row);
            let is_missing = verdict.is_missing() || verdict.class == NO_CLASS;
            let goes_on = match self.on_missing {
                OnMissing::Continue => votes,
                OnMissing::Skip => true,
                OnMissing::NoResult => false,
            };
            if !tally.add(segment.weight, is_missing, goes_on) {
                return Verdict::MISSING;
            }
            if is_missing {
                continue;
            }
            if votes {
                let slot = own.slot.saturating_add(verdict.class);
                row.set(slot, row.get(slot) + segment.weight);
                continue;
            }
            for (own, theirs) in (own.slot..).zip(theirs.slot..).take(own.len()) {
                row.set(own, row.get(own) + segment.weight * row.get(theirs));
            }
        }
        if tally.count == 0 || tally.is_too_much_missing(self.most_missing) {
            return Verdict::MISSING;
        }
        divide_by_total(row.range(own.slot, own.len()));
        own.likeliest(row)
    }
}

/// What segments there were.
#[derive(Default)]
struct Tally {
    /// With a result.
    count: u32,
    /// Theirs.
    weight: f64,
    /// That of those without.
    missing: f64,
}

impl Tally {
    /// False if there can be no result any more.
    fn add(&mut self, weight: f64, is_missing: bool, goes_on: bool) -> bool {
        if !is_missing {
            self.count += 1;
            self.weight += weight;
            return true;
        }
        self.missing += weight;
        goes_on
    }

    fn is_too_much_missing(&self, most: f64) -> bool {
        self.missing > most * (self.weight + self.missing)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |index: usize| values.get(index).copied().unwrap_or(MISSING);
    match values.len() % 2 {
        1 => at(middle),
        _ => f64::midpoint(at(middle.wrapping_sub(1)), at(middle)),
    }
}

impl Segment {
    /// The result with the name of what decided: the segment, unless the model names something.
    fn named(&self, verdict: Verdict) -> Verdict {
        match verdict.entity.is_nan() {
            true => Verdict { entity: self.name, ..verdict },
            false => verdict,
        }
    }
}

impl Mining {
    /// Reads it, and the outputs of its segments that others see.
    pub(super) fn read<'d>(
        builder: &mut Builder<'d>,
        element: Element<'d>,
        place: &Place,
    ) -> Result<(Self, Vec<Shown>)> {
        if let Some(embedded) = element.child("Regression").or(element.child("DecisionTree")) {
            return Err(embedded.unsupported("a model that is embedded without a segment"));
        }
        let segmentation = element.need_child("Segmentation")?;
        let (method, is_weighted) = Method::of(segmentation)?;
        let classes = classes(builder, segmentation, place, method)?;
        let mut segments = Vec::new();
        let mut shown = Vec::new();
        // Where each segment sees the outputs of those before it.
        let mut scope = Scope::within(place.scope);
        for segment in segmentation.all("Segment") {
            let (segment, outputs) = {
                let inside = Place {
                    scope: &scope,
                    classes: classes.as_ref().map(|(_, theirs)| theirs.clone()),
                    has_outputs: method == Method::Chain
                        || (place.has_outputs && method == Method::SelectFirst),
                    depth: place.depth + 1,
                };
                read_segment(builder, segment, &inside, is_weighted)?
            };
            for output in &outputs {
                if method == Method::Chain {
                    scope.set(&output.name, output.field);
                }
            }
            shown.extend(outputs);
            if shown.len() > MAX_SHOWN {
                return Err(segmentation.unsupported(format!("more than {MAX_SHOWN} outputs")));
            }
            segments.push(segment);
        }
        let is_fine = match method {
            Method::Chain => segments.last().is_some_and(|last: &Segment| last.answers),
            Method::SelectFirst | Method::Combine(_) => {
                !segments.is_empty() && segments.iter().all(|segment| segment.answers)
            }
        };
        if !is_fine {
            let message = "a segment that predicts something else than the whole";
            return Err(segmentation.unsupported(message));
        }
        let results = match method == Method::Combine(Combination::Median) {
            true => builder.slots(segmentation, segments.len())?,
            false => 0,
        };
        let (on_missing, most_missing) = missing_treatment(segmentation)?;
        let segments = segments.into();
        Ok((Mining { segments, method, on_missing, most_missing, classes, results }, shown))
    }
}

/// Our classes, and those that segments which predict the same use.
fn classes(
    builder: &mut Builder,
    element: Element,
    place: &Place,
    method: Method,
) -> Result<Option<(Classes, Classes)>> {
    let Some(own) = &place.classes else {
        return match method {
            Method::Combine(Combination::Vote) => {
                Err(element.damaged("there is no vote on a number"))
            }
            Method::SelectFirst | Method::Chain | Method::Combine(_) => Ok(None),
        };
    };
    let theirs = match method {
        Method::SelectFirst => own.clone(),
        Method::Chain | Method::Combine(Combination::Average | Combination::Vote) => {
            own.elsewhere(builder, element)?
        }
        Method::Combine(Combination::Sum | Combination::Median | Combination::Max) => {
            return Err(element.unsupported("this multipleModelMethod for classes"));
        }
    };
    Ok(Some((own.clone(), theirs)))
}

fn read_segment<'d>(
    builder: &mut Builder<'d>,
    element: Element<'d>,
    place: &Place,
    is_weighted: bool,
) -> Result<(Segment, Vec<Shown>)> {
    let predicate = predicate::of(element, place.scope, &mut builder.symbols)?;
    let found = model::find(element).ok_or_else(|| element.damaged("has no model"))?;
    let weight = if is_weighted { element.number_or("weight", 1.0)? } else { 1.0 };
    if weight < 0.0 || weight.is_infinite() {
        return Err(element.damaged("weight is not a positive number"));
    }
    let name = match element.attribute("id") {
        Some(id) if builder.wants_entities => builder.symbols.intern(id),
        _ => MISSING,
    };
    let (model, shown) = model::inner(builder, found, place)?;
    let answers = match (&model.classes, &place.classes) {
        (None, None) => model.function.is_regression(),
        (Some(theirs), Some(wanted)) => {
            theirs.slot == wanted.slot && theirs.labels == wanted.labels
        }
        _ => false,
    };
    Ok((Segment { predicate, model, weight, name, answers }, shown))
}

fn missing_treatment(element: Element) -> Result<(OnMissing, f64)> {
    // Files of a version before 4.4 have it as an extension of that name.
    let name = element
        .attribute("missingPredictionTreatment")
        .or(element.attribute("x-missingPredictionTreatment"));
    let on_missing = match name {
        None | Some("continue") => OnMissing::Continue,
        Some("skipSegment") => OnMissing::Skip,
        Some("returnMissing") => OnMissing::NoResult,
        Some(other) => {
            let message = format!("missingPredictionTreatment={other:?} is not known");
            return Err(element.damaged(message));
        }
    };
    let threshold = element.number("missingThreshold")?;
    let threshold = threshold.or(element.number("x-missingThreshold")?);
    Ok((on_missing, if on_missing == OnMissing::Skip { threshold.unwrap_or(1.0) } else { 1.0 }))
}
