//! `Output`: what is exposed of a prediction, under the names of output fields.

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ExposedOutput;
use super::expression::Expression;
use super::features::ModelFeatures;
use super::field::{FieldScope, MISSING, PmmlField, PmmlType};
use super::prediction::{NO_CLASS, PmmlPrediction};
use super::reader;
use super::row::PmmlRow;
use super::schema;
use super::value;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::{Code, Result};

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
    /// The text that replaces each class, as codes; other classes have their text.
    DisplayValue(PmmlType, Box<[(f64, f64)]>),
    /// The value in this slot, unless the prediction is missing.
    Slot(u32),
    /// The value of the predicted class; that of the first class is in this slot.
    OfWinner(u32),
    /// The value of the predicted cluster.
    OfCluster(Box<[u32]>),
    EntityId,
    TransformedValue(Expression),
}

impl OutputField {
    pub(super) fn write(&self, prediction: PmmlPrediction, row: &mut PmmlRow) {
        let value = match &self.feature {
            ResultFeature::TransformedValue(expression) => expression.value(row),
            _ if prediction.is_missing() => MISSING,
            ResultFeature::PredictedValue => prediction.value,
            ResultFeature::DisplayValue(data_type, texts) => {
                let known = texts
                    .binary_search_by(|(label, _)| label.total_cmp(&prediction.value))
                    .ok()
                    .and_then(|index| texts.get(index));
                match known {
                    Some((_, text)) => *text,
                    None => {
                        value::convert(prediction.value, *data_type, PmmlType::TEXT, row.strings)
                    }
                }
            }
            ResultFeature::Slot(slot) => row.get(*slot),
            ResultFeature::OfWinner(_) if prediction.class == NO_CLASS => MISSING,
            ResultFeature::OfWinner(first) => row.get(first.saturating_add(prediction.class)),
            ResultFeature::OfCluster(slots) => {
                slots.get(prediction.index as usize).map_or(MISSING, |slot| row.get(*slot))
            }
            ResultFeature::EntityId => prediction.entity,
        };
        row.set(self.to, value);
    }
}

/// The predictions of a model that outputs expose.
pub(super) struct PredictionType<'a> {
    pub(super) data_type: PmmlType,
    pub(super) classes: Option<&'a TargetClasses>,
    pub(super) features: &'a ModelFeatures,
}

/// Reads the outputs of the model `element`, which later outputs can refer to. They are added to
/// `exposed`, for clients and later models. Those that cannot be computed are left out with a warning.
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
        let (feature, data_type) = match read_feature(builder, element, output, scope, predictions)
        {
            Ok(feature) => feature,
            Err(error)
                if error.code() == Code::Unimplemented || refers_to_dropped(builder, output) =>
            {
                builder.drop_output(name, &error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let known = exposed.iter().find(|known| known.name == name).map(|known| known.field);
        // Segments of which one is selected may each have an output of the same name.
        let to = match known {
            Some(field) if field.data_type.kind == data_type.kind => field.slot,
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

/// Whether an output is computed from one that was left out.
fn refers_to_dropped(builder: &PmmlBuilder, output: XmlElement) -> bool {
    let mut fields = output.descendants().filter_map(|element| element.attribute("field"));
    fields.any(|field| builder.dropped.contains(field))
}

fn read_feature<'d>(
    builder: &mut PmmlBuilder<'d>,
    model: XmlElement<'d>,
    output: XmlElement<'d>,
    scope: &FieldScope,
    predictions: &PredictionType,
) -> Result<(ResultFeature, PmmlType)> {
    if output.attribute("segmentId").is_some() {
        return Err(output.unsupported("an output of another segment (segmentId)"));
    }
    if let Some(target) = output.attribute("targetField")
        && schema::target_of(model).is_some_and(|own| own != target)
    {
        return Err(output.unsupported(format!("an output of a second target ({target:?})")));
    }
    let PredictionType { data_type, classes, features } = predictions;
    let rank = read_rank(output)?;
    let entity = output.attribute("value");
    let number = PmmlType::NUMBER;
    match (output.attribute("feature").unwrap_or("predictedValue"), classes) {
        ("predictedValue", _) => Ok((ResultFeature::PredictedValue, *data_type)),
        ("predictedDisplayValue", _) => {
            let texts = read_display_values(builder, model, *data_type)?;
            Ok((ResultFeature::DisplayValue(*data_type, texts), PmmlType::TEXT))
        }
        ("probability", Some(classes)) => {
            Ok((of_class(builder, output, classes, classes.slot)?, number))
        }
        ("probability", None) => {
            Err(output.unsupported("a probability of a model that does not predict classes"))
        }
        ("confidence", Some(classes)) if features.class_confidences.is_some() => {
            let first = features.class_confidences.unwrap_or_default();
            match (entity, features.confidence) {
                (None, Some(slot)) => Ok((ResultFeature::Slot(slot), number)),
                _ => Ok((of_class(builder, output, classes, first)?, number)),
            }
        }
        ("reasonCode", _) => {
            let reasons = features.reason_codes;
            let reasons =
                reasons.ok_or_else(|| output.unsupported("a reason code of this model"))?;
            Ok((of_rank(reasons.at(rank)), PmmlType::TEXT))
        }
        ("entityId" | "clusterId", _) if rank == 1 => Ok((ResultFeature::EntityId, PmmlType::TEXT)),
        ("entityId" | "clusterId", _) if features.entities.is_some() => {
            let slot = features.entities.and_then(|entities| entities.at(rank));
            Ok((of_rank(slot), PmmlType::TEXT))
        }
        ("affinity" | "entityAffinity" | "clusterAffinity", _) => {
            Ok((of_entity(output, features, entity, rank)?, number))
        }
        ("transformedValue" | "decision", _) => read_transformed_value(builder, output, scope),
        (other, _) => Err(output.unsupported(format!("feature={other:?} of this model"))),
    }
}

/// The attribute `rank`, from 1.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Checked.
fn read_rank(output: XmlElement) -> Result<u32> {
    let rank = output.number_or("rank", 1.0)?;
    match rank.fract() == 0.0 && (1.0..f64::from(u32::MAX)).contains(&rank) {
        true => Ok(rank as u32),
        false => Err(output.damaged("rank is not a positive integer")),
    }
}

/// The value of a class, or of the predicted one; that of the first class is in the slot `first`.
fn of_class(
    builder: &mut PmmlBuilder,
    output: XmlElement,
    classes: &TargetClasses,
    first: u32,
) -> Result<ResultFeature> {
    match output.attribute("value") {
        None => Ok(ResultFeature::OfWinner(first)),
        Some(name) => {
            let class = classes.index_of(builder, output, name)?;
            Ok(ResultFeature::Slot(first.saturating_add(class)))
        }
    }
}

/// The value in the slot of a rank; missing if there is none.
fn of_rank(slot: Option<u32>) -> ResultFeature {
    match slot {
        Some(slot) => ResultFeature::Slot(slot),
        None => ResultFeature::TransformedValue(Expression::Constant(MISSING)),
    }
}

/// The distance or similarity of an entity.
fn of_entity(
    output: XmlElement,
    features: &ModelFeatures,
    id: Option<&str>,
    rank: u32,
) -> Result<ResultFeature> {
    if let Some(id) = id {
        let known = features.affinity_of.iter().find(|(known, _)| known == id);
        return match known {
            Some((_, slot)) => Ok(ResultFeature::Slot(*slot)),
            None => Err(output.unsupported(format!("the affinity of {id:?}"))),
        };
    }
    if let Some(affinities) = features.affinities {
        return Ok(of_rank(affinities.at(rank)));
    }
    match features.affinity_of.is_empty() {
        true => Err(output.unsupported("an affinity of this model")),
        false => {
            let slots = features.affinity_of.iter().map(|(_, slot)| *slot).collect();
            Ok(ResultFeature::OfCluster(slots))
        }
    }
}

fn read_transformed_value<'d>(
    builder: &mut PmmlBuilder<'d>,
    output: XmlElement<'d>,
    scope: &FieldScope,
) -> Result<(ResultFeature, PmmlType)> {
    if reader::find_expression(output).is_none() {
        return Err(output.unsupported("an output without an expression"));
    }
    let data_type = match output.attribute("dataType") {
        Some(name) => PmmlType::named(output, name)?,
        None if output.attribute("optype") == Some("categorical") => PmmlType::TEXT,
        None => PmmlType::NUMBER,
    };
    let expression = reader::read_child(output, data_type, scope, builder)?;
    Ok((ResultFeature::TransformedValue(expression), data_type))
}

/// The code of the text to display for each class, sorted by class: that of `Targets`, or that of the
/// data dictionary.
fn read_display_values(
    builder: &mut PmmlBuilder,
    model: XmlElement,
    data_type: PmmlType,
) -> Result<Box<[(f64, f64)]>> {
    let mut texts = Vec::new();
    let target = model.child("Targets").and_then(|targets| targets.child("Target"));
    let field = schema::target_of(model).and_then(|name| builder.data_field(name));
    let targets = target.into_iter().flat_map(|target| target.children_named("TargetValue"));
    let fields = field.into_iter().flat_map(|field| field.children_named("Value"));
    for (index, cluster) in model.children_named("Cluster").enumerate() {
        let default = (index + 1).to_string();
        let id = cluster.attribute("id").unwrap_or(&default);
        if let Some(name) = cluster.attribute("name") {
            texts.push((builder.strings.intern(id), builder.strings.intern(name)));
        }
    }
    for value in targets.chain(fields) {
        let (Some(label), Some(text)) = (value.attribute("value"), value.attribute("displayValue"))
        else {
            continue;
        };
        let label = builder.strings.constant(value, data_type, label)?;
        texts.push((label, builder.strings.intern(text)));
    }
    // A stable sort: the first text of a class stays.
    texts.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    texts.dedup_by(|(a, _), (b, _)| a.to_bits() == b.to_bits());
    Ok(texts.into())
}
