//! `Targets`: predictions are rescaled, and replaced where they are missing.

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::field::MISSING;
use super::prediction::PmmlPrediction;
use super::row::PmmlRow;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

/// What `Targets` declares for the predictions of a model.
pub(super) struct TargetTransform {
    factor: f64,
    constant: f64,
    low: f64,
    high: f64,
    cast: CastInteger,
    /// The number in place of a missing prediction.
    default: f64,
    /// The probabilities of the classes where the prediction is missing; empty if not declared.
    priors: Box<[f64]>,
}

#[derive(Clone, Copy, Debug)]
enum CastInteger {
    None,
    Round,
    Ceiling,
    Floor,
}

impl CastInteger {
    fn read(target: XmlElement) -> Result<Self> {
        match target.attribute("castInteger") {
            None => Ok(CastInteger::None),
            Some("round") => Ok(CastInteger::Round),
            Some("ceiling") => Ok(CastInteger::Ceiling),
            Some("floor") => Ok(CastInteger::Floor),
            Some(other) => Err(target.damaged(format!("castInteger={other:?} is not valid"))),
        }
    }

    fn apply(self, value: f64) -> f64 {
        match self {
            CastInteger::None => value,
            CastInteger::Round => (value + 0.5).floor(),
            CastInteger::Ceiling => value.ceil(),
            CastInteger::Floor => value.floor(),
        }
    }
}

impl TargetTransform {
    /// Reads the `Targets` of the model `element`, if it has any.
    pub(super) fn read(
        builder: &mut PmmlBuilder,
        element: XmlElement,
        classes: Option<&TargetClasses>,
    ) -> Result<Option<Self>> {
        let Some(targets) = element.child("Targets") else {
            return Ok(None);
        };
        let mut all = targets.children_named("Target");
        let Some(target) = all.next() else {
            return Ok(None);
        };
        if all.next().is_some() {
            return Err(targets.unsupported("more than one target"));
        }
        let cast = CastInteger::read(target)?;
        let mut default = MISSING;
        let mut priors = Vec::new();
        for value in target.children_named("TargetValue") {
            let Some(classes) = classes else {
                default = value.number_or("defaultValue", default)?;
                continue;
            };
            let Some(prior) = value.number("priorProbability")? else { continue };
            let class = classes.index_of(builder, value, value.required("value")?)?;
            priors.resize(classes.len(), 0.0);
            if let Some(place) = priors.get_mut(class as usize) {
                *place = prior;
            }
        }
        Ok(Some(TargetTransform {
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
        prediction: PmmlPrediction,
        classes: Option<&TargetClasses>,
        row: &mut PmmlRow,
    ) -> PmmlPrediction {
        match classes {
            Some(classes) if prediction.is_missing() && !self.priors.is_empty() => {
                row.range(classes.slot, classes.len()).copy_from_slice(&self.priors);
                classes.most_probable(row)
            }
            Some(_) => prediction,
            None if prediction.is_missing() => PmmlPrediction { value: self.default, ..prediction },
            None => PmmlPrediction { value: self.rescaled(prediction.value), ..prediction },
        }
    }

    /// Clips, rescales and casts a number, in the order of the standard.
    fn rescaled(&self, value: f64) -> f64 {
        let value = value.max(self.low).min(self.high) * self.factor + self.constant;
        self.cast.apply(value)
    }
}
