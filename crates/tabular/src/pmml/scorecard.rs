//! `Scorecard`: the sum of the points of one attribute of each characteristic.

use super::builder::PmmlBuilder;
use super::context::ModelContext;
use super::expression::{self, Expression};
use super::field::{PmmlRow, PmmlType};
use super::predicate::{self, Predicate, Truth};
use super::prediction::PmmlPrediction;
use super::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct Scorecard {
    initial_score: f64,
    /// The attributes of each characteristic.
    characteristics: Box<[Box<[ScorecardAttribute]>]>,
}

struct ScorecardAttribute {
    predicate: Predicate,
    score: PartialScore,
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
        for attributes in &self.characteristics {
            let mut attributes = attributes.iter();
            let found = attributes.find(|one| one.predicate.test(row) == Truth::True);
            let Some(attribute) = found else {
                return PmmlPrediction::MISSING;
            };
            sum += match &attribute.score {
                PartialScore::Constant(score) => *score,
                PartialScore::Complex(expression) => expression.value(row),
            };
        }
        PmmlPrediction::number(sum)
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        if context.classes.is_some() {
            return Err(element.damaged("functionName must be \"regression\""));
        }
        let mut characteristics = Vec::new();
        let list = element.required_child("Characteristics")?;
        for characteristic in list.children_named("Characteristic") {
            characteristics.push(read_characteristic(builder, characteristic, context)?);
        }
        let initial_score = element.number_or("initialScore", 0.0)?;
        Ok(Scorecard { initial_score, characteristics: characteristics.into() })
    }
}

fn read_characteristic(
    builder: &mut PmmlBuilder,
    element: XmlElement,
    context: &ModelContext,
) -> Result<Box<[ScorecardAttribute]>> {
    let mut attributes = Vec::new();
    for attribute in element.children_named("Attribute") {
        let strings = &mut builder.strings;
        let predicate = predicate::read_child(attribute, context.scope, strings)?;
        let constant = attribute.number("partialScore")?;
        let score = match (attribute.child("ComplexPartialScore"), constant) {
            (Some(complex), _) => PartialScore::Complex(expression::read_child(
                complex,
                PmmlType::NUMBER,
                context.scope,
                strings,
            )?),
            (None, Some(score)) => PartialScore::Constant(score),
            (None, None) => return Err(attribute.damaged("has no partialScore")),
        };
        attributes.push(ScorecardAttribute { predicate, score });
    }
    match attributes.is_empty() {
        true => Err(element.damaged("has no Attribute")),
        false => Ok(attributes.into()),
    }
}
