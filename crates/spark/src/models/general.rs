//! `GeneralizedLinearRegressionModel` and `AFTSurvivalRegressionModel`.
//!
//! Source: `org.apache.spark.ml.regression.GeneralizedLinearRegression` of Spark 4.1.

use std::borrow::Cow;

use super::super::folder::StageFolder;
use super::super::schema::{ColumnKind, Schema, Wanted};
use super::super::stage::PipelineStage;
use super::super::table::{SparkColumn, SparkTable, VectorRow};
use super::super::vector::read_vector;
use super::super::{damaged, unsupported};
use super::predict::{SparkRegressor, features, prediction_name, regression};
use tensorserve_tabular::numeric::Link;
use tensorserve_tensor::error::Result;

/// The least probability and mean, as in Spark.
const EPSILON: f64 = 1e-16;

fn read_link(folder: &StageFolder, family: &str) -> Result<Link> {
    if family == "tweedie" {
        let variance = folder.number("variancePower", 0.0)?;
        return Ok(match folder.number("linkPower", 1.0 - variance)? {
            0.0 => Link::Log,
            1.0 => Link::Identity,
            -1.0 => Link::Inverse,
            0.5 => Link::Sqrt,
            power => Link::Power(power),
        });
    }
    let default = match family {
        "gaussian" => "identity",
        "binomial" => "logit",
        "poisson" => "log",
        "gamma" => "inverse",
        other => return Err(unsupported(format!("the family {other:?}"))),
    };
    Ok(match folder.text("link", default)?.to_lowercase().as_str() {
        "identity" => Link::Identity,
        "log" => Link::Log,
        "logit" => Link::Logit,
        "inverse" => Link::Inverse,
        "probit" => Link::Probit,
        "cloglog" => Link::CLogLog,
        "sqrt" => Link::Sqrt,
        other => return Err(unsupported(format!("the link {other:?}"))),
    })
}

/// Which means a family may have.
#[derive(Clone, Copy)]
enum Bounds {
    Finite,
    Probability,
    Positive,
}

impl Bounds {
    fn within(self, mean: f64) -> f64 {
        match self {
            Bounds::Finite if mean == f64::NEG_INFINITY => f64::MIN,
            Bounds::Positive if mean < EPSILON => EPSILON,
            Bounds::Probability if mean < EPSILON => EPSILON,
            Bounds::Probability if mean > 1.0 - EPSILON => 1.0 - EPSILON,
            Bounds::Finite | Bounds::Positive if mean == f64::INFINITY => f64::MAX,
            Bounds::Finite | Bounds::Probability | Bounds::Positive => mean,
        }
    }
}

struct GeneralizedLinear {
    features: usize,
    offset: Option<usize>,
    prediction: usize,
    link_prediction: Option<usize>,
    coefficients: Vec<f64>,
    intercept: f64,
    link: Link,
    bounds: Bounds,
}

/// The coefficients and the intercept of a model.
fn read_sum(folder: &StageFolder) -> Result<(Vec<f64>, f64)> {
    let data = folder.data()?;
    let coefficients = read_vector(&data, "coefficients")?;
    let intercept = data.number("intercept").ok_or_else(|| damaged("it has no intercept"))?;
    match coefficients.is_empty() {
        true => Err(damaged("it has no coefficients")),
        false => Ok((coefficients, intercept)),
    }
}

pub(in super::super) fn generalized(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let (coefficients, intercept) = read_sum(folder)?;
    let family = folder.text("family", "gaussian")?.to_lowercase();
    let link = read_link(folder, &family)?;
    let bounds = match family.as_str() {
        "binomial" => Bounds::Probability,
        "gaussian" => Bounds::Finite,
        // A variance that does not depend on the mean is that of the normal distribution.
        "tweedie" if folder.number("variancePower", 0.0)? == 0.0 => Bounds::Finite,
        _ => Bounds::Positive,
    };
    let features = features(folder, schema, Some(coefficients.len()))?;
    let offset = folder.optional_column("offsetCol")?;
    let offset = offset.map(|name| schema.read(name, Wanted::Number)).transpose()?;
    let prediction = schema.make(prediction_name(folder)?, ColumnKind::Number)?;
    schema.add_output(prediction);
    let link_prediction = match folder.optional_column("linkPredictionCol")? {
        None => None,
        Some(name) => {
            let column = schema.make(name, ColumnKind::Number)?;
            schema.add_output(column);
            Some(column)
        }
    };
    Ok(Box::new(GeneralizedLinear {
        features,
        offset,
        prediction,
        link_prediction,
        coefficients,
        intercept,
        link,
        bounds,
    }))
}

impl PipelineStage for GeneralizedLinear {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let vectors = table.vectors(self.features)?;
        let offsets = self.offset.map(|offset| table.numbers(offset)).transpose()?;
        let sums = (0..table.rows).map(|row| {
            let offset = offsets.and_then(|offsets| offsets.get(row)).copied().unwrap_or(0.0);
            vectors.row(row).dot(&self.coefficients) + self.intercept + offset
        });
        let sums: Vec<f64> = sums.collect();
        let means = sums.iter().map(|sum| self.bounds.within(self.link.mean(*sum))).collect();
        table.put(self.prediction, SparkColumn::Numbers(Cow::Owned(means)));
        if let Some(column) = self.link_prediction {
            table.put(column, SparkColumn::Numbers(Cow::Owned(sums)));
        }
        Ok(())
    }
}

/// The exponential of a sum.
struct Survival {
    coefficients: Vec<f64>,
    intercept: f64,
}

impl SparkRegressor for Survival {
    fn predict(&self, row: VectorRow<'_>) -> f64 {
        (row.dot(&self.coefficients) + self.intercept).exp()
    }
}

pub(in super::super) fn survival(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let (coefficients, intercept) = read_sum(folder)?;
    let width = coefficients.len();
    regression(folder, schema, Some(width), Box::new(Survival { coefficients, intercept }))
}
