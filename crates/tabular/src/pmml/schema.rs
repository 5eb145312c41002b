//! What happens to fields before a model sees them: the data dictionary says which values they
//! may have, the mining schema what becomes of others, and derived fields are computed.

use std::collections::{HashMap, HashSet};

use super::expression::{self, Expression};
use super::field::{Field, Kind, MISSING, Row, Scope, Symbols};
use super::interval::Interval;
use super::predicate::contains;
use super::xml::{Element, parse_number};
use tensorserve_tensor::error::Result;

/// The most values of a row, those in between included (8 MiB of memory for each request).
const MAX_SLOTS: u32 = 1 << 20;

/// What is shared by all parts of a file while it is read.
pub(super) struct Builder<'d> {
    pub(super) symbols: Symbols,
    /// Places for the values of a row, so far.
    pub(super) slots: u32,
    /// Numbers in tables of all models together, so far.
    pub(super) numbers: usize,
    /// The names of fields that something refers to.
    referred: HashSet<&'d str>,
    dictionary: HashMap<&'d str, Element<'d>>,
    /// Whether an output asks which node, segment or cluster gave the result.
    pub(super) wants_entities: bool,
}

/// The most numbers in tables (1 GiB of memory).
const MAX_NUMBERS: usize = 1 << 27;

impl<'d> Builder<'d> {
    pub(super) fn new(root: Element<'d>) -> Result<Self> {
        let mut referred = HashSet::new();
        let mut wants_entities = false;
        for element in root.descendants() {
            wants_entities |=
                matches!(element.attribute("feature"), Some("entityId" | "clusterId"));
            let names = element.attributes().filter(|(name, _)| *name != "value");
            match element.name() {
                // These are where names come from; everything else refers to them.
                "DataField" | "DerivedField" | "OutputField" => {
                    referred.extend(element.attribute("targetField"));
                }
                _ => referred.extend(names.map(|(_, value)| value)),
            }
        }
        let mut dictionary = HashMap::new();
        for field in root.need_child("DataDictionary")?.all("DataField") {
            if dictionary.insert(field.need("name")?, field).is_some() {
                return Err(field.damaged("is there twice"));
            }
        }
        Ok(Builder {
            symbols: Symbols::default(),
            slots: 0,
            numbers: 0,
            referred,
            dictionary,
            wants_entities,
        })
    }

    /// A place for a value.
    pub(super) fn slot(&mut self, element: Element) -> Result<u32> {
        self.slots(element, 1)
    }

    /// Places for `count` values, side by side.
    pub(super) fn slots(&mut self, element: Element, count: usize) -> Result<u32> {
        let first = self.slots;
        let end = u32::try_from(count).ok().and_then(|count| first.checked_add(count));
        match end.filter(|end| *end <= MAX_SLOTS) {
            Some(end) => self.slots = end,
            None => return Err(element.unsupported("so many fields and classes")),
        }
        Ok(first)
    }

    /// Counts numbers of a table that is about to be made.
    pub(super) fn count(&mut self, element: Element, count: usize) -> Result<()> {
        self.numbers = self.numbers.saturating_add(count);
        if self.numbers > MAX_NUMBERS {
            return Err(element.unsupported("so large a model"));
        }
        Ok(())
    }

    /// The declaration of the field `name` of the data.
    pub(super) fn data_field(&self, name: &str) -> Option<Element<'d>> {
        self.dictionary.get(name).copied()
    }

    /// What the values of the field that `element` declares are.
    pub(super) fn kind(&self, element: Element) -> Result<(Kind, bool)> {
        Kind::of_type(element, element.need("dataType")?)
    }
}

/// What is done to a row before the model sees it.
pub(super) enum Step {
    Prepare(Prepare),
    Derive { to: u32, expression: Expression },
}

impl Step {
    /// False if the row has a value for which there must be no result.
    pub(super) fn run(&self, row: &mut Row) -> bool {
        match self {
            Step::Prepare(prepare) => return prepare.run(row),
            Step::Derive { to, expression } => row.set(*to, expression.value(row)),
        }
        true
    }
}

/// What becomes of a field that is missing, not valid, or far out.
pub(super) struct Prepare {
    from: u32,
    to: u32,
    valid: Valid,
    /// Values that mean that there is none, sorted.
    as_missing: Box<[f64]>,
    invalid: Invalid,
    low: f64,
    high: f64,
    /// Whether what lies beyond these two is missing, and not moved to them.
    drops_outliers: bool,
    replacement: f64,
}

enum Valid {
    Any,
    /// Any but these.
    Not(Box<[f64]>),
    Listed(Box<[f64]>),
    Within(Box<[Interval]>),
}

impl Valid {
    fn has(&self, value: f64) -> bool {
        match self {
            Valid::Any => true,
            Valid::Not(set) => !contains(set, value),
            Valid::Listed(set) => contains(set, value),
            Valid::Within(intervals) => intervals.iter().any(|one| one.contains(value)),
        }
    }
}

/// What becomes of a value that is not valid.
#[derive(Clone, Copy)]
enum Invalid {
    NoResult,
    AsIs,
    Missing,
    Value(f64),
}

impl Prepare {
    fn run(&self, row: &mut Row) -> bool {
        let Some(mut value) = self.validated(row.get(self.from)) else {
            return false;
        };
        if value < self.low {
            value = if self.drops_outliers { MISSING } else { self.low };
        } else if value > self.high {
            value = if self.drops_outliers { MISSING } else { self.high };
        }
        row.set(self.to, if value.is_nan() { self.replacement } else { value });
        true
    }

    fn validated(&self, value: f64) -> Option<f64> {
        if value.is_nan() || contains(&self.as_missing, value) {
            return Some(MISSING);
        }
        if self.valid.has(value) {
            return Some(value);
        }
        match self.invalid {
            Invalid::NoResult => None,
            Invalid::AsIs => Some(value),
            Invalid::Missing => Some(MISSING),
            Invalid::Value(replacement) => Some(replacement),
        }
    }

    /// Whether it leaves every value as it is.
    fn is_nothing(&self) -> bool {
        matches!(self.valid, Valid::Any)
            && self.as_missing.is_empty()
            && self.replacement.is_nan()
            && self.low == f64::NEG_INFINITY
            && self.high == f64::INFINITY
    }
}

/// An active field of the outermost model: an input of the signature.
pub(super) struct Input {
    pub(super) name: String,
    pub(super) field: Field,
}

/// Whether a mining field is one that the model reads.
fn is_active(element: Element) -> Result<bool> {
    match element.attribute("usageType").unwrap_or("active") {
        "active" => Ok(true),
        "predicted" | "target" | "supplementary" | "group" | "order" | "frequencyWeight"
        | "analysisWeight" => Ok(false),
        other => Err(element.damaged(format!("usageType={other:?} is not known"))),
    }
}

/// The name of the field that a model predicts, if its schema says so.
pub(super) fn target_of<'d>(model: Element<'d>) -> Option<&'d str> {
    let is_target =
        |field: &Element| matches!(field.attribute("usageType"), Some("target" | "predicted"));
    model.child("MiningSchema")?.all("MiningField").find(is_target)?.attribute("name")
}

/// The active fields of the outermost model, which come from requests.
pub(super) fn inputs<'d>(
    builder: &mut Builder<'d>,
    model: Element<'d>,
    scope: &mut Scope,
    steps: &mut Vec<Step>,
) -> Result<Vec<Input>> {
    let mut inputs: Vec<Input> = Vec::new();
    for mining in model.need_child("MiningSchema")?.all("MiningField") {
        let name = mining.need("name")?;
        if !is_active(mining)? {
            continue;
        }
        let data = builder
            .data_field(name)
            .ok_or_else(|| mining.damaged(format!("{name:?} is not in the DataDictionary")))?;
        let (kind, single) = builder.kind(data)?;
        let field = Field { slot: builder.slot(mining)?, kind, single };
        if scope.get(name).is_some() {
            return Err(mining.damaged("is there twice"));
        }
        scope.set(name, field);
        inputs.push(Input { name: name.to_owned(), field });
        let (valid, as_missing) = valid_values(builder, data, field)?;
        let invalid = invalid_treatment(builder, mining, field)?;
        let prepare = treatment(builder, mining, field, field.slot)?;
        let prepare = Prepare { valid, as_missing, invalid, ..prepare };
        if !prepare.is_nothing() {
            steps.push(Step::Prepare(prepare));
        }
    }
    Ok(inputs)
}

/// The active fields of a model within another: they are that one's, perhaps with other values
/// for missing ones.
pub(super) fn inherited<'d>(
    builder: &mut Builder<'d>,
    model: Element<'d>,
    scope: &mut Scope,
    steps: &mut Vec<Step>,
) -> Result<()> {
    let Some(schema) = model.child("MiningSchema") else {
        return Ok(());
    };
    for mining in schema.all("MiningField") {
        if !is_active(mining)? {
            continue;
        }
        let field = scope.field(mining, "name")?;
        let prepare = treatment(builder, mining, field, field.slot)?;
        if prepare.is_nothing() {
            continue;
        }
        let to = builder.slot(mining)?;
        steps.push(Step::Prepare(Prepare { to, ..prepare }));
        scope.set(mining.need("name")?, Field { slot: to, ..field });
    }
    Ok(())
}

/// The derived fields in `element` that something refers to.
pub(super) fn derived<'d>(
    builder: &mut Builder<'d>,
    element: Element<'d>,
    scope: &mut Scope,
    steps: &mut Vec<Step>,
) -> Result<()> {
    for derived in element.all("DerivedField") {
        let name = derived.need("name")?;
        if !builder.referred.contains(name) {
            continue;
        }
        let (kind, single) = builder.kind(derived)?;
        let expression = expression::of(derived, kind, single, scope, &mut builder.symbols)?;
        let to = builder.slot(derived)?;
        steps.push(Step::Derive { to, expression });
        scope.set(name, Field { slot: to, kind, single });
    }
    Ok(())
}

/// What `mining` says of missing and far values.
fn treatment(builder: &mut Builder, mining: Element, field: Field, to: u32) -> Result<Prepare> {
    let mut constant = |name: &str| match mining.attribute(name) {
        Some(text) => builder.symbols.constant(mining, field.kind, field.single, text),
        None => Ok(MISSING),
    };
    let replacement = match mining.attribute("missingValueTreatment") {
        Some("returnInvalid") => {
            return Err(mining.unsupported("missingValueTreatment=\"returnInvalid\""));
        }
        _ => constant("missingValueReplacement")?,
    };
    let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
    let drops_outliers = match mining.attribute("outliers").unwrap_or("asIs") {
        "asIs" => false,
        treatment @ ("asMissingValues" | "asExtremeValues") if field.kind == Kind::Number => {
            low = mining.number_or("lowValue", low)?;
            high = mining.number_or("highValue", high)?;
            treatment == "asMissingValues"
        }
        other => return Err(mining.damaged(format!("outliers={other:?} has no meaning here"))),
    };
    Ok(Prepare {
        from: field.slot,
        to,
        valid: Valid::Any,
        as_missing: Box::default(),
        invalid: Invalid::AsIs,
        low,
        high,
        drops_outliers,
        replacement,
    })
}

fn invalid_treatment(builder: &mut Builder, mining: Element, field: Field) -> Result<Invalid> {
    match mining.attribute("invalidValueTreatment").unwrap_or("returnInvalid") {
        "returnInvalid" => Ok(Invalid::NoResult),
        "asIs" => Ok(Invalid::AsIs),
        "asMissing" => Ok(Invalid::Missing),
        "asValue" => {
            let text = mining.need("invalidValueReplacement")?;
            let value = builder.symbols.constant(mining, field.kind, field.single, text)?;
            Ok(Invalid::Value(value))
        }
        other => Err(mining.damaged(format!("invalidValueTreatment={other:?} is not known"))),
    }
}

/// The values that the data dictionary allows, and those that it says mean a missing one.
fn valid_values(builder: &mut Builder, data: Element, field: Field) -> Result<(Valid, Box<[f64]>)> {
    let (mut listed, mut missing, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for value in data.all("Value") {
        let text = value.need("value")?;
        let property = value.attribute("property").unwrap_or("valid");
        let set = match property {
            "valid" => &mut listed,
            "invalid" => &mut wrong,
            "missing" => &mut missing,
            other => return Err(value.damaged(format!("property={other:?} is not known"))),
        };
        // A marker such as "?" among numbers can never come in as one.
        let is_number = field.kind == Kind::Number;
        if property != "valid" && is_number && parse_number(text).is_none() {
            continue;
        }
        set.push(builder.symbols.constant(value, field.kind, field.single, text)?);
    }
    for set in [&mut listed, &mut missing, &mut wrong] {
        set.sort_by(f64::total_cmp);
    }
    let mut intervals = Vec::new();
    for interval in data.all("Interval") {
        intervals.push(Interval::of(interval)?);
    }
    if !intervals.is_empty() {
        intervals.extend(listed.drain(..).map(Interval::point));
    }
    let valid = if !listed.is_empty() {
        Valid::Listed(listed.into())
    } else if !intervals.is_empty() {
        Valid::Within(intervals.into())
    } else if field.kind == Kind::Flag {
        Valid::Listed([0.0, 1.0].into())
    } else if !wrong.is_empty() {
        Valid::Not(wrong.into())
    } else {
        Valid::Any
    };
    Ok((valid, missing.into()))
}
