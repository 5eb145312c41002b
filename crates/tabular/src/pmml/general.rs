//! General regression: sums of parameters, each of which is a product of what predictors are worth,
//! and the function that links a sum to what is predicted.

use std::collections::{HashMap, HashSet};

use super::field::{Kind, Row};
use super::model::{Classes, Place, Verdict};
use super::regression::{normal_cdf, softmax};
use super::schema::Builder;
use super::xml::Element;
use tensorserve_tensor::error::Result;

pub(super) struct General {
    parameters: Box<[Parameter]>,
    /// Where the worth of each parameter is left.
    worth: u32,
    sums: Box<[Sum]>,
    link: Link,
    classes: Option<Classes>,
    /// The class that has no sum of its own.
    reference: u32,
}

struct Parameter {
    factors: Box<[Factor]>,
}

enum Factor {
    /// 1 for this value, else 0.
    Is {
        slot: u32,
        value: f64,
    },
    Power {
        slot: u32,
        exponent: f64,
    },
}

impl Factor {
    #[allow(clippy::float_cmp)] // Values of categories.
    fn of(&self, row: &Row) -> f64 {
        match self {
            Factor::Is { slot, value } => match row.get(*slot) {
                missing if missing.is_nan() => missing,
                given => f64::from(u8::from(given == *value)),
            },
            Factor::Power { slot, exponent } => match row.get(*slot) {
                missing if missing.is_nan() => missing,
                given if *exponent == 1.0 => given,
                given => given.powf(*exponent),
            },
        }
    }
}

/// The number of a class, and of the parameters with their coefficients.
type Sum = (u32, Box<[(u32, f64)]>);

/// What a sum is to what is predicted.
#[derive(Clone, Copy, Debug)]
enum Link {
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

impl Link {
    fn of(element: Element) -> Result<Self> {
        let parameter = |name: &str| element.need_number(name);
        Ok(match element.attribute("linkFunction") {
            None | Some("identity") => Link::Identity,
            Some("log") => Link::Log,
            Some("logc") => Link::Logc,
            Some("logit") => Link::Logit,
            Some("probit") => Link::Probit,
            Some("cloglog") => Link::Cloglog,
            Some("loglog") => Link::Loglog,
            Some("cauchit") => Link::Cauchit,
            Some("inverse") => Link::Power(-1.0),
            Some("power") => Link::Power(parameter("linkParameter")?),
            Some("oddspower") => Link::OddsPower(parameter("linkParameter")?),
            Some("negbin") => Link::NegativeBinomial(parameter("distParameter")?),
            Some(other) => {
                return Err(element.damaged(format!("linkFunction={other:?} is not known")));
            }
        })
    }

    /// What is predicted for a sum.
    fn undo(self, sum: f64) -> f64 {
        match self {
            Link::Identity => sum,
            Link::Log => sum.exp(),
            Link::Logc => 1.0 - sum.exp(),
            Link::Logit => 1.0 / (1.0 + (-sum).exp()),
            Link::Probit => normal_cdf(sum),
            Link::Cloglog => 1.0 - (-sum.exp()).exp(),
            Link::Loglog => (-(-sum).exp()).exp(),
            Link::Cauchit => 0.5 + sum.atan() / std::f64::consts::PI,
            Link::Power(0.0) => sum.exp(),
            Link::Power(power) => sum.powf(1.0 / power),
            Link::OddsPower(0.0) => 1.0 / (1.0 + (-sum).exp()),
            Link::OddsPower(power) => 1.0 / (1.0 + (1.0 + power * sum).powf(-1.0 / power)),
            Link::NegativeBinomial(shape) => 1.0 / (shape * ((-sum).exp() - 1.0)),
        }
    }
}

impl General {
    pub(super) fn score(&self, row: &mut Row) -> Verdict {
        for (slot, parameter) in (self.worth..).zip(&self.parameters) {
            let worth: f64 = parameter.factors.iter().map(|factor| factor.of(row)).product();
            row.set(slot, worth);
        }
        let Some(classes) = &self.classes else {
            let sum = self.sums.first().map_or(f64::NAN, |(_, terms)| self.sum(terms, row));
            return Verdict::number(self.link.undo(sum));
        };
        row.range(classes.slot, classes.len()).fill(0.0);
        for (class, terms) in &self.sums {
            let sum = self.sum(terms, row);
            if sum.is_nan() {
                return Verdict::MISSING;
            }
            row.set(classes.slot.saturating_add(*class), sum);
        }
        let probabilities = row.range(classes.slot, classes.len());
        match (&*self.sums, self.link) {
            ([(class, _)], link) if !matches!(link, Link::Identity) => {
                let one =
                    probabilities.get(*class as usize).map_or(f64::NAN, |sum| link.undo(*sum));
                for (place, probability) in [(*class, one), (self.reference, 1.0 - one)] {
                    if let Some(slot) = probabilities.get_mut(place as usize) {
                        *slot = probability;
                    }
                }
            }
            _ => softmax(probabilities),
        }
        classes.likeliest(row)
    }

    fn sum(&self, terms: &[(u32, f64)], row: &Row) -> f64 {
        let worth = |number: u32| row.get(self.worth.saturating_add(number));
        terms.iter().map(|(number, coefficient)| coefficient * worth(*number)).sum()
    }

    pub(super) fn read<'d>(
        builder: &mut Builder<'d>,
        element: Element<'d>,
        place: &Place,
    ) -> Result<Self> {
        let kind = element.need("modelType")?;
        let link = match (kind, place.classes.is_some()) {
            ("regression" | "generalLinear", false) | ("multinomialLogistic", true) => {
                Link::Identity
            }
            ("generalizedLinear", is_class) => {
                let link = Link::of(element)?;
                if is_class && matches!(link, Link::Identity) {
                    return Err(element.unsupported("classes without a linkFunction"));
                }
                link
            }
            _ => return Err(element.unsupported(format!("modelType={kind:?}"))),
        };
        for name in ["offsetVariable", "offsetValue", "trialsVariable", "trialsValue"] {
            if element.attribute(name).is_some() {
                return Err(element.unsupported(format!("the attribute {name}")));
            }
        }
        let (parameters, numbers) = read_parameters(builder, element, place)?;
        let (sums, reference) = read_sums(builder, element, place, &numbers)?;
        let worth = builder.slots(element, parameters.len())?;
        let classes = place.classes.clone();
        Ok(General { parameters, worth, sums, link, classes, reference })
    }
}

type Parameters<'d> = (Box<[Parameter]>, HashMap<&'d str, u32>);

/// The parameters, and the number of each by its name.
fn read_parameters<'d>(
    builder: &mut Builder<'d>,
    element: Element<'d>,
    place: &Place,
) -> Result<Parameters<'d>> {
    let mut numbers = HashMap::new();
    let mut factors: Vec<Vec<Factor>> = Vec::new();
    for (number, parameter) in (0u32..).zip(element.need_child("ParameterList")?.all("Parameter")) {
        numbers.insert(parameter.need("name")?, number);
        factors.push(Vec::new());
    }
    let mut categorical = HashSet::new();
    for predictor in element.child("FactorList").into_iter().flat_map(|list| list.all("Predictor"))
    {
        if predictor.child("Categories").is_some()
            || predictor.attribute("contrastMatrixType").is_some()
        {
            return Err(predictor.unsupported("contrasts of a factor"));
        }
        categorical.insert(predictor.need("name")?);
    }
    for cell in element.child("PPMatrix").into_iter().flat_map(|matrix| matrix.all("PPCell")) {
        if cell.attribute("targetCategory").is_some() {
            return Err(cell.unsupported("a cell for one class"));
        }
        let field = place.scope.field(cell, "predictorName")?;
        let slot = field.slot;
        let text = cell.need("value")?;
        let factor = if categorical.contains(cell.need("predictorName")?) {
            let value = builder.symbols.constant(cell, field.kind, field.single, text)?;
            Factor::Is { slot, value }
        } else if field.kind == Kind::Text {
            return Err(cell.damaged("needs a field of numbers"));
        } else {
            Factor::Power { slot, exponent: cell.need_number("value")? }
        };
        let number = parameter(&numbers, cell)?;
        if let Some(factors) = factors.get_mut(number as usize) {
            factors.push(factor);
        }
    }
    let parameters = factors.into_iter().map(|factors| Parameter { factors: factors.into() });
    Ok((parameters.collect(), numbers))
}

fn parameter(numbers: &HashMap<&str, u32>, element: Element) -> Result<u32> {
    let name = element.need("parameterName")?;
    let number = numbers.get(name).copied();
    number.ok_or_else(|| element.damaged(format!("no parameter is called {name:?}")))
}

type Sums = (Box<[Sum]>, u32);

/// The sums, and the class without one.
fn read_sums<'d>(
    builder: &mut Builder<'d>,
    element: Element<'d>,
    place: &Place,
    numbers: &HashMap<&'d str, u32>,
) -> Result<Sums> {
    let matrix = element.need_child("ParamMatrix")?;
    let mut sums: Vec<(u32, Vec<(u32, f64)>)> = Vec::new();
    let mut places = HashMap::new();
    for cell in matrix.all("PCell") {
        let class = match (&place.classes, cell.attribute("targetCategory")) {
            (None, _) => 0,
            (Some(classes), Some(text)) => classes.number(builder, cell, text)?,
            (Some(_), None) => return Err(cell.unsupported("a cell for all classes")),
        };
        let at = *places.entry(class).or_insert_with(|| {
            sums.push((class, Vec::new()));
            sums.len() - 1
        });
        let term = (parameter(numbers, cell)?, cell.need_number("beta")?);
        if let Some((_, terms)) = sums.get_mut(at) {
            terms.push(term);
        }
    }
    let count = sums.len();
    let reference = match &place.classes {
        None if count == 1 => 0,
        Some(classes) if count > 0 && count + 1 == classes.len() => {
            let taken = |class: &u32| places.contains_key(class);
            (0..).find(|class| !taken(class)).unwrap_or(0)
        }
        _ => return Err(matrix.unsupported("another number of sums than of classes but one")),
    };
    let sums = sums.into_iter().map(|(class, terms)| (class, terms.into()));
    Ok((sums.collect(), reference))
}
