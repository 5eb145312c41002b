//! The preprocessing of a row: the data dictionary declares valid values, the mining schema the
//! treatment of others, and derived fields are computed.

use super::builder::PmmlBuilder;
use super::expression::Expression;
use super::field::{FieldScope, MISSING, PmmlField, PmmlType, ValueKind};
use super::interval::Interval;
use super::predicate::contains;
use super::reader;
use super::row::PmmlRow;
use tensorserve_codec::xml::{XmlElement, parse_number};
use tensorserve_tensor::error::Result;

/// The values of a boolean field.
const BOOLEANS: [f64; 2] = [0.0, 1.0];

/// A step before the model is evaluated.
pub(super) enum PreprocessingStep {
    Treat(FieldTreatment),
    Derive { to: u32, expression: Expression },
}

impl PreprocessingStep {
    /// Returns false if a value is invalid, so that the row has no prediction.
    pub(super) fn run(&self, row: &mut PmmlRow) -> bool {
        match self {
            PreprocessingStep::Treat(treatment) => return treatment.run(row),
            PreprocessingStep::Derive { to, expression } => {
                let value = expression.value(row);
                row.set(*to, value);
            }
        }
        true
    }

    /// Computes a derived field, and nothing else.
    pub(super) fn derive(&self, row: &mut PmmlRow) {
        if let PreprocessingStep::Derive { to, expression } = self {
            let value = expression.value(row);
            row.set(*to, value);
        }
    }
}

/// The treatment of missing values, invalid values and outliers of a field.
pub(super) struct FieldTreatment {
    from: u32,
    to: u32,
    valid: ValidValues,
    domain: ValueDomain,
    /// Values that stand for a missing one, sorted.
    missing_codes: Box<[f64]>,
    invalid: InvalidTreatment,
    low: f64,
    high: f64,
    /// Whether values below `low` and above `high` become missing, instead of `low` and `high`.
    drops_outliers: bool,
    /// What replaces a missing value.
    replacement: f64,
    /// Whether a missing value is invalid, so that the row has no prediction.
    refuses_missing: bool,
}

/// The valid values of a field; sets are sorted.
enum ValidValues {
    All,
    AllExcept(Box<[f64]>),
    Listed(Box<[f64]>),
    Within(Box<[Interval]>),
}

impl ValidValues {
    fn contains(&self, value: f64) -> bool {
        match self {
            ValidValues::All => true,
            ValidValues::AllExcept(set) => !contains(set, value),
            ValidValues::Listed(set) => contains(set, value),
            ValidValues::Within(intervals) => intervals.iter().any(|one| one.contains(value)),
        }
    }
}

/// The values of the type of a field. Others are invalid.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueDomain {
    All,
    /// Whole numbers.
    Integers,
    /// All but the marker of a text that is not a date.
    Finite,
}

impl ValueDomain {
    fn of(data_type: PmmlType) -> Self {
        if data_type.kind.is_temporal() {
            ValueDomain::Finite
        } else if data_type.is_integer() {
            ValueDomain::Integers
        } else {
            ValueDomain::All
        }
    }

    fn contains(self, value: f64) -> bool {
        match self {
            ValueDomain::All => true,
            ValueDomain::Integers => value.fract() == 0.0,
            ValueDomain::Finite => value.is_finite(),
        }
    }
}

/// The treatment of an invalid value: `invalidValueTreatment`.
#[derive(Clone, Copy)]
enum InvalidTreatment {
    NoPrediction,
    AsIs,
    AsMissing,
    Replace(f64),
}

impl FieldTreatment {
    fn run(&self, row: &mut PmmlRow) -> bool {
        let Some(mut value) = self.validated(row.get(self.from)) else {
            return false;
        };
        if value < self.low {
            value = if self.drops_outliers { MISSING } else { self.low };
        } else if value > self.high {
            value = if self.drops_outliers { MISSING } else { self.high };
        }
        if value.is_nan() {
            value = self.replacement;
        }
        row.set(self.to, value);
        !(value.is_nan() && self.refuses_missing)
    }

    /// The value after the treatment of missing and invalid ones; `None` for no prediction.
    fn validated(&self, value: f64) -> Option<f64> {
        if value.is_nan() || contains(&self.missing_codes, value) {
            return Some(MISSING);
        }
        let has_type = self.domain.contains(value);
        if has_type && self.valid.contains(value) {
            return Some(value);
        }
        match self.invalid {
            InvalidTreatment::NoPrediction => None,
            InvalidTreatment::AsIs if !has_type => None,
            InvalidTreatment::AsIs => Some(value),
            InvalidTreatment::AsMissing => Some(MISSING),
            InvalidTreatment::Replace(replacement) => Some(replacement),
        }
    }

    /// Whether it keeps every value.
    fn is_identity(&self) -> bool {
        matches!(self.valid, ValidValues::All)
            && self.domain == ValueDomain::All
            && !self.refuses_missing
            && self.missing_codes.is_empty()
            && self.replacement.is_nan()
            && self.low == f64::NEG_INFINITY
            && self.high == f64::INFINITY
    }
}

/// An active field of the outermost model: an input of the signature.
pub(super) struct PmmlInput {
    pub(super) name: String,
    pub(super) field: PmmlField,
}

/// Whether a mining field is an input of its model.
fn is_active(element: XmlElement) -> Result<bool> {
    match element.attribute("usageType").unwrap_or("active") {
        "active" => Ok(true),
        "predicted" | "target" | "supplementary" | "group" | "order" | "frequencyWeight"
        | "analysisWeight" => Ok(false),
        other => Err(element.damaged(format!("usageType={other:?} is not valid"))),
    }
}

/// The name of the target field of a model, if its mining schema declares one.
pub(super) fn target_of<'d>(model: XmlElement<'d>) -> Option<&'d str> {
    let mut fields = model.child("MiningSchema")?.children_named("MiningField");
    fields
        .find(|field| matches!(field.attribute("usageType"), Some("target" | "predicted")))?
        .attribute("name")
}

/// Reads the active fields of the outermost model, whose values come from requests.
pub(super) fn read_inputs<'d>(
    builder: &mut PmmlBuilder<'d>,
    model: XmlElement<'d>,
    scope: &mut FieldScope,
    steps: &mut Vec<PreprocessingStep>,
) -> Result<Vec<PmmlInput>> {
    let mut inputs: Vec<PmmlInput> = Vec::new();
    for mining in model.required_child("MiningSchema")?.children_named("MiningField") {
        let name = mining.required("name")?;
        if !is_active(mining)? {
            continue;
        }
        let data = builder
            .data_field(name)
            .ok_or_else(|| mining.damaged(format!("{name:?} is not in the DataDictionary")))?;
        let data_type = builder.type_of(data)?;
        let field = PmmlField { slot: builder.allocate_slot(mining)?, data_type };
        if scope.get(name).is_some() {
            return Err(mining.damaged("is declared twice"));
        }
        scope.set(name, field);
        inputs.push(PmmlInput { name: name.to_owned(), field });
        let (valid, missing_codes) = read_valid_values(builder, data, field)?;
        let invalid = read_invalid_treatment(builder, mining, field)?;
        let treatment = read_treatment(builder, mining, field)?;
        let domain = ValueDomain::of(data_type);
        let treatment = FieldTreatment { valid, domain, missing_codes, invalid, ..treatment };
        if !treatment.is_identity() {
            steps.push(PreprocessingStep::Treat(treatment));
        }
    }
    Ok(inputs)
}

/// Reads the active fields of a model within another: fields of that model, for whose missing values
/// and outliers it may declare another treatment.
pub(super) fn read_inherited<'d>(
    builder: &mut PmmlBuilder<'d>,
    model: XmlElement<'d>,
    scope: &mut FieldScope,
    steps: &mut Vec<PreprocessingStep>,
) -> Result<()> {
    let Some(schema) = model.child("MiningSchema") else {
        return Ok(());
    };
    let mut changed = Vec::new();
    for mining in schema.children_named("MiningField") {
        if !is_active(mining)? {
            continue;
        }
        let field = scope.field(mining, "name")?;
        let treatment = read_treatment(builder, mining, field)?;
        if treatment.is_identity() {
            continue;
        }
        let to = builder.allocate_slot(mining)?;
        steps.push(PreprocessingStep::Treat(FieldTreatment { to, ..treatment }));
        let name = mining.required("name")?;
        scope.set(name, PmmlField { slot: to, ..field });
        changed.push(name);
    }
    // Fields that are derived from these have other values within this model, too.
    for derived in builder.derived_from(changed)? {
        derive(builder, derived, scope, steps)?;
    }
    Ok(())
}

/// Reads the derived fields in `element` that are used.
pub(super) fn read_derived<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    scope: &mut FieldScope,
    steps: &mut Vec<PreprocessingStep>,
) -> Result<()> {
    for derived in element.children_named("DerivedField") {
        if builder.is_referenced(derived.required("name")?) {
            derive(builder, derived, scope, steps)?;
        }
    }
    Ok(())
}

/// Reads a derived field.
fn derive<'d>(
    builder: &mut PmmlBuilder<'d>,
    derived: XmlElement<'d>,
    scope: &mut FieldScope,
    steps: &mut Vec<PreprocessingStep>,
) -> Result<()> {
    let data_type = builder.type_of(derived)?;
    let expression = reader::read_child(derived, data_type, scope, builder)?;
    let to = builder.allocate_slot(derived)?;
    steps.push(PreprocessingStep::Derive { to, expression });
    scope.set(derived.required("name")?, PmmlField { slot: to, data_type });
    Ok(())
}

/// Reads the treatment of missing values and outliers, in place. All values are valid.
fn read_treatment(
    builder: &mut PmmlBuilder,
    mining: XmlElement,
    field: PmmlField,
) -> Result<FieldTreatment> {
    // A number in place of a missing integer need not be one.
    let replaced_by = if field.data_type.is_number() { PmmlType::NUMBER } else { field.data_type };
    let replacement =
        builder.strings.optional_constant(mining, replaced_by, "missingValueReplacement")?;
    let refuses_missing = mining.attribute("missingValueTreatment") == Some("returnInvalid");
    let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
    let is_number = field.data_type.kind == ValueKind::Number;
    let drops_outliers = match mining.attribute("outliers").unwrap_or("asIs") {
        "asIs" => false,
        treatment @ ("asMissingValues" | "asExtremeValues") if is_number => {
            low = mining.number_or("lowValue", low)?;
            high = mining.number_or("highValue", high)?;
            treatment == "asMissingValues"
        }
        other => {
            return Err(mining.damaged(format!("outliers={other:?} is not valid for this field")));
        }
    };
    Ok(FieldTreatment {
        from: field.slot,
        to: field.slot,
        valid: ValidValues::All,
        domain: ValueDomain::All,
        missing_codes: Box::default(),
        invalid: InvalidTreatment::AsIs,
        low,
        high,
        drops_outliers,
        replacement,
        refuses_missing,
    })
}

fn read_invalid_treatment(
    builder: &mut PmmlBuilder,
    mining: XmlElement,
    field: PmmlField,
) -> Result<InvalidTreatment> {
    match mining.attribute("invalidValueTreatment").unwrap_or("returnInvalid") {
        "returnInvalid" => Ok(InvalidTreatment::NoPrediction),
        "asIs" => Ok(InvalidTreatment::AsIs),
        "asMissing" => Ok(InvalidTreatment::AsMissing),
        "asValue" => {
            let text = mining.required("invalidValueReplacement")?;
            let value = builder.strings.constant(mining, field.data_type, text)?;
            Ok(InvalidTreatment::Replace(value))
        }
        other => Err(mining.damaged(format!("invalidValueTreatment={other:?} is not valid"))),
    }
}

/// Reads the values that the data dictionary declares valid, and those that stand for a missing one.
fn read_valid_values(
    builder: &mut PmmlBuilder,
    data: XmlElement,
    field: PmmlField,
) -> Result<(ValidValues, Box<[f64]>)> {
    let is_number = field.data_type.kind == ValueKind::Number;
    let (mut listed, mut missing, mut invalid) = (Vec::new(), Vec::new(), Vec::new());
    for value in data.children_named("Value") {
        let text = value.required("value")?;
        let property = value.attribute("property").unwrap_or("valid");
        let set = match property {
            "valid" => &mut listed,
            "invalid" => &mut invalid,
            "missing" => &mut missing,
            other => return Err(value.damaged(format!("property={other:?} is not valid"))),
        };
        // A marker such as "?" cannot occur among numbers.
        if property != "valid" && is_number && parse_number(text).is_none() {
            continue;
        }
        set.push(builder.strings.constant(value, field.data_type, text)?);
    }
    for set in [&mut listed, &mut missing, &mut invalid] {
        set.sort_by(f64::total_cmp);
    }
    let mut intervals = Vec::new();
    for interval in data.children_named("Interval") {
        intervals.push(Interval::read(interval)?);
    }
    if !intervals.is_empty() {
        intervals.extend(listed.drain(..).map(Interval::point));
    }
    let valid = if !listed.is_empty() {
        ValidValues::Listed(listed.into())
    } else if !intervals.is_empty() {
        ValidValues::Within(intervals.into())
    } else if field.data_type.kind == ValueKind::Boolean {
        ValidValues::Listed(BOOLEANS.into())
    } else if !invalid.is_empty() {
        ValidValues::AllExcept(invalid.into())
    } else {
        ValidValues::All
    };
    Ok((valid, missing.into()))
}

/// The elements that are models, supported or not.
const MODEL_ELEMENTS: [&str; 21] = [
    "TreeModel",
    "RegressionModel",
    "MiningModel",
    "Scorecard",
    "AnomalyDetectionModel",
    "AssociationModel",
    "BaselineModel",
    "BayesianNetworkModel",
    "ClusteringModel",
    "GaussianProcessModel",
    "GeneralRegressionModel",
    "NaiveBayesModel",
    "NearestNeighborModel",
    "NeuralNetwork",
    "RuleSetModel",
    "SequenceModel",
    "SupportVectorMachineModel",
    "TextModel",
    "TimeSeriesModel",
    "DecisionTree",
    "Regression",
];

/// Whether `element` is a model.
pub(super) fn is_model(element: XmlElement) -> bool {
    MODEL_ELEMENTS.contains(&element.name())
}

/// The first model among the children of `element`.
pub(super) fn find_model(element: XmlElement<'_>) -> Option<XmlElement<'_>> {
    element.children().find(|child| is_model(*child))
}
