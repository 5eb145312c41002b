//! `NaiveBayesModel`: the prior of each class, times the likelihood of each input.

use std::collections::HashMap;

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ModelContext;
use super::expression::Expression;
use super::field::{MISSING, PmmlType};
use super::numeric::{normal_pdf, softmax};
use super::prediction::PmmlPrediction;
use super::reader;
use super::row::PmmlRow;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::Result;

pub(super) struct NaiveBayes {
    inputs: Box<[BayesInput]>,
    /// The logarithm of the prior of each class.
    priors: Box<[f64]>,
    /// The likelihood in place of a count of 0, and of a smaller density.
    threshold: f64,
    classes: TargetClasses,
}

struct BayesInput {
    source: BayesSource,
    likelihoods: Likelihoods,
    /// Whether the threshold takes the place of smaller densities. Else, as in R, only of 0.
    is_clipped: bool,
}

enum BayesSource {
    Field(u32),
    Derived(Expression),
}

enum Likelihoods {
    /// The likelihoods of each value in the classes, by the bits of the value.
    Discrete(HashMap<u64, Box<[f64]>>),
    /// The distribution in each class.
    Continuous(Box<[Distribution]>),
}

#[derive(Clone, Copy, Debug)]
enum Distribution {
    Gaussian { mean: f64, deviation: f64 },
    Poisson { mean: f64 },
}

impl Distribution {
    fn density(self, x: f64) -> f64 {
        match self {
            Distribution::Gaussian { mean, deviation } => {
                normal_pdf((x - mean) / deviation) / deviation
            }
            Distribution::Poisson { mean } => poisson(mean, x),
        }
    }

    fn read(element: XmlElement) -> Result<Self> {
        if let Some(gaussian) = element.child("GaussianDistribution") {
            let mean = gaussian.required_number("mean")?;
            let deviation = gaussian.required_number("variance")?.sqrt();
            return Ok(Distribution::Gaussian { mean, deviation });
        }
        if let Some(poisson) = element.child("PoissonDistribution") {
            return Ok(Distribution::Poisson { mean: poisson.required_number("mean")? });
        }
        Err(element.unsupported("a distribution that is neither Gaussian nor Poisson"))
    }
}

/// The largest count whose factorial is computed.
const MAX_COUNT: f64 = 170.0;

/// The probability of the count `x`.
fn poisson(mean: f64, x: f64) -> f64 {
    if !(0.0..=MAX_COUNT).contains(&x) || x.fract() != 0.0 {
        return 0.0;
    }
    let mut probability = (-mean).exp();
    let mut count = 1.0;
    while count <= x {
        probability *= mean / count;
        count += 1.0;
    }
    probability
}

impl NaiveBayes {
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        row.range(self.classes.slot, self.classes.len()).copy_from_slice(&self.priors);
        for input in &self.inputs {
            let value = match &input.source {
                BayesSource::Field(slot) => row.get(*slot),
                BayesSource::Derived(expression) => expression.value(row),
            };
            if value.is_nan() {
                continue;
            }
            let sums = row.range(self.classes.slot, self.classes.len());
            match &input.likelihoods {
                Likelihoods::Discrete(values) => {
                    // Nothing is known of other values.
                    let Some(known) = values.get(&key(value)) else { continue };
                    for (sum, likelihood) in sums.iter_mut().zip(known) {
                        let is_known = *likelihood > 0.0;
                        *sum += if is_known { *likelihood } else { self.threshold }.ln();
                    }
                }
                Likelihoods::Continuous(distributions) => {
                    for (sum, distribution) in sums.iter_mut().zip(distributions) {
                        let density = distribution.density(value);
                        let is_small = density < self.threshold;
                        let is_replaced = if input.is_clipped { is_small } else { density <= 0.0 };
                        *sum += if is_replaced { self.threshold } else { density }.ln();
                    }
                }
            }
        }
        softmax(row.range(self.classes.slot, self.classes.len()));
        self.classes.most_probable(row)
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        let Some(classes) = context.classes.clone() else {
            return Err(element.damaged("functionName must be \"classification\""));
        };
        let output = element.required_child("BayesOutput")?;
        let counts = read_counts(builder, output.required_child("TargetValueCounts")?, &classes)?;
        let threshold = element.required_number("threshold")?;
        let mut inputs = Vec::new();
        let all = element.required_child("BayesInputs")?;
        for input in all.children_named("BayesInput") {
            inputs.push(read_input(builder, input, context, &classes, &counts)?);
        }
        // Before 4.2, R wrote inputs with distributions as extensions.
        let extensions = all.descendants().filter(|inside| inside.name() == "Extension");
        for input in extensions.flat_map(|extension| extension.children_named("BayesInput")) {
            let input = read_input(builder, input, context, &classes, &counts)?;
            inputs.push(BayesInput { is_clipped: false, ..input });
        }
        Ok(NaiveBayes {
            inputs: inputs.into(),
            priors: counts.iter().map(|count| count.ln()).collect(),
            threshold,
            classes,
        })
    }
}

/// A value as a key: negative zero equals zero.
fn key(value: f64) -> u64 {
    (value + 0.0).to_bits()
}

/// Reads the count of each class.
fn read_counts(
    builder: &mut PmmlBuilder,
    element: XmlElement,
    classes: &TargetClasses,
) -> Result<Vec<f64>> {
    let mut counts = vec![0.0; classes.len()];
    for count in element.children_named("TargetValueCount") {
        let class = classes.index_of(builder, count, count.required("value")?)?;
        let value = count.required_number("count")?;
        if value.is_nan() || value < 0.0 {
            return Err(count.damaged("count is negative"));
        }
        if let Some(place) = counts.get_mut(class as usize) {
            *place = value;
        }
    }
    Ok(counts)
}

fn read_input<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    context: &ModelContext,
    classes: &TargetClasses,
    priors: &[f64],
) -> Result<BayesInput> {
    let field = context.scope.field(element, "fieldName")?;
    let mut source = BayesSource::Field(field.slot);
    let mut data_type = field.data_type;
    if let Some(derived) = element.child("DerivedField") {
        data_type = builder.type_of(derived)?;
        source =
            BayesSource::Derived(reader::read_child(derived, data_type, context.scope, builder)?);
    }
    if let Some(stats) = element.child("TargetValueStats") {
        let mut distributions = vec![None; classes.len()];
        for stat in stats.children_named("TargetValueStat") {
            let class = classes.index_of(builder, stat, stat.required("value")?)?;
            if let Some(place) = distributions.get_mut(class as usize) {
                *place = Some(Distribution::read(stat)?);
            }
        }
        let distributions: Option<Box<[Distribution]>> = distributions.into_iter().collect();
        let distributions =
            distributions.ok_or_else(|| stats.damaged("needs a TargetValueStat for each class"))?;
        let likelihoods = Likelihoods::Continuous(distributions);
        return Ok(BayesInput { source, likelihoods, is_clipped: true });
    }
    let likelihoods = read_pairs(builder, element, data_type, classes, priors)?;
    let likelihoods = Likelihoods::Discrete(likelihoods);
    Ok(BayesInput { source, likelihoods, is_clipped: true })
}

/// Reads the counts of pairs of a value and a class, as likelihoods of the value in the class.
fn read_pairs(
    builder: &mut PmmlBuilder,
    element: XmlElement,
    data_type: PmmlType,
    classes: &TargetClasses,
    priors: &[f64],
) -> Result<HashMap<u64, Box<[f64]>>> {
    let mut pairs: Vec<(f64, Vec<f64>)> = Vec::new();
    let mut totals = vec![0.0; classes.len()];
    for pair in element.children_named("PairCounts") {
        builder.count_probabilities(pair, classes.len())?;
        let value = builder.strings.constant(pair, data_type, pair.required("value")?)?;
        let counts = read_counts(builder, pair.required_child("TargetValueCounts")?, classes)?;
        totals.iter_mut().zip(&counts).for_each(|(total, count)| *total += count);
        pairs.push((value, counts));
    }
    if pairs.is_empty() {
        return Err(element.damaged("has no PairCounts"));
    }
    let mut likelihoods = HashMap::new();
    for (value, mut counts) in pairs {
        for ((count, total), prior) in counts.iter_mut().zip(&totals).zip(priors) {
            let all = if *total > 0.0 { *total } else { *prior };
            *count = if all > 0.0 { *count / all } else { MISSING };
        }
        likelihoods.insert(key(value), counts.into());
    }
    Ok(likelihoods)
}
