//! `Output`: what is exposed of a prediction, under the names of output fields.

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ExposedOutput;
use super::expression::{self, Expression};
use super::field::{FieldScope, MISSING, PmmlField, PmmlRow, PmmlType, ValueKind};
use super::prediction::{NO_CLASS, PmmlPrediction};
use super::xml::XmlElement;
use tensorserve_tensor::error::Result;

/// The most output fields of a model.
const MAX_OUTPUTS: usize = 4096;

/// An output field.
pub(super) struct OutputField {
    to: u32,
    feature: ResultFeature,
}

/// What an output field is: its `feature`.
enum ResultFeature {
    PredictedValue,
    /// The text that replaces each class, as codes. Other classes stand for themselves.
    DisplayValue(Box<[(f64, f64)]>),
    /// The value in this slot, unless the prediction is missing.
    Slot(u32),
    /// The probability of the predicted class; that of the first class is in this slot.
    WinnerProbability(u32),
    EntityId,
    TransformedValue(Expression),
}

impl OutputField {
    pub(super) fn write(&self, prediction: PmmlPrediction, row: &mut PmmlRow) {
        let value = match &self.feature {
            ResultFeature::PredictedValue => prediction.value,
            ResultFeature::DisplayValue(texts) => texts
                .iter()
                .find(|(label, _)| label.to_bits() == prediction.value.to_bits())
                .map_or(prediction.value, |(_, text)| *text),
            ResultFeature::Slot(slot) if !prediction.is_missing() => row.get(*slot),
            ResultFeature::WinnerProbability(first) if prediction.class != NO_CLASS => {
                row.get(first.saturating_add(prediction.class))
            }
            ResultFeature::Slot(_) | ResultFeature::WinnerProbability(_) => MISSING,
            ResultFeature::EntityId => prediction.entity,
            ResultFeature::TransformedValue(expression) => expression.value(row),
        };
        row.set(self.to, value);
    }
}

/// The predictions of a model that outputs expose.
pub(super) struct PredictionType<'a> {
    pub(super) kind: ValueKind,
    pub(super) classes: Option<&'a TargetClasses>,
}

/// Reads the outputs of the model `element`, which later outputs can refer to. They are added to
/// `exposed`, for clients and later models.
pub(super) fn read<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    scope: &mut FieldScope,
    predictions: &PredictionType,
    exposed: &mut Vec<ExposedOutput>,
) -> Result<Vec<OutputField>> {
    let mut outputs = Vec::new();
    let Some(declared) = element.child("Output") else {
        return Ok(outputs);
    };
    for output in declared.children_named("OutputField") {
        let name = output.required("name")?;
        if outputs.len() >= MAX_OUTPUTS {
            return Err(declared.unsupported(format!("more than {MAX_OUTPUTS} outputs")));
        }
        let (feature, kind) = read_feature(builder, element, output, scope, predictions)?;
        let data_type = PmmlType::of_kind(kind);
        let known = exposed.iter().find(|known| known.name == name).map(|known| known.field);
        // Segments of which one is selected may each have an output of the same name.
        let to = match known {
            Some(field) if field.data_type == data_type => field.slot,
            Some(_) => return Err(output.unsupported("an output of two types")),
            None => builder.allocate_slot(output)?,
        };
        let field = PmmlField { slot: to, data_type };
        scope.set(name, field);
        let is_final = output.boolean_or("isFinalResult", true)?;
        if known.is_none() {
            exposed.push(ExposedOutput { name: name.to_owned(), field, is_final });
        }
        outputs.push(OutputField { to, feature });
    }
    Ok(outputs)
}

fn read_feature<'d>(
    builder: &mut PmmlBuilder<'d>,
    model: XmlElement<'d>,
    output: XmlElement<'d>,
    scope: &FieldScope,
    predictions: &PredictionType,
) -> Result<(ResultFeature, ValueKind)> {
    if output.attribute("segmentId").is_some() {
        return Err(output.unsupported("an output of another segment (segmentId)"));
    }
    let PredictionType { kind, classes } = *predictions;
    let rank = output.number_or("rank", 1.0)?;
    match (output.attribute("feature").unwrap_or("predictedValue"), classes) {
        ("predictedValue", _) | ("predictedDisplayValue", None) => {
            Ok((ResultFeature::PredictedValue, kind))
        }
        ("predictedDisplayValue", Some(classes)) => {
            let texts = read_display_values(builder, model, classes)?;
            Ok((ResultFeature::DisplayValue(texts), classes.data_type.kind))
        }
        ("probability", Some(classes)) => {
            let feature = match output.attribute("value") {
                None => ResultFeature::WinnerProbability(classes.slot),
                Some(name) => {
                    let class = classes.index_of(builder, output, name)?;
                    ResultFeature::Slot(classes.slot.saturating_add(class))
                }
            };
            Ok((feature, ValueKind::Number))
        }
        ("probability", None) => {
            Err(output.damaged("feature=\"probability\" needs a model that predicts classes"))
        }
        ("entityId" | "clusterId", _) if rank.to_bits() == 1f64.to_bits() => {
            Ok((ResultFeature::EntityId, ValueKind::Text))
        }
        ("transformedValue", _) => read_transformed_value(builder, output, scope),
        (other, _) => Err(output.unsupported(format!("feature={other:?}"))),
    }
}

fn read_transformed_value<'d>(
    builder: &mut PmmlBuilder<'d>,
    output: XmlElement<'d>,
    scope: &FieldScope,
) -> Result<(ResultFeature, ValueKind)> {
    let data_type = match output.attribute("dataType") {
        Some(name) => PmmlType::named(output, name)?,
        None if output.attribute("optype") == Some("categorical") => PmmlType::TEXT,
        None => PmmlType::NUMBER,
    };
    let expression = expression::read_child(output, data_type, scope, &mut builder.strings)?;
    Ok((ResultFeature::TransformedValue(expression), data_type.kind))
}

/// The code of the text to display for each class.
fn read_display_values(
    builder: &mut PmmlBuilder,
    model: XmlElement,
    classes: &TargetClasses,
) -> Result<Box<[(f64, f64)]>> {
    let mut texts = Vec::new();
    let target = model.child("Targets").and_then(|targets| targets.child("Target"));
    for value in target.into_iter().flat_map(|target| target.children_named("TargetValue")) {
        let (Some(label), Some(text)) = (value.attribute("value"), value.attribute("displayValue"))
        else {
            continue;
        };
        if classes.data_type.kind != ValueKind::Text {
            return Err(value.unsupported("a displayValue for a target that is not a string"));
        }
        texts.push((builder.strings.intern(label), builder.strings.intern(text)));
    }
    Ok(texts.into())
}
