//! What is made of a model's result: rescaled, replaced where there is none, and given out under
//! the names of its output fields.

use super::expression::{self, Expression};
use super::field::{Field, Kind, MISSING, Row, Scope};
use super::model::{Classes, NO_CLASS, Shown, Verdict};
use super::schema::Builder;
use super::xml::Element;
use tensorserve_tensor::error::Result;

/// The most output fields of a model.
const MAX_OUTPUTS: usize = 4096;

/// What `Targets` asks for.
pub(super) struct Target {
    factor: f64,
    constant: f64,
    low: f64,
    high: f64,
    cast: Cast,
    /// The number instead of no result.
    default: f64,
    /// The probabilities of classes where there is no result; empty without.
    priors: Box<[f64]>,
}

#[derive(Clone, Copy, Debug)]
enum Cast {
    None,
    Round,
    Ceiling,
    Floor,
}

impl Target {
    pub(super) fn read(
        builder: &mut Builder,
        element: Element,
        classes: Option<&Classes>,
    ) -> Result<Option<Self>> {
        let Some(targets) = element.child("Targets") else {
            return Ok(None);
        };
        let mut all = targets.all("Target");
        let Some(target) = all.next() else {
            return Ok(None);
        };
        if all.next().is_some() {
            return Err(targets.unsupported("more than one target"));
        }
        let cast = match target.attribute("castInteger") {
            None => Cast::None,
            Some("round") => Cast::Round,
            Some("ceiling") => Cast::Ceiling,
            Some("floor") => Cast::Floor,
            Some(other) => {
                return Err(target.damaged(format!("castInteger={other:?} is not known")));
            }
        };
        let mut default = MISSING;
        let mut priors = Vec::new();
        for value in target.all("TargetValue") {
            match classes {
                None => default = value.number_or("defaultValue", default)?,
                Some(classes) => {
                    let Some(prior) = value.number("priorProbability")? else { continue };
                    let class = classes.number(builder, value, value.need("value")?)?;
                    priors.resize(classes.len(), 0.0);
                    if let Some(place) = priors.get_mut(class as usize) {
                        *place = prior;
                    }
                }
            }
        }
        Ok(Some(Target {
            factor: target.number_or("rescaleFactor", 1.0)?,
            constant: target.number_or("rescaleConstant", 0.0)?,
            low: target.number_or("min", f64::NEG_INFINITY)?,
            high: target.number_or("max", f64::INFINITY)?,
            cast,
            default,
            priors: priors.into(),
        }))
    }

    pub(super) fn apply(
        &self,
        verdict: Verdict,
        classes: Option<&Classes>,
        row: &mut Row,
    ) -> Verdict {
        match classes {
            Some(classes) if verdict.is_missing() && !self.priors.is_empty() => {
                row.range(classes.slot, classes.len()).copy_from_slice(&self.priors);
                classes.likeliest(row)
            }
            Some(_) => verdict,
            None if verdict.is_missing() => Verdict { value: self.default, ..verdict },
            None => Verdict { value: self.rescaled(verdict.value), ..verdict },
        }
    }

    /// In the order that the standard gives: into the range, rescaled, made an integer.
    fn rescaled(&self, value: f64) -> f64 {
        let value = value.max(self.low).min(self.high) * self.factor + self.constant;
        match self.cast {
            Cast::None => value,
            Cast::Round => (value + 0.5).floor(),
            Cast::Ceiling => value.ceil(),
            Cast::Floor => value.floor(),
        }
    }
}

/// One output field.
pub(super) struct Output {
    to: u32,
    feature: Feature,
}

enum Feature {
    Value,
    /// The text to show for each class; others are shown as they are.
    Display(Box<[(f64, f64)]>),
    /// The value there, if there is a result.
    Slot(u32),
    /// The probability of the class it is; that of the first class is there.
    OfWinner(u32),
    Entity,
    Expression(Expression),
}

impl Output {
    pub(super) fn write(&self, verdict: Verdict, row: &mut Row) {
        let value = match &self.feature {
            Feature::Value => verdict.value,
            Feature::Display(texts) => texts
                .iter()
                .find(|(label, _)| label.to_bits() == verdict.value.to_bits())
                .map_or(verdict.value, |(_, text)| *text),
            Feature::Slot(slot) if !verdict.is_missing() => row.get(*slot),
            Feature::OfWinner(first) if verdict.class != NO_CLASS => {
                row.get(first.saturating_add(verdict.class))
            }
            Feature::Slot(_) | Feature::OfWinner(_) => MISSING,
            Feature::Entity => verdict.entity,
            Feature::Expression(expression) => expression.value(row),
        };
        row.set(self.to, value);
    }
}

/// What outputs are about: the predictions of a model.
pub(super) struct Subject<'a> {
    pub(super) kind: Kind,
    pub(super) classes: Option<&'a Classes>,
}

/// Reads the outputs of the model `element`. Each can be seen by those behind it, and by clients
/// and later models, for whom it is added to `shown`.
pub(super) fn read<'d>(
    builder: &mut Builder<'d>,
    element: Element<'d>,
    scope: &mut Scope,
    subject: &Subject,
    shown: &mut Vec<Shown>,
) -> Result<Vec<Output>> {
    let mut outputs = Vec::new();
    let Some(declared) = element.child("Output") else {
        return Ok(outputs);
    };
    for field in declared.all("OutputField") {
        let name = field.need("name")?;
        if outputs.len() >= MAX_OUTPUTS {
            return Err(declared.unsupported(format!("more than {MAX_OUTPUTS} outputs")));
        }
        let (feature, kind) = feature(builder, element, field, scope, subject)?;
        let before = shown.iter().find(|one| one.name == name);
        // Of several segments of which one is chosen, each may have its own of that name.
        let to = match before {
            Some(before) if before.field.kind == kind => before.field.slot,
            Some(_) => return Err(field.unsupported("an output of two kinds")),
            None => builder.slot(field)?,
        };
        let place = Field { slot: to, kind, single: false };
        scope.set(name, place);
        let is_final = field.is("isFinalResult", true)?;
        if before.is_none() {
            shown.push(Shown { name: name.to_owned(), field: place, is_final });
        }
        outputs.push(Output { to, feature });
    }
    Ok(outputs)
}

fn feature<'d>(
    builder: &mut Builder<'d>,
    model: Element<'d>,
    field: Element<'d>,
    scope: &Scope,
    subject: &Subject,
) -> Result<(Feature, Kind)> {
    if field.attribute("segmentId").is_some() {
        return Err(field.unsupported("an output of a segment elsewhere"));
    }
    let Subject { kind, classes } = *subject;
    let rank = field.number_or("rank", 1.0)?;
    match (field.attribute("feature").unwrap_or("predictedValue"), classes) {
        ("predictedValue", _) => Ok((Feature::Value, kind)),
        ("predictedDisplayValue", None) => Ok((Feature::Value, kind)),
        ("predictedDisplayValue", Some(classes)) => {
            Ok((Feature::Display(display(builder, model, classes)?), classes.kind))
        }
        ("probability", Some(classes)) => {
            let feature = match field.attribute("value") {
                None => Feature::OfWinner(classes.slot),
                Some(text) => {
                    let class = classes.number(builder, field, text)?;
                    Feature::Slot(classes.slot.saturating_add(class))
                }
            };
            Ok((feature, Kind::Number))
        }
        ("probability", None) => Err(field.damaged("a model of a number has no probabilities")),
        ("entityId" | "clusterId", _) if rank.to_bits() == 1f64.to_bits() => {
            Ok((Feature::Entity, Kind::Text))
        }
        ("transformedValue", _) => transformed(builder, field, scope),
        (other, _) => Err(field.unsupported(format!("feature={other:?}"))),
    }
}

fn transformed<'d>(
    builder: &mut Builder<'d>,
    field: Element<'d>,
    scope: &Scope,
) -> Result<(Feature, Kind)> {
    let (kind, single) = match field.attribute("dataType") {
        Some(data_type) => Kind::of_type(field, data_type)?,
        None if field.attribute("optype") == Some("categorical") => (Kind::Text, false),
        None => (Kind::Number, false),
    };
    let expression = expression::of(field, kind, single, scope, &mut builder.symbols)?;
    Ok((Feature::Expression(expression), kind))
}

/// The text to show for each class.
fn display(builder: &mut Builder, model: Element, classes: &Classes) -> Result<Box<[(f64, f64)]>> {
    let mut texts = Vec::new();
    let targets = model.child("Targets").and_then(|targets| targets.child("Target"));
    for value in targets.into_iter().flat_map(|target| target.all("TargetValue")) {
        let (Some(label), Some(text)) = (value.attribute("value"), value.attribute("displayValue"))
        else {
            continue;
        };
        if classes.kind != Kind::Text {
            return Err(value.unsupported("a displayValue for a target that is not a string"));
        }
        texts.push((builder.symbols.intern(label), builder.symbols.intern(text)));
    }
    Ok(texts.into())
}
