//! `GeneralRegressionModel`: sums of parameters, each of which is a product of predictors, and the
//! function that links a sum to the prediction.

use std::collections::{HashMap, HashSet};

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ModelContext;
use super::field::{PmmlRow, ValueKind, indicator};
use super::numeric::{
    inverse_cauchit, inverse_cloglog, inverse_loglog, logistic, normal_cdf, softmax,
};
use super::prediction::PmmlPrediction;
use super::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct GeneralRegression {
    parameters: Box<[RegressionParameter]>,
    /// The slot of the value of the first parameter; those of the others follow.
    first_value: u32,
    sums: Box<[LinearPredictor]>,
    link: LinkFunction,
    classes: Option<TargetClasses>,
    /// The index of the class without a sum.
    reference: u32,
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
    fn read(element: XmlElement) -> Result<Self> {
        Ok(match element.attribute("linkFunction") {
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
                return Err(element.damaged(format!("linkFunction={other:?} is not valid")));
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
            let sum = self.sums.first().map_or(f64::NAN, |sum| self.sum(sum, row));
            return PmmlPrediction::number(self.link.inverse(sum));
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
        terms.sum()
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        let link = read_link(element, context.classes.is_some())?;
        for name in ["offsetVariable", "offsetValue", "trialsVariable", "trialsValue"] {
            if element.attribute(name).is_some() {
                return Err(element.unsupported(format!("the attribute {name}")));
            }
        }
        let names = ParameterNames::read(element)?;
        let parameters = read_parameters(builder, element, context, &names)?;
        let (sums, reference) = read_sums(builder, element, context, &names)?;
        let first_value = builder.allocate_slots(element, parameters.len())?;
        let classes = context.classes.clone();
        Ok(GeneralRegression { parameters, first_value, sums, link, classes, reference })
    }
}

/// Reads the link function of a model of this `modelType`.
fn read_link(element: XmlElement, is_classification: bool) -> Result<LinkFunction> {
    let model_type = element.required("modelType")?;
    match (model_type, is_classification) {
        ("regression" | "generalLinear", false) | ("multinomialLogistic", true) => {
            Ok(LinkFunction::Identity)
        }
        ("generalizedLinear", _) => {
            let link = LinkFunction::read(element)?;
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
}

impl<'d> ParameterNames<'d> {
    fn read(element: XmlElement<'d>) -> Result<Self> {
        let mut names = ParameterNames { indices: HashMap::new(), count: 0 };
        let list = element.required_child("ParameterList")?;
        for (index, parameter) in (0u32..).zip(list.children_named("Parameter")) {
            names.indices.insert(parameter.required("name")?, index);
            names.count += 1;
        }
        Ok(names)
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
    let categorical = read_categorical(element)?;
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
        let factor = if categorical.contains(cell.required("predictorName")?) {
            let value = builder.strings.constant(cell, field.data_type, text)?;
            PredictorFactor::Indicator { slot, value }
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

/// The names of the categorical predictors.
fn read_categorical<'d>(element: XmlElement<'d>) -> Result<HashSet<&'d str>> {
    let mut categorical = HashSet::new();
    let lists = element.child("FactorList").into_iter();
    for predictor in lists.flat_map(|list| list.children_named("Predictor")) {
        if predictor.child("Categories").is_some()
            || predictor.attribute("contrastMatrixType").is_some()
        {
            return Err(predictor.unsupported("a contrast matrix"));
        }
        categorical.insert(predictor.required("name")?);
    }
    Ok(categorical)
}

/// Reads the sums, and the index of the class without one.
fn read_sums<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    context: &ModelContext,
    names: &ParameterNames<'d>,
) -> Result<(Box<[LinearPredictor]>, u32)> {
    let matrix = element.required_child("ParamMatrix")?;
    // The class and the terms of each sum, and the index of each class's sum.
    let mut sums: Vec<(u32, Vec<(u32, f64)>)> = Vec::new();
    let mut positions: HashMap<u32, usize> = HashMap::new();
    for cell in matrix.children_named("PCell") {
        let class = match (&context.classes, cell.attribute("targetCategory")) {
            (None, _) => 0,
            (Some(classes), Some(name)) => classes.index_of(builder, cell, name)?,
            (Some(_), None) => return Err(cell.unsupported("a PCell without a targetCategory")),
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
            let message =
                format!("a ParamMatrix with {count} sums, not one for each class but one,");
            return Err(matrix.unsupported(message));
        }
    };
    let sums = sums.into_iter();
    let sums = sums.map(|(class, terms)| LinearPredictor { class, terms: terms.into() });
    Ok((sums.collect(), reference))
}
