//! `GeneralRegressionModel`: sums of parameters, each of which is a product of predictors, and the
//! function that links a sum to the prediction.

use std::collections::HashMap;

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ModelContext;
use super::cox::BaselineHazard;
use super::field::{ValueKind, indicator};
use super::numeric::{
    inverse_cauchit, inverse_cloglog, inverse_loglog, logistic, normal_cdf, softmax,
};
use super::prediction::PmmlPrediction;
use super::row::PmmlRow;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct GeneralRegression {
    parameters: Box<[RegressionParameter]>,
    /// The slot of the value of the first parameter; those of the others follow.
    first_value: u32,
    sums: Box<[LinearPredictor]>,
    link: LinkFunction,
    kind: GeneralKind,
    classes: Option<TargetClasses>,
    /// The index of the class without a sum.
    reference: u32,
    /// What is added to each sum.
    offset: Option<Quantity>,
    /// What the prediction of a number is multiplied by.
    trials: Option<Quantity>,
}

/// What is made of the sums.
enum GeneralKind {
    /// A number, or the probabilities of classes.
    Linked,
    /// Cumulative probabilities of ordered classes.
    Ordinal,
    /// The risk relative to a baseline, whose sum is the second field.
    Cox(Box<BaselineHazard>, f64),
}

/// A constant, or the value of a field.
enum Quantity {
    Constant(f64),
    Field(u32),
}

impl Quantity {
    fn value(&self, row: &PmmlRow) -> f64 {
        match self {
            Quantity::Constant(value) => *value,
            Quantity::Field(slot) => row.get(*slot),
        }
    }

    /// Reads the quantity that an attribute of `element` names, or that another has.
    fn read(
        element: XmlElement,
        context: &ModelContext,
        variable: &str,
        value: &str,
    ) -> Result<Option<Self>> {
        if element.attribute(variable).is_some() {
            return Ok(Some(Quantity::Field(context.scope.field(element, variable)?.slot)));
        }
        Ok(element.number(value)?.map(Quantity::Constant))
    }
}

/// A parameter: the product of its factors; 1 without any.
struct RegressionParameter {
    factors: Box<[PredictorFactor]>,
}

enum PredictorFactor {
    /// 1 if the field has this value, else 0.
    Indicator {
        slot: u32,
        value: f64,
    },
    Power {
        slot: u32,
        exponent: f64,
    },
    /// The number that a contrast matrix has for the value of the field; the values are sorted.
    Contrast {
        slot: u32,
        numbers: Box<[(f64, f64)]>,
    },
}

impl PredictorFactor {
    #[allow(clippy::float_cmp)] // Categories.
    fn value(&self, row: &PmmlRow) -> f64 {
        match self {
            PredictorFactor::Indicator { slot, value } => match row.get(*slot) {
                missing if missing.is_nan() => missing,
                field => indicator(field == *value),
            },
            PredictorFactor::Power { slot, exponent } => match row.get(*slot) {
                missing if missing.is_nan() => missing,
                field if *exponent == 1.0 => field,
                field => field.powf(*exponent),
            },
            PredictorFactor::Contrast { slot, numbers } => {
                let value = row.get(*slot);
                let place = numbers.binary_search_by(|(known, _)| known.total_cmp(&value));
                place
                    .ok()
                    .and_then(|place| numbers.get(place))
                    .map_or(f64::NAN, |(_, number)| *number)
            }
        }
    }
}

/// The sum of parameters for the number or for a class.
struct LinearPredictor {
    /// The index of the class.
    class: u32,
    /// The index of each parameter, and its coefficient.
    terms: Box<[(u32, f64)]>,
}

/// How the sum is linked to the prediction: `linkFunction`.
#[derive(Clone, Copy, Debug)]
enum LinkFunction {
    Identity,
    Log,
    Logc,
    Logit,
    Probit,
    Cloglog,
    Loglog,
    Cauchit,
    Power(f64),
    OddsPower(f64),
    NegativeBinomial(f64),
}

impl LinkFunction {
    fn read(element: XmlElement, attribute: &str) -> Result<Self> {
        Ok(match element.attribute(attribute) {
            None | Some("identity") => LinkFunction::Identity,
            Some("log") => LinkFunction::Log,
            Some("logc") => LinkFunction::Logc,
            Some("logit") => LinkFunction::Logit,
            Some("probit") => LinkFunction::Probit,
            Some("cloglog") => LinkFunction::Cloglog,
            Some("loglog") => LinkFunction::Loglog,
            Some("cauchit") => LinkFunction::Cauchit,
            Some("inverse") => LinkFunction::Power(-1.0),
            Some("power") => LinkFunction::Power(element.required_number("linkParameter")?),
            Some("oddspower") => LinkFunction::OddsPower(element.required_number("linkParameter")?),
            Some("negbin") => {
                LinkFunction::NegativeBinomial(element.required_number("distParameter")?)
            }
            Some(other) => {
                return Err(element.damaged(format!("{attribute}={other:?} is not valid")));
            }
        })
    }

    /// The prediction for a sum.
    fn inverse(self, sum: f64) -> f64 {
        match self {
            LinkFunction::Identity => sum,
            LinkFunction::Log | LinkFunction::Power(0.0) => sum.exp(),
            LinkFunction::Logc => 1.0 - sum.exp(),
            LinkFunction::Logit | LinkFunction::OddsPower(0.0) => logistic(sum),
            LinkFunction::Probit => normal_cdf(sum),
            LinkFunction::Cloglog => inverse_cloglog(sum),
            LinkFunction::Loglog => inverse_loglog(sum),
            LinkFunction::Cauchit => inverse_cauchit(sum),
            LinkFunction::Power(power) => sum.powf(1.0 / power),
            LinkFunction::OddsPower(power) => 1.0 / (1.0 + (1.0 + power * sum).powf(-1.0 / power)),
            LinkFunction::NegativeBinomial(shape) => 1.0 / (shape * ((-sum).exp() - 1.0)),
        }
    }
}

impl GeneralRegression {
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        for (slot, parameter) in (self.first_value..).zip(&self.parameters) {
            let value: f64 = parameter.factors.iter().map(|factor| factor.value(row)).product();
            row.set(slot, value);
        }
        let Some(classes) = &self.classes else {
            return PmmlPrediction::number(self.number(row));
        };
        row.range(classes.slot, classes.len()).fill(0.0);
        for predictor in &self.sums {
            let sum = self.sum(predictor, row);
            if sum.is_nan() {
                return PmmlPrediction::MISSING;
            }
            row.set(classes.slot.saturating_add(predictor.class), sum);
        }
        let probabilities = row.range(classes.slot, classes.len());
        if let GeneralKind::Ordinal = self.kind {
            self.make_ordinal(probabilities);
            return classes.most_probable(row);
        }
        match &*self.sums {
            [predictor] if !matches!(self.link, LinkFunction::Identity) => {
                let sum = probabilities.get(predictor.class as usize);
                let probability = sum.map_or(f64::NAN, |sum| self.link.inverse(*sum));
                let both = [(predictor.class, probability), (self.reference, 1.0 - probability)];
                for (class, probability) in both {
                    if let Some(place) = probabilities.get_mut(class as usize) {
                        *place = probability;
                    }
                }
            }
            _ => softmax(probabilities),
        }
        classes.most_probable(row)
    }

    fn sum(&self, predictor: &LinearPredictor, row: &PmmlRow) -> f64 {
        let terms = predictor.terms.iter().map(|(parameter, coefficient)| {
            coefficient * row.get(self.first_value.saturating_add(*parameter))
        });
        let offset = self.offset.as_ref().map_or(0.0, |offset| offset.value(row));
        terms.sum::<f64>() + offset
    }

    /// The prediction of a number.
    fn number(&self, row: &PmmlRow) -> f64 {
        let sum = self.sums.first().map_or(f64::NAN, |sum| self.sum(sum, row));
        if let GeneralKind::Cox(baseline, reference) = &self.kind {
            // Before the first event there is no risk, whatever else is missing.
            return match baseline.at(row) {
                0.0 => 0.0,
                hazard => (sum - reference).exp() * hazard,
            };
        }
        let trials = self.trials.as_ref().map_or(1.0, |trials| trials.value(row));
        self.link.inverse(sum) * trials
    }

    /// Turns sums into cumulative probabilities, and their differences into probabilities.
    fn make_ordinal(&self, sums: &mut [f64]) {
        let mut below = 0.0;
        let last = sums.len().saturating_sub(1);
        for (index, sum) in sums.iter_mut().enumerate() {
            let cumulative = if index == last { 1.0 } else { self.link.inverse(*sum) };
            *sum = cumulative - below;
            below = cumulative;
        }
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        let link = read_link(element, context.classes.is_some())?;
        let names = ParameterNames::read(element)?;
        let parameters = read_parameters(builder, element, context, &names)?;
        let model_type = element.required("modelType")?;
        let is_ordinal = model_type == "ordinalMultinomial";
        let (sums, reference) = read_sums(builder, element, context, &names, is_ordinal)?;
        let kind = match model_type {
            "ordinalMultinomial" => GeneralKind::Ordinal,
            "CoxRegression" => {
                let hazard = BaselineHazard::read(builder, element, context)?;
                GeneralKind::Cox(Box::new(hazard), names.reference(&sums))
            }
            _ => GeneralKind::Linked,
        };
        let first_value = builder.allocate_slots(element, parameters.len())?;
        let classes = context.classes.clone();
        let offset = Quantity::read(element, context, "offsetVariable", "offsetValue")?;
        let trials = Quantity::read(element, context, "trialsVariable", "trialsValue")?;
        Ok(GeneralRegression {
            parameters,
            first_value,
            sums,
            link,
            kind,
            classes,
            reference,
            offset,
            trials,
        })
    }
}

/// Reads the link function of a model of this `modelType`.
fn read_link(element: XmlElement, is_classification: bool) -> Result<LinkFunction> {
    let model_type = element.required("modelType")?;
    match (model_type, is_classification) {
        ("regression" | "generalLinear" | "CoxRegression", false)
        | ("multinomialLogistic", true) => Ok(LinkFunction::Identity),
        ("ordinalMultinomial", true) => match element.attribute("cumulativeLink") {
            None => Ok(LinkFunction::Logit),
            Some(_) => LinkFunction::read(element, "cumulativeLink"),
        },
        ("generalizedLinear", _) => {
            let link = LinkFunction::read(element, "linkFunction")?;
            if is_classification && matches!(link, LinkFunction::Identity) {
                return Err(element.unsupported("a classification without a linkFunction"));
            }
            Ok(link)
        }
        _ => Err(element.unsupported(format!("modelType={model_type:?}"))),
    }
}

/// The parameters of a model.
struct ParameterNames<'d> {
    indices: HashMap<&'d str, u32>,
    count: usize,
    /// The reference point of each.
    points: Vec<f64>,
}

impl<'d> ParameterNames<'d> {
    fn read(element: XmlElement<'d>) -> Result<Self> {
        let mut names = ParameterNames { indices: HashMap::new(), count: 0, points: Vec::new() };
        let list = element.required_child("ParameterList")?;
        for (index, parameter) in (0u32..).zip(list.children_named("Parameter")) {
            names.indices.insert(parameter.required("name")?, index);
            names.count += 1;
            names.points.push(parameter.number_or("referencePoint", 0.0)?);
        }
        Ok(names)
    }

    /// The first sum for the reference points.
    fn reference(&self, sums: &[LinearPredictor]) -> f64 {
        let terms = sums.first().map(|sum| sum.terms.iter()).into_iter().flatten();
        let products = terms.map(|(parameter, coefficient)| {
            coefficient * self.points.get(*parameter as usize).copied().unwrap_or(0.0)
        });
        products.sum()
    }

    /// The index of the parameter that `element` refers to.
    fn index_of(&self, element: XmlElement) -> Result<u32> {
        let name = element.required("parameterName")?;
        let index = self.indices.get(name).copied();
        index.ok_or_else(|| element.damaged(format!("the parameter {name:?} is not declared")))
    }
}

fn read_parameters<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    context: &ModelContext,
    names: &ParameterNames<'d>,
) -> Result<Box<[RegressionParameter]>> {
    let categorical = read_categorical(builder, element, context)?;
    let mut factors: Vec<Vec<PredictorFactor>> = Vec::new();
    factors.resize_with(names.count, Vec::new);
    let cells = element.child("PPMatrix").into_iter();
    for cell in cells.flat_map(|matrix| matrix.children_named("PPCell")) {
        if cell.attribute("targetCategory").is_some() {
            return Err(cell.unsupported("a PPCell with a targetCategory"));
        }
        let field = context.scope.field(cell, "predictorName")?;
        let slot = field.slot;
        let text = cell.required("value")?;
        let name = cell.required("predictorName")?;
        let factor = if let Some(contrast) = categorical.get(name) {
            let value = builder.strings.constant(cell, field.data_type, text)?;
            match contrast {
                None => PredictorFactor::Indicator { slot, value },
                Some(matrix) => {
                    builder.count_probabilities(cell, matrix.categories.len())?;
                    PredictorFactor::Contrast { slot, numbers: matrix.column(cell, value)? }
                }
            }
        } else if field.data_type.kind == ValueKind::Text {
            return Err(cell.damaged("needs a field of numbers"));
        } else {
            PredictorFactor::Power { slot, exponent: cell.required_number("value")? }
        };
        let parameter = names.index_of(cell)?;
        if let Some(factors) = factors.get_mut(parameter as usize) {
            factors.push(factor);
        }
    }
    let parameters = factors.into_iter();
    Ok(parameters.map(|factors| RegressionParameter { factors: factors.into() }).collect())
}

/// A contrast matrix: the number of each category, for each column.
struct ContrastMatrix {
    categories: Vec<f64>,
    /// The numbers of each category.
    lines: Vec<Vec<f64>>,
}

/// The names of the categorical predictors, with the contrast matrices of those that have one.
fn read_categorical<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    context: &ModelContext,
) -> Result<HashMap<&'d str, Option<ContrastMatrix>>> {
    let mut categorical = HashMap::new();
    let lists = element.child("FactorList").into_iter();
    for predictor in lists.flat_map(|list| list.children_named("Predictor")) {
        let matrix = match predictor.child("Matrix") {
            Some(matrix) => Some(ContrastMatrix::read(builder, predictor, matrix, context)?),
            None if predictor.attribute("contrastMatrixType").is_some() => {
                return Err(predictor.unsupported("a contrast without its matrix"));
            }
            None => None,
        };
        categorical.insert(predictor.required("name")?, matrix);
    }
    Ok(categorical)
}

impl ContrastMatrix {
    fn read(
        builder: &mut PmmlBuilder,
        predictor: XmlElement,
        matrix: XmlElement,
        context: &ModelContext,
    ) -> Result<Self> {
        let data_type = context.scope.field(predictor, "name")?.data_type;
        let (mut categories, mut lines) = (Vec::new(), Vec::new());
        let list = predictor.required_child("Categories")?;
        for category in list.children_named("Category") {
            let text = category.required("value")?;
            categories.push(builder.strings.constant(category, data_type, text)?);
        }
        for line in matrix.children_named("Array") {
            lines.push(line.numbers()?);
        }
        match lines.len() == categories.len() {
            true => Ok(ContrastMatrix { categories, lines }),
            false => Err(matrix.damaged("needs an Array for each Category")),
        }
    }

    /// The numbers in the column of the category `value`, by category.
    fn column(&self, cell: XmlElement, value: f64) -> Result<Box<[(f64, f64)]>> {
        let mut known = self.categories.iter();
        let column = known.position(|known| known.to_bits() == value.to_bits());
        let mut numbers = Vec::new();
        for (category, line) in self.categories.iter().zip(&self.lines) {
            let number = column.and_then(|column| line.get(column).copied());
            let number =
                number.ok_or_else(|| cell.damaged("names no column of the contrast matrix"))?;
            numbers.push((*category, number));
        }
        numbers.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Ok(numbers.into())
    }
}

/// Reads the sums, and the index of the class without one.
fn read_sums<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    context: &ModelContext,
    names: &ParameterNames<'d>,
    is_ordinal: bool,
) -> Result<(Box<[LinearPredictor]>, u32)> {
    let matrix = element.required_child("ParamMatrix")?;
    // The class and the terms of each sum, and the index of each class's sum.
    let mut sums: Vec<(u32, Vec<(u32, f64)>)> = Vec::new();
    let mut positions: HashMap<u32, usize> = HashMap::new();
    // The terms of all sums.
    let mut common: Vec<(u32, f64)> = Vec::new();
    for cell in matrix.children_named("PCell") {
        let class = match (&context.classes, cell.attribute("targetCategory")) {
            (None, _) => 0,
            (Some(classes), Some(name)) => classes.index_of(builder, cell, name)?,
            (Some(classes), None) if !is_ordinal && classes.len() == 2 => {
                only_class(builder, element, classes)?
            }
            (Some(_), None) => {
                common.push((names.index_of(cell)?, cell.required_number("beta")?));
                continue;
            }
        };
        let position = *positions.entry(class).or_insert_with(|| {
            sums.push((class, Vec::new()));
            sums.len() - 1
        });
        let term = (names.index_of(cell)?, cell.required_number("beta")?);
        if let Some((_, terms)) = sums.get_mut(position) {
            terms.push(term);
        }
    }
    let count = sums.len();
    let reference = match &context.classes {
        None if count == 1 => 0,
        Some(classes) if count > 0 && count + 1 == classes.len() => {
            (0..).find(|class| !positions.contains_key(class)).unwrap_or(0)
        }
        _ => {
            let message = match &context.classes {
                None => format!("a ParamMatrix with {count} sums in place of one"),
                Some(classes) => format!(
                    "a ParamMatrix with {count} sums for {} classes, in place of one for each class except \
                     the reference,",
                    classes.len()
                ),
            };
            return Err(matrix.unsupported(message));
        }
    };
    if is_ordinal && usize::try_from(reference).is_ok_and(|class| class != count) {
        return Err(matrix.unsupported("an ordinal model whose last class has a sum"));
    }
    let sums = sums.into_iter().map(|(class, mut terms)| {
        terms.extend(&common);
        LinearPredictor { class, terms: terms.into() }
    });
    Ok((sums.collect(), reference))
}

/// Of two classes, the one that is not the reference.
fn only_class<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    classes: &TargetClasses,
) -> Result<u32> {
    match element.attribute("targetReferenceCategory") {
        Some(name) => Ok(1 - classes.index_of(builder, element, name)?.min(1)),
        None => Ok(0),
    }
}
