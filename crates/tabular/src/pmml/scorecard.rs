//! Scorecards: the points of the first attribute of each characteristic that a row has.

use super::expression::{self, Expression};
use super::field::{Kind, Row};
use super::model::{Place, Verdict};
use super::predicate::{self, Predicate, Truth};
use super::schema::Builder;
use super::xml::Element;
use tensorserve_tensor::error::Result;

pub(super) struct Scorecard {
    initial: f64,
    /// The attributes of each characteristic.
    characteristics: Box<[Box<[Attribute]>]>,
}

struct Attribute {
    predicate: Predicate,
    points: Points,
}

enum Points {
    Fixed(f64),
    Computed(Expression),
}

impl Scorecard {
    pub(super) fn score(&self, row: &mut Row) -> Verdict {
        let mut sum = self.initial;
        for attributes in &self.characteristics {
            let mut attributes = attributes.iter();
            let found = attributes.find(|one| one.predicate.test(row) == Truth::True);
            let Some(attribute) = found else {
                return Verdict::MISSING;
            };
            sum += match &attribute.points {
                Points::Fixed(points) => *points,
                Points::Computed(expression) => expression.value(row),
            };
        }
        Verdict::number(sum)
    }

    pub(super) fn read<'d>(
        builder: &mut Builder<'d>,
        element: Element<'d>,
        place: &Place,
    ) -> Result<Self> {
        if place.classes.is_some() {
            return Err(element.damaged("functionName must be \"regression\""));
        }
        let mut characteristics = Vec::new();
        for part in element.need_child("Characteristics")?.all("Characteristic") {
            characteristics.push(read_characteristic(builder, part, place)?);
        }
        let initial = element.number_or("initialScore", 0.0)?;
        Ok(Scorecard { initial, characteristics: characteristics.into() })
    }
}

fn read_characteristic(
    builder: &mut Builder,
    element: Element,
    place: &Place,
) -> Result<Box<[Attribute]>> {
    let mut attributes = Vec::new();
    for attribute in element.all("Attribute") {
        let predicate = predicate::of(attribute, place.scope, &mut builder.symbols)?;
        let points =
            match (attribute.child("ComplexPartialScore"), attribute.number("partialScore")?) {
                (Some(complex), _) => {
                    let (scope, symbols) = (place.scope, &mut builder.symbols);
                    Points::Computed(expression::of(complex, Kind::Number, false, scope, symbols)?)
                }
                (None, Some(points)) => Points::Fixed(points),
                (None, None) => return Err(attribute.damaged("has no partialScore")),
            };
        attributes.push(Attribute { predicate, points });
    }
    match attributes.is_empty() {
        true => Err(element.damaged("has no Attribute")),
        false => Ok(attributes.into()),
    }
}
