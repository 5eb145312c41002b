//! `RegressionModel`: a sum of terms for the number or for each class, and its normalization.

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ModelContext;
use super::field::ValueKind;
use super::numeric::{
    inverse_cauchit, inverse_cloglog, inverse_loglog, logistic, normal_cdf, normalize, softmax,
};
use super::prediction::PmmlPrediction;
use super::row::PmmlRow;
use super::schema;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct RegressionModel {
    tables: Box<[RegressionTable]>,
    classes: Option<TargetClasses>,
    normalization: NormalizationMethod,
    /// Whether classes are ordered, and each sum is about the class and those before it.
    is_ordinal: bool,
}

/// The terms of a sum.
struct RegressionTable {
    intercept: f64,
    /// The index of its class.
    class: u32,
    /// Field and coefficient.
    linear: Box<[(u32, f64)]>,
    /// Field, exponent and coefficient.
    powers: Box<[(u32, i32, f64)]>,
    categories: Box<[CategoricalPredictor]>,
    /// The fields of each product, and its coefficient.
    products: Box<[(Box<[u32]>, f64)]>,
}

/// The coefficients of the values of a field.
struct CategoricalPredictor {
    slot: u32,
    /// Value and coefficient, sorted by value.
    coefficients: Box<[(f64, f64)]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NormalizationMethod {
    None,
    Simplemax,
    Softmax,
    Logit,
    Probit,
    Cloglog,
    Exp,
    Loglog,
    Cauchit,
}

impl RegressionTable {
    fn sum(&self, row: &PmmlRow) -> f64 {
        let mut sum = self.intercept;
        for (slot, coefficient) in &self.linear {
            sum += coefficient * row.get(*slot);
        }
        for (slot, exponent, coefficient) in &self.powers {
            let value = row.get(*slot);
            // A missing value stays missing, also for an exponent of 0.
            sum += if value.is_nan() { value } else { coefficient * value.powi(*exponent) };
        }
        for category in &self.categories {
            sum += category.coefficient(row.get(category.slot));
        }
        for (slots, coefficient) in &self.products {
            sum += slots.iter().map(|slot| row.get(*slot)).product::<f64>() * coefficient;
        }
        sum
    }
}

impl CategoricalPredictor {
    /// The coefficient of `value`; 0 if it is missing, or has none.
    #[allow(clippy::float_cmp)]
    fn coefficient(&self, value: f64) -> f64 {
        let index = self.coefficients.partition_point(|(known, _)| *known < value);
        match self.coefficients.get(index) {
            Some((known, coefficient)) if *known == value => *coefficient,
            _ => 0.0,
        }
    }
}

impl NormalizationMethod {
    fn read(element: XmlElement) -> Result<Self> {
        Ok(match element.attribute("normalizationMethod").unwrap_or("none") {
            "none" => NormalizationMethod::None,
            "simplemax" => NormalizationMethod::Simplemax,
            "softmax" => NormalizationMethod::Softmax,
            "logit" => NormalizationMethod::Logit,
            "probit" => NormalizationMethod::Probit,
            "cloglog" => NormalizationMethod::Cloglog,
            "exp" => NormalizationMethod::Exp,
            "loglog" => NormalizationMethod::Loglog,
            "cauchit" => NormalizationMethod::Cauchit,
            other => {
                let message = format!("normalizationMethod={other:?} is not valid");
                return Err(element.damaged(message));
            }
        })
    }

    /// The normalized value of a single sum that is a probability: a sum without normalization may be
    /// none.
    fn probability(self, sum: f64) -> f64 {
        let value = self.apply(sum);
        if self == NormalizationMethod::None { value.clamp(0.0, 1.0) } else { value }
    }

    /// The normalized value of a single sum.
    fn apply(self, sum: f64) -> f64 {
        match self {
            NormalizationMethod::None | NormalizationMethod::Simplemax => sum,
            NormalizationMethod::Softmax | NormalizationMethod::Logit => logistic(sum),
            NormalizationMethod::Probit => normal_cdf(sum),
            NormalizationMethod::Cloglog => inverse_cloglog(sum),
            NormalizationMethod::Exp => sum.exp(),
            NormalizationMethod::Loglog => inverse_loglog(sum),
            NormalizationMethod::Cauchit => inverse_cauchit(sum),
        }
    }
}

impl RegressionModel {
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        let Some(classes) = &self.classes else {
            let sum = self.tables.first().map_or(f64::NAN, |table| table.sum(row));
            return PmmlPrediction::number(self.normalization.apply(sum));
        };
        let count = classes.len();
        row.range(classes.slot, count).fill(0.0);
        for table in &self.tables {
            let sum = table.sum(row);
            if sum.is_nan() {
                return PmmlPrediction::MISSING;
            }
            row.set(classes.slot + table.class, sum);
        }
        self.make_probabilities(row.range(classes.slot, count));
        classes.most_probable(row)
    }

    /// Turns the sums of the classes into probabilities.
    fn make_probabilities(&self, sums: &mut [f64]) {
        if self.is_ordinal {
            return self.make_ordinal(sums);
        }
        match self.normalization {
            NormalizationMethod::Softmax => softmax(sums),
            NormalizationMethod::Simplemax => normalize(sums),
            NormalizationMethod::None
            | NormalizationMethod::Logit
            | NormalizationMethod::Probit
            | NormalizationMethod::Cloglog
            | NormalizationMethod::Exp
            | NormalizationMethod::Loglog
            | NormalizationMethod::Cauchit => self.make_independent(sums),
        }
    }

    /// Normalizes each sum by itself. The class of the last table gets the rest of the probability.
    fn make_independent(&self, sums: &mut [f64]) {
        let Some((last, others)) = self.tables.split_last() else {
            return;
        };
        let mut rest = 1.0;
        for table in others {
            if let Some(sum) = sums.get_mut(table.class as usize) {
                *sum = match others.len() {
                    1 => self.normalization.probability(*sum),
                    _ => self.normalization.apply(*sum),
                };
                rest -= *sum;
            }
        }
        if let Some(sum) = sums.get_mut(last.class as usize) {
            *sum = rest;
        }
    }

    /// Normalized sums are cumulative probabilities: the differences are those of the classes.
    fn make_ordinal(&self, sums: &mut [f64]) {
        let mut below = 0.0;
        let last = self.tables.len().saturating_sub(1);
        for (index, table) in self.tables.iter().enumerate() {
            if let Some(sum) = sums.get_mut(table.class as usize) {
                let cumulative =
                    if index == last { 1.0 } else { self.normalization.probability(*sum) };
                *sum = cumulative - below;
                below = cumulative;
            }
        }
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        let normalization = NormalizationMethod::read(element)?;
        let mut tables = Vec::new();
        for table in element.children_named("RegressionTable") {
            tables.push(read_table(builder, table, context)?);
        }
        let classes = context.classes.clone();
        check_tables(element, &tables, classes.as_ref())?;
        let target = schema::target_of(element).and_then(|name| builder.data_field(name));
        let is_ordinal = classes.is_some()
            && target.is_some_and(|field| field.attribute("optype") == Some("ordinal"));
        if classes.is_some() {
            check_normalization(element, normalization, is_ordinal, tables.len())?;
        }
        Ok(RegressionModel { tables: tables.into(), classes, normalization, is_ordinal })
    }
}

/// Checks that there is a table for the number, or one for each class.
fn check_tables(
    element: XmlElement,
    tables: &[RegressionTable],
    classes: Option<&TargetClasses>,
) -> Result<()> {
    let count = tables.len();
    let Some(classes) = classes else {
        return match count {
            1 => Ok(()),
            _ => Err(element.damaged(format!("has {count} RegressionTables instead of 1"))),
        };
    };
    let mut indices: Vec<u32> = tables.iter().map(|table| table.class).collect();
    indices.sort_unstable();
    indices.dedup();
    match indices.len() == count && count == classes.len() && count >= 2 {
        true => Ok(()),
        false => Err(element.damaged("needs one RegressionTable for each class")),
    }
}

/// Checks that the standard defines the normalization for `count` classes.
fn check_normalization(
    element: XmlElement,
    normalization: NormalizationMethod,
    is_ordinal: bool,
    count: usize,
) -> Result<()> {
    if is_ordinal {
        return match normalization {
            NormalizationMethod::Softmax | NormalizationMethod::Simplemax => {
                Err(element.unsupported("this normalizationMethod for an ordinal target"))
            }
            NormalizationMethod::None
            | NormalizationMethod::Logit
            | NormalizationMethod::Probit
            | NormalizationMethod::Cloglog
            | NormalizationMethod::Exp
            | NormalizationMethod::Loglog
            | NormalizationMethod::Cauchit => Ok(()),
        };
    }
    let is_defined = match normalization {
        NormalizationMethod::None
        | NormalizationMethod::Softmax
        | NormalizationMethod::Simplemax => true,
        NormalizationMethod::Exp => false,
        NormalizationMethod::Logit
        | NormalizationMethod::Probit
        | NormalizationMethod::Cloglog
        | NormalizationMethod::Loglog
        | NormalizationMethod::Cauchit => count == 2,
    };
    match is_defined {
        true => Ok(()),
        false => Err(element.unsupported(format!("this normalizationMethod for {count} classes"))),
    }
}

fn read_table(
    builder: &mut PmmlBuilder,
    element: XmlElement,
    context: &ModelContext,
) -> Result<RegressionTable> {
    let class = match &context.classes {
        None => 0,
        Some(classes) => classes.index_of(builder, element, element.required("targetCategory")?)?,
    };
    let (mut linear, mut powers) = (Vec::new(), Vec::new());
    for term in element.children_named("NumericPredictor") {
        let slot = numeric_slot(context, term, "name")?;
        let coefficient = term.required_number("coefficient")?;
        match term.attribute("exponent").map(str::trim).unwrap_or("1") {
            "1" => linear.push((slot, coefficient)),
            exponent => {
                let exponent = exponent.parse().map_err(|_| {
                    term.damaged(format!("exponent={exponent:?} is not an integer"))
                })?;
                powers.push((slot, exponent, coefficient));
            }
        }
    }
    let mut products = Vec::new();
    for term in element.children_named("PredictorTerm") {
        let mut slots = Vec::new();
        for factor in term.children_named("FieldRef") {
            slots.push(numeric_slot(context, factor, "field")?);
        }
        if slots.is_empty() {
            return Err(term.damaged("has no FieldRef"));
        }
        products.push((slots.into(), term.required_number("coefficient")?));
    }
    Ok(RegressionTable {
        intercept: element.required_number("intercept")?,
        class,
        linear: linear.into(),
        powers: powers.into(),
        categories: read_categories(builder, element, context)?,
        products: products.into(),
    })
}

fn read_categories(
    builder: &mut PmmlBuilder,
    element: XmlElement,
    context: &ModelContext,
) -> Result<Box<[CategoricalPredictor]>> {
    // Field, value and coefficient.
    let mut entries: Vec<(u32, f64, f64)> = Vec::new();
    for term in element.children_named("CategoricalPredictor") {
        let field = context.scope.field(term, "name")?;
        let value = builder.strings.constant(term, field.data_type, term.required("value")?)?;
        entries.push((field.slot, value, term.required_number("coefficient")?));
    }
    entries.sort_by(|(a, x, _), (b, y, _)| a.cmp(b).then(x.total_cmp(y)));
    let mut categories = Vec::new();
    for group in entries.chunk_by(|(a, ..), (b, ..)| a == b) {
        categories.push(CategoricalPredictor {
            slot: group.first().map_or(0, |(slot, ..)| *slot),
            coefficients: group.iter().map(|(_, value, factor)| (*value, *factor)).collect(),
        });
    }
    Ok(categories.into())
}

/// The slot of a field of numbers, or of booleans, which count as 0 and 1.
fn numeric_slot(context: &ModelContext, element: XmlElement, attribute: &str) -> Result<u32> {
    let field = context.scope.field(element, attribute)?;
    match field.data_type.kind {
        ValueKind::Number | ValueKind::Boolean => Ok(field.slot),
        ValueKind::Text | ValueKind::Date | ValueKind::Time | ValueKind::DateTime => {
            Err(element.damaged("needs a field of numbers"))
        }
    }
}
